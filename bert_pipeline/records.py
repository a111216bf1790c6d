"""Records: rows of text, TSV, CSV, JSON lines, Parquet and Arrow, compressed or not, each with its place and fields.

`open_source` opens a file, a folder of `Dataset.save_to_disk`, the URL of a store or standard input, and tells its
format by its name and its first lines. `open_records` yields its rows one by one, without holding the file in memory.
A row that cannot be read is a record with an error, and the rows after it are read.
"""

import codecs
import collections
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from bert_pipeline.compression import open_bytes, without_compression
from bert_pipeline.errors import InputError
from bert_pipeline.storage import is_remote, read_errors, to_path, without_secrets

Format = Literal["tsv", "csv", "jsonl", "json", "parquet", "arrow"]
"""How a file is read; "tsv" is also text, whose lines have one field, and "json" one document, whose rows are those of
a list."""
Row = dict[str, Any]
"""Column -> value."""

SUFFIXES: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
STATE_NAME = "state.json"
"""File of a `save_to_disk` folder of one split."""
HEAD_BYTES = 8 << 10
"""Lines by which a file is recognized have so many bytes, or the first line has more."""
BOM = codecs.BOM_UTF8
STATED_SEPARATOR = re.compile(rb"sep=(.)\r?\n")
"""The first line of CSV that spreadsheets write with another separator than their reader's."""

_JSON_OBJECT = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
"""Start of a line of JSON lines, whole or damaged; "{a text} in braces" is none."""
_JSON_DOCUMENT = re.compile(rb'\s*(?:[\[{]\s*\n\s*\S|\[\s*\{\s*")')
"""Start of a document that is not one object a line: over several lines, or what pandas writes: [{"text": …}, …]."""
_ARROW_ROWS = 1024
"""Rows of an Arrow file that are decoded at once."""

csv.field_size_limit(16 * 1024 * 1024)  # for the whole process: the csv module has no limit by reader


class Record(NamedTuple):
    """A row of a file, a blank line, or the reason why a row cannot be read."""

    where: str
    """File and line, or file and row, as error messages begin."""
    fields: Row
    """Empty for a blank line and for a row that cannot be read, unless only the number of its fields is wrong."""
    error: str = ""
    """Where the row is, what was found and what was expected."""
    line: str = ""
    """The line without its end, if the file has lines; bytes that are not UTF-8 are lone surrogates."""
    is_blank: bool = False


@dataclasses.dataclass(frozen=True)
class Source:
    """A file, a folder of `save_to_disk`, or a stream, open at its beginning."""

    name: str
    """As error messages begin."""
    head: list[bytes]
    """The first lines, without a byte-order mark."""
    stream: BinaryIO
    """What follows them."""
    format: Format
    path: Path | None = None
    """None for a stream."""
    separator: str = ""
    """What separates the fields of CSV; "" for commas, and for tabs without quotes in TSV."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of_stream(cls, stream: BinaryIO, name: str, path: Path | None = None, separator: str = "") -> "Source":
        """Read the first lines of a stream. InputError if most of them are no text, and it is no other format."""
        head = stream.readlines(HEAD_BYTES)
        head[:1] = [line.removeprefix(BOM) for line in head[:1]]
        format = _format_of(name, head)
        if format == "csv" and head and (stated := STATED_SEPARATOR.fullmatch(head[0])):
            separator = separator or stated[1].decode("latin-1")
            head[0] = b"\n"  # a blank line, which CSV skips, so that lines keep their numbers
        return cls(name, [*head, *stream] if format == "json" else head, stream, format, path, separator)

    def peek(self) -> "Source":
        """Return a source of the first lines alone, whose reading leaves them in this one."""
        return dataclasses.replace(self, stream=io.BytesIO())

    def with_separator(self) -> "Source":
        """Return the source with the separator that its first line has, where that is not the format's own."""
        first = next((record.line for record in self.peek().lines() if not record.is_blank), "")
        separator = "\t" if "\t" in first else max(",;|", key=first.count)
        default = {"csv": ",", "tsv": "\t"}.get(self.format, separator)
        return dataclasses.replace(self, separator="" if separator == default else separator)

    def document(self) -> Any:
        """Read one JSON document. InputError if it is none."""
        try:
            return json.loads(decode_text(b"".join([*self.head, self.stream.read()]), self.name))
        except json.JSONDecodeError as error:
            where = f"{self.name}:{error.lineno}"
            raise InputError(f"{where}: not valid JSON at column {error.colno} ({error.msg})") from error
        except RecursionError as error:
            raise InputError(f"{self.name}: not valid JSON ({error})") from error

    def lines(self) -> Iterator[Record]:
        """Yield lines as records without fields.

        Only line feeds end a line: `str.splitlines` would also cut at U+2028 and others, which occur inside of fields.
        """
        for number, data in enumerate(itertools.chain(self.head, self.stream), start=1):
            where = f"{self.name}:{number}"
            data = data.removesuffix(b"\n").removesuffix(b"\r")
            try:
                line = decode_text(data, where, of="line")
            except InputError as error:
                yield Record(where, {}, str(error), data.decode(errors="surrogateescape"))
            else:
                yield Record(where, {}, "", line, not line.strip())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """The rows of a source."""

    name: str
    format: Format
    columns: tuple[str, ...]
    """Names from the header or schema; for JSON lines the keys of the first row; () of an empty file."""
    rows: Iterator[Record]
    class_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Column -> names of its integer classes, from the metadata that `datasets` writes into schemas."""

    @property
    def where(self) -> str:
        """The file and the line of the columns' names, as error messages begin."""
        return self.name if self.format in ("parquet", "arrow") else f"{self.name}:1"

    @property
    def shown_columns(self) -> str:
        """The columns as error messages list them."""
        return ", ".join(name[:40] for name in self.columns[:14])


@contextlib.contextmanager
def open_source(path: Path | str | Source, *, separator: str = "", encoding: str = "utf-8") -> Iterator[Source]:
    """Open a file, a folder of `save_to_disk`, a URL or, for "-", standard input; a source that is open stays so.

    `separator` is that of CSV, `encoding` that of a text that is not UTF-8, which is held in memory. To be used in
    generators and functions that do nothing but read: other errors of files inside the block would be taken for damage
    of a compressed file. InputError if the file cannot be read.
    """
    if isinstance(path, Source):
        yield path
        return
    if str(path) == "-":
        stream = _in_utf8(sys.stdin.buffer, "standard input", encoding)
        yield Source.of_stream(stream, "standard input", separator=separator)
        return
    path = to_path(path)
    if not is_remote(path) and path.is_dir():
        yield Source(str(path), [], io.BytesIO(), "arrow", path)
        return
    with contextlib.ExitStack() as stack:
        with read_errors(path, "; check the path"):
            stream = stack.enter_context(open_bytes(path))
        yield Source.of_stream(_in_utf8(stream, str(path), encoding), str(path), path, separator)


def encoding_of(path: Path) -> str:
    """Return the encoding of a file, as `open_source` takes it: if it is text and not UTF-8, that of Windows."""
    with open_bytes(path) as stream:
        data = b"" if path.suffix in (".parquet", ".arrow") else stream.read()
    return "utf-8" if data.decode(errors="ignore").encode() == data else "cp1252"


def _in_utf8(stream: BinaryIO, name: str, encoding: str) -> BinaryIO:
    if codecs.lookup(encoding).name == "utf-8" or Path(name).suffix in (".parquet", ".arrow"):
        return stream
    data = stream.read()
    with contextlib.suppress(UnicodeError):  # what is not UTF-8; UTF-16 may be, with zeros
        if not data.isascii() and "\0" not in data.decode():
            return io.BytesIO(data)
    try:
        return io.BytesIO(data.decode(encoding).encode())
    except UnicodeError as error:
        raise InputError(f"{name}: not text in {encoding} ({error}); give its encoding") from None


def _format_of(name: str, head: Sequence[bytes]) -> Format:
    suffix = SUFFIXES.get(Path(without_compression(without_secrets(name))).suffix.lower())
    lines = [line for line in head if line.strip()] or [b""]
    if suffix == "parquet" or lines[0].startswith(b"PAR1"):
        return "parquet"
    if suffix == "arrow" or lines[0].startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if 2 * sum(map(_is_binary, lines)) > len(lines):
        raise InputError(f"{name}:1: not UTF-8 text, as most of the first lines; convert or unpack the file")

    # The first line may be damaged, and a few lines of a text may look like objects.
    is_object = [bool(_JSON_OBJECT.match(line)) for line in lines]
    if suffix == "jsonl" or is_object[0] or (2 * sum(is_object) > len(lines) and suffix in (None, "json")):
        return "jsonl"
    return "json" if _JSON_DOCUMENT.match(b"".join(lines)) else suffix or "tsv"


def _is_binary(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return True
    return b"\0" in line


def decode_text(data: bytes, where: str, offset: int = 0, of: str = "text") -> str:
    """Decode UTF-8 found at `offset`. InputError with the byte that is none, and for zero bytes, which no text has."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{where}: not UTF-8 text ({error.reason} at byte {offset + error.start:,} of the {of}); convert it, or "
            "unpack it if it is an archive"
        ) from None
    if "\0" in text:
        raise InputError(f"{where}: holds zero bytes: unpack it if it is a tar archive, convert it if it is UTF-16")
    return text


def unicode_text(text: str, name: str, where: str) -> str:
    """Return the text; InputError if it has lone surrogates, as JSON can spell, which cannot be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: {name} has half of a surrogate pair, expected Unicode text") from None
    return text


def parse_object(line: str, where: str) -> Row:
    """Parse a line of JSON lines. InputError if it is no object of Unicode text."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error}), expected an object a line") from error
    if not isinstance(value, dict):
        raise InputError(f"{where}: found a JSON {type(value).__name__}, expected an object")
    if "\\ud" in line or "\\uD" in line:
        for name, item in value.items():
            unicode_text(json.dumps([name, item], ensure_ascii=False), name, where)
    return value


# Rows


def open_records(
    source: Source,
    *,
    names: Sequence[str] = (),
    csv_names: Sequence[str] = (),
    is_header: Callable[[Sequence[str]], bool] = lambda cells: True,
) -> Records:
    """Return the rows of a source.

    Lines of text and TSV have a header if `is_header` says so of the fields of the first line, or if there are no
    `names`, which else name the fields: a name that ends with "?" may be missing, one that ends with "*" takes all
    fields that are left, as a list. So it is with CSV and `csv_names`. A file without a known suffix, or with a stated
    separator, is CSV if `is_header` says so of its first row. InputError if the file is one JSON document other than a
    list of objects, cannot be read or names a column twice.
    """
    kind = source.format
    class_names: dict[str, tuple[str, ...]] = {}
    columns: Sequence[str]
    rows: Iterator[Record]
    if kind == "json":
        rows, again = _array_rows(source), _array_rows(source)
        columns = next((list(record.fields) for record in again if record.fields), ())
    elif kind in ("parquet", "arrow"):
        columns, class_names, rows = _open_arrow(source)
    elif kind == "jsonl":
        columns = next((list(record.fields) for record in _json_rows(source.peek().lines()) if record.fields), ())
        rows = _json_rows(source.lines())
    else:
        first = next(source.peek().lines(), Record("", {}))
        fields = first.line.split("\t")
        has_csv_header = False
        if kind == "csv" or source.separator or (len(fields) == 1 and not (first.is_blank or is_header(fields))):
            has_csv_header = is_header(next(_csv_rows(source.peek()), ("", [], ""))[1])
        if kind == "csv" or has_csv_header or (source.separator and csv_names):
            kind = "csv"
            columns, rows = _open_csv(source, () if has_csv_header else csv_names)
        elif names and not is_header(fields):
            columns, rows = [name.rstrip("?*") for name in names], _named_rows(source.lines(), names)
        else:
            if first.error:
                raise InputError(first.error)
            columns = [name.strip() for name in fields] if first.where else ()
            rows = _tsv_rows(itertools.islice(source.lines(), 1, None), columns)

    # Of two columns with one name, rows would silently keep the last.
    repeated = next((name for position, name in enumerate(columns) if name and name in columns[:position]), None)
    if repeated is not None:
        raise InputError(f"{source.name}: the column {repeated!r} occurs twice, expected each once; rename one of them")
    return Records(name=source.name, format=kind, columns=tuple(columns), rows=rows, class_names=class_names)


def _named_rows(lines: Iterable[Record], names: Sequence[str]) -> Iterator[Record]:
    """Yield lines of text or of fields between tabs; blank lines are blank records."""
    plain = [name.rstrip("?*") for name in names]
    least = sum(not name.endswith(("?", "*")) for name in names)
    optional = f", optionally {' and '.join(plain[least:])}" if least < len(names) else ""
    expected = " and ".join(plain[:least]) + optional
    for record in lines:
        if record.error or record.is_blank:
            yield record
            continue
        cells: list[Any] = record.line.split("\t")
        num_fields = len(cells)
        if names[-1].endswith("*"):
            cells[len(names) - 1 :] = [cells[len(names) - 1 :]]
        error = f"{record.where}: {num_fields} tab-separated fields, expected {expected}"
        yield Record(
            record.where, dict(zip(plain, cells)), "" if least <= len(cells) <= len(names) else error, record.line
        )


def _tsv_rows(lines: Iterable[Record], columns: Sequence[str]) -> Iterator[Record]:
    """Yield rows of fields between tabs, quotes included. Blank lines at the end are none."""
    blank: list[Record] = []
    for last in lines:
        if last.is_blank:
            blank.append(last)
            continue
        for record in (*blank, last):
            cells = record.line.split("\t")
            error = f"{record.where}: {len(cells)} columns, expected {len(columns)}" * (len(cells) != len(columns))
            yield record if record.error else Record(record.where, dict(zip(columns, cells)), error, record.line)
        blank.clear()


def _array_rows(source: Source) -> Iterator[Record]:
    """Yield the objects of a JSON list."""
    document = source.document()
    if not isinstance(document, list):
        raise InputError(f"{source.name}:1: found one JSON document, expected JSON lines or a list, of objects")
    for number, item in enumerate(document, start=1):
        yield from _json_rows([Record(f"{source.name}: item {number}", {}, line=json.dumps(item))])


def _json_rows(lines: Iterable[Record]) -> Iterator[Record]:
    for record in lines:
        if record.error or record.is_blank:
            yield record
            continue
        try:
            fields, error = parse_object(record.line, record.where), ""
        except InputError as problem:
            fields, error = {}, str(problem)
        yield Record(record.where, fields, error, record.line)


def _open_csv(source: Source, names: Sequence[str]) -> tuple[list[str], Iterator[Record]]:
    rows = _csv_rows(source)
    _, header, error = ("", [*names], "") if names else next(rows, ("", [], ""))
    if error:
        raise InputError(error)
    header = [name.strip() for name in header]
    return header, (Record(where, dict(zip(header, cells)), error) for where, cells, error in rows)


def _csv_rows(source: Source) -> Iterator[tuple[str, list[str], str]]:
    """Yield the place, the fields and the error of each row of a CSV file; blank lines are skipped."""
    records = source.lines()
    taken: list[Record] = []  # the lines of this row: a quoted field may span some, and the first names the row
    again: collections.deque[Record] = collections.deque()

    def lines() -> Iterator[str]:
        while record := again.popleft() if again else next(records, None):
            taken.append(record)
            yield from (f"{line}\n" for line in record.line.split("\r"))

    delimiter = source.separator or ","
    reader = csv.reader(lines(), strict=True, delimiter=delimiter)
    width = 0
    while True:
        taken.clear()
        try:
            row = next(reader)
            places = [record.where for record in taken]
            defect = f"{len(row)} columns, expected {width}" if width and len(row) not in (0, width) else ""
        except StopIteration:
            return
        except csv.Error as error:
            row, places, defect = [], [record.where for record in taken], f"not valid CSV ({error})"
            # A stray quotation mark swallows the lines up to the next one: they are read again without it.
            again.extendleft(reversed(taken[1:]))
            del taken[1:]
            reader = csv.reader(lines(), strict=True, delimiter=delimiter)
        where = places[0] if places else source.name
        if problem := next((record.error for record in taken if record.error), ""):
            yield where, [], problem
        elif defect:
            if len(places) > 1:
                first, last = (place.rpartition(":")[2] for place in (where, places[-1]))
                defect = f"lines {first} to {last} as one row: {defect}; is a quotation mark too many?"
            yield where, [], f"{where}: {defect}"
        elif row:
            width = width or len(row)
            yield where, row, ""


# Parquet and Arrow


def _open_arrow(source: Source) -> tuple[list[str], dict[str, tuple[str, ...]], Iterator[Record]]:
    """Open Parquet, an Arrow file or stream, or a folder of `Dataset.save_to_disk`."""
    import pyarrow as pa

    from bert_pipeline.parquet_io import open_parquet, parquet_rows, rows_of

    if (path := source.path) is None:
        raise InputError(f"{source.name}: holds {source.format}, which is read from files only; give the path of one")
    # The schema is read now, so that a damaged file is an error of opening it; the rows only when they are asked for.
    if source.format == "parquet":
        file = open_parquet(path, pa.schema([]), "a whole parquet file", buffer_size=1 << 20)
        schema, contents = file.schema_arrow, parquet_rows(file, path, range(file.num_row_groups))
    else:
        tables = [_arrow_table(file) for file in (saved_files(path) if path.is_dir() else [path])]
        schema = tables[0].schema
        contents = (row for table in tables for batch in table.to_batches(_ARROW_ROWS) for row in rows_of(batch))

    def rows() -> Iterator[Record]:
        for number, row in enumerate(contents, start=1):
            where = f"{path}: row {number}"
            problem = f"{where}: {row}; convert the file" if isinstance(row, Exception) else ""
            yield Record(where, {} if isinstance(row, Exception) else row, problem)

    return schema.names, _class_names(schema.metadata or {}), rows()


def saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a `save_to_disk` folder in order."""
    try:
        state = json.loads((folder / STATE_NAME).read_text(encoding="utf-8"))
        files = [folder / Path(entry["filename"]).name for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: not a folder of datasets' save_to_disk ({error}); give a file, or the folder of one split"
        ) from error
    if not files:
        raise InputError(f"{folder}: its state.json names no data files, expected at least one")
    return files


def _arrow_table(file: Path) -> Any:
    """Map an Arrow stream or file, of which memory holds only what is read."""
    import pyarrow as pa

    try:
        try:
            return pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file}: not a whole arrow file ({error}); fetch it again") from error


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Return column -> class names from the features that `datasets` stores in a schema."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {column: names for column, feature in features.items() if (names := _names_of(feature))}


def _names_of(feature: Any) -> tuple[str, ...]:
    """Return the names of a ClassLabel, or of the ClassLabels in a list: [x], {"feature": x} or {"feature": [x]}."""
    if isinstance(feature, list):
        return _names_of(feature[0]) if feature else ()
    if not isinstance(feature, Mapping):
        return ()
    return tuple(feature["names"]) if feature.get("_type") == "ClassLabel" else _names_of(feature.get("feature"))
