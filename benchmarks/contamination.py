"""Contamination: which test texts share a run of thirteen words with the training documents of a corpus.

Words are those of near-duplicate detection: letters and digits in lower case, without punctuation. A text of fewer
words is found if all of them occur as one run. Thirteen words as in Brown et al. (2020), "Language models are few-shot
learners", appendix C.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program
from bert_pipeline.atomic import atomic_write
from bert_pipeline.corpus.near_duplicates import find_words
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.errors import InputError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.randomness import combine
from bert_pipeline.tasks.example import example_text
from bert_pipeline.tasks.task import load_task_data

RUN_WORDS = 13
HELD_OUT = "held-out documents"


@dataclasses.dataclass(frozen=True)
class Text:
    """A text of a test set."""

    test_set: str
    text_id: str
    pieces: tuple[str, ...]
    """Its parts, such as the two sentences of a pair; the text is found if one of them is."""


def hash_runs(text: str) -> Iterator[np.ndarray]:
    """Yield the hashes (R,) uint64 of all runs of one word of a text, of two, and so on up to `RUN_WORDS`."""
    _, words = find_words(text)
    runs = words
    for length in range(1, min(len(words), RUN_WORDS) + 1):
        if length > 1:
            runs = combine(runs[:-1], words[length - 1 :])
        yield runs


def find_runs(texts: Sequence[Text], training: Iterable[str]) -> list[tuple[int, int]]:
    """Return for each text the number of its runs and of those that occur in one of the training texts."""
    # All runs of the test texts by their number of words, each with the index of its text.
    hashes: dict[int, list[np.ndarray]] = {}
    owners: dict[int, list[np.ndarray]] = {}
    for index, text in enumerate(texts):
        for piece in text.pieces:
            if by_length := list(hash_runs(piece)):
                longest = by_length[-1]
                hashes.setdefault(len(by_length), []).append(longest)
                owners.setdefault(len(by_length), []).append(np.full(len(longest), index))
    sought = {length: np.unique(np.concatenate(parts)) for length, parts in hashes.items()}
    found = {length: np.zeros(len(runs), dtype=bool) for length, runs in sought.items()}

    for document in training:
        for length, runs in enumerate(hash_runs(document), start=1):
            if length in sought:
                places = np.searchsorted(sought[length], runs)
                places[places == len(sought[length])] = 0
                found[length][places[sought[length][places] == runs]] = True

    num_runs, num_found = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.int64)
    for length, parts in hashes.items():
        owner = np.concatenate(owners[length])
        is_found = found[length][np.searchsorted(sought[length], np.concatenate(parts))]
        num_runs += np.bincount(owner, minlength=len(texts))
        num_found += np.bincount(owner[is_found], minlength=len(texts))
    return list(zip(num_runs.tolist(), num_found.tolist()))


def read_corpus(directory: Path) -> tuple[list[Text], Iterator[str]]:
    """Return the held-out documents of a corpus as test texts, and an iterator over its training documents."""
    shards = load_manifest(directory, kind="corpus").file_paths("documents-")
    documents = (document for shard in shards for document in read_documents(shard))
    held_out = [
        Text(HELD_OUT, document.document_id, (" ".join(document.sentences),))
        for document in documents
        if document.split == "held_out"
    ]
    again = (document for shard in shards for document in read_documents(shard))
    return held_out, (" ".join(document.sentences) for document in again if document.split == "train")


def read_task(name: str, path: str) -> list[Text]:
    """Return the dev examples of a task."""
    return [
        Text(f"{name} {split}", example.example_id, tuple(example_text(example).split("\n")))
        for split, examples in load_task_data(name, path).dev.items()
        for example in examples
    ]


def read_sentences(path: Path) -> list[Text]:
    """Return the good sentences of minimal pairs in a folder of BLiMP's JSON lines."""
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise InputError(f"{path}: no *.jsonl file; unpack blimp.zip and give its folder")
    records = (json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [Text("minimal pairs", f"{r['UID']}-{r['pairID']}", (r["sentence_good"],)) for r in records]


def argument_parser() -> argparse.ArgumentParser:
    """Return the program's parser."""
    parser = program("contamination", __doc__)
    parser.add_argument("corpus", type=Path, help="a corpus directory, whose training documents are searched")
    parser.add_argument("--task", action="append", default=[], metavar="NAME=DATA", help="a task; may be repeated")
    parser.add_argument("--pairs", type=Path, help="a folder of minimal pairs, such as BLiMP's")
    parser.add_argument("--output", type=Path, help="write the ids of the texts that were found, as JSON lines")
    return parser


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each test set."""
    args = argument_parser().parse_args(arguments)
    texts, training = read_corpus(args.corpus)
    for name, _, path in (word.partition("=") for word in args.task):
        texts += read_task(name, path)
    texts += read_sentences(args.pairs) if args.pairs else []
    counts = find_runs(texts, training)

    # Per test set: texts, texts that were found, and the share of all runs.
    rows = []
    for name in dict.fromkeys(text.test_set for text in texts):
        some = [count for text, count in zip(texts, counts) if text.test_set == name]
        num_found = sum(found > 0 for _, found in some)
        share = sum(found for _, found in some) / max(1, sum(runs for runs, _ in some))
        rows.append((name, f"{len(some):,}", f"{num_found:,}", f"{num_found / len(some):.2%}", f"{share:.3%}"))
    print(describe_machine(()))
    print(markdown_table(("test set", "texts", "found", "share of texts", f"share of runs of {RUN_WORDS} words"), rows))
    if args.output:
        lines = [
            json.dumps({"test_set": text.test_set, "id": text.text_id})
            for text, (_, found) in zip(texts, counts)
            if found
        ]
        with atomic_write(args.output) as path:
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
