"""The nine GLUE tasks over the invented world, in the official files and columns."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.sample import glue_tasks
from bert_pipeline.sample.splits import Split, make_split
from bert_pipeline.sample.world import World

MATCHED_GENRES = ("person", "town")
MISMATCHED_GENRES = ("organization",)
_MNLI_COLUMNS = (
    "index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse",
    "sentence2_parse", "sentence1", "sentence2",
)  # fmt: skip
_STS_COLUMNS = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")
_PREMISE_COLUMNS = ("index", "sentence1", "sentence2", "label")

Row = Sequence[object]
Layout = Callable[[int, Any], Row]
"""Index and example to the columns of a file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """Examples and columns of one GLUE task."""

    folder: str
    draw: Callable[[Split, int], Row]
    """Draw one example, whose index decides its label."""
    sizes: tuple[int, int, int] = (500, 300, 100)
    """Examples in train, dev and test."""
    header: tuple[str, ...]
    """Columns of the labelled files; () for no header line."""
    layout: Layout = lambda index, row: (index, *row)
    test_header: tuple[str, ...] = ()
    """Columns of the test file; () for those of the labelled files without the last, the label."""
    test_layout: Layout | None = None


GLUE_FILES: tuple[TaskFiles, ...] = (
    TaskFiles(
        folder="CoLA", draw=glue_tasks.acceptability, header=(),
        layout=lambda index, row: ("sw01", row[0], "" if row[0] else "*", row[1]),
        test_header=("index", "sentence"), test_layout=lambda index, row: (index, row[1]),
    ),
    TaskFiles(
        folder="SST-2", draw=glue_tasks.sentiment, sizes=(200, 100, 100), header=("sentence", "label"),
        layout=lambda index, row: row,
        test_header=("index", "sentence"), test_layout=lambda index, row: (index, row[0]),
    ),
    TaskFiles(
        folder="MRPC", draw=glue_tasks.paraphrase, header=("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        layout=lambda index, row: (row[0], 2 * index + 1, 2 * index + 2, *row[1:]),
        test_header=("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        test_layout=lambda index, row: (index, 2 * index + 1, 2 * index + 2, *row[1:]),
    ),
    TaskFiles(
        folder="STS-B", draw=glue_tasks.similarity, header=(*_STS_COLUMNS, "score"),
        layout=lambda index, row: (index, "generated", "sample", "2020", f"{index:04d}", "none", "none", row[0], row[1],
                                   f"{row[2]:.3f}"),
    ),
    TaskFiles(
        folder="QQP", draw=glue_tasks.duplicate,
        header=("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
        layout=lambda index, row: (index, 2 * index + 1, 2 * index + 2, *row),
        test_header=("id", "question1", "question2"), test_layout=lambda index, row: (index, row[0], row[1]),
    ),
    TaskFiles(folder="QNLI", draw=glue_tasks.answer, header=("index", "question", "sentence", "label")),
    TaskFiles(folder="RTE", draw=glue_tasks.entailment, sizes=(400, 300, 100), header=_PREMISE_COLUMNS),
    TaskFiles(folder="WNLI", draw=glue_tasks.pronoun, sizes=(400, 300, 100), header=_PREMISE_COLUMNS),
)  # fmt: skip


def write_glue(directory: Path, world: World) -> dict[str, int]:
    """Write the nine folders; return rows by relative path."""
    rows: dict[str, int] = {}
    for files in GLUE_FILES:
        for name, size in zip(("train", "dev", "test"), files.sizes):
            examples = _examples(make_split(world, files.folder, name), size, files.draw)
            header, layout = files.header, files.layout
            if name == "test":
                header, layout = files.test_header or header[:-1], files.test_layout or _without_label(layout)
            path = f"{files.folder}/{name}.tsv"
            rows[path] = _write_tsv(directory / path, header, (layout(*item) for item in enumerate(examples)))
    for name, size, genres in (
        ("train", 500, MATCHED_GENRES),
        ("dev_matched", 300, MATCHED_GENRES),
        ("dev_mismatched", 300, MISMATCHED_GENRES),
        ("test_matched", 100, MATCHED_GENRES),
        ("test_mismatched", 100, MISMATCHED_GENRES),
    ):
        part = name.partition("_")[0]
        draw = functools.partial(glue_tasks.inference, genres=genres)
        path = f"MNLI/{name}.tsv"
        rows[path] = _write_mnli(directory / path, part, _examples(make_split(world, f"MNLI:{name}", part), size, draw))
    return rows


def _examples(split: Split, count: int, draw: Callable[[Split, int], Row]) -> list[Row]:
    """Draw the examples of a file, in random order."""
    rows = [draw(split, index) for index in range(count)]
    split.rng.shuffle(rows)
    return rows


def _without_label(layout: Layout) -> Layout:
    return lambda index, row: layout(index, row)[:-1]


def _write_mnli(path: Path, part: str, examples: Iterable[Any]) -> int:
    # The official files: train has one annotator's label before gold_label, dev has five, test has neither.
    votes = {"train": 1, "dev": 5, "test": 0}[part]
    header = (*_MNLI_COLUMNS, *(f"label{number + 1}" for number in range(votes)), *(("gold_label",) if votes else ()))
    return _write_tsv(
        path,
        header,
        (
            (index, f"{index}", f"{index}{label[0]}", genre, *[f"( {premise} )", f"( {hypothesis} )"] * 2, premise,
             hypothesis, *[label] * (votes + bool(votes)))
            for index, (premise, hypothesis, label, genre) in enumerate(examples)
        ),
    )  # fmt: skip


def _write_tsv(path: Path, header: Row, rows: Iterable[Row]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in rows]
    text = "".join(f"{line}\n" for line in (["\t".join(map(str, header))] if header else []) + lines)
    path.write_text(text, encoding="utf-8")
    return len(lines)
