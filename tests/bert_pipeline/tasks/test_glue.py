"""GLUE's tab-separated files."""

import dataclasses
from pathlib import Path

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import TASKS, Columns
from bert_pipeline.tasks.example import Reading, TextExample
from bert_pipeline.tasks.glue import read_text_examples
from bert_pipeline.tasks.task import read_examples

LAYOUTS = Path(__file__).parents[2] / "data" / "tasks" / "glue"
PAIR = Columns(text_b="sentence2")


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, columns: Columns, **options: int) -> list[TextExample]:
    task = dataclasses.replace(TASKS["wnli"], columns=columns, **options)
    return read_examples(task, path)


def test_cola_is_read_without_a_header_and_with_one(tmp_path):
    train = write(tmp_path / "train.tsv", "gj04\t1\t\tThe sailors rode.\ngj04\t0\t*\tThe sailors breeze rode.\n")
    test = write(tmp_path / "test.tsv", "index\tsentence\n7\tBill whistled.\n")
    assert read_examples(TASKS["cola"], train) == [
        TextExample("0", "The sailors rode.", None, "1"),
        TextExample("1", "The sailors breeze rode.", None, "0"),
    ]
    assert read_examples(TASKS["cola"], test, labeled=None) == [TextExample("7", "Bill whistled.", None, None)]


@pytest.mark.parametrize(
    ("task", "label"),
    [("sst2", "1"), ("mrpc", "1"), ("qqp", "0"), ("qnli", "entailment"), ("mnli", "neutral"), ("stsb", 4.25)],
)
def test_both_layouts_of_a_test_file_are_read(task, label):
    for layout, expected in (("unlabeled", None), ("labeled", label)):
        (example,) = read_examples(TASKS[task], LAYOUTS / f"{task}.{layout}.tsv", labeled=None)
        assert (example.text_a, example.text_b) == (("a", "b") if TASKS[task].pair else ("good", None))
        assert (example.example_id, example.label) == ("0", expected)


def test_rows_with_one_and_with_five_annotators_may_mix(tmp_path):
    file = write(
        tmp_path / "train.tsv",
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\ta\tb\tneutral\tneutral\n"
        "1\tc\td\tneutral\tentailment\tneutral\tentailment\tentailment\tentailment\n"
        "2\te\tf\tneutral\tentailment\tcontradiction\tneutral\tentailment\t-\n",
    )
    reading = Reading()
    examples = read_text_examples(TASKS["mnli"], [file], reading)
    assert [(example.text_a, example.label) for example in examples] == [("a", "neutral"), ("c", "entailment")]
    assert reading.counts == {"rows without a gold label": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\ta\tb", r"train.tsv:3: 3 columns, expected 4"),
        ("1\ta\tb\t0\tmore", r"train.tsv:3: 5 columns, expected 4"),
        ("1\ta\tb\t2", r"train.tsv:3: label '2', expected one of 0, 1"),
        ("0\ta\tb\t1", r"train.tsv:3: the index '0' is in .*train.tsv:2 already"),
        ("", r"train.tsv:3: 1 columns, expected 4"),
    ],
)
def test_defective_row_is_named_with_file_line_found_and_expected(tmp_path, row, message):
    file = write(tmp_path / "train.tsv", f"index\tsentence1\tsentence2\tlabel\n0\ta\tb\t0\n{row}\n2\ta\tb\t0\n")
    with pytest.raises(InputError, match=message):
        read(file, PAIR)


@pytest.mark.parametrize("score", ["5.001", "-0.5", "nan", "inf", "", "three"])
def test_score_out_of_range_is_refused_with_its_range(tmp_path, score):
    file = write(tmp_path / "train.tsv", f"index\tsentence1\tsentence2\tscore\n0\ta\tb\t{score}\n")
    with pytest.raises(InputError, match=rf"train.tsv:2: label '{score}', expected a number from 0 to 5"):
        read_examples(TASKS["stsb"], file)


def test_known_incomplete_rows_are_counted_and_more_are_refused(tmp_path):
    good, bad = "1\t1\t2\ta\tb\t0\n", '"\tWas it so?\t0\n'
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    file = write(tmp_path / "train.tsv", header + good + bad + bad)
    reading = Reading(incomplete_rows=2)
    assert len(list(read_text_examples(TASKS["qqp"], [file], reading))) == 1
    assert reading.counts == {"incomplete rows": 2}
    with pytest.raises(InputError, match=r"train.tsv:4: 3 columns, expected 6"):
        read(file, TASKS["qqp"].columns, incomplete_rows=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"sentence1\tsentence2\tlabel\n", "no rows"),
        (
            b"sentence\tlabel\na\t1\n",
            r"dev.tsv:1: found the columns sentence, label; expected a header with sentence1 and",
        ),
        (b"sentence1\tlabel\na\t1\n", r"found the columns sentence1, label; expected .* sentence1 and sentence2"),
        (b"index\tsentence1\tsentence2\n0\ta\tb\n", r"dev.tsv:1: no column 'label', which holds the labels"),
        (
            b"sentence1\tsentence2\tlabel\na\tb\t1\na\t\xff\t1\n",
            r"dev.tsv:3: not UTF-8 text \(.* at byte 2 of the line\)",
        ),
    ],
)
def test_file_of_another_kind_is_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / "dev.tsv", content), PAIR)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("task", "file", "rows"),
    [
        ("cola", "CoLA/train.tsv", 8551),
        ("cola", "CoLA/dev.tsv", 1043),
        ("cola", "CoLA/test.tsv", 1063),
        ("sst2", "SST-2/train.tsv", 3000),
        ("mrpc", "MRPC/train.tsv", 3667),
        ("mrpc", "MRPC/dev.tsv", 408),
        ("mrpc", "MRPC/msr_paraphrase_test.txt", 1725),
        ("stsb", "STS-B/train.tsv", 5749),
        ("stsb", "STS-B/dev.tsv", 1500),
        ("stsb", "STS-B/test.tsv", 1379),
        ("qqp", "QQP/train.tsv", 32),
        ("mnli", "MNLI/dev_matched.tsv", 48),
        ("mnli", "AX/diagnostic.tsv", 1104),
        ("qnli", "QNLI/dev.tsv", 2000),
        ("rte", "RTE/train.tsv", 2490),
        ("rte", "RTE/test.tsv", 3000),
        ("wnli", "WNLI/test.tsv", 146),
    ],
)
def test_real_files_are_read_whole(real_data, task, file, rows):
    unlabeled = "test.tsv" in file or "AX" in file
    examples = read_examples(TASKS[task], real_data / "glue" / file, labeled=None if unlabeled else True)
    assert len(examples) == rows
    assert all((example.label is None) == unlabeled for example in examples)
    assert all(example.text_a and (example.text_b is not None) == TASKS[task].pair for example in examples)
