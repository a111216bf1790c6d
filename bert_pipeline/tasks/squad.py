"""Questions on passages: SQuAD's JSON, versions 1.1 and 2.0, and tables with the hub's columns."""

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.records import Source, open_records, open_source, unicode_text
from bert_pipeline.tasks.catalogue import Columns, Task
from bert_pipeline.tasks.example import Answer, Reading, SpanExample
from bert_pipeline.tasks.tables import TableRow, has_columns, read_table

MOVED = "answers moved from a wrong offset to their only occurrence"
MISPLACED = "answers that do not stand at their offset"
WITHOUT_ANSWER = "questions without a usable answer"
NO_OFFSET = -1
"""The start of an answer with unknown position, which can be scored but not trained on."""
DATA = re.compile(rb'(?<!\\)"data"\s*:\s*\[')
"""The list of articles, by which a document is told from JSON lines."""
ROW = "the row"
"""The place of a question in a table."""
TABLE_COLUMNS = Columns(text_a="question", text_b="context", label="answers", index="id")


def read_span_examples(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[SpanExample]:
    """Yield the questions of SQuAD files, version 2.0 if `task.has_impossible`, or of tables with the hub's columns.

    An answer whose text is not at its offset is counted and, if the text occurs in the context exactly once, moved
    there. Other misplaced ones are left out `for_training`; for scoring, which goes by the text alone, they stay with
    the start `NO_OFFSET`. Where labels are required, questions without an answer that are not marked impossible are
    counted and left out; where they are read if there are any, files without a single answer have none. InputError
    names file and question if a key is missing or of another type, an id repeats, or the version is the other one.
    """
    seen: set[str] = set()
    # Hidden test sets have empty answers throughout, which say nothing of their questions.
    scan = Reading(labeled=None, on_error=lambda _: None, separator=reading.separator, encoding=reading.encoding)
    hidden = reading.labeled is None and not any(_has_answers(path, task, scan) for path in paths)
    impossible, has_tables = 0, False
    for path in paths:
        # Ids are compared over all files of the split.
        for where, question, title, context in _questions(path, task, reading):
            has_tables = has_tables or where[1] == ROW
            try:
                example = _example(where, question, title, context, reading, hidden)
                if example.example_id in seen:
                    raise InputError(f"{where[0]}: question id {example.example_id!r} is repeated, expected unique ids")
            except InputError as error:
                reading.refuse(error)
                continue
            if reading.labeled is not False:  # input to answer may repeat ids, and there may be any number of them
                seen.add(example.example_id)
            impossible += example.is_impossible
            # Counted, not refused: a few such questions do not spoil a file.
            is_answered = bool(example.answers) or (task.has_impossible and example.is_impossible)
            if not is_answered and (reading.labeled or example.is_impossible):
                reading.count(WITHOUT_ANSWER, example.example_id)
                continue
            yield example
    # A table has no version, so the answers decide once all are read; a shard may have those of one kind only.
    if has_tables and impossible and not task.has_impossible:
        raise InputError(f"{paths[0]}: {impossible} questions have no answer, expected SQuAD 1.1; use squad2")
    if has_tables and reading.for_training and not impossible and task.has_impossible:
        raise InputError(f"{paths[0]}: every question has an answer, expected SQuAD 2.0; use squad1")


def is_squad_json(source: Source) -> bool:
    """Return whether a file is to be read as one SQuAD document rather than as a table, by its first lines."""
    is_list = b"".join(source.head[:2]).lstrip().startswith(b"[")
    return (source.format == "json" and not is_list) or (
        source.format == "jsonl" and any(map(DATA.search, source.head))
    )


Question = tuple[tuple[str, str], Any, str, str]
"""(file, place in it), the question with its answers, title, context."""


def _questions(path: Path | Source, task: Task, reading: Reading) -> Iterator[Question]:
    with open_source(path, separator=reading.separator, encoding=reading.encoding) as source:
        if is_squad_json(source):
            yield from _json_questions(source, task, reading)
        else:
            yield from read_table(source, table_layouts(task), reading, _table_question)


def table_layouts(task: Task) -> list[Columns]:
    """Return the columns that a table of the task may have: the hub's, with its own ids, or all its own."""
    own, default = task.columns, Columns()
    hub = TABLE_COLUMNS if own.index == default.index else dataclasses.replace(TABLE_COLUMNS, index=own.index)
    return [own, hub] if own.text_b else [hub]


def _has_answers(path: Path | Source, task: Task, reading: Reading) -> bool:
    """Return whether any question of a file has an answer."""
    questions = _questions(path, task, reading)
    return any(isinstance(question, dict) and bool(question.get("answers")) for _, question, _, _ in questions)


def _json_questions(source: Source, task: Task, reading: Reading) -> Iterator[Question]:
    document, file = _load(source), source.name
    has_impossible = _has_impossible(document)

    # Without labels, as for predictions, a file of either version is fine.
    if has_impossible and not task.has_impossible and reading.labeled is not False:
        raise InputError(f"{file}: is SQuAD 2.0 (it has unanswerable questions), expected SQuAD 1.1; use squad2")
    if task.has_impossible and has_impossible is False and reading.labeled is not False:
        raise InputError(f"{file}: is SQuAD 1.1 (no unanswerable questions), expected SQuAD 2.0; use squad1")
    for article_number, article in enumerate(_list(file, document, "data", "the file")):
        where = f"data[{article_number}]"
        title = str(article.get("title", "")) if isinstance(article, dict) else ""
        for paragraph_number, paragraph in enumerate(_list(file, article, "paragraphs", where)):
            where = f"data[{article_number}].paragraphs[{paragraph_number}]"
            try:
                context = _text(file, paragraph, "context", where)
            except InputError as error:
                reading.refuse(error)
                continue
            for question_number, question in enumerate(_list(file, paragraph, "qas", where)):
                yield (file, f"{where}.qas[{question_number}]"), question, title, context


def _table_question(row: TableRow) -> Question:
    """Return the row of a table with its question, its answers as the hub has them, and its title."""
    layout = row.table.layout
    asked, context = (_text(row.where, row.fields, name, ROW) for name in (layout.text_a, layout.text_b))
    answers = None if row.table.reading.labeled is False else row.fields.get(layout.label)
    if isinstance(answers, dict):  # lists of texts and starts become a list of answers
        texts, starts = (_list(row.where, answers, key, "answers") for key in ("text", "answer_start"))
        if len(texts) != len(starts):  # an answer left out would make the question one without an answer
            raise InputError(
                f"{row.where}: answers has {len(texts)} texts and {len(starts)} starts, expected a start for each"
            )
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
    id_column = row.table.id_column
    example_id = row.table.reading.number if id_column is None else row.value(id_column)
    question = {**row.fields, "question": asked, "id": example_id, "answers": answers}
    if answers is None:
        del question["answers"]
    return (row.where, ROW), question, str(row.fields.get("title") or ""), context


def is_version(path: Path, has_impossible: bool) -> bool:
    """Return whether a file is SQuAD's JSON, by its content of version 2.0 or of 1.1, or of either."""
    try:
        with open_source(path) as source:
            return _has_impossible(_load(source)) in (has_impossible, None)
    except InputError:
        return False


def lacks_answers(source: Source) -> bool | None:
    """Return whether some questions of a file have no answer; None if it holds something else, and is not read."""
    if is_squad_json(source):
        return bool(_has_impossible(_load(source))) if DATA.search(b"".join(source.head)) else None
    if not has_columns(open_records(source.peek()).columns, ("question", "context", "answers")):
        return None
    answers = [record.fields.get("answers") for record in open_records(source).rows if record.fields]
    return any(not (own.get("text") if isinstance(own, dict) else own) for own in answers)


def _load(source: Source) -> Any:
    document = source.document()
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise InputError(f"{source.name}: found no list 'data' at the top, expected SQuAD's JSON")
    return document


def _has_impossible(document: Any) -> bool | None:
    """Return whether a document is of version 2.0; None without a version if every question is marked as possible."""
    version = str(document.get("version", "")).lower().lstrip("v")
    if version.startswith(("1", "2")):
        return version.startswith("2")
    data = json.dumps(document["data"])
    return '"is_impossible": true' in data or (None if '"is_impossible"' in data else False)


def _example(
    place: tuple[str, str], question: Any, title: str, context: str, reading: Reading, hidden: bool
) -> SpanExample:
    path, where = place
    if isinstance(question, dict) and isinstance(question.get("id"), int):  # as annotation tools write it
        question = {**question, "id": str(question["id"])}
    example_id = _text(path, question, "id", where)
    where = f"question {example_id!r}"
    impossible = question.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise InputError(f"{path}: {where}: is_impossible is {impossible!r}, expected true or false")

    # The offset is trusted only if the answer's text is there.
    answers: list[Answer] = []
    entries = _list(path, question, "answers", where) if "answers" in question and reading.labeled is not False else []
    for number, answer in enumerate(entries):
        text = _text(path, answer, "text", f"{where}, answers[{number}]")
        start = answer.get("answer_start")
        if not isinstance(start, int) or isinstance(start, bool):
            raise InputError(f"{path}: {where}, answers[{number}]: answer_start is {start!r}, expected a whole number")
        if start < 0 or context[start : start + len(text)] != text or not text:
            # A text that occurs once can only be meant there.
            moved = bool(text) and context.count(text) == 1
            reading.count(MOVED if moved else MISPLACED, example_id)
            if not moved and reading.for_training:
                continue
            start = context.index(text) if moved else NO_OFFSET
        answers.append(Answer(text, start))

    if impossible and answers:
        raise InputError(f"{path}: {where}: is_impossible is true but it has answers, expected none")
    # Without labels nobody may know that a question has no answer.
    if reading.labeled is False:
        impossible = False
    elif question.get("answers") == [] and not hidden:
        impossible = True  # the official scorer goes by the answers alone
    return SpanExample(example_id, title, context, _text(path, question, "question", where), tuple(answers), impossible)


def _list(path: str, value: Any, key: str, where: str) -> list[Any]:
    items = value.get(key) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise InputError(f"{path}: {where}: {key!r} is {_kind(value, key)}, expected a list")
    return items


def _text(path: str, value: Any, key: str, where: str) -> str:
    text = value.get(key) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise InputError(f"{path}: {where}: {key!r} is {_kind(value, key)}, expected a text")
    return unicode_text(text, repr(key), f"{path}: {where}")


def _kind(value: Any, key: str) -> str:
    if not isinstance(value, dict) or key not in value:
        return "missing"
    return f"a {type(value[key]).__name__}"
