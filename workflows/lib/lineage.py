"""Lineage: where a dump and a model come from, as tags, license and registered name."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bert_model.model.config import BertConfig, size_name
from bert_model.presets import RunPreset
from bert_model.pretraining.config import INITIAL_SIZE
from bert_model.registry.client import model_name
from bert_model.registry.resolve import resolve_model
from bert_pipeline.configuration import from_mapping
from bert_pipeline.corpus.sources import parse_source, split_name
from bert_pipeline.errors import ArtifactError
from bert_pipeline.hashes import content_sha256, file_sha256
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.storage import is_remote
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.task import load_task_data
from workflows.lib.processes import ROOT, code_commit
from workflows.lib.resources import BertHome, sample_seed

SOURCES_NAME = "sources.json"
"""File of a `dump` that lists the local files it refers to."""
EXPORT_FILE = re.compile(r"pages-articles.*\.xml(-p\d+p\d+)?(\.bz2|\.gz)?$")
"""File of a MediaWiki export; large dumps are split into files such as …-pages-articles1.xml-p1p41242.bz2."""
TASK_SOURCE_NAME = "source.json"
"""File of `task_data` with the folder of the official files and the share of the training set cut off as dev set."""
WIKIPEDIA_LICENSE = "cc-by-sa-4.0"
"""https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use, section 7."""
SAMPLE_LICENSE = "apache-2.0"
"""The generated encyclopedia is a product of this program."""


def files_of_sources(sources: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, kind and absolute path or URL of each file that sources such as "books=text:PATH" name."""
    for source in sources:
        name, unnamed = split_name(source)
        kind, files = parse_source(unnamed)
        yield from ((name, kind, path if is_remote(path) else str(Path(path).resolve())) for path in files)


def dump_sources(directory: Path) -> list[str]:
    """Return the files of a materialized dump as sources of a corpus, such as "wikipedia:PATH" or "books=text:PATH"."""
    manifest = load_manifest(directory)
    if SOURCES_NAME in manifest.files:
        entries = json.loads((directory / SOURCES_NAME).read_text(encoding="utf-8"))
        # A source may have no name.
        return [f"{entry.get('name', '')}={entry['format']}:{entry['path']}".removeprefix("=") for entry in entries]
    return [f"wikipedia:{directory / name}" for name in manifest.files if EXPORT_FILE.search(name)]


def content_key(manifest: Manifest) -> str:
    """Return the hash of a dump or of task data, equal wherever the files are that it refers to and has hashes of."""
    files = {name: entry for name, entry in manifest.files.items() if name not in (SOURCES_NAME, TASK_SOURCE_NAME)}
    return content_sha256({**manifest.content, "files": files})


def load_published_task(home: BertHome, dump: str, task: str) -> Any:
    """Load the examples that `task_data` refers to; ArtifactError if its files have changed since."""
    manifest = load_manifest(home.task_data(dump, task), kind="task_data")
    source = json.loads((manifest.path / TASK_SOURCE_NAME).read_text(encoding="utf-8"))
    # The files are not copied, so they are read again and must still be the same. An own task is read as it was
    # described then: its YAML file may have changed, or be gone.
    described = manifest.configuration.get("description")
    described_task: str | Task = from_mapping(Task, described, where=str(manifest.path)) if described else task
    data = load_task_data(described_task, source["path"], source["dev_fraction"])
    expected = {name: entry["sha256"] for name, entry in manifest.inputs.items()}
    if data.sha256 != expected:
        changed = sorted(name for name in expected | data.sha256 if expected.get(name) != data.sha256.get(name))
        raise ArtifactError(
            f"{source['path']}: {', '.join(changed)} changed since task_data was materialized; materialize it again"
        )
    return data


def lineage_tags(dump: str, pretrained: Path, *, run_id: str) -> dict[str, str]:
    """Return the registry tags of a model: its dump, the data of its pre-training, the code and the Dagster run."""
    tags = {"dump": dump, "dagster_run_id": run_id, "code_version": packages_version()}
    if sample_seed(dump) is not None:  # else the files of its task tell whether they were generated
        tags["generated_sample"] = "true"
    if commit := code_commit():
        tags["code_commit"] = commit

    # What the training has read, whatever is in the dump's directory by now.
    hashes: dict[str, list[str]] = {}
    for item in load_manifest(pretrained, kind="pretrained_model").provenance.get("data", []):
        hashes.setdefault(item["kind"], []).append(item["sha256"])
    return tags | {f"{kind}_sha256": " ".join(digests) for kind, digests in hashes.items()}


def packages_version(root: Path = ROOT) -> str:
    """Return a hash of every file of the packages that make models."""
    files = [path for package in ("bert_pipeline", "bert_model") for path in (root / package).rglob("*")]
    kept = (path for path in files if path.is_file() and path.suffix != ".pyc")
    return content_sha256({path.relative_to(root).as_posix(): file_sha256(path) for path in kept})[:12]


def text_license(corpus: Path, dump: str, read: str) -> str:
    """Return the license of a dump's text; "" if it is not known, or if no hash that was `read` is the corpus's."""
    if sample_seed(dump) is not None:
        return SAMPLE_LICENSE
    with contextlib.suppress(ArtifactError):  # it may be gone, or have been made again of other sources
        manifest = load_manifest(corpus, kind="corpus")
        sources = [split_name(source)[1] for source in manifest.provenance["sources"]]
        if manifest.sha256 in read and all(source.startswith("wikipedia:") for source in sources):
            return WIKIPEDIA_LICENSE
    return ""


def registered_name(pretrained: Path, task: str | None) -> str:
    """Return the registry's name of a model: by the preset of its pre-training, and its task if fine-tuned."""
    model = load_manifest(pretrained, kind="pretrained_model").configuration["model"]
    return _name(model["preset"], model.get("architecture", "bert"), pretrained, task)


def name_of_preset(preset: RunPreset) -> str:
    """Return the registry's name of the pre-trained model of a preset, whose initial model is downloaded if needed."""
    settings, model = preset.pretraining, preset.pretraining.model
    directory = resolve_model(settings.initial_model) if model.preset == INITIAL_SIZE else None
    return _name(model.preset, model.architecture, directory)


def _name(preset: str, architecture: str, directory: Path | None, task: str | None = None) -> str:
    """Return the registry's name for a preset size; for `initial` by the size of the model in `directory`."""
    if preset == INITIAL_SIZE and directory is not None:
        # Of no preset's size, it keeps the word: `bert register` has no default name for it either.
        return model_name(BertConfig.from_directory(directory).preset_size or preset, task)
    return model_name(size_name(preset, architecture), task)


def check_origin(finetuned: Path, pretrained: Path) -> None:
    """Raise ArtifactError if a fine-tuned model is not of this pre-trained model, which gives it name and lineage.

    The pre-trained model of a dump may have been replaced since the fine-tuning, by one of another size too.
    """
    from bert_model.finetuning.task_model import read_task_description

    load_manifest(finetuned, kind="finetuned_model")
    recorded = str((read_task_description(finetuned) or {}).get("model_sha256") or "unknown")
    expected = load_manifest(pretrained, kind="pretrained_model").sha256
    if recorded != expected:
        raise ArtifactError(
            f"{finetuned}: fine-tuned from another pre-trained model ({recorded[:12]}…), expected {expected[:12]}… of "
            f"{pretrained}; materialize finetuned_model"
        )
