"""The report's table: baselines, tasks at chance, own splits, and skipped tasks."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_model.zero_shot.result import PairScores, exam_result, exam_table
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.manifest import load_manifest, publishing
from workflows.lib.report import (
    Results,
    collect_results,
    csv_table,
    markdown_report,
    result_row,
    text_table,
    write_report,
)
from workflows.lib.resources import BertHome


def results(task: str = "sst2", *, mean: float = 80.0, **changes: Any) -> dict[str, Any]:
    found = json.loads((Path(__file__).parents[2] / "data" / "tasks" / "results.json").read_text())
    (entry,) = found["metrics"].values()
    entry |= {"values": [mean - 1, mean + 1], "mean": mean, **changes.pop("entry", {})}
    key = f"{task}/dev/accuracy"
    return {**found, "task": task, "main_key": key, "metrics": {key: entry}, **changes}


def row(**changes: Any) -> dict[str, Any]:
    return result_row(results(**changes), generated=False)


def of(*rows: dict[str, Any], dump: str = "enwiki-20261101", skipped: dict[str, str] | None = None) -> Results:
    return Results(dump=dump, rows=rows, skipped=skipped or {}, inputs={})


def test_row_has_score_and_baselines():
    found = row()
    assert found["metric"] == "dev/accuracy"
    assert (found["score"], found["random"], found["random_longer"], found["majority"]) == (80.0, 60.0, 65.0, 50.0)
    assert (found["n"], found["seeds"], found["random_multiple"]) == (400, 2, 4)
    assert found["paper"] == 92.7
    assert found["note"] == ""
    assert not found["at_chance"]
    assert result_row(results(), generated=True)["paper"] is None  # it does not compare with a sample


def test_row_notes_what_is_known_about_the_score():
    known = [{"kind": kind, "text": "", "share": 1.0} for kind in ("own_split", "at_chance", "at_chance", "one_seed")]
    found = row(mean=50.0, known=known, degenerate=True)
    assert found["note"] == "own split, at chance, one seed, degenerate"
    assert found["at_chance"]


def test_row_of_a_tagger_of_documents_notes_the_score_with_their_context():
    metrics = {"ner/dev/accuracy": results("ner")["metrics"]["ner/dev/accuracy"]}
    metrics["ner/dev/accuracy_with_context"] = {**metrics["ner/dev/accuracy"], "mean": 89.7}
    found = result_row(results("ner", metrics=metrics), generated=False)
    assert (found["score"], found["note"]) == (80.0, "in documents 89.7")


def test_averages_are_over_tasks_that_have_every_score():
    table = of(row(), row(task="rte", mean=60.0), row(task="squad2", entry={"majority": None}))
    averages = table.averages()
    assert averages["score"] == pytest.approx(70.0)
    assert averages["random"] == pytest.approx(60.0)


def test_text_table_names_skipped_tasks_tasks_at_chance_and_the_gain():
    table = of(row(), row(task="rte", mean=50.0), skipped={"swag": "no folder is given", "ner": "no folder is given"})
    text = text_table(table)
    assert "skipped: swag, ner: no folder is given" in text
    assert "at chance" in text
    assert "random ×4" in text
    assert "pre-training gives +5.0 points over random weights" in text


def test_column_without_a_value_is_left_out():
    without = {"random": None, "random_x4": None, "paper": None}
    text = text_table(of(row(entry=without)))
    assert "random" not in text.splitlines()[1]
    assert "paper" not in text.splitlines()[1]


def test_every_format_marks_a_sample_csv_keeps_full_numbers_and_markdown_every_column():
    table = of(row(mean=80.123456), row(task="rte"), dump="samplewiki-1")
    assert "generated sample" in text_table(table)
    assert "generated sample" in markdown_report(table)
    assert "80.123456" in csv_table(table)
    lines = [line for line in markdown_report(table).splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1


def test_report_without_tasks_has_the_exam_and_the_reasons(tmp_path):
    pairs = tuple(Pair(pair_id=str(number), kind="swap", good=("a b",), bad=("b a",)) for number in range(3))
    examined = exam_result(PairScores(pairs, np.array([1.0, 0.0, 2.0]), np.full(3, 0.5)), np.array([1.0, 1.0, 0.0]))
    document = {"pairs": "made", "part": "reporting", **examined.to_json()}
    with publishing(tmp_path / "model", kind="pretrained_model", configuration={}, inputs={}) as draft:
        (draft.path / "exam.json").write_text(json.dumps(document))
    model = load_manifest(tmp_path / "model")

    found = collect_results(BertHome(path=str(tmp_path / "home")), "enwiki-20261101", model)
    assert found.rows == ()
    assert found.exam == examined
    report = write_report(dataclasses.replace(found, skipped={"sst2": "no folder is given"}), [], model, tmp_path / "r")
    for name in ("results.txt", "report.md"):
        text = (report.path / name).read_text()
        assert "skipped: sst2: no folder is given" in text
        assert exam_table(examined) in text
    assert "scores.png" not in text
    assert not (report.path / "scores.png").exists()
    assert (report.path / "results.csv").read_text() == csv_table(of(row())).partition("\n")[0] + "\n"
    assert json.loads((report.path / "results.json").read_text())["exam"] == {
        "accuracy": pytest.approx(200 / 3),
        "ngram_baseline": pytest.approx(200 / 3),
    }
