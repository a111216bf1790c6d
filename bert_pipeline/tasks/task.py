"""Task data: read the files of a task, and split files without a dev set by groups.

One file of any format: `is_task_file(task, source)` tells a task's file, official or the hub's, from plain input;
`stream_examples(task, file, labeled=..., on_error=...)` yields its examples with their ids, and `read_examples` returns
them as a list. The numbers of rows that cannot be read are not given to other rows.
"""

import contextlib
import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bert_pipeline.errors import ArtifactError, InputError, UsageError, count_of
from bert_pipeline.hashes import file_sha256
from bert_pipeline.manifest import MANIFEST_NAME, Manifest, load_manifest
from bert_pipeline.records import Source, saved_files
from bert_pipeline.tasks import glue, ner, squad, swag, tables
from bert_pipeline.tasks.catalogue import Task, get_task
from bert_pipeline.tasks.example import (
    ChoiceExample,
    Reading,
    SpanExample,
    TaggedExample,
    TextExample,
    defect_note,
    is_labeled,
)
from bert_pipeline.tasks.files import DOWNLOAD_KIND, OFFICIAL_FILES, find_files

AnyExample = TypeVar("AnyExample", TextExample, SpanExample, ChoiceExample, TaggedExample)

SAMPLE_KIND = "sample"
"""Kind of the artifact that `bert sample` writes."""


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
    defect_ids: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """The same -> the first ids of examples that have the defect, where they are known."""
    generated: bool = False
    """True if the files are those of `bert sample`, so that scores are not comparable to published ones."""
    downloaded: bool = False
    """True if the files are unchanged since `bert download` checked them by their published hashes."""
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    """Split -> its file, or the first of several."""
    repeated: dict[str, int] = dataclasses.field(default_factory=dict)
    """Dev or labeled test split -> number of its examples whose texts are in the training set too."""

    @property
    def is_official(self) -> bool:
        """True if the examples are the published ones, by the hashes of their files."""
        published = {file.digest for _, files in OFFICIAL_FILES.values() for file in files}
        unchanged = bool(self.sha256) and published.issuperset(self.sha256.values())
        return not self.own_split and (self.downloaded or unchanged)

    def summaries(self) -> list[str]:
        """Return a line for each split: its file, size and labels, and how many texts are empty or repeated."""
        lines = []
        for split, examples in {"train": self.train, **self.dev, **self.test}.items():
            gold = [example.gold for example in examples if is_labeled(example)]
            parts = ["" if self.task.is_ranking else _labels_in_words(gold)]
            empty = sum(not text.strip() for example in examples for text in example.texts)
            repeated = len(examples) - len({_content([example]) for example in examples})
            parts += [
                count_of(count, what) for what, count in {"texts empty": empty, "repeated": repeated}.items() if count
            ]
            place = " ".join(filter(None, (split, self.places.get(split))))
            lines.append(f"{place}, {count_of(len(examples), 'rows')}: {', '.join(filter(None, parts))}".rstrip(": "))
        return lines

    def notes(self) -> list[str]:
        """Return a sentence about each file left out, each kind of defect, and dev examples seen in training."""
        return [
            *(f"{name} is absent and left out" for name in self.absent),
            *(defect_note(where, count, self.defect_ids.get(where, ())) for where, count in self.counts.items()),
            *(
                f"{split}: {count} of its examples are in the training set too, so its scores are too high"
                for split, count in self.repeated.items()
            ),
        ]

    @property
    def labeled_test(self) -> dict[str, list[Any]]:
        """The test splits whose examples all have labels: these are scored, and never used for a choice."""
        return {split: examples for split, examples in self.test.items() if examples and all(map(is_labeled, examples))}


def load_task_data(name: str | Task, path: Path | str, dev_fraction: float = 0.0) -> TaskData:
    """Load a task's files from its suite's root, its own folder, or a single file.

    A missing train or dev file is an InputError that names it, unless `dev_fraction` (above 0, below 1) is given and
    one of the two exists: then that file is split by the hash of its articles, documents or sentences
    (`split_by_group`) and `own_split` is set. If both exist, `dev_fraction` has no effect. InputError also for every
    defect of a file that its reader does not count.
    """
    task = name if isinstance(name, Task) else get_task(name)
    files = find_files(task, Path(path), dev_fraction)
    counts: dict[str, int] = {}
    defect_ids: dict[str, list[str]] = {}

    def read(paths: tuple[Path, ...], **options: bool | None) -> list[Any]:
        reading = Reading(**options)  # type: ignore[arg-type]
        examples = _read(task, paths, reading)
        name = paths[0].name
        if any(key.startswith(f"{name}: ") for key in counts):  # train/0000.parquet and validation/0000.parquet
            name = f"{paths[0].parent.name}/{name}"
        counts.update({f"{name}: {what}": count for what, count in reading.counts.items()})
        defect_ids.update({f"{name}: {what}": ids for what, ids in reading.ids.items()})
        return examples

    # One file may have to serve for training and for the first dev split; other dev files are read as they are.
    train = read(files.train, for_training=True)
    dev: dict[str, list[Any]] = {}
    if files.own_split:
        train, dev[next(iter(files.dev))] = split_by_group(train, dev_fraction, ", ".join(map(str, files.train)))
    dev |= {split: read(paths) for split, paths in files.dev.items() if split not in dev}
    test = {split: read(paths, labeled=None) for split, paths in files.test.items()}

    splits = {"train": files.train, **files.dev, **files.test}
    data = TaskData(
        task=task,
        train=train,
        dev=dev,
        test=test,
        own_split=files.own_split,
        sha256=file_hashes([*splits.values()]),
        absent=files.absent,
        counts=counts,
        defect_ids=defect_ids,
        generated=(artifact := _artifact_of(files.train[0])) is not None and artifact.kind == SAMPLE_KIND,
        downloaded=all(map(_is_downloaded, itertools.chain(*splits.values()))),
        places={split: str(paths[0]) for split, paths in splits.items()},
    )
    # Repeated texts are reported, not removed: the official files have some.
    repeated = {split: _num_repeated(train, examples) for split, examples in (dev | data.labeled_test).items()}
    return dataclasses.replace(data, repeated={split: count for split, count in repeated.items() if count})


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

    # All keys of an example are joined, so that examples that share one end up in one group.
    for example in examples:
        first, *others = map(root, example.group_keys)
        for other in others:
            low, high = sorted((first, root(other)))
            parents[high] = first = low

    # Sizes of the groups, which decide what fits into dev.
    groups: dict[str, int] = {}
    for example in examples:
        group = root(example.group_keys[0])
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

    # Every group was too large: the smallest is taken, so that neither side is empty.
    if not dev_groups:
        dev_groups = {min(groups, key=lambda group: (groups[group], _group_order(group)))}
    sides: tuple[list[AnyExample], list[AnyExample]] = ([], [])
    for example in examples:
        sides[root(example.group_keys[0]) in dev_groups].append(example)
    return sides


def _group_order(group: str) -> bytes:
    return hashlib.blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _artifact_of(file: Path) -> Manifest | None:
    """Return the artifact that a task file is part of, at most a suite and a task above it; None if there is none."""
    for folder in file.resolve().parents[:3]:
        if (folder / MANIFEST_NAME).is_file():
            with contextlib.suppress(ArtifactError):
                return load_manifest(folder)
    return None


def _is_downloaded(file: Path) -> bool:
    """Return whether a file is as `bert download` wrote it, by the manifest of the folder of its suite."""
    artifact = _artifact_of(file)
    if artifact is None or artifact.kind != DOWNLOAD_KIND:
        return False
    entry = artifact.files.get(str(file.resolve().relative_to(artifact.path)))
    return entry is not None and entry["sha256"] == file_sha256(file)


def _labels_in_words(gold: Sequence[Any]) -> str:
    """Return the shares of the most frequent labels or tags, or the range and mean of numbers; "" for answers."""
    if not gold:
        return "no labels"
    if isinstance(gold[0], float):
        return f"{min(gold):g} to {max(gold):g}, mean {sum(gold) / len(gold):.3g}"
    labels = list(itertools.chain.from_iterable(own if isinstance(own, tuple) else (own,) for own in gold))
    if not all(isinstance(label, str | int) for label in labels):
        return ""
    counts = Counter(labels).most_common()
    shown = ", ".join(f"{100 * count / len(labels):.0f} % {label}" for label, count in counts[:5])
    return shown + (f" and {len(counts) - 5} other labels" if len(counts) > 5 else "")


LONG_SENTENCE = 8
"""Words from which a tagged sentence is told by itself: of CoNLL-2003's shorter ones many are in several documents."""


def _num_repeated(train: list[Any], examples: list[Any]) -> int:
    """Return how many examples are in the training set.

    Tagged sentences are if they are long, if their whole document is, or if they are of no document.
    """
    seen = {_content([example]) for example in train}
    if not isinstance(next(iter(examples), None), TaggedExample):
        return sum(_content([example]) in seen for example in examples)
    seen_documents = {_content(document) for document in ner.documents(train)}
    return sum(
        _content([sentence]) in seen
        and (sentence.document is None or len(sentence.words) >= LONG_SENTENCE or _content(document) in seen_documents)
        for document in ner.documents(examples)
        for sentence in document
    )


def _content(examples: Sequence[Any]) -> bytes:
    """Return a short hash of the texts."""
    text = "\n".join(itertools.chain.from_iterable(example.texts for example in examples))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def file_hashes(splits: Sequence[tuple[Path, ...]]) -> dict[str, str]:
    """Return file name -> hash; with the folder where files of several splits have one name."""
    paths = [path for split in splits for path in split]
    files = dict.fromkeys(file for path in paths for file in (saved_files(path) if path.is_dir() else [path]))
    names = [file.name for file in files]
    return {
        file.name if names.count(file.name) == 1 else f"{file.parent.name}/{file.name}": file_sha256(file)
        for file in files
    }


def read_examples(task: Task, file: Path | str, *, labeled: bool | None = True, **options: Any) -> list[Any]:
    """Read one file of a task; the options are those of `stream_examples`. InputError if it has no examples."""
    return list(stream_examples(task, file, labeled=labeled, **options))


def stream_examples(
    task: Task,
    file: Path | str | Source,
    *,
    labeled: bool | None = None,
    on_error: Callable[[InputError], None] | None = None,
    counts: dict[str, int] | None = None,
) -> Iterator[Any]:
    """Yield the examples of one file, of a `save_to_disk` folder of one split or of an open source, in any format.

    Labels are required if `labeled` is True, read where present if None, and ignored if False. A row that cannot be
    read is passed to `on_error` and left out; without `on_error`, and for defects of the whole file, InputError is
    raised. InputError too if the file has no rows at all. `counts` receives the numbers of known defects, such as
    questions without a usable answer, which are left out.
    """
    reading = Reading(labeled=labeled, on_error=on_error, counts={} if counts is None else counts)
    yield from _stream(task, (file if isinstance(file, Source) else Path(file),), reading)


def is_task_file(task: Task, source: Source) -> bool:
    """Return whether a file is one of the task's own, by its first lines, rather than input in the form of its kind.

    SQuAD's JSON and CoNLL's columns are; tables are if they have the task's own columns or the hub's.
    """
    if task.reader == "conll":
        return ner.is_task_file(source, task)
    if task.reader == "squad" and (squad.is_squad_json(source) or not task.columns.text_b):
        return squad.is_squad_json(source)
    # A file without a header is known by a label where one belongs. A single column needs a row below it.
    layouts_of = {"swag": swag.choice_layouts, "squad": squad.table_layouts}.get(task.reader, glue.text_layouts)
    layouts = layouts_of(task)
    try:
        table = tables.table_records(source.peek(), layouts)
    except InputError:  # such as two equal texts, which are no header; a defect of a table is found when it is read
        return False
    if not tables.fitting(table, layouts):
        return False
    first = next(table.rows, None)
    if table.columns == layouts[0].headerless:
        return first is not None and first.fields.get(layouts[0].label) in task.labels
    if table.format == "tsv" and len(table.columns) == 1 and first is None:
        return False
    # The last layout is that of the kind: the same texts and ids may be read as plain input, which has no labels.
    layout, plain = tables.choose(table, layouts, None), layouts[-1]
    return (layout.texts, tables.id_column(table, layout)) != (plain.texts, tables.id_column(table, plain))


_READERS: dict[str, tuple[Callable[[Task, Sequence[Path | Source], Reading], Iterator[Any]], str]] = {
    "tsv": (glue.read_text_examples, "rows"),
    "squad": (squad.read_span_examples, "questions"),
    "swag": (swag.read_choice_examples, "rows"),
    "conll": (ner.read_tagged_examples, "sentences"),
}
"""Reader of each format, and what its files consist of."""


def _read(task: Task, paths: tuple[Path, ...], reading: Reading) -> list[Any]:
    examples = list(_stream(task, paths, reading))
    # An empty cell is no label that applies, as in training, unless all are empty: then the labels are withheld.
    if task.kind == "multilabel" and reading.labeled is None and not any(example.label for example in examples):
        return [dataclasses.replace(example, label=None) for example in examples]
    # A single mark, with which exports begin, tells no documents apart.
    if task.reader == "conll" and len({example.document for example in examples}) == 1:
        return [dataclasses.replace(example, document=None) for example in examples]
    return examples


def _stream(task: Task, paths: Sequence[Path | Source], reading: Reading) -> Iterator[Any]:
    read, units = _READERS[task.reader]
    reading.separator, reading.encoding = task.separator, task.encoding
    reading.incomplete_rows = 0 if reading.on_error else task.incomplete_rows  # else each is an error of its own
    is_empty = True
    for example in read(task, paths, reading):
        is_empty = False
        yield example
    if is_empty and not reading.rows_refused:
        left_out = ", ".join(
            defect_note(what, count, reading.ids.get(what, ())) for what, count in reading.counts.items()
        )
        reason = f"no {units}" + (f" are left ({left_out})" if left_out else "")
        raise InputError(f"{paths[0]}: {reason}, expected at least one example")
