"""Submission to the GLUE benchmark: a zip of eleven files with index and prediction."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_pipeline.atomic import atomic_write
from bert_pipeline.configuration import read_yaml
from bert_pipeline.errors import InputError, suggest
from bert_pipeline.tasks.catalogue import TASKS, Task
from bert_pipeline.tasks.glue import number_of

OFFICIAL_ROWS: dict[str, int] = read_yaml(Path(__file__).with_name("submission.yaml"))
"""The files of a submission and how many rows the benchmark's own test files have."""
WNLI_NOTE = (
    "WNLI.tsv holds the majority class, as in the paper: the dev set shares its sentences with the training set and "
    "has the labels turned round, so a model that learned anything scores below the majority"
)
FIXED_DATE = (1980, 1, 1, 0, 0, 0)


def submission_file(test_set: str) -> str:
    """Return the submission's file for a task's test split: "mnli/test_matched" -> "MNLI-m.tsv"."""
    files = {f"{name}/{key}": file for name, entry in TASKS.items() for key, file in entry.submission_files.items()}
    if test_set not in files:
        raise InputError(f"{test_set} is no part of a GLUE submission{suggest(test_set, files)}")
    return files[test_set]


def write_submission(output: Path | str, predictions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write the zip from `predictions` ("<task>/<split>" -> index -> label or number); return notes for the user.

    The benchmark takes only whole sets, so a file without predictions is filled with a constant for each of its
    official rows, and a note says so; so does a note where the number of rows is not the official one. WNLI is
    answered by its majority class. The same predictions give the same bytes.
    InputError for a label that the task does not have, or an index that is not a whole number or is missing.
    """
    output = Path(output)

    # By file of the submission, as one task (MNLI) fills several.
    by_file = {submission_file(key): values for key, values in predictions.items()}
    notes: list[str] = []
    contents: dict[str, str] = {}

    # Every official file is written: predictions, WNLI's majority class, or a constant.
    for task in TASKS.values():
        for file in task.submission_files.values():
            values = by_file.get(file)
            if task.name == "wnli":
                notes.append(WNLI_NOTE)
                values = dict.fromkeys(values or map(str, range(OFFICIAL_ROWS[file])), task.submission_default)
            elif values is None:
                notes.append(
                    f"{file}: no predictions, filled with {task.submission_default!r}; its score means nothing"
                )
                values = dict.fromkeys(map(str, range(OFFICIAL_ROWS[file])), task.submission_default)
            # Only a note: a set of another size, such as the sample's, still makes a zip.
            if len(values) != OFFICIAL_ROWS[file]:
                notes.append(
                    f"{file}: {len(values)} rows, the benchmark expects {OFFICIAL_ROWS[file]} and will refuse it"
                )
            contents[file] = _table(task, file, values)

    # A fixed date and order, so that the same predictions give the same bytes.
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(output) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as container:
        for file in OFFICIAL_ROWS:
            container.writestr(zipfile.ZipInfo(file, FIXED_DATE), contents[file], zipfile.ZIP_DEFLATED)
    return notes


def _table(task: Task, file: str, values: Mapping[str, Any]) -> str:
    rows: dict[int, str] = {}
    for index, value in values.items():
        if not index.isdecimal():
            raise InputError(f"{file}: index {index!r}, expected a whole number")
        rows[int(index)] = _prediction(task, file, index, value)
    missing = next((number for number in range(len(rows)) if number not in rows), None)
    if missing is not None:
        raise InputError(f"{file}: no prediction for index {missing}, expected 0 to {len(rows) - 1} without a gap")
    lines = [f"{index}\t{rows[index]}" for index in sorted(rows)]
    return "\n".join(["index\tprediction", *lines]) + "\n"


def _prediction(task: Task, file: str, index: str, value: Any) -> str:
    if not task.labels:
        # A regression may predict a little outside of the range.
        low, high = task.label_range
        return f"{min(max(number_of(f'{file}: index {index}', value), low), high):.3f}"
    if value not in task.labels:
        raise InputError(f"{file}: index {index}: prediction {value!r}, expected one of {', '.join(task.labels)}")
    return str(value)
