"""Task data: find and read the files of a task, and split files without a dev set by groups.

One file of any format: `is_task_file(task, source)` tells a task's file, official or the hub's, from plain input;
`stream_examples(task, file, labeled=..., on_error=...)` yields its examples with their ids, and `read_examples` returns
them as a list. With `labeled=None` labels are read where they are, with False they are ignored. Rows that cannot be
read go to `on_error` as an InputError with file and line, or row; their numbers are not given to other rows.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bert_pipeline.compression import COMPRESSED_SUFFIXES
from bert_pipeline.errors import ArtifactError, InputError, UsageError, count_of
from bert_pipeline.hashes import file_sha256
from bert_pipeline.manifest import MANIFEST_NAME, load_manifest
from bert_pipeline.records import STATE_NAME, Source, saved_files
from bert_pipeline.tasks import glue, ner, squad, swag, tables
from bert_pipeline.tasks.catalogue import TASK_FILES, TASKS, Task, get_task
from bert_pipeline.tasks.example import (
    ChoiceExample,
    Reading,
    SpanExample,
    TaggedExample,
    TextExample,
    defect_note,
    is_labeled,
)
from bert_pipeline.tasks.official import DOWNLOAD_KIND, OFFICIAL_FILES
from bert_pipeline.tasks.split import split_by_group

AnyExample = TypeVar("AnyExample", TextExample, SpanExample, ChoiceExample, TaggedExample)

SAMPLE_KIND = "sample"
"""Kind of the artifact that `bert sample` writes."""

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
    files = _find_files(task, Path(path), dev_fraction)
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
    if files.to_split:
        split_name = next(iter(files.dev))
        source = ", ".join(map(str, files.to_split))
        train, dev_part = split_by_group(read(files.to_split, for_training=True), dev_fraction, source)
        dev = {split_name: dev_part}
    else:
        train, dev = read(files.train, for_training=True), {}
    dev |= {split: read(paths) for split, paths in files.dev.items() if split not in dev}
    test = {split: read(paths, labeled=None) for split, paths in files.test.items()}

    # Repeated texts are reported, not removed: the official files have some.
    scored = dev | {split: examples for split, examples in test.items() if examples and all(map(is_labeled, examples))}
    repeated = {split: _num_repeated(train, examples) for split, examples in scored.items()}
    used = [file for paths in (files.train, *files.dev.values(), *files.test.values()) for file in paths]
    return TaskData(
        task=task,
        train=train,
        dev=dev,
        test=test,
        own_split=bool(files.to_split),
        sha256=file_hashes([files.train, *files.dev.values(), *files.test.values()]),
        absent=files.absent,
        counts=counts,
        defect_ids=defect_ids,
        generated=_is_generated(files.train[0]),
        downloaded=all(map(_is_downloaded, used)),
        places={split: str(paths[0]) for split, paths in {"train": files.train, **files.dev, **files.test}.items()},
        repeated={split: count for split, count in repeated.items() if count},
    )


def _is_generated(file: Path) -> bool:
    """Return whether a task file is part of a generated sample, by the manifest of the sample's folder."""
    # The manifest is at the sample's root, at most a suite and a task above the file.
    for folder in file.resolve().parents[:3]:
        if (folder / MANIFEST_NAME).is_file():
            with contextlib.suppress(ArtifactError):
                return load_manifest(folder).kind == SAMPLE_KIND
    return False


def _is_downloaded(file: Path) -> bool:
    """Return whether a file is as `bert download` wrote it, by the manifest of the folder of its suite."""
    for folder in file.resolve().parents[:2]:
        if (folder / MANIFEST_NAME).is_file():
            with contextlib.suppress(ArtifactError):
                entry = load_manifest(folder, kind=DOWNLOAD_KIND).files.get(str(file.resolve().relative_to(folder)))
                return entry is not None and entry["sha256"] == file_sha256(file)
    return False


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


def read_examples(
    task: Task,
    file: Path | str,
    *,
    labeled: bool | None = True,
    on_error: Callable[[InputError], None] | None = None,
    counts: dict[str, int] | None = None,
) -> list[Any]:
    """Read one file of a task; the arguments are those of `stream_examples`. InputError if it has no examples."""
    return list(stream_examples(task, file, labeled=labeled, on_error=on_error, counts=counts))


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
    if task.reader == "squad":
        return squad.is_squad_json(source)
    # A file without a header is known by a label where one belongs. A single column needs a row below it.
    layouts = swag.choice_layouts(task) if task.reader == "swag" else glue.text_layouts(task)
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


def missing_task_data(name: str | Task, path: Path | str, dev_fraction: float = 0.0) -> str:
    """Return why the task's data cannot be loaded from `path`, by file names alone; "" if they can."""
    task = name if isinstance(name, Task) else get_task(name)
    try:
        _find_files(task, Path(path), dev_fraction)
    except InputError as error:
        return str(error)
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Files:
    """The files of each split; several if it is cut into shards."""

    train: tuple[Path, ...]
    dev: dict[str, tuple[Path, ...]]
    test: dict[str, tuple[Path, ...]]
    to_split: tuple[Path, ...] = ()
    absent: tuple[str, ...]


def _find_files(task: Task, path: Path, dev_fraction: float) -> _Files:
    if not 0.0 <= dev_fraction < 1.0:
        raise UsageError(f"dev_fraction: found {dev_fraction}, expected a number from 0 up to but not including 1")
    if not path.exists():
        raise InputError(f"{path}: not found; give the folder with the files of {task.title}")

    # The files of one's own task are not looked for beside a folder that is misspelled.
    places = [path / part / name for part in (task.suite, "") for name in (task.folder, task.name)]
    is_there = any(place.is_dir() for place in places) or path.resolve().name in (Path(task.folder).name, task.name)
    if task.name not in {*TASKS, *TASK_FILES} and path.is_dir() and not is_there:
        raise InputError(f"{path}: has no folder {task.folder!r}, the task's `folder`; correct it, or --data")

    # Models are chosen on the first dev split, so that is the one a single file is split into.
    first_dev = next(iter(task.dev_files))
    if path.is_file() or (path / STATE_NAME).is_file():
        return _single_file(task, (path,), first_dev, dev_fraction, f"{path}: is one file, {task.title} needs two")

    # The official files, or else those of the hub.
    folder = _folder(task, path)
    files = _official_files(task, folder)
    if not (files.train and files.dev):
        candidates = [files, *filter(None, (_hub_files(task, place) for place in _places(task, path)))]
        complete = [files for files in candidates if files.train and files.dev]
        files = (complete or [files for files in candidates if files.train or files.dev] or candidates)[0]
    if files.train and files.dev:
        return files

    # One file to be split, also under another name.
    splits = [files.train] if files.train else list(files.dev.values())[:1]
    splits = splits or [(file,) for file in _other_files(task, folder)]
    missing = folder / (task.train_file if not files.train else task.dev_files[first_dev])
    # More than one candidate would be a guess.
    if len(splits) != 1:
        names = ", ".join(paths[0].name for paths in splits[:8]) or "none"
        raise InputError(
            f"{missing}: not found (other files of {task.title} there: {names}); give the folder that holds "
            f"{task.train_file} and {' or '.join(task.dev_files.values())}, or the hub's files, such as "
            "train-00000-of-00001.parquet or train.jsonl"
        )
    (present,) = splits
    absent = files.absent if present == files.train else (task.train_file, *files.absent)
    single = _single_file(task, present, first_dev, dev_fraction, f"{missing}: not found")
    others = {split: paths for split, paths in files.dev.items() if paths != present}
    return dataclasses.replace(single, dev={**single.dev, **others}, test=files.test, absent=absent)


def _official_files(task: Task, folder: Path) -> _Files:
    train = folder / task.train_file
    dev: dict[str, tuple[Path, ...]] = {
        split: (folder / file,) for split, file in task.dev_files.items() if (folder / file).is_file()
    }
    test: dict[str, tuple[Path, ...]] = {}
    for split, file in task.test_files.items():
        alternatives = (folder / place for place in (file, *ELSEWHERE.get(file, ())))
        if present := next((place for place in alternatives if place.is_file()), None):
            test[split] = (present,)

    # The training file is not among the absent ones: without it there is an error, or a split of another file.
    expected = {**task.dev_files, **task.test_files}
    absent = tuple(file for split, file in expected.items() if split not in dev and split not in test)
    return _Files(train=(train,) if train.is_file() else (), dev=dev, test=test, absent=absent)


def _single_file(task: Task, paths: tuple[Path, ...], dev_split: str, dev_fraction: float, problem: str) -> _Files:
    if dev_fraction == 0.0:
        raise InputError(
            f"{problem}; with dev_fraction (0.2, say) {paths[0].name} alone would be split into train and dev"
        )
    return _Files(train=paths, dev={dev_split: paths}, test={}, to_split=paths, absent=())


def _folder(task: Task, path: Path) -> Path:
    """Return the first possible folder below `path` that contains any of the task's files."""
    names = (task.train_file, *task.dev_files.values(), *task.test_files.values())
    places = [path / task.suite / task.folder, path / task.folder, path]
    for place in places:
        if any((place / name).is_file() for name in names):
            return place
    return next((place for place in places[:2] if place.is_dir() and place != path), path)


HUB_FOLDERS = ("", "data", "default", "plain_text", "squad_v2", "regular")
"""Folders of the hub's data sets, for one without configurations or by the name of the configuration."""
DEV_STEMS = ("validation", "dev", "valid", "val")
"""How data sets name their dev files."""
HUB_SUFFIXES = ("parquet", "arrow", "jsonl", "ndjson", "json", "csv", "tsv")


def _places(task: Task, path: Path) -> list[Path]:
    """Return the folders that may hold a task's data set as the hub has it, the likeliest first."""
    names = (task.name, task.folder, task.folder.lower())
    own = [path / suite / name for suite in (task.suite, "") for name in names]
    return [place for place in dict.fromkeys([*own, *(path / name for name in HUB_FOLDERS)]) if place.is_dir()]


def _hub_files(task: Task, folder: Path) -> _Files | None:
    """Return the files of a data set in the hub's layout, by the names of its splits; None without train and dev."""
    splits = {}
    for split in ("train", *task.dev_files, *task.test_files):
        stems = [split.replace("dev", stem, 1) for stem in DEV_STEMS] if split.startswith("dev") else [split]
        splits[split] = next(filter(None, (_hub_split(task, folder, stem) for stem in stems)), ())
    if not any(splits[split] for split in task.dev_files):  # MNLI with one dev set that is not named "matched"
        splits[next(iter(task.dev_files))] = next(filter(None, (_hub_split(task, folder, s) for s in DEV_STEMS)), ())
    if "ax" in splits:  # GLUE's diagnostics are a data set of their own
        splits["ax"] = splits["ax"] or _hub_split(task, folder.parent / "ax", "test")
    dev, test = (
        {split: splits[split] for split in names if splits[split]} for names in (task.dev_files, task.test_files)
    )
    if not splits["train"] and not dev:
        return None
    absent = tuple(split for split, paths in splits.items() if not paths and split != "train")
    return _Files(train=splits["train"], dev=dev, test=test, absent=absent)


def _hub_split(task: Task, folder: Path, stem: str) -> tuple[Path, ...]:
    """Return the files of one split: `train.jsonl`, shards, or the files of a folder `train`; () without any."""
    if not folder.is_dir():
        return ()
    if (folder / stem / STATE_NAME).is_file():
        return (folder / stem,)

    # Such as "train.jsonl", "mrpc-train.tsv" or "train-00000-of-00003-<hash>.parquet".
    prefix, shard = rf"({re.escape(task.name)}[._-])?", r"-\d+-of-(\d+)(?:-\w+)?"
    compressed = "|".join(map(re.escape, COMPRESSED_SUFFIXES))
    pattern = re.compile(rf"{prefix}{stem}(?:{shard})?\.({'|'.join(HUB_SUFFIXES)})(?:{compressed})?")
    matches = {file: match for file in sorted(folder.iterdir()) if (match := pattern.fullmatch(file.name))}
    if not matches and (folder / stem).is_dir():
        return tuple(sorted((folder / stem).glob("*.parquet")))

    # One format only, the richest: a folder may hold the same split in several.
    suffix = min((match[3] for match in matches.values()), key=HUB_SUFFIXES.index, default="")
    files = {file: match for file, match in matches.items() if match[3] == suffix}

    # A single file, or all shards of one: nothing tells which of two versions of a split is meant.
    versions = {(match[1], match[2]): file for file, match in files.items()}
    if len(versions) > 1:
        file, other, *_ = versions.values()
        raise InputError(
            f"{file}: {other.name} there is the split {stem!r} too, expected one version of it; move the other one away"
        )
    for file, match in files.items():
        if match[2] and len(files) != int(match[2]):
            raise InputError(f"{file}: {len(files)} of its {int(match[2])} shards are there, expected all; fetch them")
    return tuple(files)


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
