"""A fine-tuned model is registered by name and lineage of the pre-trained model that it was fine-tuned from."""

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from materialized import call

from bert_model.model.config import BertConfig
from bert_model.presets import load_preset
from bert_model.pretraining.config import ModelConfig
from bert_model.registry.operations import default_name
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from workflows.defs.data import _publish_sources
from workflows.defs.promotion import _register, registered_model
from workflows.lib.lineage import (
    SOURCES_NAME,
    WIKIPEDIA_LICENSE,
    content_key,
    lineage_tags,
    name_of_preset,
    packages_version,
    registered_name,
    text_license,
)
from workflows.lib.report import collect_results
from workflows.lib.resources import BertHome, dump_task_key

DUMP, TASK = "samplewiki-1", "mrpc"


def pretrain(home: BertHome, preset: str, dump: str = DUMP) -> Manifest:
    """Publish a pre-trained model without weights, and make it the dump's current one."""
    directory = home.pretraining(dump, preset) / "model"
    configuration = {"model": {"preset": preset}}
    with publishing(directory, kind="pretrained_model", configuration=configuration, inputs={}) as draft:
        kinds = (("instances", "a"), ("corpus", "c"), ("instances", "b"))
        draft.provenance["data"] = [{"kind": kind, "sha256": digit * 64} for kind, digit in kinds]
    home.current_training(dump).write_text(json.dumps({"training": preset}), encoding="utf-8")
    return load_manifest(directory)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BertHome:
    """A home whose task model is fine-tuned from its only pre-trained model."""
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = BertHome(directory=str(tmp_path))
    description = {"task": TASK, "kind": "pair", "labels": [], "configuration": {}}
    description["model_sha256"] = pretrain(home, "tiny").sha256
    with publishing(home.finetuning(DUMP, TASK), kind="finetuned_model", configuration={}, inputs={}) as draft:
        (draft.path / "task.json").write_text(json.dumps(description), encoding="utf-8")
    return home


@pytest.mark.parametrize(("layers", "name"), [(4, "bert-mini"), (3, "bert-initial")])
def test_model_of_an_initial_model_is_named_by_its_size(home, layers, name):
    directory = pretrain(home, "initial").path
    config = BertConfig.from_preset("mini", num_hidden_layers=layers)
    (directory / "config.json").write_text(config.to_json("BertForPreTraining"), encoding="utf-8")
    assert (registered_name(directory, None), registered_name(directory, TASK)) == (name, f"{name}-{TASK}")
    if layers == 4:
        assert default_name(directory) == name

    demo = load_preset("demo")
    assert name_of_preset(demo) == f"bert-{demo.pretraining.model.preset}"
    model = ModelConfig(preset="initial")
    settings = dataclasses.replace(demo.pretraining, model=model, initial_model=str(directory))
    assert name_of_preset(dataclasses.replace(demo, pretraining=settings)) == name


def test_fine_tuning_of_a_replaced_pretrained_model_is_not_registered(home):
    pretrain(home, "mini")
    with pytest.raises(dg.Failure) as failure:
        call(registered_model, dump_task_key(DUMP, TASK), home)
    assert "fine-tuned from another pre-trained model" in str(failure.value.description)
    assert "materialize finetuned_model" in str(failure.value.description)
    assert not (home.path / "mlflow.db").exists()


def test_report_leaves_out_the_task_of_a_replaced_pretrained_model(home):
    (home.finetuning(DUMP, TASK) / "results.json").write_text('{"model_sha256": "of another"}', encoding="utf-8")
    results = collect_results(home, DUMP, load_manifest(home.current_model(DUMP)))
    assert results.rows == ()
    assert results.skipped[TASK] == "not fine-tuned on this pre-trained model yet"


def test_lineage_names_what_the_training_has_read(home):
    tags = lineage_tags(DUMP, home.current_model(DUMP), run_id="12ab")
    assert tags["instances_sha256"] == f"{'a' * 64} {'b' * 64}"
    assert tags["corpus_sha256"] == "c" * 64
    assert (tags["dump"], tags["generated_sample"], tags["dagster_run_id"]) == (DUMP, "true", "12ab")

    # Only a generated dump is known to be one: the files of a task may be generated beside another dump.
    pretrain(home, "tiny", "enwiki-1")
    assert "generated_sample" not in lineage_tags("enwiki-1", home.current_model("enwiki-1"), run_id="12ab")


def test_lineage_counts_every_file_of_both_packages(tmp_path):
    files = [tmp_path / name for name in ("bert_model/cli.py", "bert_pipeline/data/words.toml", "workflows/run.py")]
    versions = []
    for changed in (None, *files):
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("changed" if file == changed else "")
        versions.append(packages_version(tmp_path))
    assert [version != versions[0] for version in versions] == [False, True, True, False]


def test_key_of_a_dump_follows_content_and_kind_of_its_files_not_their_place(home, tmp_path):
    for folder in ("before", "now"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text("One sentence.\n", encoding="utf-8")
    sources = [f"text:{tmp_path}/before/a.txt", f"text:{tmp_path}/now/a.txt", f"lines:{tmp_path}/now/a.txt"]
    before, moved, other = (_publish_sources([source], home.dump("own-1")) for source in sources)
    assert before.sha256 != moved.sha256
    assert content_key(before) == content_key(moved) != content_key(other)
    with publishing(home.dump("own-1"), kind="dump", configuration={}, inputs={}) as draft:
        (draft.path / "pages-articles.xml").write_text("<mediawiki/>")
    downloaded = load_manifest(home.dump("own-1"))
    assert content_key(downloaded) == downloaded.sha256


def test_license_that_was_named_once_is_kept(home, monkeypatch):
    found: list[str | None] = []

    def register(directory, name, *, tags, curves, replaces_license):
        assert replaces_license == (tags.get("license") is not None and len(found) == 1)
        found.append(tags.get("license"))
        return SimpleNamespace(name=name, version=1, aliases=())

    monkeypatch.setattr("bert_model.registry.operations.register", register)
    monkeypatch.setattr("workflows.defs.promotion.write_readme", lambda *_: None)
    monkeypatch.setattr("workflows.defs.promotion.training_picture", lambda *_: None)
    own = "own-1"
    directory = pretrain(home, "tiny", own).path
    with publishing(home.dump(own), kind="dump", configuration={}, inputs={}) as draft:
        (draft.path / SOURCES_NAME).write_text('[{"format": "text", "path": "/data/a.txt"}]', encoding="utf-8")
    context = SimpleNamespace(run=SimpleNamespace(run_id="12ab"), log=logging.getLogger("test"))
    _register(context, "", home, own)
    _register(context, "cc-by-4.0", home, own)
    (directory / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n", encoding="utf-8")  # as `write_readme` does
    _register(context, "", home, own)
    assert found == [None, "cc-by-4.0", "cc-by-4.0"]

    # It is worth more than what is assumed of a dump of Wikipedia, and the dump may be gone.
    with publishing(home.dump(own), kind="dump", configuration={}, inputs={}) as draft:
        (draft.path / SOURCES_NAME).write_text('[{"format": "wikipedia", "path": "/data/a.xml"}]', encoding="utf-8")
    _register(context, "", home, own)
    shutil.rmtree(home.dump(own))
    _register(context, "", home, own)
    assert found[3:] == ["cc-by-4.0", "cc-by-4.0"]


@pytest.mark.parametrize(
    ("kinds", "license"),
    [(["wikipedia"], WIKIPEDIA_LICENSE), (["parquet"], ""), (["wikipedia", "text"], "")],
)
@pytest.mark.parametrize("name", ["", "enwiki"])
def test_license_of_the_text_is_known_for_dumps(home, kinds, license, name):
    with publishing(home.corpus("own-1"), kind="corpus", configuration={}, inputs={}) as draft:
        draft.provenance["sources"] = [f"{name}={kind}:/data/{kind}".removeprefix("=") for kind in kinds]
    corpus = load_manifest(home.corpus("own-1"))
    assert text_license(corpus.path, "own-1", f"{'0' * 64} {corpus.sha256}") == license
    assert text_license(corpus.path, "own-1", "0" * 64) == ""  # made again, of whatever, since the training
