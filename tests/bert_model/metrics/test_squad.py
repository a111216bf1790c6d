"""SQuAD scores against the official scripts' own output and rules."""

import json

import pytest

from bert_model.cli import main
from bert_model.kinds import kind_of
from bert_model.kinds.scores import score_files
from bert_model.metrics.squad import best_threshold, normalize_answer, overlapping_sentence, raw_scores, token_f1
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.example import Answer, SpanExample


def question(example_id, *answers, context="A cat sat. The dog ran home. It rained."):
    return SpanExample(example_id, "T", context, "Where did the dog run?", tuple(Answer(a, 0) for a in answers),
                       is_impossible=not answers)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, sat.", "cat sat"),
        ("a an the", ""),
        ("Theatre another", "theatre another"),
        ("U.S. dollar's", "us dollars"),
        ("“quoted” – dash", "“quoted” – dash"),
        ("$5 million", "5 million"),
    ],
)
def test_answers_are_normalized_as_the_official_scripts_do(text, expected):
    assert normalize_answer(text) == expected


def test_f1_counts_words_as_bags():
    assert token_f1("red red blue", "red blue blue") == pytest.approx(2 / 3)
    assert token_f1("red", "green") == 0.0
    assert token_f1("the", "the") == 0.0


def test_squad1_takes_the_best_answer_and_scores_a_missing_one_zero():
    examples = [question("a", "red", "dark red"), question("b", "blue")]
    assert kind_of("squad1").score(examples, {"a": "the dark red", "b": "pale blue"}) == pytest.approx(
        {"exact_match": 50.0, "f1": 100 * (1 + 2 / 3) / 2}
    )
    assert kind_of("squad1").score(examples, {"a": "dark red"}) == {"exact_match": 50.0, "f1": 50.0}


def test_squad2_scores_empty_answers_and_halves():
    examples = [question("yes", "red"), question("no"), question("other")]
    assert kind_of("squad2").score(examples, {"yes": "red one", "no": "", "other": "The"}) == pytest.approx(
        {
            "exact_match": 200 / 3,
            "f1": 100 * (2 / 3 + 1 + 1) / 3,
            "has_answer_exact_match": 0.0,
            "has_answer_f1": 200 / 3,
            "no_answer_exact_match": 100.0,
            "no_answer_f1": 100.0,
        }
    )


def test_squad2_ignores_answers_that_normalize_to_nothing():
    examples = [question("a", "the", "red")]
    assert kind_of("squad2").score(examples, {"a": ""})["exact_match"] == 0.0
    assert kind_of("squad2").score(examples, {"a": "red"})["exact_match"] == 100.0
    assert kind_of("squad2").score([question("a", "the")], {"a": ""})["exact_match"] == 100.0


def test_squad2_wants_a_prediction_for_every_question():
    with pytest.raises(InputError, match=r"1 of 2 questions have no prediction, the first 'b'"):
        kind_of("squad2").score([question("a", "x"), question("b")], {"a": "x"})
    with pytest.raises(InputError, match=r"1 of 1 questions have no null odds, the first 'a'"):
        kind_of("squad2").score([question("a", "x")], {"a": "x"}, na_probs={})


def test_null_odds_above_one_make_a_question_unanswered():
    examples = [question("a", "x"), question("b")]
    result = kind_of("squad2").score(examples, {"a": "x", "b": "y"}, na_probs={"a": 0.2, "b": 1.5})
    assert (result["exact_match"], result["best_exact_match"], result["best_f1_threshold"]) == (100.0, 100.0, 0.2)
    at_one = kind_of("squad2").score(examples, {"a": "x", "b": ""}, na_probs={"a": 1.0, "b": 1.0})
    assert at_one["exact_match"] == 100.0


def test_best_threshold_is_the_one_that_an_exhaustive_search_finds():
    examples = [question(str(n), *(["x"] if n % 3 else [])) for n in range(30)]
    odds = {str(n): ((n * 7) % 30) / 30 for n in range(30)}
    predictions = {str(n): "x" if n % 2 else ("" if n % 5 else "z") for n in range(30)}
    exact, _ = raw_scores(examples, predictions)
    has_answer = {e.example_id: bool(e.answers) for e in examples}

    def at(threshold):
        kept = [exact[k] if odds[k] <= threshold else float(not has_answer[k]) for k in exact]
        return 100 * sum(kept) / 30

    best, threshold = best_threshold(predictions, exact, odds, has_answer)
    assert best == pytest.approx(max(at(value) for value in (-1, *odds.values())))
    assert at(threshold) == pytest.approx(best)


def test_trivial_baselines_are_the_overlapping_sentence_and_no_answer():
    assert overlapping_sentence("A cat sat. The dog ran home. It rained.", "Where did the dog go?") == (
        "The dog ran home."
    )
    assert overlapping_sentence("", "Where?") == ""
    examples = [question("a", "ran home"), question("b", "a cat")]
    assert kind_of("squad1").trivial_predictions([], examples) == {"a": "The dog ran home.", "b": "The dog ran home."}
    assert kind_of("squad1").baseline([], examples) == pytest.approx({"exact_match": 0.0, "f1": 40.0})
    assert kind_of("squad2").baseline([], [question("a", "x"), question("b")])["f1"] == 50.0


def write_squad(path, *questions, version="1.1"):
    records = [
        {"id": q.example_id, "question": q.question, "answers": [{"text": a.text, "answer_start": a.start}
         for a in q.answers], "is_impossible": q.is_impossible}
        for q in questions
    ]  # fmt: skip
    paragraphs = [{"context": questions[0].context, "qas": records}]
    path.write_text(json.dumps({"version": version, "data": [{"title": "T", "paragraphs": paragraphs}]}))
    return path


def test_official_json_and_json_lines_score_the_same(tmp_path):
    data = write_squad(tmp_path / "dev.json", question("a", "A cat"), question("b", "A cat"))
    (tmp_path / "p.json").write_text(json.dumps({"a": "cat", "zzz": "more"}))
    (tmp_path / "p.jsonl").write_text('{"id": "a", "prediction": "cat"}\n{"id": "zzz", "prediction": "more"}\n')
    results = [score_files("squad1", data, tmp_path / name) for name in ("p.json", "p.jsonl")]
    for result in results:
        result.pop("predictions_sha256")
        assert (result["exact_match"], result["unanswered"], result["unknown"], result["examples"]) == (50.0, 1, 1, 2)
    assert results[0] == results[1]


def test_question_whose_only_answer_is_misplaced_still_counts(tmp_path):
    wrong = SpanExample("a", "T", "A cat sat. A cat ran.", "Who?", (Answer("cat", 1),))
    data = write_squad(tmp_path / "dev.json", wrong)
    (tmp_path / "p.json").write_text('{"a": "cat"}')
    result = score_files("squad1", data, tmp_path / "p.json")
    assert (result["examples"], result["exact_match"]) == (1, 100.0)


def test_questions_left_out_of_a_score_are_counted_and_said(tmp_path, capsys):
    without = [SpanExample(name, "T", "A cat sat.", "Who?", (), False) for name in "bcdefgh"]
    data = write_squad(tmp_path / "dev.json", question("a", "A cat"), *without)
    (tmp_path / "p.json").write_text(json.dumps(dict.fromkeys("abcdefgh", "cat")))
    assert main(["score", "squad1", "--data", str(data), "--predictions", str(tmp_path / "p.json")]) == 0
    said = capsys.readouterr()
    assert "dev.json: questions without a usable answer: 7" in said.err
    result = json.loads(said.out)
    assert (result["examples"], result["defects"]["questions without a usable answer"]) == (1, 7)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 3}', r"p.json: question 'a': prediction 3, expected a text"),
        ('{"a":\n', r"p.json:\d: not valid JSON"),
        ('["a"]', r"p.json: found a list, expected one JSON object"),
        ('{"b": "x"}', r"none of its ids is in .*dev.json"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(tmp_path, content, message):
    data = write_squad(tmp_path / "dev.json", question("a", "A cat"))
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(InputError, match=message):
        score_files("squad1", data, tmp_path / "p.json")


def test_null_odds_and_their_threshold_are_read_from_a_file(tmp_path):
    data = write_squad(tmp_path / "dev.json", question("a", "A cat"), question("b"), version="v2.0")
    (tmp_path / "p.json").write_text('{"a": "cat", "b": "dog"}')
    (tmp_path / "odds.json").write_text('{"a": -3.5, "b": 0.5}')
    exact = [
        score_files("squad2", data, tmp_path / "p.json", tmp_path / "odds.json", na_threshold=threshold)["exact_match"]
        for threshold in (1.0, 0.0, -4.0)
    ]
    assert exact == [50.0, 100.0, 50.0]
    with pytest.raises(UsageError, match="give --na-prob too"):
        score_files("squad2", data, tmp_path / "p.json", na_threshold=-2.3)
    (tmp_path / "odds.json").write_text('{"a": "often", "b": 0.5}')
    with pytest.raises(InputError, match=r"odds.json: question 'a': prediction 'often', expected a number"):
        score_files("squad2", data, tmp_path / "p.json", tmp_path / "odds.json")


@pytest.mark.real_data
@pytest.mark.parametrize("system", ["logistic-regression", "match-lstm"])
def test_squad1_equals_the_official_script(real_data, system):
    golden = real_data / "golden"
    expected = json.loads((golden / "squad-v1.1.expected.json").read_text())[system]
    result = score_files(
        "squad1", real_data / "squad" / "xquad.en.json", golden / f"squad-v1.1-{system}.predictions.json"
    )
    assert {key: result[key] for key in expected} == pytest.approx(expected, abs=1e-6)
    assert result["unanswered"] == (2 if system == "logistic-regression" else 0)


@pytest.mark.real_data
def test_squad2_equals_the_official_script_with_its_thresholds(real_data):
    golden = real_data / "golden"
    expected = json.loads((golden / "squad-v2.0.expected.json").read_text())
    result = score_files(
        "squad2",
        real_data / "squad" / "dev-v2.0.json",
        golden / "squad-v2.0.predictions.json",
        golden / "squad-v2.0.na_prob.json",
    )
    ours = {
        "exact": "exact_match",
        "f1": "f1",
        "total": "examples",
        "HasAns_exact": "has_answer_exact_match",
        "HasAns_f1": "has_answer_f1",
        "NoAns_exact": "no_answer_exact_match",
        "NoAns_f1": "no_answer_f1",
        "best_exact": "best_exact_match",
        "best_exact_thresh": "best_exact_match_threshold",
        "best_f1": "best_f1",
        "best_f1_thresh": "best_f1_threshold",
    }
    assert {key: result[name] for key, name in ours.items()} == pytest.approx(
        {key: expected[key] for key in ours}, abs=1e-6
    )
