"""Masked-LM choices for whole batches: drawn once and stored (static), or drawn for each batch (dynamic).

The mask of an instance depends on its own key and tokens alone, never on the rest of its batch.
Shapes: B instances, S tokens of the longest, M predictions of all.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from bert_pipeline.configuration import Proportion, configuration
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.instances.columns import offsets_of
from bert_pipeline.randomness import below, combine, fraction
from bert_pipeline.vocabulary.tokenizer import Tokenizer

# The first counter of each draw of an instance, so that draws are independent.
_CHOICE, _REPLACEMENT = 0, 1

PAPER_MIXES = ("80/10/10", "100/0/0", "80/0/20", "80/20/0", "0/20/80", "0/0/100")
"""The mixes of the paper's Table 8: percentages of chosen tokens that are masked, the same and random."""

_SHARES = ("mask_share", "same_share", "random_share")


@configuration
class MaskingConfig:
    """How many tokens are predicted, and what the model sees in their place (paper, section 3.1 and appendix C.2)."""

    masked_lm_prob: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of all tokens, special ones counted, that are predicted."""
    max_predictions_per_seq: PositiveInt | None = None
    """At most this many predictions in an instance. Without it the share of the longest one, rounded up: 20 of 128."""
    mask_share: Proportion = 0.8
    """Share of the chosen tokens that [MASK] replaces."""
    same_share: Proportion = 0.1
    """Share of the chosen tokens that stay as they are."""
    random_share: Proportion = 0.1
    """Share of the chosen tokens that a random vocabulary entry replaces."""
    whole_word_masking: bool = False
    """Choose words, not pieces."""

    mix_key: ClassVar[str] = "mix"

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in _SHARES}
        if not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-9):
            stated = ", ".join(f"{name}={share}" for name, share in shares.items())
            raise ConfigurationError(f"{stated}: the three shares add up to {sum(shares.values()):g}, expected 1")

    def max_predictions(self, max_seq_length: int) -> int:
        """Return the maximum number of predictions in an instance of at most `max_seq_length` tokens."""
        return self.max_predictions_per_seq or math.ceil(round(max_seq_length * self.masked_lm_prob, 6))

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, values: Any) -> Any:
        """Take a mix such as those in `PAPER_MIXES`, under `mix_key`, for the three shares."""
        key = cls.mix_key
        if not isinstance(values, Mapping) or key not in values:
            return values
        rest = {name: value for name, value in values.items() if name != key}
        if present := [name for name in _SHARES if name in rest]:
            raise ConfigurationError(f"{key}={values[key]}: {', '.join(present)} is set too; give one or the other")
        try:
            shares = [float(part) / 100 for part in str(values[key]).split("/")]
        except ValueError:
            shares = []
        if len(shares) != len(_SHARES) or not math.isclose(sum(shares), 1.0, abs_tol=1e-9):
            raise ConfigurationError(
                f"{key}: {values[key]}: expected three percentages that add up to 100, MASK/SAME/RND, such as the "
                f"paper's {', '.join(PAPER_MIXES)}"
            )
        return rest | dict(zip(_SHARES, shares))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedBatch:
    """Masked instances, and the tokens to predict as `InstanceColumns` has them."""

    input_ids: np.ndarray
    """(B, S) int32: masked."""
    masked_lm_positions: np.ndarray
    """(M,) int32: within the instance, ascending."""
    masked_lm_ids: np.ndarray
    """(M,) int32: the original tokens."""
    masked_offsets: np.ndarray
    """(B + 1,) int64: where each instance starts in the two others."""


def sample_keys(seed: int, epoch: np.ndarray | int, sample_indices: np.ndarray) -> np.ndarray:
    """Return the keys (B,) uint64 of the dynamic masks of samples (B,) int64, each in its epoch of a training."""
    return combine(seed, epoch, sample_indices)


def num_to_predict(lengths: np.ndarray, config: MaskingConfig) -> np.ndarray:
    """Return the number of predictions (B,) int64 for instances of `lengths` (B,) tokens, special ones counted."""
    # np.rint rounds halves to even, as Python's round does in google's script.
    expected = np.rint(np.asarray(lengths) * config.masked_lm_prob).astype(np.int64)
    return np.clip(expected, 1, config.max_predictions_per_seq)


def mask_batch(
    input_ids: np.ndarray,
    lengths: np.ndarray,
    keys: np.ndarray,
    vocabulary: Tokenizer,
    config: MaskingConfig,
    continues_word: np.ndarray | None = None,
) -> MaskedBatch:
    """Choose and replace tokens of padded instances (B, S) int32 with `lengths` (B,) and `keys` (B,) uint64.

    Any position may be chosen except [CLS], [SEP] and padding. With whole-word masking a "##" piece, or one of
    `continues_word` (B, S), belongs to the word before it, unless [CLS] or [SEP] precedes it; a word that would exceed
    the budget is skipped.
    """
    width = input_ids.shape[1]
    is_candidate = input_ids != vocabulary.cls_id  # (B, S)
    is_candidate &= input_ids != vocabulary.sep_id
    is_candidate &= np.arange(width) < lengths[:, None]
    budget = num_to_predict(lengths, config)
    if config.whole_word_masking:
        joins = continuing(input_ids, vocabulary, continues_word) & is_candidate
        positions, counts = _choose_words(joins, is_candidate, keys, budget)
    else:
        positions, counts = _choose_tokens(is_candidate, keys, budget)
    return _replace(input_ids, positions, counts, keys, vocabulary, config)


def continuing(ids: np.ndarray, vocabulary: Tokenizer, continues_word: np.ndarray | None) -> np.ndarray:
    """Return which tokens continue a word: what is stored with the instances, or else what the ids tell."""
    if continues_word is not None:
        return continues_word
    if vocabulary.is_continuation is None:
        raise InputError("whole_word_masking: the instances do not tell words apart; make them again")
    joins: np.ndarray = vocabulary.is_continuation[ids]
    return joins


def whole_word_problem(share: float) -> str:
    """Say what is wrong with masks of whole words, by the share of tokens that continue a word; "" if nothing is."""
    if not share:
        return "whole-word masking has no effect: no word has two tokens, as in Chinese, whose characters are words"
    if share < 0.9:  # words of ten tokens, on average
        return ""
    return (
        f"whole-word masking passes over most of the text: {share:.0%} of the tokens continue a word, as in scripts "
        "without spaces, where a sentence is one; words with more tokens than are predicted are never masked"
    )


def _choose_tokens(is_candidate: np.ndarray, keys: np.ndarray, budget: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the chosen positions (B, K), ascending, and the number of valid ones in each row (B,)."""
    width = is_candidate.shape[1]
    num_chosen = np.minimum(budget, is_candidate.sum(axis=1))
    num_columns = int(num_chosen.max(initial=0))
    # A random rank for each candidate with its position in the low bits; the smallest ranks are a uniform choice.
    ranked = _ranks(is_candidate, keys)
    if num_columns < width:
        ranked = np.partition(ranked, num_columns, axis=1)[:, :num_columns]
    ranked.sort(axis=1)
    positions = (ranked & np.uint64(_POSITION_MASK)).astype(np.int64)  # (B, K)
    positions[np.arange(positions.shape[1]) >= num_chosen[:, None]] = width
    positions.sort(axis=1)
    return positions, num_chosen


_POSITION_MASK = 0xFFFF
"""Sequences are shorter than 65,536 tokens."""


def _ranks(is_candidate: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return random numbers (B, S) uint64 with the position in the low 16 bits; non-candidates have the largest one."""
    positions = np.arange(is_candidate.shape[1], dtype=np.uint64)
    ranks = combine(combine(keys, _CHOICE)[:, None], positions)
    ranks &= np.uint64(~_POSITION_MASK & 0xFFFFFFFFFFFFFFFF)
    ranks |= positions
    ranks[~is_candidate] = np.uint64(0xFFFFFFFFFFFFFFFF)
    return ranks


def _choose_words(
    joins: np.ndarray, is_candidate: np.ndarray, keys: np.ndarray, budget: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Choose like `_choose_tokens`, but whole words in random order, each one if it fits the rest of the budget."""
    # A word is known by its first position; `width` is that of no word.
    batch, width = joins.shape
    joins[:, 0] = False
    joins[:, 1:] &= is_candidate[:, :-1]
    starts = is_candidate & ~joins
    last_start = np.maximum.accumulate(np.where(starts, np.arange(width), 0), axis=1)
    word_of = np.where(is_candidate, last_start, width)  # (B, S)
    # Count the tokens of each word; the last column, of no word, stays 0.
    rows = np.broadcast_to(np.arange(batch)[:, None], word_of.shape)
    sizes = np.zeros((batch, width + 1), dtype=np.int64)
    np.add.at(sizes, (rows[is_candidate], word_of[is_candidate]), 1)
    # Take the words of all rows in step: the first of each row's random order, then the second, and so on.
    ranked = _ranks(starts, keys)
    ranked.sort(axis=1)
    order = (ranked[:, : int(starts.sum(axis=1).max(initial=0))] & np.uint64(_POSITION_MASK)).astype(np.int64)  # (B, W)
    np.minimum(order, width, out=order)
    taken = np.zeros((batch, width + 1), dtype=bool)
    left = budget.copy()
    row = np.arange(batch)
    for step in range(order.shape[1]):
        word = order[:, step]
        size = sizes[row, word]
        fits = (size > 0) & (size <= left)
        taken[row, word] |= fits
        left -= np.where(fits, size, 0)
        if not left.any():
            break
    # Back from words to their tokens; unchosen positions become `width`, and so sort last.
    chosen = np.take_along_axis(taken, word_of, axis=1) & is_candidate
    counts = chosen.sum(axis=1)
    positions = np.where(chosen, np.arange(width), width)
    positions.sort(axis=1)
    return positions[:, : int(counts.max(initial=0))], counts


def _replace(
    input_ids: np.ndarray,
    positions: np.ndarray,
    counts: np.ndarray,
    keys: np.ndarray,
    vocabulary: Tokenizer,
    config: MaskingConfig,
) -> MaskedBatch:
    # List the M chosen positions of all instances with their rows.
    rows, slots = np.nonzero(np.arange(positions.shape[1]) < counts[:, None])  # (M,)
    at = positions[rows, slots]
    originals = input_ids[rows, at]
    # Each position has its own draws, so its replacement does not depend on which other positions are chosen.
    bits = combine(combine(keys, _REPLACEMENT)[rows], at)
    share = fraction(bits)
    replacement = np.where(share < config.mask_share, vocabulary.mask_id, originals)
    is_random = share >= config.mask_share + config.same_share
    replacement[is_random] = below(combine(bits[is_random], 0), vocabulary.vocab_size)
    masked = input_ids.copy()
    masked[rows, at] = replacement
    return MaskedBatch(
        input_ids=masked,
        masked_lm_positions=at.astype(np.int32),
        masked_lm_ids=originals,
        masked_offsets=offsets_of(counts),
    )
