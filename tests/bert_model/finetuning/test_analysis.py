"""What is published about errors: results.json, results.md, the page of errors, and labeled test sets."""

import dataclasses
import html.parser
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_tasks

from bert_model.finetuning.analysis import errors_path
from bert_model.finetuning.task_model import load_task_model
from bert_model.finetuning.trial_runner import TrialRunner
from bert_model.kinds import kind_of
from bert_model.kinds.scores import read_predictions
from bert_model.metrics.analysis import best_temperature, class_scores
from bert_model.metrics.glue import confusion_matrix
from bert_model.metrics.uncertainty import bootstrap_interval
from bert_pipeline.errors import ConfigurationError
from bert_pipeline.tasks.catalogue import TASKS, Task, get_task
from bert_pipeline.tasks.example import TextExample
from bert_pipeline.tasks.task import load_task_data


def tune(data, model, output, **overrides):
    return tiny_tasks.tune(data, model, output, **{"epochs": [1.0], **overrides})


class Page(html.parser.HTMLParser):
    """The texts of a page's table cells, and every tag."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "td":
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


@pytest.mark.parametrize("name", sorted(TASKS))
def test_analysis_agrees_with_the_published_predictions(name, tuned):
    data = tiny_tasks.task_data(name)
    result = tuned(name)
    task = get_task(name)
    assert list(result.results["analysis"]) == list(data.dev)
    for split, examples in data.dev.items():
        analysis = result.results["analysis"][split]
        suffix = "json" if task.kind == "span" else "jsonl"
        predictions = read_predictions(task, result.path / "predictions" / f"{split}.{suffix}")
        again = kind_of(task).score(examples, predictions)
        assert analysis["score"] == pytest.approx(again[task.main_metric], abs=1e-4)
        interval = bootstrap_interval(kind_of(task).statistics(examples, predictions))
        assert analysis["interval"] == pytest.approx(interval, abs=1e-3)
        assert ("calibration_error" in analysis) == (task.kind != "regression")
        assert ("classes" in analysis) == (task.kind in ("classification", "tagging") or task.has_impossible)
        if "confusion" in analysis:
            count = sum(len(e.words) for e in examples) if task.kind == "tagging" else len(examples)
            assert sum(map(sum, analysis["confusion"]["rows"])) == count
        if "confusion" in analysis and task.kind == "classification":
            predicted = [predictions[example.example_id] for example in examples]
            confusion = confusion_matrix([example.label for example in examples], predicted, task.labels)
            assert analysis["confusion"]["rows"] == confusion.tolist()
            assert analysis["classes"] == class_scores(confusion, task.labels)
    text = (result.path / "results.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| {result.main_key} +\| +24 \|", text, re.MULTILINE)
    page = Page(errors_path(result.path).read_text(encoding="utf-8"))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)


def test_multilabel_task_has_classes_calibration_and_a_page(model, tmp_path):
    labels, metrics = ("kind", "long"), ("micro_f1",)
    task = Task(
        name="own", title="Own", kind="multilabel", labels=labels, metrics=metrics, main_metric=metrics[0], folder="x"
    )
    data = tiny_tasks.task_data("sst2")

    def relabeled(examples):
        own = [("kind",) if example.label == "1" else () for example in examples]
        return [
            dataclasses.replace(example, label=(*found, "long") if index % 2 else found)
            for index, (example, found) in enumerate(zip(examples, own))
        ]

    dev = {"dev": relabeled(data.dev["dev"])}
    result = tune(dataclasses.replace(data, task=task, train=relabeled(data.train), dev=dev), model, tmp_path / "out")
    analysis = result.results["analysis"]["dev"]
    assert [entry["label"] for entry in analysis["classes"]] == list(labels)
    assert "confusion" not in analysis
    assert 0 <= analysis["calibration_error"] <= 100
    assert errors_path(tmp_path / "out").is_file()


def test_page_has_the_most_confident_errors_first_and_escapes_them(model, tmp_path):
    data = tiny_tasks.task_data("rte")
    hostile = "<script>alert('&')</script>"
    dev = [dataclasses.replace(example, text_a=f"{hostile} {example.text_a}") for example in data.dev["dev"]]
    tune(dataclasses.replace(data, dev={"dev": dev}), model, tmp_path / "out")
    text = errors_path(tmp_path / "out").read_text(encoding="utf-8")
    page = Page(text)
    rows = [row for row in page.rows if row]
    predictions = read_predictions(get_task("rte"), tmp_path / "out" / "predictions" / "dev.jsonl")
    wrong = {example.example_id for example in dev if predictions[example.example_id] != example.label}
    assert {row[0] for row in rows} == wrong
    assert wrong
    confidences = [float(row[1]) for row in rows]
    assert confidences == sorted(confidences, reverse=True)
    assert all(row[2] != row[3] and hostile in row[4] for row in rows)
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_page_is_outside_of_the_model_directory(model, tmp_path):
    tune(tiny_tasks.task_data("sst2"), model, tmp_path / "out")
    assert not list((tmp_path / "out").rglob("*.html"))
    assert errors_path(tmp_path / "out").parent == tmp_path


@pytest.mark.parametrize("name", ["sst2", "squad2", "ner"])
def test_labeled_test_set_is_scored_and_decides_nothing(name, model, tmp_path):
    data = tiny_tasks.task_data(name)
    search = {"seeds": [1, 2], "learning_rates": [2e-3, 1e-9]}
    test = [tiny_tasks.example(name, 200 + index) for index in range(16)]
    without = tune(data, model, tmp_path / "without", **search)
    result = tune(dataclasses.replace(data, test={"test": test}), model, tmp_path / "out", **search)
    for metric in result.results["winner"]["scores"]["dev"]:
        entry = result.metrics[f"{name}/test/{metric}"]
        assert entry["n"] == 16
        assert len(entry["values"]) == 2
        dev = result.metrics[f"{name}/dev/{metric}"]
        assert dev == without.metrics[f"{name}/dev/{metric}"]
    assert result.main_key == without.main_key
    assert result.results["analysis"]["dev"] == without.results["analysis"]["dev"]
    suffix = "json" if name == "squad2" else "jsonl"
    predictions = read_predictions(get_task(name), tmp_path / "out" / "predictions" / f"test.{suffix}")
    best = result.results["analysis"]["test"]["score"]
    assert kind_of(name).score(test, predictions)[get_task(name).main_metric] == pytest.approx(best, abs=1e-4)


def test_wrong_labels_of_the_test_set_change_no_choice(model, tmp_path):
    data = tiny_tasks.task_data("sst2")
    search = {"seeds": [1, 2], "learning_rates": [2e-3, 1e-9]}
    flipped = [dataclasses.replace(example, label="10"[int(example.label)]) for example in data.dev["dev"]]
    result = tune(dataclasses.replace(data, test={"test": flipped}), model, tmp_path / "out", **search)
    without = tune(data, model, tmp_path / "without", **search)
    assert result.results["winner"]["seed"] == without.results["winner"]["seed"]
    assert result.results["winner"]["learning_rate"] == without.results["winner"]["learning_rate"]
    files = [result.manifest.files["model.safetensors"], without.manifest.files["model.safetensors"]]
    assert files[0] == files[1]


def test_test_set_without_labels_is_predicted_and_not_scored(model, tmp_path):
    data = tiny_tasks.task_data("sst2")
    test = [TextExample(str(index), "the film was fine .", None, "1" if index else None) for index in range(4)]
    result = tune(dataclasses.replace(data, test={"test": test}), model, tmp_path / "out")
    assert list(result.metrics) == ["sst2/dev/accuracy"]
    lines = (tmp_path / "out" / "predictions" / "test.jsonl").read_text().splitlines()
    assert len(lines) == 4


@pytest.mark.real_data
def test_conll_test_file_counts_as_labeled(real_data, tmp_path):
    lines = (real_data / "conll2003" / "eng.testa").read_text(encoding="utf-8").splitlines(keepends=True)
    for name in ("eng.train", "eng.testa", "eng.testb"):
        (tmp_path / name).write_text("".join(lines[:400]), encoding="utf-8")
    data = load_task_data("ner", tmp_path)
    assert list(data.labeled_test) == ["test"]
    mrpc = load_task_data("mrpc", real_data / "glue")
    assert mrpc.test
    assert not mrpc.labeled_test


def test_metrics_that_are_only_reported(model, tmp_path):
    with pytest.raises(ConfigurationError, match="main_metric: 'rmse' is only reported, expected one of pearson"):
        dataclasses.replace(get_task("stsb"), metrics=("pearson", "rmse"), main_metric="rmse")
    for name, metrics in (("stsb", ("rmse", "mae")), ("sst2", ("auc",))):
        data = tiny_tasks.task_data(name)
        task = dataclasses.replace(data.task, metrics=(*data.task.metrics, *metrics))
        result = tune(dataclasses.replace(data, task=task), model, tmp_path / name, epochs=[2.0], seeds=[1, 2])
        for metric in metrics:
            entry = result.metrics[f"{name}/dev/{metric}"]
            assert entry["best"] == (max if metric == "auc" else min)(entry["values"])
            assert (entry["majority"] is None) == (metric == "auc")


def test_probabilities_of_the_published_model_have_the_temperature_of_dev(model, tmp_path):
    data = tiny_tasks.task_data("sst2")
    train = [dataclasses.replace(e, label="0") if i % 3 == 0 else e for i, e in enumerate(data.train)]
    data, settings = dataclasses.replace(data, train=train), {"epochs": [8.0], "select": "last", "keep": "all"}
    result = tune(data, model, tmp_path / "out", seeds=[1, 2], **settings)
    loaded = load_task_model(result.path)
    logits = loaded.logits(kind_of(data.task).encode(data.dev["dev"], loaded.tokenizer, loaded.config))
    gold = np.asarray([data.task.labels.index(e.label) for e in data.dev["dev"]])
    temperature = result.results["winner"]["temperature"]
    assert temperature != 1.0
    assert best_temperature(logits * temperature, gold) == pytest.approx(temperature, abs=0.01)
    assert result.results["analysis"]["dev"].keys() >= {"calibration_error", "uncalibrated_error"}
    # A longer search takes the weights up as they were trained.
    again = tune(data, model, tmp_path / "out", seeds=[1, 2, 3], **settings)
    for name in ("seeds/1/model.safetensors", "seeds/2/model.safetensors"):
        assert again.manifest.files[name] == result.manifest.files[name]


def test_thresholds_of_labels_are_chosen_on_dev_and_answer(tmp_path):
    task = Task(
        name="rare", title="Rare", kind="multilabel", labels=("a", "b"), metrics=("macro_f1",), main_metric="macro_f1"
    )
    kind = kind_of(task)
    examples = [TextExample(str(i), "x", None, ("a", "b") if i < 3 else ("a",)) for i in range(10)]
    logits = np.asarray([[4.0, -1.0 - 0.2 * i] for i in range(10)])
    evaluation = kind.evaluate(examples, None, logits, None)
    assert evaluation.scores == {"macro_f1": 100.0}
    assert evaluation.fitted["thresholds"][0] == 0.5 > evaluation.fitted["thresholds"][1]
    (answer, *_) = kind.answer(examples, [(None, logits / evaluation.fitted["temperature"])], None, evaluation.fitted)
    assert answer["prediction"] == ["a", "b"]
    unfitted = kind.evaluate(examples, None, logits, None, fitted={})
    assert unfitted.scores["macro_f1"] == 50.0

    # Of other splits the score is that of the published model: nothing is chosen on them.
    runner: Any = SimpleNamespace(main_split="dev", kind=kind, config=None, encoded={"dev": None, "hard": None})
    runner.examples = {"dev": examples, "hard": examples}
    evaluations = TrialRunner._evaluate(runner, {"dev": logits, "hard": logits - 2.0})
    assert evaluations["hard"].fitted == evaluations["dev"].fitted
    assert evaluations["hard"].scores["macro_f1"] == 50.0
