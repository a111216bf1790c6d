"""The scores of both sides are compared on the same examples, with an interval, and a finished training is kept."""

import importlib.util
import re

import pytest
import tiny_tasks

from benchmarks import scores

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="accelerate, which the peer needs, is absent"
)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    tiny_tasks.make_model(tmp_path / "tiny")
    train = "\n".join(f"{n}\ta song {'. ' * (n % 7)}\ta film\t{n % 5}" for n in range(40))
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(f"index\tsentence1\tsentence2\tscore\n{train}\n")
    settings = ["--seeds", "2", "--epochs", "1", "--batch-size", "8", "--learning-rate", "1e-3"]
    return ["--model", str(tmp_path / "tiny"), "--task", f"stsb={tmp_path}", *settings]


def test_program_prints_the_difference_with_its_interval(inputs, capsys):
    assert scores.main(inputs) == 0
    printed = capsys.readouterr()
    assert printed.err.count("processor seconds") == 4
    number = r"[+-]?[\d.]+"
    row = rf"\| STS-B \| spearman \| 40 \| .* ± .* \| .* ± .* \| {number} \[{number}, {number}\] \| {number} \|"
    assert re.search(row, printed.out)

    assert scores.main(inputs) == 0  # nothing is trained twice
    again = capsys.readouterr()
    assert "processor seconds" not in again.err
    assert re.search(row, again.out)[0] == re.search(row, printed.out)[0]


def test_interval_holds_the_difference_of_known_predictions(inputs, tmp_path):
    args = scores.argument_parser().parse_args(inputs)
    examples = tiny_tasks.task_data("stsb").dev["dev"]
    case = scores.encode_case(tiny_tasks.task_data("stsb").task, examples, examples, args, device="cpu")
    right = {example.example_id: example.label for example in examples}
    wrong = {example.example_id: -example.label for example in examples}
    equal = {"ours": [scores.Run(right, 1.0)] * 2, "peer": [scores.Run(right, 1.0)] * 2}
    assert scores.interval_of_difference(case, equal) == (0.0, 0.0)
    low, high = scores.interval_of_difference(case, {**equal, "peer": [scores.Run(wrong, 1.0)] * 2})
    assert 0.0 < low <= high <= 200.0
