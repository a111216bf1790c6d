"""Steps: what makes an artifact, and the key by which a finished one is reused.

A key consists of the version of the step, the settings that differ from their defaults, and the hashes of the inputs.
A reworded message and a new option with a default therefore make nothing stale; a change of what is made needs a new
version, which the pins of the tests ask for (`tests/pins`).
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_pipeline.atomic import replace_text
from bert_pipeline.configuration import changed_settings
from bert_pipeline.errors import BertError, UnavailableError
from bert_pipeline.hashes import content_sha256, file_sha256
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.storage import is_file, store_errors, to_path

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """What the result of a step depends on beside its settings and inputs."""

    version: int | None = 1
    """Raised with each change of what the step makes from the same settings and inputs; a changed default is one. None
    for a step that takes an artifact over as it is."""
    data: tuple[str, ...] = ()
    """Folders of this package with data files that the step may read."""
    libraries: tuple[str, ...] = ()
    """Libraries that decide what the step makes."""

    @functools.cached_property
    def code_version(self) -> str | None:
        """The version, with those of the libraries and the hash of the data files."""
        if self.version is None:
            return None
        versions = [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in self.libraries]
        hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in self.data_files().items()}
        return " ".join([str(self.version), *versions, *([f"data={content_sha256(hashes)[:12]}"] if hashes else [])])

    def data_files(self) -> dict[str, Path]:
        """Return the data files that the step may read, by their names below its folders."""
        return {
            path.relative_to(PACKAGE / folder).as_posix(): path
            for folder in self.data
            for path in (PACKAGE / folder).rglob("*")
            if path.is_file() and path.suffix not in (".py", ".pyc")
        }

    def make(
        self,
        directory: Path,
        build: Callable[[], Manifest],
        *,
        settings: Any,
        inputs: Mapping[str, Any] = MappingProxyType({}),
        log: Callable[[str], object],
    ) -> Manifest:
        """Return the artifact in `directory` if it is intact and has the same key; else build it.

        `settings` is a configuration, `inputs` maps names to content hashes.
        """
        key = {"code_version": self.code_version, "settings": changed_settings(settings), "inputs": dict(inputs)}
        reason, reusable = _find(directory, key)
        if reusable is not None:
            log(f"unchanged since {reusable.provenance.get('created', 'it was made')}: {directory} is reused")
            return reusable
        if reason:
            log(f"{directory} is made again: {reason}")

        # The key is written after the artifact: an interrupted build is not reused.
        manifest = build()
        document = {"content_sha256": manifest.sha256, "key": key}
        replace_text(key_path(directory), json.dumps(document, indent=1) + "\n")
        return manifest


STEPS = {
    "dump": Step(data=("sample",)),
    "corpus": Step(version=9, data=("wikipedia",), libraries=("sentencex",)),
    "vocabulary": Step(version=2, libraries=("tokenizers",)),
    "instances": Step(version=2, libraries=("tokenizers", "numpy")),
    "exam": Step(libraries=("tokenizers", "numpy")),
    "pretrained_model": Step(libraries=("numpy", "torch")),
    "candidate_model": Step(),
    "task_data": Step(),
    "finetuned_model": Step(version=4, libraries=("tokenizers", "numpy", "torch")),
    "registered_model": Step(),
    "report": Step(),
    "promotion_decision": Step(),
    "predictions": Step(version=2, libraries=("tokenizers", "numpy", "torch")),
}
"""The steps by the name of their asset; that of `dump` generates the sample."""
COPYING = Step(version=None)
"""That of a published dump and of a model's vocabulary: another version of the project fetches neither again."""


def make(
    step: str,
    build: Callable[..., Manifest],
    output: Path,
    config: Any,
    inputs: Mapping[str, Any],
    log: Callable[[str], object] = logger.info,
    **options: Any,
) -> Manifest:
    """Return `build(**inputs, output=output, config=config, **options)`, or what `Step.make` finds of it in `output`.

    Inputs are artifacts, known by their content, and files, by their bytes; other directories are read anew each time.
    """
    paths = {name: to_path(path) for name, path in inputs.items() if path}
    run = functools.partial(build, **paths, output=output, config=config, **options)
    hashes = {}
    for name, path in paths.items():
        try:
            hashes[name] = file_sha256(path) if is_file(path) else load_manifest(path).sha256
        except BertError:  # no artifact, or a damaged one: the builder knows whether that matters
            return run()
    return STEPS[step].make(output, run, settings=config, inputs=hashes, log=log)


def key_path(directory: Path) -> Path:
    """Return the file with the key of an artifact: outside its directory, whose content it must not change."""
    return directory.parent / f".{directory.name}.key.json"


def _find(directory: Path, key: Mapping[str, Any]) -> tuple[str, Manifest | None]:
    """Return why an artifact has to be made again, "" if there is none, and the artifact if it has this key."""
    try:
        with store_errors(directory):
            stored = json.loads(key_path(directory).read_text(encoding="utf-8"))
        if changed := [*_differences(stored["key"], json.loads(json.dumps(key)))]:
            return f"its {' and '.join(changed)} changed", None
        # By hashes, as in the blocking checks, which would refuse damage of unchanged size after every reuse.
        manifest = load_manifest(directory, verify="sha256")
        if manifest.sha256 == stored["content_sha256"]:
            return "", manifest
        return "another program has made it", None
    except UnavailableError:  # building again would take hours, and end at the same store
        raise
    except FileNotFoundError:
        return "", None
    except (BertError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error), None


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield the names of the values that differ, such as "settings.vocab_size"."""
    for name in sorted({*old, *new}):
        before, now = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{where}{name}.")
        elif before != now:
            yield where + name
