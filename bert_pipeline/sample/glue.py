"""The nine GLUE tasks over the invented world, in the official files and columns."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bert_pipeline.sample import pair_tasks, sentence_tasks
from bert_pipeline.sample.splits import Split, make_split
from bert_pipeline.sample.world import World

MATCHED_GENRES = ("person", "town")
MISMATCHED_GENRES = ("organization",)
_MNLI_COLUMNS = (
    "index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse",
    "sentence2_parse", "sentence1", "sentence2",
)  # fmt: skip
_STS_COLUMNS = ("index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2")

Row = Sequence[object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """Examples and columns of one GLUE task."""

    folder: str
    draw: Callable[[Split, int], Iterable[Row]]
    sizes: tuple[int, int, int]
    """Examples in train, dev and test."""
    header: tuple[str, ...]
    """Columns of the labelled files; () for no header line."""
    layout: Callable[[int, Row], Row]
    """Index and example to the columns of the labelled files."""
    test_header: tuple[str, ...]
    test_layout: Callable[[int, Row], Row]


def _pair(task: str, index: int) -> tuple[str, str]:
    return f"{task}{2 * index + 1}", f"{task}{2 * index + 2}"


GLUE_FILES: tuple[TaskFiles, ...] = (
    TaskFiles(
        folder="CoLA", draw=sentence_tasks.acceptability, sizes=(500, 300, 100), header=(),
        layout=lambda index, row: ("sw01", row[0], "" if row[0] else "*", row[1]),
        test_header=("index", "sentence"), test_layout=lambda index, row: (index, row[1]),
    ),
    TaskFiles(
        folder="SST-2", draw=sentence_tasks.sentiment, sizes=(200, 100, 100), header=("sentence", "label"),
        layout=lambda index, row: row,
        test_header=("index", "sentence"), test_layout=lambda index, row: (index, row[0]),
    ),
    TaskFiles(
        folder="MRPC", draw=pair_tasks.paraphrases, sizes=(500, 300, 100),
        header=("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        layout=lambda index, row: (row[0], 2 * index + 1, 2 * index + 2, row[1], row[2]),
        test_header=("index", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        test_layout=lambda index, row: (index, 2 * index + 1, 2 * index + 2, row[1], row[2]),
    ),
    TaskFiles(
        folder="STS-B", draw=pair_tasks.similarities, sizes=(500, 300, 100), header=(*_STS_COLUMNS, "score"),
        layout=lambda index, row: (index, "generated", "sample", "2020", f"{index:04d}", "none", "none", row[0], row[1],
                                   f"{row[2]:.3f}"),
        test_header=_STS_COLUMNS,
        test_layout=lambda index, row: (index, "generated", "sample", "2020", f"{index:04d}", "none", "none", row[0], row[1]),
    ),
    TaskFiles(
        folder="QQP", draw=pair_tasks.duplicates, sizes=(500, 300, 100),
        header=("id", "qid1", "qid2", "question1", "question2", "is_duplicate"),
        layout=lambda index, row: (index, 2 * index + 1, 2 * index + 2, *row),
        test_header=("id", "question1", "question2"), test_layout=lambda index, row: (index, row[0], row[1]),
    ),
    TaskFiles(
        folder="QNLI", draw=pair_tasks.answers, sizes=(500, 300, 100), header=("index", "question", "sentence", "label"),
        layout=lambda index, row: (index, *row),
        test_header=("index", "question", "sentence"), test_layout=lambda index, row: (index, row[0], row[1]),
    ),
    TaskFiles(
        folder="RTE", draw=pair_tasks.entailments, sizes=(400, 300, 100), header=("index", "sentence1", "sentence2", "label"),
        layout=lambda index, row: (index, *row),
        test_header=("index", "sentence1", "sentence2"), test_layout=lambda index, row: (index, row[0], row[1]),
    ),
    TaskFiles(
        folder="WNLI", draw=pair_tasks.pronouns, sizes=(400, 300, 100), header=("index", "sentence1", "sentence2", "label"),
        layout=lambda index, row: (index, *row),
        test_header=("index", "sentence1", "sentence2"), test_layout=lambda index, row: (index, row[0], row[1]),
    ),
)  # fmt: skip


def write_glue(directory: Path, world: World) -> dict[str, int]:
    """Write the nine folders; returns rows by relative path."""
    rows: dict[str, int] = {}
    for files in GLUE_FILES:
        for name, size in zip(("train", "dev", "test"), files.sizes):
            examples = list(files.draw(make_split(world, files.folder, name), size))  # type: ignore[arg-type]
            header, layout = (files.test_header, files.test_layout) if name == "test" else (files.header, files.layout)
            path = f"{files.folder}/{name}.tsv"
            rows[path] = _write_tsv(directory / path, header, (layout(*item) for item in enumerate(examples)))
    for name, size, genres in (
        ("train", 500, MATCHED_GENRES), ("dev_matched", 300, MATCHED_GENRES), ("dev_mismatched", 300, MISMATCHED_GENRES),
        ("test_matched", 100, MATCHED_GENRES), ("test_mismatched", 100, MISMATCHED_GENRES),
    ):  # fmt: skip
        part = name.partition("_")[0]
        split = dataclasses.replace(make_split(world, f"MNLI:{name}", part))  # type: ignore[arg-type]
        inferences = pair_tasks.inferences(split, size, genres)
        path = f"MNLI/{name}.tsv"
        rows[path] = _write_mnli(directory / path, part, inferences)
    return rows


def _write_mnli(path: Path, part: str, examples: list[tuple[str, str, str, str]]) -> int:
    # The official files: train has one annotator's label before gold_label, dev has five, test has neither.
    votes = {"train": 1, "dev": 5, "test": 0}[part]
    header = (*_MNLI_COLUMNS, *(f"label{number + 1}" for number in range(votes)), *(("gold_label",) if votes else ()))
    return _write_tsv(
        path,
        header,
        (
            (index, f"{index}", f"{index}{label[0]}", genre, *[_parse(premise), _parse(hypothesis)] * 2, premise, hypothesis,
             *[label] * (votes + bool(votes)))
            for index, (premise, hypothesis, label, genre) in enumerate(examples)
        ),
    )  # fmt: skip


def _parse(sentence: str) -> str:
    return f"( {sentence} )"


def _write_tsv(path: Path, header: Row, rows: Iterable[Row]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in rows]
    text = "".join(f"{line}\n" for line in (["\t".join(map(str, header))] if header else []) + lines)
    path.write_text(text, encoding="utf-8")
    return len(lines)
