"""Inputs of predictions: text lines, tab-separated fields, JSON lines or CoNLL columns, from a file or stdin."""

import contextlib
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bert_pipeline.errors import InputError
from bert_pipeline.manifest import atomic_write
from bert_pipeline.tasks.example import ChoiceExample, SpanExample, TaggedExample, TextExample
from bert_pipeline.tasks.ner import DOCUMENT_MARK
from bert_pipeline.vocabulary.tokenizer import pre_tokenizer

PredictionInput = dict[str, Any]
"""One input: the fields of its form, as `FIELDS` names them."""

FIELDS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "pair": ("text", "text_b"),
    "span": ("question", "context"),
    "choice": ("context", "endings"),
    "tagging": ("text",),
}
"""Fields of an input of each form; an input to tag may have "words" instead of "text"."""


@contextlib.contextmanager
def reading(path: str) -> Iterator[tuple[IO[str], str]]:
    """Open a file, or standard input for "-"; yield its lines and its name. InputError if it cannot be read."""
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


def read_inputs(lines: Iterable[str], form: str, where: str) -> Iterator[PredictionInput]:
    """Read inputs: JSON objects or tab-separated fields, one a line; for tagging also sentences and CoNLL columns.

    Blank lines are skipped. InputError names the line, what was found and what was expected.
    """
    if form == "tagging":
        # Columns are recognized by their document marks, the first of which need not be on the first line.
        lines = list(lines)
        if any(line.startswith(DOCUMENT_MARK) for line in lines):
            yield from _read_columns(lines)
            return
    for number, line in _filled_lines(lines):
        yield _read_line(line, form, f"{where}:{number}")


def read_texts(lines: Iterable[str], where: str) -> Iterator[PredictionInput]:
    """Read inputs that are each a text or a pair, in the formats of `read_inputs`."""
    for number, line in _filled_lines(lines):
        form = "pair" if "\t" in line or '"text_b"' in line else "text"
        yield _read_line(line, form, f"{where}:{number}")


def _filled_lines(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank with their numbers, without line ends and byte order mark."""
    for number, line in enumerate(lines, start=1):
        text = line.removesuffix("\n").removesuffix("\r")
        if number == 1:
            text = text.removeprefix("\ufeff")
        if text.strip():
            yield number, text


def _read_line(line: str, form: str, where: str) -> PredictionInput:
    if line.lstrip().startswith("{"):
        try:
            document = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where}: not valid JSON ({error})") from error
        return check_input(document, form, where)
    if form in ("text", "tagging"):
        return check_input({"text": line}, form, where)
    names, values = FIELDS[form], line.split("\t")
    if form == "choice":
        if len(values) < 3:
            raise InputError(f"{where}: {len(values)} tab-separated fields, expected a context and two or more endings")
        return check_input({"context": values[0], "endings": values[1:]}, form, where)
    if len(values) != len(names):
        raise InputError(f"{where}: {len(values)} tab-separated fields, expected {' and '.join(names)}")
    return check_input(dict(zip(names, values)), form, where)


def _read_columns(lines: Iterable[str]) -> Iterator[PredictionInput]:
    """Read sentences of CoNLL columns, the word first, with the number of their document."""
    document = -1
    words: list[str] = []
    for line in itertools.chain(lines, [""]):
        is_mark = line.startswith(DOCUMENT_MARK)
        if line.strip() and not is_mark:
            words.append(line.split()[0])
            continue
        if words:
            yield {"words": tuple(words), "document": max(document, 0)}
            words = []
        document += is_mark


def check_input(fields: Mapping[str, Any], form: str, where: str) -> PredictionInput:
    """Return the fields that a form has; InputError names one that is missing or of the wrong type."""
    if form == "tagging" and "words" in fields:
        words = fields["words"]
        if not isinstance(words, Sequence) or isinstance(words, str) or not all(isinstance(w, str) for w in words):
            raise InputError(f'{where}: "words" is {words!r}, expected a list of texts')
        return {"words": tuple(words), "document": fields.get("document")}
    names = FIELDS[form]
    missing = [name for name in names if fields.get(name) is None]
    if missing:
        found = ", ".join(map(str, fields)) or "nothing"
        raise InputError(f"{where}: found {found}, expected {' and '.join(names)}; {missing[0]} is missing")
    checked: PredictionInput = {}
    for name in names:
        value = fields[name]
        if name == "endings":
            value = tuple(value) if not isinstance(value, str) else ()
            if len(value) < 2 or not all(isinstance(ending, str) for ending in value):
                raise InputError(f"{where}: endings is {fields[name]!r}, expected a list of two or more texts")
        elif not isinstance(value, str):
            raise InputError(f"{where}: {name} is {value!r}, expected a text")
        checked[name] = value
    return checked


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
            document = item.get("document")
            # Without a document every input is one of its own: a negative number occurs in no file.
            examples.append(TaggedExample(key, -1 - index if document is None else document, tuple(words)))
    return examples


def split_words(text: str) -> tuple[str, ...]:
    """Split a sentence at white space and around punctuation, as BERT's tokenizer does before WordPiece."""
    return tuple(word for word, _ in pre_tokenizer().pre_tokenize_str(text))


@contextlib.contextmanager
def writing(path: str) -> Iterator[IO[str]]:
    """Open a file that is written atomically, or standard output for "-"."""
    if path == "-":
        yield sys.stdout
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(Path(path)) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        yield stream
