"""The benchmark programs run on small inputs, print their table, and live without their peers."""

import bz2
import re

import pytest
import torch

from benchmarks import corpus, kernels, pretraining
from benchmarks.harness import PeerEnvironment, Row, medians, render
from benchmarks.inputs import repeat_dump, sample_instances
from benchmarks.pretraining import growth_series, measure_growth, measure_ranks, render_growth
from benchmarks.training import TrainingCase
from bert_model.model import bert
from bert_model.model.cpu_kernels import fast_dropout
from bert_pipeline.errors import InputError
from bert_pipeline.wikipedia.dump import ReadReport, open_dump, read_pages


def test_a_repeated_dump_has_other_titles_and_ids_and_the_same_pages_when_compressed(dump, tmp_path):
    plain = repeat_dump(dump, tmp_path / "many.xml", 0.05)
    packed = repeat_dump(dump, tmp_path / "many.xml.bz2", 0.05)
    assert bz2.decompress(packed.read_bytes()) == plain.read_bytes()
    pages = list(read_pages(open_dump(str(plain)), 0, plain.stat().st_size, ReadReport()))
    assert len({page.title for page in pages}) == len({page.page_id for page in pages}) == len(pages) > 50


def test_a_dump_without_pages_is_refused(tmp_path):
    path = tmp_path / "empty.xml"
    path.write_text("<mediawiki></mediawiki>")
    with pytest.raises(InputError, match="no <page> found"):
        repeat_dump(path, tmp_path / "many.xml", 1)


def test_contestants_alternate_and_the_median_counts():
    order, rates = [], iter([1.0, 10.0, 30.0, 3.0, 2.0, 20.0])

    def contestant(name):
        return lambda: order.append(name) or next(rates)

    assert medians({"a": contestant("a"), "b": contestant("b")}, 3) == {"a": 2.0, "b": 20.0}
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_a_row_without_its_peer_says_so():
    table = render(
        [Row(what="x", unit="MB/s", ours=6.0, peer="p", theirs=2.0), Row(what="y", unit="s", ours=1.0, peer="p")]
    )
    assert "3.00" in table.splitlines()[2]
    assert "not available" in table.splitlines()[3]


def test_an_environment_that_cannot_be_installed_gives_the_reason_that_pip_gave(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'ERROR: No matching distribution found' >&2\nexit 1\n")
    python.chmod(0o755)
    environment = PeerEnvironment(tmp_path, ["some-package"])
    assert environment.problem == "ERROR: No matching distribution found"
    assert environment.versions == {}


@pytest.mark.slow
def test_the_corpus_program_prints_rows_without_its_peers(dump, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))

    class NoPeers:
        problem = "no registry"
        versions: dict[str, str] = {}

        def __init__(self, *_):
            pass

    monkeypatch.setattr(corpus, "PeerEnvironment", NoPeers)
    monkeypatch.setattr(corpus.CorpusBenchmark, "_job_seconds", lambda self, path: 1.0)
    assert corpus.main(["--dump", str(dump), "--megabytes", "0.02", "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "The peers could not be installed: no registry" in printed
    assert re.search(r"\| XML, one core +\| MB of XML/s +\| +[\d.]+ \| not available \| wikiextractor", printed)


def test_a_dump_that_does_not_exist_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    assert corpus.main(["--dump", str(tmp_path / "none.xml")]) == 1
    assert "none.xml" in capsys.readouterr().err


@pytest.mark.slow
def test_the_pretraining_program_measures_both_sides(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    settings = ["--quick", "--vocab-sizes", "2000", "--lengths", "32", "--global-batch-size", "8", "--articles", "100"]
    assert pretraining.main([*settings, "--micro-batch-size", "4"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| tiny")]
    assert len(rows) == 2
    assert all(re.search(r"transformers, (like lengths|reading order) +\| +\d+\.\d\d", row) for row in rows)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    instances = sample_instances(
        tmp_path_factory.mktemp("sample"), vocab_size=2000, max_seq_length=32, num_articles=100
    )
    return TrainingCase(
        size="tiny",
        vocab_size=2000,
        max_seq_length=32,
        global_batch_size=8,
        micro_batch_size=4,
        precision="float32",
        dropout=0.1,
        device=torch.device("cpu"),
        instances=instances,
    )


def test_growth_is_measured_along_batch_length_and_size(case):
    found = list(growth_series(case, lambda length: case.instances if length == 32 else None, (32, 64)))
    assert [[what for what, _ in cases] for cases in found] == [
        ["batch 4", "batch 8", "batch 16", "batch 32"],
        ["length 32"],
        ["tiny", "mini", "small"],
    ]
    rows = measure_growth(found[0][:2], seconds=0.0, rate=1e11)
    assert rows[0].times == 1.0
    assert 1.5 < rows[1].operations < 2.5  # twice the instances, of lengths that differ
    assert all(row.utilization > 0 and 0 <= row.waiting < 1 for row in rows)
    assert render_growth(rows).count("\n| batch") == 2


def test_two_ranks_and_two_processes_apart_are_measured_beside_one(case, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    rows = measure_ranks(case, rounds=1, seconds=0.0)
    assert [row.what.rpartition(": ")[2] for row in rows] == ["2 gloo ranks", "2 processes apart"]
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)
    assert "batches of 16" in rows[0].note


def test_kernels_program_compares_its_variants(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    words = ["--sizes", "tiny", "--vocab-sizes", "1000", "--turns", "1", "--articles", "60", "--threads", "1"]
    assert kernels.main(words) == 0
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].strip("|").split("|")]
    assert cells[0] == "tiny, vocabulary 1,000"
    assert all(float(cell.replace(",", "")) > 0 for cell in cells[1:6])
    assert bert.fast_dropout is fast_dropout  # what was taken out for a variant is back
