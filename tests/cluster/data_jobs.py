"""The data jobs on a small dump: what a local run gives, and the same jobs from a bucket to a bucket."""

import bz2
from collections.abc import Sequence
from pathlib import Path

from small_corpus import make_documents
from small_exports import make_export, make_page

from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.storage import sizes_below, to_path
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

STAGES = ("corpus", "vocabulary", "instances")
LOCAL = ("--workers", "1")


def write_dump(path: Path) -> Path:
    """Write a dump of a few hundred pages, in several bzip2 streams."""
    texts = [" ".join(document.sentences) for document in make_documents(300)]
    pages = [make_page(number, text, title=f"Title {number}") for number, text in enumerate(texts, start=1)]
    path.write_bytes(bz2.compress(make_export(*pages).encode(), 1))
    return path


def build(stage: str, source: str, home: str, options: Sequence[str]) -> Manifest:
    """Run one job; the ones before it have left their artifacts below `home`."""
    if stage == "corpus":
        config = CorpusConfig(split_bytes=20_000, shard_bytes=40_000, held_out_per_mille=100)
        return build_corpus([source], f"{home}/corpus", config, options)
    if stage == "vocabulary":
        config = VocabularyConfig(vocab_size=250, pad_with_unused=True)
        return build_vocabulary(f"{home}/corpus", f"{home}/vocabulary", config, options)
    config = InstancesConfig(max_seq_length=32, dupe_factor=2)
    return build_instances(f"{home}/corpus", f"{home}/vocabulary", f"{home}/instances", config, options)


def build_all(source: str, home: str, options: Sequence[str]) -> dict[str, str]:
    """Run the three jobs; return the hashes of what they made."""
    return {stage: build(stage, source, home, options).sha256 for stage in STAGES}


def left_over(directory: str) -> list[str]:
    """Return the objects below a directory that are no part of its artifact; all of them if there is none."""
    found = set(sizes_below(to_path(directory)))
    if "manifest.json" not in found:
        return sorted(found)
    manifest = load_manifest(directory)
    attempt = manifest.provenance["attempt"]
    return sorted(found - {f"{attempt}/{name}" for name in manifest.files} - {"manifest.json"})
