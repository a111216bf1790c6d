"""The corpus benchmark prints its table with and without its peers."""

import re

import pytest

from benchmarks import corpus


@pytest.mark.slow
def test_program_runs_without_its_peers(dump, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    python = tmp_path / "benchmarks" / "corpus" / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no registry >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(corpus.CorpusBenchmark, "_job_seconds", lambda self, path: 1.0)
    assert corpus.main(["--dump", str(dump), "--megabytes", "0.02", "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "The peers could not be installed: no registry" in printed
    assert re.search(r"\| XML, one core +\| MB of XML/s +\| +[\d.]+ \| not available \| wikiextractor", printed)
