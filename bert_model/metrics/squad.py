"""Exact match and F1 of answers as the official SQuAD scripts 1.1 and 2.0 compute them, on the scale of 0 to 100.

Implemented here because the official scripts are stand-alone programs and no runtime dependency has a port of them.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import SpanExample

ARTICLES = re.compile(r"\b(a|an|the)\b")
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return the text in lower case, without ASCII punctuation and articles, with single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def exact_match(gold: str, predicted: str) -> float:
    """Return 1 if both texts are equal after normalization, else 0."""
    return float(normalize_answer(gold) == normalize_answer(predicted))


def token_f1(gold: str, predicted: str) -> float:
    """Return the F1 (0 to 1) of the words of two answers, as bags; 0 if they share none."""
    gold_words, predicted_words = normalize_answer(gold).split(), normalize_answer(predicted).split()
    shared = sum((Counter(gold_words) & Counter(predicted_words)).values())
    return 2 * shared / (len(gold_words) + len(predicted_words)) if shared else 0.0


def score_squad1(examples: Sequence[SpanExample], predictions: Mapping[str, str]) -> dict[str, float]:
    """Score answers as evaluate-v1.1.py: the best over each question's answers; a missing prediction scores 0."""
    exact, f1 = 0.0, 0.0
    for example in examples:
        answers = [answer.text for answer in example.answers]
        if not answers:
            raise InputError(f"question {example.example_id!r} has no answer, expected one; is this SQuAD 2.0?")
        if (predicted := predictions.get(example.example_id)) is not None:
            exact += _best(exact_match, answers, predicted)
            f1 += _best(token_f1, answers, predicted)
    return {"exact_match": 100.0 * exact / len(examples), "f1": 100.0 * f1 / len(examples)}


def score_squad2(
    examples: Sequence[SpanExample],
    predictions: Mapping[str, str],
    na_probs: Mapping[str, float] | None = None,
    na_threshold: float = 1.0,
) -> dict[str, float]:
    """Score answers as evaluate-v2.0.py: "no answer" is predicted by "", or by null odds above `na_threshold`.

    Returns `exact_match` and `f1` over all questions, the same for the questions with and without an answer
    (`has_answer_…`, `no_answer_…`), and with `na_probs` the best that a threshold could reach (`best_exact_match`,
    `best_f1`) and that threshold (`…_threshold`). InputError if a question has no prediction.
    """
    raw_exact, raw_f1 = raw_scores(examples, predictions)
    has_answer = {example.example_id: bool(example.answers) for example in examples}
    odds = na_probs if na_probs is not None else dict.fromkeys(has_answer, 0.0)
    _require_all(examples, odds, "null odds")

    # Above the threshold the prediction counts as "no answer", which scores 1 exactly where there is none.
    def applied(scores: Mapping[str, float]) -> dict[str, float]:
        return {key: float(not has_answer[key]) if odds[key] > na_threshold else score for key, score in scores.items()}

    # Means over all questions, and over the answerable and the unanswerable ones if there are any.
    exact, f1 = applied(raw_exact), applied(raw_f1)
    result = _means(exact, f1, list(has_answer), "")
    for prefix, answerable in (("has_answer_", True), ("no_answer_", False)):
        if chosen := [key for key, value in has_answer.items() if value == answerable]:
            result |= _means(exact, f1, chosen, prefix)

    # The search applies thresholds of its own, so it starts from the raw scores.
    if na_probs is not None:
        for name, scores in (("exact_match", raw_exact), ("f1", raw_f1)):
            best, threshold = best_threshold(predictions, scores, odds, has_answer)
            result[f"best_{name}"], result[f"best_{name}_threshold"] = best, threshold
    return result


def raw_scores(
    examples: Sequence[SpanExample], predictions: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return exact match and F1 (0 to 1) of each question by evaluate-v2.0.py; InputError if one has no prediction."""
    _require_all(examples, predictions, "prediction")
    exact: dict[str, float] = {}
    f1: dict[str, float] = {}
    for example in examples:
        # As in the script, a gold answer that normalizes to nothing is dropped, and "" is expected if none is left.
        answers = [answer.text for answer in example.answers if normalize_answer(answer.text)] or [""]
        predicted = predictions[example.example_id]
        exact[example.example_id] = _best(exact_match, answers, predicted)
        f1[example.example_id] = _best(_token_f1_or_both_empty, answers, predicted)
    return exact, f1


def best_threshold(
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
    na_probs: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """Return (best mean score, threshold of null odds that reaches it) as evaluate-v2.0.py searches for it.

    `scores` has each question's raw score (0 to 1). Questions with null odds up to the threshold keep their
    prediction, the others count as unanswered.
    """
    # Like the script, count after every question, even between two of equal odds, which no threshold can separate.
    current = best = float(sum(not value for value in has_answer.values()))
    threshold = 0.0
    for key in sorted(na_probs, key=lambda key: na_probs[key]):
        if key not in scores:
            continue
        if has_answer[key]:
            current += scores[key]
        elif predictions[key]:
            # "No answer" would have scored this point.
            current -= 1
        if current > best:
            best, threshold = current, float(na_probs[key])
    return 100.0 * best / len(scores), threshold


def overlapping_sentence(context: str, question: str) -> str:
    """Return the sentence of `context` that shares most words with `question`: the trivial baseline of SQuAD 1.1."""
    words = set(normalize_answer(question).split())
    sentences = [sentence for sentence in re.split(r"(?<=[.!?])\s+", context) if sentence.strip()] or [context]
    return max(sentences, key=lambda sentence: len(words & set(normalize_answer(sentence).split())))


def _token_f1_or_both_empty(gold: str, predicted: str) -> float:
    if not normalize_answer(gold) or not normalize_answer(predicted):
        return exact_match(gold, predicted)
    return token_f1(gold, predicted)


def _best(metric: Callable[[str, str], float], answers: Sequence[str], predicted: str) -> float:
    return max(metric(answer, predicted) for answer in answers)


def _means(exact: Mapping[str, float], f1: Mapping[str, float], chosen: Sequence[str], prefix: str) -> dict[str, float]:
    return {
        f"{prefix}exact_match": 100.0 * sum(exact[key] for key in chosen) / len(chosen),
        f"{prefix}f1": 100.0 * sum(f1[key] for key in chosen) / len(chosen),
    }


def _require_all(examples: Sequence[SpanExample], values: Mapping[str, object], what: str) -> None:
    if missing := [example.example_id for example in examples if example.example_id not in values]:
        raise InputError(
            f"{len(missing)} of {len(examples)} questions have no {what}, the first {missing[0]!r}; "
            "expected one for each"
        )
