"""SQuAD's JSON, versions 1.1 and 2.0."""

import json
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import Answer, Reading, SpanExample

MOVED = "answers moved from a wrong offset to their only occurrence"
MISPLACED = "answers that do not stand at their offset"
WITHOUT_ANSWER = "questions without a usable answer"
NO_OFFSET = -1
"""The start of an answer with unknown position, which can be scored but not trained on."""


def read_span_examples(
    path: Path, *, has_impossible: bool, for_training: bool = False, require_answers: bool = True
) -> Reading:
    """Read a SQuAD file, version 2.0 if `has_impossible`.

    An answer whose text is not at its offset is counted and, if the text occurs in the context exactly
    once, moved there. Other misplaced answers are counted too; `for_training` they are left out, while for scoring,
    which goes by the text alone, they stay with the start `NO_OFFSET`. With `require_answers`, questions that have
    no answer left (and are not marked impossible) are counted and left out. InputError names the file and the
    question when a key is missing or has another type, an id repeats, or the file is of the other version.
    """
    document = _load(path)
    found_version = _has_impossible(document)
    if found_version and not has_impossible:
        raise InputError(f"{path}: is SQuAD 2.0 (it has unanswerable questions), expected SQuAD 1.1; use squad2")
    if has_impossible and not found_version:
        raise InputError(f"{path}: is SQuAD 1.1 (no unanswerable questions), expected SQuAD 2.0; use squad1")
    examples: list[SpanExample] = []
    counts: dict[str, int] = {}
    seen: set[str] = set()
    for article_number, article in enumerate(_list(path, document, "data", "the file")):
        where = f"data[{article_number}]"
        title = str(article.get("title", "")) if isinstance(article, dict) else ""
        for paragraph_number, paragraph in enumerate(_list(path, article, "paragraphs", where)):
            where = f"data[{article_number}].paragraphs[{paragraph_number}]"
            context = _text(path, paragraph, "context", where)
            for question_number, question in enumerate(_list(path, paragraph, "qas", where)):
                example = _example(
                    path, question, title, context, f"{where}.qas[{question_number}]", counts, for_training
                )
                if example.example_id in seen:
                    raise InputError(f"{path}: question id {example.example_id!r} is repeated, expected unique ids")
                seen.add(example.example_id)
                if require_answers and not (example.answers or (has_impossible and example.is_impossible)):
                    counts[WITHOUT_ANSWER] = counts.get(WITHOUT_ANSWER, 0) + 1
                    continue
                examples.append(example)
    if not examples:
        raise InputError(f"{path}: no questions, expected at least one")
    return Reading(examples, counts)


def is_version_2(path: Path) -> bool:
    """Return True if the content of a file is SQuAD 2.0. InputError if it is not SQuAD's JSON."""
    return _has_impossible(_load(path))


def _load(path: Path) -> Any:
    try:
        with open(path, encoding="utf-8-sig") as stream:
            document = json.load(stream)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON at column {error.colno} ({error.msg})") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise InputError(f"{path}: found no list 'data' at the top, expected SQuAD's JSON")
    return document


def _has_impossible(document: Any) -> bool:
    version = str(document.get("version", "")).lower().lstrip("v")
    if version.startswith(("1", "2")):
        return version.startswith("2")
    return '"is_impossible"' in json.dumps(document["data"])


def _example(
    path: Path, question: Any, title: str, context: str, where: str, counts: dict[str, int], for_training: bool
) -> SpanExample:
    example_id = _text(path, question, "id", where)
    where = f"question {example_id!r}"
    impossible = question.get("is_impossible", False)
    if not isinstance(impossible, bool):
        raise InputError(f"{path}: {where}: is_impossible is {impossible!r}, expected true or false")
    answers: list[Answer] = []
    for number, answer in enumerate(_list(path, question, "answers", where) if "answers" in question else ()):
        text = _text(path, answer, "text", f"{where}, answers[{number}]")
        start = answer.get("answer_start")
        if not isinstance(start, int) or isinstance(start, bool):
            raise InputError(f"{path}: {where}, answers[{number}]: answer_start is {start!r}, expected a whole number")
        if start < 0 or context[start : start + len(text)] != text or not text:
            moved = bool(text) and context.count(text) == 1
            counts[MOVED if moved else MISPLACED] = counts.get(MOVED if moved else MISPLACED, 0) + 1
            if not moved and for_training:
                continue
            start = context.index(text) if moved else NO_OFFSET
        answers.append(Answer(text, start))
    if impossible and answers:
        raise InputError(f"{path}: {where}: is_impossible is true but it has answers, expected none")
    if question.get("answers") == []:
        impossible = True  # the official scorer goes by the answers alone
    return SpanExample(example_id, title, context, _text(path, question, "question", where), tuple(answers), impossible)


def _list(path: Path, value: Any, key: str, where: str) -> list[Any]:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise InputError(f"{path}: {where}: {key!r} is {_kind(value, key)}, expected a list")
    return found


def _text(path: Path, value: Any, key: str, where: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise InputError(f"{path}: {where}: {key!r} is {_kind(value, key)}, expected a text")
    return found


def _kind(value: Any, key: str) -> str:
    if not isinstance(value, dict) or key not in value:
        return "missing"
    return f"a {type(value[key]).__name__}"
