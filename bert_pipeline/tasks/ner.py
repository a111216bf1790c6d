"""Sentences of tagged words: CoNLL-2003's columns, and tables with the hub's columns.

CoNLL files have one word and its tag per line, blank lines between sentences, -DOCSTART- between documents.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import Columns, Task
from bert_pipeline.tasks.example import Reading, TaggedExample
from bert_pipeline.tasks.glue import class_label
from bert_pipeline.tasks.tables import id_at, open_table, read_lines, seen_ids, table_format, unicode_text

DOCUMENT_MARK = "-DOCSTART-"
COLUMN_SEPARATOR = re.compile(r"[ \t]+")
"""Spaces and tabs only: other white space, such as the no-break space, may be part of a word."""
SNIFFED_LINES = 50
LEADING_SENTENCES = 10_000
"""Sentences that wait for a mark, since it may follow the first document; a file without marks is read as it comes."""
WORD_COLUMNS, TAG_COLUMNS = ("tokens", "words"), ("ner_tags", "tags", "labels")
"""Names of the columns of words and of tags in tables, the hub's first."""


def read_tagged_examples(task: Task, paths: Sequence[Path], reading: Reading) -> Iterator[TaggedExample]:
    """Yield the sentences of a split's files with their tags, those of entities in the IOB1 or the IOB2 scheme as IOB2.

    In CoNLL files the first column is the word, the last the tag; one column gives words without tags unless labels
    are required. A -DOCSTART- line, or in a table a row of that word, ends one document and starts the next; without
    any the sentences have no documents. InputError names file and line or row of a sentence with another number of
    columns or with a tag that is not among `task.labels` (in either scheme).
    """
    yield from _in_documents(_sentences(task, paths, reading))


def _sentences(task: Task, paths: Sequence[Path], reading: Reading) -> Iterator[TaggedExample | None]:
    """Yield the sentences of all files, and None for each document mark."""
    seen = seen_ids(reading)
    for path in paths:
        read_sentences = _table_sentences if is_table(path) else _column_sentences
        for sentence in read_sentences(task, path, reading, seen):
            if sentence is None:
                yield None
                continue
            example_id, words, tags = sentence
            # Sentences without an id are numbered over all files, those set aside included.
            example_id = str(len(seen) + reading.rows_set_aside) if example_id is None else example_id
            seen.setdefault(example_id, "")
            tagged = None if tags is None or reading.labeled is False else tuple(to_iob2(tags, task.labels))
            yield TaggedExample(example_id, None, tuple(words), tagged)


def _in_documents(sentences: Iterator[TaggedExample | None]) -> Iterator[TaggedExample]:
    """Number the documents between marks, and drop the marks."""
    # A mark may follow the first document, whose sentences wait for it.
    leading: list[TaggedExample] = []
    document = None
    for sentence in sentences:
        if sentence is None:
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
        if sentence is None:
            document, has_sentences = 0 if document is None else document + has_sentences, False
            continue
        has_sentences = True
        yield dataclasses.replace(sentence, document=document)


def is_table(path: Path) -> bool:
    """Return whether a file is a table of sentences rather than CoNLL's columns."""
    return table_format(path) in ("jsonl", "parquet", "arrow")


def is_table_file(path: Path, *, plain: bool = True) -> bool:
    """Return whether a table has a column of words; without `plain`, "words" alone, as inputs have them, are none."""
    table = open_table(path, Reading(on_error=lambda _: None), columns=Columns())
    own = (*WORD_COLUMNS[:1], *TAG_COLUMNS)
    return any(name in table.columns for name in WORD_COLUMNS) and (plain or any(name in table.columns for name in own))


def is_column_file(path: Path, labels: Sequence[str]) -> bool:
    """Return whether a file has CoNLL's columns: document marks, or the same number of columns and a tag in the last.

    The first lines decide; a file of words alone is recognized by its document marks.
    """
    num_columns = 0
    # The same number of columns in every line and a known tag in the last: prose does not look like that.
    for _, line in itertools.islice(read_lines(path), SNIFFED_LINES):
        fields = [field for field in COLUMN_SEPARATOR.split(line) if field]
        if fields and fields[0] == DOCUMENT_MARK:
            return True
        if fields:
            num_columns = num_columns or len(fields)
            if num_columns == 1 or len(fields) != num_columns or not _is_tag(fields[-1], labels):
                return False
    return num_columns > 1


Sentence = tuple[str | None, Sequence[str], Sequence[str] | None]
"""Id, None if sentences are to be counted; words; tags."""


def _column_sentences(task: Task, path: Path, reading: Reading, _: dict[str, str]) -> Iterator[Sentence | None]:
    """Yield the sentences of CoNLL's columns, and None for each document mark."""
    num_columns, is_bad = 0, False
    words: list[str] = []
    tags: list[str] = []

    # The appended blank line ends the last sentence.
    for number, line in itertools.chain(read_lines(path), [(0, "")]):
        fields = [field for field in COLUMN_SEPARATOR.split(line) if field]
        if not fields or fields[0] == DOCUMENT_MARK:
            # End of a sentence; a document mark ends the document as well.
            if words and not is_bad:
                yield None, words, tags if num_columns > 1 else None
            words, tags, is_bad = [], [], False
            if fields:
                yield None
            continue
        if is_bad:  # the rest of a sentence that is set aside
            continue
        # The first line of the file decides the number of columns.
        num_columns = num_columns or len(fields)
        words.append(fields[0])
        try:
            if len(fields) != num_columns:
                raise InputError(
                    f"{path}:{number}: {len(fields)} columns, expected {num_columns} as in the lines before"
                )
            if num_columns == 1 and reading.labeled:
                raise InputError(f"{path}:{number}: 1 column, expected a word and its tag at least")
            if num_columns > 1:
                if reading.labeled is not False:
                    _check_tag(fields[-1], task.labels, f"{path}:{number}")
                tags.append(fields[-1])
        except InputError as error:
            reading.refuse(error)
            is_bad = True


def _table_sentences(task: Task, path: Path, reading: Reading, seen: dict[str, str]) -> Iterator[Sentence | None]:
    """Yield the sentences of a table, and None for each row that is a document mark."""
    table = open_table(path, reading, columns=Columns())

    # The first known name that the table has; without any the hub's, which the error then names.
    word_column, tag_column = (
        next((name for name in names if name in table.columns), names[0]) for names in (WORD_COLUMNS, TAG_COLUMNS)
    )
    layout = Columns(text_a=word_column, label=tag_column, index="id")
    table.choose([layout], reading.labeled)
    id_column, class_names = table.id_column(layout), table.class_names.get(tag_column, ())
    for number, row in table.rows:
        where = table.where(number)
        try:
            words = _list_of(row, word_column, where)
            if not all(isinstance(word, str) for word in words):
                raise InputError(f"{where}: {word_column} is {words!r:.80}, expected a list of texts")
            words = [unicode_text(word, word_column, where) for word in words]
            # As in CoNLL's files: this row only ends a document.
            if words == [DOCUMENT_MARK]:
                yield None
                continue
            # Tags are names, or integers of classes whose names the table's metadata has.
            tags = None
            if reading.labeled or (reading.labeled is None and row.get(tag_column) is not None):
                values = _list_of(row, tag_column, where)
                tags = [_tag(value, task, class_names, where) for value in values]
                if len(tags) != len(words):
                    raise InputError(f"{where}: {len(words)} words and {len(tags)} tags, expected a tag for each word")
            example_id = None if id_column is None else id_at(row, id_column, where, seen, table.place(number), 0)
        except InputError as error:
            reading.refuse(error)
            continue
        yield example_id, words, tags


def _list_of(row: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = row.get(name)
    if not isinstance(value, list):
        raise InputError(f"{where}: {name} is {value!r:.80}, expected a list")
    return value


def _tag(value: Any, task: Task, class_names: Sequence[str], where: str) -> str:
    if not isinstance(value, str):
        return class_label(task, value, class_names, where)
    _check_tag(value, task.labels, where)
    return value


def _is_tag(tag: str, labels: Sequence[str]) -> bool:
    return tag in labels or bool(_entity(tag, labels))


def _entity(tag: str, labels: Sequence[str]) -> str:
    """Return the type of a tag B-<type> or I-<type> if the task has B-<type>; "" for other tags, such as -LRB-."""
    prefix, _, entity = tag.partition("-")
    return entity if prefix in ("B", "I") and f"B-{entity}" in labels else ""


def _check_tag(tag: str, labels: Sequence[str], where: str) -> None:
    if not _is_tag(tag, labels):
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
