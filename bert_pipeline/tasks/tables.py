"""Tables row by row: TSV, CSV, JSON lines, Parquet, and Arrow folders as `datasets` saves them.

`open_table` recognizes the format and yields every row as (number, column -> value) without holding the file in memory.
A row that cannot be read raises an InputError with file and line or row, unless `Reading.on_error` sets it aside.
The names of integer classes are read from the metadata that `datasets` writes into Parquet and Arrow schemas.
"""

import collections
import csv
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import Columns
from bert_pipeline.tasks.example import Reading

Format = Literal["tsv", "csv", "jsonl", "parquet", "arrow"]
Row = dict[str, Any]

SUFFIXES: dict[str, Format] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
HUB_IDS = ("idx", "id")
"""Columns that number the rows if the task names none that is there."""
NOT_UTF8 = re.compile("[\udc80-\udcff]")
FIELD = re.compile(r"\{([^{}]+)\}")
STATE_NAME = "state.json"
"""File of a `save_to_disk` folder of one split."""
SNIFFED_BYTES = 1 << 20
BATCH_ROWS = 1024

csv.field_size_limit(16 * 1024 * 1024)  # for the whole process: the csv module has no limit by reader


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of one file or `save_to_disk` folder."""

    path: Path
    format: Format
    columns: tuple[str, ...]
    """Names from the header or schema; for JSON lines the keys of the first row."""
    rows: Iterator[tuple[int, Row]]
    """(line, or row from 1 in Parquet and Arrow; column -> value)."""
    class_names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Column -> names of its integer classes."""

    def place(self, number: int) -> str:
        """Return "line 3" or "row 3"."""
        return f"{'row' if self.format in ('parquet', 'arrow') else 'line'} {number}"

    def where(self, number: int) -> str:
        """Return the file and the line or row, as error messages begin."""
        return f"{self.path}: row {number}" if self.format in ("parquet", "arrow") else f"{self.path}:{number}"

    def has(self, name: str) -> bool:
        """Return whether every column of a name or template is there."""
        return bool(name) and all(
            field in self.columns or field.partition(".")[0] in self.columns for field in fields_of(name)
        )

    def fits(self, layout: Columns) -> bool:
        """Return whether the texts of a layout are there."""
        return all(map(self.has, layout.texts))

    def choose(self, layouts: Iterable[Columns], labeled: bool | None) -> Columns:
        """Return the first layout whose texts are there, preferably with its labels.

        InputError if there is none, or none with the labels that `labeled` requires. JSON lines may each have a label
        or none, so there it is for the reader to require it.
        """
        layouts = list(layouts)
        fitting = [layout for layout in layouts if self.fits(layout)]
        found = ", ".join(name[:40] for name in self.columns[:14])

        # The message depends on what is missing: the first text, as in another task's file, or one column only.
        if not fitting:
            first = layouts[0]
            missing = next(name for name in first.texts if not self.has(name))
            if missing == first.text_a:
                expected = " and ".join(repr(name) for name in (first.text_a, first.text_b) if name)
                also = f", or {len(first.headerless)} columns without a header" if first.headerless else ""
                raise InputError(
                    f"{self.where(1)}: found the columns {found}; expected a header with {expected}{also}; "
                    "is this another task's file?"
                )
            raise InputError(f"{self.where(1)}: no column {missing!r} (found: {found}); is this another task's file?")

        # A layout without labels serves a file that has none.
        with_labels = [layout for layout in fitting if self.has(layout.label)]
        if labeled and not with_labels and self.format != "jsonl":
            raise InputError(
                f"{self.where(1)}: no column {fitting[0].label!r}, which holds the labels (found: {found})"
            )
        return (with_labels or fitting)[0]

    def id_column(self, layout: Columns) -> str | None:
        """Return the column or template of the examples' ids; None if rows are to be counted."""
        if layout.index in self.columns and (layout.index or self.columns[0] == ""):
            return layout.index
        if "{" in layout.index and self.has(layout.index):
            return layout.index
        return next((name for name in HUB_IDS if name in self.columns), None)

    def examples(self, layout: Columns, reading: Reading) -> Iterator[tuple[int, Row]]:
        """Yield a row for every example: records that hold several (`layout.items`) are expanded."""
        if not layout.items:
            yield from self.rows
            return
        for number, record in self.rows:
            try:
                yield from ((number, row) for row in _expand(record, layout.items.split(".")))
            except (KeyError, TypeError):
                reading.refuse(InputError(f"{self.where(number)}: no list {layout.items!r}, expected the task's form"))


def fields_of(name: str) -> list[str]:
    """Return the columns of a template such as "{word}: {sentence1}", or the one column that a plain name is."""
    return FIELD.findall(name) or [name]


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a column, or of a field in it ("answers.text"); None if absent."""
    value: Any = row
    # A column whose own name has a dot is not a path.
    for part in (name,) if name in row else name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded: lone surrogates, as JSON escapes may spell, cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def unicode_text(text: str, name: str, where: str) -> str:
    """Return the text; InputError if it has lone surrogates, which can be neither tokenized nor written."""
    if not is_unicode(text):
        raise InputError(f"{where}: {name} has half of a surrogate pair, expected Unicode text")
    return text


def text_at(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return the text of a column or of a filled-in template; InputError if it is no Unicode text."""
    if isinstance(text := row.get(name), str):  # the usual case, for files of millions
        return unicode_text(text, name, where)

    def field(column: str) -> str:
        value = value_at(row, column)
        if not isinstance(value, str) and (isinstance(value, bool) or not isinstance(value, int) or name == column):
            raise InputError(f"{where}: {column} is {value!r}, expected a text")
        return unicode_text(str(value), column, where)

    return FIELD.sub(lambda match: field(match[1]), name) if FIELD.search(name) else field(name)


class _Counted(dict[str, str]):
    """Ids that are counted but not remembered, so that memory does not grow with the file."""

    count = 0

    def __setitem__(self, example_id: str, place: str) -> None:
        self.count += 1

    def setdefault(self, example_id: str, place: str = "") -> str:
        self.count += 1
        return place

    def __len__(self) -> int:
        return self.count


def seen_ids(reading: Reading) -> dict[str, str]:
    """Return an empty map of the ids read so far to their places. Input that is only answered may repeat ids."""
    return _Counted() if reading.labeled is False else {}


def id_at(row: Mapping[str, Any], name: str | None, where: str, seen: dict[str, str], place: str, number: int) -> str:
    """Return the example's id, or `number` without an id column, and enter it in `seen`. InputError if repeated."""
    if name is None:
        example_id = str(number)
    elif "{" in name:
        example_id = text_at(row, name, where)
    else:
        value = row.get(name)
        if not isinstance(value, str | int):
            raise InputError(f"{where}: {name} is {value!r}, expected a number or a text")
        example_id = str(value)

    # Predictions are matched by id, so an id must tell one example.
    if example_id in seen:
        raise InputError(f"{where}: the index {example_id!r} is in {seen[example_id]} already; expected each once")
    seen[example_id] = place
    return example_id


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


def table_format(path: Path, default: Format = "tsv") -> Format:
    """Return the format by the name of a file, or else by its first line."""
    if path.is_dir():
        return "arrow"

    # The suffix decides where there is a known one; the content only for official files such as `eng.train`.
    if path.suffix.lower() in SUFFIXES:
        return SUFFIXES[path.suffix.lower()]
    if path.suffix.lower() == ".json":
        return "jsonl"
    head = read_head(path)
    if head.startswith(b"PAR1"):
        return "parquet"
    return "jsonl" if first_record(head) is not None else default


def first_record(head: bytes) -> dict[str, Any] | None:
    """Return the first line as a JSON object; None if it is not one, or if it is longer than a megabyte."""
    line, newline, _ = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
    if not newline and len(head) >= SNIFFED_BYTES:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_head(path: Path) -> bytes:
    """Return the first megabyte of a file."""
    try:
        with open(path, "rb") as stream:
            return stream.read(SNIFFED_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def open_table(path: Path, reading: Reading, *, columns: Columns, default: Format = "tsv") -> Table:
    """Open a file or an Arrow folder. `columns.headerless` names the columns of a TSV file without a header.

    InputError if the file cannot be read, is empty or names a column twice.
    """
    # Columns come from a header or a schema, for JSON lines from the first row, which is then put back.
    kind = table_format(path, default)
    names: dict[str, tuple[str, ...]] = {}
    rows: Iterator[tuple[int, Row]]
    if kind in ("parquet", "arrow"):
        header, names, rows = _open_arrow(path, kind, reading)
    elif kind == "jsonl":
        rows = _json_rows(path, reading)
        first = next(rows, None)
        header = list(first[1]) if first else []
        rows = itertools.chain([first] if first else [], rows)
    elif kind == "csv":
        header, rows = _open_csv(path, reading)
    else:
        header, rows = _open_tsv(path, reading, columns)

    # Of two columns with one name, rows would silently keep the last.
    repeated = next((name for position, name in enumerate(header) if name and name in header[:position]), None)
    if repeated is not None:
        raise InputError(f"{path}: the column {repeated!r} occurs twice, expected each once; rename one of them")
    return Table(path=path, format=kind, columns=tuple(header), rows=rows, class_names=names)


def _open_tsv(path: Path, reading: Reading, columns: Columns) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    lines = read_lines(path, reading)
    first = next(lines, None)
    if first is None:
        raise InputError(f"{path}: is empty, expected a table with the column {columns.text_a!r}")
    header = first[1].split("\t")
    if len(header) == len(columns.headerless) and columns.text_a not in header:
        header = list(columns.headerless)
        lines = itertools.chain([first], lines)
    return header, _tsv_rows(path, header, lines, reading)


def _tsv_rows(
    path: Path, header: list[str], lines: Iterator[tuple[int, str]], reading: Reading
) -> Iterator[tuple[int, Row]]:
    """Yield rows of fields between tabs, quotes included."""
    # SNLI mixes rows with one annotator's label and rows with five under one header; the gold label is always last.
    wide = len(header) + 4 if header[-2:] == ["label1", "gold_label"] else 0
    incomplete = 0
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) == wide:
            fields[len(header) - 1 :] = fields[-1:]
        if len(fields) < len(header) and incomplete < reading.incomplete_rows:
            incomplete += 1
            reading.count_out("incomplete rows")
        elif len(fields) != len(header):
            reading.refuse(InputError(f"{path}:{number}: {len(fields)} columns, expected {len(header)}"))
        else:
            yield number, dict(zip(header, fields))


def read_lines(path: Path, reading: Reading | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line without its end) of a UTF-8 file.

    Only line feeds end a line (str.splitlines would also cut at U+2028 and others, which occur inside of fields).
    A byte-order mark and blank lines at the end are removed, and the final line feed may be missing.
    InputError when the file cannot be read or is not UTF-8; such a line is left to `reading`, if it is given.
    """
    reading = reading or Reading()
    blank = 0  # blank lines since the last line with text: yielded only if another follows
    try:
        with open(path, "rb") as stream:
            for number, raw in enumerate(stream, start=1):
                line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
                # Blank lines are held back until one with text follows: those at the end are dropped.
                if not line.strip(b"\r\n"):
                    blank += 1
                    continue
                yield from ((number - blank + earlier, "") for earlier in range(blank))
                blank = 0
                try:
                    yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
                except UnicodeDecodeError as error:
                    place = f"byte {error.start + 1} of the line"
                    reading.refuse(InputError(f"{path}:{number}: {place} is not UTF-8; convert the file"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _open_csv(path: Path, reading: Reading) -> tuple[list[str], Iterator[tuple[int, Row]]]:
    rows = _csv_rows(path, reading)
    _, header = next(rows, (1, []))
    return header, ((number, dict(zip(header, fields))) for number, fields in rows)


def _csv_rows(path: Path, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file with the line where each begins; blank lines are skipped."""
    taken: list[str] = []  # the lines of this row
    again: collections.deque[str] = collections.deque()

    def lines(text: Iterator[str]) -> Iterator[str]:
        while line := again.popleft() if again else next(text, ""):
            taken.append(line)
            yield line

    try:
        with open(path, "rb") as binary:
            # Bytes that are not UTF-8 become lone surrogates, so that their row can be named.
            text = io.TextIOWrapper(binary, encoding="utf-8-sig", errors="surrogateescape", newline="")
            reader = csv.reader(lines(text), strict=True)
            line, width = 1, 0
            while True:
                # A quoted field may span lines: the row is named by its first one.
                line += len(taken)
                taken.clear()
                try:
                    row = next(reader)
                    num_lines = len(taken)
                    defect = f"{len(row)} columns, expected {width}" if width and len(row) not in (0, width) else ""
                except StopIteration:
                    return
                except csv.Error as error:
                    row, num_lines, defect = [], len(taken), f"not valid CSV ({error})"
                    # A stray quotation mark swallows the lines up to the next one: they are read again without it.
                    again.extendleft(reversed(taken[1:]))
                    del taken[1:]
                    reader = csv.reader(lines(text), strict=True)
                if defect:
                    if num_lines > 1:
                        lines_read = f"lines {line} to {line + num_lines - 1} as one row"
                        defect = f"{lines_read}: {defect}; is a quotation mark too many?"
                    reading.refuse(InputError(f"{path}:{line}: {defect}"))
                elif bad := NOT_UTF8.search("".join(row)):
                    byte = ord(bad[0]) - 0xDC00
                    reading.refuse(InputError(f"{path}:{line}: byte {byte:#x} is not UTF-8; convert the file"))
                elif row:
                    width = width or len(row)
                    yield line, row
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _json_rows(path: Path, reading: Reading) -> Iterator[tuple[int, Row]]:
    for number, line in read_lines(path, reading):
        if not line.strip():
            reading.rows_set_aside += 1  # plain input numbers blank lines too
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reading.refuse(InputError(f"{path}:{number}: not valid JSON ({error}), expected an object a line"))
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            reading.refuse(InputError(f"{path}:{number}: a JSON {type(record).__name__}, expected an object"))


_UNREADABLE = (ValueError, OverflowError)
"""What a value raises that Python cannot hold: a text that is not UTF-8, a date after the year 9999."""


def _rows_of(batch: Any) -> Iterator[Row | Exception]:
    """Yield the rows of a batch; in place of one that Python cannot hold, the error."""
    try:
        rows = batch.to_pylist()
    except _UNREADABLE:  # one by one, so that the other rows are read
        for index in range(batch.num_rows):
            try:
                rows = batch.slice(index, 1).to_pylist()
            except _UNREADABLE as error:
                rows = [error]
            yield from rows
    else:
        yield from rows


def _open_arrow(
    path: Path, kind: Format, reading: Reading
) -> tuple[list[str], dict[str, tuple[str, ...]], Iterator[tuple[int, Row]]]:
    """Open Parquet, an Arrow file or stream, or the folder of one split as `Dataset.save_to_disk` writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # The schema is read now, so that a damaged file is an error of opening it; the rows only when they are asked for.
    files = saved_files(path) if path.is_dir() else [path]
    try:
        if kind == "parquet":
            schema = pq.read_schema(path)
        else:
            with _arrow_reader(files[0]) as reader:
                schema = reader.schema
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a whole {kind} file ({error}); fetch it again") from error

    def rows() -> Iterator[tuple[int, Row]]:
        number = 0
        try:
            for file in files:
                for batch in _batches(file, kind):
                    for row in _rows_of(batch):
                        number += 1
                        if isinstance(row, Exception):
                            reading.refuse(InputError(f"{path}: row {number}: {row}; convert the file"))
                        else:
                            yield number, row
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: row {number + 1}: cannot be read ({error}); fetch it again") from error

    return schema.names, _class_names(schema.metadata or {}), rows()


def saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a `save_to_disk` folder in order."""
    try:
        state = json.loads((folder / STATE_NAME).read_text(encoding="utf-8"))
        files = [folder / Path(entry["filename"]).name for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: not a folder of datasets' save_to_disk ({error}); give a file, or the folder of one split, "
            "with state.json"
        ) from error
    if not files:
        raise InputError(f"{folder}: its state.json names no data files, expected at least one")
    return files


def _arrow_reader(file: Path) -> Any:
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.memory_map(str(file)))
    except pa.ArrowInvalid:
        return pa.ipc.open_file(pa.memory_map(str(file)))


def _batches(file: Path, kind: Format) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "parquet":
        with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
            yield from parquet.iter_batches(batch_size=BATCH_ROWS)
        return
    with _arrow_reader(file) as reader:
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            yield from reader


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
