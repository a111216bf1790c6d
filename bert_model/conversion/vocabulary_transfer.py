"""Give a model another vocabulary by Fast Vocabulary Transfer (Gee et al., EMNLP 2022, arXiv:2402.09977), or more
positions.

Tokens of both vocabularies keep their rows of the word embeddings; of two kinds of tokenizers their texts are compared.
A new token starts from the mean of the rows that the old vocabulary reads in its place, or from random numbers if the
old vocabulary cannot spell it. The bias of the masked-LM decoder, whose weights are the same rows, follows them; all
other weights are unchanged.

Shapes: V tokens of the new vocabulary, H hidden size.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bert_model.finetuning.finetune import model_identity
from bert_model.finetuning.task_model import prediction_device
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.weights import POSITION_IDS, Weights, check_embeddings, fill_model, read_weights, write_weights
from bert_model.pretraining.batch import make_batch, split_micro_batches
from bert_model.pretraining.data import Samples
from bert_model.pretraining.evaluation import EVALUATION_SEED, batch_totals
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.instances.masking import MaskingConfig
from bert_pipeline.manifest import Manifest, input_of, load_manifest, publishing
from bert_pipeline.vocabulary.files import CONTINUATION_PREFIX
from bert_pipeline.vocabulary.quality import quality
from bert_pipeline.vocabulary.tokenizer import Tokenizer, normalizer
from bert_pipeline.vocabulary.wordpiece import WordCounter

KIND = "adapted_model"
WORD_EMBEDDINGS = ("bert.embeddings.word_embeddings.weight", "model.embeddings.tok_embeddings.weight")
DECODER_BIASES = ("cls.predictions.bias", "decoder.bias")
"""Names in either architecture."""
POSITIONS = "bert.embeddings.position_embeddings.weight"

NUM_PASSAGES = 512
"""Limit on the passages of a corpus that are measured; a base model takes minutes for them on a CPU."""
PASSAGE_LENGTH = 128
"""Limit on the tokens of a passage, special ones counted."""
MICRO_BATCH_SIZE = 32
SEED = 0
"""Decides random rows."""


def adapt_model(
    model: Path,
    vocabulary: Path | None,
    output: Path,
    corpus: Path | None = None,
    *,
    positions: int = 0,
    special_tokens: Sequence[str] = (),
    cased: bool | None = None,
) -> Manifest:
    """Write `model` with the vocabulary of another directory, or with more positions; return the manifest.

    `special_tokens` are added to that vocabulary, or without one to the model's own. `cased` is its case where its
    files do not state it.

    With a corpus directory, passages of its held-out documents (of its training documents if it has no others) are
    measured: both vocabularies on their words, and the masked-LM loss of the moved model before any training, next to
    that of random new rows; the manifest's counts are the report. UsageError if both vocabularies are the same, or
    nothing is to be changed.
    """
    # What does not fit together is found before the output is begun.
    if vocabulary is None and not positions and not special_tokens:
        raise UsageError(f"{model}: nothing is to be changed; give --vocab, --special-token or --positions")
    old = Tokenizer.from_directory(model)
    new = Tokenizer.from_directory(vocabulary or model, cased=cased).with_special_tokens(special_tokens)
    if vocabulary is not None and old.sha256 == new.sha256:
        raise UsageError(f"{vocabulary}: is the vocabulary of {model} already; give another one")
    source = load_manifest(corpus, kind="corpus") if corpus is not None else None
    weights, config = read_weights(model), BertConfig.from_directory(model)
    check_embeddings(model, config, old)
    fill_model(BertForPreTraining, config, weights)  # raises for tensors that do not fit
    if positions:
        weights = with_positions(weights, positions)
        config = dataclasses.replace(config, max_position_embeddings=positions)
    config = dataclasses.replace(config, vocab_size=new.vocab_size, pad_token_id=new.pad_id)

    # The first start is written; the second one, with random rows for all new tokens, is only measured.
    pieces, kept = rows_of(new, old)
    shared = [ids if own else [] for ids, own in zip(pieces, kept)]
    moved, random = (move_rows(weights, rows, config.initializer_range) for rows in (pieces, shared))
    num_shared, num_spelled = (sum(map(bool, rows)) for rows in (shared, pieces))
    counts: dict[str, Any] = {
        "vocab_size": new.vocab_size,
        "kept_rows": num_shared,
        "mean_rows": num_spelled - num_shared,
        "random_rows": new.vocab_size - num_spelled,
        "positions": config.max_position_embeddings,
    }

    # Measured before it is written, on passages that the model was not trained on where there are any.
    inputs: dict[str, Any] = {"model": model_identity(model), "vocabulary": {"sha256": new.sha256}}
    if source is not None:
        inputs["corpus"] = input_of(source)
    with publishing(output, kind=KIND, configuration={"seed": SEED}, inputs=inputs) as draft:
        if source is not None:
            texts, counts["measured_on"] = _passages(source)
            counts |= {"quality": _quality(new, texts), "old_quality": _quality(old, texts)}
            if not weights.tensors.keys().isdisjoint(DECODER_BIASES):
                counts["mlm_loss"] = masked_lm_loss(moved, config, texts, new)
                counts["mlm_loss_random_rows"] = masked_lm_loss(random, config, texts, new)
        draft.counts |= counts
        write_weights(moved.tensors, config, moved.architecture, draft.path)
        new.save(draft.path, model_max_length=config.max_position_embeddings)
    return load_manifest(output, kind=KIND)


def with_positions(weights: Weights, positions: int) -> Weights:
    """Return weights with more positions, whose embeddings are the learned ones stretched, for further training.

    As vision transformers do for larger images (Dosovitskiy et al. 2021, arXiv 2010.11929, section 3.2), by linear
    interpolation. UsageError if there are as many already, or none are learned.
    """
    learned = weights.tensors.get(POSITIONS)
    if learned is None:
        raise UsageError(
            f"{weights.where}: its positions have no weights; give bert pretrain --from it "
            f"model.overrides.max_position_embeddings={positions}"
        )
    if positions <= len(learned):
        raise UsageError(f"--positions: found {positions}, but {weights.where} has {len(learned)} already; give more")
    stretched = functional.interpolate(learned.float().T[None], size=positions, mode="linear")[0].T  # (positions, H)
    return dataclasses.replace(weights, tensors={**weights.tensors, POSITIONS: stretched.contiguous()})


def rows_of(new: Tokenizer, old: Tokenizer) -> tuple[list[list[int]], list[bool]]:
    """Return the old rows that each new token starts from, and whether it is a token of both vocabularies.

    The texts of the tokens are compared: "Ġtown" and "▁town" are the word "town", and "##ing" is "ing" within a word. A
    special token has the row of its role.
    """
    # Parts of characters, whose text is the same, are told apart by their tokens.
    known = {text: index for index, text in enumerate(old.surfaces) if "\ufffd" not in text[0]}
    stated = [old.token_to_id(token) for token in new.tokens]
    same = [
        own if own is not None and old.surfaces[own] == text else known.get(text)
        for own, text in zip(stated, new.surfaces)
    ]
    for name, other in zip(new.names, old.names):
        same[new.tokens.index(name)] = old.token_to_id(other)
    rows = [_spelled(*text, old, new) if own is None else [own] for own, text in zip(same, new.surfaces)]
    # A token of the user's is read as the text that it is.
    added = [entry["content"] for entry in new.added if old.token_to_id(entry["content"]) is None]
    for content, ids in zip(added, old.encode_batch(added)):
        rows[new.tokens.index(content)] = [index for index in ids if index != old.unk_id]
    return rows, [own is not None for own in same]


def _spelled(text: str, begins: bool, old: Tokenizer, new: Tokenizer) -> list[int]:
    """Spell the text of a token by another vocabulary; [] if it is a part of a character, or is unknown there."""
    if not text or "\ufffd" in text:
        return []
    if not old.is_bert:
        ids = old.encode(" " * (begins and text[0].isalnum()) + text)
        return [] if old.unk_id in ids else ids
    # Normalized as the old vocabulary's texts were, so that a cased token finds its lower-case pieces.
    word = normalizer(old.do_lower_case).normalize_str(text).strip()
    if not word:
        return []
    ids = old.encode_word(word if begins else CONTINUATION_PREFIX + word)
    # To BERT punctuation is a word, to others it may be glued to one.
    return ids if ids or new.is_bert else old.encode_word(word)


def move_rows(weights: Weights, pieces: Sequence[Sequence[int]], initializer_range: float) -> Weights:
    """Return weights whose row of each new token is the mean of its old rows, or random if it has none."""
    # One bag of old rows for each new token; an empty bag gives zeros, replaced below.
    flat = torch.tensor([index for ids in pieces for index in ids], dtype=torch.long)
    lengths = torch.tensor([len(ids) for ids in pieces])
    starts = lengths.cumsum(0) - lengths
    tensors = {name: tensor for name, tensor in weights.tensors.items() if name != POSITION_IDS}
    words = next(name for name in WORD_EMBEDDINGS if name in tensors)
    rows = functional.embedding_bag(flat, tensors[words].float(), starts, mode="mean")  # (V, H)

    # Random rows are drawn as in a new model.
    empty = (lengths == 0).nonzero().squeeze(1)
    generator = torch.Generator().manual_seed(SEED)
    rows[empty] = torch.randn(len(empty), rows.shape[1], generator=generator) * initializer_range
    tensors[words] = rows
    for name in tensors.keys() & DECODER_BIASES:
        bias = tensors[name].float().unsqueeze(1)
        tensors[name] = functional.embedding_bag(flat, bias, starts, mode="mean").squeeze(1)  # (V,)
    return dataclasses.replace(weights, tensors=tensors)


@torch.no_grad()
def masked_lm_loss(weights: Weights, config: BertConfig, texts: Sequence[str], tokenizer: Tokenizer) -> float:
    """Return the mean masked-LM loss on single passages, in nats per predicted token; the masks are always the same."""
    # Passages become instances of one segment.
    length = min(PASSAGE_LENGTH, config.max_position_embeddings)
    rows = [[tokenizer.cls_id, *ids[: length - 2], tokenizer.sep_id] for ids in tokenizer.encode_batch(texts)]
    offsets = np.cumsum([0, *map(len, rows)])
    samples = Samples(
        input_ids=np.concatenate(rows).astype(np.int32),
        offsets=offsets,
        segment_b_start=np.diff(offsets).astype(np.int32),
        is_random_next=np.zeros(len(rows), dtype=bool),
        sample_indices=np.arange(len(rows)),
        epochs=np.zeros(len(rows), dtype=np.int64),
    )

    device = torch.device(prediction_device())
    model = fill_model(BertForPreTraining, config, weights)[0].to(device).eval()
    total = num_predictions = 0.0
    for part in split_micro_batches(samples, MICRO_BATCH_SIZE):
        batch = make_batch(part, MaskingConfig(), tokenizer, seed=EVALUATION_SEED).to(device)
        total += float(batch_totals(model, batch, "float32")[0])
        num_predictions += batch.counts.predictions
    return total / num_predictions


def _passages(corpus: Manifest) -> tuple[list[str], str]:
    """Return passages from all shards of a corpus, and the split that they belong to."""
    shards = corpus.file_paths("documents-")
    for split in ("held_out", "train"):
        texts: list[str] = []
        for path in shards:
            documents = (document for document in read_documents(path) if document.split == split)
            passages = (" ".join(sentences) for document in documents for sentences in document.passages)
            texts += itertools.islice(passages, -(-NUM_PASSAGES // len(shards)))
        if texts:
            return texts, split
    raise InputError(f"{corpus.path}: has no passage to measure on; give another corpus")


def _quality(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, Any]:
    counter = WordCounter(tokenizer.do_lower_case, "wordpiece" if tokenizer.is_bert else "bpe")
    return quality(tokenizer, counter.count(texts))
