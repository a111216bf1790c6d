"""`bert task init`: the description of a task, written from its training file."""

import math
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml

from bert_pipeline.atomic import replace_text
from bert_pipeline.compression import without_compression
from bert_pipeline.configuration import changed_settings, from_mapping
from bert_pipeline.errors import UsageError, suggest
from bert_pipeline.records import Source, encoding_of, open_records, open_source
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.files import missing_task_data
from bert_pipeline.tasks.glue import APPLIES
from bert_pipeline.tasks.ner import TABLE_LAYOUTS, TAG, is_column_file
from bert_pipeline.tasks.squad import lacks_answers
from bert_pipeline.tasks.swag import PLAIN_COLUMNS, SWAG_COLUMNS
from bert_pipeline.tasks.tables import has_columns
from bert_pipeline.tasks.task import TaskData, load_task_data, read_examples

ID_NAMES = ("", "id", "idx", "index", "guid", "uid")
LABEL_NAMES = ("label", "labels", "class", "category", "target", "sentiment", "score", "similarity")
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?")
MAX_CLASSES = 50  # a column of more different values is not taken for one of classes


def describe_task(
    file: Path, output: Path | None = None, texts: Sequence[str] = (), labels: Sequence[str] = (), kind: str = ""
) -> tuple[Path, list[str]]:
    """Write the description of the task of a training file; return its path, and what was counted and assumed.

    Nothing is written if there is one already or the columns leave a choice (UsageError), or a row cannot be read.
    """
    stem = Path(without_compression(file.name)).stem
    output = output or file.with_name(f"{file.absolute().parent.name if stem == 'train' else stem}.yaml")
    if output.exists():
        raise UsageError(f"{output}: exists already; move it away, or give another --output")
    notes: list[str] = []
    keys = _describe(file, texts, labels, kind, notes)
    name = re.sub(r"[^a-z0-9]+", "_", output.stem.lower()).strip("_")
    name = (name if name[:1].isalpha() else f"task_{name}")[:40].strip("_")
    keys |= {"name": name, "title": name, "main_metric": keys["metrics"][0], "train_file": file.name}
    task = from_mapping(Task, keys, where=str(output))
    command = ["bert", "finetune", str(output), "--data", str(file.parent), "--model", "MODEL", "--output", "DIR"]
    if missing_task_data(task, file.parent):
        data = TaskData(task=task, train=read_examples(task, file), dev={}, places={"train": str(file)})
        command += ["--dev-fraction", "0.2"]
    else:
        data = load_task_data(task, file.parent)  # as a fine-tuning, which then has nothing to complain of
    lines = [*data.summaries(), *data.notes(), *notes, f"next: {shlex.join(command)}"]
    text = yaml.safe_dump(
        changed_settings(task), sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )
    replace_text(output, "".join(f"# {line}\n" for line in lines) + text)
    return output, lines


def _describe(file: Path, texts: Sequence[str], labels: Sequence[str], kind: str, notes: list[str]) -> dict[str, Any]:
    """Return what a file tells of its task, and add to `notes` what is assumed; UsageError names what decides."""
    if (encoding := encoding_of(file)) != "utf-8":
        notes.append(f"read as {encoding}, since it is not UTF-8: look at its accents")
    stem = Path(without_compression(file.name)).stem
    dev = file.with_name(file.name.replace("train" if "train" in stem else stem, "dev", 1))
    keys: dict[str, Any] = {"encoding": encoding, "dev_files": {"dev": dev.name}}
    with open_source(file, encoding=encoding) as source:
        if source.format == "tsv" and is_column_file(source):
            tags = {record.line.split()[-1] for record in source.lines() if not record.is_blank}
            return keys | _tagging(_entity_types(tags))
        source = source.with_separator()
        if (has_impossible := lacks_answers(source)) is not None:
            span = {"kind": "span", "reader": "squad", "pair": True, "has_impossible": has_impossible}
            return keys | span | {"metrics": ["f1", "exact_match"]}
        found = open_records(source.peek()).columns
        if any(has_columns(found, own.texts) for own in (SWAG_COLUMNS, PLAIN_COLUMNS)):
            return keys | {"kind": "choice", "reader": "swag", "pair": True, "metrics": ["accuracy"]}
        if names := _names_without_header(source):
            notes.append("the first line is taken for a row: it has a number, or a value that occurs again")
        records = open_records(source, names=names, csv_names=names, is_header=lambda cells: not names)
        rows = [record.fields for record in records.rows if not record.error and not record.is_blank]
    columns = {name: [v for row in rows if (v := row.get(name)) not in (None, "")] for name in records.columns}
    for layout in TABLE_LAYOUTS if not labels else ():
        items, known = columns.get(layout.label, ()), records.class_names.get(layout.label, ())
        items = [known[v] if known and isinstance(v, int) else v for own in items if isinstance(own, list) for v in own]
        others = any(isinstance(item, str) and not TAG.fullmatch(item) for item in items)  # several classes of a text
        if layout.text_a in columns and not others and (types := _entity_types(items)):
            return keys | _tagging(types)

    # Values tell what a column holds, names where several would do.
    if unknown := [name for name in (*texts, *labels) if name not in columns]:
        raise UsageError(f"{file}: no column {unknown[0]!r}{suggest(unknown[0], columns)}")
    ids = [name for name in columns if name.lower() in ID_NAMES and name not in (*texts, *labels)]
    roles = {name: _role(values) for name, values in columns.items() if name not in (*texts, *ids)}
    question = f"{file}: which column holds the %s? Found {', '.join(columns)}; name it with %s"
    if not labels:
        named = [name for name in roles if name.lower() in LABEL_NAMES]
        labels = named if len(named) == 1 else [name for name, role in roles.items() if role in ("classes", "amounts")]
        flags = [name for name in roles if {str(v).lower() for v in columns[name] or [None]} <= APPLIES.keys()]
        if len(labels) > 1 and {*labels} <= {*flags}:
            labels = flags  # also one that is 0 throughout
        elif len(labels) != 1:
            raise UsageError(question % ("label", "--label, several of 0 and 1 with one each"))
    if not texts:
        texts = [name for name, role in roles.items() if role == "texts" and name not in labels]
        # sentence1 and sentence2 are a pair.
        if len(texts) != 1 and (len(texts) != 2 or names or texts[0][:-1] != texts[1][:-1]):
            raise UsageError(question % ("text", "--text, those of a pair with one each"))
    notes += [f"not used: {name}" for name in columns if name not in (*texts, *labels, *ids[:1])]
    used = {**dict(zip(("text_a", "text_b"), texts)), "label": labels[0], "index": [*ids, "index"][0]}
    keys |= {"columns": {**used, "headerless": names}, "pair": len(texts) > 1, "separator": source.separator}

    # Classes have the file's own names, or else are spelled in it.
    values, classes = columns[labels[0]], [*records.class_names.get(labels[0], ())]
    if dev.is_file():  # its numbers may be beyond those of the training set, and its classes rarer
        with open_source(dev, separator=source.separator, encoding=encoding) as other:
            records = open_records(other, names=names, csv_names=names, is_header=lambda cells: not names)
            values = values + [v for row in records.rows if (v := row.fields.get(labels[0])) not in (None, "")]
    if len(labels) > 1 or isinstance([*values, None][0], list):
        classes = [*labels] if len(labels) > 1 else classes or sorted({str(v) for own in values for v in own})
        return keys | {"kind": "multilabel", "labels": classes, "metrics": ["micro_f1", "macro_f1", "accuracy"]}
    numbers = [] if classes else [float(value) for value in values if NUMBER.fullmatch(str(value))]
    if kind == "regression" or (numbers and not kind and _role(values) == "amounts"):
        limits = [float(math.floor(min(numbers, default=0))), float(math.ceil(max(numbers, default=0)))]
        return keys | {"kind": "regression", "label_range": limits, "metrics": ["pearson", "spearman"]}
    spelled = {str(int(v) if isinstance(v, float) and v.is_integer() else v).strip() for v in values}
    classes = classes or sorted(spelled, key=lambda own: (len(own) if numbers else 0, own))
    if numbers and len(classes) > 2 and not kind:
        notes.append(f"the numbers in {labels[0]} are taken for classes; --kind regression takes them for amounts")
    return keys | {"kind": "classification", "labels": classes, "metrics": ["accuracy", "macro_f1"]}


def _tagging(types: Sequence[str]) -> dict[str, Any]:
    labels = ["O", *(f"{prefix}-{entity}" for entity in types for prefix in "BI")]
    return {"kind": "tagging", "reader": "conll", "labels": labels, "metrics": ["f1", "precision", "recall"]}


def _entity_types(items: Collection[Any]) -> list[str]:
    """Return the types of entities that tags name, or spans of characters; [] if the items are neither."""
    types = {item[2:] for item in items if isinstance(item, str) and TAG.fullmatch(item)}
    types |= {str(item.get("label", item.get("type", ""))) for item in items if isinstance(item, dict)}
    types |= {str(item[2]) for item in items if isinstance(item, list) and len(item) == 3}
    return sorted(types - {""})


def _names_without_header(source: Source) -> list[str]:
    """Return names for columns that have none: the first line has a number, or a cell that occurs again below it."""
    records = open_records(source.peek())
    rows = [record.fields for record in records.rows] if records.format in ("csv", "tsv") else []
    is_row = any(name and (r.get(name) == name or NUMBER.fullmatch(name)) for name in records.columns for r in rows)
    return [f"column{number}" for number, _ in enumerate(records.columns, start=1)] if is_row else []


def _role(values: Sequence[Any]) -> str:
    """Return whether values seem to be "classes", "amounts", or "texts" of words or in scripts without spaces."""
    distinct = len({*map(str, values)})
    if distinct > 1 and all(NUMBER.fullmatch(str(value)) for value in values):
        return "classes" if distinct <= MAX_CLASSES and all(float(own).is_integer() for own in values) else "amounts"
    if 1 < distinct <= min(MAX_CLASSES, len(values) / 2):
        return "classes"
    is_text = [isinstance(own, str) and (" " in own.strip() or not own.isascii()) for own in values]
    return "texts" if 2 * sum(is_text) > len(values) else ""
