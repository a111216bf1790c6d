"""Multiple choice: SWAG's comma-separated files with quoting, and tables of any other format."""

import dataclasses
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.records import Source
from bert_pipeline.tasks.catalogue import Columns, Task
from bert_pipeline.tasks.example import ChoiceExample, Reading
from bert_pipeline.tasks.glue import UNLABELED, shown
from bert_pipeline.tasks.tables import TableRow, read_table

SWAG_COLUMNS = Columns(
    text_a="sent1", label="label", index="", endings=tuple(f"{{sent2}} {{ending{number}}}" for number in range(4))
)
"""SWAG's context is `sent1`; its endings share a beginning, `sent2`. The first column, nameless, numbers the rows."""
PLAIN_COLUMNS = Columns(text_a="context", index="id", endings=("endings",))
"""The fields of an input of `bert predict`: `endings` is a list."""
SOURCE = "video-id"
AMBIGUOUS = "labels that are the place of one ending and the text of another, taken for the place"


def choice_layouts(task: Task) -> list[Columns]:
    """Return the columns that a file of the task may have."""
    own = task.columns
    if not own.endings:  # SWAG's, but for the ids
        own = SWAG_COLUMNS if own.index == Columns().index else dataclasses.replace(SWAG_COLUMNS, index=own.index)
    return [own, *([task.hub_columns] if task.hub_columns else []), PLAIN_COLUMNS]


def read_choice_examples(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[ChoiceExample]:
    """Yield contexts and endings; the label is the index of the correct ending, its letter or its text.

    Ids are those of the index column or the numbers of the rows. InputError names file and line or row, what was found
    and what was expected.
    """
    for path in paths:
        yield from read_table(path, choice_layouts(task), reading, _choice_example)


def _choice_example(row: TableRow) -> ChoiceExample:
    layout = row.table.layout
    context, endings = row.text(layout.text_a), _endings(row, layout)
    labeled = row.table.reading.labeled
    value = None if labeled is False else row.value(layout.label)
    label = _label(value, endings, row.where, required=bool(labeled))
    example_id = row.example_id()
    if isinstance(value, str) and label is not None and value.strip() in endings and value.strip() != endings[label]:
        row.table.reading.count(AMBIGUOUS, example_id)
    return ChoiceExample(example_id, context, endings, label, str(row.fields.get(SOURCE) or ""))


def _endings(row: TableRow, layout: Columns) -> tuple[str, ...]:
    if len(layout.endings) > 1:
        return tuple(row.text(name).strip() for name in layout.endings)
    endings = row.value(layout.endings[0])
    if not isinstance(endings, list) or len(endings) < 2 or not all(isinstance(ending, str) for ending in endings):
        raise InputError(f"{row.where}: {layout.endings[0]} is {endings!r}, expected a list of two or more texts")
    return tuple(endings)


def _label(value: Any, endings: Sequence[str], where: str, *, required: bool) -> int | None:
    if value in UNLABELED and not required:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    places = [*map(str, range(len(endings))), *string.ascii_uppercase[: len(endings)]]
    if not isinstance(value, bool) and (text := str(value).strip()):
        if text.upper() in places:
            return places.index(text.upper()) % len(endings)
        if endings.count(text) == 1:
            return endings.index(text)
    allowed = ", ".join([*places, "the text of an ending"])
    raise InputError(f"{where}: label {shown(value)}, expected one of {allowed}")
