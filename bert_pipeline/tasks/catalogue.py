"""Task descriptions: the fourteen built-in tasks, and the schema of user-defined ones."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PositiveFloat

from bert_pipeline.configuration import configuration
from bert_pipeline.errors import ConfigurationError, suggest
from bert_pipeline.tasks.example import Kind

Reader = Literal["tsv", "squad", "swag", "conll"]

NAME_PATTERN = re.compile(r"(?=.{1,40}\Z)[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
"""Name of a task or split. That of a task is part of a registered name, in which underscores are single and inside."""
READERS = {
    "classification": "tsv",
    "multilabel": "tsv",
    "regression": "tsv",
    "span": "squad",
    "choice": "swag",
    "tagging": "conll",
}
"""File format of each kind of task."""
METRICS = {
    "classification": ("accuracy", "f1", "matthews", "macro_f1", "exact_match"),
    "multilabel": ("micro_f1", "macro_f1", "accuracy"),
    "regression": ("pearson", "spearman"),
    "span": ("exact_match", "f1"),
    "choice": ("accuracy",),
    "tagging": ("precision", "recall", "f1", "accuracy"),
}
"""Metrics of each kind of task. The f1 of classification is that of the second of two labels, the positive class."""
CLASS_KINDS = ("classification", "multilabel", "tagging")
"""Kinds whose head has an output for every label."""


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
    """The class or the number."""
    index: str = "index"
    """The number of the example; where a file has no such column, rows are counted from 0."""
    headerless: tuple[str, ...] = ()
    """The names of the columns of files that come without a header (CoLA)."""
    endings: tuple[str, ...] = ()
    """The endings of a multiple-choice file, in the order that labels count from 0; none: SWAG's own columns."""
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
    """The classes in the order of the integers of files without class names, if that is not the order of `labels`."""
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
    folder: str
    """The task's folder below the root of its suite: SST-2."""
    suite: str = ""
    """The suite's own folder: glue. A root that holds it is accepted as well."""
    train_file: str = "train.tsv"
    """The training file."""
    dev_files: dict[str, str] = dataclasses.field(default_factory=lambda: {"dev": "dev.tsv"}, hash=False)
    """Split name -> file, the split that models are chosen on first."""
    test_files: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """Split name -> file, labeled or not."""
    submission_files: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """Test split -> the file of the benchmark's submission that it fills."""
    submission_default: str = ""
    """What a submission says for a task without predictions."""
    paper: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    """Published figures of BERT: "<model>/<split>/<metric>" -> value on the scale of 0 to 100."""
    paper_source: str = ""
    """Source of the published figures."""

    def __post_init__(self) -> None:
        # Names become parts of metric keys, file names and MLflow tags.
        if not NAME_PATTERN.fullmatch(self.name):
            raise ConfigurationError(
                f"name: found {self.name!r}, expected small letters and digits, with single underscores between them, "
                "at most 40 characters"
            )

        # Metrics of the kind only: any other would fail after the training, in scoring.
        for key in ("metrics", "main_metric"):
            value = getattr(self, key)
            for metric in (value,) if key == "main_metric" else value:
                if metric not in METRICS[self.kind]:
                    raise ConfigurationError(
                        f"{key}: {metric!r} is no metric of {self.kind}{suggest(metric, METRICS[self.kind])}"
                    )
        if self.main_metric not in self.metrics:
            raise ConfigurationError(f"main_metric: {self.main_metric!r} is not one of metrics {self.metrics}")

        # Labels are the head's outputs, so every key of another field must be one of them.
        if self.kind in CLASS_KINDS and len(set(self.labels)) < max(2, len(self.labels)):
            raise ConfigurationError(f"labels: found {self.labels}, expected two or more different labels")
        for label in self.class_weights:
            if self.kind not in CLASS_KINDS or label not in self.labels:
                raise ConfigurationError(f"class_weights: {label!r} is none of the labels{suggest(label, self.labels)}")
        if self.hub_names and len(set(self.hub_names)) != len(self.labels):
            raise ConfigurationError(f"hub_names: found {self.hub_names}, expected a name for each of {self.labels}")
        if self.hub_labels and set(self.hub_labels) != set(self.labels):
            raise ConfigurationError(f"hub_labels: found {self.hub_labels}, expected the labels in another order")

        if self.kind == "regression" and not self.label_range[0] < self.label_range[1]:
            raise ConfigurationError(
                f"label_range: found {list(self.label_range)}, expected the least and the greatest target, [0, 5] say"
            )

        # A field that the reader of this kind would ignore is refused.
        if self.reader != READERS[self.kind]:
            raise ConfigurationError(f"reader: found {self.reader!r}, expected {READERS[self.kind]!r} for {self.kind}")
        if self.columns.endings and self.kind != "choice":
            raise ConfigurationError(f"columns.endings: found some for {self.kind}, expected them with choice only")
        if self.columns.endings and len(set(self.columns.endings)) < max(2, len(self.columns.endings)):
            raise ConfigurationError(
                f"columns.endings: found {self.columns.endings}, expected two or more different columns"
            )
        if self.feature_based and self.kind != "tagging":
            raise ConfigurationError(f"feature_based: found true for {self.kind}, expected it with tagging only")
        if not self.dev_files:
            raise ConfigurationError("dev_files: found none, expected at least one split that models are chosen on")
        splits = [*self.dev_files, *self.test_files]  # they become names of files
        for split in splits:
            if not NAME_PATTERN.fullmatch(split) or split == "train" or splits.count(split) > 1:
                raise ConfigurationError(
                    f"dev_files, test_files: found the split {split!r}, expected different names of small letters "
                    'and digits, with single underscores between them, none of them "train"'
                )

    @property
    def num_labels(self) -> int:
        """The number of the head's outputs."""
        return len(self.labels) if self.kind in CLASS_KINDS else 2 if self.kind == "span" else 1


PAPER = "Devlin et al. 2019, arXiv 1810.04805v2"
NER_LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC")
GLUE_PAPER = f"{PAPER}: test, Table 1; dev of base, Table 5, and of large, Table 6"

_TASKS = (
    Task(
        name="cola",
        title="CoLA",
        description="Is the sentence grammatical English?",
        kind="classification",
        labels=("0", "1"),
        hub_names=("unacceptable", "acceptable"),
        metrics=("matthews", "accuracy"),
        main_metric="matthews",
        columns=Columns(text_a="sentence", headerless=("source", "label", "star", "sentence")),
        suite="glue",
        folder="CoLA",
        test_files={"test": "test.tsv"},
        submission_files={"test": "CoLA.tsv"},
        submission_default="1",
        paper={"base/test/matthews": 52.1, "large/test/matthews": 60.5},
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="sst2",
        title="SST-2",
        description="Is the sentence of a film review positive?",
        kind="classification",
        labels=("0", "1"),
        hub_names=("negative", "positive"),
        metrics=("accuracy",),
        main_metric="accuracy",
        columns=Columns(text_a="sentence"),
        suite="glue",
        folder="SST-2",
        test_files={"test": "test.tsv"},
        submission_files={"test": "SST-2.tsv"},
        submission_default="1",
        paper={
            "base/test/accuracy": 93.5,
            "large/test/accuracy": 94.9,
            "base/dev/accuracy": 92.7,
            "large/dev/accuracy": 93.7,
        },
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="mrpc",
        title="MRPC",
        description="Do the two sentences from the news mean the same?",
        kind="classification",
        labels=("0", "1"),
        hub_names=("not_equivalent", "equivalent"),
        metrics=("f1", "accuracy"),
        main_metric="f1",
        pair=True,
        columns=Columns(text_a="#1 String", text_b="#2 String", label="Quality"),
        hub_columns=Columns(text_b="sentence2", index="idx"),
        suite="glue",
        folder="MRPC",
        test_files={"test": "test.tsv"},
        submission_files={"test": "MRPC.tsv"},
        submission_default="1",
        paper={"base/test/f1": 88.9, "large/test/f1": 89.3, "base/dev/accuracy": 86.7, "large/dev/accuracy": 87.8},
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="stsb",
        title="STS-B",
        description="How alike are the two sentences, from 0 to 5?",
        kind="regression",
        metrics=("spearman", "pearson"),
        main_metric="spearman",
        pair=True,
        columns=Columns(text_b="sentence2", label="score"),
        hub_columns=Columns(text_b="sentence2", index="idx"),
        label_range=(0.0, 5.0),
        suite="glue",
        folder="STS-B",
        test_files={"test": "test.tsv"},
        submission_files={"test": "STS-B.tsv"},
        submission_default="2.5",
        paper={"base/test/spearman": 85.8, "large/test/spearman": 86.5},
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="qqp",
        title="QQP",
        description="Do the two questions ask the same?",
        kind="classification",
        labels=("0", "1"),
        hub_names=("not_duplicate", "duplicate"),
        metrics=("f1", "accuracy"),
        main_metric="f1",
        pair=True,
        columns=Columns(text_a="question1", text_b="question2", label="is_duplicate", index="id"),
        hub_columns=Columns(text_a="question1", text_b="question2", index="idx"),
        incomplete_rows=50,
        suite="glue",
        folder="QQP",
        test_files={"test": "test.tsv"},
        submission_files={"test": "QQP.tsv"},
        submission_default="0",
        paper={"base/test/f1": 71.2, "large/test/f1": 72.1},
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="mnli",
        title="MNLI",
        description="Does the second sentence follow from the first, contradict it, or neither?",
        kind="classification",
        labels=("contradiction", "entailment", "neutral"),
        metrics=("accuracy",),
        main_metric="accuracy",
        pair=True,
        columns=Columns(text_b="sentence2", label="gold_label"),
        hub_columns=Columns(text_a="premise", text_b="hypothesis", index="idx"),
        hub_labels=("entailment", "neutral", "contradiction"),
        suite="glue",
        folder="MNLI",
        dev_files={"dev_matched": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv"},
        test_files={
            "test_matched": "test_matched.tsv",
            "test_mismatched": "test_mismatched.tsv",
            "ax": "diagnostic.tsv",
        },
        submission_files={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "ax": "AX.tsv"},
        submission_default="entailment",
        paper={
            "base/test_matched/accuracy": 84.6,
            "base/test_mismatched/accuracy": 83.4,
            "large/test_matched/accuracy": 86.7,
            "large/test_mismatched/accuracy": 85.9,
            "base/dev_matched/accuracy": 84.4,
            "large/dev_matched/accuracy": 86.6,
        },
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="qnli",
        title="QNLI",
        description="Does the sentence hold the answer to the question?",
        kind="classification",
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
        main_metric="accuracy",
        pair=True,
        columns=Columns(text_a="question", text_b="sentence"),
        suite="glue",
        folder="QNLI",
        test_files={"test": "test.tsv"},
        submission_files={"test": "QNLI.tsv"},
        submission_default="entailment",
        paper={"base/test/accuracy": 90.5, "large/test/accuracy": 92.7, "base/dev/accuracy": 88.4},
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="rte",
        title="RTE",
        description="Does the second text follow from the first?",
        kind="classification",
        labels=("entailment", "not_entailment"),
        metrics=("accuracy",),
        main_metric="accuracy",
        pair=True,
        columns=Columns(text_b="sentence2"),
        suite="glue",
        folder="RTE",
        test_files={"test": "test.tsv"},
        submission_files={"test": "RTE.tsv"},
        submission_default="entailment",
        paper={"base/test/accuracy": 66.4, "large/test/accuracy": 70.1},
        paper_source=GLUE_PAPER,
    ),
    Task(
        name="wnli",
        title="WNLI",
        description="Does the sentence with its pronoun resolved follow from the text?",
        kind="classification",
        labels=("0", "1"),
        hub_names=("not_entailment", "entailment"),
        metrics=("accuracy",),
        main_metric="accuracy",
        pair=True,
        columns=Columns(text_b="sentence2"),
        suite="glue",
        folder="WNLI",
        test_files={"test": "test.tsv"},
        submission_files={"test": "WNLI.tsv"},
        submission_default="0",
        paper_source=f"{PAPER}, Appendix B.1: left out, for the dev set misleads; the majority class was submitted",
    ),
    Task(
        name="squad1",
        title="SQuAD 1.1",
        description="Which span of the passage answers the question?",
        kind="span",
        reader="squad",
        metrics=("exact_match", "f1"),
        main_metric="f1",
        pair=True,
        folder="squad",
        train_file="train-v1.1.json",
        dev_files={"dev": "dev-v1.1.json"},
        paper={
            "base/dev/exact_match": 80.8,
            "base/dev/f1": 88.5,
            "large/dev/exact_match": 84.1,
            "large/dev/f1": 90.9,
            "large + TriviaQA/dev/exact_match": 84.2,
            "large + TriviaQA/dev/f1": 91.1,
            "large ensemble + TriviaQA/dev/exact_match": 86.2,
            "large ensemble + TriviaQA/dev/f1": 92.2,
        },
        paper_source=f"{PAPER}, Table 2",
    ),
    Task(
        name="squad2",
        title="SQuAD 2.0",
        description="Which span of the passage answers the question, if any?",
        kind="span",
        reader="squad",
        metrics=("exact_match", "f1"),
        main_metric="f1",
        pair=True,
        has_impossible=True,
        folder="squad",
        train_file="train-v2.0.json",
        dev_files={"dev": "dev-v2.0.json"},
        paper={"large/dev/exact_match": 78.7, "large/dev/f1": 81.9},
        paper_source=f"{PAPER}, Table 3",
    ),
    Task(
        name="swag",
        title="SWAG",
        description="Which of the four endings goes on with the sentence?",
        kind="choice",
        reader="swag",
        metrics=("accuracy",),
        main_metric="accuracy",
        pair=True,
        folder="swag",
        train_file="train.csv",
        dev_files={"dev": "val.csv"},
        test_files={"test": "test.csv"},
        paper={"base/dev/accuracy": 81.6, "large/dev/accuracy": 86.6},
        paper_source=f"{PAPER}, Table 4",
    ),
    Task(
        name="ner",
        title="CoNLL-2003 NER",
        description="Which words name a person, an organization, a place or something else?",
        kind="tagging",
        reader="conll",
        labels=NER_LABELS,
        metrics=("f1", "precision", "recall", "accuracy"),
        main_metric="f1",
        folder="conll2003",
        train_file="eng.train",
        dev_files={"dev": "eng.testa"},
        test_files={"test": "eng.testb"},
        paper={"base/dev/f1": 96.4, "base/test/f1": 92.4, "large/dev/f1": 96.6, "large/test/f1": 92.8},
        paper_source=f"{PAPER}, Table 7, fine-tuning",
    ),
    Task(
        name="ner_features",
        title="CoNLL-2003 NER, features",
        description="The same with the model frozen: its activations feed a two-layer BiLSTM.",
        kind="tagging",
        reader="conll",
        labels=NER_LABELS,
        metrics=("f1", "precision", "recall", "accuracy"),
        main_metric="f1",
        feature_based=True,
        folder="conll2003",
        train_file="eng.train",
        dev_files={"dev": "eng.testa"},
        test_files={"test": "eng.testb"},
        paper={
            "base/dev/f1": 96.1,
            "base, embeddings/dev/f1": 91.0,
            "base, second-to-last/dev/f1": 95.6,
            "base, last/dev/f1": 94.9,
            "base, weighted last four/dev/f1": 95.9,
            "base, concat last four/dev/f1": 96.1,
            "base, weighted all/dev/f1": 95.5,
        },
        paper_source=f"{PAPER}, Table 7, features; the first figure is that of the best input, concat last four",
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _TASKS}
"""The tasks of the paper, which the command line and the workflow know by name."""
TASK_FILES: dict[str, Path] = {path.stem: path for path in sorted((Path(__file__).parent / "superglue").glob("*.yaml"))}
"""Tasks that are YAML files of the package, known by name to the command line: SuperGLUE's."""
