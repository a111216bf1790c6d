"""Tables of every format, and the hub's layouts of the built-in tasks."""

import csv
import dataclasses
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.records import open_source
from bert_pipeline.tasks.catalogue import TASKS, Columns, Task, get_task
from bert_pipeline.tasks.example import Answer, ChoiceExample, SpanExample, TaggedExample, TextExample, is_labeled
from bert_pipeline.tasks.task import is_task_file, load_task_data, read_examples, stream_examples

Rows = Sequence[Mapping[str, Any]]
SUFFIXES = ["csv", "tsv", "jsonl", "parquet", "arrow"]
MNLI = ("entailment", "neutral", "contradiction")


def class_label(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def write(path: Path, rows: Rows, features: Mapping[str, Any] | None = None) -> Path:
    """Write rows by the suffix; ".arrow" makes the folder of one split, as `Dataset.save_to_disk` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path
    if path.suffix in (".csv", ".tsv"):
        with open(path, "w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), dialect="excel" if path.suffix == ".csv" else "excel-tab")
            writer.writeheader()
            writer.writerows(rows)
        return path
    table = pa.Table.from_pylist([dict(row) for row in rows])
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features or {}}})})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return path
    folder = path.with_suffix("")
    folder.mkdir(parents=True)
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (table.slice(0, 1), table.slice(1))):
        with pa.OSFile(str(folder / name), "wb") as stream, pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return folder


def is_file_of(task: Task, path: Path) -> bool:
    with open_source(path) as source:
        return is_task_file(task, source)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_gives_the_same_examples(tmp_path, suffix):
    rows = [
        {"idx": 4, "premise": 'He said "no", twice.', "hypothesis": "é", "label": "neutral"},
        {"idx": 2, "premise": "{not JSON", "hypothesis": "b", "label": "contradiction"},
    ]
    if suffix == "tsv":
        rows[0]["premise"] = "He said no, twice."  # quotes are plain text in TSV
    file = write(tmp_path / f"validation.{suffix}", rows)
    assert is_file_of(TASKS["mnli"], file)
    assert read_examples(TASKS["mnli"], file) == [
        TextExample(str(row["idx"]), str(row["premise"]), str(row["hypothesis"]), str(row["label"])) for row in rows
    ]
    assert [example.label for example in stream_examples(TASKS["mnli"], file, labeled=False)] == [None, None]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("index", "found"), [("idx", ["2", "0", "1"]), ("id", ["2", "0", "1"]), ("old_index", ["0", "1", "2"])]
)
def test_ids_do_not_depend_on_the_format(tmp_path, suffix, index, found):
    file = write(tmp_path / f"dev.{suffix}", [{index: number, "sentence": "a", "label": "1"} for number in (2, 0, 1)])
    assert [example.example_id for example in read_examples(TASKS["sst2"], file)] == found


@pytest.mark.parametrize(
    ("names", "integers", "expected"),
    [
        (MNLI, [0, 1, 2], list(MNLI)),
        (("contradiction", "neutral", "entailment"), [0, 1, 2], ["contradiction", "neutral", "entailment"]),
        ((), [0, 1, 2], list(MNLI)),
    ],
)
def test_integer_classes_follow_the_files_own_names(tmp_path, names, integers, expected):
    rows = [{"premise": "a", "hypothesis": "b", "label": value} for value in integers]
    file = write(tmp_path / "train.parquet", rows, {"label": class_label(*names)} if names else None)
    assert [example.label for example in read_examples(TASKS["mnli"], file)] == expected


@pytest.mark.parametrize(
    ("task", "names", "label", "expected"),
    [
        ("cola", ("unacceptable", "acceptable"), 1, "1"),
        ("sst2", ("negative", "positive"), 0, "0"),
        ("mrpc", ("not_equivalent", "equivalent"), 1, "1"),
        ("qqp", ("not_duplicate", "duplicate"), 1, "1"),
        ("wnli", ("not_entailment", "entailment"), 1, "1"),
        ("qnli", ("entailment", "not_entailment"), 1, "not_entailment"),
        ("rte", ("entailment", "not_entailment"), 0, "entailment"),
        ("stsb", (), 3.25, 3.25),
    ],
)
def test_glue_of_the_hub_is_read(tmp_path, task, names, label, expected):
    texts = {
        "cola": ["sentence"],
        "sst2": ["sentence"],
        "qqp": ["question1", "question2"],
        "qnli": ["question", "sentence"],
    }
    columns = texts.get(task, ["sentence1", "sentence2"])
    features = {"label": class_label(*names)} if names else None
    rows = [
        {**dict.fromkeys(columns, "a"), "label": value, "idx": 7 + number} for number, value in enumerate([label] * 2)
    ]
    for split in ("train", "validation"):
        write(tmp_path / task / f"{split}-00000-of-00001.parquet", rows, features)
    withheld = [{**row, "label": type(label)(-1)} for row in rows]
    write(tmp_path / task / "test-00000-of-00001.parquet", withheld, features)
    data = load_task_data(task, tmp_path)
    text_b = "a" if len(columns) > 1 else None
    assert data.train == data.dev["dev"] == [TextExample(str(n), "a", text_b, expected) for n in (7, 8)]
    assert data.test["test"] == [TextExample(str(n), "a", text_b, None) for n in (7, 8)]
    assert list(data.sha256) == [f"{split}-00000-of-00001.parquet" for split in ("train", "validation", "test")]
    with pytest.raises(InputError, match=r"test-00000-of-00001.parquet: row 1: label -1"):
        read_examples(TASKS[task], tmp_path / task / "test-00000-of-00001.parquet")


def test_names_of_numbered_classes_decide_and_others_are_refused(tmp_path):
    rows = [{"sentence1": "a", "sentence2": "b", "label": value, "idx": value} for value in (0, 1)]
    swapped = write(tmp_path / "a.parquet", rows, {"label": class_label("equivalent", "not_equivalent")})
    assert [example.label for example in read_examples(TASKS["mrpc"], swapped)] == ["1", "0"]
    rte = write(tmp_path / "b.parquet", rows, {"label": class_label("entailment", "not_entailment")})
    with pytest.raises(InputError, match=r"row 1: label 0, expected one of 0, 1 \(the file's own classes: entailment"):
        read_examples(TASKS["mrpc"], rte)
    named = write(tmp_path / "c.jsonl", [{**row, "label": "equivalent"} for row in rows])
    assert [example.label for example in read_examples(TASKS["mrpc"], named)] == ["1", "1"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_labels_that_are_numbers_are_never_positions(tmp_path, suffix):
    stars = dataclasses.replace(TASKS["sst2"], labels=tuple("12345"), hub_names=())
    rows = [{"sentence": "a", "label": value} for value in range(1, 6)]
    assert [e.label for e in read_examples(stars, write(tmp_path / f"a.{suffix}", rows))] == list("12345")
    shifted = write(tmp_path / f"b.{suffix}", [{"sentence": "a", "label": value} for value in range(5)])
    with pytest.raises(InputError, match=r"b.*: label 0, expected one of 1, 2, 3, 4, 5"):
        read_examples(stars, shifted)


@pytest.mark.parametrize(
    ("suffix", "number"),
    [("jsonl", int), ("jsonl", float), ("parquet", int), ("parquet", float), ("csv", int), ("csv", float)],
)
def test_minus_one_is_a_label_where_the_task_has_it(tmp_path, suffix, number):
    file = write(tmp_path / f"a.{suffix}", [{"sentence": "a", "label": number(value)} for value in (-1, 0, 1)])
    signs = dataclasses.replace(TASKS["sst2"], labels=("-1", "0", "1"), hub_names=())
    assert [e.label for e in read_examples(signs, file, labeled=None)] == ["-1", "0", "1"]
    assert [e.label for e in read_examples(TASKS["sst2"], file, labeled=None)] == [None, "0", "1"]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(("0", "1"), ["1", "0"]), (("True", "False"), ["True", "False"]), (("yes", "no"), None), (("1", "2"), None)],
)
def test_booleans_are_labels_by_name_only(tmp_path, labels, expected):
    task = dataclasses.replace(TASKS["sst2"], labels=labels, hub_names=())
    file = write(tmp_path / "a.jsonl", [{"sentence": "a", "label": True}, {"sentence": "a", "label": False}])
    if expected:
        assert [example.label for example in read_examples(task, file)] == expected
        return
    with pytest.raises(InputError, match=f"a.jsonl:1: label True, expected one of {', '.join(labels)}; write its name"):
        read_examples(task, file)


def test_mnli_of_the_hub_has_both_dev_sets_and_the_diagnostics(tmp_path):
    rows = [{"premise": "a", "hypothesis": "b", "label": 2, "idx": 0}]
    for name in ("train", "validation_matched", "validation_mismatched", "test_matched"):
        write(tmp_path / "mnli" / f"{name}-00000-of-00001.parquet", rows)
    write(tmp_path / "ax" / "test-00000-of-00001.parquet", rows)
    data = load_task_data("mnli", tmp_path)
    assert list(data.dev) == ["dev_matched", "dev_mismatched"]
    assert (list(data.test), data.absent) == (["test_matched", "ax"], ("test_mismatched",))


@pytest.mark.parametrize("names", [("train-00000-of-00002", "train-00001-of-00002"), ("train/0000", "train/0001")])
def test_shards_are_read_in_order_and_numbered_through(tmp_path, names):
    for name, text in zip(names, "ab"):
        write(tmp_path / f"{name}.parquet", [{"sentence": text, "label": 1}])
    write(tmp_path / "validation.jsonl", [{"sentence": "c", "label": 0}])
    data = load_task_data("sst2", tmp_path)
    assert [(example.example_id, example.text_a) for example in data.train] == [("0", "a"), ("1", "b")]
    assert data.dev["dev"] == [TextExample("0", "c", None, "0")]


def test_names_of_the_hub_complete_official_ones(tmp_path):
    row = {"sent1": "A.", "sent2": "She", **{f"ending{n}": f"e{n}" for n in range(4)}, "label": 3}
    for name in ("train.csv", "validation.csv"):  # SWAG's own dev file is val.csv
        write(tmp_path / name, [row])
    assert load_task_data("swag", tmp_path).sha256.keys() == {"train.csv", "validation.csv"}


def test_missing_shard_is_named(tmp_path):
    write(tmp_path / "train-00000-of-00002.parquet", [{"sentence": "a", "label": 1}])
    with pytest.raises(InputError, match=r"train-00000-of-00002.parquet: 1 of its 2 shards"):
        load_task_data("sst2", tmp_path)


def test_labels_of_json_lines_are_looked_for_in_each_row(tmp_path):
    file = write(tmp_path / "a.jsonl", [{"sentence": "x"}, {"sentence": "y", "label": "1"}])
    assert [example.label for example in read_examples(TASKS["sst2"], file, labeled=None)] == [None, "1"]
    with pytest.raises(InputError, match=r"a.jsonl:1: no 'label', which holds the label \(found: sentence\)"):
        read_examples(TASKS["sst2"], file)
    file = write(tmp_path / "c.jsonl", [{"sentence": "x", "label": None}])
    with pytest.raises(InputError, match=r"c.jsonl:1: label None, expected one of 0, 1"):
        read_examples(TASKS["sst2"], file)
    choice = {"context": "x", "endings": ["a", "b"]}
    file = write(tmp_path / "b.jsonl", [{**choice, "label": 1}, choice, {**choice, "label": 0}])
    assert [example.label for example in read_examples(TASKS["swag"], file, labeled=None)] == [1, None, 0]
    with pytest.raises(InputError, match=r"b.jsonl:2: label None, expected one of 0, 1"):
        read_examples(TASKS["swag"], file)


@pytest.mark.parametrize(
    ("one", "other"),
    [("sst2.train", "train"), ("sst2-train", "sst2.train"), ("train", "train-00000-of-00001")],
)
def test_two_versions_of_a_split_are_refused(tmp_path, one, other):
    for name in (one, other, "validation"):
        write(tmp_path / f"{name}.jsonl", [{"sentence": name, "label": 1}])
    with pytest.raises(InputError, match=r"the split 'train' too, expected one version of it") as error:
        load_task_data("sst2", tmp_path)
    assert f"{one}.jsonl" in str(error.value)
    assert f"{other}.jsonl" in str(error.value)
    (tmp_path / f"{other}.jsonl").rename(tmp_path / f"{other}.csv")  # the same in a poorer format
    assert [example.text_a for example in load_task_data("sst2", tmp_path).train] == [one]


def test_saved_dataset_dictionary_is_read(tmp_path):
    rows = [{"sentence": text, "label": label} for text, label in (("a", 1), ("b", 0), ("c", 1))]
    for split in ("train", "validation"):
        write(tmp_path / f"{split}.arrow", rows)
    data = load_task_data("sst2", tmp_path)
    assert [example.text_a for example in data.train] == ["a", "b", "c"]
    assert sorted(data.sha256) == [
        f"{split}/data-0000{n}-of-00002.arrow" for split in ("train", "validation") for n in (0, 1)
    ]
    (tmp_path / "train" / "data-00000-of-00002.arrow").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"train/data-00000-of-00002.arrow: not a whole arrow file"):
        load_task_data("sst2", tmp_path)


SQUAD = {
    "id": "q1",
    "title": "T",
    "context": "The tower is red.",
    "question": "What is red?",
    "answers": {"text": ["The tower", "tower"], "answer_start": [0, 4]},
}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "arrow"])
def test_squad_of_the_hub_is_read(tmp_path, suffix):
    unanswerable = {**SQUAD, "id": "q2", "answers": {"text": [], "answer_start": []}}
    file = write(tmp_path / f"train.{suffix}", [SQUAD, unanswerable])
    first = SpanExample("q1", "T", SQUAD["context"], SQUAD["question"], (Answer("The tower", 0), Answer("tower", 4)))
    answered, other = read_examples(TASKS["squad2"], file)
    assert answered == first
    assert (other.is_impossible, other.answers) == (True, ())
    with pytest.raises(InputError, match="1 questions have no answer, expected SQuAD 1.1; use squad2"):
        read_examples(TASKS["squad1"], file)
    assert [example.answers for example in read_examples(TASKS["squad1"], file, labeled=False)] == [(), ()]


@pytest.mark.parametrize("name", ["squad1", "squad2"])
@pytest.mark.parametrize("form", ["parquet", "json"])
def test_hidden_test_set_with_empty_answers_is_unlabeled(tmp_path, name, form):
    task = dataclasses.replace(TASKS[name], test_files={"test": f"test.{form}"})
    file = tmp_path / f"test.{form}"

    def labels(*counts: int) -> list[bool]:
        """Write questions with so many answers each; return whether they are labeled."""
        answers = {"text": ["red"], "answer_start": [13]}
        rows = [
            {**SQUAD, "id": str(number), "answers": {key: value * count for key, value in answers.items()}}
            for number, count in enumerate(counts)
        ]
        if form == "parquet":
            write(file, rows)
        else:
            given = [[{"text": "red", "answer_start": 13}] * count for count in counts]
            questions = [{"id": row["id"], "question": "?", "answers": a} for row, a in zip(rows, given)]
            paragraphs = [{"context": SQUAD["context"], "qas": questions}]
            version = "1.1" if name == "squad1" else "v2.0"
            file.write_text(json.dumps({"version": version, "data": [{"title": "T", "paragraphs": paragraphs}]}))
        return [is_labeled(example) for example in stream_examples(task, file, labeled=None)]

    assert labels(0, 0) == [False, False]
    if name == "squad2":
        assert labels(0, 1, 0) == [True, True, True]
    elif form == "json":
        assert labels(0, 1, 0) == [True]  # the others are counted and left out, as in a dev set
    else:
        with pytest.raises(InputError, match="2 questions have no answer, expected SQuAD 1.1"):
            labels(0, 1, 0)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {"text": ["The tower"], "answer_start": []},
            "row 1: answers has 1 texts and 0 starts, expected a start for each",
        ),
        (
            {"text": ["The tower"], "answer_start": None},
            "row 1: answers: 'answer_start' is a NoneType, expected a list",
        ),
        ({"text": "The tower", "answer_start": 0}, "row 1: answers: 'text' is a str, expected a list"),
    ],
)
def test_answers_without_a_start_are_not_taken_for_no_answer(tmp_path, answers, message):
    file = write(tmp_path / "train.parquet", [{**SQUAD, "answers": answers}])
    with pytest.raises(InputError, match=message):
        read_examples(TASKS["squad2"], file)
    assert len(read_examples(TASKS["squad2"], file, labeled=False)) == 1


@pytest.mark.parametrize(
    ("task", "row", "field"),
    [
        ("sst2", {"sentence": "\ud83d", "label": 1}, "sentence"),
        ("wic", {"word": "a", "sentence1": "b \ud83d", "sentence2": "c", "label": True, "idx": 0}, "sentence1"),
        ("squad1", {**SQUAD, "context": "\ud83d"}, "context"),
        ("squad1", {**SQUAD, "question": "\ud83d"}, "question"),
        ("swag", {"context": "a", "endings": ["b", "\ud83d"], "label": 0}, "endings"),
        ("ner", {"tokens": ["a", "\ud83d"], "ner_tags": ["O", "O"]}, "tokens"),
    ],
)
def test_lone_surrogate_is_named_with_its_row(tmp_path, task, row, field):
    file = write(tmp_path / "train.jsonl", [row])
    with pytest.raises(InputError, match=rf"train.jsonl:1: .*{field} has half of a surrogate pair"):
        read_examples(get_task(task), file)


def test_squad_of_the_hub_loads_from_its_folder(tmp_path):
    for split in ("train", "validation"):
        write(tmp_path / "plain_text" / f"{split}-00000-of-00001.parquet", [SQUAD])
    assert [example.example_id for example in load_task_data("squad1", tmp_path).train] == ["q1"]
    with pytest.raises(InputError, match=r"every question has an answer, expected SQuAD 2.0; use squad1"):
        load_task_data("squad2", tmp_path)


def test_shards_of_squad_are_of_the_version_of_all_of_them(tmp_path):
    impossible = {**SQUAD, "id": "q2", "answers": {"text": [], "answer_start": []}}
    write(tmp_path / "train-00000-of-00002.parquet", [SQUAD])
    table = pa.Table.from_pylist([impossible], schema=pq.read_schema(tmp_path / "train-00000-of-00002.parquet"))
    pq.write_table(table, tmp_path / "train-00001-of-00002.parquet")
    write(tmp_path / "validation-00000-of-00001.parquet", [SQUAD, impossible])
    data = load_task_data("squad2", tmp_path)
    assert [(example.example_id, example.is_impossible) for example in data.train] == [("q1", False), ("q2", True)]
    with pytest.raises(InputError, match=r"1 questions have no answer, expected SQuAD 1.1; use squad2"):
        load_task_data("squad1", tmp_path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_swag_of_the_hub_is_read(tmp_path, suffix):
    row = {
        "video-id": "v",
        "sent1": "A.",
        "sent2": "She",
        "startphrase": "A. She",
        **{f"ending{n}": f"e{n}" for n in range(4)},
    }
    file = write(tmp_path / f"validation.{suffix}", [{**row, "label": 3}, {**row, "label": -1}])
    endings = ("She e0", "She e1", "She e2", "She e3")
    assert read_examples(TASKS["swag"], file, labeled=None) == [
        ChoiceExample("0", "A.", endings, 3, "v"),
        ChoiceExample("1", "A.", endings, None, "v"),
    ]


@pytest.mark.parametrize("kind", ["Sequence", "List", "plain list"])
def test_conll_of_the_hub_takes_tags_from_its_features(tmp_path, kind):
    names = ("O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
    inner = class_label(*names)
    feature = [inner] if kind == "plain list" else {"feature": inner, "_type": kind}
    rows = [
        {"id": "0", "tokens": ["-DOCSTART-"], "ner_tags": [0]},
        {"id": "1", "tokens": ["EU", "calls"], "ner_tags": [5, 0]},
        {"id": "2", "tokens": ["-DOCSTART-"], "ner_tags": [0]},
        {"id": "3", "tokens": ["Peter"], "ner_tags": [3]},
    ]
    file = write(tmp_path / "validation.parquet", rows, {"ner_tags": feature})
    assert read_examples(TASKS["ner"], file) == [
        TaggedExample("1", 0, ("EU", "calls"), ("B-ORG", "O")),
        TaggedExample("3", 1, ("Peter",), ("B-PER",)),
    ]


def test_conll_json_lines_without_names_use_the_order_of_the_task(tmp_path):
    file = write(tmp_path / "train.jsonl", [{"tokens": ["EU"], "ner_tags": [TASKS["ner"].labels.index("B-ORG")]}])
    assert read_examples(TASKS["ner"], file) == [TaggedExample("0", None, ("EU",), ("B-ORG",))]
    bad = write(tmp_path / "bad.jsonl", [{"tokens": ["EU"], "ner_tags": ["B-ORG", "O"]}])
    with pytest.raises(InputError, match=r"bad.jsonl:1: 1 words and 2 tags"):
        read_examples(TASKS["ner"], bad)


def test_rows_that_state_their_document_are_in_documents(tmp_path):
    documents = ["a.txt", "a.txt", 7, None]
    rows = [{"tokens": ["EU"], "ner_tags": ["B-ORG"], "document": document} for document in documents]
    examples = read_examples(TASKS["ner"], write(tmp_path / "train.jsonl", rows))
    assert [example.document for example in examples] == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("name", "content", "task", "bad", "ids"),
    [
        ("a.tsv", "index\tsentence\tlabel\n5\ta\t1\n6\tb\n7\tc\t3\n8\td\t0\n", "sst2", [3, 4], ["5", "8"]),
        ("a.csv", 'sentence,label\na,1\n"b" x,1\nc,3\nd,0\n', "sst2", [3, 4], ["0", "3"]),
        ("c.csv", 'sentence,label\na,1\n"b,1\nc,1\n"d\nd",0\ne,0\n', "sst2", [3], ["0", "2", "3", "4"]),
        ("a.jsonl", '{"sentence": "a", "label": 1}\n{"sentence"\n[1]\n{"sentence": 3, "label": 1}\n'
                    '{"sentence": "e", "label": 0}\n', "sst2", [2, 3, 4], ["0", "4"]),
        ("eng.testa", "a O\n\nb X\nc O\n\nd O\n", "ner", [3], ["0", "2"]),
    ],
)  # fmt: skip
def test_bad_rows_are_set_aside_and_keep_their_numbers(tmp_path, name, content, task, bad, ids):
    file = tmp_path / name
    file.write_text(content, encoding="utf-8", errors="surrogateescape")
    errors: list[str] = []
    examples = list(stream_examples(TASKS[task], file, labeled=None, on_error=lambda error: errors.append(str(error))))
    assert [example.example_id for example in examples] == ids
    assert [error.removeprefix(f"{file}:").partition(":")[0] for error in errors] == [str(line) for line in bad]
    with pytest.raises(InputError, match=f"{name}:{bad[0]}: "):
        read_examples(TASKS[task], file, labeled=None)


@pytest.mark.parametrize(
    ("name", "content", "scored", "answered"),
    [
        ("a.tsv", "sentence\tlabel\na\te\nb\t-\nc\tn\nd\tc\n", ["0", "2", "3"], ["0", "1", "2", "3"]),
        ("b.tsv", "sentence\tlabel\na\te\nb\nc\nd\tc\n", ["0", "3"], ["0", "3"]),
        ("c.jsonl", '{"sentence": "a", "label": "e"}\n\n{"sentence": "c", "label": "c"}\n', ["0", "2"], ["0", "2"]),
    ],
    ids=["no gold label", "incomplete", "blank"],
)
def test_rows_that_are_counted_out_keep_their_numbers(tmp_path, name, content, scored, answered):
    columns = Columns(text_a="sentence")
    task = dataclasses.replace(TASKS["rte"], pair=False, labels=("e", "n", "c"), columns=columns, incomplete_rows=2)
    (tmp_path / name).write_text(content, encoding="utf-8")
    unlabeled = stream_examples(task, tmp_path / name, labeled=False, on_error=lambda _: None)
    assert [example.example_id for example in unlabeled] == answered
    assert [example.example_id for example in read_examples(task, tmp_path / name)] == scored


def test_file_whose_rows_are_all_counted_out_is_named(tmp_path):
    task = dataclasses.replace(TASKS["mnli"], pair=False, columns=Columns(text_a="sentence"))
    (tmp_path / "a.tsv").write_text("sentence\tlabel\na\t-\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a.tsv: no rows are left \(rows without a gold label: 1\)"):
        read_examples(task, tmp_path / "a.tsv")


def test_rows_are_read_as_they_are_asked_for(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text('{"sentence": "a", "label": 1}\n' * 3 + "no JSON\n", encoding="utf-8")
    examples = stream_examples(TASKS["sst2"], file)
    assert [next(examples).example_id for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(InputError, match=r"train.jsonl:4: not valid JSON"):
        next(examples)


def test_templates_and_nested_lists_make_examples(tmp_path):
    columns = Columns(
        text_a="{passage.text} / {idx}",
        text_b="{passage.questions.question} {passage.questions.answers.text}",
        label="passage.questions.answers.label",
        index="{idx}-{passage.questions.idx}-{passage.questions.answers.idx}",
        items="passage.questions.answers",
    )
    answers = [{"text": "yes", "idx": 0, "label": 1}, {"text": "no", "idx": 1, "label": 0}]
    record = {"idx": 3, "passage": {"text": "P", "questions": [{"question": "Q?", "idx": 9, "answers": answers}]}}
    task = dataclasses.replace(TASKS["wnli"], columns=columns)
    assert read_examples(task, write(tmp_path / "train.jsonl", [record])) == [
        TextExample("3-9-0", "P / 3", "Q? yes", "1"),
        TextExample("3-9-1", "P / 3", "Q? no", "0"),
    ]


@pytest.mark.parametrize(
    ("task", "content", "expected"),
    [
        ("sst2", "index\tsentence\n0\ta fine film\n", True),
        ("sst2", "a fine film\n", False),
        ("sst2", "sentence\nthe film was lovely .\n", True),
        ("sst2", "text\nthe film was lovely .\n", False),
        ("sst2", "text\n", False),
        ("sst2", "label\nis a word\n", False),
        ("sst2", "a sentence\nis a text\n", False),
        ("cola", "gj04\t1\t\tThe sailors rode.\n", True),
        ("mrpc", "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t1\t2\ta\tb\n", True),
        ("mrpc", "one text\tanother text\n", False),
        ("mrpc", '{"sentence1": "a", "sentence2": "b"}\n', True),
        ("squad1", '{"version": "1.1", "data": []}', True),
        ("squad1", '{\n "data": [\n', True),
        ("squad1", "{a question}\ta context\n", False),
        ("squad1", '{"question": "a", "context": "b"}\n', False),
        ("swag", ",video-id,sent1,sent2,ending0,ending1,ending2,ending3\n", True),
        ("swag", "a context\tone ending\tanother ending\n", False),
        ("ner", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n", True),
        ("ner", "EU NNP I-NP I-ORG\ncalls V O O\n", True),
        ("ner", "EU calls O\nPeter Blackburn\n", False),
        ("ner", "EU rejects German call\n", False),
        ("ner", '{"tokens": ["EU"]}\n', True),
    ],
)
def test_task_files_are_told_from_plain_input(tmp_path, task, content, expected):
    file = tmp_path / "input"
    file.write_text(content, encoding="utf-8")
    assert is_file_of(TASKS[task], file) is expected


@pytest.mark.real_data
def test_babylm_subsets_of_glue_load(real_data, tmp_path):
    with zipfile.ZipFile(real_data / "glue_10k" / "glue_10k.zip") as archive:
        archive.extractall(tmp_path)
    sizes = {}
    for name in ("mnli", "qqp", "mrpc", "rte"):
        data = load_task_data(name, tmp_path)
        sizes[name] = (len(data.train), len(data.dev[next(iter(data.dev))]))
    assert sizes == {"mnli": (10_000, 4_908), "qqp": (10_000, 20_215), "mrpc": (3_668, 204), "rte": (2_490, 139)}
    # The subset is the official file, in its own integers.
    official = read_examples(TASKS["rte"], real_data / "glue/RTE/train.tsv")
    subset = load_task_data("rte", tmp_path).train
    assert {(e.text_a, e.text_b, e.label) for e in subset} == {(e.text_a, e.text_b, e.label) for e in official}
