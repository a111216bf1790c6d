"""A task is one declarative description: its files, how they are read, the input, the head and the score."""

import dataclasses
import re
from typing import Literal

from bert_pipeline.errors import ConfigurationError, suggest
from bert_pipeline.tasks.example import Kind
from bert_pipeline.tasks.glue import Columns

Reader = Literal["tsv", "squad", "swag", "conll"]

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,39}")
READERS = {"classification": "tsv", "regression": "tsv", "span": "squad", "choice": "swag", "tagging": "conll"}
"""The format that holds the examples of each kind of task."""
METRICS = {
    "classification": ("accuracy", "f1", "matthews", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "span": ("exact_match", "f1"),
    "choice": ("accuracy",),
    "tagging": ("precision", "recall", "f1", "accuracy"),
}
"""Metrics that make sense for each kind of task."""


@dataclasses.dataclass(frozen=True, kw_only=True)
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
    labels: tuple[str, ...] = ()
    """Classes in the order of the model's outputs; tags for tagging; empty for regression and spans."""
    metrics: tuple[str, ...]
    """What is reported, the main one among them."""
    main_metric: str
    """What models are chosen by."""
    pair: bool = False
    """Whether the input has two texts."""
    columns: Columns = Columns()
    """Which column holds what, for tab-separated files."""
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
    """Split name -> file, labelled or not."""
    submission_files: dict[str, str] = dataclasses.field(default_factory=dict, hash=False)
    """Test split -> the file of the benchmark's submission that it fills."""
    submission_default: str = ""
    """What a submission says for a task without predictions."""
    paper: dict[str, float] = dataclasses.field(default_factory=dict, hash=False)
    """Published figures of BERT: "<model>/<split>/<metric>" -> value on the scale of 0 to 100."""
    paper_source: str = ""
    """Where they stand."""

    def __post_init__(self) -> None:
        if not NAME_PATTERN.fullmatch(self.name):
            raise ConfigurationError(
                f"name: found {self.name!r}, expected small letters, digits and underscores, at most 40"
            )
        for key in ("metrics", "main_metric"):
            value = getattr(self, key)
            for metric in (value,) if key == "main_metric" else value:
                if metric not in METRICS[self.kind]:
                    raise ConfigurationError(
                        f"{key}: {metric!r} is no metric of {self.kind}{suggest(metric, METRICS[self.kind])}"
                    )
        if self.main_metric not in self.metrics:
            raise ConfigurationError(f"main_metric: {self.main_metric!r} is not one of metrics {self.metrics}")
        if self.kind in ("classification", "tagging") and len(set(self.labels)) < max(2, len(self.labels)):
            raise ConfigurationError(f"labels: found {self.labels}, expected two or more different labels")
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
                    f"dev_files, test_files: found the split {split!r}, expected different names of small letters, "
                    'digits and underscores, none of them "train"'
                )

    @property
    def num_labels(self) -> int:
        """The number of the head's outputs."""
        return {"classification": len(self.labels), "tagging": len(self.labels), "span": 2}.get(self.kind, 1)
