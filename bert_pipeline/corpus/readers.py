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
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from bert_pipeline.compression import open_bytes, without_compression
from bert_pipeline.corpus.documents import make_document, without_controls
from bert_pipeline.corpus.parquet import Document
from bert_pipeline.corpus.prose import BLANK_LINES, ProseForm, form_of, prose_passages
from bert_pipeline.corpus.sources import AS_RECORDS, CIRRUS_SEARCH, SourceKind
from bert_pipeline.corpus.text_files import GUTENBERG_END, WHOLE, Span, TextKind, read_records, stem_of
from bert_pipeline.errors import InputError
from bert_pipeline.failed_records import failure
from bert_pipeline.parquet_io import open_parquet, parquet_rows
from bert_pipeline.records import decode_text, parse_object
from bert_pipeline.wikipedia.languages import is_code
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


def _guarded(make: Callable[..., Read], *, document_id: str, title: str, **rest: Any) -> Read:
    try:
        return make(document_id=document_id, title=title, **rest)
    except BaseException as error:
        reason = str(error) if isinstance(error, InputError) else failure(error)
    return FailedRecord(document_id=document_id, title=title, reason=reason)


@dataclasses.dataclass(frozen=True)
class _Documents:
    """The documents of a span of a file."""

    path: Path
    name: str
    """First part of their ids."""
    language: str
    """Unless a record says it."""
    span: Span = WHOLE
    stem: str = ""
    """Second part of ids that are made here; "" takes the file's name."""
    form: ProseForm = "auto"
    """Of the texts."""
    dropped: Counter[str] = dataclasses.field(default_factory=Counter)
    """Counts of dropped paragraphs."""

    def _of_record(self, record: Mapping[str, Any], *, document_id: str, title: str, language: str) -> Read:
        """Return the document of a record: paragraphs are separated by blank lines."""
        # The position identifies a record without an id or with a blank one; an id of 0 is an id.
        stated, own_title = record.get("id"), record.get("title")
        own_language = str(record.get("language") or record.get("in_language"))
        language = own_language if is_code(own_language) else language  # no name, such as "German"
        return _guarded(
            lambda **named: make_document(
                passages=prose_passages(record["text"] or "", form_of(self.form, record), language, self.dropped),
                **named,
            ),
            document_id=document_id if stated is None or not str(stated).strip() else f"{self.name}:{stated}",
            title=title if own_title is None else str(own_title),
            language=language,
        )


@dataclasses.dataclass(frozen=True)
class TextDocuments(_Documents):
    """Those of a text file, a document of each record."""

    kind: TextKind = "lines"
    """`lines` is google's format, a sentence a line and a blank line between documents; a `book` is running text, in
    parts from `MAX_DOCUMENT_BYTES` on; a line of `jsonl` has "text", and may have "id", "title" and "language"; one of
    `pairs` has two sentences, separated by a tab."""

    def __iter__(self) -> Iterator[Read]:
        stem, is_line = self.stem or stem_of(self.path), self.kind in ("jsonl", "pairs")
        with open_bytes(self.path) as stream:
            records = itertools.chain(read_records(stream, self.path, self.kind, self.span), [(0, b"")])
            pairs = enumerate(itertools.pairwise(records), start=self.span.first)
            for number, ((offset, data), (_, following)) in pairs:
                if is_line and not data.strip():
                    continue
                # Lines are numbered from 1, as editors do; the first part of a book has the name of the file.
                is_first = self.kind == "book" and number == 0
                is_end = not following and self.span.stop is None
                yield _guarded(
                    functools.partial(self._document, data, offset, number, is_end=is_end),
                    document_id=f"{self.name}:{stem}" if is_first else f"{self.name}:{stem}-{number + is_line}",
                    title="" if self.kind == "jsonl" else stem if is_first else f"{stem} {number + is_line}",
                    language=self.language,
                )

    def _document(self, data: bytes, offset: int, number: int, *, is_end: bool, **named: Any) -> Read:
        text = decode_text(data, str(self.path), offset)
        where = f"{self.path}:{number + 1}"
        if self.kind == "jsonl":
            return self._of_record(_parse_record(text, where), **named)
        if self.kind == "book":
            text = _without_license(text.replace("\r\n", "\n").replace("\r", "\n"), is_start=number == 0, is_end=is_end)
            if self.form in ("plain", "markdown"):
                return make_document(passages=prose_passages(text, self.form, self.language, self.dropped), **named)
            return make_document(passages=read_book(text), **named)
        if self.kind == "lines":
            # The file gives the sentences, so they are not split again, and not at other line ends of Unicode.
            sentences = [line for line in map(str.strip, map(without_controls, _lines_of(text))) if line]
        else:
            sentences = [without_controls(field).strip() for field in text.rstrip("\r\n").split("\t")]
            if len(sentences) != 2 or not all(sentences):
                content = f"{len(sentences)} columns" if len(sentences) != 2 else "an empty sentence"
                raise InputError(f"{where}: {content}, expected 2 sentences separated by a tab")
        # A pair is one passage of two sentences, so that B follows A in the text.
        return make_document(passages=[sentences], **named)


def _lines_of(text: str) -> list[str]:
    """Split text at LF, CR LF and CR; a CR LF gives an empty line too."""
    return text.replace("\r", "\n").split("\n")


# Running text

_GUTENBERG_START = re.compile(
    r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG E(?:BOOK|TEXT)[^\n]*\n(?:[^*\n]+\*\*\*[^\n]*\n)?",
    re.MULTILINE | re.IGNORECASE,
)
"""A long title continues in the next line."""
_GUTENBERG_END = re.compile(f"^{GUTENBERG_END}", re.MULTILINE | re.IGNORECASE)
_UNSPACED = re.compile(f"[{CJK}{UNSPACED_LETTERS}]{{2}}")
"""Characters between which a hard line end is no space."""


def _without_license(text: str, *, is_start: bool, is_end: bool) -> str:
    """Remove Project Gutenberg's header and license from the text that holds the book's start and end."""
    start = _GUTENBERG_START.search(text) if is_start else None
    text = text[start.end() :] if start else text
    end = _GUTENBERG_END.search(text) if is_end and (start or not is_start) else None
    return text[: end.start()] if end else text


def read_book(text: str) -> list[str]:
    """Return the paragraphs of running text, separated by blank lines; single line ends are joined."""
    paragraphs = ([" ".join(line.split()) for line in part.strip().split("\n")] for part in BLANK_LINES.split(text))
    return [join_lines(lines, _UNSPACED) for lines in paragraphs if lines != [""]]


# `text:`, either of the two

_HEAD_BYTES = 1 << 20
_SAMPLED_LINES = 400
_CLOSERS = "".join(CLOSERS | QUOTATION_MARKS) + "_*"
_WITHOUT_SENTENCE_ENDS = re.compile("[\u0e00-\u0eff]")
"""Thai and Lao, whose full stops abbreviate."""
_OTHER = {"<!doctype html": "HTML", "<html": "HTML", "warc/": "a web archive", '{"': "JSON"}
"""How files of other formats begin, whose markup would be read as sentences."""


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
    start, is_table = text.lstrip().lower(), without_compression(path.name.lower()).endswith((".csv", ".tsv"))
    if other := next((name for mark, name in _OTHER.items() if start.startswith(mark)), "a table" if is_table else ""):
        raise InputError(f"{path}: found {other}, expected text; {AS_RECORDS}, or name it book: to keep all of it")
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
            # Of the texts, before they are compressed.
            columns = map(file.metadata.row_group(index).column, range(file.metadata.num_columns))
            size += next(column.total_uncompressed_size for column in columns if column.path_in_schema == "text")
            rows += file.metadata.row_group(index).num_rows
        yield Span(start, file.num_row_groups, first)


@dataclasses.dataclass(frozen=True)
class ParquetDocuments(_Documents):
    """Those of a Parquet file: "text", and optionally "id", "title" and "language"."""

    def __iter__(self) -> Iterator[Read]:
        stem = self.stem or stem_of(self.path)
        with _open_table(self.path) as file:
            columns = ["text", *(column for column in _OPTIONAL_COLUMNS if column in file.schema_arrow.names)]
            known = dataclasses.replace(self, form=form_of(self.form, file.schema_arrow.names))
            groups = range(self.span.start, file.num_row_groups if self.span.stop is None else self.span.stop)
            rows = enumerate(parquet_rows(file, self.path, groups, columns), start=self.span.first + 1)
            for number, row in rows:
                document_id = f"{self.name}:{stem}-{number}"
                if isinstance(row, Exception):
                    reason = f"{self.path}: row {number:,}: not UTF-8 text ({row}); convert it"
                    yield FailedRecord(document_id=document_id, title="", reason=reason)
                else:
                    yield known._of_record(row, document_id=document_id, title="", language=self.language)


READERS: dict[SourceKind, Callable[..., Iterable[Read]]] = {
    **{kind: functools.partial(TextDocuments, kind=kind) for kind in get_args(TextKind)},
    "parquet": ParquetDocuments,
}
"""The documents of a file of each kind but dumps."""
