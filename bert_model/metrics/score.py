"""Scores of predictions by a task's official metric, its trivial baseline, and prediction files."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_model.metrics import glue, ner, squad
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.manifest import content_sha256, file_sha256
from bert_pipeline.records import Row, Source, open_records, open_source
from bert_pipeline.tasks.catalogue import Task, get_task
from bert_pipeline.tasks.example import TaggedExample
from bert_pipeline.tasks.ner import COLUMN_SEPARATOR, DOCUMENT_MARK, to_iob2
from bert_pipeline.tasks.task import file_hashes, read_examples

METRICS: dict[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    "accuracy": glue.accuracy,
    "macro_f1": glue.macro_f1,
    "matthews": glue.matthews,
    "pearson": glue.pearson,
    "spearman": glue.spearman,
}
"""Metrics of a sequence of labels; "f1" needs the positive class as well."""

BASELINES = {
    "classification": "the class that scores best throughout (for accuracy, the majority)",
    "multilabel": "the most frequent labels, as many as score best throughout",
    "regression": "mean of the training set",
    "choice": "most frequent position",
    "tagging": "no entities; without the tag O, the most frequent tag",
    "span": "sentence that shares most words with the question",
    "span with unanswerable": "no answer",
}
"""Prediction of the trivial baseline for each kind of task."""


def score(
    task: str | Task,
    examples: Sequence[Any],
    predictions: Mapping[str, Any],
    na_probs: Mapping[str, float] | None = None,
    na_threshold: float = 1.0,
) -> dict[str, float]:
    """Return the task's metrics over exactly `examples`, on the scale of 0 to 100.

    `predictions` maps example ids to a label, a number, an answer text ("" = no answer), the index of an ending, or
    a sequence of tags; predictions for other ids are ignored. With `na_probs`, SQuAD 2.0 counts questions whose null
    odds are above `na_threshold` as unanswered, and reports its best thresholds. InputError if there are no examples,
    an example has no label, or a prediction is missing or of the wrong form; a missing answer to SQuAD 1.1 scores 0,
    as in the official script.
    """
    task = task if isinstance(task, Task) else get_task(task)
    if not examples:
        raise InputError(f"{task.name}: no examples, so there is nothing to score")
    if na_probs is not None and not task.has_impossible:
        raise UsageError(f"{task.name}: null odds were given, but its questions all have answers; leave them out")

    # The rules for a missing answer differ between the SQuAD scripts, so answers are not checked here.
    if task.kind == "span":
        if task.has_impossible:
            return squad.score_squad2(examples, predictions, na_probs, na_threshold)
        return squad.score_squad1(examples, predictions)

    # All other kinds are compared pair by pair, in the order of the examples.
    gold = [_gold(task, example) for example in examples]
    predicted = [_prediction(task, example, predictions, len(examples)) for example in examples]
    if task.kind == "tagging":
        scores = ner.score_tags(gold, predicted)
        return {metric: scores[metric] for metric in task.metrics}
    scores = {metric: _metric(task, metric, gold, predicted) for metric in task.metrics if metric != "exact_match"}
    if "exact_match" in task.metrics:
        scores["exact_match"] = glue.grouped_exact_match([e.example_id for e in examples], gold, predicted)
    return scores


def _gold(task: Task, example: Any) -> Any:
    gold = example.tags if task.kind == "tagging" else example.label
    if gold is None:
        raise InputError(f"{task.name}: example {example.example_id!r} has no label, so it cannot be scored")
    return gold


def _prediction(task: Task, example: Any, predictions: Mapping[str, Any], total: int) -> Any:
    key = example.example_id
    if key not in predictions:
        raise InputError(f"{task.name}: no prediction for example {key!r} (one of {total}); expected one for each")
    value = predictions[key]
    if task.kind == "tagging" and (isinstance(value, str) or len(value) != len(example.words)):
        raise InputError(
            f"{task.name}: example {key!r} has {len(value)} predicted tags, expected {len(example.words)}, one a word"
        )
    if task.kind == "choice" and not 0 <= value < len(example.endings):
        raise InputError(
            f"{task.name}: example {key!r} has the prediction {value}, expected the index of an ending, 0 to "
            f"{len(example.endings) - 1}"
        )
    return value


def _metric(task: Task, metric: str, gold: Sequence[Any], predicted: Sequence[Any]) -> float:
    if task.kind == "multilabel" and metric != "accuracy":
        return glue.multilabel_f1(gold, predicted, task.labels)[metric]
    if metric == "f1":
        return glue.f1(gold, predicted, positive=task.labels[-1])
    return METRICS[metric](gold, predicted)


def trivial_predictions(task: str | Task, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, Any]:
    """Return the prediction of the trivial baseline (`BASELINES`) for every example of `dev`."""
    task = task if isinstance(task, Task) else get_task(task)
    # These baselines need no training set.
    if task.kind == "span":
        return {
            example.example_id: ""
            if task.has_impossible
            else squad.overlapping_sentence(example.context, example.question)
            for example in dev
        }
    if task.kind == "tagging" and "O" in task.labels:
        return {example.example_id: ("O",) * len(example.words) for example in dev}
    if not train:
        raise InputError(f"{task.name}: no training examples, so no baseline can be learned")

    # The others predict the best constant of the training set.
    if task.kind == "tagging":
        frequent_tag = Counter(tag for example in train for tag in example.tags).most_common(1)[0][0]
        return {example.example_id: (frequent_tag,) * len(example.words) for example in dev}
    labels = [_gold(task, example) for example in train]
    if task.kind == "regression":
        constant: Any = statistics.fmean(labels)
    elif task.kind == "multilabel":
        frequent = [label for label, _ in Counter(label for found in labels for label in found).most_common()]
        sets = [tuple(x for x in task.labels if x in frequent[:size]) for size in range(len(frequent) + 1)]
        constant = max(sets, key=lambda found: _metric(task, task.main_metric, labels, [found] * len(labels)))
    else:
        counts = Counter(labels)
        metric = "accuracy" if task.main_metric == "exact_match" else task.main_metric
        # By accuracy the best constant is the majority class, by F1 the positive class, however rare.
        constant = max(
            sorted(counts),
            key=lambda label: (_metric(task, metric, labels, [label] * len(labels)), counts[label]),
        )
    return {example.example_id: constant for example in dev}


def trivial_baseline(task: str | Task, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, float]:
    """Return the metrics of `trivial_predictions` on `dev`."""
    return score(task, dev, trivial_predictions(task, train, dev))


def score_files(
    task: str | Task,
    data_file: Path | str,
    predictions_file: Path | str,
    na_prob_file: Path | str | None = None,
    na_threshold: float = 1.0,
) -> dict[str, Any]:
    """Score a file of predictions against a labeled data file by the task's official metric.

    Predictions: JSON lines of {"id", "prediction"} for every task, as `bert predict` writes them; a table with the
    columns `index`, or `id`, and `prediction` for GLUE and SWAG; the official JSON object of id and answer for SQuAD,
    with `na_prob_file` and `na_threshold` as the official script's --na-prob-file and --na-prob-thresh; for NER
    conlleval's columns (word, gold tag, predicted tag), or word and predicted tag. Returns the metrics, `examples` (the
    number scored), `unknown` (predictions for other examples), both files' hashes, for SQuAD 1.1 `unanswered`, and
    `defects` if the data file has any: questions without a usable answer, which are left out, and the like. In
    conlleval's columns -DOCSTART- lines count as words, as in conlleval itself. InputError names file and line, what
    was found and what was expected.
    """
    task = task if isinstance(task, Task) else get_task(task)
    data_file, predictions_file = Path(data_file), Path(predictions_file)
    defects: dict[str, int] = {}
    examples = read_examples(task, data_file, counts=defects)

    # An option that would be ignored is refused.
    na_probs = None
    if na_prob_file is None and na_threshold != 1.0:
        raise UsageError("--na-prob-thresh is a limit for null odds: give --na-prob too, or leave it out")
    if na_prob_file is not None:
        if not task.has_impossible:
            raise UsageError(f"{task.name}: null odds were given, but its questions all have answers; leave them out")
        na_probs = _read_null_odds(Path(na_prob_file))

    # conlleval's columns have no ids: their words tell which example a line belongs to.
    scores: dict[str, Any]
    unknown = 0
    with open_source(predictions_file) as source:
        is_columns = task.kind == "tagging" and source.format == "tsv"
        predictions = None if is_columns else read_predictions(task, source)
        scores = _score_columns(task, examples, source) if is_columns else {}
    if predictions is not None:
        # Predictions for other examples are counted and ignored, unless none of them fits: then it is the wrong file.
        known = {example.example_id for example in examples}
        unknown = len(predictions.keys() - known)
        if unknown == len(predictions):
            raise InputError(
                f"{predictions_file}: none of its ids is in {data_file}; expected predictions for that file"
            )
        try:
            scores = dict(score(task, examples, predictions, na_probs, na_threshold))
        except InputError as error:
            raise InputError(f"{predictions_file}: {error}") from error

        # SQuAD 1.1 scores a missing answer 0, which a reader of the score should know.
        if task.kind == "span" and not task.has_impossible:
            scores["unanswered"] = len(known - predictions.keys())
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
    with open_source(path) as source:
        if task.kind == "span" and not _is_rows(source):
            return _read_object(source, _text)
        result: dict[str, Any] = {}
        for where, key, fields in _rows(source):
            if key in result:
                raise InputError(f"{where}: the id {key!r} occurs twice, expected each once")
            result[key] = _checked(task, where, fields["prediction"])
        return result


def _checked(task: Task, where: str, value: Any) -> Any:
    """Return a prediction read from a file in the form that `score` takes."""
    if task.kind == "regression":
        return _number(where, value)
    if task.kind == "choice":
        return _ending(where, value)
    if task.kind == "tagging":
        return _tags(where, value)
    if task.kind == "multilabel":
        if unknown := [label for label in _tags(where, value, "labels") if label not in task.labels]:
            raise InputError(f"{where}: prediction {unknown[0]!r}, expected labels of {', '.join(task.labels)}")
        return tuple(label for label in task.labels if label in value)
    if task.kind == "classification" and _text(where, value) not in task.labels:
        raise InputError(f"{where}: prediction {value!r}, expected one of {', '.join(task.labels)}")
    return _text(where, value)


def _read_null_odds(path: Path) -> dict[str, float]:
    """Read null odds by question: the official script's JSON object, or the answers of `bert predict`."""
    with open_source(path) as source:
        if not _is_rows(source):
            return _read_object(source, _number)
        odds = {}
        for where, key, fields in _rows(source):
            if "null_odds" not in fields:
                raise InputError(f"{where}: no null_odds; give answers of a model for SQuAD 2.0")
            odds[key] = _number(where, fields["null_odds"])
        return odds


def _is_rows(source: Source) -> bool:
    """Return whether a file has a prediction a row, rather than one object of all."""
    return source.format != "json" and "prediction" in open_records(source.peek()).columns


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


def _read_object(source: Source, check: Callable[[str, Any], Any]) -> dict[str, Any]:
    document = source.document()
    if not isinstance(document, dict):
        found = type(document).__name__
        raise InputError(f"{source.name}: found a {found}, expected one JSON object of question ids")
    return {key: check(f"{source.name}: question {key!r}", value) for key, value in document.items()}


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: prediction {value!r}, expected a text")
    return value


def _number(where: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if isinstance(value, bool) or not abs(number) < float("inf"):
        raise InputError(f"{where}: prediction {value!r}, expected a number")
    return number


def _ending(where: str, value: Any) -> int:
    if not str(value).isdecimal():
        raise InputError(f"{where}: prediction {value!r}, expected the index of an ending, from 0")
    return int(value)


def _tags(where: str, value: Any, what: str = "tags") -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise InputError(f"{where}: prediction {value!r}, expected a list of {what}")
    return tuple(value)


def _score_columns(task: Task, examples: Sequence[TaggedExample], source: Source) -> dict[str, float]:
    """Score conlleval's columns: all lines of the file, whose words and gold tags must be those of `examples`."""
    # Collect the tags of each sentence while comparing the words with the data file's.
    gold: list[list[str]] = [[]]
    predicted: list[list[str]] = [[]]
    expected = ((word, tag) for example in examples for word, tag in zip(example.words, example.tags or ()))
    has_gold: bool | None = None
    for record in source.lines():
        where = record.where
        if record.error:
            raise InputError(record.error)
        fields = [field for field in COLUMN_SEPARATOR.split(record.line) if field]
        if not fields:
            gold.append([])
            predicted.append([])
            continue
        # The first line decides whether there are gold tags, and every line must have the same columns.
        if has_gold is None:
            has_gold = len(fields) > 2
        if len(fields) < 2 or has_gold != (len(fields) > 2):
            raise InputError(f"{where}: {len(fields)} columns, expected {'3' if has_gold else '2'}")
        # The examples leave out document marks; conlleval counts them as words outside of entities.
        if fields[0] == DOCUMENT_MARK:
            word, tag = fields[0], "O"
        else:
            word, tag = next(expected, ("the end of the file", ""))
        if fields[0] != word:
            raise InputError(f"{where}: word {fields[0]!r}, expected {word!r} as in the data file")
        gold[-1].append(fields[-2] if has_gold else tag)
        predicted[-1].append(fields[-1])

    # What the loop has not consumed has no prediction.
    num_missing = sum(1 for _ in expected)
    if num_missing:
        raise InputError(
            f"{source}: ends {num_missing} words before the data file does, expected a prediction for every word"
        )

    # A file without gold tags may be in another scheme than the data file.
    if has_gold:
        _require_same_gold(task, source.name, examples, gold)
    else:
        gold, predicted = ([to_iob2(tags, task.labels) for tags in found] for found in (gold, predicted))
    scores = ner.score_tags(gold, predicted)
    return {metric: scores[metric] for metric in task.metrics}


def _require_same_gold(task: Task, name: str, examples: Sequence[TaggedExample], gold: Sequence[Sequence[str]]) -> None:
    """Raise InputError if the gold tags are not those of the data file, whichever scheme either is in."""
    found = [tag for sentence in gold for tag in to_iob2(sentence, task.labels)]
    expected = [tag for example in examples for tag in example.tags or ()]
    if [tag for tag in found if tag != "O"] != [tag for tag in expected if tag != "O"]:
        raise InputError(f"{name}: its gold tags (the last column but one) are not those of the data file")
