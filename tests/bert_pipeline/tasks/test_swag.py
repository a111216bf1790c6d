"""SWAG's comma-separated files."""

import dataclasses
import json
from pathlib import Path

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.example import ChoiceExample
from bert_pipeline.tasks.swag import AMBIGUOUS
from bert_pipeline.tasks.task import read_examples

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8", newline="")
    return path


def test_quoted_commas_quotes_and_line_ends_are_part_of_a_field(tmp_path):
    row = '7,v1,3,"She ""sits"". He","She ""sits"".",He,gold,"runs, then stops.","says\n""no"".",c.,d.,2\n'
    assert read_examples(TASKS["swag"], write(tmp_path / "train.csv", HEADER + row)) == [
        ChoiceExample("7", 'She "sits".', ("He runs, then stops.", 'He says\n"no".', "He c.", "He d."), 2, "v1")
    ]


def test_test_file_without_label_column_is_read(tmp_path):
    content = HEADER.replace(",label", "") + "0,v,1,s,A.,B,gold,a,b,c,d\n"
    file = write(tmp_path / "test.csv", content)
    (example,) = read_examples(TASKS["swag"], file, labeled=None)
    assert example.label is None
    with pytest.raises(InputError, match=r"test.csv:1: no column 'label'"):
        read_examples(TASKS["swag"], file)


def test_rows_are_numbered_where_the_index_column_is_absent(tmp_path):
    content = "\ufeffsent1,sent2,ending0,ending1,ending2,ending3,label\r\nA.,,a,b,c,d,0\r\nB.,B,a,b,c,d,3"
    examples = read_examples(TASKS["swag"], write(tmp_path / "train.csv", content))
    assert [(example.example_id, example.endings[0], example.label) for example in examples] == [
        ("0", "a", 0),
        ("1", "B a", 3),
    ]


def test_own_columns_ids_and_the_text_of_the_right_ending_are_read(tmp_path):
    own = dataclasses.replace(TASKS["swag"].columns, text_a="ask", endings=("options",), label="right", index="key")
    task = dataclasses.replace(TASKS["swag"], columns=own)
    rows = [
        {"key": f"k{right}", "ask": "How?", "options": ["10", "12", "b"], "right": right} for right in ("12", 1, "b")
    ]
    file = write(tmp_path / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    counts: dict[str, int] = {}
    examples = read_examples(task, file, counts=counts)
    assert [(e.example_id, e.label) for e in examples] == [("k12", 1), ("k1", 1), ("kb", 1)]
    assert counts == {AMBIGUOUS: 1}  # "b" is the letter of one, and the text of another
    bad = write(tmp_path / "bad.jsonl", json.dumps(rows[0] | {"right": "13"}) + "\n")
    with pytest.raises(InputError, match="label '13', expected one of 0, 1, 2, A, B, C, the text of an ending"):
        read_examples(task, bad)
    named = dataclasses.replace(TASKS["swag"], columns=dataclasses.replace(TASKS["swag"].columns, index="video-id"))
    (example,) = read_examples(named, write(tmp_path / "swag.csv", HEADER + "7,v1,3,s,A.,B,gold,a,b,c,d,2\n"))
    assert example.example_id == "v1"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,v,1,s,A.,B,gold,a,b,c,d\n", r"train.csv:4: 11 columns, expected 12"),
        ("0,v,1,s,A.,B,gold,a,b,c,d,4\n", r"train.csv:4: label '4', expected one of 0, 1, 2, 3"),
        ("5,v,1,s,A.,B,gold,a,b,c,d,1\n", r"train.csv:4: the index '5' is in .*train.csv:2 already"),
        ('0,v,1,s,A.,B,gold,a,b,c,d,"1\n', r"train.csv:4: not valid CSV"),
    ],
)
def test_defective_row_is_named_by_the_line_where_it_begins(tmp_path, row, message):
    good = '5,v,1,s,A.,B,gold,a,"b\nb",c,d,1\n'
    with pytest.raises(InputError, match=message):
        read_examples(TASKS["swag"], write(tmp_path / "train.csv", HEADER + good + row))


@pytest.mark.parametrize("content", ["", "index\tsentence\n", HEADER])
def test_file_without_examples_or_columns_is_refused(tmp_path, content):
    with pytest.raises(InputError, match=r"expected a header with sent1|no rows|is empty"):
        read_examples(TASKS["swag"], write(tmp_path / "train.csv", content))


@pytest.mark.real_data
def test_real_sample_is_read_whole(real_data):
    examples = read_examples(TASKS["swag"], real_data / "swag" / "sample.csv")
    assert [example.example_id for example in examples] == [str(number) for number in range(11)]
    assert examples[0].context == "Students lower their eyes nervously."
    assert examples[0].endings[0] == "She pats her shoulder, then saunters toward someone."
    assert examples[0].label == 2
