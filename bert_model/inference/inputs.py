"""Inputs of predictions: a task's own files, or plain input as lines of text, tab-separated fields or JSON lines.

The first lines of a file decide, so that header, ids and labels of a data file are never taken for text.
"""

import contextlib
import dataclasses
import io
import itertools
import json
import logging
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import InputError
from bert_pipeline.records import failure
from bert_pipeline.storage import make_directory, remove_tree, to_path
from bert_pipeline.tasks.catalogue import TASKS, Task
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample
from bert_pipeline.tasks.ner import DOCUMENT_MARK
from bert_pipeline.tasks.tables import is_unicode, table_format, unicode_text
from bert_pipeline.tasks.task import is_task_file, stream_examples
from bert_pipeline.vocabulary.tokenizer import pre_tokenizer

logger = logging.getLogger(__name__)

PredictionInput = dict[str, Any]
"""One input: the fields of its form, as `FIELDS` names them, and its "id"."""

FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "pair": ("text", "text_b"),
    "span": ("question", "context"),
    "choice": ("context", "endings"),
    "tagging": ("text",),
}
"""Fields of an input of each form; an input to tag may have "words" instead of "text"."""

HEAD_LINES = 512
"""Number of lines by which a file is recognized."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of an input file: an input, a blank line, or the reason why it cannot be read."""

    item: PredictionInput
    """The input; of other rows the id alone, None where it is not known."""
    where: str
    """File and line, or file and id."""
    is_blank: bool = False
    error: str = ""
    """Where the row is, what was found and what was expected."""
    text: str = ""
    """The line that cannot be read, if the file has lines."""


@contextlib.contextmanager
def reading(path: str) -> Iterator[tuple[IO[str], str]]:
    """Open a file, or standard input for "-"; yield its lines and its name. InputError if it cannot be read.

    Bytes that are not UTF-8 become lone surrogates, so that the readers of lines can name the line.
    """
    if path == "-":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
        yield sys.stdin, "standard input"
        return
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
            yield stream, path
    except OSError as error:
        if error.filename != path:
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error


@contextlib.contextmanager
def open_rows(path: str, form: str, task: Task | None = None) -> Iterator[Iterator[Row]]:
    """Open a file, or standard input for "-", and yield its rows one by one.

    A file of the task (`is_task_file`: official, the hub's, Parquet, Arrow) is read as such: ids are kept, labels are
    not read. All else is plain: one input a line, as text, tab-separated fields or JSON objects with the fields of
    `form`. The id of a line is its field "id", or else its number from 0; blank lines count. InputError if the file
    cannot be opened, or looks like a data file of another kind.
    """
    if task is not None and path != "-" and Path(path).is_dir():
        yield _task_rows(task, Path(path), form)
        return
    with reading(path) as (lines, where), contextlib.ExitStack() as stack:
        # The first lines decide what the file is.
        head = list(itertools.islice(lines, HEAD_LINES))
        if head:
            head[0] = head[0].removeprefix("\ufeff")
        # JSON lines with the fields of an input are plain input, unless the task reads other texts or ids from them.
        is_json = _is_json_lines(head)
        if task is not None:
            is_stream = path == "-" or not Path(path).is_file()  # a pipe, which can be read only once
            file = stack.enter_context(_saved(head)) if is_stream else Path(path)
            is_plain = is_json and _has_fields(head, form)
            is_tagged = form == "tagging" and not is_json and _is_columns(head)
            if is_tagged or _is_task_file(task, file, plain=not is_plain):
                # Recognized by its head; the readers of task files need the rest on disk too.
                if is_stream:
                    with open(file, "a", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
                        stream.writelines(lines)
                yield _task_rows(task, file, form)
                return
        _refuse_data_file(head, form, where)
        yield _plain_rows(itertools.chain(head, lines), form, where, is_json)


def read_texts(lines: Iterable[str], where: str) -> Iterator[PredictionInput]:
    """Read inputs that are each a text or a pair: lines, tab-separated pairs, JSON lines. InputError names the line.

    Blank lines are skipped; the id of a line without one is its number from 0.
    """
    lines = iter(lines)
    head = list(itertools.islice(lines, HEAD_LINES))
    is_json = _is_json_lines(head)
    for number, line in enumerate(itertools.chain(head, lines), start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        if number == 1:
            text = text.removeprefix("\ufeff")
        if text.strip():
            form = "pair" if "\t" in text or '"text_b"' in text else "text"
            yield {"id": str(number - 1)} | _read_line(text, form, f"{where}:{number}", is_json)


def _task_rows(task: Task, file: Path, form: str) -> Iterator[Row]:
    """Yield the rows of one of the task's own files."""
    refused: list[InputError] = []
    for example in stream_examples(task, file, labeled=False, on_error=refused.append):
        yield from _refused_rows(refused, file)
        place = f"{file}: id {example.example_id}"
        try:
            row = Row(check_input(_from_example(example), form, place), place)
        except BaseException as error:
            row = Row({"id": example.example_id}, place, error=reason(error, place))
        yield row
    yield from _refused_rows(refused, file)


def _refused_rows(refused: list[InputError], file: Path) -> Iterator[Row]:
    yield from (Row({"id": None}, str(file), error=str(error)) for error in refused)
    refused.clear()


def _plain_rows(lines: Iterable[str], form: str, where: str, is_json: bool) -> Iterator[Row]:
    for number, line in enumerate(lines):
        text = line.removesuffix("\n").removesuffix("\r")
        # Ids count from 0 and blank lines too, places from 1, as editors count.
        key, place = {"id": str(number)}, f"{where}:{number + 1}"
        if not text.strip():
            yield Row(key, place, is_blank=True)
            continue
        try:
            row = Row(key | _read_line(text, form, place, is_json), place)
        except BaseException as error:
            row = Row(key | _stated_id(text), place, error=reason(error, place), text=text)
        yield row


def reason(error: BaseException, where: str) -> str:
    """Return why a row cannot be read; raise the exception again if it is not about the row (`records.failure`)."""
    return str(error) if isinstance(error, InputError) else f"{where}: {failure(error)}"


def _stated_id(line: str) -> PredictionInput:
    """Return the id in a JSON line whose other fields cannot be used: its number may be the id of another line."""
    document = _json_object(line) or {}
    example_id = document.get("id", document.get("idx"))
    usable = isinstance(example_id, str | int) and not isinstance(example_id, bool)
    return {"id": example_id} if usable else {}


# --- what a file is ---

KNOWN_COLUMNS = {
    *itertools.chain.from_iterable(FIELDS.values()),
    *("id", "idx", "words", "tokens", "ner_tags", "answers", "sent1", "sent2", "ending0", "ending1"),
    *(
        name
        for task in TASKS.values()
        for columns in (task.columns, task.hub_columns or task.columns)
        for name in (columns.text_a, columns.text_b, columns.label, columns.index)
        if name
    ),
}
"""Names by which the header of a data file is told from a line of text."""
TAG = re.compile(r"O|[BI]-\S+")
FIELD_START = re.compile(r'\s*\{\s*"(id|text|text_b|question|context|endings|words)"\s*:')


def _is_task_file(task: Task, file: Path, *, plain: bool) -> bool:
    """Return whether a file is the task's; a text file that cannot be read as a table is not."""
    try:
        return is_task_file(task, file, plain=plain)
    except InputError:
        if table_format(file) in ("parquet", "arrow"):
            raise
        return False


def _is_json_lines(head: Sequence[str]) -> bool:
    """Return whether most lines are JSON objects; a few of a text file may look like one, and a few be damaged."""
    filled = [line for line in head if line.strip()]
    return 2 * sum(_json_object(line) is not None for line in filled) > len(filled)


def _json_object(line: str) -> dict[str, Any] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _has_fields(head: Sequence[str], form: str) -> bool:
    """Return whether the first JSON object has the fields of a plain input."""
    record = next(record for line in head if (record := _json_object(line)) is not None)
    return set(FIELDS[form]) <= set(record) or (form == "tagging" and "words" in record)


def _refuse_data_file(head: Sequence[str], form: str, where: str) -> None:
    """Raise InputError if the first lines are those of a data file, whose parts would be taken for plain texts."""
    # Binary data first: the other tests read the lines as text.
    expected = f"expected {' and '.join(FIELDS[form])}, one input a line"
    first = head[0].rstrip("\r\n") if head else ""
    if 2 * sum(map(_is_binary, head)) > len(head):
        raise InputError(f"{where}:1: not UTF-8 text, as most of the first lines; convert or unpack the file")

    # A header of known columns: two of them, none with a space, are no sentence.
    for separator in ("\t", ","):
        cells = [cell.strip('"') for cell in first.split(separator)]
        is_header = sum(cell in KNOWN_COLUMNS for cell in cells) > 1 and not any(" " in cell for cell in cells)
        if is_header or (separator == "," and where.lower().endswith(".csv")):
            raise InputError(
                f"{where}:1: found the columns {', '.join(cell[:40] for cell in cells[:12])}, {expected}, or a file of "
                "the task; is this another task's file?"
            )

    # Lines of the wrong form for this task, which would be answered as texts.
    if _is_columns(head):
        raise InputError(f"{where}:1: found CoNLL's columns, {expected}; is this another task's file?")
    if form == "tagging" and _is_words(head):
        raise InputError(
            f"{where}:1: found one word a line; begin the file with a line {DOCUMENT_MARK} if these are sentences of "
            'words, or give JSON lines with "words"'
        )
    if _is_json_document("".join(head).strip()):
        raise InputError(f"{where}:1: found one JSON document, {expected}; is this another task's file?")


def _is_binary(line: str) -> bool:
    """Return whether a line has NUL or bytes that are not UTF-8, which `reading` turns into surrogates."""
    return "\0" in line or not is_unicode(line)


def _is_columns(head: Sequence[str]) -> bool:
    """Return whether there is a document mark, or most lines have the same columns, the last of them a tag."""
    rows = [line.split() for line in head if line.strip()]
    if any(row[0] == DOCUMENT_MARK for row in rows):
        return True
    width = statistics.mode(map(len, rows)) if len(rows) > 1 else 0
    return width > 1 and 2 * sum(len(row) == width and bool(TAG.fullmatch(row[-1])) for row in rows) > len(rows)


def _is_words(head: Sequence[str]) -> bool:
    """Return whether every line is one word, and blank lines separate runs of them."""
    text = "".join(head).strip()
    return all(len(line.split()) <= 1 for line in head) and "\n\n" in text and len(text.split("\n\n")[0].split()) > 1


def _is_json_document(text: str) -> bool:
    """Return whether a text is JSON over several lines, or the beginning of it, or a list of objects on one line."""
    if not text.startswith(("{", "[")):
        return False
    has_lines = "\n" in text
    try:
        document = json.loads(text)
    except RecursionError:
        return has_lines
    except json.JSONDecodeError as error:
        return has_lines and error.pos >= len(text)
    # On one line "[1]" is a text, but not what pandas writes: [{"text": …}, …].
    return has_lines or (isinstance(document, list) and bool(document) and isinstance(document[0], dict))


# --- one line ---


def _read_line(line: str, form: str, where: str, is_json: bool) -> PredictionInput:
    """Read one line; in a file of JSON lines (`is_json`) each must be an object.

    In other files a line that begins with "{" is a text, unless it is an object with the fields of an input.
    """
    if _is_binary(line):
        raise InputError(f"{where}: not UTF-8 text; convert the file")
    if is_json or FIELD_START.match(line):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON ({error})") from error
        if not isinstance(document, dict):
            raise InputError(f"{where}: found a JSON {type(document).__name__}, expected an object")
        return check_input(document, form, where)

    # Plain text: the fields of the form between tabs.
    names, values = FIELDS[form], line.split("\t")
    if form == "choice":
        if len(values) < 3:
            raise InputError(f"{where}: {len(values)} tab-separated fields, expected a context and two or more endings")
        return check_input({"context": values[0], "endings": values[1:]}, form, where)
    if len(values) != len(names):
        raise InputError(f"{where}: {len(values)} tab-separated fields, expected {' and '.join(names)}")
    return check_input(dict(zip(names, values)), form, where)


def check_input(fields: Mapping[str, Any], form: str, where: str) -> PredictionInput:
    """Return the fields that a form has, and the id; InputError names one that is missing or of the wrong type."""
    checked: PredictionInput = {}

    # Ids are copied into the answers, so they must be what JSON and TSV can hold.
    example_id = fields.get("id", fields.get("idx"))
    if example_id is not None:
        if isinstance(example_id, bool) or not isinstance(example_id, str | int):
            raise InputError(f"{where}: id is {example_id!r}, expected a text or a whole number")
        checked["id"] = example_id

    for name in ("id", "words", *FIELDS[form]):
        value = fields.get(name)
        for text in value if isinstance(value, list | tuple) else (value,):
            if isinstance(text, str):
                unicode_text(text, name, where)

    # Words of a tagged file are kept as they are; a text is split later, by `split_words`.
    if form == "tagging" and "words" in fields:
        words = fields["words"]
        if not isinstance(words, Sequence) or isinstance(words, str) or not all(isinstance(w, str) for w in words):
            raise InputError(f'{where}: "words" is {words!r}, expected a list of texts')
        return {**checked, "words": tuple(words), "document": fields.get("document")}

    # All other forms: every field is there, and is a text or a list of endings.
    names = FIELDS[form]
    missing = [name for name in names if fields.get(name) is None]
    if missing:
        found = ", ".join(map(str, fields)) or "nothing"
        raise InputError(f"{where}: found {found}, expected {' and '.join(names)}; {missing[0]} is missing")
    for name in names:
        value = fields[name]
        if name == "endings":
            value = tuple(value) if isinstance(value, list | tuple) else ()
            if len(value) < 2 or not all(isinstance(ending, str) for ending in value):
                raise InputError(f"{where}: endings is {fields[name]!r}, expected a list of two or more texts")
        elif not isinstance(value, str):
            raise InputError(f"{where}: {name} is {value!r}, expected a text")
        checked[name] = value
    return checked


# --- examples ---


def to_examples(inputs: Sequence[PredictionInput], form: str) -> list[Any]:
    """Convert inputs to unlabeled examples; their ids are their numbers from 0."""
    examples: list[Any] = []
    for index, item in enumerate(inputs):
        key = str(index)
        if form in ("text", "pair"):
            examples.append(TextExample(key, item["text"], item.get("text_b")))
        elif form == "span":
            examples.append(SpanExample(key, "", item["context"], item["question"]))
        elif form == "choice":
            examples.append(ChoiceExample(key, item["context"], item["endings"]))
        else:
            words = item["words"] if "words" in item else split_words(item["text"])
            examples.append(TaggedExample(key, item.get("document"), tuple(words)))
    return examples


def _from_example(example: Any) -> PredictionInput:
    """Convert an example of a task's file to an input with its id."""
    key = {"id": example.example_id}
    if isinstance(example, TextExample):
        return key | {"text": example.text_a} | ({} if example.text_b is None else {"text_b": example.text_b})
    if isinstance(example, SpanExample):
        return key | {"question": example.question, "context": example.context}
    if isinstance(example, ChoiceExample):
        return key | {"context": example.context, "endings": example.endings}
    return key | {"words": example.words, "document": example.document}


def split_words(text: str) -> tuple[str, ...]:
    """Split a sentence at white space and around punctuation, as BERT's tokenizer does before WordPiece."""
    return tuple(word for word, _ in pre_tokenizer().pre_tokenize_str(text))


# --- files to read and write ---


@contextlib.contextmanager
def _saved(head: Iterable[str]) -> Iterator[Path]:
    """Yield a temporary file with the first lines of standard input."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "standard input"
        with open(file, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
            stream.writelines(head)
        yield file


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
def rejecting(output_path: str) -> Iterator[Callable[[Row], None]]:
    """Yield a function that sets rows without an answer aside, in `rejected_path(output_path)` or, for "-", in the log.

    The file is written atomically, and only if there is such a row; one of an earlier run is removed.
    """
    with contextlib.ExitStack() as stack:
        stream: IO[str] | None = None

        def reject(row: Row) -> None:
            nonlocal stream
            if output_path == "-":
                logger.warning("not answered: %s", row.error)
                return
            if stream is None:
                stream = stack.enter_context(writing(str(rejected_path(output_path))))
            # ASCII, so that bytes that are not UTF-8 stay visible.
            stream.write(json.dumps({"id": row.item["id"], "error": row.error, "line": row.text}) + "\n")

        yield reject
        if stream is None and output_path != "-":
            remove_tree(rejected_path(output_path))


def rejected_path(output_path: str) -> Path:
    """Return the file of rows without an answer: "<output>.rejected.jsonl"."""
    return to_path(f"{output_path}.rejected.jsonl")
