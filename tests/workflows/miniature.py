"""The whole pipeline in miniature: a preset that runs in seconds, and the command that runs it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from planted import SECRETS

ROOT = Path(__file__).resolve().parent.parent.parent
DUMP = "samplewiki-1"
TASKS = ("sst2", "stsb")
UNFIT = ("not_degenerate", "beats_baseline", "not_contaminated")
"""Gates that may refuse so small a model, whatever a test asks for."""


def preset(**pretraining: Any) -> dict[str, Any]:
    """Return the preset of miniature.yaml, with other settings of the pre-training."""
    mapping: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    mapping["pretraining"] |= pretraining
    return mapping


def short_preset() -> dict[str, Any]:
    """Return the preset with fewer steps."""
    mapping = preset()
    for phase, steps in zip(mapping["pretraining"]["phases"], (20, 5), strict=True):
        phase["steps"] = steps
    return mapping


def write_preset(directory: Path, name: str = "miniature", **pretraining: Any) -> Path:
    """Write the preset as a file."""
    path = directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(preset(**pretraining)), encoding="utf-8")
    return path


STOPPED_RANKS = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
"""Environment of a run whose ranks are stopped, and so cannot save: they are killed soon."""


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a run in `home`, with planted secrets that it must not write anywhere."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BERT_", "DAGSTER_", "MLFLOW_"))}
    return {**kept, **SECRETS, "BERT_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def command(preset_path: Path, *words: str) -> list[str]:
    """Return the command line of a run."""
    return [sys.executable, "-m", "workflows.run", "--preset", str(preset_path), "--dump", DUMP, *words]


def run(home: Path, preset_path: Path, *words: str, timeout: float = 1500) -> "subprocess.CompletedProcess[str]":
    """Run to completion with stdout and stderr combined."""
    return subprocess.run(
        command(preset_path, *words),
        env=environment(home),
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def shared_home(base: Path) -> Path:
    """Return a home in which the pipeline has run once, started by the first test process that needs it."""
    home = base / "home"
    with open(base / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log = base / "log.txt"
        if not log.exists():
            result = run(home, write_preset(base), "--tasks", ",".join(TASKS))
            log.write_text(f"{result.stdout}\nexit code {result.returncode}\n", encoding="utf-8")
    return home
