"""Finished work is taken as it is, and made anew when anything that decides it has changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_pipeline.manifest import Manifest, load_manifest, publishing
from workflows.reuse import made_or_reused, recipe, recipe_path

SETTINGS = {"size": 1}
INPUTS = {"dump": "abc"}


class Maker:
    """Makes an artefact and counts how often it did."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.times = 0

    def __call__(self) -> Manifest:
        self.times += 1
        with publishing(self.directory, kind="thing", configuration={}, inputs={}) as draft:
            (draft.path / "file.txt").write_text(f"made {self.times} times", encoding="utf-8")
        return load_manifest(self.directory)


def get(maker: Maker, **changes: Any) -> Manifest:
    wanted = recipe(**{"code_version": "1", "settings": SETTINGS, "inputs": INPUTS, **changes})
    return made_or_reused(maker.directory, "thing", wanted, maker, lambda _: None)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "thing")


def test_same_recipe_is_made_once(maker):
    first, second = get(maker), get(maker)
    assert maker.times == 1
    assert first.sha256 == second.sha256


@pytest.mark.parametrize(
    "changes", [{"code_version": "2"}, {"settings": {"size": 2}}, {"inputs": {"dump": "abd"}}, {"inputs": {}}]
)
def test_other_code_settings_or_inputs_are_made_anew(maker, changes):
    get(maker)
    get(maker, **changes)
    assert maker.times == 2


def test_damaged_or_replaced_artefact_is_made_anew(maker):
    get(maker)
    (maker.directory / "file.txt").write_text("shorter", encoding="utf-8")
    get(maker)
    assert maker.times == 2
    maker()  # made by somebody else: the recipe beside it is not its own
    get(maker)
    assert maker.times == 4


def test_unreadable_recipe_is_made_anew(maker):
    get(maker)
    recipe_path(maker.directory).write_text("{", encoding="utf-8")
    get(maker)
    assert maker.times == 2


def test_recipe_is_readable_and_no_part_of_the_artefact(maker):
    manifest = get(maker)
    document = json.loads(recipe_path(maker.directory).read_text(encoding="utf-8"))
    assert document["recipe"]["inputs"] == INPUTS
    assert list(manifest.files) == ["file.txt"]
