"""Where a registered version comes from: the tags that lead from a champion back to its dump."""

import functools
import subprocess
from collections.abc import Sequence

from bert_pipeline.manifest import load_manifest
from workflows.partitions import sample_seed
from workflows.resources import BertHome
from workflows.versions import ROOT, packages_version

WIKIPEDIA_LICENCE = "CC-BY-SA-4.0"
"""https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use, section 7."""
SAMPLE_LICENCE = "Apache-2.0"
"""The generated encyclopaedia is a product of this program."""


def lineage_tags(home: BertHome, dump: str, *, run_id: str) -> dict[str, str]:
    """The dump, the hashes of what was made of it, the code, and the Dagster run."""
    tags = {
        "dump": dump,
        "generated_sample": str(sample_seed(dump) is not None).lower(),
        "dagster_run_id": run_id,
        "code_version": packages_version("bert_pipeline", "bert_model"),
    }
    commit = code_commit()
    if commit:
        tags["code_commit"] = commit
    for artefact, directory in (("corpus", home.corpus(dump)), ("vocabulary", home.vocabulary(dump))):
        if (directory / "manifest.json").is_file():
            tags[f"{artefact}_sha256"] = load_manifest(directory, kind=artefact).sha256
    lengths = sorted(home.instances(dump, 0).parent.glob("*/manifest.json"), key=lambda path: path.parent.name.zfill(9))
    if lengths:
        tags["instances_sha256"] = " ".join(load_manifest(path.parent, kind="instances").sha256 for path in lengths)
    return tags


@functools.cache
def code_commit() -> str:
    """The commit of the working tree, "+changes" where files differ from it; "" outside a git checkout."""
    try:
        commit = _git("rev-parse", "HEAD")
        return f"{commit}+changes" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return ""


def text_licence(sources: Sequence[str], dump: str) -> str:
    """The licence of the text that a model was trained on, where it is known; "" for files of the user's own."""
    if sample_seed(dump) is not None:
        return SAMPLE_LICENCE
    return WIKIPEDIA_LICENCE if sources and all(source.startswith("wikipedia:") for source in sources) else ""


def _git(*words: str) -> str:
    result = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    return result.stdout.strip()
