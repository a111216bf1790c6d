"""The harness alternates contestants, formats rows, judges targets and reports missing peers."""

import sys

from benchmarks.harness import PeerEnvironment, Row, medians, render, run_timed


def test_medians_alternate_the_contestants():
    order, rates = [], iter([1.0, 10.0, 30.0, 3.0, 2.0, 20.0])

    def contestant(name):
        return lambda: order.append(name) or next(rates)

    assert medians({"a": contestant("a"), "b": contestant("b")}, 3) == {"a": 2.0, "b": 20.0}
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_verdict_respects_the_direction_of_the_target():
    def verdict(**values):
        return Row(what="x", unit="", **values).verdict

    assert verdict(ours=20_000.0, target=20_000) == "≥ 20,000 met"
    assert verdict(ours=1.799, target=1.8) == "≥ 1.80 MISSED"
    assert verdict(ours=600.0, target=700, less_is_better=True) == "≤ 700.0 met"
    assert verdict(ours=701.0, target=700, less_is_better=True) == "≤ 700.0 MISSED"
    assert verdict(ours=18.0, theirs=10.0, target_ratio=1.8) == "RATIO ≥ 1.80 met"
    assert verdict(ours=17.9, theirs=10.0, target_ratio=1.8) == "RATIO ≥ 1.80 MISSED"
    assert verdict(ours=17.9, target_ratio=1.8) == ""  # the peer is missing
    assert verdict(ours=1.0) == ""
    assert "target" not in render([Row(what="x", unit="s", ours=1.0)])


def test_row_without_its_peer_reads_not_available():
    table = render(
        [Row(what="x", unit="MB/s", ours=6.0, peer="p", theirs=2.0), Row(what="y", unit="s", ours=1.0, peer="p")]
    )
    assert "3.00" in table.splitlines()[2]
    assert "not available" in table.splitlines()[3]


def test_failed_installation_reports_the_last_line_of_pip(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found' >&2\nexit 1\n")
    python.chmod(0o755)
    environment = PeerEnvironment(tmp_path, ["some-package"])
    assert environment.problem == "ERROR: No matching distribution found"
    assert environment.versions == {}


def test_timed_commands_keep_their_compiled_modules(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    command = [sys.executable, "-c", "import sys; print(sys.dont_write_bytecode)"]
    assert run_timed(command, one_core=False).output.strip() == "False"
