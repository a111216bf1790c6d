"""The serving benchmark starts and stops MLflow's server, and runs without its peer."""

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from training_processes import wait_until

from benchmarks import serving
from benchmarks.serving import latency, serve
from bert_pipeline.errors import BertError


def test_percentiles_cover_all_requests():
    assert latency([number / 1000 for number in range(1, 101)]) == "p50 50.5 ms, p99 100.0 ms"


def test_failed_server_start_reports_its_log(tmp_path):
    with (
        pytest.raises(BertError, match="the server did not start"),
        serve(str(tmp_path / "none"), tmp_path / "log", {}),
    ):
        pass


@pytest.mark.slow
def test_program_measures_clients_and_stops_its_server(empty_store, tmp_path, monkeypatch, capsys):
    (tmp_path / "benchmarks" / "serving" / "home").mkdir(parents=True)
    shutil.copy(empty_store, tmp_path / "benchmarks" / "serving" / "home" / "mlflow.db")
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    started = []
    popen = subprocess.Popen

    def note(*arguments, **settings):
        started.append(popen(*arguments, **settings))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", note)
    assert serving.main(["--quick", "--no-peer", "--size", "tiny", "--clients", "2", "--batch", "4"]) == 0
    printed = capsys.readouterr().out
    for what in ("one text a request, 1 client", "one text a request, 2 clients", "4 texts a request, 2 clients"):
        assert re.search(rf"\| {what} +\| requests/s \| +[\d.]+ \| not available \|.* p50 [\d.]+ ms, p99", printed)
    assert "no server" in printed
    assert re.search(r"\| 4 texts a call, no server, exported to ONNX +\| requests/s \|.*\| torch +\|", printed)
    assert started
    assert all(process.poll() is not None for process in started)
    wait_until(lambda: not processes_of(tmp_path), seconds=120)


def processes_of(home: Path) -> list[str]:
    """Return the processes that were started for this home."""
    mark = f"BERT_HOME={home}/benchmarks/serving/home".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(entry.name)
    return found
