"""GLUE's tab-separated files, with or without header and labels; quotes are plain text."""

import math
from collections.abc import Iterator
from pathlib import Path

from bert_pipeline.configuration import configuration
from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import Reading, TextExample

NO_CONSENSUS = "-"
"""The gold label of MNLI and SNLI pairs without agreement of the annotators."""


@configuration
class Columns:
    """Which column of a tab-separated file holds what, by the names of its header."""

    text_a: str = "sentence1"
    """The text, or the first of a pair."""
    text_b: str = ""
    """The second text; empty for tasks on single texts."""
    label: str = "label"
    """The class or the number."""
    index: str = "index"
    """The number of the example; where a file has no such column, rows are counted from 0."""
    headerless: tuple[str, ...] = ()
    """The names of the columns of files that come without a header (CoLA)."""
    endings: tuple[str, ...] = ()
    """The endings of a multiple-choice file, in the order that labels count from 0; none: SWAG's own columns."""


def read_text_examples(
    path: Path,
    *,
    columns: Columns,
    labels: tuple[str, ...] = (),
    label_range: tuple[float, float] = (0.0, 0.0),
    require_labels: bool = True,
    incomplete_rows: int = 0,
) -> Reading:
    """Read a tab-separated file of texts or pairs, with classes (`labels` given) or numbers in `label_range`.

    Fields are the text between tabs, quotes included. Without `require_labels` a file may lack the label column.
    Up to `incomplete_rows` rows with too few columns are counted and left out; beyond, and for every other defect,
    InputError names file and line, what was found and what was expected.
    """
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{path}: is empty, expected a table with the column {columns.text_a!r}")
    header, rows = _header(path, first, columns), lines
    if header is None:
        header = list(columns.headerless)
        rows = _chain(first, lines)
    position = {name: number for number, name in enumerate(header)}
    for name in (columns.text_a, columns.text_b):
        if name and name not in position:
            raise InputError(f"{path}:1: no column {name!r} (found: {', '.join(header)}); is this another task's file?")
    label_column = position.get(columns.label)
    if label_column is None and require_labels:
        raise InputError(f"{path}:1: no column {columns.label!r}, which holds the labels (found: {', '.join(header)})")
    # SNLI mixes rows with one annotator's label and rows with five under one header; the gold label is always last.
    wide = len(header) + 4 if header[-2:] == ["label1", "gold_label"] else 0
    examples: list[TextExample] = []
    counts: dict[str, int] = {}
    lines_by_id: dict[str, int] = {}
    for number, line in rows:
        fields = line.split("\t")
        if len(fields) == wide:
            fields[len(header) - 1 :] = fields[-1:]
        if len(fields) != len(header):
            counts["incomplete rows"] = counts.get("incomplete rows", 0) + 1
            if len(fields) > len(header) or counts["incomplete rows"] > incomplete_rows:
                raise InputError(f"{path}:{number}: {len(fields)} columns, expected {len(header)}")
            continue
        label: str | float | None = None
        if label_column is not None:
            text = fields[label_column]
            if labels and text == NO_CONSENSUS and NO_CONSENSUS not in labels:
                counts["rows without a gold label"] = counts.get("rows without a gold label", 0) + 1
                continue
            label = _class(path, number, text, labels) if labels else _number(path, number, text, label_range)
        example_id = fields[position[columns.index]] if columns.index in position else str(len(examples))
        if example_id in lines_by_id:
            raise InputError(
                f"{path}:{number}: the index {example_id!r} is in line {lines_by_id[example_id]} already; "
                "expected each once"
            )
        lines_by_id[example_id] = number
        text_b = fields[position[columns.text_b]] if columns.text_b else None
        examples.append(TextExample(example_id, fields[position[columns.text_a]], text_b, label))
    if not examples:
        raise InputError(f"{path}: no rows, expected at least one example")
    return Reading(examples, counts)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file.

    Only line feeds end a line (str.splitlines would also cut at U+2028 and others, which occur inside of fields).
    A byte-order mark and blank lines at the end are removed, and the final line feed may be missing.
    InputError when the file cannot be read or is not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    content = content.removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n")
    if not content:
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            yield number, line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path}:{number}: byte {error.start + 1} of the line is not UTF-8; convert the file"
            ) from error


def _header(path: Path, first: tuple[int, str], columns: Columns) -> list[str] | None:
    """Return the column names of the first line, or None if it is a row of a file without a header."""
    names = first[1].split("\t")
    if columns.text_a in names:
        return names
    if len(names) == len(columns.headerless):
        return None
    expected = [name for name in (columns.text_a, columns.text_b) if name]
    also = f", or {len(columns.headerless)} columns without a header" if columns.headerless else ""
    raise InputError(
        f"{path}:1: found the columns {', '.join(name[:40] for name in names[:12])}; "
        f"expected a header with {' and '.join(map(repr, expected))}{also}; is this another task's file?"
    )


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _class(path: Path, number: int, text: str, labels: tuple[str, ...]) -> str:
    if text not in labels:
        raise InputError(f"{path}:{number}: label {text[:60]!r}, expected one of {', '.join(labels)}")
    return text


def _number(path: Path, number: int, text: str, label_range: tuple[float, float]) -> float:
    low, high = label_range
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"{path}:{number}: label {text[:60]!r}, expected a number from {low:g} to {high:g}")
    return value
