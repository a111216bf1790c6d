"""Instances of several lengths: what is left out of a materialization stays, and is not trained on with the others."""

from pathlib import Path

import miniature
import pytest
from materialized import call

from bert_model.presets import preset_from_mapping, with_phases_in
from bert_pipeline.errors import ArtifactError
from bert_pipeline.manifest import load_manifest, publishing
from workflows.defs import data, pretraining
from workflows.lib.resources import BertHome

DUMP = "enwiki-1"


@pytest.fixture
def home(tmp_path: Path) -> BertHome:
    """A home in which the instances of one length were made from another corpus."""
    home = BertHome(directory=str(tmp_path / "home"))
    for length, corpus in ((32, "a" * 64), (64, "b" * 64)):
        inputs = {"corpus": {"kind": "corpus", "content_sha256": corpus}}
        with publishing(home.instances(DUMP, length), kind="instances", configuration={}, inputs=inputs):
            pass
    return home


def test_instances_of_lengths_that_are_not_made_again_are_named(home, monkeypatch, capfd):
    monkeypatch.setattr(data, "make", lambda *_, **__: load_manifest(home.instances(DUMP, 32)))
    call(data.instances, DUMP, home, max_seq_lengths=[32])
    assert "instances of 64 tokens stay as they were; delete what no training reads" in capfd.readouterr().err


def test_phases_with_instances_of_two_corpora_are_refused(home):
    settings = preset_from_mapping(miniature.preset(), name="miniature").pretraining
    phases = with_phases_in(settings, {length: home.instances(DUMP, length) for length in (32, 64)})
    with pytest.raises(ArtifactError, match=r"64 of corpus b+….*: expected one corpus; materialize instances with all"):
        pretraining._training_directory(home, DUMP, phases)
