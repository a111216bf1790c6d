"""Task descriptions: their schema, and the twenty tasks that the package describes in YAML."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PositiveFloat

from bert_pipeline.configuration import configuration, from_mapping, read_yaml
from bert_pipeline.errors import ConfigurationError, UsageError, suggest
from bert_pipeline.tasks.example import Kind

Reader = Literal["tsv", "squad", "swag", "conll"]

NAME_PATTERN = re.compile(r"(?=.{1,40}\Z)[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""Name of a task or split. That of a task is part of a registered name, in which underscores are single and inside."""
OTHER_PREFIXES = ("E", "S", "U", "L", "M")
"""What tags of schemes other than IOB1 and IOB2 begin with: the end, the middle or the only word of an entity."""


@dataclasses.dataclass(frozen=True)
class KindRules:
    """What a kind of task asks of the files, the metrics and the labels of its tasks."""

    reader: Reader
    """The format of the files."""
    metrics: tuple[str, ...]
    """What its tasks may be scored by."""
    has_labels: bool = False
    """Whether the head has an output for every label of the task."""
    reported: tuple[str, ...] = ()
    """Further metrics, by which no model is chosen."""
    ranking_metrics: tuple[str, ...] = ()
    """The same for pairs without a label; empty if every example needs one."""


KINDS = {
    "classification": KindRules(
        "tsv", ("accuracy", "f1", "matthews", "macro_f1", "exact_match"), has_labels=True, reported=("auc",)
    ),
    "multilabel": KindRules("tsv", ("micro_f1", "macro_f1", "accuracy"), has_labels=True, reported=("auc",)),
    "regression": KindRules("tsv", ("pearson", "spearman"), reported=("rmse", "mae")),
    "span": KindRules("squad", ("exact_match", "f1")),
    "choice": KindRules("swag", ("accuracy",)),
    "tagging": KindRules("conll", ("precision", "recall", "f1", "accuracy"), has_labels=True),
    "embedding": KindRules("tsv", ("spearman", "pearson"), ranking_metrics=("accuracy",)),
}
"""The kinds of tasks. The f1 of classification is that of the second of two labels, the positive class."""


def _as_texts(labels: Any) -> Any:
    """Turn YAML's integers into texts; ConfigurationError for its booleans, whose spelling is lost."""
    if not isinstance(labels, (list, tuple)):
        return labels
    if any(isinstance(label, bool) for label in labels):
        raise ConfigurationError(f"found {labels}, expected texts; quote true, false, yes, no, on and off")
    return tuple(str(label) if isinstance(label, int) else label for label in labels)


Labels = Annotated[tuple[str, ...], BeforeValidator(_as_texts)]


@configuration
class Columns:
    """Which column of a table holds what.

    A text or an index may also be a template of columns, "{word}: {sentence1}"; a dot leads into a nested field.
    """

    text_a: str = "sentence1"
    """The text, or the first of a pair."""
    text_b: str = ""
    """The second text; empty for tasks on single texts."""
    label: str = "label"
    """The class or the number; empty for pairs that merely belong together (embedding only)."""
    index: str = "index"
    """The number of the example; rows are counted from 0 where a file has none of the usual names of such columns."""
    headerless: tuple[str, ...] = ()
    """The names of the columns of files that come without a header (CoLA), for tagging from the first one."""
    endings: tuple[str, ...] = ()
    """The endings of a multiple-choice file, in the order that labels count from 0, or one column with a list of them;
    none: SWAG's own columns."""
    items: str = ""
    """Path of nested lists whose innermost items are the examples: passage.questions.answers (MultiRC)."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns of all texts."""
        return tuple(filter(None, (self.text_a, self.text_b, *self.endings)))


@configuration
class Task:
    """One task: its files, how they are read, what the model does with them, and how it is scored."""

    name: str
    """As on the command line: sst2."""
    title: str
    """As in the literature: SST-2."""
    description: str = ""
    """One sentence: what is asked."""
    kind: Kind
    """Decides the model's head and the form of its input."""
    reader: Reader = "tsv"
    """The format of the files."""
    labels: Labels = ()
    """Classes in the order of the model's outputs; tags for tagging; empty for regression and spans."""
    class_weights: dict[str, PositiveFloat] = dataclasses.field(default_factory=dict, hash=False)
    """Label -> weight of its examples in the training loss, 1 where not given; multilabel: of its positive examples."""
    metrics: tuple[str, ...]
    """What is reported, the main one among them."""
    main_metric: str
    """What models are chosen by."""
    pair: bool = False
    """Whether the input has two texts."""
    columns: Columns = Columns()
    """Which column holds what in the task's own files."""
    hub_columns: Columns | None = None
    """Which column holds what in the task's data set on the Hugging Face hub, if the names differ."""
    hub_labels: Labels = ()
    """The classes in the order of the integers of files without class names. Without it, integers are no positions, but
    for the catalogue's tasks, where they have the order of `labels`."""
    hub_names: Labels = ()
    """The names that the task's data set on the hub gives the classes, in the order of `labels`, if they differ."""
    label_range: tuple[float, float] = (0.0, 0.0)
    """The least and the greatest number a regression target may be."""
    incomplete_rows: int = 0
    """How many rows with too few columns the official file is known to have: so many are counted, not refused."""
    has_impossible: bool = False
    """Whether questions may have no answer."""
    feature_based: bool = False
    """Whether the model stays frozen and a BiLSTM reads its activations (tagging only; paper, 5.3)."""
    folder: str = "."
    """The task's folder below the root of its suite: SST-2."""
    suite: str = ""
    """The suite's own folder: glue. A root that holds it is accepted as well."""
    train_file: str = "train.tsv"
    """The training file."""
    dev_files: dict[str, str] = dataclasses.field(default_factory=lambda: {"dev": "dev.tsv"}, hash=False)
    """Split name -> file, the split that models are chosen on first."""
    test_files: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """Split name -> file, labeled or not."""
    separator: str = ""
    """What separates the fields of its CSV files, such as ";"; by default a comma, or a tab without quotes in TSV. In
    columns of words and tags a tab alone, where words have spaces."""
    scheme: Literal["iob2", "bioes"] = "iob2"
    """The scheme of the tags in predictions; files of data may have any."""
    encoding: str = "utf-8"
    """How the text of its files is encoded, such as cp1252 or utf-16."""
    submission_files: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """Test split -> the file of the benchmark's submission that it fills."""
    submission_default: str = ""
    """What a submission says for a task without predictions."""
    paper: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    """Published figures of BERT: "<model>/<split>/<metric>" -> value on the scale of 0 to 100."""
    paper_source: str = ""
    """Source of the published figures."""

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ConfigurationError(problem)

    def _problems(self) -> Iterator[str]:
        """Yield what would fail later, be ignored, or make a metric another than it seems."""
        # Names become parts of metric keys, file names and MLflow tags.
        if not NAME_PATTERN.fullmatch(self.name):
            yield (
                f"name: found {self.name!r}, expected small letters and digits, with single underscores between them, "
                "at most 40 characters"
            )

        # Metrics of the kind only: any other would fail after the training, in scoring.
        rules, is_tagging = KINDS[self.kind], self.kind == "tagging"
        if self.is_ranking and not rules.ranking_metrics:
            yield f"columns.label: found none for {self.kind}, expected none with embedding only"
        metrics = rules.ranking_metrics if self.is_ranking else (*rules.metrics, *rules.reported)
        for key, metric in (*(("metrics", name) for name in self.metrics), ("main_metric", self.main_metric)):
            if metric not in metrics:
                what = f"{self.kind} without columns.label" if self.is_ranking else self.kind
                yield f"{key}: {metric!r} is no metric of {what}{suggest(metric, metrics)}"
        if self.main_metric in rules.reported:
            others = ", ".join(rules.metrics)
            yield f"main_metric: {self.main_metric!r} is only reported, expected one of {others}; name it in metrics"
        if self.main_metric not in self.metrics:
            yield f"main_metric: {self.main_metric!r} is not one of metrics {self.metrics}"
        if self.kind == "classification" and "f1" in self.metrics and len(self.labels) > 2:
            others = ", ".join(metric for metric in rules.metrics if metric != "f1")
            yield (
                f"metrics: found 'f1', the F1 of the last label, with {len(self.labels)} labels, expected "
                f"it with two labels only; use macro_f1, the mean over all labels, or another of {others}"
            )
        entities = {"precision", "recall", "f1"}.intersection(self.metrics)
        if is_tagging and entities and not any(label[:2] in ("B", "I", "B-", "I-") for label in self.labels):
            yield (
                f"metrics: found {min(entities)!r}, which counts entities, but no label begins with B- or I-; "
                "expected accuracy alone"
            )

        # Labels are the head's outputs, so every key of another field must be one of them.
        if rules.has_labels and len(set(self.labels)) < max(2, len(self.labels)):
            yield f"labels: found {self.labels}, expected two or more different labels"
        for label in self.class_weights:
            if not rules.has_labels or label not in self.labels:
                yield f"class_weights: {label!r} is none of the labels{suggest(label, self.labels)}"
        if self.hub_names and len(set(self.hub_names)) != len(self.labels):
            yield f"hub_names: found {self.hub_names}, expected a name for each of {self.labels}"
        if self.hub_labels and set(self.hub_labels) != set(self.labels):
            yield f"hub_labels: found {self.hub_labels}, expected the labels in their files' order"
        for label in self.labels if is_tagging else ():
            prefix, _, entity = label.partition("-")
            of_type = {f"B-{entity}", f"I-{entity}"}.intersection(self.labels)
            if prefix in OTHER_PREFIXES and of_type:
                yield (
                    f"labels: found {label!r} beside {min(of_type)!r}, expected the prefixes B- and I- only; "
                    "files may have the others, and predictions with `scheme: bioes`"
                )
        has_numbers = self.kind == "regression" or (self.kind == "embedding" and not self.is_ranking)
        if has_numbers and not self.label_range[0] < self.label_range[1]:
            yield f"label_range: found {list(self.label_range)}, expected the least and the greatest target, [0, 5] say"
        if has_numbers and self.labels:
            yield f"labels: found {self.labels} for {self.kind}, expected none"

        # A field that the reader of this kind would ignore is refused.
        if len(self.separator) > 1:
            yield f"separator: found {self.separator!r}, expected one character"
        try:
            "".encode(self.encoding)
        except (LookupError, UnicodeError):
            yield f"encoding: {self.encoding!r} is none that Python knows, such as cp1252"
        if self.reader != rules.reader:
            yield f"reader: found {self.reader!r}, expected {rules.reader!r} for {self.kind}"
        if self.kind == "embedding" and not self.pair:
            yield "pair: found false for embedding, expected true"
        if self.reader == "tsv" and self.pair != bool(self.columns.text_b):
            stated, why = ("true without", "the second text's column there") if self.pair else ("false with", "true")
            yield f"pair: found {stated} columns.text_b, expected {why}"
        if self.columns.endings and self.kind != "choice":
            yield f"columns.endings: found some for {self.kind}, expected them with choice only"
        if len(set(self.columns.endings)) < len(self.columns.endings):
            yield f"columns.endings: found {self.columns.endings}, expected different columns"
        for key in ("text_a", "label") if is_tagging and self.columns.headerless else ():
            if (column := getattr(self.columns, key)) not in self.columns.headerless:
                yield f"columns.{key}: found {column!r}, expected one of columns.headerless"
        if self.feature_based and not is_tagging:
            yield f"feature_based: found true for {self.kind}, expected it with tagging only"
        if not self.dev_files:
            yield "dev_files: found none, expected at least one split that models are chosen on"
        splits = [*self.dev_files, *self.test_files]  # they become names of files
        for split in splits:
            if not NAME_PATTERN.fullmatch(split) or split == "train" or splits.count(split) > 1:
                yield (
                    f"dev_files, test_files: found the split {split!r}, expected different names of small letters "
                    'and digits, with single underscores between them, none of them "train"'
                )

    @property
    def is_ranking(self) -> bool:
        """Whether its pairs have no label: the two texts belong together, and are found by each other."""
        return not self.columns.label

    @property
    def weights_of_labels(self) -> tuple[float, ...]:
        """The class weights in the order of the labels."""
        return tuple(self.class_weights.get(label, 1.0) for label in self.labels)


_FOLDER = Path(__file__).parent
_GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
_PAPER_TASKS = (*_GLUE, "squad1", "squad2", "swag", "ner", "ner_features")

TASKS: dict[str, Task] = {
    name: from_mapping(Task, read_yaml(_FOLDER / "paper" / f"{name}.yaml"), where=name) for name in _PAPER_TASKS
}
"""The tasks of the paper, which the command line and the workflow know by name."""
TASK_FILES: dict[str, Path] = {path.stem: path for path in sorted((_FOLDER / "superglue").glob("*.yaml"))}
"""Further tasks that the package describes, known by name to the command line: SuperGLUE's."""


def get_task(name: str) -> Task:
    """Return a built-in task by name, or the task of a YAML file. UsageError names the nearest known task."""
    if name in TASKS:
        return TASKS[name]
    name = str(TASK_FILES.get(name, name))
    if name.endswith((".yaml", ".yml")):
        return from_mapping(Task, read_yaml(name), where=name)
    raise UsageError(f"unknown task {name!r}{suggest(name, [*TASKS, *TASK_FILES])}")
