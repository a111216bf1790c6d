"""Where the files of a task are: published ones, by hash; those of a folder, under official or the hub's names."""

import dataclasses
import re
from pathlib import Path
from typing import Literal, NamedTuple

from bert_pipeline.compression import COMPRESSED_SUFFIXES
from bert_pipeline.configuration import read_yaml
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.records import STATE_NAME
from bert_pipeline.tasks import squad
from bert_pipeline.tasks.catalogue import TASK_FILES, TASKS, Task, get_task

DOWNLOAD_KIND = "task_files"
"""Kind of the artifact that `bert download` writes."""
ELSEWHERE = {"diagnostic.tsv": ("../AX/diagnostic.tsv", "../diagnostic/diagnostic.tsv")}
"""Paths of the GLUE diagnostics relative to MNLI's folder."""
HUB_FOLDERS = ("", "data", "default", "plain_text", "squad_v2", "regular")
"""Folders of the hub's data sets, for one without configurations or by the name of the configuration."""
DEV_STEMS = ("validation", "dev", "valid", "val")
"""How data sets name their dev files."""
HUB_SUFFIXES = ("parquet", "arrow", "jsonl", "ndjson", "json", "csv", "tsv")


class RemoteFile(NamedTuple):
    """A file of a fixed content on a site."""

    path: str
    """Path on the site; its last part is the name of the file."""
    size: int
    digest: str
    algorithm: Literal["sha1", "sha256"] = "sha256"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


OFFICIAL_FILES: dict[str, tuple[str, tuple[RemoteFile, ...]]] = {
    suite: (
        entry["site"],
        tuple(
            RemoteFile(path, int(size), sha256) for path, size, sha256 in map(str.split, entry["files"].splitlines())
        ),
    )
    for suite, entry in read_yaml(Path(__file__).with_name("official.yaml")).items()
}
"""Suite -> its official site and files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFiles:
    """The files of each split; several if it is cut into shards."""

    train: tuple[Path, ...]
    dev: dict[str, tuple[Path, ...]]
    test: dict[str, tuple[Path, ...]]
    own_split: bool = False
    """Whether the training files are those of the first dev split too, and to be split."""
    absent: tuple[str, ...]


def missing_task_data(name: str | Task, path: Path | str, dev_fraction: float = 0.0) -> str:
    """Return why the task's data cannot be loaded from `path`, by file names alone; "" if they can."""
    task = name if isinstance(name, Task) else get_task(name)
    try:
        find_files(task, Path(path), dev_fraction)
    except InputError as error:
        return str(error)
    return ""


def find_files(task: Task, path: Path, dev_fraction: float) -> TaskFiles:
    """Return the files of a task in a folder, official ones or the hub's; InputError says which are missing."""
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
        return _single_file((path,), first_dev, dev_fraction, f"{path}: is one file, {task.title} needs two")

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
    place = folder if is_there or splits else path / task.folder
    missing = place / (task.train_file if not files.train else task.dev_files[first_dev])
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
    single = _single_file(present, first_dev, dev_fraction, f"{missing}: not found")
    others = {split: paths for split, paths in files.dev.items() if paths != present}
    return dataclasses.replace(single, dev={**single.dev, **others}, test=files.test, absent=absent)


def _official_files(task: Task, folder: Path) -> TaskFiles:
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
    return TaskFiles(train=(train,) if train.is_file() else (), dev=dev, test=test, absent=absent)


def _single_file(paths: tuple[Path, ...], dev_split: str, dev_fraction: float, problem: str) -> TaskFiles:
    if dev_fraction == 0.0:
        raise InputError(
            f"{problem}; --dev-fraction 0.2 (in Dagster dev_fraction) would split {paths[0].name} into train and dev"
        )
    return TaskFiles(train=paths, dev={dev_split: paths}, test={}, own_split=True, absent=())


def _folder(task: Task, path: Path) -> Path:
    """Return the first possible folder below `path` that contains any of the task's files."""
    names = (task.train_file, *task.dev_files.values(), *task.test_files.values())
    places = [path / task.suite / task.folder, path / task.folder, path]
    for place in places:
        if any((place / name).is_file() for name in names):
            return place
    return next((place for place in places[:2] if place.is_dir() and place != path), path)


def _places(task: Task, path: Path) -> list[Path]:
    """Return the folders that may hold a task's data set as the hub has it, the likeliest first."""
    names = (task.name, task.folder, task.folder.lower())
    own = [path / suite / name for suite in (task.suite, "") for name in names]
    return [place for place in dict.fromkeys([*own, *(path / name for name in HUB_FOLDERS)]) if place.is_dir()]


def _hub_files(task: Task, folder: Path) -> TaskFiles | None:
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
    return TaskFiles(train=splits["train"], dev=dev, test=test, absent=absent)


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
        return [file for file in sorted(folder.glob("*.json")) if squad.is_version(file, task.has_impossible)]
    return sorted(folder.glob("*.csv")) if task.reader == "swag" else []
