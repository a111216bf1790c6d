"""Documents as sentences, and readers of text, book, JSON and pair files."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from bert_pipeline.errors import InputError
from bert_pipeline.wikipedia.sentences import split_sentences

Split = Literal["train", "held_out"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One article, book or pair: its sentences in order, and the starts of its passages."""

    document_id: str
    """Unique in its corpus, such as "enwiki:12"."""
    title: str
    language: str
    """Language code, such as "en"."""
    sentences: tuple[str, ...]
    passage_starts: tuple[int, ...]
    """Index of the first sentence of each passage; ascending, the first is 0."""
    split: Split

    @property
    def passages(self) -> list[tuple[str, ...]]:
        """The sentences of each passage."""
        stops = (*self.passage_starts[1:], len(self.sentences))
        return [self.sentences[start:stop] for start, stop in zip(self.passage_starts, stops)]


def make_document(
    *, document_id: str, title: str, language: str, passages: Iterable[str], split: Split = "train"
) -> Document | None:
    """Split passages of plain text into the sentences of a document; None if there are none."""
    sentences: list[str] = []
    starts: list[int] = []
    for passage in passages:
        found = split_sentences(passage, language)
        # A passage without sentences must not add a start: starts are strictly ascending.
        if found:
            starts.append(len(sentences))
            sentences.extend(found)
    return document_of_sentences(
        document_id=document_id, title=title, language=language, sentences=sentences, starts=starts, split=split
    )


def document_of_sentences(
    *,
    document_id: str,
    title: str,
    language: str,
    sentences: Sequence[str],
    starts: Sequence[int] = (0,),
    split: Split = "train",
) -> Document | None:
    """Build a document from sentences; None if there are none."""
    if not sentences:
        return None
    return Document(
        document_id=document_id,
        title=title,
        language=language,
        sentences=tuple(sentences),
        passage_starts=tuple(starts),
        split=split,
    )


def id_hash(document_id: str) -> int:
    """Hash an id to eight bytes; a document is held out if this modulo 1000 is below the share per mille."""
    return int.from_bytes(hashlib.blake2b(document_id.encode(), digest_size=8).digest(), "big")


def content_digest(document: Document) -> bytes:
    """Hash the sentences of a document to sixteen bytes, without its title and passages."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\n".join(document.sentences).encode())
    return digest.digest()


def read_sentence_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the documents of google's text format: one sentence per line, a blank line between documents."""
    sentences: list[str] = []
    for line in lines:
        if sentence := line.strip():
            sentences.append(sentence)
        elif sentences:
            yield sentences
            sentences = []
    if sentences:
        yield sentences


_GUTENBERG_START = re.compile(
    r"^\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG EBOOK[^\n]*\n", re.MULTILINE | re.IGNORECASE
)
_GUTENBERG_END = re.compile(
    r"^(?:\*\*\* ?)?END OF (?:TH(?:E|IS) )?PROJECT GUTENBERG[^\n]*", re.MULTILINE | re.IGNORECASE
)
_BLANK_LINES = re.compile(r"\n[ \t\r\f\v]*\n\s*")


def read_book(text: str) -> list[str]:
    """Return the paragraphs of a plain text file, separated by blank lines; single line ends are joined.

    Project Gutenberg's header and license are removed.
    """
    start = _GUTENBERG_START.search(text)
    if start:
        text = text[start.end() :]
        end = _GUTENBERG_END.search(text)
        if end:
            text = text[: end.start()]
    paragraphs = (" ".join(paragraph.split()) for paragraph in _BLANK_LINES.split(text))
    return [paragraph for paragraph in paragraphs if paragraph]


def is_book(text: str) -> bool:
    """Return True for running text with hard line ends or whole paragraphs, False for one sentence per line.

    In google's format nearly every line ends a sentence; in a book with hard line ends few do.
    """
    if _GUTENBERG_START.search(text):
        return True
    lines = [stripped for line in text.splitlines() if (stripped := line.rstrip().rstrip("\"'”’)»_"))]
    if not lines:
        return False
    num_ends = sum(line.endswith((".", "!", "?", "…", "。", ":", ";")) for line in lines)
    return num_ends < 0.6 * len(lines)


def read_text_documents(path: Path, name: str, language: str) -> Iterator[Document]:
    """Yield the documents of a `text:` file in either of its two formats. InputError if it is not UTF-8 text."""
    text = _read_utf8(path)
    stem = path.stem
    if is_book(text):
        document = make_document(document_id=f"{name}:{stem}", title=stem, language=language, passages=read_book(text))
        if document is not None:
            yield document
        return
    # google's format: the file gives the sentences, so they are not split again.
    for index, sentences in enumerate(read_sentence_lines(text.splitlines())):
        document = document_of_sentences(
            document_id=f"{name}:{stem}-{index}", title=f"{stem} {index}", language=language, sentences=sentences
        )
        assert document is not None
        yield document


def read_json_documents(path: Path, name: str, language: str) -> Iterator[Document]:
    """Yield the documents of a `jsonl:` file: "text", and optionally "id", "title" and "language"."""
    with open(path, encoding="utf-8-sig") as stream:
        try:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                yield from _json_document(line, f"{path}:{number}", f"{name}:{path.stem}-{number}", name, language)
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); convert it") from None


def _json_document(line: str, where: str, default_id: str, name: str, language: str) -> Iterator[Document]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InputError(f'{where}: not JSON ({error}); expected one object a line with a "text"') from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        found = f"keys {', '.join(map(str, record))}" if isinstance(record, dict) else type(record).__name__
        raise InputError(f'{where}: found {found}, expected an object with a string "text"')
    # The line number identifies a record without an id; an id of 0 is an id.
    identifier = record.get("id")
    document = make_document(
        document_id=default_id if identifier is None else f"{name}:{identifier}",
        title=str(record.get("title", "")),
        language=str(record.get("language") or language),
        passages=_BLANK_LINES.split(record["text"]),
    )
    if document is not None:
        yield document


def read_pair_documents(path: Path, name: str, language: str) -> Iterator[Document]:
    """Yield the documents of a `pairs:` file: two sentences per line, separated by a tab."""
    with open(path, encoding="utf-8-sig", newline="\n") as stream:
        try:
            for number, line in enumerate(stream, start=1):
                fields = [field.strip() for field in line.rstrip("\r\n").split("\t")]
                if fields == [""]:
                    continue
                if len(fields) != 2 or not all(fields):
                    raise InputError(f"{path}:{number}: {len(fields)} columns, expected 2 sentences separated by a tab")
                # One passage of two sentences, so that B follows A in the text.
                yield Document(
                    document_id=f"{name}:{path.stem}-{number}",
                    title=f"{path.stem} {number}",
                    language=language,
                    sentences=tuple(fields),
                    passage_starts=(0,),
                    split="train",
                )
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); convert it") from None


def _read_utf8(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); convert it") from None
