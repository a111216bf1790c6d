"""Tasks by name, their files, and splits of single files."""

import dataclasses
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_pipeline.errors import ConfigurationError, InputError, UsageError
from bert_pipeline.hashes import file_sha256
from bert_pipeline.tasks.catalogue import TASKS, Task
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample
from bert_pipeline.tasks.files import missing_task_data
from bert_pipeline.tasks.task import get_task, load_task_data, read_examples, split_by_group


def write_rte(folder: Path, *names: str, rows: int = 40) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        lines = [f"{n}\ttext {n % 20} of {name}\tclaim {n}\tentailment" for n in range(rows)]
        header = "index\tsentence1\tsentence2\tlabel"
        (folder / name).write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")


def test_unknown_task_names_the_nearest():
    with pytest.raises(UsageError, match=r"unknown task 'sst'.*did you mean 'sst2'"):
        get_task("sst")
    with pytest.raises(UsageError, match=r"unknown task '../etc'"):
        get_task("../etc")


def test_every_task_of_the_paper_is_there_with_its_figures():
    assert " ".join(TASKS) == "cola sst2 mrpc stsb qqp mnli qnli rte wnli squad1 squad2 swag ner ner_features"
    assert [name for name, task in TASKS.items() if not task.paper] == ["wnli"]
    for task in TASKS.values():
        assert task.paper_source
        for key in task.paper:
            _, split, metric = key.split("/")
            assert metric in task.metrics
            assert split in {**task.dev_files, **task.test_files}
    assert TASKS["qqp"].paper["base/test/f1"] == 71.2
    assert [len(TASKS[name].labels) for name in ("ner", "stsb", "squad1")] == [9, 0, 0]


def test_data_are_found_from_the_suite_root_the_own_folder_and_above(tmp_path):
    write_rte(tmp_path / "glue" / "RTE", "train.tsv", "dev.tsv", "test.tsv")
    for path in (tmp_path, tmp_path / "glue", tmp_path / "glue" / "RTE"):
        data = load_task_data("rte", path)
        assert (len(data.train), len(data.dev["dev"]), len(data.test["test"])) == (40, 40, 40)
        assert not data.own_split
        assert data.absent == ()
        assert data.sha256 == {
            name: file_sha256(tmp_path / "glue" / "RTE" / name) for name in ("train.tsv", "dev.tsv", "test.tsv")
        }


def test_missing_split_raises_with_remedy(tmp_path):
    write_rte(tmp_path / "RTE", "dev.tsv")
    with pytest.raises(InputError, match=r"RTE/train.tsv: not found; --dev-fraction 0.2 .* would split dev.tsv into"):
        load_task_data("rte", tmp_path)
    assert "train.tsv: not found" in missing_task_data("rte", tmp_path)
    assert missing_task_data("rte", tmp_path, dev_fraction=0.2) == ""
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty/WNLI/train.tsv: not found \(other files of WNLI there: none\)"):
        load_task_data("wnli", tmp_path / "empty", 0.5)
    with pytest.raises(InputError, match=r"absent: not found; give the folder"):
        load_task_data("rte", tmp_path / "absent")


def test_folder_of_another_task_raises_with_columns(tmp_path):
    write_rte(tmp_path, "train.tsv", "dev.tsv")
    with pytest.raises(InputError, match=r"train.tsv:1: found the columns index, sentence1.*another task's file"):
        load_task_data("sst2", tmp_path)


@pytest.mark.parametrize("at_hand", ["train.tsv", "dev.tsv"])
def test_single_file_is_split_by_its_texts(tmp_path, at_hand):
    write_rte(tmp_path / "RTE", at_hand)
    data = load_task_data("rte", tmp_path, dev_fraction=0.25)
    assert data.own_split
    assert (len(data.train), len(data.dev["dev"])) == (30, 10)
    assert not {e.text_a for e in data.train} & {e.text_a for e in data.dev["dev"]}
    assert {"train.tsv", "dev.tsv"} - {at_hand} <= set(data.absent)
    again = load_task_data("rte", tmp_path / "RTE" / at_hand, dev_fraction=0.25)
    assert (again.train, again.dev, again.own_split) == (data.train, data.dev, True)


def test_dev_fraction_changes_nothing_where_both_files_are_there(tmp_path):
    write_rte(tmp_path, "train.tsv", "dev.tsv")
    with_fraction, without = load_task_data("rte", tmp_path, 0.5), load_task_data("rte", tmp_path)
    assert with_fraction == without
    assert not with_fraction.own_split


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 7.0])
def test_dev_fraction_out_of_range_is_refused(tmp_path, fraction):
    with pytest.raises(UsageError, match="dev_fraction: found"):
        load_task_data("rte", tmp_path, fraction)


def test_mnli_loads_with_one_dev_file(tmp_path):
    header = "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
    for name in ("train.tsv", "dev_matched.tsv"):
        (tmp_path / name).write_text(header + "0\ta\tb\tneutral\tneutral\n", encoding="utf-8")
    (tmp_path.parent / "AX").mkdir(exist_ok=True)
    (tmp_path.parent / "AX" / "diagnostic.tsv").write_text("index\tsentence1\tsentence2\n0\ta\tb\n", encoding="utf-8")
    data = load_task_data("mnli", tmp_path)
    assert list(data.dev) == ["dev_matched"]
    assert data.absent == ("dev_mismatched.tsv", "test_matched.tsv", "test_mismatched.tsv")
    assert data.test["ax"] == [TextExample("0", "a", "b", None)]


def test_squad_file_of_any_name_is_found_by_its_version(tmp_path):
    for version, name in (("1.1", "some.json"), ("v2.0", "other.json")):
        articles = []
        for number in range(4):
            answers = [{"text": "b", "answer_start": 2}]
            questions = [{"id": f"q{number}", "question": "?", "answers": answers}]
            articles.append({"title": f"T{number}", "paragraphs": [{"context": "A b.", "qas": questions}]})
        (tmp_path / name).write_text(json.dumps({"version": version, "data": articles}), encoding="utf-8")
    (tmp_path / "package.json").write_text("{}", encoding="utf-8")
    for task, name in (("squad1", "some.json"), ("squad2", "other.json")):
        data = load_task_data(task, tmp_path, dev_fraction=0.5)
        assert list(data.sha256) == [name]
        assert (len(data.train), len(data.dev["dev"])) == (2, 2)
    (tmp_path / "third.json").write_bytes((tmp_path / "some.json").read_bytes())
    with pytest.raises(InputError, match=r"train-v1.1.json: not found .*there: some.json, third.json"):
        load_task_data("squad1", tmp_path, dev_fraction=0.5)


def test_defects_that_are_counted_are_reported_with_their_file(tmp_path):
    header = "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
    for name, gold in (("train.tsv", "-"), ("dev_matched.tsv", "neutral")):
        rows = f"0\ta\tb\tneutral\tneutral\n1\tc\td\tneutral\t{gold}\n"
        (tmp_path / name).write_text(header + rows, encoding="utf-8")
    assert load_task_data("mnli", tmp_path).counts == {"train.tsv: rows without a gold label": 1}


def test_groups_stay_whole_whatever_the_kind():
    cases: list[list[Any]] = [
        [SpanExample(f"{n}", f"article {n % 9}", f"context {n % 30}", "?") for n in range(90)],
        [TaggedExample(f"{n}", n // 5, ("word",), ("O",)) for n in range(90)],
        [ChoiceExample(f"{n}", f"context {n % 30}", ("a", "b"), 0, f"video {n % 10}") for n in range(90)],
        [ChoiceExample(f"{n}", f"context {n % 30}", ("a", "b"), 0) for n in range(90)],
        [TextExample(f"{n}", f"a {n % 40}", f"b {n // 2}") for n in range(90)],
    ]
    for examples in cases:
        train, dev = split_by_group(examples, 0.2, "file")
        assert sorted((*train, *dev), key=lambda e: int(e.example_id)) == examples
        assert dev
        assert len(dev) <= 2 * 0.2 * len(examples)
        assert not {key for e in train for key in e.group_keys} & {key for e in dev for key in e.group_keys}


def test_split_does_not_depend_on_the_order_of_the_examples():
    examples = [TextExample(str(n), f"a {n % 40}", f"b {n // 2}") for n in range(90)]
    train, dev = split_by_group(examples, 0.3, "file")
    for seed in range(10):
        shuffled = random.Random(seed).sample(examples, len(examples))
        other_train, other_dev = split_by_group(shuffled, 0.3, "file")
        assert set(train) == set(other_train)
        assert set(dev) == set(other_dev)


def test_group_larger_than_dev_set_stays_in_train():
    for name in range(20):  # whatever the place of its hash
        large = [SpanExample(f"large {n}", f"article {name}", "context", "?") for n in range(80)]
        small = [SpanExample(f"small {n}", f"short {n}", "context", "?") for n in range(20)]
        train, dev = split_by_group([*large, *small], 0.1, "file")
        assert len(dev) == 10
        assert set(large) <= set(train)


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40),
    fraction=st.floats(0.01, 0.9),
)
def test_train_and_dev_share_no_text(pairs, fraction):
    examples = [TextExample(str(n), f"a {a}", f"b {b}") for n, (a, b) in enumerate([*pairs, (13, 13)])]
    train, dev = split_by_group(examples, fraction, "file")
    assert train
    assert dev
    assert not {key for e in train for key in e.group_keys} & {key for e in dev for key in e.group_keys}


def test_splitting_one_article_raises():
    examples = [SpanExample(str(n), "one article", f"context {n}", "?") for n in range(5)]
    with pytest.raises(UsageError, match=r"train.json: holds 1 group"):
        split_by_group(examples, 0.2, "train.json")


def test_examples_give_all_texts():
    assert TextExample("0", "a").texts == ("a",)
    assert TextExample("0", "a", "b").texts == ("a", "b")
    assert SpanExample("0", "t", "context", "question").texts == ("context", "question")
    assert ChoiceExample("0", "a", ("b", "c")).texts == ("a", "b", "c")
    assert TaggedExample("0", 0, ("a", "b")).texts == ("a b",)


def test_task_of_ones_own_is_a_yaml_entry_and_files(tmp_path):
    (tmp_path / "reviews.yaml").write_text(
        "name: reviews\ntitle: Reviews\nkind: classification\nlabels: [bad, fair, good]\n"
        "metrics: [accuracy, macro_f1]\nmain_metric: macro_f1\nfolder: reviews\n"
        "columns: {text_a: review, label: verdict}\n",
        encoding="utf-8",
    )
    (tmp_path / "reviews").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / "reviews" / name).write_text("review\tverdict\nfine\tgood\n", encoding="utf-8")
        (tmp_path / name).write_text("review\tverdict\nothers\tbad\n", encoding="utf-8")
    for path in (tmp_path, tmp_path / "reviews"):
        data = load_task_data(str(tmp_path / "reviews.yaml"), path)
        assert len(data.task.labels) == 3
        assert data.train == [TextExample("0", "fine", None, "good")]
    (tmp_path / "reviews").rename(tmp_path / "elsewhere")  # the files beside it are not taken in its place
    with pytest.raises(InputError, match="has no folder 'reviews', the task's `folder`; correct it, or --data"):
        load_task_data(str(tmp_path / "reviews.yaml"), tmp_path)


def write_task(folder: Path, **changes: Any) -> str:
    task = {"name": "own", "title": "Own", "kind": "classification", "labels": ["0", "1"]}
    task |= {"metrics": ["accuracy"], "main_metric": "accuracy", **changes}
    (folder / "own.yaml").write_text(json.dumps(task), encoding="utf-8")
    return str(folder / "own.yaml")


def test_labels_may_be_yaml_integers(tmp_path):
    task = get_task(write_task(tmp_path, labels=[0, 1], class_weights={"1": 5}))
    assert (task.labels, task.class_weights) == (("0", "1"), {"1": 5.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair": True}, "pair: found true without columns.text_b"),
        ({"columns": {"text_b": "b"}}, "pair: found false with columns.text_b, expected true"),
    ],
)
def test_pair_without_its_second_column_is_refused(tmp_path, change, message):
    with pytest.raises(ConfigurationError, match=message):
        get_task(write_task(tmp_path, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"kind": "tagging", "reader": "conll", "labels": ["O", "B-PER", "I-PER", "E-PER", "S-PER"]},
            "labels: found 'E-PER' beside 'B-PER', expected the prefixes B- and I- only; files may have",
        ),
        (
            {"kind": "tagging", "reader": "conll", "labels": ["NN", "IN"], "metrics": ["accuracy", "f1"]},
            "metrics: found 'f1', which counts entities, but no label begins with B- or I-; expected accuracy alone",
        ),
        (
            {"labels": ["a", "b", "c"], "metrics": ["accuracy", "f1"]},
            "metrics: found 'f1', the F1 of the last label, with 3 labels.* accuracy, matthews, macro_f1, exact_match",
        ),
        (
            {"kind": "regression", "metrics": ["pearson"], "main_metric": "pearson", "labels": []},
            r"label_range: found \[0.0, 0.0\], expected the least and the greatest",
        ),
        (
            {"kind": "regression", "metrics": ["pearson"], "main_metric": "pearson", "label_range": [0, 1]},
            r"labels: found \('0', '1'\) for regression, expected none",
        ),
    ],
)
def test_description_that_would_be_misread_is_refused(tmp_path, change, message):
    with pytest.raises(ConfigurationError, match=message):
        get_task(write_task(tmp_path, **change))


@pytest.mark.parametrize(
    ("labels", "value", "expected"),
    [
        ("abcd", [0, 0, 1, 0], ("c",)),
        ("abcd", [0.0, 1.0, 0.0, 1.0], ("b", "d")),
        ("abcd", [0, 0, 0, 0], ()),
        ("abcd", [False, True, False, True], ("b", "d")),
        ("abcd", [0, 1], ("a", "b")),
        ("abcd", [3, 0, 1, 2], ("a", "b", "c", "d")),
        ("ab", [1, 1], ("a", "b")),
        ("ab", [0.0, 1.0], ("b",)),
        ("ab", [False, True], ("b",)),
        ("ab", [1], ("b",)),
    ],
)
def test_one_hot_lists_are_told_from_lists_of_numbers(tmp_path, labels, value, expected):
    task = get_task(write_task(tmp_path, kind="multilabel", labels=list(labels), hub_labels=list(labels)))
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"sentence1": "x", "label": value}), encoding="utf-8")
    assert [example.label for example in read_examples(task, file)] == [expected]


def test_list_that_is_one_hot_or_numbers_is_refused(tmp_path):
    task = get_task(write_task(tmp_path, kind="multilabel", labels=["a", "b"]))
    file = tmp_path / "train.jsonl"
    file.write_text('{"sentence1": "x", "label": [0, 1]}', encoding="utf-8")
    with pytest.raises(InputError, match=r"train.jsonl:1: label \[0, 1\] is a 0 or 1 for each of a, b, or a list of"):
        read_examples(task, file)


def test_multilabel_is_read_from_lists_and_from_commas(tmp_path):
    task = get_task(write_task(tmp_path, kind="multilabel", labels=["a", "b", "c"], hub_labels=["a", "b", "c"]))
    (tmp_path / "train.jsonl").write_text(
        '{"sentence1": "x", "label": [2, "a"]}\n{"sentence1": "y", "label": []}\n', encoding="utf-8"
    )
    (tmp_path / "train.tsv").write_text("sentence1\tlabel\nx\tc, a\ny\t\n", encoding="utf-8")
    for name in ("train.jsonl", "train.tsv"):
        assert [example.label for example in read_examples(task, tmp_path / name)] == [("a", "c"), ()]
    (tmp_path / "bad.tsv").write_text("sentence1\tlabel\nx\tc, d\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"bad.tsv:2: label 'd', expected one of a, b, c"):
        read_examples(task, tmp_path / "bad.tsv")


@pytest.mark.parametrize(
    ("test", "labels"),
    [("x\t\ny\t\n", [None, None]), ("x\t\ny\tb\n", [(), ("b",)])],
    ids=["withheld", "one without"],
)
def test_empty_multilabel_cells_are_withheld_labels_if_all_are_empty(tmp_path, test, labels):
    files = {"train_file": "train.tsv", "test_files": {"test": "test.tsv"}}
    task = get_task(write_task(tmp_path, kind="multilabel", labels=["a", "b"], metrics=["accuracy"], **files))
    for name, rows in (("train", "x\ta\ny\t\n"), ("dev", "z\t\n"), ("test", test)):
        (tmp_path / f"{name}.tsv").write_text(f"sentence1\tlabel\n{rows}", encoding="utf-8")
    data = load_task_data(task, tmp_path)
    assert [example.label for example in data.test["test"]] == labels
    assert [example.label for example in data.dev["dev"]] == [()]
    assert list(data.labeled_test) == ([] if None in labels else ["test"])


def test_dev_examples_seen_in_training_are_counted_and_said(tmp_path):
    write_rte(tmp_path, "train.tsv", rows=4)
    content = (tmp_path / "train.tsv").read_text(encoding="utf-8")
    (tmp_path / "dev.tsv").write_text(content + "9\tnew\tclaim 9\tentailment\n", encoding="utf-8")
    data = load_task_data("rte", tmp_path)
    assert data.repeated == {"dev": 4}
    assert "dev: 4 of its examples are in the training set too, so its scores are too high" in data.notes()
    sentences = "-DOCSTART- O\n\nLONDON B-LOC\n\n{} O\n\n"
    for name, words in (("eng.train", "ab"), ("eng.testa", "bc")):
        (tmp_path / name).write_text("".join(map(sentences.format, words)), encoding="utf-8")
    assert load_task_data("ner", tmp_path).repeated == {"dev": 2}  # of the document "b"; "LONDON" alone is in each


def test_repeats_of_tagged_sentences_and_of_labeled_tests_are_counted(tmp_path):
    long = "".join(f"word{number} O\n" for number in range(8))
    document = "-DOCSTART- O\n\n{}\n{}\n"
    (tmp_path / "eng.train").write_text(document.format("LONDON B-LOC\n", long) + document.format("x O\n", "y O\n"))
    # In another document a long sentence is told by itself, a short one is not.
    dev = document.format("LONDON B-LOC\n", "new O\n") + document.format("newer O\n", long)
    (tmp_path / "eng.testa").write_text(dev)
    (tmp_path / "eng.testb").write_text(dev)
    assert load_task_data("ner", tmp_path).repeated == {"dev": 1, "test": 1}
    # Without marks of documents every sentence is one for itself.
    (tmp_path / "eng.testa").write_text("LONDON B-LOC\n\nnew O\n")
    assert load_task_data("ner", tmp_path).repeated == {"dev": 1, "test": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "../x"}, r"name: found '../x'"),
        ({"name": "a\n"}, r"name: found"),
        ({"name": "my__task"}, r"name: found"),  # no name in the registry
        ({"name": "task_"}, r"name: found"),
        ({"name": "a" * 41}, r"name: found"),
        ({"metrics": ("acuracy",)}, r"metrics: 'acuracy' is no metric of classification \(did you mean 'accuracy'"),
        ({"main_metric": "f1"}, r"main_metric: 'f1' is not one of metrics"),
        ({"labels": ("a",)}, r"labels: found \('a',\), expected two or more"),
        ({"labels": ("a", "a")}, r"labels: found"),
        ({"dev_files": {}}, r"dev_files: found none"),
        ({"dev_files": {"../dev": "dev.tsv"}}, r"found the split '../dev'"),
        ({"dev_files": {"train": "dev.tsv"}}, r"found the split 'train'"),
        ({"test_files": {"dev": "test.tsv"}}, r"found the split 'dev'"),
    ],
)
def test_task_that_does_not_fit_together_is_refused(change, message):
    with pytest.raises(ConfigurationError, match=message):
        dataclasses.replace(TASKS["sst2"], **change)
    assert isinstance(TASKS["sst2"], Task)


@pytest.mark.real_data
def test_real_sets_load_with_their_own_splits(real_data):
    found = {}
    for name, task in TASKS.items():
        root = real_data / ("glue" if task.suite else "")
        data = load_task_data(name, root, dev_fraction=0.2)
        found[name] = (len(data.train), *(len(examples) for examples in data.dev.values()), data.own_split)
        assert data.counts == {}
        for examples in data.dev.values():
            if data.own_split:
                train_keys = {key for e in data.train for key in e.group_keys}
                assert not train_keys & {key for e in examples for key in e.group_keys}
                assert abs(len(examples) / (len(examples) + len(data.train)) - 0.2) < 0.2
    own = {name: sizes[:-1] for name, sizes in found.items() if sizes[-1]}
    assert set(own) == {"qnli", "squad1", "squad2", "swag", "ner", "ner_features"}
    assert {name: sum(sizes) for name, sizes in own.items()} == {
        "qnli": 2000, "squad1": 1190, "squad2": 6078, "swag": 11, "ner": 3250, "ner_features": 3250,
    }  # fmt: skip
    assert found["mrpc"] == (3667, 408, False)


def test_labels_may_be_columns_of_0_and_1(tmp_path):
    labels = ["toxic", "severe_toxic", "threat"]
    options = {"kind": "multilabel", "labels": labels, "metrics": ["micro_f1"], "main_metric": "micro_f1"}
    content = "id,comment_text,toxic,severe_toxic,threat\na7,x,1,0,1\nb2,y,0,0,0\n"
    (tmp_path / "train.csv").write_text(content, encoding="utf-8")
    rows = [{"id": 3, "comment_text": "x", "toxic": True, "severe_toxic": 0, "threat": 1.0}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for columns in ({"text_a": "comment_text"}, {"text_a": "comment_text", "label": "toxic"}):
        task = get_task(write_task(tmp_path, **options, columns=columns))
        examples = read_examples(task, tmp_path / "train.csv")
        assert [(e.example_id, e.label) for e in examples] == [("a7", ("toxic", "threat")), ("b2", ())]
        assert read_examples(task, tmp_path / "train.jsonl")[0].label == ("toxic", "threat")
    (tmp_path / "test.csv").write_text(content.replace("1,0,1", "-1,-1,-1"), encoding="utf-8")
    assert [e.label for e in read_examples(task, tmp_path / "test.csv", labeled=None)] == [None, ()]
    with pytest.raises(InputError, match=r"test.csv:2: toxic is '-1', expected 0 or 1"):
        read_examples(task, tmp_path / "test.csv")


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl", "train.tsv"])
def test_numbers_are_no_positions_unless_the_task_has_their_order(tmp_path, name):
    columns = {"text_a": "text", "label": "toxic"}
    content = {"train.csv": "text,toxic\nx,0\n", "train.jsonl": '{"text": "x", "toxic": 0}\n'}
    (tmp_path / name).write_text(content.get(name, "text\ttoxic\nx\t0\n"), encoding="utf-8")
    task = get_task(write_task(tmp_path, labels=["toxic", "fine"], columns=columns))
    with pytest.raises(InputError, match=r"label '?0'?, expected one of toxic, fine; .* give hub_labels"):
        read_examples(task, tmp_path / name)
    task = get_task(write_task(tmp_path, labels=["toxic", "fine"], hub_labels=["fine", "toxic"], columns=columns))
    assert read_examples(task, tmp_path / name)[0].label == "fine"


def test_numbers_of_several_labels_are_positions_in_their_order(tmp_path):
    options = {"kind": "multilabel", "metrics": ["micro_f1"], "main_metric": "micro_f1", "labels": ["a", "b", "c"]}
    task = get_task(write_task(tmp_path, **options, hub_labels=["c", "a", "b"]))
    (tmp_path / "train.tsv").write_text("sentence1\tlabel\nx\t0,2\ny\t1\nz\tb,0\n", encoding="utf-8")
    assert [e.label for e in read_examples(task, tmp_path / "train.tsv")] == [("b", "c"), ("a",), ("b", "c")]


def test_column_of_ids_is_found_or_missed(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text('{"sentence1": "x", "label": "1", "meta": {"uid": "k9"}}\n', encoding="utf-8")
    task = get_task(write_task(tmp_path, columns={"index": "meta.uid"}))
    assert [example.example_id for example in read_examples(task, file)] == ["k9"]
    task = get_task(write_task(tmp_path, columns={"index": "uuid"}))
    with pytest.raises(InputError, match=r"train.jsonl:1: no column 'uuid', which holds the ids \(found: sentence1"):
        read_examples(task, file)
    assert [example.example_id for example in read_examples(task, file, labeled=False)] == ["0"]


def test_choices_may_be_a_list_with_the_letter_of_the_right_one(tmp_path):
    options = {"kind": "choice", "reader": "swag", "labels": [], "train_file": "train.json"}
    columns = {"text_a": "question", "endings": ["choices.text"], "label": "answerKey"}
    task = get_task(write_task(tmp_path, **options, columns=columns))
    rows = [{"question": "q", "choices": {"text": ["x", "y", "z"]}, "answerKey": key} for key in ("B", "c", "0", "D")]
    (tmp_path / "train.json").write_text(json.dumps(rows[:3], indent=1), encoding="utf-8")
    (tmp_path / "bad.json").write_text(json.dumps(rows), encoding="utf-8")
    assert [(e.endings, e.label) for e in read_examples(task, tmp_path / "train.json")] == [
        (("x", "y", "z"), index) for index in (1, 2, 0)
    ]
    with pytest.raises(InputError, match=r"bad.json: item 4: label 'D', expected one of 0, 1, 2, A, B, C"):
        read_examples(task, tmp_path / "bad.json")
    objects = {"question": "q", "choices": [{"text": "x"}, {"text": "y"}], "answerKey": 1.0}
    (tmp_path / "train.json").write_text(json.dumps([objects]), encoding="utf-8")
    assert [(e.endings, e.label) for e in read_examples(task, tmp_path / "train.json")] == [(("x", "y"), 1)]


@pytest.mark.parametrize(("name", "separator"), [("train.csv", ""), ("train.csv", ";"), ("train.txt", ";")])
def test_columns_of_files_without_a_header_may_be_named(tmp_path, name, separator):
    columns = {"text_a": "text", "headerless": ["label", "title", "text"]}
    task = get_task(write_task(tmp_path, labels=["3", "4"], columns=columns, separator=separator))
    rows = '"3","A title","The first text;\nof two lines"\n"4","x","y, z"\n'.replace('","', f'"{separator or ","}"')
    (tmp_path / name).write_text(rows, encoding="utf-8")
    expected = [("The first text;\nof two lines", "3"), ("y, z", "4")]
    assert [(e.text_a, e.label) for e in read_examples(task, tmp_path / name)] == expected
    header = f'"label"{separator or ","}"title"{separator or ","}"text"\n'
    (tmp_path / name).write_text(header + rows, encoding="utf-8")
    assert [(e.text_a, e.label) for e in read_examples(task, tmp_path / name)] == expected


def test_keys_of_a_description_say_how_its_files_are_written(tmp_path):
    with pytest.raises(ConfigurationError, match="separator: found ';;', expected one character"):
        get_task(write_task(tmp_path, separator=";;"))
    for encoding in ("latin-99", "hex"):
        with pytest.raises(ConfigurationError, match=f"encoding: '{encoding}' is none that Python knows"):
            get_task(write_task(tmp_path, encoding=encoding))
    task = get_task(write_task(tmp_path, separator=";", encoding="cp1252", train_file="own.csv"))
    for split in ("train", "validation"):
        content = f'sentence1;label\n"Zoë; {split}";1\n'.encode("cp1252")
        (tmp_path / f"{split}.csv.gz").write_bytes(gzip.compress(content))
    data = load_task_data(task, tmp_path)  # as the hub names its files
    assert [example.text_a for example in (*data.train, *data.dev["dev"])] == ["Zoë; train", "Zoë; validation"]


def test_each_split_is_summed_up_in_a_line(tmp_path):
    for name, rows in (("train", "x\t1\nx\t1\n \t1\ny\t0\n"), ("dev", "z\t0\n")):
        (tmp_path / f"{name}.tsv").write_text(f"sentence1\tlabel\n{rows}", encoding="utf-8")
    assert load_task_data(write_task(tmp_path), tmp_path).summaries() == [
        f"train {tmp_path / 'train.tsv'}, 4 rows: 75 % 1, 25 % 0, 1 text empty, 1 repeated",
        f"dev {tmp_path / 'dev.tsv'}, 1 row: 100 % 0",
    ]
    options = {"kind": "regression", "labels": [], "metrics": ["pearson"], "main_metric": "pearson"}
    task = write_task(tmp_path, **options, label_range=[0, 1])
    assert "4 rows: 0 to 1, mean 0.75" in load_task_data(task, tmp_path).summaries()[0]
