"""The instance benchmark measures parts, jobs and memory on small inputs, and judges the targets."""

import re

import pytest

from benchmarks import instances
from benchmarks.harness import Timing


@pytest.mark.slow
def test_job_process_reports_its_output_and_peak_memory(dump, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    inputs = instances.InstanceInputs([dump], None, 0.01)
    jobs = instances.InstanceJobs(inputs, 1, lambda: 1.0)
    timing, result = jobs.job("instances", inputs.corpus, 2, "--dupe-factor", "1")
    assert result["made"] > 0
    assert timing.seconds > 0
    assert min(result["parent_bytes"], result["worker_bytes"]) > 50e6


@pytest.mark.slow
def test_table_has_parts_with_peers_and_targets(dump, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    monkeypatch.setattr(instances.InstanceJobs, "speed_rows", lambda self: [])
    assert instances.main(["--dump", str(dump), "--megabytes", "0.01", "--rounds", "1", "--no-growth"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("reference in plain Python") == 3
    assert "tokenizing, nothing seen before" in printed
    assert re.search(
        r"\| counting words +\| MB of text/s, one core .* counts are equal +\| ≥ 20\.0 (met|MISSED)", printed
    )


def test_job_rows_judge_rate_speedup_and_memory(dump, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    inputs = instances.InstanceInputs([dump], tmp_path, 0.01)
    jobs = instances.InstanceJobs(inputs, 1, lambda: 2_000.0)

    def job(name, corpus, workers, *options):
        working = 0.0 if corpus is inputs.few else 10.0 / workers
        timing = Timing(seconds=1.0 + working, cpu_seconds=20.0 + workers, output="")
        return timing, {"made": 300_000, "worker_bytes": 800e6, "parent_bytes": 300e6}

    monkeypatch.setattr(jobs, "job", job)
    verdicts = {row.what: (row.ours, row.verdict) for row in jobs.speed_rows() + jobs.memory_rows()}
    assert verdicts["whole job, Parquet, 1 worker"] == (30_000.0, "≥ 20,000 met")
    assert verdicts["whole job, 2 workers over one"] == (2.0, "≥ 1.80 met")
    assert verdicts["processor time of the whole job, Parquet, 2 workers"] == (22.0, "")
    assert verdicts["peak memory, whole job, worker"] == (800.0, "≤ 700.0 MISSED")
    assert verdicts["memory, vocabulary, parent, 10 times the text"] == (1.0, "≤ 1.10 met")
