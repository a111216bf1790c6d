"""A fast exam at checkpoints: the model's score on a fixed sample of minimal pairs, without training on them."""

import time
from collections.abc import Callable
from pathlib import Path

from bert_model.model.bert import BertForPreTraining
from bert_model.training.distributed import autocast
from bert_model.zero_shot.pseudo_likelihood import score_pairs
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.exam.pairs import Pair, read_pairs, sample_pairs
from bert_pipeline.manifest import content_sha256
from bert_pipeline.vocabulary.tokenizer import Tokenizer

MAX_SHARE = 0.02
"""Largest share of the time since the start or resume: an exam that would exceed it is left out, except the last one,
and the first, which shows how long an exam takes."""


def pairs_for_choosing(path: Path | str, per_kind: int) -> list[Pair]:
    """Return the pairs that checkpoints are compared by: a fixed sample, disjoint from the pairs for reporting.

    InputError if the file has none.
    """
    pairs = sample_pairs(read_pairs(path), per_kind, "choosing")
    if not pairs:
        raise InputError(f"{path}: all of its pairs are for reporting, by the hash of their source; give more pairs")
    return pairs


def input_of_pairs(pairs: list[Pair]) -> dict[str, str]:
    """Return the entry of a manifest's inputs for the pairs: exams on equal ones can be compared."""
    described = {pair.pair_id: pair.to_json() for pair in pairs}
    return {"name": f"{len(pairs)} pairs", "sha256": content_sha256(described)}


class FastExam:
    """Scores a model in training, on rank 0."""

    def __init__(
        self,
        pairs: list[Pair],
        tokenizer: Tokenizer,
        *,
        next_sentence: bool,
        precision: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`next_sentence` is False for a model whose next-sentence head is not trained."""
        if not next_sentence and all(len(pair.good) > 1 for pair in pairs):
            raise ConfigurationError("exam: has pairs of two sentences only, and objective=mlm trains no head for them")
        self.pairs = pairs
        self.tokenizer = tokenizer
        self.next_sentence = next_sentence
        self.precision = precision
        self._clock = clock
        self._began = clock()
        self._spent = self._longest = 0.0

    def metrics(self, model: BertForPreTraining, *, is_last: bool) -> dict[str, float]:
        """Return "exam/accuracy", the mean over kinds, and the accuracy of each kind (0-100); {} if time is short."""
        started = self._clock()
        if not is_last and self._spent + self._longest > MAX_SHARE * (started - self._began):
            return {}
        with autocast(next(model.parameters()).device, self.precision):
            scores = score_pairs(model, self.tokenizer, self.pairs, next_sentence=self.next_sentence)
        if not scores.pairs:  # a text is longer than the model reads; the scorer has warned
            return {}
        seconds = self._clock() - started
        self._spent, self._longest = self._spent + seconds, max(self._longest, seconds)
        kinds = {f"exam/{kind}": score.accuracy for kind, score in scores.by_kind().items()}
        return {"exam/accuracy": scores.accuracy(), **kinds}
