"""Decoding of logits: null threshold, maximum context, collapse."""

import dataclasses

import numpy as np
import pytest
import tiny_tasks

from bert_model.finetuning.config import FinetuningConfig
from bert_model.kinds import kind_of
from bert_model.kinds.base import EncodingConfig
from bert_model.kinds.span import SpanAnswer, SpanCandidate, choose_answers, span_answers, tune_threshold
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.example import Answer, SpanExample, TextExample
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.tokenizer import Tokenizer


def _candidate(text, score):
    return SpanCandidate(text=text, start=0, start_logit=score / 2, end_logit=score / 2)


def _answers(odds_and_texts):
    return {
        str(i): SpanAnswer(candidates=(_candidate(text, 0.0),), null=_candidate("", odds))
        for i, (odds, text) in enumerate(odds_and_texts)
    }


def test_tuned_threshold_is_optimal():
    rng = np.random.default_rng(3)
    examples = [
        SpanExample(str(i), "t", "x y", "q", () if rng.random() < 0.5 else (Answer("x", 0),)) for i in range(60)
    ]
    answers = _answers([(float(rng.normal() + (not e.answers)), "x" if rng.random() < 0.8 else "y") for e in examples])
    f1 = {e.example_id: float(bool(e.answers) and answers[e.example_id].best.text == "x") for e in examples}

    def mean_at(threshold):
        chosen = choose_answers(answers, threshold)
        return sum(f1[e.example_id] if chosen[e.example_id] else float(not e.answers) for e in examples)

    best = mean_at(tune_threshold(answers, examples, f1))
    assert best == max(mean_at(t) for t in [-9.0, *(a.null_odds + d for a in answers.values() for d in (-1e-9, 1e-9))])


def test_span_answers_require_maximum_context_and_maximum_length():
    context = "anna lives in rome and boris lives in oslo and clara lives in lima"
    example = SpanExample("0", "t", context, "who ?", (Answer("rome", context.index("rome")),))
    tokenizer = tiny_tasks.tokenizer()
    config = FinetuningConfig(max_seq_length=14, doc_stride=4, max_query_length=4)
    encoded = kind_of(get_task("squad1")).encode([example], tokenizer, config)
    logits = np.zeros((len(encoded.input_ids), 2), dtype=np.float32)
    start = encoded.token_columns["character_start"] == context.index("oslo")
    logits[start & (encoded.token_columns["is_max_context"] == 0), 0] = 50.0  # the best start, but out of context
    logits[start & (encoded.token_columns["is_max_context"] == 1), 0] = 9.0
    logits[encoded.token_columns["character_end"] == context.index("lima") + 4, 1] = 9.5
    logits[encoded.token_columns["character_end"] == context.index("oslo") + 4, 1] = 9.0
    answer = span_answers([example], encoded, logits, EncodingConfig(max_answer_length=3))["0"]
    assert answer.best.text == "oslo"
    assert (answer.best.start_logit, answer.best.end_logit) == (9.0, 9.0)


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("x cafe\u0301 b", "cafe\u0301"),  # decomposed, whose accent an uncased tokenizer strips
        ("x cafe\u0301\u0302", "cafe\u0301\u0302"),
        ("x cafe\u200d\u0301 b", "cafe\u200d\u0301"),
        ("x cafe\u200b b", "cafe"),  # a format character is no part of the text
        ("x caf\u00e9 b", "caf\u00e9"),
        ("x cafe b", "cafe"),
    ],
)
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_answer_keeps_the_combining_marks_at_its_end(context, answer, do_lower_case):
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, "x", "b", "cafe", "##\u0301", "who"], do_lower_case)
    example = SpanExample("0", "t", context, "who", (Answer(answer, 2),))
    encoded = kind_of(get_task("squad1")).encode([example], tokenizer, FinetuningConfig())
    logits = np.zeros((len(encoded.input_ids), 2), dtype=np.float32)
    logits[encoded.row_columns["start_positions"], 0] = 9.0
    logits[encoded.row_columns["end_positions"], 1] = 9.0
    best = span_answers([example], encoded, logits, EncodingConfig())["0"].best
    assert (best.text, best.start) == (answer, 2)


def test_equal_predictions_count_as_collapsed():
    task = get_task("sst2")
    assert kind_of(task).is_collapsed({"0": "1", "1": "1", "2": "1"})
    assert not kind_of(task).is_collapsed({"0": "1", "1": "1", "2": "0"})
    assert kind_of(get_task("stsb")).is_collapsed({"0": 2.5, "1": 2.5, "2": 2.50001})
    rates = kind_of(dataclasses.replace(get_task("stsb"), label_range=(0.0, 0.002)))  # on the scale of the numbers
    assert not rates.is_collapsed({"0": 0.0004, "1": 0.0007, "2": 0.0012})
    assert rates.is_collapsed({"0": 0.0004, "1": 0.0004, "2": 0.0004001})
    assert kind_of(get_task("ner")).is_collapsed({"0": ("O",), "1": ("O", "O"), "2": ("O",)})
    assert kind_of(get_task("ner")).is_collapsed({"0": ("B-PER",), "1": ("B-PER",), "2": ("B-PER",)})
    assert not kind_of(get_task("ner")).is_collapsed({"0": ("O",), "1": ("B-PER",), "2": ("O",)})


def test_perfect_predictions_for_one_class_are_not_collapsed():
    kind, logits = kind_of(get_task("sst2")), np.asarray([[0.0, 2.0]] * 3)
    examples = [TextExample(str(number), "a", label="1") for number in range(3)]
    assert not kind.evaluate(examples, None, logits, EncodingConfig()).collapsed
    examples[0] = dataclasses.replace(examples[0], label="0")
    assert kind.evaluate(examples, None, logits, EncodingConfig()).collapsed


@pytest.mark.parametrize(("answers", "collapsed"), [((), False), ((Answer("rome", 0),), True)])
def test_no_answer_for_questions_without_one_is_not_collapsed(answers, collapsed):
    examples = [SpanExample(str(n), "t", "rome", "who", answers * (n == 0), not answers or n > 0) for n in range(3)]
    kind, config = kind_of(get_task("squad2")), FinetuningConfig()
    encoded = kind.encode(examples, tiny_tasks.tokenizer(), config)
    logits = np.zeros((len(encoded.input_ids), 2), dtype=np.float32)
    assert kind.evaluate(examples, encoded, logits, config, fitted={"null_threshold": -1.0}).collapsed == collapsed
