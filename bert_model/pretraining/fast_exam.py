"""Exams during pre-training: a fast one at checkpoints, and a whole one of the finished model.

No pair is trained on. The fast exam has a fixed sample of the pairs for choosing, the whole one those for reporting.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_model.model.bert import BertForPreTraining
from bert_model.pretraining.config import PretrainingConfig
from bert_model.training.distributed import Group, autocast
from bert_model.zero_shot.exam import ngram_baseline_correct, score_pairs
from bert_model.zero_shot.result import ExamResult, PairScores, exam_result, mean_accuracy
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
from bert_pipeline.exam.pairs import Pair, read_pairs, sample_pairs
from bert_pipeline.hashes import content_sha256
from bert_pipeline.vocabulary.tokenizer import Tokenizer

MAX_SHARE = 0.02
"""Largest share of the time of training: an exam that would exceed it is left out, except the last one, and the first,
which shows how long an exam takes."""


def pairs_for_choosing(path: Path | str, per_kind: int) -> list[Pair]:
    """Return the pairs that checkpoints are compared by: a fixed sample, disjoint from the pairs for reporting.

    InputError if the file has none, ConfigurationError if there is no file.
    """
    if not path:
        raise ConfigurationError("choose: found 'exam' without pairs to examine checkpoints on; give exam=FILE")
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
        config: PretrainingConfig,
        state: Mapping[str, Any] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`state` is what `state` returned for the checkpoint that is resumed from."""
        self.next_sentence = config.objective == "mlm_nsp"  # else the head is not trained
        if not self.next_sentence and all(len(pair.good) > 1 for pair in pairs):
            raise ConfigurationError("exam: has pairs of two sentences only, and objective=mlm trains no head for them")
        self.pairs = pairs
        self.scored_pairs = [pair for pair in pairs if self.next_sentence or len(pair.good) == 1]
        self.tokenizer, self.precision = tokenizer, config.precision
        self._clock = clock
        state = state or {}
        self._began = clock() - state.get("seconds", 0.0)
        self._spent = state.get("spent", 0.0)
        # How long other pairs took says nothing about these.
        self._identity = input_of_pairs(pairs)["sha256"]
        self._longest = state["longest"] if state.get("pairs") == self._identity else 0.0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of the exam: seconds of training, of all exams and of the longest one."""
        seconds = self._clock() - self._began
        return {"pairs": self._identity, "seconds": seconds, "spent": self._spent, "longest": self._longest}

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
        kinds = scores.by_kind()
        accuracies = {f"exam/{kind}": score.accuracy for kind, score in kinds.items()}
        return accuracies | {"exam/accuracy": mean_accuracy(kinds)}


def whole_exam(
    path: Path | str, model: BertForPreTraining, tokenizer: Tokenizer, group: Group, *, next_sentence: bool
) -> tuple[ExamResult, list[Pair]] | None:
    """Score the pairs for reporting in float32, each rank its share; return result and scored pairs on every rank.

    A directory of `build_exam` has a trigram model to compare with. None if no pair can be scored.
    """
    pairs = group.call_on_main(lambda: [pair for pair in read_pairs(path) if pair.part == "reporting"])
    mine = range(group.rank, len(pairs), group.world_size)
    # Ranks of slow hosts need longer than gradients may take.
    scores = group.on_all_ranks(
        lambda: score_pairs(model, tokenizer, [pairs[index] for index in mine], next_sentence=next_sentence)
    )

    # Every rank adds its scores to a table of all pairs: good, bad, whether the pair was scored.
    index_of = {pairs[index].pair_id: index for index in mine}
    table = np.zeros((len(pairs), 3))
    for pair, good, bad in zip(scores.pairs, scores.good, scores.bad):
        table[index_of[pair.pair_id]] = good, bad, 1.0
    table = np.array(group.all_reduce_numbers(*table.flatten().tolist())).reshape(-1, 3)
    scored = table[:, 2] > 0
    total = PairScores(
        tuple(pair for pair, is_scored in zip(pairs, scored) if is_scored), table[scored, 0], table[scored, 1]
    )

    trigrams = Path(path) / NGRAM_BASELINE_NAME
    baseline = group.call_on_main(lambda: ngram_baseline_correct(trigrams if trigrams.is_file() else None, total.pairs))
    return (exam_result(total, baseline), list(total.pairs)) if total.pairs else None


def report_metrics(result: ExamResult) -> dict[str, float]:
    """Return "exam_report/…" (0-100): accuracy of each kind, their mean as "accuracy", and "ngram_baseline"."""
    kinds = {f"exam_report/{kind}": kind_result.score.accuracy for kind, kind_result in result.kinds.items()}
    baseline = result.ngram_baseline_mean
    means = {"accuracy": result.mean} | ({} if baseline is None else {"ngram_baseline": baseline})
    return kinds | {f"exam_report/{name}": mean for name, mean in means.items()}
