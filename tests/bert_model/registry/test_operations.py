"""Only a better, sound and intact version becomes champion; foreign names and files are refused."""

import contextlib
import dataclasses
import errno
import itertools
import json
import multiprocessing
import os
import pickle
import re
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import requests
import tiny_tasks
import torch
from mlflow import MlflowClient, MlflowException
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from safetensors.torch import load_file, save_file

from bert_model.cli import main
from bert_model.conversion.vocabulary_transfer import adapt_model
from bert_model.inference.predict import load_predictor
from bert_model.pretraining.fast_exam import input_of_pairs
from bert_model.registry import artifacts, operations
from bert_model.registry.client import registry_lock
from bert_model.registry.model_card import card_problem, description_of, readme_problem, write_readme
from bert_model.registry.promotion import GateConfig
from bert_model.registry.resolve import resolve_model
from bert_model.registry.versions import EXAM_ACCURACY, EXAM_FOR_CHOOSING, RegisteredVersion, Version, describe_model
from bert_model.training.distributed import resolve_precision
from bert_model.zero_shot.exam import take_exam
from bert_pipeline.errors import ArtifactError, DiskFullError, InputError, PromotionError, UnavailableError, UsageError
from bert_pipeline.exam.pairs import PAIRS_NAME, Pair, write_pairs
from bert_pipeline.manifest import input_of, load_manifest, publishing
from bert_pipeline.vocabulary.tokenizer import Tokenizer

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_tasks.make_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, base):
    """A weak and a strong model of the same task, scored on the same data."""
    root = tmp_path_factory.mktemp("trained")
    for name, epochs in (("weak", 1.0), ("strong", 8.0)):
        tiny_tasks.tune("stsb", base, root / name, epochs=[epochs])
    scores = [
        json.loads((root / name / "task.json").read_text())["scores"]["stsb/dev/spearman"]
        for name in ("weak", "strong")
    ]
    assert scores[0] < scores[1], "the tests need a better and a worse model"
    return root


def register(directory, name, **tags):
    return operations.register(directory, name, tags={"license": "Apache-2.0", **tags})


def stored_beside(home, version, file):
    return next(home.glob(f"artifacts/models/{version.model_id}/artifacts/{file}"))


def stored_model(home, version):
    return stored_beside(home, version, "artifacts/*")


def meanwhile(monkeypatch, request, act, after=0):
    """Let another client act once, before the registry's client sends such a request, `after` others of it."""
    real, calls = getattr(MlflowClient, request), []

    def send(client, *arguments, **settings):
        calls.append(arguments)
        if len(calls) == after + 1:
            act(client)
        return real(client, *arguments, **settings)

    monkeypatch.setattr(MlflowClient, request, send)


def lose(_client):
    raise MlflowException("the database is locked")


@pytest.fixture
def name(home):
    """A name that no other test registers."""
    return f"bert-tiny-{next(NUMBERS)}"


def aliases_of(name):
    return {alias: version.version for version in operations.list_models(name) for alias in version.aliases}


def test_better_version_becomes_champion_and_rollback_restores(home, trained):
    name = operations.model_name("tiny", "stsb")
    register(trained / "weak", name)
    assert operations.promote(name).require().promoted
    second = register(trained / "strong", name, dump="samplewiki-1")
    assert aliases_of(name) == {"candidate": 2, "champion": 1}
    decision = operations.promote(name, dry_run=True)
    assert decision.passed
    assert aliases_of(name)["champion"] == 1  # a dry run moves nothing
    assert operations.promote(name).require().promoted
    assert aliases_of(name) == {"candidate": 2, "champion": 2, "previous": 1}
    assert second.tags["dump"] == "samplewiki-1"
    assert operations.get_version(f"models:/{name}@champion").tags["promotion"] == "passed"
    stored = json.loads(stored_beside(home, second, "promotion.json").read_text())
    assert [gate["name"] for gate in stored["gates"]][-2:] == ["better", "no_task_worse"]
    assert stored["tasks"][0]["champion"]["version"] == 1
    table = stored_beside(home, second, "promotion.txt").read_text()
    assert all(gate["name"] in table for gate in stored["gates"])
    assert table.rstrip().endswith("bert-tiny-stsb version 2 is champion")
    assert operations.rollback(name).version == 1
    assert aliases_of(name) == {"candidate": 2, "champion": 1, "previous": 2}
    assert operations.promote(name, 2).refused_by == ("not_rolled_back",)  # a promotion that was undone is not repeated
    assert operations.rollback(name).version == 2
    assert operations.promote(name, 1, dry_run=True).refused_by[0] == "not_rolled_back"


@pytest.mark.parametrize("sent", [0, 1])
def test_interrupted_rollback_is_completed_by_another(home, name, trained, monkeypatch, sent):
    for model in ("weak", "strong"):
        register(trained / model, name)
        operations.promote(name).require()
    with monkeypatch.context() as patched:
        meanwhile(patched, "set_registered_model_alias", lose, after=sent)
        with pytest.raises(UnavailableError, match="the database is locked"):
            operations.rollback(name)
    with contextlib.suppress(PromotionError):  # there may be nothing left to do
        operations.rollback(name)
    assert aliases_of(name)["champion"] == 1
    assert operations.promote(name, 2).refused_by == ("not_rolled_back",)


def test_promotion_that_was_interrupted_after_its_move_is_recorded_once(home, name, trained, monkeypatch):
    for model in ("weak", "strong"):
        register(trained / model, name)
        if model == "weak":
            operations.promote(name).require()
    with monkeypatch.context() as patched:
        meanwhile(patched, "log_model_artifacts", lose, after=1)
        with pytest.raises(UnavailableError, match="the database is locked"):
            operations.promote(name)
    assert aliases_of(name)["champion"] == 2
    version = operations.get_version(f"models:/{name}@champion")
    stored = json.loads(stored_beside(home, version, "promotion.json").read_text())
    assert stored["interval"]
    again = operations.promote(name).require()
    assert (again.promoted, again.champion) == (True, 1)
    file = stored_beside(home, version, "promotion.json")
    assert json.loads(file.read_text()) == stored | {"promoted": True}
    assert stored_beside(home, version, "promotion.txt").read_text().rstrip().endswith("version 2 is champion")
    written = file.stat().st_mtime_ns
    assert operations.promote(name).outcome().endswith("is champion already")
    assert file.stat().st_mtime_ns == written
    assert aliases_of(name) == {"candidate": 2, "champion": 2, "previous": 1}


def test_decision_that_was_cut_off_is_none(home, name, trained):
    file = stored_beside(home, register(trained / "weak", name), "*")
    assert operations.promote(name).promoted
    file = next(file.parent.glob("promotion.json"))
    assert operations.describe_move(name, 1)[1].promoted
    file.write_text(file.read_text()[:40])
    assert operations.describe_move(name, 1)[1] is None


def test_waiver_of_a_rollback_holds_until_the_next_one(home, name, trained):
    for model in ("weak", "strong"):
        register(trained / model, name)
        operations.promote(name).require()
    operations.rollback(name)
    waiving = GateConfig(waived_gates=("not_rolled_back",))
    assert operations.promote(name, 2, config=waiving).promoted
    assert not operations.get_version(f"models:/{name}@champion").rolled_back
    operations.rollback(name)
    assert operations.promote(name, 2).refused_by == ("not_rolled_back",)


def test_worse_version_is_refused_and_the_champion_stays(home, name, trained):
    register(trained / "strong", name)
    operations.promote(name).require()
    register(trained / "weak", name)
    decision = operations.promote(name, config=GateConfig(tolerance=1000.0))
    assert decision.refused_by == ("better",)
    with pytest.raises(PromotionError, match=r"version 2 is not promoted \(better: .*version 1 stays champion"):
        decision.require()
    assert aliases_of(name)["champion"] == 1
    assert "REFUSED" in decision.table()


def test_command_line_sets_gates_and_dry_run_prints_the_table(home, name, trained, capsys):
    register(trained / "weak", name)
    assert main(["promote", name, "min_seeds=2", "--dry-run"]) == 1
    assert "stsb: 1 seeds, expected at least 2" in capsys.readouterr().out
    assert main(["promote", name, "--dry-run"]) == 0
    assert "may become champion" in capsys.readouterr().out
    assert "champion" not in aliases_of(name)
    assert main(["promote", name, "marginn=1"]) == 2
    assert "did you mean 'margin'" in capsys.readouterr().err
    assert main(["promote", name, "retraining_margin=-2"]) == 2
    assert "retraining_margin is that of automatic runs; give margin" in capsys.readouterr().err


def write_rows(path, texts):
    rows = [f"{text}\t{index % 2}\n" for index, text in enumerate(texts)]
    path.write_text("sentence\tlabel\n" + "".join(rows))


def test_from_finetuning_to_the_champions_answers_by_commands(home, tmp_path, capsys):
    (tmp_path / "SST-2").mkdir()
    adjectives = (tiny_tasks.BAD, tiny_tasks.GOOD)
    words = [f"the {tiny_tasks.NOUNS[index % 4]} was {adjectives[index % 2][index // 4]} ." for index in range(16)]
    write_rows(tmp_path / "SST-2" / "train.tsv", words)
    write_rows(tmp_path / "SST-2" / "dev.tsv", [text.removesuffix(" .") for text in words])
    shape = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    model = tiny_tasks.make_model(tmp_path / "tiny", **shape)
    finetune_words = f"finetune sst2 --data {tmp_path} --model {model} --output {tmp_path / 'out'} --workers 0"
    settings = ["max_seq_length=32", "learning_rates=[1e-3]", "batch_sizes=[8]", "epochs=[15]", "seeds=[1,2]"]
    assert main([*finetune_words.split(), *settings]) == 0
    assert (tmp_path / "out" / "README.md").is_file()
    entry = json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]["sst2/dev/accuracy"]

    capsys.readouterr()
    assert main(["register", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.out == "bert-tiny-sst2 version 1 is candidate\n"
    assert "names no license" in printed.err
    assert main(["promote", "bert-tiny-sst2", "--dry-run"]) == 1
    assert main(["register", str(tmp_path / "out"), "--license", "apache-2.0"]) == 0  # the same version, licensed
    (version,) = operations.list_models("bert-tiny-sst2")
    assert version.license == "apache-2.0"
    assert main(["register", str(tmp_path / "out"), "--license", "mit"]) == 0  # another one replaces it
    assert operations.list_models("bert-tiny-sst2")[0].license == "mit"
    readme = tmp_path / "out" / "README.md"
    readme.write_text(readme.read_text().replace("license: unknown", "license: apache-2.0"))
    assert main(["register", str(tmp_path / "out")]) == 0  # that of the file is no order to replace it
    assert operations.list_models("bert-tiny-sst2")[0].license == "mit"
    assert main(["register", str(tmp_path / "out"), "--name", "bert-tiny-again"]) == 0
    assert operations.list_models("bert-tiny-again")[0].license == "apache-2.0"
    assert main(["register", str(tmp_path / "out"), "--license", "apache-2.0"]) == 0
    (version,) = operations.list_models("bert-tiny-sst2")
    assert "Weights: apache-2.0." in stored_beside(home, version, "model_card.md").read_text()
    assert "Weights: apache-2.0." in version.card_text
    assert float(version.tags["score"]) == entry["mean"]
    assert version.document.score.by_seed == dict(zip((1, 2), entry["values"]))
    capsys.readouterr()
    assert main(["models"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("bert-tiny-sst2 ")]
    assert f"  {entry['mean']:.2f} ± {entry['sd']:.2f} (2) " in row
    assert main(["promote", "bert-tiny-sst2", "waived_gates=[beats_baseline]"]) == 0  # of two seeds on 16 examples
    (tmp_path / "in.txt").write_text("the film was lovely .\n")
    answer = ["--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "answers.jsonl")]
    assert main(["predict", "sst2", "--model", "models:/bert-tiny-sst2@champion", *answer]) == 0
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 1


def edited(directory, target, change):
    """Publish a copy of a model directory with a change in it, and with the hashes of the changed files."""
    manifest = load_manifest(directory)
    settings = {"configuration": manifest.configuration, "inputs": manifest.inputs}
    with publishing(target, kind=manifest.kind, **settings) as draft:
        for name in manifest.files:
            (draft.path / name).parent.mkdir(exist_ok=True)
            shutil.copy(directory / name, draft.path / name)
        change(draft.path)
        draft.counts = manifest.counts
    return target


def _rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


KEY = "stsb/dev/spearman"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (
            "results.json",
            lambda found: found["metrics"][KEY].update(mean=95.5, values=[95.5]),
            f"found {KEY} 95.5000, expected .* as computed from statistics.json",
        ),
        ("task.json", lambda found: found["scores"].update({KEY: 95.5}), f"found {KEY} 95.5000, expected"),
        ("statistics.json", lambda found: found.update(seeds=[7]), f"is of another score than {KEY}"),
        ("statistics.json", None, "has no statistics.json, from which its score is computed; fine-tune it again"),
    ],
    ids=["results", "task", "statistics", "without"],
)
def test_score_that_its_statistics_do_not_give_is_not_registered(home, name, trained, tmp_path, file, change, words):
    def spoil(path):
        _rewrite(path / file, change) if change else (path / file).unlink()

    directory = edited(trained / "weak", tmp_path / "edited", spoil)
    with pytest.raises(ArtifactError, match=words):
        register(directory, name)
    with pytest.raises(UsageError, match="no such registered model"):
        operations.promote(name)


def test_statistics_are_stored_with_the_version_and_decide(home, name, trained):
    register(trained / "weak", name)
    waiving = GateConfig(waived_gates=("beats_baseline",))
    assert operations.promote(name, config=waiving).promoted
    version = register(trained / "strong", name)
    file = stored_beside(home, version, "statistics.json")
    assert file.read_bytes() == (trained / "strong" / "statistics.json").read_bytes()
    paired = operations.promote(name, dry_run=True).interval
    file.write_text("{}")  # it is no longer what was registered: the standard errors stand for it
    apart = operations.promote(name, dry_run=True).interval
    assert apart != paired


def test_score_tag_is_the_mean_and_not_the_best_seed(trained, tmp_path):
    def change(path):
        scores = {"mean": 32.7, "sd": 18.9, "seeds": [1, 2, 3], "values": [50.3, 34.9, 12.9]}
        _rewrite(path / "results.json", lambda found: found["metrics"][KEY].update(scores))
        _rewrite(path / "task.json", lambda found: found["scores"].update({KEY: 50.3}))

    document = describe_model(load_manifest(edited(trained / "weak", tmp_path / "copy", change)))
    assert (document.tags()["score"], document.score.sd, document.score_of_weights) == ("32.7", 18.9, 50.3)
    version = RegisteredVersion(name="bert-tiny-stsb", version=1, tags=document.tags(), document=document)
    assert "32.70 ± 18.90 (3)" in operations.models_table([version])


def test_model_of_no_presets_size_needs_a_name(home, trained, capsys):
    assert main(["register", str(trained / "weak")]) == 2
    assert "1 layers of width 32 with 2 heads are none of the sizes tiny, mini" in capsys.readouterr().err
    assert main(["register", str(trained / "weak"), "--name", "bert-mine-stsb"]) == 0


def test_score_on_a_generated_sample_has_no_figure_of_the_paper(home, trained, base, tmp_path):
    assert register(trained / "weak", "bert-tiny-real").document.score.paper
    data = dataclasses.replace(tiny_tasks.task_data("stsb"), generated=True)
    tiny_tasks.tune(data, base, tmp_path / "out", epochs=[1.0])
    assert json.loads((tmp_path / "out" / "results.json").read_text())["metrics"]["stsb/dev/spearman"]["paper"] is None
    version = operations.register(tmp_path / "out", "bert-tiny-sample")
    assert version.tags["generated_sample"] == "true"
    assert version.document.score.paper is None


def test_name_of_another_task_is_refused(home, name, trained):
    register(trained / "weak", name)
    with operations.registry_client() as client:
        client.set_model_version_tag(name, "1", "task", "rte")
    with pytest.raises(UsageError, match=f"{name}: its versions are of rte, found a model of stsb"):
        register(trained / "strong", name)
    assert aliases_of(name) == {"candidate": 1}


def test_same_content_is_registered_once_and_downloaded_bit_for_bit(home, name, trained):
    for _ in range(2):
        assert register(trained / "weak", name).version == 1
    assert len(operations.list_models(name)) == 1
    local = resolve_model(f"models:/{name}@candidate")
    assert load_manifest(local, verify="sha256").sha256 == load_manifest(trained / "weak").sha256
    assert operations.download(f"models:/{name}/1") == local  # from the cache
    next(local.glob("*.safetensors")).write_bytes(b"spoiled")
    assert load_manifest(operations.download(f"models:/{name}/1"), verify="sha256")  # downloaded again


def test_version_that_several_want_is_fetched_once(home, name, trained, monkeypatch):
    register(trained / "weak", name)
    shutil.rmtree(home / "cache" / "models", ignore_errors=True)
    fetched, download = [], artifacts._download

    def download_slowly(client, version, scratch):
        fetched.append(version.version)
        time.sleep(0.5)
        return download(client, version, scratch)

    monkeypatch.setattr(artifacts, "_download", download_slowly)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(operations.download, [f"models:/{name}/1"] * 2)
    assert first == second
    assert fetched == [1]


def test_damaged_version_is_neither_promoted_nor_downloaded(home, name, trained):
    version = register(trained / "strong", name)
    weights = stored_model(home, version) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # one flipped bit, which safetensors loads silently
    weights.write_bytes(bytes(data))
    assert "intact" in operations.promote(name).refused_by
    shutil.rmtree(home / "cache", ignore_errors=True)
    with pytest.raises(ArtifactError, match="was changed or damaged"):
        operations.download(f"models:/{name}/1")
    # The same content, registered again, gets a version that is whole.
    assert register(trained / "strong", name).version == 2
    assert operations.promote(name).promoted
    assert register(trained / "strong", name).version == 2


def test_damaged_champion_is_replaced_by_its_copy(home, name, trained):
    register(trained / "weak", name)
    assert operations.promote(name).promoted
    version = register(trained / "strong", name)
    assert operations.promote(name).promoted
    (stored_model(home, version) / "model.safetensors").unlink()
    assert register(trained / "strong", name).version == 3
    assert operations.promote(name).require().promoted
    assert aliases_of(name) == {"candidate": 3, "champion": 3, "previous": 1}
    assert operations.rollback(name).version == 1
    # What was rolled back is not promoted under another number.
    stored = stored_model(home, operations.get_version(f"models:/{name}/3"))
    shutil.rmtree(stored)
    shutil.copytree(trained / "weak", stored)  # intact, but another model
    assert "as registered; it was replaced" in operations.promote(name, 3, dry_run=True).table()
    assert register(trained / "strong", name).version == 4
    assert operations.promote(name).refused_by == ("not_rolled_back",)


def test_connection_that_is_lost_is_no_damage(home, name, trained, monkeypatch):
    register(trained / "weak", name)

    def lose(*_arguments, **_settings):
        raise ConnectionError("Connection reset by peer")

    with monkeypatch.context() as patched:
        patched.setattr(LocalArtifactRepository, "download_artifacts", lose)
        with pytest.raises(UnavailableError, match="Connection reset by peer"):
            register(trained / "weak", name)
    assert register(trained / "weak", name).version == 1


def test_registration_that_waits_too_long_may_be_tried_again(home, trained, monkeypatch):
    monkeypatch.setattr("bert_model.registry.client.LOCK_SECONDS", 0.1)
    with (
        registry_lock("bert-tiny-locked"),
        ThreadPoolExecutor(1) as other,
        pytest.raises(UnavailableError, match="another registration or promotion has held"),
    ):
        other.submit(register, trained / "weak", "bert-tiny-locked").result()


def test_tracking_server_that_fails_gives_no_model_another_run(home, base, tmp_path, monkeypatch):
    with publishing(tmp_path / "model", kind="pretrained_model", configuration={}, inputs={}) as draft:
        shutil.copytree(base, draft.path, dirs_exist_ok=True)
        draft.counts = {"steps": 1}
        draft.provenance = {"mlflow_run_id": "0" * 32}

    def fail(*_):
        raise MlflowException("the database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, "get_run", fail)
        with pytest.raises(UnavailableError, match="the database is locked"):
            register(tmp_path / "model", "bert-tiny-unavailable")
    assert register(tmp_path / "model", "bert-tiny-unavailable").version == 1  # the run is of another store


class Planted:
    def __reduce__(self):
        return (Path.touch, (Path(os.environ["BERT_HOME"]) / "planted-code-ran",))


def test_planted_pickle_is_refused_and_never_run(home, name, trained, tmp_path):
    version = register(trained / "weak", name)
    (stored_model(home, version) / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    shutil.rmtree(home / "cache", ignore_errors=True)
    assert "intact" in operations.promote(name).refused_by
    with pytest.raises(ArtifactError, match="pytorch_model.bin"):
        operations.download(f"models:/{name}/1")
    shutil.copytree(trained / "weak", tmp_path / "spoiled")
    (tmp_path / "spoiled" / "model.pkl").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(ArtifactError, match="model.pkl"):
        operations.register(tmp_path / "spoiled", name)
    assert not (home / "planted-code-ran").exists()


def test_directory_of_another_kind_is_refused(home, tmp_path):
    with publishing(tmp_path / "corpus", kind="corpus", configuration={}, inputs={}) as draft:
        (draft.path / "a.json").write_text("{}")
    with pytest.raises(ArtifactError, match="is a corpus"):
        operations.register(tmp_path / "corpus", "bert-tiny-corpus")


@pytest.mark.parametrize(
    "name",
    ["../../etc", "bert-tiny/../x", "bert-Tiny", "bert-tiny%2f", "bert-tiny\n", "sst2", "", "bert-" + "x" * 300],
)
def test_invalid_name_is_refused_before_the_registry_is_opened(name, monkeypatch):
    monkeypatch.setattr(operations, "registry_client", None)
    for operation in (operations.promote, operations.rollback, lambda n: operations.register("x", n)):
        with pytest.raises(UsageError, match="expected bert-<size>"):
            operation(name)


@pytest.mark.parametrize("reference", ["models:/bert-tiny", "models:/../x@champion", "models:/bert-tiny@a/b"])
def test_reference_outside_the_pattern_is_refused(reference):
    with pytest.raises(UsageError):
        operations.download(reference)


def test_unknown_name_alias_and_version_are_errors(home, trained):
    register(trained / "weak", "bert-tiny-known")
    with pytest.raises(UsageError, match="bert-tiny-unknown: no such registered model"):
        operations.promote("bert-tiny-unknown")
    with pytest.raises(UsageError, match=r"has no alias 'champion' \(aliases: candidate\)"):
        operations.download("models:/bert-tiny-known@champion")
    with pytest.raises(UsageError, match=r"has no version 7 \(versions: 1\)"):
        operations.promote("bert-tiny-known", 7)
    with pytest.raises(PromotionError, match="no previous champion"):
        operations.rollback("bert-tiny-known")


def _pretrained(directory, base, loss, data="1", pairs=(), **counts):
    """Publish a pre-trained model that was examined on some pairs, or on 20 that it does not keep."""
    instances = directory.parent / f"instances-{data}"
    with publishing(instances, kind="instances", configuration={"data": data}, inputs={}):
        pass
    exam = input_of_pairs(pairs) if pairs else {"name": "20 pairs", "sha256": "p" * 64}
    inputs = {"instances": input_of(load_manifest(instances)), "exam_report": exam}
    with publishing(directory, kind="pretrained_model", configuration={"seed": loss}, inputs=inputs) as draft:
        shutil.copytree(base, draft.path, dirs_exist_ok=True)
        if pairs:
            write_pairs(draft.path / PAIRS_NAME, pairs)
        draft.counts = {"steps": 10, "held_out/mlm_loss": loss, "held_out/mlm_accuracy": 50.0}
        draft.counts |= {EXAM_ACCURACY: 70.0 - loss, EXAM_FOR_CHOOSING: 75.0 - loss} | counts
    return directory


@pytest.fixture(scope="module")
def two_pretrained(home, tmp_path_factory):
    """Two pre-trained models on different dumps, each fine-tuned on stsb; the second better and registered later."""
    root = tmp_path_factory.mktemp("pretrained")
    for number, epochs in ((1, 1.0), (2, 8.0)):
        start = tiny_tasks.make_model(root / f"weights-{number}")
        model = _pretrained(root / f"model-{number}", start, 5.0 - number, data=str(number))
        tiny_tasks.tune("stsb", model, root / f"stsb-{number}", epochs=[epochs])
    return root


def test_pretrained_model_is_judged_by_its_fine_tunings(two_pretrained):
    name = operations.model_name("mini")
    first = register(two_pretrained / "model-1", name, dump="enwiki-20261001")
    refused = operations.promote(name)
    assert refused.refused_by == ("scored",)
    assert "none of its fine-tunings is registered" in refused.table()
    assert operations.why_no_champion(name) == ("version 1 is refused (scored: none of its fine-tunings is registered)")
    assert operations.why_no_champion("bert-tiny-never") == "is not registered"
    register(two_pretrained / "stsb-1", f"{name}-stsb")
    assert operations.promote(name).require().promoted  # the first one needs scores but has no champion to beat
    assert operations.why_no_champion(name) == ""
    assert re.search(r"\| stsb +\| dev/spearman +\|", operations.get_version(f"models:/{name}/1").card_text)
    assert "- Exam on the minimal pairs for reporting: 66.0 of 100" in first.card_text
    assert "- Exam on a few minimal pairs, for choosing a checkpoint: 71.0 of 100" in first.card_text
    second = register(two_pretrained / "model-2", name, dump="enwiki-20261101")
    # Held-out losses of two dumps do not compare.
    assert first.document.score.data_sha256 != second.document.score.data_sha256
    assert set(operations.promote(name, dry_run=True).refused_by) == {
        "scored",
        "comparable",
        "covers_champion",
        "better",
    }
    register(two_pretrained / "stsb-2", f"{name}-stsb")
    decision = operations.promote(name, dry_run=True)
    assert decision.passed
    rows = {row["task"]: row for row in decision.task_rows()}
    assert float(rows["average"]["change"].partition(",")[0]) > 0
    assert decision.interval[0] > 0
    assert "67.00 against the champion's 66.00 (+1.00)" in decision.table()  # the exams, on the same pairs
    assert aliases_of(name)["champion"] == 1
    assert operations.promote(name).require().promoted
    assert aliases_of(name) == {"candidate": 2, "champion": 2, "previous": 1}


def test_pretrained_model_is_judged_by_the_last_registration_of_a_task(two_pretrained, tmp_path):
    name = operations.model_name("small")
    version = register(two_pretrained / "model-1", name)
    tiny_tasks.tune("stsb", two_pretrained / "model-1", tmp_path / "stsb", epochs=[2.0])
    for directory in (two_pretrained / "stsb-1", tmp_path / "stsb", two_pretrained / "stsb-1"):
        score = register(directory, f"{name}-stsb").scores[0]
        with operations.registry_client() as client:
            assert operations.with_finetuning_scores(client, version).scores == (score,)
    assert score.version == 1  # its content was registered before the second version, and again after it


@pytest.fixture(scope="module")
def two_examined(home, base, tmp_path_factory):
    """The pairs and directories of two versions of bert-tiny-exams, which were examined on different pairs."""
    name, tmp_path, pairs, directories = "bert-tiny-exams", tmp_path_factory.mktemp("examined"), {}, {}
    for number, words in ((1, tiny_tasks.GOOD), (2, tiny_tasks.BAD)):
        rows = [(f"the {noun} was {word} .", f"{word} the was {noun} .") for noun in tiny_tasks.NOUNS for word in words]
        pairs[number] = [
            Pair(pair_id=str(row), kind="swap", good=(good,), bad=(bad,)) for row, (good, bad) in enumerate(rows)
        ]
        directory = tmp_path / f"model-{number}"
        scores = {EXAM_ACCURACY: 40.0}
        directories[number] = _pretrained(directory, base, 4.0, data=str(number), pairs=pairs[number], **scores)
        register(directories[number], name)
    return pairs, directories


@pytest.fixture
def examined_champion(two_examined):
    with operations.registry_client() as client:
        client.set_registered_model_alias("bert-tiny-exams", "champion", "1")
    yield "bert-tiny-exams"
    with operations.registry_client() as client:
        client.delete_registered_model_alias("bert-tiny-exams", "champion")


def exam_gate(decision):
    (gate,) = [gate for gate in decision.gates if gate.name == "exam_not_worse"]
    return gate


def test_champion_is_examined_on_the_pairs_of_a_candidate_of_another_dump(two_examined, examined_champion):
    pairs, directories = two_examined
    decision = operations.promote(examined_champion, dry_run=True)
    expected = take_exam(directories[1], pairs[2]).mean  # not the 40 of its own pairs
    assert f"40.00 against the champion's {expected:.2f}" in exam_gate(decision).detail


def test_champion_that_cannot_be_examined_refuses_the_candidate(examined_champion, monkeypatch):
    def fail(error):
        def fetch(client, version):
            if version.version == 1:
                raise error("the connection was lost")
            return artifact(client, version)

        monkeypatch.setattr(artifacts, "fetch", fetch)

    artifact = artifacts.fetch
    fail(ArtifactError)
    gate = exam_gate(operations.promote(examined_champion, dry_run=True))
    assert not gate.passed
    assert gate.detail == "the champion cannot be examined: the connection was lost"
    waiving = GateConfig(waived_gates=("exam_not_worse",))
    assert exam_gate(operations.promote(examined_champion, dry_run=True, config=waiving)).waived
    fail(UnavailableError)
    with pytest.raises(UnavailableError, match="the connection was lost"):
        operations.promote(examined_champion, dry_run=True)


def test_champion_that_cannot_score_the_pairs_is_not_compared(examined_champion, monkeypatch):
    def refuse(*_):
        raise InputError("none of the 40 pairs can be scored")

    monkeypatch.setattr(artifacts, "take_exam", refuse)
    gate = exam_gate(operations.promote(examined_champion, dry_run=True))
    assert gate.passed
    assert gate.detail == "not compared: the champion was examined on other pairs"


def test_champion_that_appears_during_the_inspection_is_not_left_unexamined(two_examined, monkeypatch):
    name = "bert-tiny-exams"
    move = lambda client: client.set_registered_model_alias(name, "champion", "1")  # noqa: E731
    meanwhile(monkeypatch, "search_model_versions", move, after=1)  # before the version is looked up again
    with pytest.raises(PromotionError, match="the champion changed while version 2 was inspected"):
        operations.promote(name, 2, dry_run=True)
    with operations.registry_client() as client:
        client.delete_registered_model_alias(name, "champion")


@pytest.fixture(scope="module")
def described(home, trained):
    """A version with lineage."""
    lineage = {"dump": "enwiki-20261101", "code_commit": "abc123", "corpus_sha256": "c" * 64, "dagster_run_id": "12ab"}
    return register(trained / "strong", "bert-tiny-described", **lineage)


def test_card_is_artifact_and_description_and_names_lineage(home, described):
    card = stored_beside(home, described, "model_card.md").read_text()
    assert described.card_text == description_of(card)
    assert card_problem(card) is None
    for words in ("enwiki-20261101", "abc123", "Weights: Apache-2.0", "majority", "stsb/dev/spearman", "dev set"):
        assert words in card, words


def test_tags_are_those_that_are_searched_and_the_document_is_a_file(home, described):
    assert set(described.tags) == {
        *("kind", "task", "metric", "score", "dump", "license", "degenerate", "own_split", "known"),
        *("content_sha256", "pretrained_model_sha256", "registered_at", "card_sha256"),
    }
    stored = Version.from_json(stored_beside(home, described, "version.json").read_text())
    assert stored == described.document
    assert {key: described.tags[key] for key in stored.tags()} == stored.tags()
    assert stored.lineage["corpus_sha256"] == "c" * 64
    assert stored.reference_logits
    found = operations.get_version("models:/bert-tiny-described@candidate")
    assert found.scores == (dataclasses.replace(stored.score, version=1),)


def test_registered_model_has_description_run_and_scores_by_data_set(described, trained):
    with operations.registry_client() as client:
        assert "fine-tuned for stsb" in client.get_registered_model(described.name).description
        model = client.get_logged_model(described.model_id)
        (registered,) = json.loads(model.tags["mlflow.modelVersions"])
        assert (registered["name"], int(registered["version"])) == (described.name, described.version)
        run = client.get_run(client.get_model_version(described.name, described.version).run_id)
        assert run.info.run_id == model.source_run_id
        assert client.get_experiment(run.info.experiment_id).name == "bert"  # it was trained without MLflow
        assert run.data.tags["mlflow.note.content"]
        (data,) = run.inputs.dataset_inputs
    results = json.loads((trained / "strong" / "results.json").read_text())
    assert (data.dataset.name, data.dataset.digest) == ("stsb-dev", results["dev_sha256"][:36])
    scores = {metric.key: (metric.value, metric.dataset_name) for metric in model.metrics}
    assert scores == {key: (entry["mean"], "stsb-dev") for key, entry in results["metrics"].items()}


def test_version_without_license_card_or_same_outputs_is_refused(home, name, trained, monkeypatch):
    version = operations.register(trained / "weak", name)
    assert operations.promote(name, dry_run=True).refused_by == ("licensed",)
    card = stored_beside(home, version, "model_card.md")
    card.write_text(card.read_text().replace("## Limits", "## Nothing"))
    assert operations.promote(name, dry_run=True).refused_by == ("intact", "licensed", "documented")
    card.unlink()
    assert "documented" in operations.promote(name, dry_run=True).refused_by
    monkeypatch.setattr(artifacts, "reference_logits", lambda directory: [0.0, 0.0])
    assert "reproduces_logits" in operations.promote(name, dry_run=True).refused_by


def test_outputs_are_compared_in_one_precision_on_all_processors(trained, tmp_path, monkeypatch):
    def change(path):
        _rewrite(path / "task.json", lambda found: found["configuration"].update(precision="auto"))
        tensors = load_file(path / "model.safetensors")
        tensors["classifier.weight"] *= 1000.0  # a large output, of which bfloat16 keeps fewer digits than are compared
        save_file(tensors, path / "model.safetensors", {"format": "pt"})

    model = edited(trained / "weak", tmp_path / "model", change)
    recorded = artifacts.reference_logits(model)
    # A processor with instructions for bfloat16.
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert resolve_precision("auto", torch.device("cpu")) == "bfloat16"
    assert artifacts.check_outputs(model, recorded) is None


def test_model_card_that_was_cut_off_or_changed_is_not_intact(home, name, trained):
    version = operations.register(trained / "weak", name, tags={"license": "Apache-2.0"})
    card = stored_beside(home, version, "model_card.md")
    whole = card.read_text()
    for damaged in (whole[:-40], whole.replace("0.", "9."), ""):
        card.write_text(damaged)
        decision = operations.promote(name, dry_run=True)
        assert "intact" in decision.refused_by
        assert "its model_card.md is cut off or was changed; register the model again" in decision.table()

    # Registered again, it is a version with a whole card, and so is one with another license.
    second = operations.register(trained / "weak", name, tags={"license": "MIT"}, replaces_license=True)
    assert second.version == version.version + 1
    assert card.read_text() == damaged  # of which no hash was taken
    assert not operations.promote(name, dry_run=True).refused_by
    assert (
        operations.register(trained / "weak", name, tags={"license": "CC0"}, replaces_license=True).version
        == second.version
    )
    assert "Weights: CC0." in stored_beside(home, second, "model_card.md").read_text()
    assert not operations.promote(name, dry_run=True).refused_by


@pytest.mark.parametrize("sent", [1, 2])
def test_card_whose_replacement_was_interrupted_is_intact(home, name, trained, monkeypatch, sent):
    version = register(trained / "weak", name)
    with monkeypatch.context() as patched:
        meanwhile(patched, "set_model_version_tag", lose, after=sent)
        with pytest.raises(UnavailableError, match="the database is locked"):
            operations.register(trained / "weak", name, tags={"license": "MIT"}, replaces_license=True)
    assert "intact" not in operations.promote(name, dry_run=True).refused_by
    again = operations.register(trained / "weak", name, tags={"license": "MIT"}, replaces_license=True)
    assert again.version == version.version
    assert "Weights: MIT." in stored_beside(home, version, "model_card.md").read_text()
    assert len(again.tags["card_sha256"]) == 64


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_license_whose_entry_was_interrupted_is_entered_by_the_next_registration(
    home, name, trained, monkeypatch, sent
):
    version = operations.register(trained / "weak", name)
    with monkeypatch.context() as patched:
        meanwhile(patched, "set_model_version_tag", lose, after=sent)
        with pytest.raises(UnavailableError, match="the database is locked"):
            register(trained / "weak", name)
    again = register(trained / "weak", name)
    assert (again.version, again.license) == (version.version, "Apache-2.0")
    card = stored_beside(home, version, "model_card.md").read_text()
    assert "Weights: Apache-2.0." in card
    assert again.card_text == description_of(card)
    assert operations.promote(name).promoted


def test_rollback_holds_if_the_registration_of_a_copy_is_interrupted(home, name, trained, monkeypatch):
    for model in ("weak", "strong"):
        register(trained / model, name)
        operations.promote(name).require()
    operations.rollback(name)
    stored_beside(home, operations.get_version(f"models:/{name}/2"), "model_card.md").unlink()  # a copy is needed
    with monkeypatch.context() as patched:
        meanwhile(patched, "set_model_version_tag", lose)
        with pytest.raises(UnavailableError, match="the database is locked"):
            register(trained / "strong", name)
    assert register(trained / "strong", name).version == 3
    assert operations.promote(name, 3).refused_by == ("not_rolled_back",)


def test_model_with_padded_embeddings_is_registered_and_predicts_tokens_only(home, tmp_path):
    rows = len(tiny_tasks.TOKENS) + 8
    start = tiny_tasks.make_model(tmp_path / "padded", vocab_size=rows)
    tensors = load_file(start / "model.safetensors")
    tensors["cls.predictions.bias"][-8:] = 100.0
    save_file(tensors, start / "model.safetensors", {"format": "pt"})
    model = _pretrained(tmp_path / "model", start, 4.0, data="padded")
    assert len(register(model, "bert-tiny-padded").document.reference_logits) > rows // 2
    assert "reproduces_logits" not in operations.promote("bert-tiny-padded", dry_run=True).refused_by
    (answer,) = load_predictor("mlm", [model]).answer([{"text": f"the [MASK] was {tiny_tasks.GOOD[0]} ."}])
    assert all(found["token"] in tiny_tasks.TOKENS for found in answer["masks"][0])
    assert sum(found["probability"] for found in answer["masks"][0]) > 0.1
    pair = Pair(pair_id="1", kind="swap", good=("the was .",), bad=("was the .",))
    assert take_exam(model, [pair]).mean in (0.0, 100.0)
    (tmp_path / "vocabulary").mkdir()
    Tokenizer.from_tokens([*tiny_tasks.TOKENS, "more"], True).save(tmp_path / "vocabulary")
    assert adapt_model(model, tmp_path / "vocabulary", tmp_path / "adapted").counts["vocab_size"] == rows - 7
    pytest.importorskip("onnxruntime")
    assert main(["export", str(model), "--output", str(tmp_path / "model.onnx")]) == 0


def test_readme_that_is_empty_or_cut_off_is_refused_at_registration(home, trained, tmp_path):
    model = shutil.copytree(trained / "weak", tmp_path / "model")
    readme = model / "README.md"
    write_readme(model, {"license": "mit"})
    whole = readme.read_text()
    assert readme_problem(model) is None
    places = [whole.index(words) for words in ("license:", "# model: ", "from transformers", "## Scores", "```yaml")]
    for damaged in ["", "  \n", *(whole[: place + 40] for place in places), whole[:-6]]:
        readme.write_text(damaged)
        with pytest.raises(ArtifactError, match=r"README\.md: is (empty|cut off); write it again, or remove it"):
            operations.register(model, "bert-tiny-readme")
    # Its owner's words are not judged.
    for other in ("# My model\n", "---\nlicense: mit\n---\n", whole.replace("## Curves", "## Pictures")):
        readme.write_text(other)
        assert readme_problem(model) is None


@pytest.mark.parametrize("content", ["", "{", '{"content_sha256": "another"}'], ids=["removed", "torn", "foreign"])
@pytest.mark.parametrize("cached", [True, False], ids=["cached", "new"])
def test_version_without_its_document_is_listed_but_not_promoted(home, name, trained, content, cached, request):
    file = stored_beside(home, register(trained / "weak", name), "version.json")
    file.write_text(content) if content else file.unlink()
    if not cached:
        shutil.rmtree(home / "cache" / "versions")
    assert "stsb/dev/spearman" in operations.models_table(operations.list_models(name))
    decision = operations.promote(name)
    assert {"intact", "reproduces_logits"} <= set(decision.refused_by)
    assert "version.json is missing, of an earlier version of the project, or was changed; regis" in decision.table()
    assert aliases_of(name) == {"candidate": 1}


def test_store_that_times_out_adds_no_version_and_refuses_none(home, name, trained, monkeypatch):
    register(trained / "weak", name)
    shutil.rmtree(home / "cache" / "versions")

    def time_out(*_arguments, **_settings):
        raise MlflowException("Read timed out.")

    with monkeypatch.context() as patched:
        patched.setattr(LocalArtifactRepository, "_download_file", time_out)
        for call in (lambda: register(trained / "weak", name), lambda: operations.promote(name)):
            with pytest.raises(UnavailableError, match=r"version 1: version\.json cannot be read .*timed out"):
                call()
    (version,) = operations.list_models(name)
    assert "promotion" not in version.tags
    assert operations.promote(name).promoted


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (requests.HTTPError("503 Server Error: Service Unavailable"), UnavailableError, "cannot be reached: HTTPError"),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFullError, r"home.*/artifacts: cannot be written: No"),
    ],
    ids=["server", "disk"],
)
def test_upload_that_fails_is_one_sentence_and_may_be_repeated(home, name, trained, monkeypatch, failure, kind, words):
    with monkeypatch.context() as patched:
        patched.setattr(LocalArtifactRepository, "log_artifacts", mock.Mock(side_effect=failure))
        with pytest.raises(kind, match=words):
            register(trained / "weak", name)
    assert operations.list_models(name) == []
    assert register(trained / "weak", name).version == 1
    with operations.registry_client() as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        (model,) = client.search_logged_models(experiments, filter_string=f"name = '{name}'")
    assert model.status == "READY"


def test_scores_have_the_step_of_the_published_checkpoint(home, base, tmp_path):
    with operations.registry_client() as client:
        run_id = client.create_run(client.create_experiment("chosen", tmp_path.as_uri())).info.run_id
        for step, loss in ((9, 3.0), (10, 4.0)):  # the last checkpoint is not the published one
            client.log_metric(run_id, "held_out/mlm_loss", loss, step=step)
    with publishing(tmp_path / "model", kind="pretrained_model", configuration={}, inputs={}) as draft:
        shutil.copytree(base, draft.path, dirs_exist_ok=True)
        draft.counts = {"steps": 10, "published_step": 9, "held_out/mlm_loss": 3.0}
        draft.provenance = {"mlflow_run_id": run_id}
    register(tmp_path / "model", "bert-tiny-chosen")
    with operations.registry_client() as client:
        history = client.get_metric_history(run_id, "held_out/mlm_loss")
    assert [(metric.step, metric.value) for metric in history] == [(9, 3.0), (10, 4.0)]


def test_move_by_other_means_is_of_nobody(home, name, trained):
    register(trained / "weak", name)
    operations.promote(name).require()
    register(trained / "strong", name)
    assert "@" in operations.describe_move(name, 1)[0]
    with operations.registry_client() as client:
        client.set_registered_model_alias(name, "champion", "2")
    assert operations.describe_move(name, 2)[0] == ""


def test_champion_moved_by_another_client_is_an_error(home, name, trained, monkeypatch):
    register(trained / "weak", name)
    operations.promote(name).require()
    register(trained / "strong", name)
    move = lambda client: client.set_registered_model_alias(name, "champion", "2")  # noqa: E731
    meanwhile(monkeypatch, "set_registered_model_tag", move)
    with pytest.raises(PromotionError, match="the champion changed while version 2 was inspected"):
        operations.promote(name, 2)


def test_of_two_machines_that_promote_at_once_one_notices(home, name, trained, monkeypatch):
    for model in ("weak", "strong"):
        register(trained / model, name)

    def move(client):  # after this machine has read the champion
        client.set_registered_model_tag(name, operations.MOVE_TAG, "of another machine")
        client.set_registered_model_alias(name, "champion", "1")

    with monkeypatch.context() as patched:
        meanwhile(patched, "set_registered_model_alias", move)
        with pytest.raises(PromotionError, match="another client moved the champion at the same time"):
            operations.promote(name, 2)


def test_rollback_that_another_client_overtakes_is_an_error(home, name, trained, monkeypatch):
    for model in ("weak", "strong"):
        register(trained / model, name)
        operations.promote(name).require()
    with monkeypatch.context() as patched:
        move = lambda client: client.set_registered_model_alias(name, "champion", "1")  # noqa: E731
        meanwhile(patched, "set_registered_model_tag", move)
        with pytest.raises(PromotionError, match="the champion changed while version 1 was inspected"):
            operations.rollback(name)
    assert aliases_of(name) == {"candidate": 2, "champion": 1, "previous": 1}
    # By now champion and previous are one version: there is nothing to go back to.
    with pytest.raises(PromotionError, match="no previous champion to go back to; nothing was changed"):
        operations.rollback(name)
    assert not operations.get_version(f"models:/{name}@champion").rolled_back


def test_locked_database_is_one_sentence(home, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}?timeout=0.1")  # MLflow's own: 5 s
    with contextlib.closing(sqlite3.connect(home / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert main(["models"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "mlflow.db" in line
    assert "refused or cannot be reached" in line
    assert "database is locked" in line
    assert main(["models"]) == 0


def _promote_in_process(home, name, version, queue):
    os.environ["BERT_HOME"] = home
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # which may have been set when the server of forks was started
    queue.put((version, operations.promote(name, version).promoted))


@pytest.mark.slow
def test_concurrent_promotions_keep_the_better_version(home, name, base, trained, tmp_path):
    register(trained / "weak", name)
    register(trained / "strong", name)
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    workers = [context.Process(target=_promote_in_process, args=(str(home), name, number, queue)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    outcomes = dict(queue.get(timeout=240) for _ in workers)
    for worker in workers:
        worker.join(30)
    assert outcomes[2]
    assert aliases_of(name)["champion"] == 2  # whichever came first
