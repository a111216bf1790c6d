"""Multiple choice: SWAG's comma-separated files with quoting, and tables of any other format."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import Columns, Task
from bert_pipeline.tasks.example import ChoiceExample, Reading
from bert_pipeline.tasks.glue import UNLABELED
from bert_pipeline.tasks.tables import id_at, open_table, seen_ids, text_at, unicode_text, value_at

SWAG_COLUMNS = Columns(
    text_a="sent1", label="label", index="", endings=tuple(f"{{sent2}} {{ending{number}}}" for number in range(4))
)
"""SWAG's context is `sent1`; its endings share a beginning, `sent2`. The first column, nameless, numbers the rows."""
PLAIN_COLUMNS = Columns(text_a="context", index="id", endings=("endings",))
"""The fields of an input of `bert predict`: `endings` is a list."""
SOURCE = "video-id"


def choice_layouts(task: Task) -> list[Columns]:
    """Return the columns that a file of the task may have."""
    own = task.columns if task.columns.endings else SWAG_COLUMNS
    return [own, *([task.hub_columns] if task.hub_columns else []), PLAIN_COLUMNS]


def read_choice_examples(task: Task, paths: Sequence[Path], reading: Reading) -> Iterator[ChoiceExample]:
    """Yield contexts and endings; the label is the index of the correct ending.

    Ids are those of the index column or the numbers of the rows. InputError names file and line or row, what was found
    and what was expected.
    """
    seen = seen_ids(reading)
    for path in paths:
        layouts = choice_layouts(task)
        table = open_table(path, reading, columns=layouts[0], default="csv")
        layout = table.choose(layouts, reading.labeled)
        id_column = table.id_column(layout)
        for number, row in table.examples(layout, reading):
            where = table.where(number)
            # Nothing of the row is kept unless all of it can be read.
            try:
                context = text_at(row, layout.text_a, where)
                endings = _endings(row, layout, where)
                value = None if reading.labeled is False else value_at(row, layout.label)
                label = _label(value, len(endings), where, required=bool(reading.labeled))
                position = len(seen) + reading.rows_set_aside
                example_id = id_at(row, id_column, where, seen, table.place(number), position)
            except InputError as error:
                reading.refuse(error)
                continue
            yield ChoiceExample(example_id, context, endings, label, str(row.get(SOURCE) or ""))


def _endings(row: Mapping[str, Any], layout: Columns, where: str) -> tuple[str, ...]:
    if layout is not PLAIN_COLUMNS:
        return tuple(text_at(row, name, where).strip() for name in layout.endings)
    endings = row.get("endings")
    if not isinstance(endings, list) or len(endings) < 2 or not all(isinstance(ending, str) for ending in endings):
        raise InputError(f"{where}: endings is {endings!r}, expected a list of two or more texts")
    return tuple(unicode_text(ending, "endings", where) for ending in endings)


def _label(value: Any, count: int, where: str, *, required: bool) -> int | None:
    if value in UNLABELED and not required:
        return None
    if isinstance(value, bool) or str(value) not in map(str, range(count)):
        allowed = ", ".join(map(str, range(count)))
        shown = value[:60] if isinstance(value, str) else value
        raise InputError(f"{where}: label {shown!r}, expected one of {allowed}")
    return int(value)
