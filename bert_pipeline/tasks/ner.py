"""Sentences of tagged words: CoNLL-2003's columns, and tables with the hub's columns.

CoNLL files have one word and its tag per line, blank lines between sentences, -DOCSTART- between documents.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_pipeline.errors import InputError
from bert_pipeline.records import Record, Source, open_records, open_source
from bert_pipeline.tasks.catalogue import OTHER_PREFIXES, Columns, Task
from bert_pipeline.tasks.example import Reading, TaggedExample
from bert_pipeline.tasks.glue import class_label
from bert_pipeline.tasks.tables import TableRow, read_table

DOCUMENT_MARK = "-DOCSTART-"
COLUMN_SEPARATOR = re.compile(r"[ \t]+")
"""Spaces and tabs only: other white space, such as the no-break space, may be part of a word."""
TAG = re.compile(r"O|[BIESULM]-\S+")
STARTS = ("B", "S", "U")
"""Prefixes of the first word of an entity in any scheme."""
LEADING_SENTENCES = 10_000
"""Sentences that wait for a mark, since it may follow the first document; a file without marks is read as it comes."""
WORD_COLUMNS, TAG_COLUMNS = ("tokens", "words"), ("ner_tags", "tags", "labels")
"""Names of the columns of words and of tags in tables, the hub's first."""
TABLE_LAYOUTS = [Columns(text_a=words, label=tags) for words in WORD_COLUMNS for tags in TAG_COLUMNS]
TABLE_LAYOUTS += [Columns(text_a="text", label=spans) for spans in ("spans", "entities", "label", "labels")]
"""Those with "text" have spans of characters, as doccano and Prodigy write them."""
_MARK = TaggedExample(DOCUMENT_MARK, None, ())
"""Stands for a document mark between sentences."""


def read_tagged_examples(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[TaggedExample]:
    """Yield the sentences of a split's files with their tags, those of entities in the IOB1 or the IOB2 scheme as IOB2.

    In CoNLL files the first column is the word, the last the tag; one column gives words without tags unless labels
    are required. A -DOCSTART- line, or in a table a row of that word or with another `document`, ends one document and
    starts the next; without any the sentences have no documents. InputError names file and line or row of a sentence
    with another number of columns or with a tag that is not among `task.labels` (in IOB1, IOB2, BIOES or BILOU).

    The task may name the columns: those in the first line of a file or without a header (`headerless`), then "#" begins
    lines that are none of words; of tables with lists of words, or with a word a row, whose `index` names the sentence.
    """
    yield from _in_documents(_marked(_sentences(task, paths, reading)))


def _sentences(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[TaggedExample]:
    """Yield the sentences of all files, and `_MARK` for each document mark."""
    for path in paths:
        with open_source(path, separator=reading.separator, encoding=reading.encoding) as source:
            if is_table(source):
                yield from read_table(source, _layouts(task), reading, functools.partial(_table_sentence, task))
            elif source.format == "csv" or _has_word_rows(task, source):
                yield from _joined(_row_words(task, source, reading), task, reading)
            else:
                yield from _joined(_column_words(task, source, reading), task, reading)


def _marked(sentences: Iterable[TaggedExample]) -> Iterator[TaggedExample]:
    """Yield `_MARK` too where the rows of a table begin to state another document."""
    for previous, sentence in itertools.pairwise(itertools.chain([_MARK], sentences)):
        if sentence.document != previous.document:
            yield _MARK
        yield sentence


def _in_documents(sentences: Iterator[TaggedExample]) -> Iterator[TaggedExample]:
    """Number the documents between marks, and drop the marks."""
    # A mark may follow the first document, whose sentences wait for it.
    leading: list[TaggedExample] = []
    for sentence in itertools.islice(sentences, LEADING_SENTENCES):
        leading.append(sentence)
        if sentence is _MARK:
            break

    # Only documents with sentences are counted.
    document = 0 if leading and leading[-1] is _MARK else None
    has_sentences = False
    for sentence in itertools.chain(leading, sentences):
        if sentence is _MARK:
            document, has_sentences = 0 if document is None else document + has_sentences, False
            continue
        has_sentences = True
        yield dataclasses.replace(sentence, document=document)


def is_table(source: Source) -> bool:
    """Return whether a file is a table of sentences rather than CoNLL's columns."""
    return source.format in ("jsonl", "json", "parquet", "arrow")


def _layouts(task: Task) -> list[Columns]:
    """Return the columns that a table of sentences may have: those that the task names, and the usual ones."""
    own = task.columns
    layouts = [dataclasses.replace(layout, index=own.index) for layout in TABLE_LAYOUTS]
    layouts += [dataclasses.replace(own, text_a=name) for name in (*WORD_COLUMNS, "text")]
    return layouts if own.text_a == Columns().text_a else [own, *layouts]


def _has_word_rows(task: Task, source: Source) -> bool:
    """Return whether a file is a table with a word a row, of the columns that the task names."""
    if source.format in ("csv", "tsv") and not task.columns.headerless:
        with contextlib.suppress(InputError):  # two columns of one name are no header
            return {task.columns.text_a, task.columns.index} <= {*open_records(source.peek()).columns}
    return False


def _header(task: Task, source: Source) -> list[str]:
    """Return the names in the first line of CoNLL's columns, if the task's column of words is one of them."""
    names = _fields(next(source.peek().lines(), Record("", {})).line, task)
    return names if task.columns.text_a in names and not task.columns.headerless else []


def is_task_file(source: Source, task: Task) -> bool:
    """Return whether a file has CoNLL's columns or the task's, or is a table with tokens or with words and tags."""
    if not is_table(source):
        names = task.columns.headerless or _header(task, source)
        widths = [len(_fields(record.line, task)) for record in source.peek().lines() if record.line.strip()]
        is_own = bool(names) and 2 * widths.count(len(names)) > len(widths)
        return is_own or _has_word_rows(task, source) or is_column_file(source, task.labels)
    columns = open_records(source.peek()).columns
    if task.columns.text_a in columns:
        return True
    if {"text", "spans"} <= {*columns}:  # an input of text, whose entities get their characters
        return False
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
    last = [fields[-1] for fields in rows if len(fields) == width > 1]
    return 2 * sum(field in labels or bool(TAG.fullmatch(field)) for field in last) > len(rows)


def _fields(line: str, task: Task | None = None) -> list[str]:
    if task is not None and task.separator:
        return line.split(task.separator) if line.strip() else []
    return [field for field in COLUMN_SEPARATOR.split(line) if field]


class _Word(NamedTuple):
    """A line with a word and its tag, or what is wrong with it."""

    where: str
    word: str
    tag: str | None
    problem: str = ""
    sentence: str = ""
    """The id of its sentence; "" for that of the line before."""


def _joined(words: Iterable[_Word | None], task: Task, reading: Reading) -> Iterator[TaggedExample]:
    """Yield the sentences of words, which None, another id and document marks end, and `_MARK` for each of the last.

    The first problem of a sentence sets it aside.
    """
    own: list[_Word] = []
    for following in itertools.chain(words, [None]):
        is_mark = following is not None and following.word == DOCUMENT_MARK
        if own and (following is None or is_mark or following.sentence not in ("", own[0].sentence)):
            try:
                for line in own:
                    if line.problem:
                        raise InputError(line.problem)
                    if line.tag is not None:
                        _check_tag(line.tag, task.labels, line.where)
                if own[0].sentence:
                    reading.enter(own[0].sentence, own[0].where)
            except InputError as error:
                reading.refuse(error)
            else:
                tags = None if own[0].tag is None else [line.tag or "" for line in own]
                example_id = own[0].sentence or str(reading.number)
                yield _example(example_id, [line.word for line in own], tags, task)
            reading.number += 1  # those set aside included
            own = []
        if is_mark:
            yield _MARK
        elif following is not None:
            own.append(following)


def _row_words(task: Task, source: Source, reading: Reading) -> Iterator[_Word]:
    """Yield the words of a table with a word a row; an empty id is that of the row before."""
    records, names = open_records(source), task.columns
    expected = (names.text_a, names.index, *([names.label] if reading.labeled else []))
    if missing := [name for name in expected if name not in records.columns]:
        raise InputError(
            f"{records.where}: no column {missing[0]!r} (found: {records.shown_columns}), expected a word a row: name "
            "the word, the tag and the sentence's id in columns.text_a, label and index"
        )
    has_tags = reading.labeled is not False and names.label in records.columns
    for record in records.rows:
        if record.fields and not any(record.fields.values()):
            continue  # a blank line between sentences
        word, tag, stated = (str(record.fields.get(name) or "") for name in (names.text_a, names.label, names.index))
        problem = record.error or ("" if word.strip() else f"{record.where}: no word in {names.text_a}")
        yield _Word(record.where, word.strip(), tag if has_tags else None, problem, stated)


def _column_words(task: Task, source: Source, reading: Reading) -> Iterator[_Word | None]:
    """Yield the words of CoNLL's columns, and None for each blank line."""
    columns, header = task.columns, _header(task, source)
    names = columns.headerless or header
    if names and columns.label not in names and reading.labeled:
        found = ", ".join(names)
        raise InputError(f"{source.name}:1: no column {columns.label!r}, which holds the tags (found: {found})")
    word = names.index(columns.text_a) if names else 0
    tag = names.index(columns.label) if columns.label in names else -1
    has_tags = reading.labeled is not False and (not names or columns.label in names)
    num_columns = len(names)
    for record in itertools.islice(source.lines(), bool(header), None):
        fields = _fields(record.line, task)
        is_word = not names or (len(fields) == len(names) and _is_tag(fields[tag], task.labels))
        if record.line.startswith("#") and not is_word:
            continue
        if not fields or fields[0] == DOCUMENT_MARK:
            yield _Word(record.where, DOCUMENT_MARK, None) if fields else None
            continue
        # The first line of the file decides the number of columns.
        num_columns = num_columns or len(fields)
        problem = record.error
        if not problem and len(fields) != num_columns:
            problem = f"{record.where}: {len(fields)} columns, expected {num_columns} as in the lines before"
        elif not problem and num_columns == 1 and reading.labeled:
            problem = f"{record.where}: 1 column, expected a word and its tag at least"
        own_tag = fields[tag] if has_tags and num_columns > 1 and not problem else None
        yield _Word(record.where, "" if problem else fields[word], own_tag, problem)


def _example(example_id: str, words: Sequence[str], tags: Sequence[str] | None, task: Task) -> TaggedExample:
    return TaggedExample(example_id, None, tuple(words), None if tags is None else tuple(to_iob2(tags, task.labels)))


def _table_sentence(task: Task, row: TableRow) -> TaggedExample | None:
    """Make a sentence of the row of a table, or `_MARK` of one that is a document mark."""
    word_column, tag_column = row.table.layout.text_a, row.table.layout.label
    if isinstance(text := row.value(word_column), str):
        return _spanned_sentence(task, row, text)
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
    if labeled or (labeled is None and row.value(tag_column) is not None):
        known, values = row.table.class_names, _list_of(row, tag_column)
        tags = [value if isinstance(value, str) else class_label(task, value, known, row.where) for value in values]
        for tag in tags:
            _check_tag(tag, task.labels, row.where)
        if len(tags) != len(words):
            raise InputError(f"{row.where}: {len(words)} words and {len(tags)} tags, expected a tag for each word")
    return dataclasses.replace(_example(row.example_id(), words, tags, task), document=row.fields.get("document"))


def _spanned_sentence(task: Task, row: TableRow, text: str) -> TaggedExample | None:
    """Make a sentence of a text with spans of characters: (start, end, type), or objects with these under any name."""
    from tokenizers.pre_tokenizers import BertPreTokenizer  # as plain input is split

    reading, column = row.table.reading, row.table.layout.label
    words = BertPreTokenizer().pre_tokenize_str(text)
    spans, tags = row.value(column), ["O"] * len(words)
    if reading.labeled is False or (reading.labeled is None and spans is None):
        return _example(row.example_id(), [word for word, _ in words], None, task)
    if row.fields.get("answer", "accept") != "accept":  # as Prodigy has it
        reading.count("texts whose entities their annotator did not accept")
        return None
    for span in _list_of(row, column):
        keys = (("start", "start_offset"), ("end", "end_offset"), ("label", "type"))
        values: Any = span
        if isinstance(span, dict):
            values = [next((span[key] for key in names if key in span), None) for names in keys]
        try:
            start, end, entity = values
            inside = [i for i, (_, (first, last)) in enumerate(words) if first < end and last > start]
            if not (0 <= start < end <= len(text) and inside):
                raise ValueError
        except (TypeError, ValueError):
            message = f"{row.where}: {column} has {span!r:.80}, expected start, end and type of a span of the text"
            raise InputError(message) from None
        _check_tag(f"B-{entity}", task.labels, row.where)
        if any(tags[index] != "O" for index in inside):
            reading.count("entities that overlap an earlier one", str(row.fields.get("id", "")))
            continue
        if words[inside[0]][1][0] != start or words[inside[-1]][1][1] != end:
            reading.count("entities that end inside of a word, which is taken whole", str(row.fields.get("id", "")))
        for number, index in enumerate(inside):
            tags[index] = f"{'I' if number else 'B'}-{entity}"
    return _example(row.example_id(), [word for word, _ in words], tags, task)


def _list_of(row: TableRow, name: str) -> list[Any]:
    value = row.value(name)
    if not isinstance(value, list):
        raise InputError(f"{row.where}: {name} is {value!r:.80}, expected a list")
    return value


def _entity(tag: str, labels: Sequence[str]) -> str:
    """Return the type of a tag if the task has B-<type>, and I-<type> to go on with; "" for others, such as -LRB-."""
    prefix, _, entity = tag.partition("-")
    is_there = f"B-{entity}" in labels and (prefix in STARTS or f"I-{entity}" in labels)
    return entity if is_there and prefix in ("B", "I", *OTHER_PREFIXES) else ""


def _is_tag(tag: str, labels: Sequence[str]) -> bool:
    return tag in labels or bool(_entity(tag, labels))


def _check_tag(tag: str, labels: Sequence[str], where: str) -> None:
    if not _is_tag(tag, labels):
        raise InputError(f"{where}: tag {tag[:60]!r}, expected one of {', '.join(labels)}")


def to_iob2(tags: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Convert the tags of one sentence from IOB1, BIOES, BILOU or IOB2 to IOB2: B- on the first word of every entity.

    Tags of types without B-<type> among `labels` stay as they are.
    """
    result: list[str] = []
    previous = ""
    for tag in tags:
        entity = _entity(tag, labels)
        # IOB1 has B- only between adjacent entities of one type; IOB2 has it on every first word.
        starts = entity != previous or tag.partition("-")[0] in STARTS
        result.append(f"{'B' if starts else 'I'}-{entity}" if entity else tag)
        previous = entity
    return result


def in_iob(tags: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Return the tags of one sentence, those of BIOES and BILOU in IOB2; conlleval's rules are for IOB1 and IOB2."""
    has_others = any(tag not in labels and tag.partition("-")[0] in OTHER_PREFIXES for tag in tags)
    return to_iob2(tags, labels) if has_others else [*tags]


def to_bioes(tags: Sequence[str]) -> list[str]:
    """Convert the IOB2 tags of one sentence to BIOES: E- on the last word of an entity, S- on its only one."""
    result = []
    for tag, following in itertools.pairwise([*tags, "O"]):
        prefix, _, entity = tag.partition("-")
        is_last = bool(entity) and following != f"I-{entity}" and prefix in ("B", "I")
        result.append(f"{'S' if prefix == 'B' else 'E'}-{entity}" if is_last else tag)
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
