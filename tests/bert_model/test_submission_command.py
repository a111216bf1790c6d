"""`bert submission` packs the answers of fine-tuned models to the official test files."""

import dataclasses
import json
import zipfile

import pytest
import tiny_tasks

from bert_model.cli import main
from bert_pipeline.tasks.submission import OFFICIAL_ROWS

NUM_TEST = 7


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("submission")
    base = tiny_tasks.make_model(root / "base")
    for name in ("mnli", "stsb"):
        data = tiny_tasks.task_data(name)
        unlabeled = [dataclasses.replace(tiny_tasks.example(name, index), label=None) for index in range(NUM_TEST)]
        data = dataclasses.replace(data, test=dict.fromkeys(data.task.test_files, unlabeled))
        tiny_tasks.tune(data, base, root / name, epochs=[2.0])
    return root


def test_zip_has_eleven_files_and_mnli_answers_the_diagnostics(finetuned, tmp_path, capsys):
    target = tmp_path / "submission.zip"
    everything = sorted(str(path) for path in finetuned.glob("[!.]*") if path.name != "base")  # as `o/*` of a shell
    assert len(everything) > 2  # there are pages of errors as well
    assert main(["submission", *everything, "--output", str(target)]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(target)
    assert "WNLI.tsv holds the majority class" in captured.err
    assert "RTE.tsv: no predictions" in captured.err
    with zipfile.ZipFile(target) as container:
        tables = {name: container.read(name).decode().splitlines() for name in container.namelist()}
    assert set(tables) == set(OFFICIAL_ROWS)
    for split, file in (("test_matched", "MNLI-m"), ("test_mismatched", "MNLI-mm"), ("ax", "AX")):
        stored = (finetuned / "mnli" / "predictions" / f"{split}.jsonl").read_text().splitlines()
        expected = [f"{line['id']}\t{line['prediction']}" for line in map(json.loads, stored)]
        assert tables[f"{file}.tsv"] == ["index\tprediction", *expected]
        assert len(expected) == NUM_TEST
    assert all(0 <= float(line.split("\t")[1]) <= 5 for line in tables["STS-B.tsv"][1:])


def test_two_models_of_one_task_are_refused(finetuned, tmp_path, capsys):
    directory = str(finetuned / "mnli")
    assert main(["submission", directory, directory, "--output", str(tmp_path / "s.zip")]) == 2
    assert "another directory already answers mnli/" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
