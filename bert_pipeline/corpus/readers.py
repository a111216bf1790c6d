"""Readers of text, JSON-lines, pair and Parquet sources: the records of a span of a file -> documents.

Each yields None for a record without text, and a `FailedRecord` for one whose document cannot be made, so that they can
be counted.
"""

import codecs
import dataclasses
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from bert_pipeline.compression import open_bytes
from bert_pipeline.corpus.documents import Document, document_of_sentences, make_document, without_controls
from bert_pipeline.corpus.prose import BLANK_LINES, ProseForm, form_of, prose_passages
from bert_pipeline.corpus.sources import CIRRUS_SEARCH
from bert_pipeline.corpus.text_files import GUTENBERG_END, WHOLE, Span, TextKind, read_records, stem_of
from bert_pipeline.errors import InputError
from bert_pipeline.failed_records import failure
from bert_pipeline.parquet_io import open_parquet, parquet_rows
from bert_pipeline.records import decode_text, parse_object
from bert_pipeline.wikipedia.paragraphs import join_lines
from bert_pipeline.wikipedia.punctuation import CJK, CLOSERS, QUOTATION_MARKS, SENTENCE_ENDS, UNSPACED_LETTERS
from bert_pipeline.wikipedia.sentences import split_sentences


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailedRecord:
    """A record that is malformed, or that the code cannot digest."""

    document_id: str
    title: str
    reason: str


Read = Document | FailedRecord | None
Reader = Callable[[Path, str, str, Span, str, ProseForm, Counter[str]], Iterator[Read]]
"""(path, first part of the ids, language unless a record says it, span, second part of ids that are made here, form of
the texts, counts of dropped paragraphs) -> documents; "" takes the file's name for the second part."""


def _guarded(make: Callable[..., Read], *, document_id: str, title: str, **rest: Any) -> Read:
    try:
        return make(document_id=document_id, title=title, **rest)
    except InputError as error:
        reason = str(error)
    except BaseException as error:
        reason = failure(error)
    return FailedRecord(document_id=document_id, title=title, reason=reason)


def _read_text(
    kind: TextKind,
    path: Path,
    name: str,
    language: str,
    span: Span = WHOLE,
    stem: str = "",
    form: ProseForm = "auto",
    dropped: Counter[str] | None = None,
) -> Iterator[Read]:
    """Yield a document of each record of a text file."""
    stem = stem or stem_of(path)
    is_line = kind in ("jsonl", "pairs")
    with open_bytes(path) as stream:
        records = itertools.chain(read_records(stream, path, kind, span), [(0, b"")])
        for number, ((offset, data), (_, following)) in enumerate(itertools.pairwise(records), start=span.first):
            if is_line and not data.strip():
                continue
            # Lines are numbered from 1, as editors do; the first part of a book has the name of the file.
            is_first = kind == "book" and number == 0
            yield _guarded(
                _text_document,
                document_id=f"{name}:{stem}" if is_first else f"{name}:{stem}-{number + is_line}",
                title="" if kind == "jsonl" else stem if is_first else f"{stem} {number + is_line}",
                language=language,
                kind=kind,
                data=data,
                offset=offset,
                path=path,
                number=number,
                is_end=not following and span.stop is None,
                form=form,
                dropped=Counter() if dropped is None else dropped,
            )


def _text_document(
    *,
    kind: TextKind,
    data: bytes,
    offset: int,
    path: Path,
    number: int,
    is_end: bool,
    form: ProseForm,
    dropped: Counter[str],
    **rest: Any,
) -> Read:
    text = decode_text(data, str(path), offset)
    where = f"{path}:{number + 1}"
    if kind == "jsonl":
        return _record_document(_parse_record(text, where), form, dropped, **rest)
    if kind == "book":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        if form in ("plain", "markdown"):
            return make_document(passages=prose_passages(text, form, rest["language"], dropped), **rest)
        return make_document(passages=read_book(text, is_start=number == 0, is_end=is_end), **rest)
    if kind == "lines":
        # The file gives the sentences, so they are not split again, and not at other line ends of Unicode.
        sentences = [line for line in map(str.strip, map(without_controls, _lines_of(text))) if line]
    else:
        sentences = [without_controls(field).strip() for field in text.rstrip("\r\n").split("\t")]
        if len(sentences) != 2 or not all(sentences):
            content = f"{len(sentences)} columns" if len(sentences) != 2 else "an empty sentence"
            raise InputError(f"{where}: {content}, expected 2 sentences separated by a tab")
    # A pair is one passage of two sentences, so that B follows A in the text.
    return document_of_sentences(sentences=sentences, **rest)


read_line_documents = functools.partial(_read_text, "lines")
"""`lines:`, google's format: one sentence per line, a blank line between documents."""
read_book_documents = functools.partial(_read_text, "book")
"""`book:`, running text; a book is in parts if it is longer than `MAX_DOCUMENT_BYTES`."""
read_json_documents = functools.partial(_read_text, "jsonl")
"""`jsonl:`, lines with "text", and optionally "id", "title" and "language"."""
read_pair_documents = functools.partial(_read_text, "pairs")
"""`pairs:`, two sentences per line, separated by a tab."""


def _lines_of(text: str) -> list[str]:
    """Split text at LF, CR LF and CR; a CR LF gives an empty line too."""
    return text.replace("\r", "\n").split("\n")


# Running text

_GUTENBERG_START = re.compile(
    r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG EBOOK[^\n]*\n", re.MULTILINE | re.IGNORECASE
)
_GUTENBERG_END = re.compile(f"^{GUTENBERG_END}", re.MULTILINE | re.IGNORECASE)
_UNSPACED = re.compile(f"[{CJK}{UNSPACED_LETTERS}]{{2}}")
"""Characters between which a hard line end is no space."""


def read_book(text: str, *, is_start: bool = True, is_end: bool = True) -> list[str]:
    """Return the paragraphs of running text, separated by blank lines; single line ends are joined.

    Project Gutenberg's header and license are removed from the text that holds the book's start and end.
    """
    start = _GUTENBERG_START.search(text) if is_start else None
    if start:
        text = text[start.end() :]
    if is_end and (start or not is_start) and (end := _GUTENBERG_END.search(text)):
        text = text[: end.start()]
    paragraphs = ([" ".join(line.split()) for line in part.strip().split("\n")] for part in BLANK_LINES.split(text))
    return [join_lines(lines, _UNSPACED) for lines in paragraphs if lines != [""]]


# `text:`, either of the two

_HEAD_BYTES = 1 << 20
_SAMPLED_LINES = 400
_CLOSERS = "".join(CLOSERS | QUOTATION_MARKS) + "_*"
_WITHOUT_SENTENCE_ENDS = re.compile("[\u0e00-\u0eff]")
"""Thai and Lao, whose full stops abbreviate."""


def detect_format(path: Path, language: str) -> Literal["lines", "book"]:
    """Decide from the first megabyte whether a file holds a sentence per line or running text.

    It depends on where its sentences end: at the ends of lines, or inside of them. InputError if that does not decide.
    """
    with open_bytes(path) as stream:
        head = stream.read(_HEAD_BYTES)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)  # its last character may be cut off
    except UnicodeDecodeError:
        text = decode_text(head, str(path))  # raises InputError
    if _GUTENBERG_START.search(text):
        return "book"
    lines = [line for line in map(str.strip, _lines_of(text)) if line]
    if len(head) == _HEAD_BYTES and len(lines) > 1:
        lines.pop()  # it is cut off
    if not lines:
        return "lines"
    lines = lines[:: -(-len(lines) // _SAMPLED_LINES)]

    # Only marks count: the rules of another language, if the option is wrong, break sentences elsewhere too.
    num_ended = sum(map(_is_ended, lines)) / len(lines)
    num_inside = sum(_is_ended(part) for line in lines for part in split_sentences(line, language)[:-1]) / len(lines)
    has_ends = num_ended + num_inside >= 0.1 and len(_WITHOUT_SENTENCE_ENDS.findall(text)) < 0.3 * len(text)
    # After hard line ends, a line begins in lower case where sentences begin with a capital, unlike in Georgian.
    num_continued = sum(line[0] != line[0].title() for line in lines) / len(lines)
    if has_ends:
        at_line_ends = num_ended / (num_ended + num_inside)
        if at_line_ends < 0.65 or num_ended < 0.6 and num_continued >= 0.3:
            return "book"
        if at_line_ends >= 0.8 and num_ended >= 0.6:
            return "lines"
    raise InputError(
        f"{path}: cannot tell a sentence per line from running text: {num_ended:.0%} of its lines end a sentence, and "
        f"{num_inside:.2f} sentences per line end before the line does; name it lines: or book: instead of text:"
    )


def _is_ended(line: str) -> bool:
    return line.rstrip(_CLOSERS)[-1:] in SENTENCE_ENDS


# Records with fields


def _parse_record(line: str, where: str) -> dict[str, Any]:
    record = parse_object(line, where)
    if record.keys() == {"index"}:  # the line before each page of a CirrusSearch dump
        raise InputError(f"{where}: {CIRRUS_SEARCH}")
    # Null is an empty text, as in Parquet.
    if "text" not in record or not isinstance(record["text"], str | None):
        content = f'"text" of type {type(record["text"]).__name__}' if "text" in record else f"keys {', '.join(record)}"
        raise InputError(f'{where}: found {content}, expected an object with a string "text"')
    return record


def _record_document(
    record: Mapping[str, Any], form: ProseForm, dropped: Counter[str], *, document_id: str, title: str, language: str
) -> Read:
    """Return the document of a record: paragraphs are separated by blank lines."""
    # The position identifies a record without an id or with a blank one; an id of 0 is an id.
    stated, own_title, name = record.get("id"), record.get("title"), document_id.partition(":")[0]
    language = str(record.get("language") or record.get("in_language") or language)
    return _guarded(
        make_document,
        document_id=document_id if stated is None or not str(stated).strip() else f"{name}:{stated}",
        title=title if own_title is None else str(own_title),
        language=language,
        passages=prose_passages(record["text"] or "", form_of(form, record), language, dropped),
    )


# `parquet:`

_TEXT_SCHEMA = pa.schema([("text", pa.string())])
_OPTIONAL_COLUMNS = ("id", "title", "language", "in_language")


def _open_table(path: Path | str) -> pq.ParquetFile:
    # With a buffer, a row group is read by the page: some files are one row group.
    remedy = "; rename the column with the texts to text"
    return open_parquet(path, _TEXT_SCHEMA, "a Parquet file of documents", buffer_size=1 << 20, remedy=remedy)


def plan_row_groups(path: Path | str, split_bytes: int) -> Iterator[Span]:
    """Group the row groups of a Parquet file into spans of `split_bytes` of text or more. InputError if it has none."""
    with _open_table(path) as file:
        start = first = size = rows = 0
        for index in range(file.num_row_groups):
            if size >= split_bytes:
                yield Span(start, index, first)
                start, first, size = index, rows, 0
            size += _text_bytes(file, index)
            rows += file.metadata.row_group(index).num_rows
        yield Span(start, file.num_row_groups, first)


def _text_bytes(file: pq.ParquetFile, index: int) -> int:
    """Return the size of the texts of a row group, before they are compressed."""
    columns = map(file.metadata.row_group(index).column, range(file.metadata.num_columns))
    return next(int(column.total_uncompressed_size) for column in columns if column.path_in_schema == "text")


def read_parquet_documents(
    path: Path,
    name: str,
    language: str,
    span: Span = WHOLE,
    stem: str = "",
    form: ProseForm = "auto",
    dropped: Counter[str] | None = None,
) -> Iterator[Read]:
    """Yield the documents of a Parquet file: "text", and optionally "id", "title" and "language"."""
    stem, dropped = stem or stem_of(path), Counter() if dropped is None else dropped
    with _open_table(path) as file:
        columns = ["text", *(column for column in _OPTIONAL_COLUMNS if column in file.schema_arrow.names)]
        form = form_of(form, file.schema_arrow.names)
        groups = range(span.start, file.num_row_groups if span.stop is None else span.stop)
        for number, row in enumerate(parquet_rows(file, path, groups, columns), start=span.first + 1):
            document_id = f"{name}:{stem}-{number}"
            if isinstance(row, Exception):
                reason = f"{path}: row {number:,}: not UTF-8 text ({row}); convert it"
                yield FailedRecord(document_id=document_id, title="", reason=reason)
            else:
                yield _record_document(row, form, dropped, document_id=document_id, title="", language=language)
