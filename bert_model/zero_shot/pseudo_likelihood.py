"""Pseudo-log-likelihood of minimal pairs: which of two texts a pre-trained model finds more likely, without training.

The score of a text is the sum of log P(token | all other tokens), each token masked by itself in a copy of the text
(Salazar et al. 2020, arXiv 1910.14659). That is the default, because the published scores of masked language models on
BLiMP were computed so. It overrates words of several pieces, whose masked piece is given away by the others; with
`whole_words` the later pieces of its word are masked with it (PLL-word-l2r of Kauf and Ivanova 2023, arXiv 2305.10588).

Two sentences are scored by the next-sentence head, as log P(the second follows the first).
"""

import dataclasses
import logging
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.nn import functional

from bert_model.model.bert import BertForPreTraining
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 8192
_Z = 1.959963984540054
"""Quantile of the normal distribution for intervals of 95 %."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindScore:
    """Accuracy on the pairs of one kind, from 0 to 100, with its 95 % interval (Wilson 1927)."""

    count: int
    accuracy: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Scores of N pairs, in nats."""

    pairs: tuple[Pair, ...]
    """The scored pairs in the order of the input: those whose texts the model can read."""
    good: np.ndarray
    """(N,) float64."""
    bad: np.ndarray
    """(N,) float64."""

    @property
    def correct(self) -> np.ndarray:
        """(N,) float64: 1 where the acceptable text scores higher, 0 where it scores lower, 0.5 for a tie."""
        return correct_pairs(self.good, self.bad)

    def by_kind(self) -> dict[str, KindScore]:
        """Return the score of each kind, in the order of their names."""
        return kind_scores(self.pairs, self.correct)

    def accuracy(self) -> float:
        """Return the mean accuracy over kinds, from 0 to 100; NaN without pairs."""
        return mean_accuracy(self.by_kind())


def correct_pairs(good: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """Return 1 where `good` is higher, 0 where it is lower, and 0.5 where they are equal."""
    correct: np.ndarray = (good > bad) + 0.5 * (good == bad)
    return correct


def kind_scores(pairs: Sequence[Pair], correct: np.ndarray) -> dict[str, KindScore]:
    """Return the score of each kind of pair from what is correct (N,), in the order of their names."""
    kinds = np.array([pair.kind for pair in pairs], dtype=np.str_)
    return {str(kind): _interval(correct[kinds == kind]) for kind in np.unique(kinds)}


def mean_accuracy(scores: dict[str, KindScore]) -> float:
    """Return the mean accuracy over kinds, each of equal weight whatever its number of pairs; NaN without any."""
    return float(np.mean([score.accuracy for score in scores.values()])) if scores else math.nan


def _interval(correct: np.ndarray) -> KindScore:
    count, share = len(correct), float(correct.mean())
    middle = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count)
    half = _Z / (1 + _Z**2 / count) * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return KindScore(count=count, accuracy=100 * share, low=100 * (middle - half), high=100 * (middle + half))


@torch.inference_mode()
def score_pairs(
    model: BertForPreTraining,
    tokenizer: Tokenizer,
    pairs: Sequence[Pair],
    *,
    whole_words: bool = False,
    next_sentence: bool = True,
    max_batch_tokens: int = MAX_BATCH_TOKENS,
) -> PairScores:
    """Score pairs with a loaded model, on the model's device.

    Left out, with a warning: pairs with a text longer than the model reads, or without any token. Pairs of two
    sentences are left out silently if not `next_sentence`: the head of a model trained without that objective answers
    at random. Dropout is off, and the model's mode is restored.
    """
    kept = [pair for pair in pairs if next_sentence or len(pair.good) == 1]
    scorer = _Scorer(model, tokenizer, whole_words, max_batch_tokens)
    texts = {text: tuple(tokenizer.encode_batch(text)) for pair in kept for text in (pair.good, pair.bad)}
    limit = model.config.max_position_embeddings
    fitting = {text for text, ids in texts.items() if all(ids) and sum(map(len, ids)) + len(ids) + 1 <= limit}
    scored = tuple(pair for pair in kept if pair.good in fitting and pair.bad in fitting)
    if len(scored) < len(kept):
        logger.warning(
            "%d of %d pairs are left out: a text has more than the model's %d tokens, or none",
            len(kept) - len(scored),
            len(kept),
            limit,
        )

    # Each different text is scored once.
    was_training = model.training
    model.eval()
    try:
        scores = scorer.scores({text: texts[text] for pair in scored for text in (pair.good, pair.bad)})
    finally:
        model.train(was_training)
    return PairScores(
        scored, np.array([scores[pair.good] for pair in scored]), np.array([scores[pair.bad] for pair in scored])
    )


Text = tuple[str, ...]
Ids = tuple[list[int], ...]


class _Scorer:
    def __init__(
        self, model: BertForPreTraining, tokenizer: Tokenizer, whole_words: bool, max_batch_tokens: int
    ) -> None:
        self.model, self.tokenizer, self.whole_words = model, tokenizer, whole_words
        self.max_batch_tokens = max_batch_tokens
        self.device = next(model.parameters()).device

    def scores(self, texts: dict[Text, Ids]) -> dict[Text, float]:
        """Return the score of each text."""
        singles = [(text, ids) for text, ids in texts.items() if len(text) == 1]
        doubles = [(text, ids) for text, ids in texts.items() if len(text) == 2]
        found = dict(zip((text for text, _ in singles), self._pseudo_log_likelihoods([ids[0] for _, ids in singles])))
        return found | dict(zip((text for text, _ in doubles), self._next_sentence([ids for _, ids in doubles])))

    def _pseudo_log_likelihoods(self, texts: Sequence[list[int]]) -> list[float]:
        # One row per token: its text, and its position after [CLS].
        lengths = np.array([len(ids) for ids in texts], dtype=np.int64)
        text_of_row = np.repeat(np.arange(len(texts)), lengths)
        positions = np.arange(len(text_of_row)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
        totals = np.zeros(len(texts))
        for rows in self._batches(lengths[text_of_row] + 2):
            position = positions[rows]
            ids = np.array([[self.tokenizer.cls_id, *texts[text], self.tokenizer.sep_id] for text in text_of_row[rows]])
            target = ids[np.arange(len(rows)), position]
            logits = self.model(
                self._tensor(self._masked(ids, position)), masked_lm_positions=self._tensor(position[:, None])
            ).prediction_logits[:, 0]
            loss = functional.cross_entropy(logits.float(), self._tensor(target), reduction="none")
            np.add.at(totals, text_of_row[rows], -loss.double().cpu().numpy())
        return [float(total) for total in totals]

    def _masked(self, ids: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Mask a position of each row of ids (B, S), and with `whole_words` the pieces of its word after it."""
        columns = np.arange(ids.shape[1])
        masked = columns == position[:, None]
        if self.whole_words:
            # A later piece belongs to the word if no token between starts another word.
            starts = ~self.tokenizer.is_continuation[ids] & (columns > position[:, None])
            masked |= (columns > position[:, None]) & (np.cumsum(starts, axis=1) == 0)
        return np.where(masked, self.tokenizer.mask_id, ids)

    def _next_sentence(self, texts: Sequence[Ids]) -> list[float]:
        cls_id, sep_id = self.tokenizer.cls_id, self.tokenizer.sep_id
        rows = [[cls_id, *first, sep_id, *second, sep_id] for first, second in texts]
        totals = np.zeros(len(rows))
        for batch in self._batches(np.array([len(row) for row in rows], dtype=np.int64)):
            ids = np.array([rows[row] for row in batch])
            first_lengths = np.array([len(texts[row][0]) + 2 for row in batch])
            types = (np.arange(ids.shape[1]) >= first_lengths[:, None]).astype(np.int64)
            nothing = torch.zeros(len(batch), 0, dtype=torch.long, device=self.device)  # skips the vocabulary
            output = self.model(self._tensor(ids), None, self._tensor(types), masked_lm_positions=nothing)
            totals[batch] = functional.log_softmax(output.seq_relationship_logits.float(), -1)[:, 0].cpu().numpy()
        return [float(total) for total in totals]

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the indices of rows of one length, which need no padding, the longest first."""
        order = np.argsort(-lengths, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if len(order) else []:
            size = max(1, self.max_batch_tokens // int(lengths[rows[0]]))
            yield from (rows[start : start + size] for start in range(0, len(rows), size))

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
