"""The champion changes only for a better, sound, intact version, and names and files are our own."""

import json
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import pytest
import tiny_tasks

from bert_model import registry
from bert_model.finetuning import finetune
from bert_model.promotion import GateConfig, VersionFacts, decide, higher_is_better
from bert_model.trial_pool import TrialPool
from bert_model.weights import resolve_model
from bert_pipeline.errors import ArtefactError, PromotionError, UsageError
from bert_pipeline.manifest import input_of, load_manifest, publishing


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One MLflow store for all tests: each uses names of its own."""
    home = tmp_path_factory.mktemp("home")
    before = {name: os.environ.pop(name, None) for name in ("BERT_HOME", "MLFLOW_TRACKING_URI")}
    os.environ["BERT_HOME"] = str(home)
    yield home
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_tasks.make_model(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, base):
    """A weak and a strong model of the same task, scored on the same data."""
    root = tmp_path_factory.mktemp("trained")
    data = tiny_tasks.task_data("stsb")
    with TrialPool(num_workers=0) as pool:
        for name, epochs in (("weak", 1.0), ("strong", 8.0)):
            finetune(data, base, root / name, tiny_tasks.configuration(epochs=[epochs]), pool=pool, experiment="")
    scores = [
        json.loads((root / name / "task.json").read_text())["scores"]["stsb/dev/spearman"]
        for name in ("weak", "strong")
    ]
    assert scores[0] < scores[1], "the tests need a better and a worse model"
    return root


def aliases_of(name):
    return {alias: version.version for version in registry.list_models(name) for alias in version.aliases}


def test_better_version_becomes_champion_and_the_former_one_is_kept(home, trained):
    name = registry.model_name("tiny", "stsb")
    registry.register(trained / "weak", name)
    assert registry.promote(name).require().promoted
    second = registry.register(trained / "strong", name, tags={"dump": "samplewiki-1"})
    assert aliases_of(name) == {"candidate": 2, "champion": 1}
    decision = registry.promote(name, dry_run=True)
    assert decision.passed
    assert aliases_of(name)["champion"] == 1  # a dry run moves nothing
    assert registry.promote(name).require().promoted
    assert aliases_of(name) == {"candidate": 2, "champion": 2, "previous": 1}
    assert second.tags["dump"] == "samplewiki-1"
    stored = json.loads(registry.get_version(f"models:/{name}@champion").tags["promotion"])
    assert [gate["name"] for gate in stored["gates"]][-1] == "better"
    assert registry.rollback(name).version == 1
    assert aliases_of(name) == {"candidate": 2, "champion": 1, "previous": 2}


def test_worse_version_is_refused_by_name_and_the_champion_stays(home, trained):
    name = "bert-tiny-worse"
    registry.register(trained / "strong", name)
    registry.promote(name).require()
    registry.register(trained / "weak", name)
    decision = registry.promote(name)
    assert decision.refused_by == ("better",)
    with pytest.raises(PromotionError, match=r"version 2 is not promoted \(better: .*version 1 stays champion"):
        decision.require()
    assert aliases_of(name)["champion"] == 1
    assert "REFUSED" in decision.table()


def test_same_content_is_registered_once(home, trained):
    name = "bert-tiny-once"
    first = registry.register(trained / "weak", name)
    assert registry.register(trained / "weak", name).version == first.version == 1
    assert len(registry.list_models(name)) == 1


def test_downloaded_model_is_the_registered_one_bit_for_bit(home, trained):
    name = "bert-tiny-download"
    registry.register(trained / "weak", name)
    local = resolve_model(f"models:/{name}@candidate")
    assert load_manifest(local, verify="sha256").sha256 == load_manifest(trained / "weak").sha256
    assert registry.download(f"models:/{name}/1") == local  # from the cache
    next(local.glob("*.safetensors")).write_bytes(b"spoiled")
    assert load_manifest(registry.download(f"models:/{name}/1"), verify="sha256")  # fetched anew


def _stored(home, version):
    model_id = version.source.removeprefix("models:/")
    (directory,) = home.glob(f"artifacts/models/{model_id}/artifacts/artifacts/*")
    return directory


def test_damaged_version_is_neither_promoted_nor_downloaded(home, trained):
    name = "bert-tiny-damaged"
    version = registry.register(trained / "strong", name)
    weights = _stored(home, version) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1  # one flipped bit, which safetensors loads silently
    weights.write_bytes(bytes(data))
    assert registry.promote(name).refused_by == ("intact",)
    shutil.rmtree(home / "cache", ignore_errors=True)
    with pytest.raises(ArtefactError, match="was changed or damaged"):
        registry.download(f"models:/{name}/1")


class Planted:
    def __reduce__(self):
        return (Path.touch, (Path(os.environ["BERT_HOME"]) / "planted-code-ran",))


def test_planted_pickle_is_refused_and_never_run(home, trained, tmp_path):
    name = "bert-tiny-planted"
    version = registry.register(trained / "weak", name)
    (_stored(home, version) / "pytorch_model.bin").write_bytes(pickle.dumps(Planted()))
    shutil.rmtree(home / "cache", ignore_errors=True)
    assert registry.promote(name).refused_by == ("intact",)
    with pytest.raises(ArtefactError, match="pytorch_model.bin"):
        registry.download(f"models:/{name}/1")
    shutil.copytree(trained / "weak", tmp_path / "spoiled")
    (tmp_path / "spoiled" / "model.pkl").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(ArtefactError, match="model.pkl"):
        registry.register(tmp_path / "spoiled", name)
    assert not (home / "planted-code-ran").exists()


def test_directory_that_is_no_model_is_refused(home, tmp_path):
    with publishing(tmp_path / "corpus", kind="corpus", configuration={}, inputs={}) as draft:
        (draft.path / "a.json").write_text("{}")
    with pytest.raises(ArtefactError, match="is a corpus"):
        registry.register(tmp_path / "corpus", "bert-tiny-corpus")


@pytest.mark.parametrize(
    "name",
    ["../../etc", "bert-tiny/../x", "bert-Tiny", "bert-tiny%2f", "bert-tiny\n", "sst2", "", "bert-" + "x" * 300],
)
def test_name_outside_our_pattern_is_refused_before_the_registry_is_asked(name, monkeypatch):
    monkeypatch.setattr(registry, "_client", None)
    for operation in (registry.promote, registry.rollback, lambda n: registry.register("x", n)):
        with pytest.raises(UsageError, match="expected bert-<preset>"):
            operation(name)


@pytest.mark.parametrize("reference", ["models:/bert-tiny", "models:/../x@champion", "models:/bert-tiny@a/b"])
def test_reference_outside_the_pattern_is_refused(reference):
    with pytest.raises(UsageError):
        registry.download(reference)


def test_unknown_name_alias_and_version_are_named(home, trained):
    registry.register(trained / "weak", "bert-tiny-known")
    with pytest.raises(UsageError, match="bert-tiny-unknown: no such registered model"):
        registry.promote("bert-tiny-unknown")
    with pytest.raises(UsageError, match=r"has no alias 'champion' \(aliases: candidate\)"):
        registry.download("models:/bert-tiny-known@champion")
    with pytest.raises(UsageError, match=r"has no version 7 \(versions: 1\)"):
        registry.promote("bert-tiny-known", 7)
    with pytest.raises(PromotionError, match="no previous champion"):
        registry.rollback("bert-tiny-known")


def _pretrained(directory, base, loss, data="1"):
    source = load_manifest(_with_manifest(directory.parent / f"instances-{data}", data))
    with publishing(
        directory, kind="pretrained_model", configuration={"seed": loss}, inputs={"instances": input_of(source)}
    ) as draft:
        shutil.copytree(base, draft.path, dirs_exist_ok=True)
        draft.counts = {"steps": 10, "held_out/mlm_loss": loss, "held_out/mlm_accuracy": 50.0}
    return directory


def _with_manifest(directory, data):
    with publishing(directory, kind="instances", configuration={"data": data}, inputs={}):
        pass
    return directory


def test_pretrained_model_is_compared_by_held_out_loss_on_the_same_data(home, base, tmp_path):
    name = registry.model_name("tiny")
    registry.register(_pretrained(tmp_path / "a", base, 4.0), name)
    registry.promote(name).require()
    registry.register(_pretrained(tmp_path / "b", base, 5.0), name)
    assert registry.promote(name).refused_by == ("better",)
    registry.register(_pretrained(tmp_path / "c", base, 3.0, data="2"), name)
    assert registry.promote(name).refused_by == ("same_data",)
    registry.register(_pretrained(tmp_path / "d", base, 3.0), name)
    assert registry.promote(name).require().promoted
    table = registry.models_table(registry.list_models(name))
    assert "candidate, champion" in table
    assert "held_out/mlm_loss" in table


def _facts(**changes):
    values = {
        "name": "bert-tiny-sst2",
        "version": 2,
        "kind": "finetuned_model",
        "metric": "sst2/dev/accuracy",
        "score": 80.0,
        "num_seeds": 3,
        "data_sha256": "d" * 64,
        "content_sha256": "c" * 64,
        "degenerate": False,
    }
    return VersionFacts(**{**values, **changes})


@pytest.mark.parametrize(
    ("candidate", "champion", "damage", "gate"),
    [
        ({"score": None}, None, None, "scored"),
        ({"score": float("nan")}, None, None, "scored"),
        ({"num_seeds": 1}, None, None, "scored"),
        ({"data_sha256": ""}, None, None, "scored"),
        ({}, None, "a file is gone", "intact"),
        ({"degenerate": True}, None, None, "not_degenerate"),
        ({}, {"version": 2}, None, "new"),
        ({}, {"data_sha256": "e" * 64}, None, "same_data"),
        ({}, {"metric": "rte/dev/accuracy"}, None, "same_data"),
        ({}, {"score": 80.0}, None, "better"),
        ({}, {"score": 79.9}, None, "better"),
        ({}, {"score": 90.0}, None, "better"),
    ],
)
def test_gate_refuses(candidate, champion, damage, gate):
    standing = _facts(**{"version": 1, "score": 70.0, **champion}) if champion is not None else None
    decision = decide(_facts(**candidate), standing, damage=damage, config=GateConfig(margin=0.5, min_seeds=2))
    assert gate in decision.refused_by
    assert not decision.passed


def test_sound_and_better_version_passes_every_gate():
    decision = decide(_facts(), _facts(version=1, score=79.0), damage=None)
    assert decision.passed
    assert [gate.name for gate in decision.gates] == [
        "scored",
        "intact",
        "not_degenerate",
        "new",
        "same_data",
        "better",
    ]


def test_less_loss_is_better():
    assert not higher_is_better("held_out/mlm_loss")
    assert higher_is_better("held_out/mlm_accuracy")
    new, old = _facts(metric="held_out/mlm_loss", score=2.0), _facts(version=1, metric="held_out/mlm_loss", score=3.0)
    assert decide(new, old, damage=None).passed


def _promote_in_process(home, name, version, queue):
    os.environ["BERT_HOME"] = home
    queue.put((version, registry.promote(name, version).promoted))


@pytest.mark.slow
def test_two_promotions_at_once_leave_the_better_one_champion(home, base, trained, tmp_path):
    name = "bert-tiny-both"
    registry.register(trained / "weak", name)
    registry.register(trained / "strong", name)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=_promote_in_process, args=(str(home), name, number, queue)) for number in (1, 2)]
    for worker in workers:
        worker.start()
    outcomes = dict(queue.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join(30)
    assert outcomes[2]
    assert aliases_of(name)["champion"] == 2  # whichever came first
