"""The data assets write to a store and read from it; the dump's directory and the exam stay in the home."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import fsspec
import miniature
import pytest
from materialized import materialize

from bert_model.presets import preset_from_mapping, with_phases_in
from bert_pipeline.sample import generate_sample
from workflows.defs import pretraining
from workflows.defs.upkeep import archive
from workflows.lib import data_checks
from workflows.lib.checks import Check
from workflows.lib.instance import open_instance
from workflows.lib.resources import DATA_VARIABLE, STAGE_ASSETS, BertHome

DUMP = "testwiki-20260101"


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store in memory with a dump in it."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    generate_sample(tmp_path / "sample", seed=1, num_articles=100)
    (path,) = (tmp_path / "sample").glob("*pages-articles*")
    files.put_file(str(path), f"/bucket/dumps/{path.name}")
    yield f"memory://bucket/dumps/{path.name}"
    files.store.clear()


def materialize_data(instance: dg.DagsterInstance, source: str) -> dict[str, dict[str, Any]]:
    """Run the assets of the data and their checks; return the metadata of each asset."""
    result = materialize(instance, DUMP, STAGE_ASSETS["data"], miniature.preset(), dump={"sources": [source]})
    assert result.success
    events = {name: result.asset_materializations_for_node(name)[0] for name in STAGE_ASSETS["data"]}
    return {name: {key: item.value for key, item in event.metadata.items()} for name, event in events.items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_data_assets_write_to_a_store_and_reuse_what_it_holds(
    store, instance, clean_environment, tmp_path, monkeypatch
):
    home = BertHome()
    with open_instance(home, dumps=(DUMP,)) as opened:
        local = materialize_data(opened, store)

    # The same content as on a disk, and no data in the home.
    monkeypatch.setenv(DATA_VARIABLE, "memory://bucket/data")
    with in_home(monkeypatch, tmp_path / "second") as opened:
        stored = materialize_data(opened, store)
        assert stored["corpus"]["artifact/path"].startswith(f"memory://bucket/data/{DUMP}/corpus/attempt-")
        assert {path.name for path in home.dump_directory(DUMP).iterdir() if path.is_dir()} == {"dump", "exam"}
        assert not Path("memory:").exists()
        for asset, key in (("corpus", ""), ("vocabulary", ""), ("instances", "64/")):
            assert stored[asset][f"{key}artifact/sha256"] == local[asset][f"{key}artifact/sha256"]

        # The training is named by what the store holds.
        settings = preset_from_mapping(miniature.preset(), name="miniature").pretraining
        phases = with_phases_in(settings, {length: home.instances(DUMP, length) for length in (32, 64)})
        assert pretraining._training_directory(home, DUMP, phases).parent.parent == home.dump_directory(DUMP)

    # Another home finds all of it: artifacts that were made again would be below new attempts.
    with in_home(monkeypatch, tmp_path / "third") as opened:
        again = materialize_data(opened, store)
        for asset, key in (("corpus", ""), ("vocabulary", ""), ("instances", "64/")):
            assert again[asset][f"{key}artifact/path"] == stored[asset][f"{key}artifact/path"]
        archive(opened, home, DUMP)
    record = json.loads(home.archive_record(DUMP).read_text(encoding="utf-8"))
    assert record["data_directory"] == f"memory://bucket/data/{DUMP}"


@contextlib.contextmanager
def in_home(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Iterator[dg.DagsterInstance]:
    """Make a new directory the home, and yield its instance."""
    monkeypatch.setenv("BERT_HOME", str(directory))
    monkeypatch.delenv("DAGSTER_HOME", raising=False)  # set by the instance of the home before
    with open_instance(BertHome(), dumps=(DUMP,)) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checks_find_damage_in_a_store(store, instance, clean_environment, monkeypatch):
    monkeypatch.setenv(DATA_VARIABLE, "memory://bucket/data")
    home = BertHome()
    with open_instance(home, dumps=(DUMP,)) as opened:
        materialize_data(opened, store)  # and all checks pass
    files = fsspec.filesystem("memory")

    def after_damage(check: Check, pattern: str, change: Callable[[bytes], bytes]) -> str:
        (name, *_) = files.glob(pattern)
        before = files.cat_file(name)
        files.pipe_file(name, change(before))
        verdict = check(home, DUMP)
        files.pipe_file(name, before)
        assert not verdict.passed
        return verdict.description

    def flipped(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    data = f"/bucket/data/{DUMP}"
    assert "sha256 is" in after_damage(data_checks.corpus_intact, f"{data}/corpus/*/documents-*", flipped)
    assert "sha256 is" in after_damage(data_checks.vocabulary_layout, f"{data}/vocabulary/*/vocab.txt", flipped)
    shards = f"{data}/instances/64/*/train/*"
    assert "expected" in after_damage(data_checks.instances_well_formed, shards, lambda data: data[:-1])
    assert "changed since" in after_damage(data_checks.dump_readable, "/bucket/dumps/*", flipped)
    files.rm(f"{data}/instances", recursive=True)
    assert data_checks.next_sentence_balance(home, DUMP).description == "no instances at all"
    files.rm(store.removeprefix("memory:/"))
    assert "is gone" in data_checks.dump_readable(home, DUMP).description
