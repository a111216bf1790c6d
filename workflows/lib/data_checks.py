"""Checks of the data: dump, corpus, vocabulary, instances and exam."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bert_model.training.home import artifact_cache
from bert_pipeline.corpus.batches import count_flaws
from bert_pipeline.corpus.documents import content_digest
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.errors import BertError
from bert_pipeline.exam.pairs import read_pairs
from bert_pipeline.failed_records import DROPPED_NAME, FAILED
from bert_pipeline.hashes import file_sha256
from bert_pipeline.instances.directory import open_shard, shard_paths, verify_shard
from bert_pipeline.manifest import Manifest, load_manifest, local_artifact
from bert_pipeline.storage import is_file, open_binary
from bert_pipeline.vocabulary.quality import MAX_ENGLISH_UNKNOWN_SHARE, MAX_UNKNOWN_SHARE
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from workflows.lib.checks import Check, Verdict, check_of, failed, fails_if_unreadable
from workflows.lib.lineage import dump_sources
from workflows.lib.resources import BertHome, sample_seed

MARKUP_WARNING_SHARE, MAX_MARKUP_SHARE = 1e-3, 1e-2
"""Of the sentences: text that another program extracted has a few in a thousand; more than the second share stop the
run."""
MAX_BROKEN_SHARE = 1e-2
UNKNOWN_SAMPLE_SENTENCES = 20_000
RANDOM_NEXT_BOUNDS = (0.2, 0.9)
"""Slightly over half by the algorithm; more where most chunks hold one sentence, as at very short lengths."""
MIN_SHARE_OF_EARLIER = 0.8
"""Of the sentences of the previous dump of the same wiki."""


@check_of("dump")
def dump_readable(home: BertHome, dump: str) -> Verdict:
    """The dump's files are there and unchanged."""
    directory = home.dump(dump)
    manifest = load_manifest(directory, verify="sha256")
    sources = dump_sources(directory)
    if not sources:
        return failed(f"{directory}: no dump file in it")

    for number, source in enumerate(sources):
        path = source.partition(":")[2]
        if not is_file(path):
            return failed(f"{path}: is gone")
        # Named files are outside of the directory: the manifest has them among its inputs, by their number.
        recorded = manifest.inputs.get(f"{number:02d}", {})
        if recorded and file_sha256(path) != recorded["sha256"]:
            return failed(f"{path}: changed since the dump was materialized")
    return Verdict(True, f"{len(sources)} source file(s)", {"sources": len(sources)})


@check_of("corpus")
def corpus_intact(home: BertHome, dump: str) -> Verdict:
    """Every shard has the bytes that the manifest records."""
    manifest = load_manifest(home.corpus(dump), kind="corpus", verify="sha256")
    size = sum(entry["bytes"] for entry in manifest.files.values())
    description = f"{len(manifest.files)} files, {size:,} bytes, as in the manifest"
    return Verdict(True, description, {"sha256": manifest.sha256, "bytes": size})


@check_of("corpus")
def corpus_not_empty(home: BertHome, dump: str) -> Verdict:
    """There are training and held-out documents with sentences, as many as the manifest counts."""
    manifest = load_manifest(home.corpus(dump), kind="corpus")
    documents: collections.Counter[str] = collections.Counter()
    sentences = 0
    for document in _documents(home.corpus(dump)):
        documents[document.split] += 1
        sentences += len(document.sentences)
    metadata = {"train": documents["train"], "held_out": documents["held_out"], "sentences": sentences}

    # One document alone cannot be both trained on and held out.
    counted = manifest.counts.get("documents", documents.total())
    if not documents["train"] or not sentences:
        return failed("no training documents with sentences", metadata)
    if documents.total() >= 2 and not documents["held_out"]:
        return failed("no document is held out", metadata)
    if documents.total() != counted:
        return failed(f"found {documents.total()} documents, the manifest counts {counted}", metadata)
    return Verdict(True, f"{documents.total():,} documents, {sentences:,} sentences", metadata)


@check_of("corpus")
def corpus_without_markup(home: BertHome, dump: str) -> Verdict:
    """At most 0.1 % of the sentences hold wikitext or HTML; up to 1 %, the failure is a warning."""
    verdict = _verdict_on_sentences(home.corpus(dump), "markup", "markup", MARKUP_WARNING_SHARE)
    return dataclasses.replace(verdict, is_warning=verdict.metadata["markup_share"] <= MAX_MARKUP_SHARE)


@check_of("corpus", warns=True)
def corpus_without_broken_text(home: BertHome, dump: str) -> Verdict:
    """At most 1 % of the sentences lack a part ("born in ,"), as happens where a wiki's templates are unknown."""
    return _verdict_on_sentences(home.corpus(dump), "broken_text", "broken text", MAX_BROKEN_SHARE)


@check_of("corpus", warns=True)
def corpus_without_failures(home: BertHome, dump: str) -> Verdict:
    """The code could digest every page, row and line; others are in dropped.tsv, as many as the manifest counts."""
    manifest = load_manifest(home.corpus(dump), kind="corpus")
    counted = manifest.counts.get("dropped", {}).get(FAILED, 0)
    with open_binary(manifest.path / DROPPED_NAME) as stream:
        rows = (line.decode().rstrip("\n").split("\t") for line in stream)
        listed = [f"{key} {title}: {reason}" for key, reason, title in rows if reason.startswith(f"{FAILED}: ")]
    if len(listed) != counted:
        return failed(f"{DROPPED_NAME} lists {len(listed):,} failed records, the manifest counts {counted:,}")
    read = manifest.counts.get("pages_read", 0)
    return Verdict(
        passed=not counted,
        description=f"{counted:,} of {read:,} records failed and are not in the corpus",
        metadata={"failed": counted, "examples": "\n".join(listed[:5]) or "none"},
    )


def _verdict_on_sentences(corpus: Path, key: str, fault: str, limit: float) -> Verdict:
    """Pass if a share of the sentences at most has the fault of a key of `count_flaws`: prose may quote a brace."""
    sentences = hits = 0
    examples: list[str] = []
    for document in _documents(corpus):
        sentences += len(document.sentences)
        faulty = np.flatnonzero(count_flaws(pa.array(document.sentences, pa.string()))[key])
        hits += len(faulty)
        examples += [f"{document.document_id}: {document.sentences[row][:200]}" for row in faulty[: 5 - len(examples)]]

    share = hits / max(1, sentences)
    return Verdict(
        passed=share <= limit,
        description=f"{hits} of {sentences:,} sentences with {fault}, at most {limit:.1%} allowed",
        metadata={f"{fault.replace(' ', '_')}_share": share, "examples": "\n".join(examples) or "none"},
    )


@check_of("corpus")
def corpus_split_disjoint(home: BertHome, dump: str) -> Verdict:
    """No document is in both training and held-out data, or occurs twice."""
    seen_text: dict[bytes, tuple[str, str]] = {}
    seen_ids: set[str] = set()
    duplicates: list[str] = []
    for document in _documents(home.corpus(dump)):
        # Digests instead of texts, so that the documents of a whole Wikipedia fit into memory.
        digest = content_digest(document)
        if document.document_id in seen_ids:
            duplicates.append(f"{document.document_id} occurs twice")
        elif digest in seen_text:
            other, split = seen_text[digest]
            duplicates.append(f"{document.document_id} ({document.split}) has the text of {other} ({split})")
        seen_ids.add(document.document_id)
        seen_text[digest] = (document.document_id, document.split)
    return Verdict(
        passed=not duplicates,
        description="; ".join(duplicates[:5]) or f"{len(seen_ids):,} documents, all different",
        metadata={"duplicates": len(duplicates)},
    )


@check_of("corpus")
def corpus_not_shrunken(home: BertHome, dump: str) -> Verdict:
    """The corpus is not much smaller than that of the previous dump of the same wiki."""
    if sample_seed(dump) is not None:
        return Verdict(True, "a generated sample is as large as it was asked to be")
    wiki = dump.rpartition("-")[0]
    others = home.dump_directory(dump).parent.glob(f"{wiki}-*") if wiki else ()
    # Names end with the date, so that their order is that of time; the newest earlier dump with a corpus counts.
    earlier = sorted((path.name for path in others if path.name < dump), reverse=True)
    num_sentences = sum(len(document.sentences) for document in _documents(home.corpus(dump)))
    for previous in earlier:
        try:
            expected = int(load_manifest(home.corpus(previous), kind="corpus").counts.get("sentences", 0))
        except BertError:  # that dump has no corpus
            continue
        share = num_sentences / max(1, expected)
        return Verdict(
            passed=share >= MIN_SHARE_OF_EARLIER,
            description=f"{share:.0%} of the {expected:,} sentences of {previous}, expected at least "
            f"{MIN_SHARE_OF_EARLIER:.0%}; a part of a dump wants another name than the whole",
            metadata={"share_of_earlier": share},
        )
    return Verdict(True, "no earlier dump of this wiki to compare with")


@check_of("vocabulary")
def vocabulary_layout(home: BertHome, dump: str) -> Verdict:
    """The vocabulary has its configured size, the special tokens, and no token twice."""
    manifest = load_manifest(home.vocabulary(dump), kind="vocabulary", verify="sha256")
    tokenizer = Tokenizer.from_directory(home.vocabulary(dump))
    configured = manifest.configuration.get("vocab_size", tokenizer.vocab_size)
    added = len(manifest.configuration.get("special_tokens", ()))
    if not configured <= tokenizer.vocab_size <= configured + added:
        return failed(f"{tokenizer.vocab_size} tokens, asked for {configured}")
    metadata = {"vocab_size": tokenizer.vocab_size, "unk_id": tokenizer.unk_id, "mask_id": tokenizer.mask_id}
    return Verdict(True, f"{tokenizer.vocab_size:,} tokens, [PAD] is {tokenizer.pad_id}", metadata)


@check_of("vocabulary")
def vocabulary_unknown_rate(home: BertHome, dump: str) -> Verdict:
    """Held-out text is nearly free of [UNK]: at most 0.1 % of the tokens in English (a warning up to 2 %)."""
    tokenizer = Tokenizer.from_directory(home.vocabulary(dump))
    languages: collections.Counter[str] = collections.Counter()
    sentences: list[str] = []
    # Whole held-out documents, until the sample is large enough.
    for document in _documents(home.corpus(dump)):
        if document.split == "held_out":
            sentences.extend(document.sentences)
            languages[document.language] += len(document.sentences)
        if len(sentences) >= UNKNOWN_SAMPLE_SENTENCES:
            break
    tokens = unknown = 0
    for ids in tokenizer.encode_batch(sentences):
        tokens += len(ids)
        unknown += sum(token == tokenizer.unk_id for token in ids)

    # Most of the sample decides the language, and so the limit.
    share = unknown / max(1, tokens)
    is_english = {language for language, _ in languages.most_common(1)} <= {"en", "simple"}
    limit = MAX_ENGLISH_UNKNOWN_SHARE if is_english else MAX_UNKNOWN_SHARE
    return Verdict(
        passed=bool(tokens) and share <= limit,
        description=f"{unknown} of {tokens:,} held-out tokens are [UNK] ({share:.3%}), at most {limit:.1%} expected",
        metadata={"unknown_share": share, "tokens": tokens},
        is_warning=bool(tokens) and share <= MAX_UNKNOWN_SHARE,
    )


def each_length(check: Callable[[Path], Verdict]) -> Check:
    """Apply a check of one directory of instances to those of all sequence lengths."""
    # Of instances in a store, the copy is checked that a training on this machine reads.
    checked = fails_if_unreadable(lambda directory: check(local_artifact(directory, artifact_cache())))

    @functools.wraps(check)
    def check_all(home: BertHome, dump: str) -> Verdict:
        directories = home.all_instances(dump)
        if not directories:
            return failed("no instances at all")
        verdicts = {directory.name: checked(directory) for directory in directories}
        return Verdict(
            passed=all(verdict.passed for verdict in verdicts.values()),
            description="; ".join(f"{length}: {verdict.description}" for length, verdict in verdicts.items()),
            metadata={f"{length}/{k}": v for length, verdict in verdicts.items() for k, v in verdict.metadata.items()},
        )

    return check_all


@check_of("instances")
@each_length
def instances_well_formed(directory: Path) -> Verdict:
    """Every instance of every length is [CLS] A [SEP] B [SEP], or without pairs [CLS] A [SEP], and fits."""
    manifest = load_manifest(directory, kind="instances", verify="sha256")
    tokenizer = Tokenizer.from_directory(directory)
    counts = {"train": 0, "held_out": 0}
    for split in counts:
        for path, columns in _instance_columns(manifest, split):
            counts[split] += len(columns.is_random_next)
            # One malformed instance is enough: the directory is not trained on.
            if defect := _malformed(columns, tokenizer, manifest.configuration):
                return failed(f"{path}: {defect}")
    if not counts["train"]:
        return failed("no training instances", counts)
    description = f"{counts['train']:,} training and {counts['held_out']:,} held-out instances, all well formed"
    return Verdict(True, description, dict(counts))


@check_of("instances")
@each_length
def next_sentence_balance(directory: Path) -> Verdict:
    """Random and true next sentences are balanced, if there are pairs."""
    random_next = total = 0
    manifest = load_manifest(directory, kind="instances")
    if manifest.configuration.get("pairs") == "none":
        return Verdict(passed=True, description="rows of text, without pairs")
    for _, columns in _instance_columns(manifest, "train"):
        random_next += int(np.count_nonzero(columns.is_random_next))
        total += len(columns.is_random_next)
    share = random_next / max(1, total)
    low, high = RANDOM_NEXT_BOUNDS
    return Verdict(
        passed=bool(total) and low <= share <= high,
        description=f"{share:.1%} of {total:,} pairs are random, expected {low:.0%} to {high:.0%}",
        metadata={"random_next_share": share},
    )


@check_of("exam")
def exam_of_held_out_documents(home: BertHome, dump: str) -> Verdict:
    """The pairs are made from held-out documents, and there are some for choosing and some for reporting."""
    directory = home.exam(dump)
    if not directory.is_dir():
        return Verdict(True, "no pairs: the preset has no section `exam`, or the text gives none")
    load_manifest(directory, kind="exam", verify="sha256")
    pairs = read_pairs(directory)
    held_out = {document.document_id for document in _documents(home.corpus(dump)) if document.split == "held_out"}
    seen = sum(pair.source not in held_out for pair in pairs)
    parts = collections.Counter[str](pair.part for pair in pairs)
    kinds = collections.Counter(pair.kind for pair in pairs)
    return Verdict(
        passed=not seen and len(parts) == 2,
        description=f"{parts['choosing']} pairs for choosing, {parts['reporting']} for reporting; {seen} of documents "
        "that are not held out",
        metadata={**parts, **kinds, "pairs_of_other_documents": seen},
        is_warning=not seen,  # a small corpus holds one or two documents out; it can be trained on without an exam
    )


def _malformed(columns: Any, tokenizer: Any, configuration: Mapping[str, Any]) -> str:
    """Return what is wrong with the first malformed instance, or ""."""
    ids, offsets = columns.input_ids, columns.offsets
    lengths = np.diff(offsets)
    if not len(lengths):
        return ""
    starts, ends = offsets[:-1], offsets[1:] - 1
    max_length, has_pairs = configuration["max_seq_length"], configuration.get("pairs") != "none"
    min_length, b_start = (5 if has_pairs else 3), columns.segment_b_start
    is_outside = (b_start < 3) | (b_start >= lengths) if has_pairs else b_start != lengths

    # One array of booleans for each rule, over all instances of the row group. A segment B that is outside has no token
    # in front of it, and is reported first.
    before_b = ids[np.minimum(starts + np.maximum(b_start, 1) - 1, ends)]
    tests = {
        f"is longer than {max_length} tokens": lengths > max_length,
        f"has fewer than {min_length} tokens": lengths < min_length,
        "does not begin with [CLS]": ids[starts] != tokenizer.cls_id,
        "does not end with [SEP]": ids[ends] != tokenizer.sep_id,
        "has its segment B outside": is_outside,
        "has no [SEP] before segment B": before_b != tokenizer.sep_id,
    }
    for what, wrong in tests.items():
        if wrong.any():
            return f"instance {int(np.flatnonzero(wrong)[0])} {what}"
    if int(ids.min()) < 0 or int(ids.max()) >= tokenizer.vocab_size:
        return f"a token id is {int(ids.max())}, the vocabulary has {tokenizer.vocab_size}"
    return _wrongly_masked(columns, tokenizer) if columns.is_masked else ""


def _wrongly_masked(columns: Any, tokenizer: Any) -> str:
    """Return what is wrong with the first instance whose masks are wrong, or ""."""
    counts = np.diff(columns.masked_offsets)
    row = np.repeat(np.arange(len(counts)), counts)  # (M,)
    position, original = columns.masked_lm_positions, columns.masked_lm_ids
    follows = np.flatnonzero(row[1:] == row[:-1]) + 1  # (M',) all but the first of an instance
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


def _documents(corpus: Path) -> Iterator[Any]:
    for path in load_manifest(corpus, kind="corpus").file_paths("documents-"):
        yield from read_documents(path)


def _instance_columns(manifest: Manifest, split: str) -> Iterator[tuple[Path, Any]]:
    for path in shard_paths(manifest, split):
        verify_shard(manifest, path)
        with open_shard(path) as shard:
            for index in range(shard.num_row_groups):
                yield path, shard.read_row_group(index)
