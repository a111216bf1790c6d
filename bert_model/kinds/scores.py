"""Files of predictions: read, and scored by the task's official metric."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bert_model.kinds import kind_of
from bert_model.kinds.tagging import score_columns
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.hashes import content_sha256, file_sha256
from bert_pipeline.records import Row, Source, open_records, open_source
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.glue import number_of
from bert_pipeline.tasks.task import file_hashes, read_examples


def score_files(
    task: str | Task,
    data_file: Path | str,
    predictions_file: Path | str,
    na_prob_file: Path | str | None = None,
    na_threshold: float = 1.0,
) -> dict[str, Any]:
    """Score a file of predictions against a labeled data file by the task's official metric.

    Predictions: rows of `id`, or `index`, and `prediction` in any format, as `bert predict` writes them; the official
    JSON object for SQuAD, with `na_prob_file` and `na_threshold` as the official script's --na-prob-file and
    --na-prob-thresh; for NER conlleval's columns (word, gold tag, predicted tag), or word and predicted tag, where
    -DOCSTART- counts as a word, as in conlleval. Returns the metrics, `examples` (the number scored), `unknown`
    (predictions for other examples), both files' hashes, for SQuAD 1.1 `unanswered`, and `defects` of the data file.
    InputError names file and line, what was found and what was expected.
    """
    kind = kind_of(task)
    task = kind.task
    data_file, predictions_file = Path(data_file), Path(predictions_file)
    defects: dict[str, int] = {}
    examples = read_examples(task, data_file, counts=defects)

    # An option that would be ignored is refused.
    null_odds: dict[str, Any] = {}
    if na_prob_file is None and na_threshold != 1.0:
        raise UsageError("--na-prob-thresh is a limit for null odds: give --na-prob too, or leave it out")
    if na_prob_file is not None:
        if not task.has_impossible:
            raise UsageError(f"{task.name}: null odds were given, but its questions all have answers; leave them out")
        odds = _read_values(Path(na_prob_file), "null_odds", number_of, may_be_object=True)
        null_odds = {"na_probs": odds, "na_threshold": na_threshold}

    # conlleval's columns have no ids: their words tell which example a line belongs to.
    scores: dict[str, Any]
    unknown = 0
    with open_source(predictions_file) as source:
        is_columns = kind.scores_columns and source.format == "tsv"
        predictions = None if is_columns else read_predictions(task, source)
        scores = score_columns(task, examples, source) if is_columns else {}
    if predictions is not None:
        # Predictions for other examples are counted and ignored, unless none of them fits: then it is the wrong file.
        ids = {example.example_id for example in examples}
        unknown = len(predictions.keys() - ids)
        if unknown == len(predictions):
            raise InputError(
                f"{predictions_file}: none of its ids is in {data_file}; expected predictions for that file"
            )
        try:
            scores = kind.score(examples, predictions, **null_odds)
        except InputError as error:
            raise InputError(f"{predictions_file}: {error}") from error

        # SQuAD 1.1 scores a missing answer 0, which a reader of the score should know.
        if kind.scores_missing:
            scores["unanswered"] = len(ids - predictions.keys())
    return {
        "task": task.name,
        **scores,
        "examples": len(examples),
        "unknown": unknown,
        **({"defects": defects} if defects else {}),
        "data_sha256": content_sha256(file_hashes([(data_file,)])) if data_file.is_dir() else file_sha256(data_file),
        "predictions_sha256": file_sha256(predictions_file),
    }


def read_predictions(task: Task, path: Path | Source) -> dict[str, Any]:
    """Read predictions from JSON lines or a table of id and prediction, or from SQuAD's JSON object."""
    kind = kind_of(task)
    return _read_values(path, "prediction", kind.checked, may_be_object=kind.predicts_object)


def _read_values(
    path: Path | Source, name: str, check: Callable[[str, Any], Any], *, may_be_object: bool
) -> dict[str, Any]:
    """Read a value for each id from the rows that `bert predict` writes, or from one JSON object of the values."""
    with open_source(path) as source:
        # A file of rows has a column of predictions.
        if may_be_object and (source.format == "json" or "prediction" not in open_records(source.peek()).columns):
            document = source.document()
            if not isinstance(document, dict):
                raise InputError(f"{source.name}: found a {type(document).__name__}, expected one JSON object of ids")
            return {key: check(f"{source.name}: question {key!r}", value) for key, value in document.items()}
        values: dict[str, Any] = {}
        for where, key, fields in _rows(source):
            if name not in fields:
                raise InputError(f"{where}: no {name}; give answers of a model for SQuAD 2.0")
            if key in values:
                raise InputError(f"{where}: the id {key!r} occurs twice, expected each once")
            values[key] = check(where, fields[name])
        return values


def _rows(source: Source) -> Iterator[tuple[str, str, Row]]:
    """Yield place, id and fields of the rows with a prediction. InputError for one that cannot be read."""
    records = open_records(source)
    expected = "expected prediction, and id or index"
    if records.columns and "prediction" not in records.columns:
        raise InputError(f"{records.where}: found {records.shown_columns}; {expected}")
    for record in records.rows:
        if record.error:
            raise InputError(record.error)
        if record.is_blank:
            continue
        fields = record.fields
        key = fields.get("id", fields.get("index"))
        if key is None or "prediction" not in fields:
            raise InputError(f"{record.where}: found {', '.join(fields)}; {expected}")
        if fields["prediction"] is not None:  # a blank line that `bert predict` was given
            yield record.where, str(key), fields
