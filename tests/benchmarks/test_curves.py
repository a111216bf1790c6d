"""Tests for benchmarks.curves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import curves
from benchmarks.curves import EXAM, HELD_OUT_LOSS, LOSS, main, read_log, read_series


def write_run(directory: Path, events: list[dict[str, Any]]) -> Path:
    directory.mkdir()
    (directory / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return directory


def train(step: int, tokens: float, loss: float) -> dict[str, Any]:
    return {"event": "train", "step": step, "metrics": {"train/tokens_seen": tokens, LOSS: loss, "train/loss": 9.0}}


EVENTS = [
    {"event": "start", "step": 0, "metrics": {}},
    train(10, 1e6, 7.0),
    {"event": "evaluation", "step": 15, "metrics": {HELD_OUT_LOSS: 6.5}},
    train(20, 3e6, 6.0),
    {"event": "exam", "step": 20, "metrics": {EXAM: 55.0}},
    {"event": "checkpoint", "step": 20, "metrics": {HELD_OUT_LOSS: 6.5}},
    # Killed, and resumed from step 20; a training with a budget takes another course then.
    train(30, 4e6, 1.0),
    {"event": "evaluation", "step": 35, "metrics": {HELD_OUT_LOSS: 1.0}},
    {"event": "resume", "step": 20, "metrics": {}},
]


def test_each_metric_is_at_the_tokens_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", EVENTS)
    with open(run / "metrics.jsonl", "a") as stream:
        stream.write('{"event": "train", "st')  # torn by a power cut
    series = read_series(run)
    assert {name: values.tolist() for name, values in series.items()} == {
        LOSS: [[1e6, 7.0], [3e6, 6.0]],
        HELD_OUT_LOSS: [[2e6, 6.5]],
        EXAM: [[3e6, 55.0]],
    }


def test_log_of_a_peer_is_drawn_over_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", EVENTS)
    log = tmp_path / "peer.log"
    losses = [(50, 7.5), (100, 6.5), (100, 6.0)]
    log.write_text("loading\n" + "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses))
    assert read_log(log)[LOSS].tolist() == [[50, 7.5], [100, 6.0]]
    assert read_series(run, over_updates=True)[LOSS].tolist() == [[10, 7.0], [20, 6.0]]

    drawn = {}
    draw = curves.draw
    monkeypatch.setattr(curves, "draw", lambda runs, **settings: drawn.update(settings) or draw(runs, **settings))
    output = tmp_path / "curves.png"
    assert main([f"ours={run}", f"peer={log}", "--output", str(output)]) == 0
    assert drawn["over_updates"] is True
    assert output.is_file()


@pytest.mark.parametrize(("exams", "panels"), [(True, 2), (False, 1)])
def test_a_picture_has_a_panel_of_losses_and_one_of_exams(tmp_path: Path, exams: bool, panels: int) -> None:
    events = EVENTS if exams else [event for event in EVENTS if event["event"] != "exam"]
    run = write_run(tmp_path / "run", events)
    output = tmp_path / "curves.png"
    assert main([f"first={run}", f"second={run}", "--unigram", "7", "--floor", "70", "--output", str(output)]) == 0

    from matplotlib import image

    height, width, _ = np.shape(image.imread(output))
    assert (height, width) == (380, 550 * panels)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("{directory}", "expected NAME=DIR|LOG"),
        ("a={directory}/none", "has no metrics.jsonl"),
        ("a={directory}", "at least"),
    ],
)
def test_what_is_no_training_is_refused(
    tmp_path: Path, run: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_run(tmp_path / "empty", EVENTS[:1])
    assert main([run.format(directory=directory), "--output", str(tmp_path / "curves.png")]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "curves.png").exists()
