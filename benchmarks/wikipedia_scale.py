"""Memory of the data jobs by the number of documents: made-up short ones, up to those of the English Wikipedia.

Corpus, vocabulary and instances are made from text of which every fiftieth document repeats an earlier one. Printed are
the peak memory of the parent process, in which Beam runs, and of its largest worker, and the elements that pass between
steps.
"""

import argparse
import json
import pickle
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import jobs
from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program, run_timed
from benchmarks.harness import working_directory as directory_of
from bert_pipeline.atomic import atomic_write
from bert_pipeline.randomness import combine

JOBS = ("corpus", "vocabulary", "instances")
WORDS_PER_SENTENCE, SENTENCES = 12, 2
_SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
_REPEATED_EVERY = 50
_AT_A_TIME = 10_000
_JOB = "from benchmarks import wikipedia_scale; wikipedia_scale.run_counted_job()"


def write_documents(path: Path, number: int) -> None:
    """Write made-up documents, a sentence per line, with an empty line after each document."""
    with atomic_write(path) as temporary, open(temporary, "w", encoding="ascii") as stream:
        for start in range(0, number, _AT_A_TIME):
            stream.writelines(_documents(np.arange(start, min(start + _AT_A_TIME, number), dtype=np.uint64)))


def _documents(numbers: np.ndarray) -> Iterator[str]:
    same = np.where(numbers % _REPEATED_EVERY == _REPEATED_EVERY - 1, numbers - np.uint64(7), numbers)
    places = np.arange(SENTENCES * WORDS_PER_SENTENCE, dtype=np.uint64)
    drawn = combine(same[:, None], places[None, :])  # (N, W)
    first, second = drawn % len(_SYLLABLES), drawn // len(_SYLLABLES) % len(_SYLLABLES)
    for left, right in zip(first.tolist(), second.tolist()):
        words = [_SYLLABLES[i] + _SYLLABLES[j] for i, j in zip(left, right)]
        sentences = (words[i : i + WORDS_PER_SENTENCE] for i in range(0, len(words), WORDS_PER_SENTENCE))
        yield "\n".join(" ".join(sentence).capitalize() + "." for sentence in sentences) + "\n\n"


def run_counted_job() -> None:
    """Run the job of `benchmarks.jobs` that the arguments name, and print the elements of its steps on a second line.

    On one machine the results of all steps pass through this process, in which Beam runs.
    """
    from bert_pipeline.beam.workers import FlatMap, ParallelFlatMap

    elements = num_bytes = 0
    hand_on, process = ParallelFlatMap._counted, FlatMap.process

    def count(result: Any) -> Any:
        nonlocal elements, num_bytes
        elements += 1
        num_bytes += len(pickle.dumps(result))
        return result

    ParallelFlatMap._counted = lambda self, result: count(hand_on(self, result))  # type: ignore[method-assign]
    FlatMap.process = lambda self, *given: map(count, process(self, *given))  # type: ignore[method-assign]
    jobs.main()
    print(json.dumps({"elements": elements, "bytes": num_bytes}))


def measure(directory: Path, number: int, workers: int, chosen: Sequence[str] = JOBS) -> Iterator[list[str]]:
    """Run the chosen jobs on so many documents, and yield a row for each.

    A job that is left out must have run before. What the jobs write is removed unless some are left out.
    """
    text = directory / "made.txt"
    if "corpus" in chosen:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        write_documents(text, number)
    inputs = {
        "corpus": f"lines:{text}",
        "vocabulary": str(directory / "corpus"),
        "instances": str(directory / "corpus"),
    }
    for job in chosen:
        source = inputs[job]
        more = ["--vocab", str(directory / "vocabulary"), "--dupe-factor", "1"] if job == "instances" else []
        command = [sys.executable, "-c", _JOB, job, source, str(directory / job), "--workers", str(workers), *more]
        timing = run_timed(command, one_core=False)
        found: dict[str, int] = {}
        for line in timing.output.splitlines()[-2:]:
            found |= json.loads(line)
        yield [
            f"{number:,}",
            job,
            f"{timing.seconds:,.0f}",
            f"{found['parent_bytes'] / 1e6:,.0f}",
            f"{found['worker_bytes'] / 1e6:,.0f}",
            f"{found['elements']:,}",
            f"{found['bytes']:,}",
        ]
    if set(chosen) == set(JOBS):
        shutil.rmtree(directory)


@errors_as_exit_codes
def main(argv: Sequence[str] | None = None) -> int:
    """Measure each number of documents and print a table."""
    parser: argparse.ArgumentParser = program("wikipedia_scale", __doc__)
    parser.add_argument(
        "--documents",
        type=int,
        nargs="+",
        default=[100_000, 400_000],
        help="numbers of documents (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        choices=JOBS,
        nargs="+",
        default=JOBS,
        help="jobs to run, in this order; those of one number of documents may be run one by one (default: all)",
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: %(default)s)")
    args = parser.parse_args(argv)
    header = ("documents", "job", "seconds", "parent, MB", "largest worker, MB", "elements", "their bytes")
    rows = []
    for number in args.documents:
        for row in measure(directory_of("wikipedia_scale") / f"run-{number}", number, args.workers, args.jobs):
            print("; ".join(f"{name}: {value}" for name, value in zip(header, row)), file=sys.stderr, flush=True)
            rows.append(row)
    print(describe_machine(("apache-beam", "numpy", "pyarrow")))
    print(markdown_table(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
