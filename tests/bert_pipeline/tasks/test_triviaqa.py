"""TriviaQA in SQuAD's form."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bert_pipeline.cli import add_commands
from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.example import Answer
from bert_pipeline.tasks.task import read_examples
from bert_pipeline.tasks.triviaqa import convert_triviaqa, first_tokens


def question(number: int, value: str, *pages: str, **answer: Any) -> dict[str, Any]:
    return {
        "QuestionId": f"tc_{number}",
        "Question": f"Question {number}?",
        "Answer": {"Value": value, **answer},
        "EntityPages": [{"Filename": f"{page}.txt", "Title": page, "DocSource": "TagMe"} for page in pages],
        "SearchResults": [],
    }


def write(folder: Path, questions: list[Any], documents: dict[str, str]) -> tuple[Path, Path]:
    (folder / "evidence" / "wikipedia").mkdir(parents=True)
    for name, text in documents.items():
        (folder / "evidence" / "wikipedia" / f"{name}.txt").write_text(text, encoding="utf-8")
    (folder / "wikipedia-train.json").write_text(json.dumps({"Data": questions, "Version": 1.0}), encoding="utf-8")
    return folder / "wikipedia-train.json", folder / "evidence"


def test_pairs_with_an_answer_in_the_first_tokens_become_paragraphs(tmp_path):
    far = "word " * 399 + "Rome Oslo"
    files = write(
        tmp_path,
        [
            question(1, "Rome", "near", "far", "other", "gone"),
            question(2, "US", "near", Aliases=["USA"], NormalizedAliases=["the us"]),
            question(3, "Oslo", "far"),
        ],
        {"near": "\n  Music, ROME\n\nand the US: rome\tis not in the usa.", "far": far, "other": "Romeo"},
    )
    counts = convert_triviaqa(*files, tmp_path / "out" / "train.json")
    assert counts == {"pairs": 3, "without an answer in the context": 2, "documents missing": 1}
    one, two, three = read_examples(TASKS["squad1"], tmp_path / "out" / "train.json")
    near = "Music, ROME\n\nand the US: rome\tis not in the usa."
    assert (one.example_id, one.title, one.context, one.question) == ("tc_1--near.txt", "near", near, "Question 1?")
    assert one.answers == (Answer("ROME", 7), Answer("rome", near.index("rome")))
    assert two.example_id == "tc_1--far.txt"
    assert two.context == far.removesuffix(" Oslo")  # 400 tokens
    assert [answer.text for answer in three.answers] == ["the US", "usa"]  # whole words, the longest alias
    assert all(e.context[a.start : a.start + len(a.text)] == a.text for e in (one, two, three) for a in e.answers)


def test_tokens_are_words_and_punctuation_marks():
    assert first_tokens("It's 3.5 (or so).", 4) == "It's 3"
    assert first_tokens("short.", 400) == "short."
    assert first_tokens("", 400) == ""


@pytest.mark.parametrize(
    ("questions", "documents", "message"),
    [
        ([question(1, "Rome", "gone")], {}, r"no question has a document .*1 documents missing"),
        ([], {}, "no questions"),
        ([{"QuestionId": "x"}], {}, r"Data\[0\]: not a question of TriviaQA-Wiki"),
        ([question(1, "Rome", "../../secret")], {}, "leaves .*wikipedia"),
    ],
)
def test_other_files_are_refused_and_nothing_is_written(tmp_path, questions, documents, message):
    files = write(tmp_path, questions, documents)
    with pytest.raises(InputError, match=message):
        convert_triviaqa(*files, tmp_path / "out" / "train.json")
    assert list((tmp_path / "out").iterdir()) == []


def test_command_reports_its_counts(tmp_path, capsys):
    questions, evidence = write(tmp_path, [question(1, "Rome", "near", "gone")], {"near": "In Rome."})
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers())
    words = ["convert-triviaqa", questions, "--evidence", evidence, "--output", tmp_path / "train.json"]
    arguments = parser.parse_args(list(map(str, words)))
    assert arguments.run(arguments) == 0
    assert "train.json: 1 pairs, 0 without an answer in the context, 1 documents missing" in capsys.readouterr().out
