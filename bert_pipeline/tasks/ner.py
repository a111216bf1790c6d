"""Sentences of tagged words: CoNLL-2003's columns, and tables with the hub's columns.

CoNLL files have one word and its tag per line, blank lines between sentences, -DOCSTART- between documents.
"""

import dataclasses
import functools
import itertools
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.records import Record, Source, open_records, open_source
from bert_pipeline.tasks.catalogue import Columns, Task
from bert_pipeline.tasks.example import Reading, TaggedExample
from bert_pipeline.tasks.glue import class_label
from bert_pipeline.tasks.tables import TableRow, read_table

DOCUMENT_MARK = "-DOCSTART-"
COLUMN_SEPARATOR = re.compile(r"[ \t]+")
"""Spaces and tabs only: other white space, such as the no-break space, may be part of a word."""
TAG = re.compile(r"O|[BI]-\S+")
LEADING_SENTENCES = 10_000
"""Sentences that wait for a mark, since it may follow the first document; a file without marks is read as it comes."""
WORD_COLUMNS, TAG_COLUMNS = ("tokens", "words"), ("ner_tags", "tags", "labels")
"""Names of the columns of words and of tags in tables, the hub's first."""
TABLE_LAYOUTS = [Columns(text_a=words, label=tags, index="id") for words in WORD_COLUMNS for tags in TAG_COLUMNS]
_MARK = TaggedExample(DOCUMENT_MARK, None, ())
"""Stands for a document mark between sentences."""


def read_tagged_examples(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[TaggedExample]:
    """Yield the sentences of a split's files with their tags, those of entities in the IOB1 or the IOB2 scheme as IOB2.

    In CoNLL files the first column is the word, the last the tag; one column gives words without tags unless labels
    are required. A -DOCSTART- line, or in a table a row of that word, ends one document and starts the next; without
    any the sentences have no documents. InputError names file and line or row of a sentence with another number of
    columns or with a tag that is not among `task.labels` (in either scheme).
    """
    yield from _in_documents(_sentences(task, paths, reading))


def _sentences(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[TaggedExample]:
    """Yield the sentences of all files, and `_MARK` for each document mark."""
    for path in paths:
        with open_source(path, separator=reading.separator, encoding=reading.encoding) as source:
            if is_table(source):
                yield from read_table(source, TABLE_LAYOUTS, reading, functools.partial(_table_sentence, task))
            else:
                yield from _column_sentences(task, source, reading)


def _in_documents(sentences: Iterator[TaggedExample]) -> Iterator[TaggedExample]:
    """Number the documents between marks, and drop the marks."""
    # A mark may follow the first document, whose sentences wait for it.
    leading: list[TaggedExample] = []
    document = None
    for sentence in sentences:
        if sentence is _MARK:
            document = 0
        else:
            leading.append(sentence)
        if document is not None or len(leading) == LEADING_SENTENCES:
            break
    yield from (dataclasses.replace(sentence, document=document) for sentence in leading)

    # The mark has ended it; only documents with sentences are counted.
    if document is not None:
        document += bool(leading)
    has_sentences = False
    for sentence in sentences:
        if sentence is _MARK:
            document, has_sentences = 0 if document is None else document + has_sentences, False
            continue
        has_sentences = True
        yield dataclasses.replace(sentence, document=document)


def is_table(source: Source) -> bool:
    """Return whether a file is a table of sentences rather than CoNLL's columns."""
    return source.format in ("jsonl", "json", "parquet", "arrow")


def is_task_file(source: Source, labels: Sequence[str]) -> bool:
    """Return whether a file has CoNLL's columns, or is a table with tokens or with words and tags."""
    if not is_table(source):
        return is_column_file(source, labels)
    columns = open_records(source.peek()).columns
    words = [name for name in WORD_COLUMNS if name in columns]
    return bool(words) and (words[0] == "tokens" or any(name in columns for name in TAG_COLUMNS))


def is_column_file(source: Source, labels: Sequence[str] = ()) -> bool:
    """Return whether a file has CoNLL's columns, by its first lines.

    These are document marks, or most lines have the same number of columns and a tag in the last one, of any scheme or
    of the `labels`. A file of words alone is recognized by its document marks.
    """
    rows = [fields for record in source.peek().lines() if (fields := _fields(record.line))]
    if any(fields[0] == DOCUMENT_MARK for fields in rows):
        return True
    # The same number of columns in most lines and a tag in the last: prose does not look like that.
    width = statistics.mode(map(len, rows)) if len(rows) > (not labels) else 0
    tagged = (fields for fields in rows if len(fields) == width)
    return width > 1 and 2 * sum(fields[-1] in labels or bool(TAG.fullmatch(fields[-1])) for fields in tagged) > len(
        rows
    )


def _fields(line: str) -> list[str]:
    return [field for field in COLUMN_SEPARATOR.split(line) if field]


def _column_sentences(task: Task, source: Source, reading: Reading) -> Iterator[TaggedExample]:
    """Yield the sentences of CoNLL's columns, and `_MARK` for each document mark."""
    num_columns, is_bad = 0, False
    words: list[str] = []
    tags: list[str] = []

    # The appended blank line ends the last sentence.
    for record in itertools.chain(source.lines(), [Record("", {})]):
        fields = _fields(record.line)
        if not fields or fields[0] == DOCUMENT_MARK:
            # End of a sentence; a document mark ends the document as well.
            if words and not is_bad:
                yield _example(str(reading.number), words, tags if num_columns > 1 else None, task, reading)
            reading.number += bool(words)  # those set aside included
            words, tags, is_bad = [], [], False
            if fields:
                yield _MARK
            continue
        if is_bad:  # the rest of a sentence that is set aside
            continue
        # The first line of the file decides the number of columns.
        num_columns = num_columns or len(fields)
        words.append(fields[0])
        try:
            if record.error:
                raise InputError(record.error)
            if len(fields) != num_columns:
                raise InputError(
                    f"{record.where}: {len(fields)} columns, expected {num_columns} as in the lines before"
                )
            if num_columns == 1 and reading.labeled:
                raise InputError(f"{record.where}: 1 column, expected a word and its tag at least")
            if num_columns > 1:
                if reading.labeled is not False:
                    _check_tag(fields[-1], task.labels, record.where)
                tags.append(fields[-1])
        except InputError as error:
            reading.refuse(error)
            is_bad = True


def _example(
    example_id: str, words: Sequence[str], tags: Sequence[str] | None, task: Task, reading: Reading
) -> TaggedExample:
    tagged = None if tags is None or reading.labeled is False else tuple(to_iob2(tags, task.labels))
    return TaggedExample(example_id, None, tuple(words), tagged)


def _table_sentence(task: Task, row: TableRow) -> TaggedExample:
    """Make a sentence of the row of a table, or `_MARK` of one that is a document mark."""
    word_column, tag_column = row.table.layout.text_a, row.table.layout.label
    words = _list_of(row, word_column)
    if not all(isinstance(word, str) for word in words):
        raise InputError(f"{row.where}: {word_column} is {words!r:.80}, expected a list of texts")
    # As in CoNLL's files: this row only ends a document.
    if words == [DOCUMENT_MARK]:
        row.table.reading.number -= 1  # it counts as no sentence
        return _MARK
    # Tags are names, or integers of classes whose names the table's metadata has.
    labeled = row.table.reading.labeled
    tags = None
    if labeled or (labeled is None and row.fields.get(tag_column) is not None):
        tags = [_tag(value, task, row.table.class_names, row.where) for value in _list_of(row, tag_column)]
        if len(tags) != len(words):
            raise InputError(f"{row.where}: {len(words)} words and {len(tags)} tags, expected a tag for each word")
    return _example(row.example_id(), words, tags, task, row.table.reading)


def _list_of(row: TableRow, name: str) -> list[Any]:
    value = row.fields.get(name)
    if not isinstance(value, list):
        raise InputError(f"{row.where}: {name} is {value!r:.80}, expected a list")
    return value


def _tag(value: Any, task: Task, class_names: Sequence[str], where: str) -> str:
    if not isinstance(value, str):
        return class_label(task, value, class_names, where)
    _check_tag(value, task.labels, where)
    return value


def _entity(tag: str, labels: Sequence[str]) -> str:
    """Return the type of a tag B-<type> or I-<type> if the task has B-<type>; "" for other tags, such as -LRB-."""
    prefix, _, entity = tag.partition("-")
    return entity if prefix in ("B", "I") and f"B-{entity}" in labels else ""


def _check_tag(tag: str, labels: Sequence[str], where: str) -> None:
    if tag not in labels and not _entity(tag, labels):
        raise InputError(f"{where}: tag {tag[:60]!r}, expected one of {', '.join(labels)}")


def to_iob2(tags: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Convert the tags of one sentence from IOB1 or IOB2 to IOB2: B- on the first word of every entity.

    Tags of types without B-<type> among `labels` stay as they are.
    """
    result: list[str] = []
    previous = ""
    for tag in tags:
        entity = _entity(tag, labels)
        # IOB1 has B- only between adjacent entities of one type; IOB2 has it on every first word.
        result.append(f"B-{entity}" if entity and entity != previous else tag)
        previous = entity
    return result


def documents(examples: Iterable[TaggedExample]) -> Iterator[list[TaggedExample]]:
    """Yield the sentences of each document; a sentence without one is alone."""
    current: list[TaggedExample] = []
    for example in examples:
        if current and (example.document is None or example.document != current[0].document):
            yield current
            current = []
        current.append(example)
    if current:
        yield current
