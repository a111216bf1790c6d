"""Inputs of predictions: text lines, tab-separated fields, JSON lines or CoNLL, from files or standard input."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample
from bert_pipeline.vocabulary.tokenizer import pre_tokenizer

Record = dict[str, Any]
"""One input: the fields of its kind, as `FIELDS` names them."""

FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "pair": ("text", "text_b"),
    "span": ("question", "context"),
    "choice": ("context", "endings"),
    "tagging": ("text",),
}
"""What a record of each form has; a tagging record may have "words" in place of "text"."""


def read_records(lines: Iterable[str], form: str, where: str) -> Iterator[Record]:
    """Read inputs: JSON objects or tab-separated fields, one a line; for tagging also sentences and CoNLL columns.

    Blank lines are skipped. InputError names the line, what was found and what was expected.
    """
    numbered: Iterator[tuple[int, str]] = (
        (number, line.removesuffix("\n").removesuffix("\r")) for number, line in enumerate(lines, start=1)
    )
    if form == "tagging":
        listed = list(numbered)
        if any(line.startswith("-DOCSTART-") for _, line in listed):
            yield from _conll_records(line for _, line in listed)
            return
        numbered = iter(listed)
    for number, line in numbered:
        if number == 1:
            line = line.removeprefix("\ufeff")
        if not line.strip():
            continue
        yield _record(line, form, f"{where}:{number}")


def check_record(record: Mapping[str, Any], form: str, where: str) -> Record:
    """Return the fields of a record; InputError names what is missing or not text."""
    fields = FIELDS[form]
    if form == "tagging" and "words" in record:
        words = record["words"]
        if not isinstance(words, Sequence) or isinstance(words, str) or not all(isinstance(w, str) for w in words):
            raise InputError(f'{where}: "words" is {words!r}, expected a list of texts')
        return {"words": tuple(words), "document": record.get("document")}
    missing = [field for field in fields if record.get(field) is None]
    if missing:
        found = ", ".join(map(str, record)) or "nothing"
        raise InputError(f"{where}: found {found}, expected {' and '.join(fields)}; {missing[0]} is missing")
    checked: Record = {}
    for field in fields:
        value = record[field]
        if field == "endings":
            value = tuple(value) if not isinstance(value, str) else ()
            if len(value) < 2 or not all(isinstance(ending, str) for ending in value):
                raise InputError(f"{where}: endings is {record[field]!r}, expected a list of two or more texts")
        elif not isinstance(value, str):
            raise InputError(f"{where}: {field} is {value!r}, expected a text")
        checked[field] = value
    return checked


def to_examples(records: Sequence[Record], form: str) -> list[Any]:
    """Make unlabelled examples of records; their ids are their numbers from 0."""
    examples: list[Any] = []
    for index, record in enumerate(records):
        key = str(index)
        if form in ("text", "pair"):
            examples.append(TextExample(key, record["text"], record.get("text_b")))
        elif form == "span":
            examples.append(SpanExample(key, "", record["context"], record["question"]))
        elif form == "choice":
            examples.append(ChoiceExample(key, record["context"], record["endings"]))
        else:
            words = record["words"] if "words" in record else split_words(record["text"])
            document = record.get("document")
            examples.append(TaggedExample(key, -1 - index if document is None else document, tuple(words)))
    return examples


def split_words(text: str) -> tuple[str, ...]:
    """Split a sentence at white space and around punctuation, as BERT's own tokenizer begins."""
    return tuple(word for word, _ in pre_tokenizer().pre_tokenize_str(text))


def _record(line: str, form: str, where: str) -> Record:
    if line.lstrip().startswith("{"):
        try:
            document = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not valid JSON ({error})") from error
        return check_record(document, form, where)
    fields = line.split("\t")
    if form in ("text", "tagging"):
        return check_record({"text": line}, form, where)
    names = FIELDS[form]
    if form == "choice":
        if len(fields) < 3:
            raise InputError(f"{where}: {len(fields)} tab-separated fields, expected a context and two or more endings")
        return check_record({"context": fields[0], "endings": fields[1:]}, form, where)
    if len(fields) != len(names):
        raise InputError(f"{where}: {len(fields)} tab-separated fields, expected {' and '.join(names)}")
    return check_record(dict(zip(names, fields)), form, where)


def _conll_records(lines: Iterable[str]) -> Iterator[Record]:
    """Read sentences of CoNLL columns, the word first, with the number of their document."""
    document = -1
    words: list[str] = []
    for line in lines:
        if line.startswith("-DOCSTART-"):
            document += 1
        elif line.strip():
            words.append(line.split()[0])
            continue
        if words:
            yield {"words": tuple(words), "document": max(document, 0)}
            words = []
    if words:
        yield {"words": tuple(words), "document": max(document, 0)}


@contextlib.contextmanager
def reading(path: str) -> Iterator[tuple[IO[str], str]]:
    """Open a file, or standard input for "-": yields (lines, what to call it). InputError when it cannot be read."""
    if path == "-":
        yield sys.stdin, "standard input"
        return
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            yield stream, path
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        if error.filename != path:
            raise
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error


@contextlib.contextmanager
def writing(path: str) -> Iterator[IO[str]]:
    """Open a file that appears whole when the block ends well, or standard output for "-"."""
    if path == "-":
        yield sys.stdout
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.partial-{os.getpid()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            yield stream
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
