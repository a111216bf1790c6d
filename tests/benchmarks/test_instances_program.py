"""The instance benchmark runs on small inputs, measures jobs and their memory, and says whether targets are met."""

import re

import pytest

from benchmarks import instances
from benchmarks.harness import Row, Timing, render
from benchmarks.inputs import cut_corpus, repeat_corpus, text_bytes
from benchmarks.instances import InstanceInputs
from bert_pipeline.corpus.documents import Document
from bert_pipeline.corpus.parquet import read_documents, write_documents
from bert_pipeline.manifest import load_manifest, publishing


def test_a_target_is_met_or_missed_in_the_direction_that_it_has():
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


def test_a_repeated_corpus_has_equal_shards_and_other_ids(tmp_path):
    with publishing(tmp_path / "one", kind="corpus", configuration={}, inputs={}) as draft:
        text = ("A sentence of text.",) * 9
        made = [
            Document(
                document_id=f"x:{i}", title=f"T {i}", language="en", sentences=text, passage_starts=(0,), split="train"
            )
            for i in range(5)
        ]
        write_documents(draft.path / "documents-00000.parquet", made)
    one = load_manifest(tmp_path / "one")
    many = repeat_corpus(one, tmp_path / "many", 0.02, shard_megabytes=0.007)
    shards = [list(read_documents(path)) for path in many.file_paths("documents-")]
    assert len({len(shard) for shard in shards}) == 1
    assert len(shards) == 3
    documents = [document for shard in shards for document in shard]
    assert len(documents) == len({d.document_id for d in documents}) == 5 * many.configuration["copies"]
    assert text_bytes(many) == text_bytes(one) * many.configuration["copies"] >= 0.02e6
    assert len(list(read_documents(cut_corpus(one, tmp_path / "few", 2).file_paths()[0]))) == 2


@pytest.mark.slow
def test_a_measured_job_says_what_it_made_and_what_memory_it_took(dump, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    inputs = InstanceInputs.make([dump], None, 0.01)
    jobs = instances.InstanceJobs(inputs, 1, lambda: 1.0)
    timing, result = jobs._job("instances", inputs.corpus, 2, "--dupe-factor", "1")
    assert result["made"] > 0
    assert timing.seconds > 0
    assert min(result["parent_bytes"], result["worker_bytes"]) > 50e6


@pytest.mark.slow
def test_parts_are_printed_beside_their_peers_and_targets(dump, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    monkeypatch.setattr(instances.InstanceJobs, "speed_rows", lambda self: [])
    assert instances.main(["--dump", str(dump), "--megabytes", "0.01", "--rounds", "1", "--no-growth"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("reference in plain Python") == 3
    assert "tokenizing, nothing seen before" in printed
    assert re.search(
        r"\| counting words +\| MB of text/s, one core .* counts are equal +\| ≥ 20\.0 (met|MISSED)", printed
    )


def test_job_rows_judge_rates_a_second_worker_and_memory(dump, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    inputs = InstanceInputs.make([dump], tmp_path, 0.01)
    jobs = instances.InstanceJobs(inputs, 1, lambda: 2_000.0)

    def job(name, corpus, workers, *options):
        working = 0.0 if corpus is inputs.few else 10.0 / workers
        timing = Timing(seconds=1.0 + working, cpu_seconds=20.0 + workers, peak_bytes=0, output="")
        return timing, {"made": 300_000, "worker_bytes": 800e6, "parent_bytes": 300e6}

    monkeypatch.setattr(jobs, "_job", job)
    verdicts = {row.what: (row.ours, row.verdict) for row in jobs.speed_rows() + jobs.memory_rows()}
    assert verdicts["whole job, Parquet, 1 worker"] == (30_000.0, "≥ 20,000 met")
    assert verdicts["whole job, 2 workers over one"] == (2.0, "≥ 1.80 met")
    assert verdicts["processor time of the whole job, Parquet, 2 workers"] == (22.0, "")
    assert verdicts["peak memory, whole job, worker"] == (800.0, "≤ 700.0 MISSED")
    assert verdicts["memory, vocabulary, parent, 10 times the text"] == (1.0, "≤ 1.10 met")
