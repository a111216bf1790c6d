"""Multiple choice in comma-separated files with quoting: SWAG's columns, or those of a task's description."""

import csv
import io
from pathlib import Path

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import ChoiceExample, Reading
from bert_pipeline.tasks.glue import Columns

SWAG_COLUMNS = Columns(text_a="sent1", label="label", index="", endings=("ending0", "ending1", "ending2", "ending3"))
OPENING = "sent2"
"""SWAG's column with the common start of all endings."""
MAX_FIELD_CHARACTERS = 16 * 1024 * 1024


def read_choice_examples(path: Path, *, columns: Columns = SWAG_COLUMNS, require_labels: bool = True) -> Reading:
    """Read a file of contexts and endings; the label is the index of the correct ending.

    SWAG's context is `sent1`, an ending is `sent2` and one of `ending0` to `ending3`. Where `columns` names endings
    of its own, its `text_a` is the context. Ids are those of the index column, in SWAG the first, nameless one, or
    the numbers of the rows. InputError names file and line, what was found and what was expected.
    """
    columns = columns if columns.endings else SWAG_COLUMNS
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: byte {error.start} of the file is not UTF-8; convert the file") from error
    limit = csv.field_size_limit(MAX_FIELD_CHARACTERS)
    try:
        return _read(path, text, columns, require_labels)
    finally:
        csv.field_size_limit(limit)


def _read(path: Path, text: str, columns: Columns, require_labels: bool) -> Reading:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    examples: list[ChoiceExample] = []
    seen: set[str] = set()
    opening = (OPENING,) if columns == SWAG_COLUMNS else ()
    line = 1
    try:
        header = next(reader, [])
        label_column = (columns.label,) if require_labels else ()
        for name in (columns.text_a, *opening, *columns.endings, *label_column):
            if name not in header:
                found = ", ".join(field[:40] for field in header[:14])
                raise InputError(f"{path}:1: no column {name!r} (found: {found}), expected the task's columns")
        position = {name: number for number, name in enumerate(header)}
        index = position.get(columns.index) if columns.index or header[0] == "" else None
        line = reader.line_num + 1
        for row in reader:
            if len(row) != len(header) and row:
                raise InputError(f"{path}:{line}: {len(row)} columns, expected {len(header)}")
            if row:
                fields = dict(zip(header, row))
                example_id = str(len(examples)) if index is None else row[index]
                if example_id in seen:
                    raise InputError(f"{path}:{line}: the number {example_id!r} is repeated, expected unique numbers")
                seen.add(example_id)
                labels = len(columns.endings)
                examples.append(
                    ChoiceExample(
                        example_id,
                        fields[columns.text_a],
                        tuple(" ".join(fields[part] for part in (*opening, name)).strip() for name in columns.endings),
                        _label(path, line, fields[columns.label], labels) if columns.label in position else None,
                        fields.get("video-id", ""),
                    )
                )
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{line}: not valid CSV ({error})") from error
    if not examples:
        raise InputError(f"{path}: no rows, expected at least one example")
    return Reading(examples)


def _label(path: Path, line: int, text: str, count: int) -> int:
    if text not in map(str, range(count)):
        allowed = ", ".join(map(str, range(count)))
        raise InputError(f"{path}:{line}: label {text[:60]!r}, expected one of {allowed}")
    return int(text)
