"""Texts and pairs with a class or a number: GLUE's own files, the hub's, and tables of any other format."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.records import Source
from bert_pipeline.tasks.catalogue import TASK_FILES, TASKS, Columns, Task
from bert_pipeline.tasks.example import Reading, TextExample
from bert_pipeline.tasks.tables import TableRow, read_table

NO_CONSENSUS = "-"
"""The gold label of MNLI and SNLI pairs without agreement of the annotators."""
UNLABELED = (None, -1, "-1", "")
"""Labels of test sets whose labels are withheld: the hub's -1, and what tables have in its place."""
INTEGER = re.compile(r"[+-]?\d+")
APPLIES = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
"""What a column of a label may say, in any case."""
Label = str | float | tuple[str, ...] | None


def text_layouts(task: Task) -> list[Columns]:
    """Return the columns that a file of the task may have: its own, the hub's, and those of `bert predict`."""
    plain = Columns(text_a="text", text_b="text_b" if task.pair else "", label=task.columns.label, index="id")
    own = [task.columns, *([task.hub_columns] if task.hub_columns else [])]
    if task.kind == "multilabel":  # a column for each label, which has its name
        by_label = dataclasses.replace(task.columns, label="".join(f"{{{label}}}" for label in task.labels))
        own = [by_label, *own] if task.columns.label in task.labels else [*own, by_label]
    return [*own, plain]


def read_text_examples(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[TextExample]:
    """Yield the texts or pairs of a split's files, with classes or with numbers in the task's `label_range`.

    Several classes (multilabel) are a list, a list of a 0 or 1 for each label, separated by commas, or in a column of 0
    or 1 for each label. TSV fields are the text between tabs, quotes included. Up to `reading.incomplete_rows` TSV rows
    with too few columns are counted and left out. InputError names file and line or row of every other defect.
    """
    for path in paths:
        yield from read_table(path, text_layouts(task), reading, functools.partial(_text_example, task))


def _text_example(task: Task, row: TableRow) -> TextExample | None:
    """Make an example of a row; None if its annotators do not agree, which is a known defect and only counted."""
    layout, where, labeled = row.table.layout, row.where, row.table.reading.labeled
    value: Any = None
    if labeled is not False:
        by_label = "{" in layout.label
        value = _applying(task, row, required=bool(labeled)) if by_label else row.value(layout.label)
    if labeled and value is None and layout.label and layout.label.partition(".")[0] not in row.fields:
        columns = ", ".join(name[:40] for name in list(row.fields)[:14])
        raise InputError(f"{where}: no {layout.label!r}, which holds the label (found: {columns})")
    if value == NO_CONSENSUS and task.labels and NO_CONSENSUS not in task.labels:
        row.table.reading.count("rows without a gold label")
        return None
    if row.table.records.format == "csv" and isinstance(value, str) and value not in task.labels:
        digits = value.removesuffix(".0")  # which integers get where others of their column are missing
        value = int(digits) if INTEGER.fullmatch(digits) else value  # a typed table that was written as CSV
    text_a = row.text(layout.text_a)
    text_b = row.text(layout.text_b) if layout.text_b else None
    label = 1.0 if task.is_ranking else _label(task, value, row.table.class_names, where, required=bool(labeled))
    return TextExample(row.example_id(), text_a, text_b, label)


def _applying(task: Task, row: TableRow, *, required: bool) -> list[str] | None:
    """Return the labels whose columns say that they apply; None if all are empty or -1."""
    values = [row.value(label) for label in task.labels]
    if not required and all(value in UNLABELED for value in values):
        return None
    applying = []
    for label, value in zip(task.labels, values):
        if str(value).lower() not in APPLIES:
            raise InputError(f"{row.where}: {label} is {shown(value)}, expected 0 or 1")
        applying += [label] * APPLIES[str(value).lower()]
    return applying


def _label(task: Task, value: Any, names: Sequence[str], where: str, *, required: bool) -> Label:
    # Labels may be a list (typed tables) or separated by commas; their order becomes the task's.
    if task.kind == "multilabel":
        if value in (None, -1, "-1") and not required:
            return None
        values = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
        if not names and _is_one_hot(task, values, where):
            return tuple(label for label, applies in zip(task.labels, values) if applies)
        values = [item.strip() if isinstance(item, str) else item for item in values]
        applying = {class_label(task, item, names, where) for item in values if item != ""}
        return tuple(label for label in task.labels if label in applying)

    # Without a label: allowed unless required. A task may have a label "-1" of its own.
    if task.labels:
        is_withheld = value in UNLABELED and (value is None or str(value).removesuffix(".0") not in task.labels)
        return None if is_withheld and not required else class_label(task, value, names, where)

    # Regression: what is no number becomes NaN, which is in no range.
    low, high = task.label_range
    try:
        target = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        target = math.nan
    if low <= target <= high:
        return target
    if value in UNLABELED and not required:
        return None
    raise InputError(f"{where}: label {shown(value)}, expected a number from {low:g} to {high:g}")


def _is_one_hot(task: Task, values: Sequence[Any], where: str) -> bool:
    """Return whether a list has a 0 or 1 for each label; InputError if these may be the numbers of classes as well."""
    if len(values) != len(task.labels) or not all(isinstance(v, bool | int | float) and v in (0, 1) for v in values):
        return False
    # Positions are whole numbers, each at most once. So [0, 1] and [1, 0] for two labels may be either.
    if len(set(values)) == len(values) and all(type(value) is int for value in values):
        raise InputError(
            f"{where}: label {values} is a 0 or 1 for each of {', '.join(task.labels)}, or a list of their numbers, "
            "expected one of the two; write the names of the labels"
        )
    return True


def class_label(task: Task, value: Any, names: Sequence[str], where: str) -> str:
    """Return the task's label of a value: the label itself, its name on the hub, or the integer of a class.

    An integer is looked up in `names`, the class names that the file itself carries. Without them it is the label of
    that text ("1"), or, if no label is a number, the position in `task.hub_labels`, for the catalogue's tasks else that
    in `labels`; so it is with names that the task does not know, unless the task has `hub_names`. InputError names the
    value and the labels.
    """
    named = {**dict(zip(task.hub_names, task.labels)), **{label: label for label in task.labels}}
    value = value.strip() if isinstance(value, str) and value not in named else value
    if isinstance(value, str) and value in named:
        return named[value]
    if isinstance(value, str) and value.isdecimal() and task.hub_labels:
        value = int(value)

    # Booleans and class names are compared without case: True for "true", "Entailment" for "entailment".
    spelled = {name.casefold(): label for name, label in named.items()}
    if isinstance(value, bool):
        # Never a position: for the labels yes and no, True would become "no".
        spelling = next((pair for pair in (("false", "true"), ("0", "1")) if spelled.keys() >= set(pair)), None)
        if spelling is None:
            raise InputError(f"{where}: label {value}, expected one of {', '.join(task.labels)}; write its name")
        return spelled[spelling[value]]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        # The file's own class names come first: other files number the same classes differently.
        if 0 <= value < len(names) and names[value].casefold() in spelled:
            return spelled[names[value].casefold()]
        is_known = not (names and task.hub_names)
        if is_known and str(value) in task.labels:
            return str(value)
        # Where labels are numbers, a position would merge classes: of 0 to 4 for the labels 1 to 5, 0 and 1.
        order = task.hub_labels or (task.labels if task.name in {*TASKS, *TASK_FILES} else ())
        if not names and 0 <= value < len(order) and not any(map(INTEGER.fullmatch, task.labels)):
            return order[value]
    also = f" (the file's own classes: {', '.join(names)})" if names else ""
    if str(value).isdecimal() and not names and not task.hub_labels:
        also = "; if it is the number of a class, give hub_labels, the labels in the order of their numbers from 0"
    raise InputError(f"{where}: label {shown(value)}, expected one of {', '.join(task.labels)}{also}")


def number_of(where: str, value: Any) -> float:
    """Return a prediction that is a finite number, or the text of one; InputError for any other."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not abs(number) < float("inf"):
        raise InputError(f"{where}: prediction {value!r}, expected a number")
    return number


def shown(value: Any) -> str:
    """Return a label as error messages have it."""
    return repr(value[:60] if isinstance(value, str) else value)
