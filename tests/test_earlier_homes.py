"""Homes that earlier revisions wrote open with the present code: registry, runs, artifacts and checkpoints."""

import json
import os
import tarfile
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from small_instances import assert_same, with_flipped_bits

from bert_model.cli import main
from bert_model.inference.predict import load_predictor
from bert_model.pretraining.data import InstanceSplit
from bert_model.registry import operations
from bert_model.training.home import tracking_uri
from bert_model.training.metrics_log import read_lines
from bert_model.training.mlflow_store import open_client
from bert_pipeline.errors import ArtifactError
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import load_manifest
from workflows import backup

HOMES = Path(__file__).parent / "data" / "homes"
DATA = {
    "corpus": "corpus",
    "vocabulary": "vocabulary",
    "instances": "instances",
    "pretraining/model": "pretrained_model",
    "pretraining/checkpoints/step-00000020": "checkpoint",
    "finetuned": "finetuned_model",
}
"""Directory -> kind of the artifact in it."""
SENTENCE = {"text": "the film was lovely ."}


@pytest.fixture(scope="module", params=sorted(path.name for path in HOMES.glob("*.tar.xz")))
def data(request, tmp_path_factory):
    """The artifact directories of a home, whose registry is restored as BERT_HOME; the working directory is above."""
    place = tmp_path_factory.mktemp("earlier")
    with tarfile.open(HOMES / request.param) as archive:
        archive.extractall(place, filter="data")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("BERT_HOME", "DAGSTER_", "MLFLOW_"))]:
            patch.delenv(name)
        patch.setenv("BERT_HOME", str(place / "home"))
        patch.setenv("DAGSTER_HOME", str(place / "home" / "dagster"))  # opening it sets this, which is taken back so
        patch.chdir(place)
        assert backup.main(["restore", "backup"]) == 0
        yield place / "data"


def test_every_kind_of_artifact_is_intact(data):
    for directory, kind in DATA.items():
        assert load_manifest(data / directory, kind=kind, verify="sha256").sha256


def test_versions_are_listed_with_score_and_alias(data, capsys):
    assert main(["models"]) == 0
    heading, pretrained, finetuned = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["NAME", "VERSION", "ALIASES"]
    assert pretrained.split()[:4] == ["bert-tiny", "1", "candidate", "held_out/mlm_loss"]
    assert finetuned.split()[:6] == ["bert-tiny-sst2", "1", "candidate,", "champion", "sst2/dev/accuracy", "100.00"]


@pytest.mark.parametrize(("name", "source"), [("bert-tiny", "pretraining/model"), ("bert-tiny-sst2", "finetuned")])
def test_downloaded_version_is_the_registered_directory(data, name, source):
    local = operations.download(f"models:/{name}@candidate")
    assert load_manifest(local, verify="sha256").sha256 == load_manifest(data / source).sha256


def test_stored_model_code_predicts_like_the_present_code(data):
    expected = load_predictor("sst2", [data / "finetuned"]).answer([SENTENCE])
    mlflow.set_tracking_uri(tracking_uri())
    try:
        served = mlflow.pyfunc.load_model("models:/bert-tiny-sst2@champion")
        assert served.predict(pd.DataFrame([SENTENCE])) == expected
        masked = mlflow.pyfunc.load_model("models:/bert-tiny/1")
        assert masked.predict(pd.DataFrame([{"text": "the film was [MASK] ."}]))
    finally:
        mlflow.set_tracking_uri("")


def test_registered_version_passes_the_gates(data, capsys):
    assert main(["promote", "bert-tiny"]) == 0
    assert "bert-tiny version 1 is champion" in capsys.readouterr().out
    assert main(["promote", "bert-tiny-sst2"]) == 1
    assert "bert-tiny-sst2 version 1 is champion already" in capsys.readouterr().out


def test_registered_version_is_rolled_back(data):
    with operations.registry_client() as client:
        client.set_registered_model_alias("bert-tiny-sst2", "previous", "1")
        client.delete_registered_model_alias("bert-tiny-sst2", "champion")
    champion = operations.rollback("bert-tiny-sst2")
    assert (champion.version, champion.aliases) == (1, ("candidate", "champion", "previous"))
    assert champion.facts == champion.tags  # an earlier revision has no facts.json
    assert champion.scores[0].num_seeds == int(champion.tags["num_seeds"])


def test_registering_the_same_directory_keeps_its_version(data):
    assert operations.register(data / "finetuned", "bert-tiny-sst2").version == 1


def test_versions_lead_to_their_runs_and_metrics(data):
    client = open_client()
    experiments = {experiment.name: experiment.experiment_id for experiment in client.search_experiments()}
    assert {"bert", "finetuning", "pretraining"} <= set(experiments)
    run_id = operations.get_version("models:/bert-tiny/1").run_id
    assert client.get_run(run_id).info.experiment_id == experiments["pretraining"]
    assert [metric.step for metric in client.get_metric_history(run_id, "held_out/mlm_loss")] == [10, 20]


def test_old_corpus_gives_the_old_vocabulary(data, tmp_path):
    words = f"vocab {data}/corpus --output {tmp_path}/vocabulary --vocab-size 120 --num-unused 3"
    assert main(words.split()) == 0
    assert (tmp_path / "vocabulary" / "vocab.txt").read_text() == (data / "vocabulary" / "vocab.txt").read_text()


def test_old_corpus_gives_the_old_instances(data, tmp_path):
    earlier = load_manifest(data / "instances")
    assert earlier.format_version == 1
    config = InstancesConfig(**earlier.configuration)
    present = build_instances(data / "corpus", data / "vocabulary", tmp_path / "instances", config, ["--workers", "1"])
    for split in ("train", "held_out"):
        old, new = InstanceSplit(data / "instances", split), InstanceSplit(present.path, split)
        assert [group.num_rows for group in old.groups] == [group.num_rows for group in new.groups]
        for left, right in zip(old.groups, new.groups):
            assert_same(old.read(left), new.read(right))


def test_flipped_bit_of_old_instances_is_found(data, tmp_path):
    name = InstanceSplit(data / "instances", "train").groups[0].path.relative_to(data / "instances").as_posix()
    for directory in with_flipped_bits(data / "instances", tmp_path / "copy", name):
        with pytest.raises(ArtifactError, match=rf"{name}: the file was changed or damaged: its sha256 is"):
            InstanceSplit(directory, "train")


def test_preempted_training_resumes_to_the_same_loss(data, capsys):
    words = "pretrain --config run.yaml --output data/preempted --device cpu --resume"
    assert main(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 20
    assert {"step": 7, "event": "resume"}.items() <= next(
        line for line in read_lines(data / "preempted") if line["event"] == "resume"
    ).items()
    losses = [
        load_manifest(data / output / "model", verify="sha256").counts["held_out/mlm_loss"]
        for output in ("preempted", "pretraining")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_interrupted_search_starts_over_and_its_trials_are_removed(data):
    (left,) = data.glob(".trials-*")
    # d30a3fd identifies trials without processor and kernels, on which their numbers depend: they are not mixed.
    settings = ["max_seq_length=32", "learning_rates=[3e-3]", "batch_sizes=[8]", "epochs=[15]", "seeds=[1,2]"]
    words = "finetune sst2 --data data/glue --model data/pretraining/model --output data/interrupted --workers 1"
    assert main([*words.split(), *settings]) == 0
    assert load_manifest(data / "interrupted", verify="sha256").provenance["resumed_trials"] == 0
    (kept,) = data.glob(".trials-*")
    assert kept != left
