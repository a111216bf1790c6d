"""Inputs of predictions: a task's own files, or plain input as text, tables or JSON lines with the fields of a form.

The first lines of a file decide, so that header, ids and labels of a data file are never taken for text.
"""

import contextlib
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from bert_model.kinds import kind_of
from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import InputError
from bert_pipeline.failed_records import failure
from bert_pipeline.records import Record, Records, Source, open_records, open_source, unicode_text
from bert_pipeline.storage import make_directory, remove_tree, to_path
from bert_pipeline.tasks.catalogue import TASKS, Task
from bert_pipeline.tasks.ner import DOCUMENT_MARK, is_column_file
from bert_pipeline.tasks.task import is_task_file, stream_examples

logger = logging.getLogger(__name__)

Row = TypeVar("Row")
Result = TypeVar("Result")

PredictionInput = dict[str, Any]
"""One input: the fields of its form, as `FIELDS` names them, and its "id"."""

FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "pair": ("text", "text_b"),
    "texts": ("text", "text_b?"),
    "span": ("question", "context"),
    "choice": ("context", "endings*"),
    "tagging": ("text",),
}
"""Fields of an input of each form, as `open_records` takes them; an input to tag may have "words" instead of "text"."""
_LISTS = {"endings": "a list of two or more texts", "words": "a list of texts"}
"""Fields that are no text, and what they are."""

_COLUMNS = [
    columns
    for task in TASKS.values()
    for columns in (task.columns, task.hub_columns or task.columns)
    if task.reader == "tsv"
]
KNOWN_COLUMNS = {
    *("id", "idx", "text", "text_b", "question", "context", "answers", "endings", "words", "tokens", "ner_tags"),
    *("sent1", "sent2", "ending0", "ending1", "#1 ID", "#2 ID"),
    *(name for columns in _COLUMNS for name in (*columns.texts, columns.label, columns.index) if name),
}
"""Names by which the header of a data file is told from a line of text."""
TEXT_COLUMNS = sorted([*(columns.texts for columns in _COLUMNS), FIELDS["span"]], key=len, reverse=True)
"""The columns with the texts of known data files, pairs first."""


def read_rows(path: str, form: str, task: Task | None = None) -> Iterator[Record]:
    """Yield the rows of a file, or of standard input for "-", with the fields of an input and its "id".

    A file of the task (`is_task_file`: official or the hub's) is read as such: ids are kept, labels are not read. All
    else is plain: one input a line, as text or tab-separated fields, or a table or JSON lines with the fields of the
    form; for "texts" the columns of a table may have other names (`_text_columns`). The id of a row is its field "id",
    or else its number from 0; blank lines count. The fields of a blank row, and of one that cannot be read, are its id
    alone, None where it is not known. InputError if the file cannot be opened, or looks like a data file of another
    kind.
    """
    options = {"separator": task.separator, "encoding": task.encoding} if task else {}
    with open_source(path, **options) as source:
        if task is not None and is_task_file(task, source):
            yield from _task_rows(task, source, form)
            return
        _refuse_columns(source, form)
        records, columns = _open_records(source, form), {}
        is_input = _required(form) <= {*records.columns} or (form == "tagging" and "words" in records.columns)
        if records.columns and not is_input and form == "texts":
            columns = _text_columns(source, records)
        elif records.columns and not is_input and records.format != "jsonl":  # each line may have others
            raise InputError(
                f"{records.where}: found the columns {records.shown_columns}, {_expected(form)}, one input a line, or "
                "a file of the task; is this another task's file?"
            )
        for number, record in enumerate(records.rows):
            fields = {name: record.fields.get(column) for name, column in columns.items()}
            yield input_row(record._replace(fields=record.fields | fields) if fields else record, form, number)


def _open_records(source: Source, form: str) -> Records:
    return open_records(source, names=FIELDS[form], is_header=lambda cells: _is_header(cells, form))


def _required(form: str) -> set[str]:
    return {name.rstrip("*") for name in FIELDS[form] if not name.endswith("?")}


def _expected(form: str) -> str:
    return f"expected {' and '.join(name.rstrip('?*') for name in FIELDS[form])}"


def _text_columns(source: Source, records: Records) -> dict[str, str]:
    """Return the columns with the fields of "texts": those of a task's data, or the only one of several words."""
    columns = next((texts for texts in TEXT_COLUMNS if {*texts} <= {*records.columns}), ())
    if not columns:
        rows = [record.fields for record in itertools.islice(_open_records(source.peek(), "texts").rows, 100)]
        counts = {name: sum(len(str(row.get(name)).split()) > 1 for row in rows) for name in records.columns}
        columns = tuple(name for name, count in counts.items() if 2 * count > len(rows))
        logger.info("%s: columns with texts: %s", records.name, ", ".join(columns))
        if len(columns) != 1:
            raise InputError(
                f"{records.where}: found the columns {records.shown_columns}, expected text, or text and text_b; "
                "rename the column with the texts to text"
            )
    return dict(zip(("text", "text_b"), columns))


def _task_rows(task: Task, source: Source, form: str) -> Iterator[Record]:
    """Yield the rows of one of the task's own files."""
    refused: list[InputError] = []

    def refused_rows() -> Iterator[Record]:
        yield from (Record(source.name, {"id": None}, str(error)) for error in refused)
        refused.clear()

    for example in stream_examples(task, source, labeled=False, on_error=refused.append):
        yield from refused_rows()
        fields = {"id": example.example_id, **kind_of(task).fields(example)}
        yield input_row(Record(f"{source.name}: id {fields['id']}", fields), form, 0)
    yield from refused_rows()


def input_row(record: Record, form: str, number: int) -> Record:
    """Return a record with the fields of a form and its id, or with the reason why these are not there."""
    # The number of a row whose other fields cannot be used may be the id of another one.
    stated = record.fields.get("id", record.fields.get("idx"))
    is_id = isinstance(stated, str | int) and not isinstance(stated, bool)
    fields: PredictionInput = {"id": stated if is_id else str(number)}
    error = record.error
    if not error and not record.is_blank:
        try:
            # Ids are copied into the answers, so they must be what JSON and TSV can hold.
            if not is_id and stated is not None:
                raise InputError(f"{record.where}: id is {stated!r}, expected a text or a whole number")
            unicode_text(str(stated), "id", record.where)
            fields |= check_input(record.fields, form, record.where)
        except InputError as problem:
            error = str(problem)
        except BaseException as problem:
            error = f"{record.where}: {failure(problem)}"
    return record._replace(fields=fields, error=error)


def _is_header(cells: Sequence[str], form: str) -> bool:
    """Return whether a first line has the names of columns: two known ones, none with a space, are no sentence."""
    unknown = [cell for cell in cells if cell not in KNOWN_COLUMNS]
    is_known = len(cells) - len(unknown) > 1 and not any(" " in cell for cell in unknown)
    return is_known or {*cells} == _required(form)


def _refuse_columns(source: Source, form: str) -> None:
    """Raise InputError for CoNLL's columns, and for words to tag, whose lines would be taken for texts."""
    if source.format != "tsv":
        return
    if is_column_file(source):
        raise InputError(
            f"{source.name}:1: found CoNLL's columns, {_expected(form)}, one input a line; is this another task's file?"
        )
    text = "\n".join(record.line for record in source.peek().lines()).strip()
    first, _, more = text.partition("\n\n")
    are_words = more and len(first.split()) > 1 and all(len(line.split()) <= 1 for line in text.split("\n"))
    if form == "tagging" and are_words:
        raise InputError(
            f"{source.name}:1: found one word a line; begin the file with a line {DOCUMENT_MARK} if these are "
            'sentences of words, or give JSON lines with "words"'
        )


def check_input(fields: Mapping[str, Any], form: str, where: str) -> PredictionInput:
    """Return the fields that a form has; InputError names one that is missing or of the wrong type."""
    # Words of a tagged sentence are kept as they are; a text is split later, by `split_words`.
    has_words = form == "tagging" and "words" in fields
    names = ["words"] if has_words else [name.rstrip("*") for name in FIELDS[form]]
    checked: PredictionInput = {"document": fields.get("document")} if has_words else {}
    if form == "text" and fields.get("text_b"):
        raise InputError(f"{where}: found text and text_b, expected text alone; give a model for pairs")
    names = [name.rstrip("?") for name in names if not name.endswith("?") or fields.get(name.rstrip("?")) is not None]
    if missing := [name for name in names if fields.get(name) is None]:
        present = ", ".join(map(str, fields)) or "nothing"
        raise InputError(f"{where}: found {present}, {_expected(form)}; {missing[0]} is missing")
    for name in names:
        texts = fields[name] if name in _LISTS else [fields[name]]
        are_texts = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
        if not are_texts or (name == "endings" and len(texts) < 2):
            raise InputError(f"{where}: {name} is {fields[name]!r}, expected {_LISTS.get(name, 'a text')}")
        for text in texts:
            unicode_text(text, name, where)
        checked[name] = tuple(texts) if name in _LISTS else fields[name]
    return checked


def halved(
    compute: Callable[[Sequence[Row]], Result], rows: Sequence[Row]
) -> Iterator[tuple[Sequence[Row], Result | InputError]]:
    """Yield rows with what is computed of them; where that fails, in halves, down to single ones with the reason.

    An error that is not about a row is raised (`failure`).
    """
    try:
        result = compute(rows)
    except BaseException as error:
        reason = error if isinstance(error, InputError) else InputError(failure(error))
    else:
        yield rows, result
        return
    if len(rows) == 1:
        yield rows, reason
        return
    middle = len(rows) // 2
    yield from halved(compute, rows[:middle])
    yield from halved(compute, rows[middle:])


# --- files to read and write ---


@contextlib.contextmanager
def writing(path: str) -> Iterator[IO[str]]:
    """Open a file, or one in a store, that is written atomically, or standard output for "-"."""
    if path == "-":
        yield sys.stdout
        return
    make_directory(to_path(path).parent)
    with atomic_write(to_path(path)) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        yield stream


@contextlib.contextmanager
def rejecting(output_path: str) -> Iterator[Callable[[Record], None]]:
    """Yield a function that sets rows without an answer aside, in `rejected_path(output_path)` or, for "-", in the log.

    The file is written atomically, and only if there is such a row; one of an earlier run is removed.
    """
    with contextlib.ExitStack() as stack:
        stream: IO[str] | None = None

        def reject(row: Record) -> None:
            nonlocal stream
            if output_path == "-":
                logger.warning("not answered: %s", row.error)
                return
            if stream is None:
                stream = stack.enter_context(writing(str(rejected_path(output_path))))
            # ASCII, so that bytes that are not UTF-8 stay visible.
            stream.write(json.dumps({"id": row.fields["id"], "error": row.error, "line": row.line}) + "\n")

        yield reject
        if stream is None and output_path != "-":
            remove_tree(rejected_path(output_path))


def rejected_path(output_path: str) -> Path:
    """Return the file of rows without an answer: "<output>.rejected.jsonl"."""
    return to_path(f"{output_path}.rejected.jsonl")
