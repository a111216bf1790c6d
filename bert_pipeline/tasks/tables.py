"""Tables of tasks: which columns of a file hold the texts, labels and ids, and the rows for the examples.

A row that cannot be read raises an InputError with file and line or row, unless `Reading.on_error` sets it aside.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_pipeline.errors import InputError
from bert_pipeline.records import Record, Records, Row, Source, open_records, open_source
from bert_pipeline.tasks.catalogue import Columns
from bert_pipeline.tasks.example import Reading

HUB_IDS = ("idx", "id")
"""Columns that number the rows if the task names none that is there."""
FIELD = re.compile(r"\{([^{}]+)\}")
INCOMPLETE = "incomplete rows"

AnyExample = TypeVar("AnyExample")


class Table(NamedTuple):
    """A file, and the columns of a task that it has."""

    records: Records
    layout: Columns
    id_column: str | None
    """Column or template of the examples' ids; None if rows are to be counted."""
    class_names: Sequence[str]
    """Names of the label's integer classes, if the file has them."""
    reading: Reading


class TableRow(NamedTuple):
    """A row of a table, or an example that it holds."""

    where: str
    fields: Row
    table: Table

    def value(self, name: str) -> Any:
        """Return the value of a column, or of a field in it ("answers.text"), a list of a list's; None if absent."""
        value: Any = self.fields
        # A column whose own name has a dot is not a path.
        for part in (name,) if name in self.fields else name.split("."):
            if isinstance(value, list):
                value = [item.get(part) if isinstance(item, Mapping) else None for item in value]
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def text(self, name: str) -> str:
        """Return the text of a column or of a filled-in template; InputError if it is no text."""
        if isinstance(text := self.fields.get(name), str):  # the usual case, for files of millions
            return text

        def field(column: str) -> str:
            value = self.value(column)
            if not isinstance(value, str) and (isinstance(value, bool) or not isinstance(value, int) or name == column):
                raise InputError(f"{self.where}: {column} is {value!r}, expected a text")
            return str(value)

        return FIELD.sub(lambda match: field(match[1]), name) if FIELD.search(name) else field(name)

    def example_id(self) -> str:
        """Return the example's id, or the number of the row without an id column. InputError if it is repeated."""
        name, reading = self.table.id_column, self.table.reading
        value = reading.number if name is None else self.text(name) if "{" in name else self.value(name)
        if not isinstance(value, str | int):
            raise InputError(f"{self.where}: {name} is {value!r}, expected a number or a text")
        reading.enter(str(value), self.where)
        return str(value)


def read_table(
    path: Path | Source, layouts: Sequence[Columns], reading: Reading, make: Callable[[TableRow], AnyExample | None]
) -> Iterator[AnyExample]:
    """Yield what `make` makes of each row, by the layout that the file has (`choose`).

    None is left out, and a row with an InputError is set aside. Records that hold several examples are expanded.
    """
    with open_source(path, separator=reading.separator, encoding=reading.encoding) as source:
        records = table_records(source, layouts)
        layout = choose(records, layouts, reading.labeled)
        class_names = records.class_names.get(layout.label, ())
        index = id_column(records, layout)
        is_stated = layout.index not in ("", Columns().index, *HUB_IDS)
        if is_stated and index != layout.index and reading.labeled is not False:
            raise InputError(
                f"{records.where}: no column {layout.index!r}, which holds the ids (found: {records.shown_columns})"
            )
        table = Table(records, layout, index, class_names, reading)
        for record in records.rows:
            for fields in _rows(record, table):
                example = None
                try:
                    example = make(TableRow(record.where, fields, table))
                except InputError as error:
                    reading.refuse(error)
                reading.number += 1
                if example is not None:
                    yield example


def _rows(record: Record, table: Table) -> list[Row]:
    """Return the rows of a record; [] if it is blank, set aside or counted out."""
    reading, columns, items = table.reading, table.records.columns, table.layout.items
    # The fields of a line with an error are there if only their number is wrong, which is known of official files.
    num_fields = len(record.line.split("\t")) if record.error and record.fields else len(columns)
    if not record.error and not record.is_blank:
        try:
            return list(_expand(record.fields, items.split("."))) if items else [record.fields]
        except (KeyError, TypeError):
            reading.refuse(InputError(f"{record.where}: no list {items!r}, expected the task's form"))
    elif num_fields == len(columns) + 4 and columns[-2:] == ("label1", "gold_label"):
        # SNLI mixes rows with one annotator's label and rows with five under one header; the gold label is always last.
        return [record.fields | {"gold_label": record.line.rpartition("\t")[2]}]
    elif num_fields < len(columns) and reading.counts.get(INCOMPLETE, 0) < reading.incomplete_rows:
        reading.count(INCOMPLETE)
    elif record.error:
        reading.refuse(InputError(record.error))
    reading.number += 1
    return []


def _expand(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield `value` once for every item of the lists along `path`, with the item in place of its list."""
    if isinstance(value, list):
        for item in value:
            yield from _expand(item, path)
    elif not path:
        yield value
    else:
        for item in _expand(value[path[0]], path[1:]):
            yield {**value, path[0]: item}


def table_records(source: Source, layouts: Sequence[Columns]) -> Records:
    """Return the rows of a table; its first line is a header unless `headerless` of the first layout has as many."""
    names = layouts[0].headerless

    def is_header(cells: Sequence[str]) -> bool:
        is_other = len(cells) > 1 and len(cells) != len(names)
        return is_other or any(has_columns(cells, layout.texts) for layout in layouts)

    return open_records(source, names=names, csv_names=names, is_header=is_header)


def has_columns(columns: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether every column of every name or template is there."""
    return all(
        name and all(field in columns or field.partition(".")[0] in columns for field in FIELD.findall(name) or [name])
        for name in names
    )


def fitting(records: Records, layouts: Sequence[Columns]) -> list[Columns]:
    """Return the layouts whose texts are there."""
    return [layout for layout in layouts if has_columns(records.columns, layout.texts)]


def choose(records: Records, layouts: Sequence[Columns], labeled: bool | None) -> Columns:
    """Return the first layout whose texts are there, preferably with its labels.

    InputError if there is none, or none with the labels that `labeled` requires.
    """
    # JSON lines may each have a label or none, so there it is for the reader to require it.
    candidates = fitting(records, layouts)
    with_labels = [c for c in candidates if not c.label or has_columns(records.columns, [c.label])]
    if candidates and (with_labels or not labeled or records.format == "jsonl"):
        return (with_labels or candidates)[0]
    if candidates:
        missing = candidates[0].label
        raise InputError(
            f"{records.where}: no column {missing!r}, which holds the labels (found: {records.shown_columns})"
        )
    first = layouts[0]
    expected = " and ".join(first.texts)
    if not records.columns:  # none of the first lines can be read
        empty = f"{records.name}: is empty, expected a table with the columns {expected}"
        raise InputError(next((record.error for record in records.rows if record.error), empty))
    also = f", or {len(first.headerless)} columns without a header" if first.headerless else ""
    raise InputError(
        f"{records.where}: found the columns {records.shown_columns}; expected a header with {expected}{also}; is this "
        "another task's file?"
    )


def id_column(records: Records, layout: Columns) -> str | None:
    """Return the column or template of the examples' ids; None if rows are to be counted."""
    # A column without a name numbers the rows if it is the first.
    if has_columns(records.columns, [layout.index]) or (not layout.index and [*records.columns[:1]] == [""]):
        return layout.index
    return next((name for name in HUB_IDS if name in records.columns), None)
