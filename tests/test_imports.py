"""Layering: imports go down only, between packages and between rooms, each library is imported in its own files, and no
folder grows unnoticed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("bert_pipeline", "bert_model", "workflows")

FORBIDDEN = {
    "bert_pipeline": {"torch", "dagster", "mlflow", "bert_model", "workflows"},
    "bert_model": {"dagster", "apache_beam", "workflows"},
    "workflows": set(),
}
ONLY_IN = {
    "apache_beam": (
        "bert_pipeline/beam/",
        "bert_pipeline/corpus/job.py",
        "bert_pipeline/vocabulary/job.py",
        "bert_pipeline/instances/job.py",
        "bert_pipeline/exam/job.py",
    ),
    "mlflow": (
        "bert_model/training/mlflow_store.py",
        "bert_model/training/mlflow_sync.py",
        "bert_model/registry/operations.py",
        "bert_model/registry/client.py",
        "bert_model/registry/artifacts.py",
        "bert_model/registry/pyfunc.py",
        "workflows/lib/resources.py",
    ),
    "dagster": ("workflows/",),
    "fsspec": ("bert_pipeline/storage.py",),
    "upath": ("bert_pipeline/storage.py",),
    "tensorflow": ("bert_model/conversion/google_checkpoint.py",),
    "transformers": (),
    "sentence_transformers": (),
    "sklearn": (),  # 1.3 s and 150 MB in every process that scores; see bert_model/metrics/glue.py
    "scipy": (),
}


def imported_packages(path: Path) -> set[str]:
    """Top-level packages that a module imports anywhere, lazily or not."""
    packages: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            packages.add(node.module.partition(".")[0])
    return packages


MODULES = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]

ROOMS = {
    "bert_pipeline": (
        {"errors", "parent", "progress", "randomness", "signals"},
        {"storage"},
        {"atomic", "compression", "hashes"},
        {"configuration", "manifest", "parquet_io"},
        {"failed_records", "records", "step"},
        {"beam", "sample", "tasks", "wikipedia"},
        {"corpus", "download"},
        {"vocabulary"},
        {"instances", "exam"},
        {"cli"},
    ),
    "bert_model": (
        {"model", "metrics", "tables"},
        {"kinds", "training", "zero_shot"},
        {"pretraining", "finetuning"},
        {"inference", "conversion"},
        {"registry"},
        {"presets", "prediction", "task_model"},
        {"pretraining.__main__"},
        {"run_commands"},
        {"cli"},
    ),
    "workflows": ({"lib"}, {"defs"}, {"definitions"}, {"run", "serve", "backup", "doctor"}),
}
"""The rooms and root modules of each package, from the lowest up; those of one level do not import each other."""


def test_every_floor_has_modules():
    assert {path.relative_to(ROOT).parts[0] for path in MODULES} == set(FLOORS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_down_and_outside_parts_stay_in_their_files(path):
    name = path.relative_to(ROOT).as_posix()
    packages = imported_packages(path)
    assert not packages & FORBIDDEN[name.partition("/")[0]]
    for package, homes in ONLY_IN.items():
        if package in packages:
            assert name.startswith(homes) if homes else False, f"{name} imports {package}"


def test_a_corpus_is_extracted_without_the_import_of_pandas_or_fsspec(tmp_path):
    # Both are slow to import: pyarrow asks for pandas where it is installed, and only URLs need fsspec.
    code = (
        "import sys; from pathlib import Path; from benchmarks.jobs import extract_dump;"
        "from bert_pipeline.sample import generate_sample;"
        f"sample = Path({str(tmp_path / 'sample')!r}); generate_sample(sample);"
        f"extract_dump(next(sample.glob('*.xml.bz2')), Path({str(tmp_path / 'output')!r}));"
        "print(sorted({'pandas', 'fsspec'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


DATA_FLOOR = ("bert_pipeline.instances.pairs", "bert_pipeline.tasks.task", "bert_pipeline.vocabulary.tokenizer")


@pytest.mark.parametrize(
    ("code", "libraries"),
    [
        (f"import bert_pipeline.cli, {', '.join(DATA_FLOOR)}", "torch apache_beam dagster mlflow"),
        (
            "import argparse; from bert_pipeline.cli import add_commands;"
            "add_commands(argparse.ArgumentParser().add_subparsers())",
            "apache_beam pyarrow numpy tokenizers torch",
        ),
        (
            "import bert_pipeline.tasks.task",
            "torch numpy pandas pyarrow sklearn scipy mlflow dagster apache_beam",
        ),
        ("import bert_model.kinds.scores", "torch pandas sklearn scipy mlflow dagster transformers"),
        (
            "from workflows.definitions import defs; defs().resolve_asset_graph()",
            "torch apache_beam mlflow matplotlib transformers",
        ),
    ],
    ids=["data floor", "data commands", "reading tasks", "scoring", "definitions"],
)
def test_what_begins_at_once_loads_no_heavy_library(code, libraries):
    code = f"import sys; {code}; print(sorted({set(libraries.split())!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_training_processes_import_no_orchestration_or_compiler():
    code = """
import sys
blocked = ["mlflow", "pandas", "apache_beam", "dagster", "transformers", "sklearn", "scipy", "matplotlib"]
sys.modules.update(dict.fromkeys([*blocked, "torch._dynamo"]))  # an import of a None entry raises ImportError
import bert_model.pretraining.__main__, bert_model.finetuning.finetune, torch
from bert_model.training.schedule import OptimizerConfig
from bert_model.training.optimizer import build_optimizer
for name in ("bert_adam", "adamw"):
    model = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(model, OptimizerConfig(name=name), 1e-3)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def module_names() -> dict[str, Path]:
    """The dotted name of every module, and its file."""
    names = {}
    for path in MODULES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported_modules(path: Path, names: dict[str, Path]) -> set[str]:
    """Our modules that a module imports anywhere: lazily, for type checking or at the top."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in names else node.module)
    return found & set(names)


def graph() -> dict[str, set[str]]:
    """Module -> the modules that it imports."""
    names = module_names()
    return {name: imported_modules(path, names) - {name} for name, path in names.items()}


def level(module: str) -> tuple[int, str]:
    """Level and name of a module's room; a module that belongs to no room is an error."""
    package, _, rest = module.partition(".")
    for number, rooms in enumerate(ROOMS[package]):
        for room in rooms:
            if rest == room or (rest.startswith(f"{room}.") and rest not in set().union(*ROOMS[package])):
                return number, room
    raise AssertionError(f"{module} belongs to no room of ROOMS")


def test_rooms_import_lower_rooms_only():
    wrong = []
    for module, imported in graph().items():
        for other in imported:
            if module.partition(".")[0] != other.partition(".")[0] or "." not in module or "." not in other:
                continue
            (here, room), (there, other_room) = level(module), level(other)
            if not (there < here or room == other_room):
                wrong.append(f"{module} ({room}) imports {other} ({other_room})")
    assert not wrong


def test_no_import_goes_round_in_a_circle():
    remaining = graph()
    while leaves := {name for name, imported in remaining.items() if not imported & set(remaining)}:
        remaining = {name: imported for name, imported in remaining.items() if name not in leaves}
    assert not remaining, f"these modules import each other: {sorted(remaining)}"


LINES = {
    "bert_pipeline": 3710,
    "bert_pipeline/beam": 810,
    "bert_pipeline/corpus": 3016,
    "bert_pipeline/exam": 897,
    "bert_pipeline/instances": 1769,
    "bert_pipeline/sample": 1652,
    "bert_pipeline/tasks": 2429,
    "bert_pipeline/vocabulary": 1592,
    "bert_pipeline/wikipedia": 2520,
    "bert_pipeline/wikipedia/templates": 1506,
    "bert_model": 861,  # decision 0038
    "bert_model/conversion": 600,  # decision 0038
    "bert_model/finetuning": 2902,
    "bert_model/inference": 860,
    "bert_model/kinds": 2132,  # decision 0037
    "bert_model/metrics": 600,
    "bert_model/model": 2152,  # decision 0034
    "bert_model/pretraining": 3601,  # decision 0033
    "bert_model/registry": 2313,
    "bert_model/training": 1893,
    "bert_model/zero_shot": 407,
    "workflows": 760,
    "workflows/defs": 2260,  # decision 0036
    "workflows/lib": 2590,
}
"""Lines of Python directly in each folder; to grow by more than a tenth is a decision (docs/decisions)."""


def test_no_folder_has_grown_by_more_than_a_tenth():
    lines = dict.fromkeys(LINES, 0)
    for path in MODULES:
        lines[path.parent.relative_to(ROOT).as_posix()] += len(path.read_text(encoding="utf-8").splitlines())
    assert {folder: count for folder, count in lines.items() if count > 1.1 * LINES[folder]} == {}
