"""CoNLL-2003's columns: one word and its tag per line, blank lines between sentences, -DOCSTART- between documents."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import Reading, TaggedExample
from bert_pipeline.tasks.glue import read_lines

DOCUMENT_MARK = "-DOCSTART-"
COLUMN_SEPARATOR = re.compile(r"[ \t]+")
"""Spaces and tabs only: other white space, such as the no-break space, may be part of a word."""


def read_tagged_examples(path: Path, *, labels: tuple[str, ...], require_tags: bool = True) -> Reading:
    """Read a column file: the first column is the word, the last the tag, in the IOB1 or the IOB2 scheme.

    Tags are returned as IOB2. A -DOCSTART- line ends one document and starts the next; it is not a word. Without
    `require_tags` a file of one column gives words without tags. InputError names file and line of a row with
    another number of columns, or with a tag that is not among `labels` (in either scheme).
    """
    allowed = set(labels)
    examples: list[TaggedExample] = []
    document, document_has_sentences = 0, False
    num_columns = 0
    words: list[str] = []
    tags: list[str] = []

    def close_sentence() -> None:
        nonlocal document_has_sentences
        if words:
            tagged = tuple(to_iob2(tags)) if num_columns > 1 else None
            examples.append(TaggedExample(str(len(examples)), document, tuple(words), tagged))
            document_has_sentences = True
            words.clear()
            tags.clear()

    for number, line in read_lines(path):
        fields = [field for field in COLUMN_SEPARATOR.split(line) if field]
        if not fields or fields[0] == DOCUMENT_MARK:
            close_sentence()
            if fields and document_has_sentences:
                document, document_has_sentences = document + 1, False
            continue
        num_columns = num_columns or len(fields)
        if len(fields) != num_columns:
            raise InputError(f"{path}:{number}: {len(fields)} columns, expected {num_columns} as in the lines before")
        if num_columns == 1 and require_tags:
            raise InputError(f"{path}:{number}: 1 column, expected a word and its tag at least")
        if num_columns > 1:
            tag = fields[-1]
            prefix, _, entity = tag.partition("-")
            if tag not in allowed and not (prefix in ("B", "I") and f"B-{entity}" in allowed):
                raise InputError(f"{path}:{number}: tag {tag[:60]!r}, expected one of {', '.join(labels)}")
            tags.append(tag)
        words.append(fields[0])
    close_sentence()
    if not examples:
        raise InputError(f"{path}: no sentences, expected at least one")
    return Reading(examples)


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert the tags of one sentence from IOB1 or IOB2 to IOB2: B- on the first word of every entity."""
    result: list[str] = []
    previous = "O"
    for tag in tags:
        prefix, separator, entity = tag.partition("-")
        if separator:
            starts = prefix == "B" or previous.partition("-")[2] != entity
            tag = f"{'B' if starts else 'I'}-{entity}"
        result.append(tag)
        previous = tag
    return result


def documents(examples: Sequence[TaggedExample]) -> Iterator[list[TaggedExample]]:
    """Yield the sentences of each document."""
    current: list[TaggedExample] = []
    for example in examples:
        if current and example.document != current[0].document:
            yield current
            current = []
        current.append(example)
    if current:
        yield current
