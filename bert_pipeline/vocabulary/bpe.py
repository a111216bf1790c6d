"""Byte-level BPE (Radford et al., 2019) trained on counts of words, with the splitter of GPT-2."""

import json
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from bert_pipeline.vocabulary.files import MASK, Stated
from bert_pipeline.vocabulary.tokenizer import WORDS_WITH_BLANKS, Tokenizer, normalizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig, check_size, layout, repeated

_SEPARATOR = "\0"


def train_bpe(counts: Sequence[tuple[str, int]], config: VocabularyConfig) -> Tokenizer:
    """Train a tokenizer of `vocab_size` tokens: the head of a BERT vocabulary, 256 bytes, merges.

    `counts` are of words with the blank in front of them (`WordCounter`). The result depends on the counts alone.
    InputError if they do not yield enough merges.
    """
    kept = [(word, count) for word, count in counts if count >= config.min_count]
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_SEPARATOR, "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - len(layout(config.num_unused)),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    engine.train_from_iterator(repeated(kept, _SEPARATOR), trainer)
    learned = engine.get_vocab()
    head = layout(check_size(config, len(learned), ""))

    # The trainer numbers from 0; the head comes before.
    engine.normalizer, engine.pre_tokenizer = normalizer(config.do_lower_case, "bpe"), WORDS_WITH_BLANKS
    engine.decoder = decoders.ByteLevel()
    pipeline = json.loads(engine.to_str())
    tokens = (*head, *sorted(learned, key=learned.__getitem__))
    pipeline["model"]["vocab"] = {token: index for index, token in enumerate(tokens)}
    pipeline["added_tokens"] = [{"content": MASK, "lstrip": True}]
    return Tokenizer(Stated(tokens=tokens, pipeline=pipeline))
