"""Artifacts are reused while version, data files, libraries, settings and inputs are the same."""

import dataclasses
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_pipeline.configuration import configuration
from bert_pipeline.errors import UnavailableError
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from bert_pipeline.step import COPYING, PACKAGE, STEPS, Step, key_path


@configuration
class Inner:
    """A nested configuration."""

    size: int = 1
    """A size."""


@configuration
class Settings:
    """A configuration."""

    name: str
    """A name."""
    inner: Inner = Inner()
    """A part."""


@configuration
class LaterSettings(Settings):
    """The same with one more option."""

    option: int = 3
    """An option."""


class Maker:
    """Callable that builds an artifact, counts its calls, and asks a step for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.times = 0
        self.log: list[str] = []

    def __call__(self) -> Manifest:
        self.times += 1
        with publishing(self.directory, kind="thing", configuration={}, inputs={}) as draft:
            (draft.path / "file.txt").write_text(f"made {self.times} times", encoding="utf-8")
        return load_manifest(self.directory)

    def ask(self, **changes: Any) -> Manifest:
        asked = {"step": Step(), "build": self, "settings": Settings(name="x"), "inputs": {"dump": "abc"}} | changes
        step, build = asked.pop("step"), asked.pop("build")
        return step.make(self.directory, build, **asked, log=self.log.append)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "thing")


@pytest.mark.parametrize(
    "again",
    [
        {},
        {"settings": LaterSettings(name="x")},  # one more option with a default
        {"settings": Settings(name="x", inner=Inner(size=1))},
        {"settings": {"name": "x"}},
    ],
)
def test_same_key_is_built_once(maker: Maker, again: dict[str, Any]) -> None:
    assert maker.ask().sha256 == maker.ask(**again).sha256
    assert maker.times == 1


def test_copied_artifact_depends_on_no_version(maker: Maker) -> None:
    maker.ask(step=COPYING)
    assert json.loads(key_path(maker.directory).read_text(encoding="utf-8"))["key"]["code_version"] is None
    maker.ask(step=COPYING)
    assert maker.times == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step": Step(version=2)}, "its code_version changed"),
        ({"settings": Settings(name="y")}, "its settings.name changed"),
        ({"settings": Settings(name="x", inner=Inner(size=2))}, "its settings.inner changed"),
        ({"settings": LaterSettings(name="x", option=4)}, "its settings.option changed"),
        ({"inputs": {"dump": "abd"}}, "its inputs.dump changed"),
        ({"inputs": {}, "step": Step(libraries=("numpy",))}, "its code_version and inputs.dump changed"),
    ],
)
def test_other_version_settings_or_inputs_are_built_again(maker: Maker, changes: dict[str, Any], reason: str) -> None:
    maker.ask()
    maker.ask(**changes)
    assert maker.times == 2
    assert maker.log == [f"{maker.directory} is made again: {reason}"]


def test_damaged_or_replaced_artifact_is_built_again(maker: Maker) -> None:
    maker.ask()
    (maker.directory / "file.txt").write_text("shorter", encoding="utf-8")
    maker.ask()
    assert maker.times == 2
    (maker.directory / "file.txt").write_text("made 9 times", encoding="utf-8")  # of unchanged size
    maker.ask()
    assert maker.times == 3
    maker()  # built by another program: the key is not its own
    maker.ask()
    assert maker.times == 5
    key_path(maker.directory).write_text("{", encoding="utf-8")
    maker.ask()
    assert maker.times == 6


def test_failed_build_leaves_a_key_that_does_not_fit(maker: Maker) -> None:
    def fail() -> Manifest:
        raise KeyboardInterrupt

    maker.ask()
    with pytest.raises(KeyboardInterrupt):
        maker.ask(settings=Settings(name="y"), build=fail)
    maker.ask(settings=Settings(name="y"))
    assert maker.times == 2


def test_silent_store_is_an_error_and_builds_nothing(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    maker.ask()

    def refuse(*_: object, **__: object) -> None:
        raise UnavailableError("the store does not answer")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UnavailableError):
        maker.ask()
    assert maker.times == 1


def test_key_is_readable_and_outside_the_artifact(maker: Maker) -> None:
    manifest = maker.ask()
    document = json.loads(key_path(maker.directory).read_text(encoding="utf-8"))
    assert document["key"] == {"code_version": "1", "settings": {"name": "x"}, "inputs": {"dump": "abc"}}
    assert list(manifest.files) == ["file.txt"]


# --- code versions ---


@pytest.mark.parametrize(
    ("change", "is_stale"),
    [
        (lambda folder: None, False),
        (lambda folder: (folder / "messages.py").write_text("# a reworded error\n"), False),
        (lambda folder: (folder / "de" / "templates.toml").write_text("one = 2\n"), True),
        (lambda folder: (folder / "fr.toml").touch(), True),
        (lambda folder: (folder / "de" / "templates.toml").rename(folder / "de.toml"), True),
    ],
)
def test_code_version_follows_data_files_and_not_modules(
    tmp_path: Path, change: Callable[[Path], object], is_stale: bool
) -> None:
    (tmp_path / "de").mkdir()
    (tmp_path / "de" / "templates.toml").write_text("one = 1\n")
    before = Step(data=(str(tmp_path),)).code_version
    change(tmp_path)
    assert (Step(data=(str(tmp_path),)).code_version != before) is is_stale


@pytest.mark.parametrize(
    ("library", "stale"),
    [
        ("sentencex", {"corpus"}),
        ("tokenizers", {"vocabulary", "instances", "exam", "finetuned_model", "predictions"}),
        ("torch", {"pretrained_model", "finetuned_model", "predictions"}),
        ("pydantic", set()),
    ],
)
def test_another_library_makes_stale_what_it_decides(
    library: str, stale: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "999" if name == library else installed(name))
    now = {name: dataclasses.replace(step) for name, step in STEPS.items()}
    assert {name for name, step in now.items() if "==999" in step.code_version} == stale


def test_build_of_a_library_is_no_other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.11.0+cpu")
    assert Step(version=3, libraries=("torch",)).code_version == "3 torch==2.11.0"


def test_every_data_file_is_of_a_step_or_describes_a_task() -> None:
    read = {path for step in STEPS.values() for path in step.data_files().values()}
    data = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert {path.relative_to(PACKAGE).parts[0] for path in data - read} <= {"tasks"}  # the task is part of the key
    for name, step in STEPS.items():
        assert all((PACKAGE / folder).is_dir() for folder in step.data), name
