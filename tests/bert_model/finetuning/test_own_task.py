"""A custom task is a YAML file and data files: each kind is fine-tuned, predicted and scored without code."""

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import tiny_tasks
import torch
import yaml
from torch.nn import functional

from bert_model.cli import main
from bert_model.kinds import KINDS
from bert_model.kinds.scores import read_predictions
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError, UsageError
from bert_pipeline.tasks.catalogue import Task, get_task
from bert_pipeline.tasks.example import TextExample
from bert_pipeline.tasks.task import TaskData

DESCRIPTIONS = Path(__file__).parents[2] / "data" / "tasks" / "own"


def classification(examples):
    words = {"0": "pleasant", "1": "unpleasant"}
    return "verdict\tclaim\treason\n" + "".join(f"{words[e.label]}\t{e.text_a}\t{e.text_b}\n" for e in examples)


def multilabel(examples):
    """JSON lines with a list of labels, one of which applies to few examples and is weighted."""
    tags = [["fine" if e.label == "0" else "dull", *["film"] * ("film" in e.text_a)] for e in examples]
    return "".join(json.dumps({"text": e.text_a, "tags": own}) + "\n" for e, own in zip(examples, tags))


def regression(examples):
    return "review\tstars\n" + "".join(f"{e.text_a}\t{e.label * 20}\n" for e in examples)


def choice(examples):
    """Three endings, in columns of other names than SWAG's."""
    lines = ["begin,a,b,c,right"]
    for e in examples:
        right = e.label % 3
        endings = [e.endings[(e.label + 1) % 4]] * 3
        endings[right] = e.endings[e.label]
        lines.append(",".join([e.context, *endings, str(right)]))
    return "\n".join(lines) + "\n"


def tagging(examples):
    kinds = {"B-PER": "B-who", "B-LOC": "B-where", "O": "O"}
    sentences = ["\n".join(f"{word} {kinds[tag]}" for word, tag in zip(e.words, e.tags)) for e in examples]
    return "\n\n".join(sentences) + "\n"


def embedding(examples):
    """Two texts are alike if both are good or both are bad."""
    pairs = [(one, examples[index // 2]) for index, one in enumerate(examples)]
    rows = "".join(f"{one.text_a}\t{two.text_a}\t{4 * (one.label == two.label)}\n" for one, two in pairs)
    return "left\tright\talike\n" + rows


def ranking(examples):
    """Pairs that belong together, of which there is nothing else to know."""
    pair = "{0} lives in {3} .\twhere does {0} live ? {3} .\n"
    return "statement\tquestion\n" + "".join(pair.format(*e.words) for e in examples)


# The task of whose examples the files are made, a question, and its answer.
ASKED = {
    classification: ("mrpc", "the film was lovely .\ta song .\n", {"label": "pleasant"}),
    multilabel: ("sst2", "the film was lovely .\n", {"prediction": ["fine", "film"]}),
    regression: ("stsb", "the film was lovely .\n", {}),
    tiny_tasks.squad_file: (
        "squad1",
        "where does anna live ?\tBoris was in Oslo. Anna lives in Rome.\n",
        {"answer": "Rome"},
    ),
    choice: (
        "swag",
        "anna lives .\tthe film was dull .\tthe film was great .\tthe film was sour .\n",
        {"ending": 1},
    ),
    embedding: ("mrpc", "the film was lovely .\tthe film was lovely .\n", {"prediction": 1.0, "cosine": 1.0}),
    ranking: ("ner", "the film was lovely .\tthe film was lovely .\n", {"prediction": 1, "cosine": 1.0}),
    tagging: ("ner", "Anna lives in Oslo.\n", {"tags": ["B-who", "O", "O", "B-where", "O"]}),
}


@pytest.mark.parametrize("write", ASKED, ids=lambda write: write.__name__)
def test_custom_task_is_fine_tuned_predicted_and_scored(write, empty_store, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    shutil.copy(empty_store, tmp_path / "home" / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    shutil.copy(DESCRIPTIONS / f"{write.__name__}.yaml", "task.yaml")
    description = yaml.safe_load(Path("task.yaml").read_text())
    (data,) = description.get("dev_files", {"dev": "dev.tsv"}).values()
    source, question, expected = ASKED[write]
    for name, count in ((description.get("train_file", "train.tsv"), 48), (data, 24)):
        (tmp_path / "mine" / name).write_text(write([tiny_tasks.example(source, index) for index in range(count)]))
    tiny_tasks.make_model(tmp_path / "tiny")
    settings = [f"{key}={json.dumps(value)}" for key, value in {**tiny_tasks.QUICK, "epochs": [8.0]}.items()]
    finetune = ["finetune", "task.yaml", "--data", "mine", "--model", "tiny", "--output", "out", "--workers", "0"]
    assert main([*finetune, *settings]) == 0
    main_key = f"my_task/dev/{description['main_metric']}"
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    (entry,) = (line for line in lines if line["metric"] == main_key)
    assert re.search(r"^task.yaml: train mine/train\.\w+, 48 rows", captured.err, re.MULTILINE)
    # On a terminal the same scores are a table, unless JSON is asked for.
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([*finetune, *settings]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["metric", "N", "mean", "±", "sd", "best", "seeds", "baseline"]
    assert [row.split()[0] for row in rows] == [line["metric"] for line in lines]
    assert main([*finetune, *settings, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == lines
    assert entry["mean"] > entry["majority"] + 20

    (tmp_path / "in.txt").write_text(question)
    assert main(["predict", "task.yaml", "--model", "out", "--input", "in.txt", "--output", "answers.jsonl"]) == 0
    answer = json.loads((tmp_path / "answers.jsonl").read_text())
    assert {key: answer[key] for key in expected} == expected
    # The model describes the task, so its name is enough; and it can be registered.
    assert main(["predict", "my_task", "--model", "out", "--input", "in.txt", "--output", "by-name.jsonl"]) == 0
    assert (tmp_path / "by-name.jsonl").read_text() == (tmp_path / "answers.jsonl").read_text()
    assert main(["register", "out", "--name", "bert-mine"]) == 0

    suffix = "json" if description["kind"] == "span" else "jsonl"
    predict = ["predict", "task.yaml", "--model", "out", "--input", f"mine/{data}", "--output", "answers.jsonl"]
    assert main(predict) == 0
    for predictions in (f"out/predictions/dev.{suffix}", "answers.jsonl"):
        capsys.readouterr()
        assert main(["score", "task.yaml", "--data", f"mine/{data}", "--predictions", predictions, "--json"]) == 0
        score = json.loads(capsys.readouterr().out)[description["main_metric"]]
        assert score == pytest.approx(entry["mean"], abs=1e-4)

    # The license that its owner wrote into the card outlives a further run, which trains nothing again.
    readme = tmp_path / "out" / "README.md"
    readme.write_text(readme.read_text().replace("license: unknown", "license: mit"))
    assert main([*finetune, *settings]) == 0
    assert "license: mit" in readme.read_text()


def test_class_weights_give_torchs_weighted_means():
    weights = torch.tensor([0.5, 3.0, 1.0])
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    several = {"labels": torch.tensor([[1.0, 0.0, 1.0]] * 4 + [[0.0, 1.0, 0.0]] * 3), "input_ids": logits}
    one = {"labels": torch.tensor([0, 1, 2, 1, 1, -100, 0]), "input_ids": logits}
    expected = functional.binary_cross_entropy_with_logits(logits, several["labels"], pos_weight=weights)
    task = get_task("ner")
    kind = KINDS["multilabel"](task)
    loss = kind.loss(logits, several, weights)
    assert loss / kind.num_terms(several, weights) == pytest.approx(float(expected))
    for kind in (KINDS["classification"](task), KINDS["tagging"](task)):
        loss = kind.loss(logits, one, weights)
        expected = functional.cross_entropy(logits, one["labels"], weight=weights)
        assert loss / kind.num_terms(one, weights) == pytest.approx(float(expected))


def test_weighted_class_is_predicted_more_often(tmp_path):
    """Texts that say nothing: without weights the majority is predicted, with them the minority."""
    tiny_tasks.make_model(tmp_path / "tiny")
    examples = [TextExample(str(n), "the film .", None, "1" if n % 4 == 0 else "0") for n in range(32)]
    found = {}
    for weight in (1.0, 9.0):
        task = dataclasses.replace(get_task("sst2"), name="own", class_weights={"1": weight})
        data = TaskData(task=task, train=examples, dev={"dev": examples})
        output = tmp_path / str(weight)
        tiny_tasks.tune(data, tmp_path / "tiny", output)
        found[weight] = set(read_predictions(task, output / "predictions" / "dev.jsonl").values())
    assert found == {1.0: {"0"}, 9.0: {"1"}}


def test_training_set_of_one_class_is_refused(tmp_path):
    tiny_tasks.make_model(tmp_path / "tiny")
    examples = [TextExample(str(n), "the film .", None, "1") for n in range(8)]
    data = TaskData(task=get_task("sst2"), train=examples, dev={"dev": examples})
    with pytest.raises(UsageError, match="every training example has the label '1', expected two or more of 0, 1"):
        tiny_tasks.tune(data, tmp_path / "tiny", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_example_in_the_documentation_is_a_valid_task():
    text = (Path(__file__).parents[3] / "docs" / "finetuning.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    task = from_mapping(Task, yaml.safe_load(block), where="docs/finetuning.md")
    assert (task.name, len(task.labels), task.columns.label) == ("tickets", 3, "queue")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "span", "metrics": ["f1"], "main_metric": "f1"}, "reader: found 'tsv', expected 'squad' for span"),
        ({"columns": {"endings": ["a", "b"]}}, "columns.endings: found some for classification"),
        ({"feature_based": True}, "feature_based: found true for classification"),
        ({"lables": ["a", "b"]}, "lables"),
        ({"class_weights": {"c": 2}}, "class_weights: 'c' is none of the labels"),
        ({"class_weights": {"a": 0}}, "class_weights.a: found 0, expected more than 0"),
        ({"hub_labels": ["a", "c"]}, "hub_labels: found"),
        ({"labels": [True, False]}, r"labels: found \[True, False\], expected texts; quote"),
    ],
)
def test_option_that_would_be_ignored_is_refused(change, message):
    good = {
        "name": "my_task",
        "title": "My task",
        "folder": "mine",
        "kind": "classification",
        "labels": ["a", "b"],
        "metrics": ["accuracy"],
    }
    with pytest.raises(ConfigurationError, match=message):
        from_mapping(Task, {**good, "main_metric": "accuracy", **change}, where="task.yaml")
