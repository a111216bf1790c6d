"""Questions on passages: windows of a context, answer spans with the n best, and SQuAD 2.0's null threshold.

Shapes: T tokens of all rows.
"""

import dataclasses
import html
import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_model.kinds.base import (
    Answers,
    Decision,
    Decisions,
    EncodingConfig,
    Evaluation,
    Fitted,
    Kind,
    Outputs,
    confusion_tables,
    rounded,
    softmax,
    text_of,
)
from bert_model.kinds.encoded import EncodedSet, Row, joined, token_windows
from bert_model.metrics import squad
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import SpanExample, is_labeled
from bert_pipeline.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

Questions = Sequence[SpanExample]

SHOWN_ANSWERS = 5
"""Candidates of an answer of `bert predict`."""
ANSWER, NO_ANSWER = "answer", "no answer"
NULL_LOGIT_DIFFERENCE = 0.0
"""τ before it is tuned: the best text must score at least as high as "no answer"."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SpanCandidate:
    """A text that may answer a question; the empty text means "no answer"."""

    text: str
    start: int
    """Character offset in the context."""
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """Sum of the logits, by which candidates are ranked."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanAnswer:
    """The best answers to one question over all its windows."""

    candidates: tuple[SpanCandidate, ...]
    """Distinct texts, best first; never empty (one without text where no span can be formed)."""
    null: SpanCandidate
    """No answer: the start and end logit at [CLS] of the window where their sum is lowest (google's run_squad.py)."""

    @property
    def best(self) -> SpanCandidate:
        """The best text."""
        return self.candidates[0]

    @property
    def null_odds(self) -> float:
        """Lead of "no answer" over the best text: above τ the prediction is no answer."""
        return self.null.score - self.best.score


class Span(Kind):
    """An answer's text, or "" for no answer."""

    name = form = "span"
    architecture = "BertForQuestionAnswering"
    pipeline = "question-answering"
    onnx_outputs = ("start_logits", "end_logits")
    reads_pairs = True
    reads_first_token = False
    has_paper_length = True
    shares_rows = True
    predicts_object = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.paper_task, self.scores_missing = "squad1", True
        self.baseline_name = "sentence that shares most words with the question"
        if task.has_impossible:
            self.paper_task, self.scores_missing, self.baseline_name = "squad2", False, "no answer"

    def parse(self, key: str, fields: Mapping[str, Any]) -> SpanExample:
        return SpanExample(key, "", fields["context"], fields["question"])

    def fields(self, example: SpanExample) -> dict[str, Any]:
        return {"question": example.question, "context": example.context}

    def encode_rows(self, examples: Questions, tokenizer: Tokenizer, config: EncodingConfig) -> EncodedSet:
        """Encode questions over windows of their contexts: `[CLS] question [SEP] window [SEP]`.

        In training, a window without the whole first answer has both positions at [CLS], as in google's run_squad.py;
        so do the windows of a question without an answer.
        """
        # Besides the question, [CLS], two [SEP] and at least one token of the context must fit.
        query_room = min(config.max_query_length, config.max_seq_length - 4)
        questions = tokenizer.encode_batch([e.question for e in examples])
        # A paragraph has several questions: tokenize it once.
        contexts = list(dict.fromkeys(e.context for e in examples))
        arrays = {}
        for context, (tokens, offsets) in zip(contexts, tokenizer.encode_batch_with_offsets(contexts)):
            characters = np.asarray(offsets, dtype=np.int32).reshape(-1, 2)
            arrays[context] = np.asarray(tokens, dtype=np.int32), characters, _text_ends(context, characters)

        # One row for each window of each question.
        labeled = all(map(is_labeled, examples))
        rows: list[Row] = []
        targets: list[tuple[int, int]] = []
        for index, (example, question) in enumerate(zip(examples, questions)):
            ids, characters, text_ends = arrays[example.context]
            head = np.asarray([tokenizer.cls_id, *question[:query_room], tokenizer.sep_id], dtype=np.int32)
            room = config.max_seq_length - len(head) - 1
            windows = token_windows(len(ids), room, config.doc_stride)
            answer = _answer_tokens(example, characters) if labeled else None
            for (first, end), is_max in zip(windows, maximum_context(windows)):
                # Token columns: the characters that each context token covers, and whether it may start an answer here.
                row = np.concatenate([head, ids[first:end], [tokenizer.sep_id]], dtype=np.int32)
                inside = slice(len(head), len(head) + end - first)
                columns = {name: np.full(len(row), -1, dtype=np.int32) for name in ("character_start", "character_end")}
                columns["character_start"][inside] = characters[first:end, 0]
                columns["character_end"][inside] = text_ends[first:end]
                columns["is_max_context"] = np.zeros(len(row), dtype=np.int32)
                columns["is_max_context"][inside] = is_max
                rows.append(Row(row, len(head), index, len(question) > query_room, columns))
                if answer is not None and first <= answer[0] and answer[1] < end:
                    targets.append((len(head) + answer[0] - first, len(head) + answer[1] - first))
                else:  # this window has no whole answer: the target is [CLS], the first token
                    targets.append((0, 0))
        positions = dict(zip(("start_positions", "end_positions"), np.asarray(targets).T))
        return dataclasses.replace(joined(rows, len(examples), tokenizer), row_columns=positions if labeled else {})

    def loss(self, outputs: "Tensor", tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> "Tensor":
        """Sum the mean of both positions' entropies."""
        from torch.nn import functional

        # Positions outside of the window do not occur: such answers are encoded as [CLS].
        start = functional.cross_entropy(outputs[..., 0], tensors["start_positions"], reduction="sum")
        end = functional.cross_entropy(outputs[..., 1], tensors["end_positions"], reduction="sum")
        return (start + end) / 2

    def evaluate(
        self, examples: Questions, encoded: EncodedSet, logits: np.ndarray, config: EncodingConfig, **options: Any
    ) -> Evaluation:
        fitted, answers = {**(options.get("fitted") or {})}, span_answers(examples, encoded, logits, config)
        if self.task.has_impossible and not fitted:
            # Tuned on the F1 that each question has if it is answered, so every question is answered here.
            _, f1 = squad.raw_scores(examples, choose_answers(answers, None))
            fitted = {"null_threshold": tune_threshold(answers, examples, f1)}
        predictions = choose_answers(answers, fitted.get("null_threshold"))
        scores = self.score(examples, predictions) if all(map(is_labeled, examples)) else {}
        return Evaluation(
            predictions=predictions,
            scores=scores,
            collapsed=self.is_collapsed(predictions) and scores.get("exact_match") != 100.0,
            fitted=fitted,
            answers=answers,
        )

    def scores_of(self, examples: Questions, predictions: Mapping[str, Any], **null_odds: Any) -> dict[str, float]:
        """Return the scores of the official scripts, with the null odds that `squad.score_squad2` takes."""
        # The rules for a missing answer differ between the scripts, so answers are not checked here.
        if self.task.has_impossible:
            return squad.score_squad2(examples, predictions, **null_odds)
        return squad.score_squad1(examples, predictions)

    def trivial_predictions(self, train: Sequence[Any], dev: Questions) -> dict[str, Any]:
        if self.task.has_impossible:
            return dict.fromkeys((example.example_id for example in dev), "")
        return {e.example_id: squad.overlapping_sentence(e.context, e.question) for e in dev}

    def checked(self, where: str, value: Any) -> Any:
        return text_of(where, value)

    def prediction_files(self, split: str, evaluation: Evaluation) -> dict[str, str]:
        """Return the three JSON objects of the official tools, by question id: predictions, n best and null odds."""
        with_null = "null_threshold" in evaluation.fitted
        answers: Mapping[str, SpanAnswer] = evaluation.answers
        n_best = {
            key: [
                {
                    "text": c.text,
                    "probability": share,
                    "start_logit": rounded(c.start_logit),
                    "end_logit": rounded(c.end_logit),
                }
                for c, share in ranked(own, with_null=with_null)
            ]
            for key, own in answers.items()
        }
        documents: dict[str, Any] = {f"{split}.json": evaluation.predictions, f"{split}.nbest.json": n_best}
        if with_null:
            documents[f"{split}.null_odds.json"] = {key: rounded(own.null_odds) for key, own in answers.items()}
        return {name: json.dumps(own, indent=1, ensure_ascii=False) + "\n" for name, own in documents.items()}

    def decisions(
        self, examples: Questions, encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation
    ) -> Decisions:
        """Return the answers with their shares of the n best, "no answer" among them where it is possible."""
        decided = []
        for example in examples:
            key, with_null = example.example_id, "null_threshold" in evaluation.fitted
            predicted = evaluation.predictions[key]
            confidence = probability_of(predicted, evaluation.answers[key], with_null=with_null)
            is_correct = self.score([example], evaluation.predictions)["exact_match"] == 100.0
            gold = " / ".join(dict.fromkeys(answer.text for answer in example.answers))
            decided.append(Decision(example, gold, predicted, confidence, is_correct))
        return decided

    def tables(self, examples: Questions, evaluation: Evaluation, decided: Sequence[Decision]) -> dict[str, Any]:
        """Return the table of answered and unanswered questions, of SQuAD 2.0 only."""
        if not self.task.has_impossible:
            return {}
        sides = ([d.gold for d in decided], [d.predicted for d in decided])
        gold, predicted = ([ANSWER if text else NO_ANSWER for text in texts] for texts in sides)
        return confusion_tables(gold, predicted, [ANSWER, NO_ANSWER])

    def page_text(self, decision: Decision) -> str:
        return f"<b>{html.escape(decision.example.question)}</b>\n{html.escape(decision.example.context)}"

    def answer(self, examples: Questions, outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        threshold = fitted.get("null_threshold")
        # The models share vocabulary and windows, so their start and end logits are averaged token by token.
        logits = np.mean([output for _, output in outputs], axis=0)
        answers = span_answers(examples, outputs[0][0], logits, config)
        texts = choose_answers(answers, threshold)
        documents: Answers = []
        for key, answer in answers.items():
            text = texts[key]
            documents.append(
                {
                    "prediction": text,
                    "answer": text,
                    "start": answer.best.start if text else None,
                    "probability": probability_of(text, answer, with_null=threshold is not None),
                    "n_best": [
                        {"text": c.text, "probability": share, "score": rounded(c.score), "start": c.start}
                        for c, share in ranked(answer)[:SHOWN_ANSWERS]
                    ],
                }
            )
            if threshold is not None:
                documents[-1] |= {"null_odds": rounded(answer.null_odds), "null_threshold": rounded(threshold)}
        return documents


def _text_ends(context: str, characters: np.ndarray) -> np.ndarray:
    """Return where the text of each token ends: after combining marks that the tokenizer drops from the word's end.

    A decomposed accent is a mark of its own, which an uncased tokenizer strips, but it is part of an answer's text.
    Format characters end no text, since the official evaluation keeps them.
    """
    ends = characters[:, 1].copy()
    if context.isascii():
        return ends
    limits = np.append(characters[1:, 0], len(context))  # the next token may be a mark itself
    for index in np.flatnonzero(ends < limits):
        for position in range(int(ends[index]), int(limits[index])):
            category = unicodedata.category(context[position])
            if category == "Mn":
                ends[index] = position + 1
            elif category != "Cf":
                break
    return ends


def _answer_tokens(example: SpanExample, characters: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of the first and last token that overlap the first answer.

    None without an answer, and for an answer of unknown place in the context.
    """
    if example.is_impossible or not example.answers or example.answers[0].start < 0:
        return None
    answer = example.answers[0]
    start, end = answer.start, answer.start + len(answer.text)
    overlapping = np.flatnonzero((characters[:, 0] < end) & (characters[:, 1] > start))
    return (int(overlapping[0]), int(overlapping[-1])) if len(overlapping) else None


def maximum_context(windows: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Return for each window a bool array of the tokens that have their maximum context there.

    The score is that of google's `_check_is_max_context`: the smaller of the contexts left and right, plus a hundredth
    of the window's length; the first window wins ties.
    """
    if len(windows) == 1:
        first, end = windows[0]
        return [np.ones(end - first, dtype=bool)]

    # Each token's best score so far and its window: a table of all windows and tokens would grow with the square of the
    # context. Only a better score replaces the first.
    num_tokens = windows[-1][1]
    best, best_score = np.zeros(num_tokens, dtype=np.int64), np.full(num_tokens, -1.0)
    for number, (first, end) in enumerate(windows):
        position = np.arange(end - first)
        score = np.minimum(position, position[::-1]) + 0.01 * (end - first)
        is_better = score > best_score[first:end]
        best[first:end][is_better] = number
        best_score[first:end][is_better] = score[is_better]
    return [best[first:end] == number for number, (first, end) in enumerate(windows)]


def span_answers(
    examples: Questions, encoded: EncodedSet, logits: np.ndarray, config: EncodingConfig
) -> dict[str, SpanAnswer]:
    """Choose the answers to every question from start and end logits (T, 2) in the order of the encoded tokens.

    As in google's run_squad.py: the n best starts and ends of each window are paired; a start must have its maximum
    context in its window; an answer has at most `config.max_answer_length` tokens. The text is cut from the original
    characters of the context, so it needs no alignment.
    """
    candidates: list[list[SpanCandidate]] = [[] for _ in examples]
    nulls: dict[int, SpanCandidate] = {}
    for row in range(encoded.num_rows):
        owner, begin = int(encoded.example_index[row]), int(encoded.offsets[row])
        # "No answer" must hold in all windows of a question, so the window that supports it least decides.
        null = SpanCandidate(text="", start=0, start_logit=float(logits[begin, 0]), end_logit=float(logits[begin, 1]))
        nulls[owner] = min(nulls.get(owner, null), null, key=lambda candidate: candidate.score)
        candidates[owner] += _window_candidates(examples[owner].context, encoded, row, logits, config)
    answers = {}
    for index, example in enumerate(examples):
        # Windows overlap: keep the best candidate of each text.
        best: dict[str, SpanCandidate] = {}
        for candidate in sorted(candidates[index], key=lambda candidate: -candidate.score):
            best.setdefault(candidate.text, candidate)
            if len(best) == config.n_best_size:
                break
        answers[example.example_id] = SpanAnswer(candidates=tuple(best.values()) or (nulls[index],), null=nulls[index])
    return answers


def _window_candidates(
    context: str, encoded: EncodedSet, row: int, logits: np.ndarray, config: EncodingConfig
) -> list[SpanCandidate]:
    """Return the best spans of one window, best first; none if it has no token of the context."""
    # Tokens of the context only: from the start of segment B to its [SEP].
    window = slice(int(encoded.offsets[row]) + int(encoded.segment_b_start[row]), int(encoded.offsets[row + 1]) - 1)
    start_logits, end_logits = logits[window, 0], logits[window, 1]
    character_start = encoded.token_columns["character_start"][window]
    character_end = encoded.token_columns["character_end"][window]

    # Pair the best starts with the best ends, and rank the pairs.
    may_start = np.flatnonzero(encoded.token_columns["is_max_context"][window])
    starts = may_start[np.argsort(-start_logits[may_start], kind="stable")[: config.n_best_size]]
    ends = np.argsort(-end_logits, kind="stable")[: config.n_best_size]
    length = ends[None, :] - starts[:, None] + 1  # (starts, ends)
    valid_start, valid_end = np.nonzero((length >= 1) & (length <= config.max_answer_length))
    # Stable sorts: equal scores keep the order of starts and ends, so that the choice is reproducible.
    scores = start_logits[starts[valid_start]] + end_logits[ends[valid_end]]
    pairs = [
        (int(starts[valid_start[index]]), int(ends[valid_end[index]]))
        for index in np.argsort(-scores, kind="stable")[: config.n_best_size]
    ]
    return [
        SpanCandidate(
            text=context[int(character_start[first]) : int(character_end[last])],
            start=int(character_start[first]),
            start_logit=float(start_logits[first]),
            end_logit=float(end_logits[last]),
        )
        for first, last in pairs
    ]


def choose_answers(answers: Mapping[str, SpanAnswer], threshold: float | None) -> dict[str, str]:
    """Return the predicted text of each question; "" if the null odds exceed the threshold.

    Without a threshold (SQuAD 1.1) every question has an answer.
    """
    return {
        example_id: answer.best.text if threshold is None or answer.null_odds <= threshold else ""
        for example_id, answer in answers.items()
    }


def tune_threshold(
    answers: Mapping[str, SpanAnswer], examples: Sequence[SpanExample], f1: Mapping[str, float]
) -> float:
    """Return the τ with the best mean F1 on these questions (paper, 4.3), halfway between two questions' null odds.

    `f1` is each question's score if it is answered with its best text. Of equally good thresholds the lowest is
    taken, which answers least.
    """
    odds = np.asarray([answers[example.example_id].null_odds for example in examples])
    # Answering a question earns its F1; if it has no answer, it costs the point of "no answer".
    gain = np.asarray([f1[example.example_id] if example.answers else -1.0 for example in examples])
    order = np.argsort(odds, kind="stable")
    ranked = odds[order]
    totals = np.concatenate([[0.0], np.cumsum(gain[order])])  # after answering the k questions of the lowest odds
    cuts = np.flatnonzero(np.concatenate([[True], ranked[1:] > ranked[:-1], [True]]))  # equal odds stay together
    best = cuts[int(np.argmax(totals[cuts]))]

    # At either end any distance separates; between two questions the middle does.
    if best == 0:
        return float(ranked[0]) - 1.0
    if best == len(ranked):
        return float(ranked[-1]) + 1.0
    return float((ranked[best - 1] + ranked[best]) / 2)


def ranked(answer: SpanAnswer, *, with_null: bool = False) -> list[tuple[SpanCandidate, float]]:
    """Return the candidates with their probabilities among each other, best first.

    With "no answer" among them they are those of google's run_squad.py for SQuAD 2.0.
    """
    candidates = list(answer.candidates)
    if with_null and all(candidate.text for candidate in candidates):
        candidates = sorted([*candidates, answer.null], key=lambda candidate: -candidate.score)
    probabilities = softmax(np.asarray([candidate.score for candidate in candidates]))
    return [(candidate, rounded(value)) for candidate, value in zip(candidates, probabilities)]


def probability_of(text: str, answer: SpanAnswer, *, with_null: bool) -> float:
    """Return the share of a predicted text among the candidates; 0 if it is none of them."""
    return next((share for candidate, share in ranked(answer, with_null=with_null) if candidate.text == text), 0.0)
