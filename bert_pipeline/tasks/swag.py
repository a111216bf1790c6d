"""SWAG's comma-separated files: real quoting, and a first column without a name."""

import csv
import io
from pathlib import Path

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import ChoiceExample, Reading

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
MAX_FIELD_CHARACTERS = 16 * 1024 * 1024


def read_choice_examples(path: Path, *, require_labels: bool = True) -> Reading:
    """Read a SWAG file: the context is `sent1`, an ending is `sent2` and one of `ending0` to `ending3`.

    Ids are the numbers of the first, nameless column, or of the rows where it is absent. InputError names file and
    line, what was found and what was expected.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}:{line}: byte {error.start} of the file is not UTF-8; convert the file") from error
    limit = csv.field_size_limit(MAX_FIELD_CHARACTERS)
    try:
        return _read(path, text, require_labels)
    finally:
        csv.field_size_limit(limit)


def _read(path: Path, text: str, require_labels: bool) -> Reading:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    examples: list[ChoiceExample] = []
    seen: set[str] = set()
    line = 1
    try:
        header = next(reader, [])
        for name in ("sent1", "sent2", *ENDINGS, *(("label",) if require_labels else ())):
            if name not in header:
                found = ", ".join(field[:40] for field in header[:14])
                raise InputError(f"{path}:1: no column {name!r} (found: {found}), expected SWAG's columns")
        position = {name: number for number, name in enumerate(header)}
        line = reader.line_num + 1
        for row in reader:
            if len(row) != len(header) and row:
                raise InputError(f"{path}:{line}: {len(row)} columns, expected {len(header)}")
            if row:
                example_id = row[0] if header[0] == "" else str(len(examples))
                if example_id in seen:
                    raise InputError(f"{path}:{line}: the number {example_id!r} stands twice, expected each once")
                seen.add(example_id)
                label = _label(path, line, row[position["label"]]) if "label" in position else None
                opening = row[position["sent2"]]
                examples.append(
                    ChoiceExample(
                        example_id,
                        row[position["sent1"]],
                        tuple(f"{opening} {row[position[name]]}".strip() for name in ENDINGS),
                        label,
                        row[position["video-id"]] if "video-id" in position else "",
                    )
                )
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{line}: not valid CSV ({error})") from error
    if not examples:
        raise InputError(f"{path}: no rows, expected at least one example")
    return Reading(examples)


def _label(path: Path, line: int, text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise InputError(f"{path}:{line}: label {text[:60]!r}, expected one of 0, 1, 2, 3")
    return int(text)
