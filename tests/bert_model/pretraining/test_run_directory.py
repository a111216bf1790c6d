"""Initial models with another vocabulary, or too few embeddings, are refused."""

import pytest
import tiny_tasks
import torch

from bert_model.pretraining.config import ModelConfig, PhaseConfig, PretrainingConfig
from bert_model.pretraining.run_directory import initialize_or_resume
from bert_model.training.distributed import Group
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.vocabulary.tokenizer import Tokenizer

ALONE = Group(rank=0, world_size=1, device=torch.device("cpu"))
PHASE = PhaseConfig(max_seq_length=32, steps=2, warmup_steps=1, instances="instances")


def test_initial_model_with_another_vocabulary_is_refused(tmp_path):
    model = tiny_tasks.make_model(tmp_path / "model")
    config = PretrainingConfig(model=ModelConfig(preset="initial"), phases=(PHASE,), initial_model=str(model))
    own = Tokenizer.from_directory(model)
    other = Tokenizer.from_tokens((*tiny_tasks.TOKENS[:-1], "##ing", "##est"), True)
    with pytest.raises(ConfigurationError) as refused:
        initialize_or_resume(config, None, other, ALONE)
    for tokenizer in (own, other):
        assert f"{tokenizer.vocab_size} tokens, lower-casing ({tokenizer.sha256[:12]}…)" in str(refused.value)
    assert initialize_or_resume(config, None, own, ALONE).origin.startswith(f"continuing from {model}")


def test_model_smaller_than_the_vocabulary_is_refused():
    tokenizer = Tokenizer.from_tokens(tiny_tasks.TOKENS, True)
    size = tokenizer.vocab_size
    config = PretrainingConfig(model=ModelConfig(preset="tiny", overrides={"vocab_size": size - 1}), phases=(PHASE,))
    with pytest.raises(ConfigurationError, match=f"found {size - 1}, but the data's vocabulary has {size} tokens"):
        initialize_or_resume(config, None, tokenizer, ALONE)
