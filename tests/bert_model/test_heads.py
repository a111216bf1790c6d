"""Every head agrees with its Hugging Face counterpart and is read and written as that architecture."""

from pathlib import Path
from typing import Any

import pytest
import torch
from instances_fixture import make_tokenizer

from bert_model.config import BertConfig
from bert_model.heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_model.modeling import new_model
from bert_model.weights import save_model

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "model_class",
    [BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering, BertForMultipleChoice],
)
def test_transformers_opens_what_we_write_and_gives_the_same_logits(model_class: Any, tmp_path: Path) -> None:
    labels = () if model_class is BertForQuestionAnswering else ("a", "b", "c")
    config = BertConfig.from_preset("tiny", vocab_size=60, max_position_embeddings=32, labels=labels)
    ours = new_model(model_class, config, seed=1).eval()
    save_model(ours, tmp_path, make_tokenizer(60))
    theirs, report = getattr(transformers, model_class.__name__).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    shape = (2, 3, 12) if model_class is BertForMultipleChoice else (4, 12)
    input_ids = torch.randint(5, 60, shape, generator=torch.Generator().manual_seed(0))
    attention_mask = torch.ones(shape, dtype=torch.long)
    attention_mask[..., 1, 8:] = 0
    token_type_ids = (torch.arange(12) > 5).long().expand(shape)
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
    with torch.no_grad():
        found, expected = ours(**inputs), theirs.eval()(**inputs)
    if model_class is BertForQuestionAnswering:
        pairs = [(found[0], expected.start_logits), (found[1], expected.end_logits)]
    else:
        pairs = [(found, expected.logits)]
    for one, other in pairs:
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_a_classifier_has_as_many_outputs_as_labels_and_its_own_dropout() -> None:
    config = BertConfig.from_preset("tiny", vocab_size=60, labels=("only",), classifier_dropout=0.3)
    model = new_model(BertForSequenceClassification, config, seed=0)
    assert model.classifier.weight.shape == (1, 128)
    assert model.dropout.probability == 0.3
