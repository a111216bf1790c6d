"""Sentence pairs for next-sentence prediction from documents, with the semantics of BERT's create_pretraining_data.

Without pairs they are rows of contiguous text, whose segment B is empty.
All documents of a shard advance together, one pair at a time, so the work is done on arrays. Every draw is a function
of (seed, document id, pass, number of the pair), so neither the runner nor the number of workers changes it.
Shapes: D documents, S sentences, T tokens, N pairs.
"""

import collections
import dataclasses
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from bert_pipeline.configuration import Proportion, changed_settings, configuration
from bert_pipeline.corpus.mixture import MixtureConfig
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.instances.columns import InstanceColumns, join, offsets_of, unpad
from bert_pipeline.instances.masking import MaskedBatch, MaskingConfig, continuing, mask_batch
from bert_pipeline.randomness import below, binomial_half, combine, fraction
from bert_pipeline.vocabulary.tokenizer import CONTINUES, Tokenizer

NUM_ADDED_TOKENS = 3  # [CLS] A [SEP] B [SEP]; a row of contiguous text has one [SEP] less

# The last counter of each draw, of a document in one pass and of one pair, so that draws are independent.
_IS_SHORT, _SHORT_LENGTH, _PAIR, _FIRST_LENGTH = range(4)
_A_END, _IS_RANDOM, _OTHER_DOCUMENT, _OTHER_SENTENCE, _CUT_A, _CUT_B, _ORDER, _MASK = range(8)

Masking = Literal["dynamic", "static", ""]
Format = Literal["parquet", "tfrecord", "both"]


@configuration
class InstancesConfig(MaskingConfig, MixtureConfig):
    """How documents become pre-training instances; the defaults are those of BERT's own script.

    The settings of masks are for static ones.
    """

    max_seq_length: Annotated[int, Field(ge=NUM_ADDED_TOKENS + 2, le=65_535)] = 128
    """Tokens of the longest instance, [CLS] and each [SEP] counted."""
    pairs: Literal["next_sentence", "none"] = "next_sentence"
    """`none` writes rows of contiguous text instead of pairs of segments, for pre-training with objective mlm."""
    short_seq_prob: Proportion = 0.1
    """Share of the passes over a document that aim at a shorter, random length."""
    dupe_factor: PositiveInt = 10
    """Passes over each document, each with its own pairs or rows."""
    format: Format = "parquet"
    """Unpadded Parquet, google's padded TFRecord, or both."""
    tfrecord_compression: Literal["none", "gzip"] = "none"
    """Compression of the TFRecord files."""
    masking: Masking = ""
    """Masks stored with the instances, or drawn when a batch is made; empty: dynamic for parquet, else static."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 12345
    """Key of all draws."""

    mix_key: ClassVar[str] = "masking_mix"

    def __post_init__(self) -> None:
        if self.masking == "dynamic" and self.format != "parquet":
            raise ConfigurationError(
                f"masking='dynamic': format={self.format!r} stores masks, so it needs masking='static'"
            )
        if self.format == "parquet" and self.tfrecord_compression != "none":
            raise ConfigurationError(
                f"tfrecord_compression={self.tfrecord_compression!r}: format='parquet' writes no TFRecord"
            )
        changed = {} if self.has_static_masks else changed_settings(self)
        if ignored := [name for name in _MASK_SETTINGS if name in changed]:
            raise ConfigurationError(
                f"{ignored[0]}={changed[ignored[0]]!r}: it would be ignored, since masking='dynamic' draws masks in "
                "training; set it in the masking section of the pre-training, or masking='static' here"
            )
        super().__post_init__()

    @property
    def has_static_masks(self) -> bool:
        return self.masking == "static" or (self.masking == "" and self.format != "parquet")

    def masking_config(self) -> MaskingConfig:
        """Return the settings of static masks, with the number of predictions."""
        masking = MaskingConfig(**{name: getattr(self, name) for name in _MASK_SETTINGS})
        return dataclasses.replace(masking, max_predictions_per_seq=masking.max_predictions(self.max_seq_length))


_MASK_SETTINGS = tuple(field.name for field in dataclasses.fields(MaskingConfig))
_PADDED_TOKENS = 1 << 19
"""Tokens, padding counted, of the instances that are made at a time: each takes some twenty bytes meanwhile."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedDocuments:
    """The documents of one shard and split, without empty sentences and empty documents."""

    tokens: np.ndarray
    """(T,) int32 or uint16: ids, without special tokens; with `CONTINUES`, those that continue a word."""
    sentence_offsets: np.ndarray
    """(S + 1,) int64: where each sentence starts in `tokens`; strictly ascending."""
    document_offsets: np.ndarray
    """(D + 1,) int64: where each document starts among the sentences; strictly ascending."""
    keys: np.ndarray
    """(D,) uint64: `key_of_text(document_id)`."""

    @property
    def num_documents(self) -> int:
        return len(self.keys)

    def document_of(self, tokens: np.ndarray) -> np.ndarray:
        """Return the document (N,) of each of N places in `tokens`."""
        documents: np.ndarray = np.searchsorted(self.sentence_offsets[self.document_offsets], tokens, side="right") - 1
        return documents


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
    """Truncated pairs as spans of `TokenizedDocuments.tokens`."""

    a_start: np.ndarray
    """(N,) int64"""
    a_length: np.ndarray
    """(N,) int64"""
    b_start: np.ndarray
    """(N,) int64"""
    b_length: np.ndarray
    """(N,) int64: 0 in rows of contiguous text."""
    is_random_next: np.ndarray
    """(N,) bool"""
    keys: np.ndarray
    """(N,) uint64: the key of each pair's draws, a function of (seed, document id, pass, number of the pair)."""
    num_without_partner: int = 0
    """Chunks of one sentence that made no pair because the shard has no other document."""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, indices: np.ndarray | slice) -> "Pairs":
        """Return the pairs at `indices`."""
        return dataclasses.replace(self, **{name: getattr(self, name)[indices] for name in _PAIR_ARRAYS})


_PAIR_ARRAYS = ("a_start", "a_length", "b_start", "b_length", "is_random_next", "keys")


def make_pairs(documents: TokenizedDocuments, config: InstancesConfig, passes: np.ndarray | None = None) -> Pairs:
    """Cut documents into pairs A, B, `dupe_factor` times, and shuffle them over the whole shard.

    With `passes` (D,) int64 each document is read so many times instead.

    Sentences accumulate to a chunk of the target length, or up to the document's end; A is a random number of its first
    sentences. B is the rest, or (with probability 1/2, and always if the chunk is one sentence) text from a random
    sentence of another document on, each being drawn as often as it is read. With one document there are no random
    pairs.
    Source: google-research/bert, create_pretraining_data.py, `create_instances_from_document`; unlike there, the other
    document is never the same one. With `config.pairs` "none" all B are empty (`_contiguous_steps`).
    """
    if passes is None:
        passes = np.full(documents.num_documents, config.dupe_factor)
    steps = list((_steps if config.pairs == "next_sentence" else _contiguous_steps)(documents, config, passes))
    arrays = {name: np.concatenate([getattr(step, name) for step in steps]) for name in _PAIR_ARRAYS}
    pairs = Pairs(**arrays, num_without_partner=0)
    # Sorting by a draw of each pair's own key shuffles them, whatever the order of the steps.
    order = np.argsort(combine(pairs.keys, _ORDER), kind="stable")
    if config.pairs == "next_sentence":  # without another document, a chunk of one sentence has no B
        order = order[pairs.b_length[order] > 0]
    return dataclasses.replace(pairs.take(order), num_without_partner=len(pairs) - len(order))


def _steps(documents: TokenizedDocuments, config: InstancesConfig, passes: np.ndarray) -> Iterator[Pairs]:
    """Yield the first pair of every document and pass, then the second pairs of those that have one, and so on."""
    first_token = documents.sentence_offsets
    first_sentence = documents.document_offsets
    max_num_tokens = config.max_seq_length - NUM_ADDED_TOKENS
    first_row = offsets_of(passes)  # (D + 1,)
    owner, _, key, target = _begin_passes(documents, config, passes, max_num_tokens)
    document = owner
    has_others = np.count_nonzero(passes) > 1
    key = combine(key, _PAIR)
    position = first_sentence[document]  # the next unused sentence
    number = 0
    while not number or len(document):
        # The chunk: whole sentences until the target length is reached. A is a random number of the first ones, at
        # least one, and not all of them unless there is only one.
        pair_key = combine(key, number)
        document_end = first_sentence[document + 1]
        start_token = first_token[position]
        chunk_end = np.minimum(np.searchsorted(first_token, start_token + target), document_end)
        num_sentences = chunk_end - position
        a_sentences = 1 + below(combine(pair_key, _A_END), np.maximum(num_sentences - 1, 1))
        a_end = first_token[position + a_sentences]
        # B: the rest of the chunk, or as many tokens as A leaves room for from a random document.
        if has_others:
            is_random = (num_sentences == 1) | (fraction(combine(pair_key, _IS_RANDOM)) < 0.5)
            # Any row but those of the document itself.
            row = below(combine(pair_key, _OTHER_DOCUMENT), len(owner) - passes[document])
            other = owner[row + np.where(row >= first_row[document], passes[document], 0)]
            random_start, random_end = _random_next(documents, other, pair_key, target - (a_end - start_token))
            b_start = np.where(is_random, random_start, a_end)
            b_end = np.where(is_random, random_end, first_token[chunk_end])
        else:
            is_random = np.zeros(len(document), dtype=bool)
            b_start, b_end = a_end, first_token[chunk_end]
        a_start, a_length, b_start, b_length = _truncate(
            start_token, a_end - start_token, b_start, b_end - b_start, max_num_tokens, pair_key
        )

        yield Pairs(
            a_start=a_start,
            a_length=a_length,
            b_start=b_start,
            b_length=b_length,
            is_random_next=is_random,
            keys=pair_key,
        )
        # The sentences of a chunk with a random B were not used: "put them back" so that they don't go to waste.
        position = np.where(is_random, position + a_sentences, chunk_end)
        if not (has_more := position < document_end).all():
            document, key, target, position = (array[has_more] for array in (document, key, target, position))
        number += 1


def _contiguous_steps(documents: TokenizedDocuments, config: InstancesConfig, passes: np.ndarray) -> Iterator[Pairs]:
    """Yield the first row of every document and pass, then the second rows, and so on; B is empty.

    A row has as many whole sentences as fit into the target length, at least one, which is cut where `max_seq_length`
    ends. The first row of all passes but the first aims at a random length, so that the others end elsewhere.
    """
    first_token, max_num_tokens = documents.sentence_offsets, config.max_seq_length - (NUM_ADDED_TOKENS - 1)
    document, number_of_pass, key, target = _begin_passes(documents, config, passes, max_num_tokens)
    position, end = (first_token[documents.document_offsets[document + after]] for after in (0, 1))
    is_shifted = (number_of_pass > 0) & (end - position > target)
    room = np.where(is_shifted, 1 + below(combine(key, _FIRST_LENGTH), target), target)
    key = combine(key, _PAIR)
    number = 0
    while not number or len(position):
        last_end = first_token[np.searchsorted(first_token, np.minimum(position + room, end), side="right") - 1]
        sentence_end = first_token[np.searchsorted(first_token, position, side="right")]
        stop = np.where(last_end > position, last_end, np.minimum(sentence_end, position + max_num_tokens))
        nothing = np.zeros_like(position)
        yield Pairs(
            a_start=position,
            a_length=stop - position,
            b_start=stop,
            b_length=nothing,
            is_random_next=nothing.astype(bool),
            keys=combine(key, number),
        )
        has_more = stop < end
        position, end, key, target = (array[has_more] for array in (stop, end, key, target))
        room = target
        number += 1


def _begin_passes(
    documents: TokenizedDocuments, config: InstancesConfig, passes: np.ndarray, max_num_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return document, number of the pass, key and target length (N,) of each pass over each document.

    Every draw of a pass is a function of its key.
    """
    document = np.repeat(np.arange(documents.num_documents), passes)
    number_of_pass = np.arange(len(document)) - offsets_of(passes)[document]
    key = combine(combine(config.seed, number_of_pass), documents.keys[document])
    # We *usually* want to fill the entire sequence, since padding is wasted computation. A few passes over a document
    # aim at a shorter, random length, to reduce the mismatch with the lengths of fine-tuning.
    short_length = 2 + below(combine(key, _SHORT_LENGTH), max_num_tokens - 1)
    is_short = fraction(combine(key, _IS_SHORT)) < config.short_seq_prob
    return document, number_of_pass, key, np.where(is_short, short_length, max_num_tokens)


def _random_next(
    documents: TokenizedDocuments, other: np.ndarray, pair_key: np.ndarray, num_tokens: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return spans (N,) from a random sentence of documents (N,): `num_tokens` (N,) or more, or up to its end."""
    first_token, first_sentence = documents.sentence_offsets, documents.document_offsets
    start, end = first_sentence[other], first_sentence[other + 1]
    start = start + below(combine(pair_key, _OTHER_SENTENCE), end - start)
    start_token = first_token[start]
    # At least one sentence, even when A alone has reached the target.
    enough = np.searchsorted(first_token, start_token + np.maximum(num_tokens, 1))
    return start_token, first_token[np.minimum(enough, end)]


def _truncate(
    a_start: np.ndarray, a_length: np.ndarray, b_start: np.ndarray, b_length: np.ndarray, limit: int, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Truncate pairs (N,) to `limit` tokens: one at a time from the longer side (tie: B), at a random end of it.

    A random end adds more randomness and avoids a bias towards the start or the end of a text.
    """
    over = a_length + b_length - limit
    rows = np.flatnonzero(over > 0)
    if not len(rows):
        return a_start, a_length, b_start, b_length
    over, a, b = over[rows], a_length[rows], b_length[rows]
    # In closed form: first the longer side is cut to the length of the other one, then both in turn, B first. Of the
    # tokens cut from a side, a binomial number is taken from its front.
    difference = a - b
    alone = np.minimum(over, np.abs(difference))
    rest = over - alone
    cut_a = np.where(difference > 0, alone, 0) + rest // 2
    cut_b = np.where(difference > 0, 0, alone) + (rest + 1) // 2
    a_start, a_length, b_start, b_length = (x.copy() for x in (a_start, a_length, b_start, b_length))
    a_start[rows] += binomial_half(combine(keys[rows], _CUT_A), cut_a)
    b_start[rows] += binomial_half(combine(keys[rows], _CUT_B), cut_b)
    a_length[rows] -= cut_a
    b_length[rows] -= cut_b
    return a_start, a_length, b_start, b_length


def assemble(
    documents: TokenizedDocuments, pairs: Pairs, vocabulary: Tokenizer, max_seq_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return [CLS] A [SEP] B [SEP] of each pair: padded ids (N, max_seq_length) int32 and lengths (N,) int64.

    Where B is empty it is [CLS] A [SEP].
    """
    # The token at each column, counting the special tokens before it: one before A, two before B. What this yields at
    # special tokens and padding is overwritten below.
    column = np.arange(max_seq_length)
    a = pairs.a_length[:, None]
    in_a = column <= a
    source = column + np.where(in_a, pairs.a_start[:, None] - 1, pairs.b_start[:, None] - a - 2)  # (N, W)
    np.clip(source, 0, max(len(documents.tokens) - 1, 0), out=source)
    input_ids = documents.tokens[source].astype(np.int32, copy=False)
    lengths = pairs.a_length + pairs.b_length + NUM_ADDED_TOKENS - (pairs.b_length == 0)
    input_ids[column >= lengths[:, None]] = 0
    rows = np.arange(len(pairs))
    input_ids[:, 0] = vocabulary.cls_id
    input_ids[rows, pairs.a_length + 1] = vocabulary.sep_id
    input_ids[rows, lengths - 1] = vocabulary.sep_id
    return input_ids, lengths


def make_instances(
    documents: TokenizedDocuments,
    pairs: Pairs,
    vocabulary: Tokenizer,
    config: InstancesConfig,
    counts: collections.Counter[str],
) -> InstanceColumns:
    """Assemble pairs, mask them if masks are static, and add what they hold to `counts`."""
    if len(pairs) > (rows := max(1, _PADDED_TOKENS // config.max_seq_length)):
        parts = [pairs.take(slice(start, start + rows)) for start in range(0, len(pairs), rows)]
        return join([make_instances(documents, part, vocabulary, config, counts) for part in parts])
    input_ids, lengths = assemble(documents, pairs, vocabulary, config.max_seq_length)
    continues = None
    if not vocabulary.is_bert:
        continues = (input_ids & CONTINUES) > 0  # (N, W)
        input_ids &= ~CONTINUES
    counts["instances"] += len(pairs)
    counts["tokens"] += int(lengths.sum())
    counts["random_next"] += int(pairs.is_random_next.sum())
    is_token = np.arange(input_ids.shape[1]) < lengths[:, None]  # 0, the padding, may be the id of a token
    counts["unk_tokens"] += int(np.count_nonzero(is_token & (input_ids == vocabulary.unk_id)))
    masked: dict[str, np.ndarray] = {}
    if config.has_static_masks:
        masking = config.masking_config()
        batch = mask_batch(input_ids, lengths, combine(pairs.keys, _MASK), vocabulary, masking, continues)
        counts.update(_count_masks(batch, vocabulary.mask_id))
        if masking.whole_word_masking:
            counts["continuing"] += int(continuing(input_ids, vocabulary, continues).sum())
        limit = masking.max_predictions(config.max_seq_length)
        counts["capped"] += int(np.count_nonzero(np.rint(lengths * masking.masked_lm_prob) > limit))
        masked = {**vars(batch)}
        input_ids = masked.pop("input_ids")
    elif continues is not None:
        masked["continues_word"], _ = unpad(continues, lengths)
    flat, offsets = unpad(input_ids, lengths)
    return InstanceColumns(
        input_ids=flat,
        offsets=offsets,
        segment_b_start=(pairs.a_length + 2).astype(np.int32),
        is_random_next=pairs.is_random_next,
        **masked,
    )


def _count_masks(batch: MaskedBatch, mask_id: int) -> dict[str, int]:
    """Count the outcomes of static masking."""
    rows = np.repeat(np.arange(len(batch.input_ids)), np.diff(batch.masked_offsets))  # (M,)
    seen = batch.input_ids[rows, batch.masked_lm_positions]
    is_mask = seen == mask_id
    # A random token that equals the original counts as the same: the model cannot tell the two apart.
    is_same = ~is_mask & (seen == batch.masked_lm_ids)
    return {
        "masked_tokens": len(rows),
        "masked_as_mask": int(is_mask.sum()),
        "masked_as_same": int(is_same.sum()),
        "masked_as_random": int((~is_mask & ~is_same).sum()),
    }
