"""The code version of an asset changes with the files that its code reaches, and with no others."""

import importlib
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from bert_pipeline.manifest import Manifest, load_manifest, publishing
from workflows.definitions import defs
from workflows.lib.resources import BertHome, dump_task_key
from workflows.lib.reuse import FLOORS, ROOT, build_or_reuse, closure, code_version, packages_version

REGISTRY = {"candidate_model", "registered_model", "promotion_decision"}
BEAM = {"corpus", "vocabulary", "instances", "exam"}
MODELS = {"pretrained_model", "finetuned_model", "predictions", *REGISTRY}


@pytest.fixture(scope="module")
def versions() -> dict[str, str]:
    """Asset -> code version in Dagster."""
    return {spec.key.to_user_string(): str(spec.code_version) for spec in defs().resolve_all_asset_specs()}


@pytest.fixture(scope="module")
def entries() -> dict[str, tuple[str, ...]]:
    """Asset -> functions that its code version is computed from."""
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "workflows"}
    for name in kept:
        del sys.modules[name]
    try:
        importlib.import_module("workflows.lib.reuse").code_version = lambda *functions: " ".join(functions)
        specs = importlib.import_module("workflows.definitions").defs().resolve_all_asset_specs()
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "workflows"]:
            del sys.modules[name]
        sys.modules.update(kept)
    return {spec.key.to_user_string(): tuple(str(spec.code_version).split()) for spec in specs}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source; tests undo their changes."""
    root = tmp_path_factory.mktemp("tree")
    for floor in FLOORS:
        shutil.copytree(ROOT / floor, root / floor, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def edit(tree: Path) -> Iterator[Callable[[str], None]]:
    before: dict[Path, bytes] = {}

    def append(name: str) -> None:
        before[tree / name] = (tree / name).read_bytes()
        (tree / name).write_bytes(before[tree / name] + b"\n# edited\n")

    yield append
    for path, content in before.items():
        path.write_bytes(content)


def test_every_asset_has_the_version_of_what_its_functions_reach(versions, entries, tree):
    for asset, functions in entries.items():
        assert versions[asset] == code_version(*functions), asset
        assert versions[asset] == code_version(*functions, root=tree), asset  # wherever the project lies


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("bert_pipeline/sample/lexicon.py", {"dump"}),
        ("bert_pipeline/download.py", {"dump"}),
        ("bert_pipeline/corpus/batches.py", {"corpus"}),
        ("bert_pipeline/corpus/quality.py", {"corpus"}),
        ("bert_pipeline/wikipedia/templates/data/fr.toml", {"corpus"}),
        ("bert_pipeline/wikipedia/templates/units.toml", {"corpus"}),
        ("bert_pipeline/beam/workers.py", BEAM),
        ("bert_pipeline/exam/ngrams.py", {"exam", "pretrained_model", *REGISTRY}),
        ("bert_pipeline/instances/columns.py", {"instances", "pretrained_model"}),
        ("bert_pipeline/tasks/task.py", {"task_data", "report", *MODELS} - {"pretrained_model"}),
        ("bert_model/pretraining/trainer.py", {"pretrained_model"}),
        ("bert_model/pretraining/data.py", {"pretrained_model"}),
        ("bert_model/model/weights.py", MODELS),
        ("bert_model/model/cpu_kernels.py", MODELS),
        ("bert_model/finetuning/results.py", {"finetuned_model", *REGISTRY}),
        ("bert_model/finetuning/decode.py", MODELS - {"pretrained_model"}),
        ("bert_model/inference/inputs.py", {"predictions", *REGISTRY}),
        ("bert_model/registry/model_card.py", REGISTRY),
        ("bert_model/registry/pyfunc.py", REGISTRY),
        ("workflows/lib/metadata.py", {"report"}),
        ("bert_model/inference/attention.py", set()),
        ("bert_model/inference/attention.html", set()),
        ("bert_model/cli.py", set()),
        ("bert_model/presets/demo.yaml", set()),
        ("workflows/defs/finetuning.py", set()),
    ],
)
def test_edit_changes_versions_of_assets_that_reach_the_file(versions, entries, tree, edit, file, expected):
    edit(file)
    found = {functions: code_version(*functions, root=tree) for functions in set(entries.values())}
    assert {name for name in versions if found[entries[name]] != versions[name]} == expected


def test_trainings_reach_neither_registry_nor_serving_nor_commands():
    found = closure("bert_model.finetuning.finetune.finetune", "bert_model.pretraining.run.pretrain")
    rooms = {
        path.relative_to(ROOT / "bert_model").parts[0] for path in found if path.is_relative_to(ROOT / "bert_model")
    }
    assert rooms == {
        "__init__.py",
        "finetuning",
        "metrics",
        "model",
        "pretraining",
        "tables.py",
        "training",
        "zero_shot",
    }
    assert ROOT / "bert_model/pretraining/__main__.py" not in found


def test_fine_tuning_is_built_again_when_its_code_has_changed(versions, entries, tree, edit, tmp_path, monkeypatch):
    key = key_of_finetuning(tmp_path, monkeypatch)
    assert key["code_version"] == versions["finetuned_model"]
    built: list[str] = []

    def build() -> Manifest:
        built.append("once more")
        with publishing(tmp_path / "thing", kind="thing", configuration={}, inputs={}) as draft:
            (draft.path / "made.txt").write_text(str(len(built)), encoding="utf-8")
        return load_manifest(tmp_path / "thing")

    for _ in range(2):
        build_or_reuse(tmp_path / "thing", "thing", build, **key)
    assert len(built) == 1
    edit("bert_model/finetuning/results.py")
    key["code_version"] = code_version(*entries["finetuned_model"], root=tree)
    build_or_reuse(tmp_path / "thing", "thing", build, **key)
    assert len(built) == 2


class Asked(Exception):
    """Raised where an asset asks whether its artifact can be reused."""


def key_of_finetuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the key by which `finetuned_model` looks for a finished fine-tuning."""
    from workflows.defs import finetuning

    asked: list[dict[str, Any]] = []

    def ask(*_: Any, **key: Any) -> Manifest:
        asked.append(key)
        raise Asked

    monkeypatch.setitem(sys.modules, "bert_model.finetuning.finetune", types.SimpleNamespace(finetune=None))
    replay = types.SimpleNamespace(replay_search=lambda *_: True)
    monkeypatch.setitem(sys.modules, "bert_model.finetuning.results", replay)
    monkeypatch.setitem(sys.modules, "bert_model.finetuning.worker_pool", types.SimpleNamespace(shared_pool=None))
    monkeypatch.setattr(finetuning, "load_published_task", lambda *_: types.SimpleNamespace(task="sst2"))
    monkeypatch.setattr(BertHome, "current_model", lambda *_: tmp_path)
    monkeypatch.setattr(finetuning, "load_manifest", lambda *_, **__: types.SimpleNamespace(sha256="0" * 64))
    monkeypatch.setattr(finetuning, "build_or_reuse", ask)
    context = dg.build_asset_context(partition_key=dump_task_key("samplewiki-1", "sst2"))
    with pytest.raises(Asked):
        finetuning.finetuned_model(context, finetuning.FinetuningLaunchpad(), BertHome(directory=str(tmp_path)))
    return asked[0]


def test_lineage_counts_every_file_of_both_packages(tree, edit):
    before = packages_version("bert_pipeline", "bert_model", root=tree)
    edit("workflows/lib/report.py")
    assert packages_version("bert_pipeline", "bert_model", root=tree) == before
    edit("bert_model/cli.py")
    assert packages_version("bert_pipeline", "bert_model", root=tree) != before


def write(root: Path, **files: str) -> None:
    """Write files of bert_model: module_py="…" is module.py."""
    (root / "bert_model" / "words").mkdir(parents=True)
    (root / "bert_model" / "words" / "english.txt").touch()
    for name in ("__init__", "other"):
        (root / "bert_model" / f"{name}.py").touch()
    for name, text in files.items():
        (root / "bert_model" / f"{name}.py").write_text(text, encoding="utf-8")


IMPORT = "from bert_model import other"


@pytest.mark.parametrize(
    ("source", "is_reached"),
    [
        (IMPORT, True),
        ("from bert_model.other import thing", True),
        ("import bert_model.other", True),
        ("from . import other", True),
        ("from .other import thing", True),
        (f"def load():\n    {IMPORT}", True),
        ("RUNNER = 'bert_model.other.Runner'", True),
        ("import bert_model.another", False),
        (f"if TYPE_CHECKING:\n    {IMPORT}", False),
        (f"if typing.TYPE_CHECKING:\n    pass\nelse:\n    {IMPORT}", True),
        (f"if __name__ == '__main__':\n    {IMPORT}", False),
    ],
)
def test_imports_count_wherever_they_may_run(tmp_path, source, is_reached):
    write(tmp_path, training=f"{source}\n\ndef train(): ...\n")
    reached = {path.name for path in closure("bert_model.training.train", root=tmp_path)}
    assert reached == {"__init__.py", "training.py"} | ({"other.py"} if is_reached else set())


def test_import_of_an_import_counts(tmp_path):
    write(tmp_path, training="import bert_model.trainer\n\ndef train(): ...\n", trainer=IMPORT)
    assert tmp_path / "bert_model/other.py" in closure("bert_model.training.train", root=tmp_path)


@pytest.mark.parametrize("name", ["words", "words/english.txt"])
def test_data_files_count_for_modules_that_name_them(tmp_path, name):
    write(
        tmp_path, training=f"WORDS = Path(__file__).parent / {name!r}\n\ndef train(): ...\n", trial="def run(): ...\n"
    )
    data = tmp_path / "bert_model/words/english.txt"
    assert data in closure("bert_model.training.train", root=tmp_path)
    assert data not in closure("bert_model.trial.run", root=tmp_path)


def test_every_data_file_is_named_by_a_module_next_to_it():
    folders = [path.parent for floor in FLOORS for path in (ROOT / floor).rglob("*.py")]
    data = [path for floor in FLOORS for path in (ROOT / floor).rglob("*") if path.is_file()]
    for path in (path for path in data if path.suffix not in (".py", ".pyc")):
        beside = [module for folder in set(folders) & set(path.parents) for module in folder.glob("*.py")]
        names = [path.relative_to(module.parent).parts[0] for module in beside]
        assert any(f'"{name}' in module.read_text(encoding="utf-8") for module, name in zip(beside, names)), path


@pytest.mark.parametrize(
    "entry", ["bert_model.finetuning.finetune.fine_tune", "bert_model.fine_tuning.finetune", "finetune"]
)
def test_function_that_does_not_exist_is_an_error(entry):
    with pytest.raises(ValueError, match="has no such function"):
        code_version(entry)
