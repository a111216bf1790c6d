"""Dagster's data assets on the cluster, in a bucket: the content of a run on this machine."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import miniature
import pytest
import yaml

from bert_pipeline.manifest import load_manifest
from bert_pipeline.sample import generate_sample
from bert_pipeline.storage import upload
from workflows.lib.resources import DATA_VARIABLE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, method="signal")]

DUMP = "testwiki-20260101"
IN_THE_STORE = ("corpus", "vocabulary", "instances/32", "instances/64")


def test_data_assets_on_the_cluster_make_what_this_machine_makes(cluster, store_environment, folder, tmp_path):
    check_data_assets(cluster.options(), store_environment, folder, tmp_path)


def preset_on(options: Sequence[str]) -> dict[str, Any]:
    """Return the miniature preset with the data jobs on an engine."""
    words = dict(word.removeprefix("--").split("=", 1) for word in options)
    preset = {name: value for name, value in miniature.preset().items() if name != "beam_options"}
    return preset | {"beam": {"runner": words.pop("runner"), "options": words}}


def check_data_assets(options: Sequence[str], store_environment: dict[str, str], folder: str, tmp_path: Path) -> None:
    """Run the data assets here and on an engine, whose results are in a folder of the bucket; compare the hashes."""
    generate_sample(tmp_path / "sample", seed=1, num_articles=100)
    (dump,) = (tmp_path / "sample").glob("*pages-articles*")
    upload(dump, f"{folder}/{dump.name}")
    here, there = miniature.preset(), preset_on(options)

    def run(name: str, preset: dict[str, object], **variables: str) -> Path:
        """Run the data assets and their checks in a home of their own."""
        home, path = tmp_path / name, tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(preset), encoding="utf-8")
        words = ("--stage", "data", "--preset", str(path), "--dump", DUMP, "--dump-file", f"{folder}/{dump.name}")
        ended = subprocess.run(
            [sys.executable, "-m", "workflows.run", *words],
            env=miniature.environment(home) | store_environment | variables,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return home / "data" / DUMP

    local = run("here", here)
    home = run("there", there, **{DATA_VARIABLE: f"{folder}/data"})
    assert {path.name for path in home.iterdir() if path.is_dir()} == {"dump", "exam"}
    assert not (tmp_path / "s3:").exists()
    for stage in IN_THE_STORE:
        made = load_manifest(f"{folder}/data/{DUMP}/{stage}", verify="sha256")
        assert made.sha256 == load_manifest(local / stage).sha256
    assert load_manifest(home / "exam").sha256 == load_manifest(local / "exam").sha256
