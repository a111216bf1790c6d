"""Judging data artefacts by reopening them: nothing here trusts what an asset said about itself.

Every function takes paths and returns a `Verdict`; the asset checks wrap them.
"""

import collections
import dataclasses
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_pipeline.errors import BertError
from bert_pipeline.manifest import Manifest, file_sha256, load_manifest

MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|'''|<\s*/?\s*(?:ref|nowiki|math|gallery|table|div|span|br|small|sub|sup|blockquote)\b"
    r"|&(?:nbsp|amp|lt|gt|quot|ndash|mdash);|\b(?:File|Image|Category):\S+\.(?:jpg|jpeg|png|svg|gif)|\bthumb\|"
    r"|^\s*={2,}.*={2,}\s*$|__[A-Z]{3,}__",
    re.IGNORECASE,
)
"""What wikitext or HTML would look like had it stayed in a sentence."""

MAX_MARKUP_SHARE = 1e-3
MAX_UNKNOWN_SHARE = 0.02
"""More than this would waste a training, in any language."""
MAX_ENGLISH_UNKNOWN_SHARE = 0.001
"""More than this in English says that characters are missing, or that the held-out text is of another kind."""
UNKNOWN_SAMPLE_SENTENCES = 20_000
RANDOM_NEXT_BOUNDS = (0.2, 0.9)
"""Slightly over half by the algorithm; more where most chunks hold one sentence, as at very short lengths."""
MIN_SHARE_OF_EARLIER = 0.8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a check found."""

    passed: bool
    description: str
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_warning: bool = False
    """A failure that is shown and stops nothing."""


def intact(directory: Path, kind: str | None = None) -> Verdict:
    """Every file that the manifest lists is there, byte for byte."""
    try:
        manifest = load_manifest(directory, kind=kind, verify="sha256")
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    size = sum(entry["bytes"] for entry in manifest.files.values())
    return Verdict(
        passed=True,
        description=f"{len(manifest.files)} files, {size:,} bytes, as the manifest says",
        metadata={"sha256": manifest.sha256, "bytes": size},
    )


def dump_readable(directory: Path, sources: list[str]) -> Verdict:
    """The dump's files are there and are the ones that were materialized."""
    verdict = intact(directory)
    if not verdict.passed:
        return verdict
    manifest = load_manifest(directory)
    if not sources:
        return Verdict(passed=False, description=f"{directory}: no dump file in it")
    expected = {entry["name"]: entry["sha256"] for entry in manifest.inputs.values() if "sha256" in entry}
    for source in sources:
        path = Path(source.partition(":")[2])
        if not path.is_file():
            return Verdict(passed=False, description=f"{path}: is gone")
        if path.name in expected and file_sha256(path) != expected[path.name]:
            return Verdict(passed=False, description=f"{path}: changed since the dump was materialized")
    return Verdict(passed=True, description=f"{len(sources)} source file(s)", metadata={"sources": len(sources)})


def corpus_not_empty(directory: Path) -> Verdict:
    """There are training documents, held-out documents and sentences, as many as the manifest counts."""
    documents: collections.Counter[str] = collections.Counter()
    sentences = 0
    try:
        manifest = load_manifest(directory, kind="corpus")
        for document in _documents(manifest):
            documents[document.split] += 1
            sentences += len(document.sentences)
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    metadata = {"train": documents["train"], "held_out": documents["held_out"], "sentences": sentences}
    counted = manifest.counts.get("documents", documents.total())
    if not documents["train"] or not sentences:
        return Verdict(passed=False, description="no training documents with sentences", metadata=metadata)
    if documents.total() >= 2 and not documents["held_out"]:
        return Verdict(passed=False, description="no document is held out", metadata=metadata)
    if documents.total() != counted:
        description = f"found {documents.total()} documents, the manifest counts {counted}"
        return Verdict(passed=False, description=description, metadata=metadata)
    return Verdict(
        passed=True, description=f"{documents.total():,} documents, {sentences:,} sentences", metadata=metadata
    )


def corpus_without_markup(directory: Path) -> Verdict:
    """No sentence looks like wikitext or HTML, but for a share of one in a thousand."""
    sentences = hits = 0
    examples: list[str] = []
    try:
        for document in _documents(load_manifest(directory, kind="corpus")):
            for sentence in document.sentences:
                sentences += 1
                if MARKUP.search(sentence):
                    hits += 1
                    if len(examples) < 5:
                        examples.append(f"{document.document_id}: {sentence[:200]}")
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    share = hits / max(1, sentences)
    return Verdict(
        passed=share <= MAX_MARKUP_SHARE,
        description=f"{hits} of {sentences:,} sentences with markup, at most {MAX_MARKUP_SHARE:.1%} allowed",
        metadata={"markup_share": share, "examples": "\n".join(examples) or "none"},
    )


def corpus_split_disjoint(directory: Path) -> Verdict:
    """No document id and no text stands twice, least of all once in training and once in held-out data."""
    seen_text: dict[bytes, tuple[str, str]] = {}
    seen_ids: set[str] = set()
    duplicates: list[str] = []
    try:
        for document in _documents(load_manifest(directory, kind="corpus")):
            text = "\n".join(document.sentences)
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if document.document_id in seen_ids:
                duplicates.append(f"{document.document_id} stands twice")
            elif digest in seen_text:
                other, split = seen_text[digest]
                duplicates.append(f"{document.document_id} ({document.split}) has the text of {other} ({split})")
            seen_ids.add(document.document_id)
            seen_text[digest] = (document.document_id, document.split)
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    return Verdict(
        passed=not duplicates,
        description="; ".join(duplicates[:5]) or f"{len(seen_ids):,} documents, all different",
        metadata={"duplicates": len(duplicates)},
    )


def vocabulary_layout(directory: Path) -> Verdict:
    """The file has the size asked for, the special tokens, and no token twice."""
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    try:
        manifest = load_manifest(directory, kind="vocabulary", verify="sha256")
        tokenizer = Tokenizer.from_directory(directory)
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    asked = manifest.configuration.get("vocab_size", tokenizer.vocab_size)
    if tokenizer.vocab_size != asked:
        return Verdict(passed=False, description=f"{tokenizer.vocab_size} tokens, asked for {asked}")
    return Verdict(
        passed=True,
        description=f"{tokenizer.vocab_size:,} tokens, [PAD] is {tokenizer.pad_id}",
        metadata={"vocab_size": tokenizer.vocab_size, "unk_id": tokenizer.unk_id, "mask_id": tokenizer.mask_id},
    )


def unknown_rate(vocabulary: Path, corpus: Path) -> Verdict:
    """The share of [UNK] among the tokens of held-out text is small, and very small in English."""
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    tokens = unknown = 0
    languages: collections.Counter[str] = collections.Counter()
    try:
        tokenizer = Tokenizer.from_directory(vocabulary)
        sentences: list[str] = []
        for document in _documents(load_manifest(corpus, kind="corpus")):
            if document.split == "held_out":
                sentences.extend(document.sentences)
                languages[document.language] += len(document.sentences)
            if len(sentences) >= UNKNOWN_SAMPLE_SENTENCES:
                break
        for ids in tokenizer.encode_batch(sentences):
            tokens += len(ids)
            unknown += sum(token == tokenizer.unk_id for token in ids)
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    share = unknown / max(1, tokens)
    is_english = {language for language, _ in languages.most_common(1)} <= {"en", "simple"}
    most = MAX_ENGLISH_UNKNOWN_SHARE if is_english else MAX_UNKNOWN_SHARE
    return Verdict(
        passed=bool(tokens) and share <= most,
        description=f"{unknown} of {tokens:,} held-out tokens are [UNK] ({share:.3%}), at most {most:.1%} expected",
        metadata={"unknown_share": share, "tokens": tokens},
        is_warning=bool(tokens) and share <= MAX_UNKNOWN_SHARE,
    )


def instances_well_formed(directory: Path) -> Verdict:
    """Bytes as in the manifest; every instance is [CLS] A [SEP] B [SEP] within the length and the vocabulary."""
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    try:
        manifest = load_manifest(directory, kind="instances", verify="sha256")
        tokenizer = Tokenizer.from_directory(directory)
        longest = int(manifest.configuration["max_seq_length"])
        counts = {"train": 0, "held_out": 0}
        for split in counts:
            for path, columns in _instance_columns(manifest, split):
                counts[split] += len(columns.is_random_next)
                problem = _malformed(columns, tokenizer, longest)
                if problem:
                    return Verdict(passed=False, description=f"{path}: {problem}")
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    if not counts["train"]:
        return Verdict(passed=False, description="no training instances", metadata=counts)
    return Verdict(
        passed=True,
        description=f"{counts['train']:,} training and {counts['held_out']:,} held-out instances, all well formed",
        metadata=counts,
    )


def next_sentence_balance(directory: Path) -> Verdict:
    """Random and true next sentences are both there in numbers that teach something."""
    random_next = total = 0
    try:
        for _, columns in _instance_columns(load_manifest(directory, kind="instances"), "train"):
            random_next += int(np.count_nonzero(columns.is_random_next))
            total += len(columns.is_random_next)
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    share = random_next / max(1, total)
    low, high = RANDOM_NEXT_BOUNDS
    return Verdict(
        passed=bool(total) and low <= share <= high,
        description=f"{share:.1%} of {total:,} pairs are random, expected {low:.0%} to {high:.0%}",
        metadata={"random_next_share": share},
    )


def _malformed(columns: Any, tokenizer: Any, longest: int) -> str:
    """What is wrong with the first malformed instance; "" when none is."""
    ids, offsets = columns.input_ids, columns.offsets
    lengths = np.diff(offsets)
    if not len(lengths):
        return ""
    starts, ends = offsets[:-1], offsets[1:] - 1
    tests = {
        f"is longer than {longest} tokens": lengths > longest,
        "has fewer than 5 tokens": lengths < 5,
        "does not begin with [CLS]": ids[starts] != tokenizer.cls_id,
        "does not end with [SEP]": ids[ends] != tokenizer.sep_id,
        "has its segment B outside": (columns.segment_b_start < 3) | (columns.segment_b_start >= lengths),
    }
    for what, wrong in tests.items():
        if wrong.any():
            return f"instance {int(np.flatnonzero(wrong)[0])} {what}"
    boundary = ids[starts + columns.segment_b_start - 1] != tokenizer.sep_id
    if boundary.any():
        return f"instance {int(np.flatnonzero(boundary)[0])} has no [SEP] before segment B"
    if int(ids.min()) < 0 or int(ids.max()) >= tokenizer.vocab_size:
        return f"a token id is {int(ids.max())}, the vocabulary has {tokenizer.vocab_size}"
    return _wrongly_masked(columns, tokenizer) if columns.is_masked else ""


def _wrongly_masked(columns: Any, tokenizer: Any) -> str:
    """What is wrong with the first instance whose masks are; "" when none is."""
    counts = np.diff(columns.masked_offsets)
    row = np.repeat(np.arange(len(counts)), counts)  # (M,)
    position, original = columns.masked_lm_positions, columns.masked_lm_ids
    follows = np.flatnonzero(row[1:] == row[:-1]) + 1  # (M',) those that another of the same instance precedes
    tests = {
        "has no masks": (np.arange(len(counts)), counts == 0),
        "has a mask beyond its end": (row, (position < 1) | (position >= columns.lengths[row] - 1)),
        "has masks out of order": (row[follows], position[follows] <= position[follows - 1]),
        "has a special token masked": (row, (original == tokenizer.cls_id) | (original == tokenizer.sep_id)),
        "has a masked token outside the vocabulary": (row, (original < 0) | (original >= tokenizer.vocab_size)),
    }
    for what, (rows, wrong) in tests.items():
        if wrong.any():
            return f"instance {int(rows[np.flatnonzero(wrong)[0]])} {what}"
    return ""


def _documents(manifest: Manifest) -> Iterator[Any]:
    from bert_pipeline.corpus.parquet import read_documents

    for path in manifest.file_paths("documents-"):
        yield from read_documents(path)


def _instance_columns(manifest: Manifest, split: str) -> Iterator[tuple[Path, Any]]:
    from bert_pipeline.instances.directory import open_shard, shard_paths

    for path in shard_paths(manifest, split):
        with open_shard(path) as shard:
            for index in range(shard.num_row_groups):
                yield path, shard.read_row_group(index)


def corpus_not_shrunken(data: Path, dump: str) -> Verdict:
    """The corpus has at least 80 % of the sentences of the dump before, of the same wiki, where there is one."""
    wiki = dump.rpartition("-")[0]
    earlier = sorted(path.name for path in data.glob(f"{wiki}-*") if path.name < dump) if wiki else []
    try:
        found = sum(len(document.sentences) for document in _documents(load_manifest(data / dump / "corpus")))
        while earlier:
            before = earlier.pop()
            try:
                expected = int(load_manifest(data / before / "corpus", kind="corpus").counts.get("sentences", 0))
            except BertError:
                continue
            share = found / max(1, expected)
            return Verdict(
                passed=share >= MIN_SHARE_OF_EARLIER,
                description=f"{share:.0%} of the {expected:,} sentences of {before}, expected at least "
                f"{MIN_SHARE_OF_EARLIER:.0%}; a part of a dump wants another name than the whole",
                metadata={"share_of_earlier": share},
            )
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    return Verdict(passed=True, description="no earlier dump of this wiki to compare with")
