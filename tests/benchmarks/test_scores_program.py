"""The scores of both sides are compared on the same examples, with an interval, and a finished training is kept."""

import dataclasses
import json
import re
import shutil
import zipfile

import pytest
import tiny_tasks
import torch
from safetensors.torch import load_file

from benchmarks import scores
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import save_model


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    tiny_tasks.make_model(tmp_path / "tiny")
    train = "\n".join(f"{n}\ta song {'. ' * (n % 7)}\ta film\t{n % 5}" for n in range(40))
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(f"index\tsentence1\tsentence2\tscore\n{train}\n")
    settings = ["--seeds", "2", "--epochs", "1", "--batch-size", "8", "--learning-rates", "1e-3"]
    return ["--model", str(tmp_path / "tiny"), "--task", f"stsb={tmp_path}", *settings]


def test_program_prints_the_difference_with_its_interval(inputs, tmp_path, capsys):
    assert scores.main(inputs) == 0
    printed = capsys.readouterr()
    assert printed.err.count("processor seconds") == 4
    number = r"[+-]?[\d.]+"
    row = rf"\| STS-B \| spearman \| 40 \| .* ± .* \| .* ± .* \| {number} \[{number}, {number}\] \| {number} \|"
    assert re.search(row, printed.out)

    # Nothing is trained twice, and the same files elsewhere are the same case, whose trainings are read there.
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path, elsewhere, ignore=shutil.ignore_patterns("elsewhere"))
    moved = [word.replace(str(tmp_path), str(elsewhere)) for word in inputs]
    for words in (inputs, [*moved, "--runs", str(elsewhere / "home" / "benchmarks" / "scores" / "peer")]):
        assert scores.main(words) == 0
        again = capsys.readouterr()
        assert "processor seconds" not in again.err
        assert re.search(row, again.out)[0] == re.search(row, printed.out)[0]

    # As many other examples are another case.
    dev = tmp_path / "dev.tsv"
    dev.write_text(dev.read_text().replace("a film", "a tale"))
    assert scores.main(inputs) == 0
    assert capsys.readouterr().err.count("processor seconds") == 4


def test_another_model_of_pickled_weights_is_trained_anew(inputs, tmp_path, capsys):
    assert scores.main([*inputs, "--seeds", "1"]) == 0
    weights = load_file(tmp_path / "tiny" / "model.safetensors")
    (tmp_path / "tiny" / "model.safetensors").unlink()
    for factor in (1.0, 2.0):
        torch.save({name: factor * tensor for name, tensor in weights.items()}, tmp_path / "tiny" / "pytorch_model.bin")
        capsys.readouterr()
        assert scores.main([*inputs, "--seeds", "1"]) == 0
        assert capsys.readouterr().err.count("processor seconds") == 2


def test_interval_holds_the_difference_of_known_predictions(inputs, tmp_path):
    args = scores.argument_parser().parse_args(inputs)
    examples = tiny_tasks.task_data("stsb").dev["dev"]
    case = scores.FinetuningCase(
        tiny_tasks.task_data("stsb").task, examples, examples, args, device="cpu", learning_rate=0.0
    )
    right = {example.example_id: example.label for example in examples}
    wrong = {example.example_id: -example.label for example in examples}
    equal = {"ours": [scores.Run(right, 1.0)] * 2, "peer": [scores.Run(right, 1.0)] * 2}
    assert not scores.resampled_differences(case, equal).any()
    assert scores.difference_with_interval(0.0, scores.resampled_differences(case, equal)) == "+0.0 [+0.0, +0.0]"
    found = scores.resampled_differences(case, {**equal, "peer": [scores.Run(wrong, 1.0)] * 2})
    assert 0.0 < found.min() <= found.max() <= 200.0
    # Seeds are drawn: of a right and a wrong one two right ones, two wrong ones, or both.
    mixed = {**equal, "peer": [scores.Run(right, 1.0), scores.Run(wrong, 1.0)]}
    assert {round(value) for value in scores.resampled_differences(case, mixed)} == {0, 100, 200}
    # Both sides are scored on the same draw of examples.
    some = {**right, examples[0].example_id: -examples[0].label}
    imperfect = {side: [scores.Run(some, 1.0)] * 2 for side in equal}
    assert not scores.resampled_differences(case, imperfect).any()


def test_regression_starts_from_the_mean_of_the_labels(inputs):
    args = scores.argument_parser().parse_args(inputs)
    examples = [dataclasses.replace(example, label=4.0) for example in tiny_tasks.task_data("stsb").dev["dev"]]
    case = scores.FinetuningCase(
        tiny_tasks.task_data("stsb").task, examples, examples, args, device="cpu", learning_rate=0.0
    )
    for make in scores.SIDES["peer"].values():
        side = make(case)
        side.train_from(1)
        assert side.logits() == pytest.approx(4.0, abs=0.5)


def test_random_weights_and_a_bag_of_words_as_baselines(inputs, tmp_path, capsys):
    # BabyLM's archive has a file for each task and split.
    rows = [
        {"sentence1": f"a {word}", "sentence2": f"the {word}", "label": n % 2}
        for n in range(30)
        for word in (("fine", "dull")[n % 2],)
    ]
    with zipfile.ZipFile(tmp_path / "glue_10k.zip", "w") as archive:
        for split in ("train", "valid"):
            lines = [json.dumps(row | {"idx": n}) for n, row in enumerate(rows)]
            archive.writestr(f"rte.{split}.jsonl", "\n".join(lines))
    arguments = [*inputs, "--task", f"rte={tmp_path / 'glue_10k.zip'}"]
    arguments += ["--against", "random", "--runs", str(tmp_path / "proof")]
    assert scores.main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err.count("processor seconds") == 8
    number, interval = r"[+-]?[\d.]+", r"[+-][\d.]+ \[[+-][\d.]+, [+-][\d.]+\]"
    assert re.search(rf"\| STS-B \| spearman \| 40 / 40 \| .* ± .* \| .* ± .* \| {interval} \| {number} ", printed.out)
    assert re.search(rf"\| RTE \| accuracy \| 30 / 30 \| .* \| .* \| {interval} \| 100.0 ", printed.out)
    table = [line.split(" | ") for line in printed.out.splitlines() if line.startswith("|")][2:]
    assert table[-1][0] == "| mean"
    for column in (3, 4, 6):
        first, second, mean = (float(row[column].split()[0]) for row in table)
        assert mean == pytest.approx((first + second) / 2, abs=0.11)

    assert scores.main(arguments) == 0  # nothing is trained or fitted twice
    again = capsys.readouterr()
    assert again.err == ""
    assert again.out.partition("| task")[2] == printed.out.partition("| task")[2]

    # Dev examples that contamination has found are not scored; nothing is trained for that.
    found = [{"test_set": "rte dev", "id": str(n)} for n in range(10)] + [{"test_set": "rte", "id": "11"}]
    (tmp_path / "found.jsonl").write_text("".join(json.dumps(record) + "\n" for record in found))
    assert scores.main([*arguments, "--without", str(tmp_path / "found.jsonl")]) == 0
    without = capsys.readouterr()
    assert without.err == ""
    assert "| STS-B | spearman | 40 / 40 |" in without.out
    assert "| RTE | accuracy | 30 / 20 |" in without.out

    (tmp_path / "unknown.zip").write_bytes((tmp_path / "glue_10k.zip").read_bytes())
    assert scores.main([*inputs, "--task", f"cola={tmp_path / 'unknown.zip'}"]) == 2
    assert "has no cola.train.jsonl" in capsys.readouterr().err


def test_tasks_of_other_kinds_are_refused(inputs, tmp_path, capsys):
    for name in ("eng.train", "eng.testa"):
        (tmp_path / name).write_text("-DOCSTART- -X- O O\n\nParis NNP I-NP I-LOC\n")
    assert scores.main([*inputs, "--task", f"ner={tmp_path}"]) == 2
    assert "--task ner: found tagging, expected a classification or a regression" in capsys.readouterr().err


def test_each_side_gets_its_best_learning_rate(inputs, tmp_path, capsys):
    arguments = [*inputs, "--learning-rates", "2e-3", "1e-5", "--against", "random"]
    assert scores.main(arguments) == 0
    printed = capsys.readouterr()
    trained = dict(re.findall(r"stsb-(\S+)\.npz: (\S+),", printed.err))
    for side in ("ours", "random"):
        rates = {rate: float(trained[f"{side}-{rate}-1"]) for rate in ("0.002", "1e-05")}
        best = max(rates, key=lambda rate: rates[rate])
        assert f"learning rates, {side}: stsb {best}\n" in printed.out
        assert {name for name in trained if name.startswith(side) and name.endswith("-2")} == {f"{side}-{best}-2"}

    # Random weights depend on the shape only: they are not trained again beside other weights.
    (tmp_path / "other").mkdir()
    model = new_model(BertForPreTraining, BertConfig.from_directory(tmp_path / "tiny"), seed=1)
    save_model(model, tmp_path / "other", tiny_tasks.tokenizer())
    assert scores.main([*arguments, "--model", str(tmp_path / "other")]) == 0
    again = capsys.readouterr().err
    assert "stsb-ours-0.002-1.npz" in again
    assert "stsb-random" not in again
