"""Take an exam: score a model on minimal pairs, beside a trigram model."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from bert_model.model.bert import BertForPreTraining
from bert_model.model.weights import WORD_HEADS, load_model
from bert_model.zero_shot.pseudo_likelihood import PairScores, correct_pairs, kind_scores, mean_accuracy, score_pairs
from bert_model.zero_shot.result import ExamResult, KindResult, KindScore
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.exam.ngrams import ngram_baseline_scores
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.vocabulary.tokenizer import Tokenizer


def take_exam(
    directory: Path, pairs: Sequence[Pair], *, ngram_baseline: Path | None = None, whole_words: bool = False
) -> ExamResult:
    """Score a model directory on pairs, beside the trigram model of the file `ngram_baseline`.

    UsageError if the model has no masked-LM head or too few embeddings, InputError if it can read none of the pairs.
    """
    model, report = load_model(BertForPreTraining, directory)
    if any(name.startswith(WORD_HEADS) for name in report.created):
        raise UsageError(f"{directory}: a {report.source_architecture} has no head for mlm; give a pre-trained model")
    tokenizer = Tokenizer.from_directory(directory)
    next_sentence = model.has_trained_next_sentence
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    scores = score_pairs(
        model.to(device),
        tokenizer,
        pairs,
        whole_words=whole_words,
        next_sentence=next_sentence,
        num_workers=torch.get_num_threads(),
    )
    if not scores.pairs:
        raise InputError(f"{directory}: none of the {len(pairs)} pairs can be scored; its head or length does not fit")

    result = exam_result(scores, ngram_baseline_correct(ngram_baseline, scores.pairs), whole_words=whole_words)
    both = zip(scores.good.tolist(), scores.bad.tolist())
    return dataclasses.replace(result, scores={pair.pair_id: texts for pair, texts in zip(scores.pairs, both)})


def ngram_baseline_correct(ngram_baseline: Path | None, pairs: Sequence[Pair]) -> np.ndarray | None:
    """Return what the trigram model of a file has right (N,); None without a file."""
    return None if ngram_baseline is None else correct_pairs(*ngram_baseline_scores(ngram_baseline, pairs))


def exam_result(scores: PairScores, baseline: np.ndarray | None, *, whole_words: bool = False) -> ExamResult:
    """Return the results of scored pairs; `baseline` (N,) is what the trigram model has right."""
    by_kind = scores.by_kind()
    parts: list[dict[str, KindScore]] = [{}, {}, {}]
    if baseline is not None:
        solved = baseline == 1
        parts = [kind_scores(scores.pairs, baseline), _part(scores, solved), _part(scores, ~solved)]
    kinds = {
        kind: KindResult(
            score=score,
            ngram_baseline=parts[0].get(kind),
            ngram_baseline_solved=parts[1].get(kind),
            ngram_baseline_unsolved=parts[2].get(kind),
        )
        for kind, score in by_kind.items()
    }
    groups: dict[str, set[str]] = collections.defaultdict(set)
    for pair in scores.pairs:
        groups[pair.group].add(pair.kind)

    def group_mean(by_kind: Mapping[str, KindScore]) -> float | None:
        means = [mean_accuracy({kind: by_kind[kind] for kind in group}) for group in groups.values()]
        return float(np.mean(means)) if len(means) > 1 else None

    return ExamResult(
        whole_words=whole_words,
        kinds=kinds,
        mean=mean_accuracy(by_kind),
        ngram_baseline_mean=None if baseline is None else mean_accuracy(parts[0]),
        group_mean=group_mean(by_kind),
        ngram_baseline_group_mean=None if baseline is None else group_mean(parts[0]),
        correct={pair.pair_id: value for pair, value in zip(scores.pairs, scores.correct.tolist())},
    )


def _part(scores: PairScores, chosen: np.ndarray) -> dict[str, KindScore]:
    pairs = [pair for pair, is_chosen in zip(scores.pairs, chosen) if is_chosen]
    return kind_scores(pairs, scores.correct[chosen])
