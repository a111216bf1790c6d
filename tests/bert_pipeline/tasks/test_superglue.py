"""SuperGLUE's tasks, which are YAML files: official JSON lines and the hub's columns."""

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_pipeline.errors import UsageError
from bert_pipeline.tasks.catalogue import TASK_FILES, TASKS, get_task
from bert_pipeline.tasks.example import ChoiceExample, TextExample
from bert_pipeline.tasks.task import load_task_data, read_examples

OFFICIAL = Path(__file__).parents[2] / "data" / "tasks" / "superglue"
EXPECTED: dict[str, list[Any]] = {
    "boolq": [TextExample("3", "is it", "It is.", "true")],
    "cb": [TextExample("3", "a", "b", "contradiction")],
    "copa": [ChoiceExample("3", "It fell. What was the cause?", ("wind", "rain"), 1)],
    "multirc": [
        TextExample("3-5-10", "In Rome.", "Where? Rome", "1"),
        TextExample("3-5-11", "In Rome.", "Where? Oslo", "0"),
    ],
    "superglue_rte": [TextExample("3", "a", "b", "not_entailment")],
    "wic": [TextExample("3", "place: a place", "placed", "false")],
}
LABELS = {"boolq": 1, "cb": 1, "superglue_rte": 1, "wic": 0}
"""The number of the label that the hub's files have; of the other tasks it is that of the official ones."""
CLASSES = {
    "boolq": ["False", "True"],
    "cb": ["entailment", "contradiction", "neutral"],
    "multirc": ["False", "True"],
    "superglue_rte": ["entailment", "not_entailment"],
    "wic": ["False", "True"],
}


def write_parquet(path: Path, row: Mapping[str, Any], classes: list[str] | None) -> None:
    features = {"label": {"names": classes, "_type": "ClassLabel"}} if classes else {}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.Table.from_pylist([dict(row)]).replace_schema_metadata(metadata), path)


def test_six_tasks_are_shipped():
    assert list(TASK_FILES) == list(EXPECTED)
    assert not set(TASK_FILES) & set(TASKS)
    for name in TASK_FILES:
        assert get_task(name).name == name
    with pytest.raises(UsageError, match="did you mean 'multirc'"):
        get_task("multi_rc")


@pytest.mark.parametrize("name", EXPECTED)
def test_official_files_and_the_hubs_give_the_same_examples(name, tmp_path):
    task = get_task(name)
    official, expected = json.loads((OFFICIAL / f"{name}.jsonl").read_text()), EXPECTED[name]
    folder = tmp_path / "superglue" / task.folder
    folder.mkdir(parents=True)
    for file in ("train.jsonl", "val.jsonl"):
        shutil.copy(OFFICIAL / f"{name}.jsonl", folder / file)
    unlabeled = json.dumps({key: value for key, value in official.items() if key != "label"})
    (folder / "test.jsonl").write_text(unlabeled.replace(', "label": 1', "").replace(', "label": 0', "") + "\n")
    data = load_task_data(name, tmp_path)
    assert data.train == data.dev["dev"] == expected
    assert [example.label for example in data.test["test"]] == [None] * len(expected)

    if name == "multirc":  # an answer a row
        numbers = {"paragraph": 3, "question": 5, "answer": 10}
        row = {"paragraph": "In Rome.", "question": "Where?", "answer": "Rome", "idx": numbers, "label": 1}
    else:
        row = official | {"label": LABELS.get(name, official["label"])}
    hub = tmp_path / "hub" / task.folder.lower()
    hub.mkdir(parents=True)
    for split in ("train", "validation"):
        write_parquet(hub / f"{split}-00000-of-00001.parquet", row, CLASSES.get(name))
    assert load_task_data(name, tmp_path / "hub").train == expected[:1]


@pytest.mark.real_data
def test_babylm_files_of_superglue_are_read(real_data, tmp_path):
    with zipfile.ZipFile(real_data / "glue_10k" / "glue_10k.zip") as archive:
        archive.extractall(tmp_path)
    for name, count in (("boolq", 1_635), ("multirc", 2_424)):
        examples = read_examples(get_task(name), tmp_path / f"{name}.valid.jsonl")
        assert len(examples) == count
        assert {example.label for example in examples} == set(get_task(name).labels)
    questions = {example.example_id.rpartition("-")[0] for example in examples}
    assert 300 < len(questions) < 1_000
