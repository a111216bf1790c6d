"""Contamination: which test texts share a run of thirteen words with the training documents of a corpus.

Words are those of near-duplicate detection: letters and digits in lower case, without punctuation. A text of fewer
words is found if all of them occur as one run. Thirteen words as in Brown et al. (2020), "Language models are few-shot
learners", appendix C.

The ids of what was found (`--output`) are left out by `benchmarks.scores --without`; the scores of an exam without its
pairs that were found are printed here (`--exam`).
"""

import dataclasses
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program, working_directory
from benchmarks.inputs import documents_of
from bert_model.zero_shot.result import ExamResult, PairScores, exam_result
from bert_pipeline.atomic import atomic_write
from bert_pipeline.corpus.near_duplicates import find_words
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.exam.pairs import Pair, read_pairs
from bert_pipeline.manifest import load_manifest
from bert_pipeline.randomness import combine
from bert_pipeline.tasks.task import load_task_data

RUN_WORDS = 13
HELD_OUT, PAIRS = "held-out documents", "minimal pairs"


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
    corpus = load_manifest(directory, kind="corpus")
    held_out = [
        Text(HELD_OUT, document.document_id, (" ".join(document.sentences),))
        for document in documents_of(corpus, "held_out")
    ]
    return held_out, (" ".join(document.sentences) for document in documents_of(corpus, "train"))


def read_task(name: str, path: str) -> list[Text]:
    """Return the dev examples of a task."""
    from benchmarks.scores import task_folder  # imports transformers, which takes seconds

    folder = task_folder(name, Path(path), working_directory("scores"))
    return [
        Text(f"{name} {split}", example.example_id, tuple("\n".join(example.texts).split("\n")))
        for split, examples in load_task_data(name, folder).dev.items()
        for example in examples
    ]


def found_pairs(pairs: Sequence[Pair], found: Collection[Text]) -> set[str]:
    """Return the ids of the pairs that were found themselves, or were made from a held-out document that was found."""
    texts = {(text.test_set, text.text_id) for text in found}
    return {pair.pair_id for pair in pairs if {(PAIRS, pair.pair_id), (HELD_OUT, pair.source)} & texts}


def exam_without(path: Path, pairs: Sequence[Pair], found: set[str]) -> tuple[ExamResult, ExamResult]:
    """Return the exam that `bert exam --output` wrote, computed again on all of its pairs, and without those found."""
    correct = json.loads(path.read_text(encoding="utf-8")).get("correct", {})
    scored = [pair for pair in pairs if pair.pair_id in correct]
    if not scored or len(scored) < len(correct):
        raise InputError(
            f"{path}: {len(scored)} of its {len(correct)} pairs are in --pairs; give the file of its pairs"
        )

    def result(some: Sequence[Pair]) -> ExamResult:
        values = np.array([correct[pair.pair_id] for pair in some], dtype=np.float64)
        return exam_result(PairScores(tuple(some), values, np.full(len(some), 0.5)), None)

    return result(scored), result([pair for pair in scored if pair.pair_id not in found])


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each test set."""
    parser = program("contamination", __doc__)
    parser.add_argument("corpus", type=Path, help="a corpus directory, whose training documents are searched")
    parser.add_argument("--task", action="append", default=[], metavar="NAME=DATA", help="a task; may be repeated")
    parser.add_argument(
        "--pairs", type=Path, help="minimal pairs, as `bert exam` reads them; the good texts are sought"
    )
    parser.add_argument("--exam", type=Path, metavar="FILE", help="an exam on --pairs, written by `bert exam --output`")
    parser.add_argument("--output", type=Path, help="write the ids of the texts that were found, as JSON lines")
    args = parser.parse_args(arguments)
    if args.exam and not args.pairs:
        raise UsageError("--exam: give the pairs of the exam as --pairs too")
    texts, training = read_corpus(args.corpus)
    for name, _, path in (word.partition("=") for word in args.task):
        texts += read_task(name, path)
    pairs = read_pairs(args.pairs) if args.pairs else []
    texts += [Text(PAIRS, pair.pair_id, pair.good) for pair in pairs]
    counts = find_runs(texts, training)
    found = [text for text, (_, num_found) in zip(texts, counts) if num_found]

    # Per test set: texts, texts that were found, and the share of all runs.
    rows = []
    for name in dict.fromkeys(text.test_set for text in texts):
        some = [count for text, count in zip(texts, counts) if text.test_set == name]
        num_found = sum(num > 0 for _, num in some)
        share = sum(num for _, num in some) / max(1, sum(runs for runs, _ in some))
        rows.append((name, f"{len(some):,}", f"{num_found:,}", f"{num_found / len(some):.2%}", f"{share:.3%}"))
    print(describe_machine(()))
    print(markdown_table(("test set", "texts", "found", "share of texts", f"share of runs of {RUN_WORDS} words"), rows))
    if args.exam:
        results = zip(("all", "without those found"), exam_without(args.exam, pairs, found_pairs(pairs, found)))
        exams = [
            (name, f"{len(r.correct):,}", f"{r.mean:.2f}", "-" if r.group_mean is None else f"{r.group_mean:.2f}")
            for name, r in results
        ]
        print(markdown_table((f"{args.exam.name}: pairs", "N", "mean over kinds", "mean over groups"), exams))
    if args.output:
        lines = [json.dumps({"test_set": text.test_set, "id": text.text_id}) for text in found]
        with atomic_write(args.output) as path:
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
