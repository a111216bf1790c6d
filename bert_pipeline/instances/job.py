"""The instance job: Beam turns each corpus shard into one instance shard, without grouping anything.

A worker holds the token ids of one corpus shard and its pairs (as spans of them), and writes 4,096 instances at a time.
"""

import collections
import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bert_pipeline.beam.options import num_workers, pipeline_options
from bert_pipeline.beam.results import Result, WriteResults, read_results
from bert_pipeline.beam.workers import ForEachShard, Progress, run_pipeline, shard_rows
from bert_pipeline.corpus import mixture
from bert_pipeline.corpus.parquet import read_sentences, without_failures
from bert_pipeline.errors import InputError
from bert_pipeline.failed_records import record_failures
from bert_pipeline.hashes import file_sha256
from bert_pipeline.instances.columns import InstanceColumns, offsets_of
from bert_pipeline.instances.directory import (
    check_vocabulary,
    is_tfrecord,
    load_instances,
    open_shard,
    open_writers,
    shard_paths,
    verify_shard,
)
from bert_pipeline.instances.masking import whole_word_problem
from bert_pipeline.instances.pairs import InstancesConfig, TokenizedDocuments, make_instances, make_pairs
from bert_pipeline.instances.parquet import INSTANCES_PER_ROW_GROUP
from bert_pipeline.manifest import Manifest, input_of, load_manifest, publishing
from bert_pipeline.parquet_io import footer_sha256
from bert_pipeline.randomness import key_of_text
from bert_pipeline.storage import local_copy, make_directory, remove_tree
from bert_pipeline.vocabulary.encoder import SentenceEncoder
from bert_pipeline.vocabulary.files import CONFIGURATION_NAME
from bert_pipeline.vocabulary.quality import ratio
from bert_pipeline.vocabulary.tokenizer import Tokenizer

log = logging.getLogger(__name__)

SPLITS = ("train", "held_out")
_LENGTH_BINS = 8
_TOKENIZERS_PARALLELISM = "TOKENIZERS_PARALLELISM"


def build_instances(
    corpus: Path | str,
    vocabulary: Path | str,
    output: Path | str,
    config: InstancesConfig,
    beam_options: Sequence[str] = (),
    *,
    progress: Progress | None = None,
    cased: bool | None = None,
) -> Manifest:
    """Build pre-training instances from a corpus: one shard per corpus shard, in `train/` and `held_out/`.

    `vocabulary` is a directory with vocab.txt and tokenizer_config.json, of `bert vocab` or of any BERT; `cased` is its
    case if these do not state it. The content is a function of the inputs and the configuration, for any runner.
    ArtifactError and InputError if an input is malformed, or if the corpus yields no instance.
    """
    source = load_manifest(corpus, kind="corpus")
    tokenizer = Tokenizer.from_directory(vocabulary, cased=cased)
    tokenizer.check_case(cased, vocabulary)
    # A vocabulary is identified by what decides the ids, whatever directory it is in.
    inputs = {
        "corpus": input_of(source),
        "vocabulary": {
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "do_lower_case": tokenizer.do_lower_case,
        },
    }
    texts = () if config.is_plain else tuple(mixture.weigh_texts(source, config))
    with publishing(
        output, kind="instances", configuration=mixture.recorded_settings(config), inputs=inputs, by_workers=True
    ) as draft:
        # Instances carry their vocabulary: training, and any other reader, needs the meaning of the ids.
        tokenizer.save(draft.path)
        draft.rows[tokenizer.vocabulary_name] = tokenizer.vocab_size
        draft.files_without_rows = {CONFIGURATION_NAME}
        for split in SPLITS:
            make_directory(draft.path / split)
        summaries = draft.path / "summaries"
        make_directory(summaries)

        # One task per corpus shard; its worker writes the instances to the draft and returns a summary.
        options = pipeline_options(beam_options)
        plan = shard_rows(source)
        make = functools.partial(
            _make_shard, output=draft.path.resolve(), vocabulary_sha256=tokenizer.sha256, config=config, texts=texts
        )
        with run_pipeline(options, preload=__name__, draft=draft, progress=progress, total=len(plan)) as pipeline:
            made = pipeline | "instances" >> ForEachShard(make, source)
            _ = made | "results" >> WriteResults(summaries / "results.json")

        results = read_results(summaries / "results.json", plan)
        remove_tree(summaries)
        record_failures(draft, results)
        for name, entry in itertools.chain.from_iterable(result["files"].items() for result in results):
            draft.rows[name] = entry["rows"]
            draft.known_sha256[name] = entry["sha256"]
            if "footer_sha256" in entry:
                draft.footer_sha256[name] = entry["footer_sha256"]
        # Shares follow from the sums over all shards.
        counts: dict[str, collections.Counter[str]] = {}
        no_lengths = np.zeros(config.max_seq_length + 1, dtype=np.int64)
        for split in SPLITS:
            lengths = sum((np.array(result[split].pop("length_histogram")) for result in results), no_lengths)
            counts[split] = sum((collections.Counter(result[split]) for result in results), collections.Counter())
            draft.counts[split] = _shares(counts[split], lengths, config.max_seq_length)
        for name in ("instances", "tokens", "random_next", "documents"):
            draft.counts[name] = sum(counts[split][name] for split in SPLITS)
        if texts:
            read = np.array([result["read"] for result in results]).sum(axis=0)
            draft.counts["mixture"] = mixture.describe_mixture(texts, dict(zip(_READ, read.tolist())))
        if not counts["train"]["instances"]:
            what = "pair of sentences" if config.pairs == "next_sentence" else "text"
            raise InputError(f"{corpus}: its training documents yield no {what}; give a larger corpus")
        draft.provenance["workers"] = num_workers(options)
        share = counts["train"]["continuing"] / counts["train"]["tokens"]
        if config.whole_word_masking and (problem := whole_word_problem(share)):
            log.warning("%s", problem)
        for split in SPLITS:
            if config.pairs == "next_sentence":
                _warn_of_one_label(split, counts[split])
            shares = draft.counts[split]
            if shares.get("capped_share", 0) > 0.01:
                log.warning(
                    f"--max-predictions-per-seq {config.max_predictions_per_seq} is too small for "
                    f"{100 * shares['capped_share']:.0f} % of the {split} instances: "
                    f"{100 * shares['masked_share']:.1f} % of the tokens are predicted, not "
                    f"{100 * config.masked_lm_prob:g} %; leave it out, which takes the share of --max-seq-length"
                )
    return load_manifest(output, kind="instances")


def _warn_of_one_label(split: str, counts: collections.Counter[str]) -> None:
    """Warn if the next sentence is random in no pair of a split, or in all of them."""
    if counts["instances"] and not counts["random_next"]:
        remedy = "hold out more (bert corpus --held-out-per-mille)" if split == "held_out" else "give more"
        log.warning(
            f"none of the {counts['instances']:,} pairs of the {split} split has a random next sentence, because it "
            "comes from another document of the shard and there is only one (documents in all: "
            f"{counts['documents']:,}): {remedy}, or separate the documents of a text file by blank lines and name it "
            "lines:"
        )
    elif counts["instances"] and counts["random_next"] == counts["instances"]:
        log.warning(
            f"all {counts['instances']:,} pairs of the {split} split have a random next sentence, because each "
            "document is a single sentence: were paragraphs read as documents? Running text is named book:"
        )


@functools.lru_cache(maxsize=1)
def _sentence_encoder(directory: Path, sha256: str) -> SentenceEncoder:
    """Load a tokenizer once per worker; the hash tells apart vocabularies that are written to one directory."""
    return SentenceEncoder(Tokenizer.from_directory(directory))


@contextlib.contextmanager
def _single_threaded_tokenizers() -> Iterator[None]:
    """Keep the tokenizers library from starting threads: they would compete with the other workers."""
    before = os.environ.get(_TOKENIZERS_PARALLELISM)
    os.environ[_TOKENIZERS_PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_TOKENIZERS_PARALLELISM, None)  # another thread may have done so
        else:
            os.environ[_TOKENIZERS_PARALLELISM] = before


def _make_shard(
    index: int,
    shard: Path,
    *,
    output: Path,
    vocabulary_sha256: str,
    config: InstancesConfig,
    texts: Sequence[mixture.WeightedText],
) -> Sequence[Result]:
    """Write the instance shards, of both splits, of one corpus shard; returns their rows, hashes and counts.

    `texts` are the weights of the training documents, if they are not all 1.
    """
    with _single_threaded_tokenizers():
        encoder = _sentence_encoder(output, vocabulary_sha256)
        (tokenized, num_read), failed = without_failures(
            shard, lambda leave_out: tokenize_shard(shard, encoder, leave_out), encoder.encode
        )
    summary: Result = {"name": shard.name, "rows": num_read + len(failed), "failed": failed, "files": {}}
    for split, documents in tokenized.items():
        if texts and split == "train":
            planned = mixture.plan_passes(shard, texts, config.dupe_factor, config.seed)
            planned = planned[np.searchsorted(planned["key"], documents.keys)]  # others have failed or have no tokens
            pairs = make_pairs(documents, config, planned["passes"])
            text_of_pairs = planned["text"][documents.document_of(pairs.a_start)]
            summary["read"] = _count_read(planned, text_of_pairs, len(texts))
        else:
            pairs = make_pairs(documents, config)
        counts: collections.Counter[str] = collections.Counter()
        histogram = np.zeros(config.max_seq_length + 1, dtype=np.int64)
        # Files get their names when the stack closes. A split without pairs has no file.
        with contextlib.ExitStack() as stack:
            writers = open_writers(stack, output / split, index, config) if len(pairs) else {}
            for start in range(0, len(pairs), INSTANCES_PER_ROW_GROUP):
                batch = pairs.take(slice(start, start + INSTANCES_PER_ROW_GROUP))
                columns = make_instances(documents, batch, encoder.tokenizer, config, counts)
                histogram += np.bincount(columns.lengths, minlength=len(histogram))
                for writer in writers.values():
                    writer.write(columns)

        # Hash here, in the worker, while the bytes are still in the page cache.
        for path, writer in writers.items():
            entry = {"rows": writer.rows, "sha256": file_sha256(path)}
            if path.suffix == ".parquet":
                entry["footer_sha256"] = footer_sha256(path)
            summary["files"][path.relative_to(output).as_posix()] = entry
        summary[split] = {
            **counts,
            "length_histogram": histogram.tolist(),
            "documents": documents.num_documents,
            "sentences": len(documents.sentence_offsets) - 1,
            "chunks_without_partner": pairs.num_without_partner,
        }
        log.debug("shard %05d: %d %s instances", index, len(pairs), split)
    return [summary]


_READ = ("documents_read", "words_read", "instances")
"""What is counted of each source and language in a mixture; words as often as they are read."""


def _count_read(planned: np.ndarray, text_of_instances: np.ndarray, num_texts: int) -> list[list[int]]:
    """Return the counts `_READ` of each text, given `PASSES` (D,) of documents and the text (N,) of each instance."""
    words = np.zeros(num_texts, dtype=np.int64)
    np.add.at(words, planned["text"], planned["words"] * planned["passes"])
    documents = np.bincount(planned["text"][planned["passes"] > 0], minlength=num_texts)
    instances = np.bincount(text_of_instances, minlength=num_texts)
    return [documents.tolist(), words.tolist(), instances.tolist()]


def tokenize_shard(
    shard: Path | str, encoder: SentenceEncoder, leave_out: Collection[str] = ()
) -> tuple[dict[str, TokenizedDocuments], int]:
    """Tokenize the documents of a corpus shard, by split; sentences and documents without tokens are dropped.

    Returns the documents of each split, and how many documents were read: all but those of the ids in `leave_out`.
    """
    num_read = 0
    # Two bytes per id where they suffice: the tokens are the largest array that a worker holds.
    tokenizer = encoder.tokenizer
    dtype = np.uint16 if tokenizer.vocab_size <= 65_536 and tokenizer.is_bert else np.int32
    # Of each row group: tokens, lengths of sentences, sentences of documents, keys of documents.
    nothing = tuple(np.zeros(0, kind) for kind in (dtype, np.int64, np.int64, np.uint64))
    parts = {split: [nothing] for split in SPLITS}
    for table, offsets, sentences in read_sentences(shard, leave_out):
        num_read += table.num_rows
        if not tokenizer.is_word_based:  # later sentences of a document follow a blank
            blanks = np.full(len(sentences), " ", dtype=object)
            blanks[offsets[:-1][np.diff(offsets) > 0]] = ""
            sentences = pc.binary_join_element_wise(pa.array(blanks, sentences.type), sentences, "")
        group_tokens, group_lengths = encoder.encode(sentences)
        splits = np.array(table.column("split").to_pylist())
        document = np.repeat(np.arange(len(splits)), np.diff(offsets))  # (S,)
        for split in SPLITS:
            in_split = (splits == split)[document]  # (S,)
            tokens = group_tokens[np.repeat(in_split, group_lengths)].astype(dtype)
            kept = in_split & (group_lengths > 0)
            # A document that lost all sentences has no offset and no key.
            counts = np.bincount(document[kept], minlength=len(splits))
            identifiers = table.column("document_id").take(np.flatnonzero(counts)).to_pylist()
            keys = np.array([key_of_text(identifier) for identifier in identifiers], dtype=np.uint64)
            parts[split].append((tokens, group_lengths[kept], counts[counts > 0], keys))
    tokenized = {}
    for split in SPLITS:
        tokens, lengths, num_sentences, keys = map(np.concatenate, zip(*parts.pop(split)))
        sentence_offsets, document_offsets = offsets_of(lengths), offsets_of(num_sentences)
        tokenized[split] = TokenizedDocuments(
            tokens=tokens, sentence_offsets=sentence_offsets, document_offsets=document_offsets, keys=keys
        )
    return tokenized, num_read


def _shares(counts: collections.Counter[str], histogram: np.ndarray, max_seq_length: int) -> dict[str, Any]:
    """Return the counts and shares of a split for the manifest."""
    instances, tokens, masked = counts["instances"], counts["tokens"], counts["masked_tokens"]
    # `unique`, because a short max_seq_length has fewer lengths than bins.
    edges = np.unique(np.linspace(0, max_seq_length, _LENGTH_BINS + 1).astype(int))
    result: dict[str, Any] = {
        name: counts[name]
        for name in ("documents", "sentences", "instances", "tokens", "random_next", "chunks_without_partner")
    }
    result["random_next_share"] = ratio(counts["random_next"], instances)
    result["padding_share"] = round(1 - ratio(tokens, instances * max_seq_length), 6) if instances else 0.0
    result["unk_share"] = ratio(counts["unk_tokens"], tokens)
    result["lengths"] = {
        f"{low + 1}-{high}": int(histogram[low + 1 : high + 1].sum()) for low, high in itertools.pairwise(edges)
    }
    # Dynamic masks are drawn in training, so there is nothing to count here.
    if masked:
        result["masked_share"] = ratio(masked, tokens)
        result["capped_share"] = ratio(counts["capped"], instances)
        for name in ("mask", "same", "random"):
            result[f"masked_as_{name}_share"] = ratio(counts[f"masked_as_{name}"], masked)
    return result


def show_instances(directory: Path | str, count: int) -> Iterator[str]:
    """Yield the first `count` training instances of a directory as text, with masks and labels."""
    manifest = load_instances(directory)
    tokenizer = Tokenizer.from_directory(manifest.path)
    left = count
    for path in shard_paths(manifest, "train"):
        verify_shard(manifest, path)
        # TFRecord has no index, so a file in a store is read whole.
        copying = local_copy(path) if is_tfrecord(path.name) else contextlib.nullcontext(path)
        with copying as place, open_shard(place) as shard:
            for group in range(shard.num_row_groups):
                columns = shard.read_row_group(group)
                check_vocabulary(columns, tokenizer, path)
                for row in range(min(left, columns.num_instances)):
                    yield _format_instance(columns, row, tokenizer)
                left -= min(left, columns.num_instances)
                if not left:
                    return


def _format_instance(columns: InstanceColumns, row: int, tokenizer: Tokenizer) -> str:
    ids = columns.input_ids[columns.offsets[row] : columns.offsets[row + 1]].tolist()
    words = [tokenizer.tokens[index] for index in ids]
    split = int(columns.segment_b_start[row])
    if columns.masked_offsets is not None:
        assert columns.masked_lm_positions is not None
        assert columns.masked_lm_ids is not None
        # With static masks the input is masked: show the token to predict after an arrow.
        for slot in range(columns.masked_offsets[row], columns.masked_offsets[row + 1]):
            position = int(columns.masked_lm_positions[slot])
            words[position] = f"{words[position]}→{tokenizer.tokens[columns.masked_lm_ids[slot]]}"
    if split == len(ids):
        return f"A  {' '.join(words)}\n   {len(ids)} tokens"
    label = "a random passage follows" if columns.is_random_next[row] else "the next passage follows"
    return f"A  {' '.join(words[:split])}\nB  {' '.join(words[split:])}\n   {len(ids)} tokens, {label}"
