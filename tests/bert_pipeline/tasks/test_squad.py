"""SQuAD's JSON."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.records import open_source
from bert_pipeline.tasks.catalogue import TASKS, Columns
from bert_pipeline.tasks.example import Answer, Reading, SpanExample
from bert_pipeline.tasks.squad import (
    MISPLACED,
    MOVED,
    NO_OFFSET,
    WITHOUT_ANSWER,
    is_version,
    lacks_answers,
    read_span_examples,
)
from bert_pipeline.tasks.task import is_task_file, load_task_data, read_examples

CONTEXT = "The tower is red. The house is green and red."


def question(example_id: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    records = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": example_id, "question": f"{example_id}?", "answers": records, **more}


def write(folder: Path, questions: list[Any], version: str = "1.1", **top: Any) -> Path:
    document = {"version": version, "data": [{"title": "T", "paragraphs": [{"context": CONTEXT, "qas": questions}]}]}
    path = folder / "file.json"
    path.write_text(json.dumps(document | top), encoding="utf-8")
    return path


def read(file: Path, task: str = "squad1", *, for_training: bool = False) -> tuple[list[SpanExample], dict[str, int]]:
    reading = Reading(for_training=for_training)
    return list(read_span_examples(TASKS[task], [file], reading)), reading.counts


def test_version_1_1_is_read_with_all_answers(tmp_path):
    file = write(tmp_path, [question("q", ("green", 31), ("green and red", 31))])
    examples, counts = read(file)
    assert examples == [SpanExample("q", "T", CONTEXT, "q?", (Answer("green", 31), Answer("green and red", 31)), False)]
    assert counts == {}


def test_id_may_be_a_number(tmp_path):
    (example,), _ = read(write(tmp_path, [{**question("q", ("red", 13)), "id": 7}]))
    assert example.example_id == "7"


def test_version_2_0_keeps_unanswerable_questions(tmp_path):
    file = write(
        tmp_path,
        [
            question("yes", ("green", 31), is_impossible=False),
            question("no", is_impossible=True, plausible_answers=[{"text": "red", "answer_start": 13}]),
        ],
        version="v2.0",
    )
    examples, _ = read(file, "squad2", for_training=True)
    assert [(example.example_id, example.is_impossible, len(example.answers)) for example in examples] == [
        ("yes", False, 1),
        ("no", True, 0),
    ]


def test_table_may_have_columns_and_ids_of_its_own(tmp_path):
    row = {"id": 5, "key": "k", "ask": "q?", "passage": CONTEXT, "found": {"text": ["green"], "answer_start": [31]}}
    own = Columns(text_a="ask", text_b="passage", label="found", index="key")
    task = dataclasses.replace(TASKS["squad1"], columns=own)
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert read_examples(task, file) == [SpanExample("k", "", CONTEXT, "q?", (Answer("green", 31),), False)]
    with open_source(file) as source:
        assert is_task_file(task, source)
    file.write_text(json.dumps({**row, "question": "q?", "context": CONTEXT, "answers": row["found"]}) + "\n")
    hub = dataclasses.replace(TASKS["squad1"], columns=Columns(index="key"))
    assert [example.example_id for example in read_examples(hub, file)] == ["k"]


def test_file_whose_answers_are_all_unusable_says_so(tmp_path):
    file = write(tmp_path, [question("a", ("blue", 0)), question("b", ("blue", 4))])
    message = (
        rf"no questions are left \({MISPLACED}: 2 \(ids a, b\), {WITHOUT_ANSWER}: 2 \(ids a, b\)\), expected at least"
    )
    with pytest.raises(InputError, match=message):
        load_task_data("squad1", file, dev_fraction=0.5)


def test_misplaced_answers_are_counted_never_silent(tmp_path):
    file = write(
        tmp_path,
        [
            question("only", ("green", 30)),
            question("several", ("red", 12)),
            question("absent", ("blue", 3)),
            question("negative", ("red", -4)),
            question("partly", ("red", 12), ("red", 13)),
        ],
    )
    training, counts = read(file, for_training=True)
    assert [(example.example_id, example.answers) for example in training] == [
        ("only", (Answer("green", 31),)),
        ("partly", (Answer("red", 13),)),
    ]
    assert counts == {MOVED: 1, MISPLACED: 4, WITHOUT_ANSWER: 3}
    scoring, counts = read(file)
    assert len(scoring) == 5
    assert scoring[1].answers == (Answer("red", NO_OFFSET),)
    assert counts == {MOVED: 1, MISPLACED: 4}


def test_first_misplaced_answers_are_named(tmp_path):
    write(tmp_path, [question("good", ("green", 31))]).rename(tmp_path / "dev-v1.1.json")
    questions = [question(name, ("red", 12)) for name in "abcde"]
    write(tmp_path, [question("good", ("green", 31)), *questions]).rename(tmp_path / "train-v1.1.json")
    assert load_task_data("squad1", tmp_path).notes()[:2] == [
        f"train-v1.1.json: {MISPLACED}: 5 (ids a, b, c, …)",
        f"train-v1.1.json: {WITHOUT_ANSWER}: 5 (ids a, b, c, …)",
    ]


@pytest.mark.parametrize(
    ("version", "questions", "expected"),
    [
        ("1.1", [question("q", ("red", 13))], False),
        ("v2.0", [question("q", ("red", 13))], True),
        ("", [question("q", ("red", 13), is_impossible=False), question("no", is_impossible=True)], True),
        ("", [question("q", ("red", 13))], False),
    ],
)
def test_version_is_told_by_content(tmp_path, version, questions, expected):
    file = write(tmp_path, questions, version=version)
    assert [is_version(file, version_2) for version_2 in (expected, not expected)] == [True, False]
    with pytest.raises(InputError, match=r"use squad1" if not expected else r"use squad2"):
        read(file, "squad1" if expected else "squad2")


def test_file_whose_questions_are_all_marked_as_answered_is_of_either_version(tmp_path):
    file = write(tmp_path, [question("q", ("red", 13), is_impossible=False)], version="")
    assert [is_version(file, version_2) for version_2 in (True, False)] == [True, True]
    assert [len(read(file, task)[0]) for task in ("squad1", "squad2")] == [1, 1]
    with open_source(file) as source:
        assert lacks_answers(source) is False


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([question("q", ("red", 13)), question("q", ("red", 13))], r"question id 'q' is repeated"),
        ([{"id": "q", "question": "?", "answers": [{"text": "red"}]}], r"question 'q'.*answer_start is None"),
        ([{"id": "q", "question": "?", "answers": [{"text": 3, "answer_start": 1}]}], r"'text' is a int"),
        ([{"id": 7.5, "question": "?", "answers": []}], r"data\[0\].paragraphs\[0\].qas\[0\]: 'id' is a float"),
        ([{"id": "q", "answers": [{"text": "red", "answer_start": 13}]}], r"question 'q': 'question' is missing"),
        ([question("q", ("red", 13), is_impossible=True)], r"is_impossible is true but it has answers"),
        ([question("q", ("red", 13), is_impossible="no")], r"is_impossible is 'no', expected true or false"),
        (["q"], r"qas\[0\]: 'id' is missing"),
        ([], "no questions"),
    ],
)
def test_defective_question_is_named(tmp_path, questions, message):
    with pytest.raises(InputError, match=message):
        read_examples(TASKS["squad1"], write(tmp_path, questions))


def test_input_to_answer_may_repeat_ids(tmp_path):
    file = write(tmp_path, [question("q", ("red", 13)), question("q", ("green", 31))])
    examples = read_examples(TASKS["squad1"], file, labeled=False)
    assert [example.example_id for example in examples] == ["q", "q"]


def test_paragraph_with_a_lone_surrogate_is_named_and_set_aside_alone(tmp_path):
    file = write(tmp_path, [question("q", ("red", 13))])
    document = json.loads(file.read_text(encoding="utf-8"))
    document["data"][0]["paragraphs"].insert(0, {"context": "\ud83d", "qas": [question("other", ("red", 13))]})
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=r"data\[0\].paragraphs\[0\]: 'context' has half of a surrogate pair"):
        read_examples(TASKS["squad1"], file)
    errors: list[InputError] = []
    examples = read_examples(TASKS["squad1"], file, on_error=errors.append)
    assert ([example.example_id for example in examples], len(errors)) == (["q"], 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"data": [\n}', r"file.json:2: not valid JSON at column 1"),
        (b"[]", r"is empty, expected a table with the columns question and context"),
        (b'{"version": "1.1", "data": [{"title": "T"}]}', r"data\[0\]: 'paragraphs' is missing"),
        (b"\xff\xfe", r"file.json:1: not UTF-8 text"),
        (b"[" * 100_000, r"not valid JSON"),
    ],
    ids=["line", "list", "paragraphs", "no text", "depth"],
)
def test_file_that_is_not_squad_is_refused(tmp_path, content, message):
    file = tmp_path / "file.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(file)


@pytest.mark.real_data
def test_real_files_are_read_whole(real_data):
    one, one_counts = read(real_data / "squad" / "xquad.en.json", for_training=True)
    two, two_counts = read(real_data / "squad" / "dev-v2.0.json", "squad2", for_training=True)
    assert (len(one), one_counts) == (1190, {})
    assert (len(two), two_counts) == (6078, {})
    assert sum(example.is_impossible for example in two) == 3168
    assert len({example.title for example in one}) == 48
    for example in (*one, *two):
        assert all(example.context[a.start : a.start + len(a.text)] == a.text for a in example.answers)
