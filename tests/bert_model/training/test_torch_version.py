"""Private functions of torch are used, so a release is declared compatible only after it was tried."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]


def test_torch_is_limited_to_the_minor_release_that_was_tried():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    allowed = next(item.specifier for item in map(Requirement, dependencies) if item.name == "torch")
    pins = (line.partition("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    tried = next(Version(version) for name, _, version in pins if name == "torch")
    assert tried in allowed
    assert f"{tried.major}.{tried.minor}.99" in allowed
    assert f"{tried.major}.{tried.minor + 1}.0" not in allowed
