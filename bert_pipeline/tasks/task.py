"""Task data: find and read the files of a task, and split files without a dev set by groups."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from bert_pipeline.configuration import from_mapping, read_yaml
from bert_pipeline.errors import InputError, UsageError, suggest
from bert_pipeline.manifest import file_sha256
from bert_pipeline.tasks import glue, ner, squad, swag
from bert_pipeline.tasks.catalogue import TASKS, Task
from bert_pipeline.tasks.example import ChoiceExample, Reading, SpanExample, TaggedExample, TextExample, is_labeled

AnyExample = TypeVar("AnyExample", TextExample, SpanExample, ChoiceExample, TaggedExample)


def group_keys(example: TextExample | SpanExample | ChoiceExample | TaggedExample) -> tuple[str, ...]:
    """Return the keys that train and dev must not share.

    Texts: each of the two. Spans: the title of the article, or the context if it has none. Choices: the source and the
    context. Tags: the document.
    """
    if isinstance(example, TextExample):
        texts = (example.text_a,) if example.text_b is None else (example.text_a, example.text_b)
        return tuple(" ".join(text.casefold().split()) for text in texts)
    if isinstance(example, SpanExample):
        return (example.title or example.context,)
    if isinstance(example, ChoiceExample):
        return (f"source {example.source}", f"context {example.context}") if example.source else (example.context,)
    return (str(example.document),)


def split_by_group(
    examples: Sequence[AnyExample], dev_fraction: float, where: str
) -> tuple[list[AnyExample], list[AnyExample]]:
    """Split `examples` into (train, dev), both in the order of the file.

    Examples that share a key (directly or through others) form a group. Groups go to dev in the order of their blake2b
    hash until it holds `dev_fraction` of the examples; each side gets at least one group, and a group that would more
    than double the dev set stays in train. UsageError if there is one group only.
    """
    # Union-find over keys; the smallest key represents its group, whatever the order of the examples.
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            parents[key] = parents[parents[key]]
            key = parents[key]
        return key

    for example in examples:
        first, *others = map(root, group_keys(example))
        for other in others:
            low, high = sorted((first, root(other)))
            parents[high] = first = low
    groups: dict[str, int] = {}
    for example in examples:
        group = root(group_keys(example)[0])
        groups[group] = groups.get(group, 0) + 1
    if len(groups) < 2:
        raise UsageError(
            f"{where}: holds {len(groups)} group(s) of examples, so dev_fraction cannot split it; "
            "give a file with several articles, documents or sentences"
        )

    # Fill dev in the order of the groups' hashes.
    target = dev_fraction * len(examples)
    dev_groups: set[str] = set()
    dev_size = 0
    for group in sorted(groups, key=_group_order):
        if dev_size >= target or len(dev_groups) == len(groups) - 1:
            break
        if dev_size + groups[group] <= max(2 * target, 1):
            dev_groups.add(group)
            dev_size += groups[group]
    if not dev_groups:
        dev_groups = {min(groups, key=lambda group: (groups[group], _group_order(group)))}
    sides: tuple[list[AnyExample], list[AnyExample]] = ([], [])
    for example in examples:
        sides[root(group_keys(example)[0]) in dev_groups].append(example)
    return sides


def _group_order(group: str) -> bytes:
    return hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest()


ELSEWHERE = {"diagnostic.tsv": ("../AX/diagnostic.tsv", "../diagnostic/diagnostic.tsv")}
"""Paths of the GLUE diagnostics relative to MNLI's folder."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskData:
    """The examples of a task, loaded from its files."""

    task: Task
    train: list[Any]
    dev: dict[str, list[Any]]
    """Split name -> examples; models are selected on the first split."""
    test: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    """Split name -> examples, often unlabeled; empty without test files."""
    own_split: bool = False
    """True if train and dev were split from one file, so that scores are not comparable to published ones."""
    sha256: dict[str, str] = dataclasses.field(default_factory=dict)
    """File name -> hash of each file read."""
    absent: tuple[str, ...] = ()
    """Files of the task that are missing without a replacement."""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    """"<file>: <what>" -> number of defective rows or answers."""

    @property
    def labeled_test(self) -> dict[str, list[Any]]:
        """The test splits whose examples all have labels: these are scored, and never used for a choice."""
        return {split: examples for split, examples in self.test.items() if examples and all(map(is_labeled, examples))}


def get_task(name: str) -> Task:
    """Return a built-in task by name, or the task of a YAML file. UsageError names the nearest known task."""
    if name in TASKS:
        return TASKS[name]
    if name.endswith((".yaml", ".yml")):
        return from_mapping(Task, read_yaml(name), where=name)
    raise UsageError(f"unknown task {name!r}{suggest(name, TASKS)}")


def load_task_data(name: str | Task, path: Path | str, dev_fraction: float = 0.0) -> TaskData:
    """Load a task's files from its suite's root, its own folder, or a single file.

    A missing train or dev file is an InputError that names it, unless `dev_fraction` (above 0, below 1) is given and
    one of the two exists: then that file is split by the hash of its articles, documents or sentences
    (`split_by_group`) and `own_split` is set. If both exist, `dev_fraction` has no effect. InputError also for every
    defect of a file that its reader does not count.
    """
    task = name if isinstance(name, Task) else get_task(name)
    files = _find_files(task, Path(path), dev_fraction)
    counts: dict[str, int] = {}

    def read(file: Path, **options: bool) -> list[Any]:
        reading = _read(task, file, **options)
        for what, count in reading.counts.items():
            counts[f"{file.name}: {what}"] = count
        return reading.examples

    if files.to_split is not None:
        split_name = next(iter(files.dev))
        train, dev_part = split_by_group(read(files.to_split, for_training=True), dev_fraction, str(files.to_split))
        dev = {split_name: dev_part}
    else:
        train, dev = read(files.train, for_training=True), {}
    dev |= {split: read(file) for split, file in files.dev.items() if split not in dev}
    test = {split: read(file, labeled=False) for split, file in files.test.items()}
    used = {file.name: file for file in (files.train, *files.dev.values(), *files.test.values())}
    return TaskData(
        task=task,
        train=train,
        dev=dev,
        test=test,
        own_split=files.to_split is not None,
        sha256={name: file_sha256(file) for name, file in used.items()},
        absent=files.absent,
        counts=counts,
    )


def read_examples(task: Task, file: Path | str, *, labeled: bool = True) -> list[Any]:
    """Read one file of a task; with `labeled`, labels are required."""
    return _read(task, Path(file), labeled=labeled).examples


def missing_task_data(name: str | Task, path: Path | str, dev_fraction: float = 0.0) -> str:
    """Return why the task's data cannot be loaded from `path`, by file names alone; "" if they can."""
    task = name if isinstance(name, Task) else get_task(name)
    try:
        _find_files(task, Path(path), dev_fraction)
    except InputError as error:
        return str(error)
    return ""


def has_task_data(name: str | Task, path: Path | str, dev_fraction: float = 0.0) -> bool:
    """Return True if the task's files are at `path`; `missing_task_data` returns the reason if not."""
    return not missing_task_data(name, path, dev_fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Files:
    train: Path
    dev: dict[str, Path]
    test: dict[str, Path]
    to_split: Path | None
    absent: tuple[str, ...]


def _find_files(task: Task, path: Path, dev_fraction: float) -> _Files:
    if not 0.0 <= dev_fraction < 1.0:
        raise UsageError(f"dev_fraction: found {dev_fraction}, expected a number from 0 up to but not including 1")
    if not path.exists():
        raise InputError(f"{path}: not found; give the folder with the files of {task.title}")
    first_dev = next(iter(task.dev_files))
    if path.is_file():
        return _single_file(task, path, first_dev, dev_fraction, f"{path}: is one file, {task.title} needs two")
    folder = _folder(task, path)
    train = folder / task.train_file
    dev = {split: folder / file for split, file in task.dev_files.items() if (folder / file).is_file()}
    test: dict[str, Path] = {}
    for split, file in task.test_files.items():
        alternatives = (folder / place for place in (file, *ELSEWHERE.get(file, ())))
        found = next((place for place in alternatives if place.is_file()), None)
        if found is not None:
            test[split] = found
    expected = {**task.dev_files, **task.test_files}
    absent = tuple(file for split, file in expected.items() if split not in dev and split not in test)
    if train.is_file() and dev:
        return _Files(train=train, dev=dev, test=test, to_split=None, absent=absent)
    present = [train] if train.is_file() else list(dev.values())[:1] or _other_files(task, folder)
    missing = folder / (task.train_file if not train.is_file() else task.dev_files[first_dev])
    if len(present) != 1:
        found_names = ", ".join(file.name for file in present[:8]) or "none"
        raise InputError(
            f"{missing}: not found (other files of {task.title} there: {found_names}); "
            f"give the folder that holds {task.train_file} and {' or '.join(task.dev_files.values())}"
        )
    if not train.is_file() and present[0] != train:
        absent = (task.train_file, *absent)
    files = _single_file(task, present[0], first_dev, dev_fraction, f"{missing}: not found")
    return dataclasses.replace(
        files, dev={**files.dev, **{k: v for k, v in dev.items() if v != present[0]}}, test=test, absent=absent
    )


def _single_file(task: Task, file: Path, dev_split: str, dev_fraction: float, problem: str) -> _Files:
    if dev_fraction == 0.0:
        raise InputError(f"{problem}; with dev_fraction (0.2, say) {file.name} alone would be split into train and dev")
    return _Files(train=file, dev={dev_split: file}, test={}, to_split=file, absent=())


def _folder(task: Task, path: Path) -> Path:
    """Return the first possible folder below `path` that contains any of the task's files."""
    names = (task.train_file, *task.dev_files.values(), *task.test_files.values())
    places = [path / task.suite / task.folder, path / task.folder, path]
    for place in places:
        if any((place / name).is_file() for name in names):
            return place
    return next((place for place in places[:2] if place.is_dir() and place != path), path)


def _other_files(task: Task, folder: Path) -> list[Path]:
    """Return the files in `folder` that may be the task's under another name."""
    if task.reader == "squad":
        files = sorted(folder.glob("*.json"))
        return [file for file in files if _is_version(file, task.has_impossible)]
    return sorted(folder.glob("*.csv")) if task.reader == "swag" else []


def _is_version(file: Path, has_impossible: bool) -> bool:
    try:
        return squad.is_version_2(file) == has_impossible
    except InputError:
        return False


def _read(task: Task, file: Path, *, labeled: bool = True, for_training: bool = False) -> Reading:
    if task.reader == "squad":
        return squad.read_span_examples(
            file, has_impossible=task.has_impossible, for_training=for_training, require_answers=labeled
        )
    if task.reader == "swag":
        return swag.read_choice_examples(file, columns=task.columns, require_labels=labeled)
    if task.reader == "conll":
        return ner.read_tagged_examples(file, labels=task.labels, require_tags=labeled)
    return glue.read_text_examples(
        file,
        columns=task.columns,
        labels=task.labels,
        label_range=task.label_range,
        require_labels=labeled,
        incomplete_rows=task.incomplete_rows,
    )
