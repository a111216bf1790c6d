"""Download of finished Wikipedia dumps and of the official task files, with resumed transfers and checked hashes.

https://meta.wikimedia.org/wiki/Data_dumps: the `dumpstatus.json` of a dump lists finished files, their sizes and
checksums. https://foundation.wikimedia.org/wiki/Policy:Wikimedia_Foundation_User-Agent_Policy: one connection at a
time, and a user agent that identifies the client.
"""

import contextlib
import functools
import glob
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bert_pipeline.atomic import creating, naming_full_disk
from bert_pipeline.errors import ArtifactError, InputError, UsageError, suggest
from bert_pipeline.manifest import Manifest, load_manifest, publishing, refuse_foreign_directory
from bert_pipeline.tasks.archive import extract_archive
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.official import DOWNLOAD_KIND, OFFICIAL_FILES, RemoteFile

LOG = logging.getLogger(__name__)

SITES = (
    "https://dumps.wikimedia.org",
    "https://dumps.wikimedia.your.org",
    "https://mirror.accum.se/mirror/wikimedia.org/dumps",
)
"""The dump site, then its mirrors. Checksums come from the first one that answers; all files are checked."""

USER_AGENT = "bert-workflow/0.1 (BERT pre-training corpus; one connection; Python urllib)"

_JOBS = ("articlesmultistreamdump", "articlesdump")
"""Multistream first; both contain the current revisions of articles."""


_CHUNK_BYTES = 1 << 20
_MAX_WAIT = 60
"""Limit of the `Retry-After` that is obeyed, as a multiple of the time between attempts: 5 minutes by default."""
_TIMEOUT_SECONDS = 60.0
LOCK_NAME = ".lock"
"""Lock file of a directory of unfinished transfers."""


def download_wikipedia(
    wiki: str,
    date: str,
    output: Path | str,
    *,
    sites: Sequence[str] = SITES,
    attempts: int = 6,
    retry_seconds: float = 5.0,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Download the articles of one dump ("enwiki", "20261101" or "latest") into a directory with a manifest.

    An interrupted transfer is resumed, also by a later call: parts are kept in a hidden directory next to `output`
    until all are complete. `progress` is called with the number of bytes so far. InputError if the dump does not exist
    or is not finished, a checksum does not match, or no site answers.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{1,40}", wiki):
        raise UsageError(f"wiki: found {wiki!r}, expected a database name such as enwiki or simplewiki")
    if not re.fullmatch(r"\d{8}|latest", date):
        raise UsageError(f"date: found {date!r}, expected YYYYMMDD or latest")
    output = Path(output)
    refuse_foreign_directory(output, "dump")
    client = _Client(sites, attempts, retry_seconds)
    date, files = _latest_files(client, wiki) if date == "latest" else (date, _finished_files(client, wiki, date))

    # The date is part of the name: a later call for "latest" must not continue the files of an older dump.
    prefix = f".{output.name}.download-{wiki}-"
    parts = output.parent / f"{prefix}{date}"
    for other in sorted(set(output.parent.glob(f"{glob.escape(prefix)}*")) - {parts}):
        LOG.warning(f"{other}: is of an unfinished download of another date; remove it unless that goes on")
    with _parts_directory(parts):
        _check_space(parts, sum(int(entry["size"]) for entry in files.values()))

        # One file after the other, as Wikimedia asks.
        done = 0
        for name, entry in files.items():
            remote = urllib.parse.urlsplit(entry["url"]).path
            expected = ("sha1", str(entry["sha1"]))
            _fetch_file(
                client, parts / name, remote, int(entry["size"]), expected, functools.partial(_advance, progress, done)
            )
            done += int(entry["size"])

        # Linked, not copied: a dump fills the disk once. The parts stay until the directory is published, so that an
        # interruption while files are hashed loses none of them.
        inputs = {name: {"name": name, "sha1": entry["sha1"]} for name, entry in files.items()}
        with publishing(output, kind="dump", configuration={"wiki": wiki, "date": date}, inputs=inputs) as draft:
            for name in files:
                try:
                    os.link(parts / name, draft.path / name)
                except OSError:  # a file system without links
                    os.replace(parts / name, draft.path / name)
            draft.counts = {"files": len(files), "bytes": done}
            draft.provenance = {"sites": list(sites)}
        shutil.rmtree(parts, ignore_errors=True)
    return load_manifest(output, kind="dump")


def download_tasks(
    suite: str,
    output: Path | str,
    *,
    sources: Sequence[str] = (),
    attempts: int = 6,
    retry_seconds: float = 5.0,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Download the files of "glue", "squad" or "swag" and unpack them into a directory that `--data` takes.

    `sources` are asked before the official site: folders that hold the files (below their names, or the paths of the
    site), and mirrors of the site. A file in a folder is used if it has the published hash. Transfers are resumed as in
    `download_wikipedia`. InputError if no source has a file, a hash does not match, or an archive lacks a task's file.
    """
    if suite not in OFFICIAL_FILES:
        raise UsageError(f"unknown task files {suite!r}{suggest(suite, OFFICIAL_FILES)}")
    output = Path(output)
    refuse_foreign_directory(output, DOWNLOAD_KIND)
    site, files = OFFICIAL_FILES[suite]

    # Local folders first, then mirrors, then the official site.
    folders = [Path(source) for source in sources if "://" not in source]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give a folder with {files[0].name} or the address of a mirror")
    client = _Client([*(source for source in sources if "://" in source), site], attempts, retry_seconds)
    parts = output.parent / f".{output.name}.download-{suite}"
    with _parts_directory(parts):
        # Space is needed for what no folder has.
        found = {file.name: _local_copy(file, folders) for file in files}
        _check_space(parts, sum(file.size for file in files if found[file.name] is None))
        done = 0
        paths: dict[str, Path] = {}
        for file in files:
            path = found[file.name]
            if path is None:
                path = parts / file.name
                advance = functools.partial(_advance, progress, done)
                _fetch_file(client, path, f"/{file.path}", file.size, ("sha256", file.sha256), advance)
            paths[file.name] = path
            done += file.size

        # Local files are copied, and never moved out of their folder.
        inputs = {file.name: {"name": file.name, "sha256": file.sha256} for file in files}
        with publishing(output, kind=DOWNLOAD_KIND, configuration={"suite": suite}, inputs=inputs) as draft:
            if suite == "glue":
                _unpack_glue(paths, draft.path, parts / "unpacked")
            else:
                for name, path in paths.items():
                    shutil.copyfile(path, draft.path / name)
            draft.counts = {"files": len(files), "bytes": done}
            draft.provenance = {"sources": [*sources, site]}
        shutil.rmtree(parts, ignore_errors=True)
    return load_manifest(output, kind=DOWNLOAD_KIND)


@contextlib.contextmanager
def _parts_directory(parts: Path) -> Iterator[None]:
    """Create the directory of unfinished transfers and hold its lock, which ends with the process.

    ArtifactError if another process holds it: both would append to the same files.
    """
    with creating(parts):
        parts.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(FileLock(parts / LOCK_NAME, timeout=0))
        except Timeout as error:
            raise ArtifactError(
                f"{parts}: another download writes here; wait for it, or give another output"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield


def _local_copy(file: RemoteFile, folders: Sequence[Path]) -> Path | None:
    """Return the first local file with the published hash; a file with another hash is reported and passed over."""
    for path in (folder / name for folder in folders for name in (file.name, file.path)):
        if path.is_file():
            digest = _digest(path, "sha256")
            if digest == file.sha256:
                return path
            LOG.warning(f"{path}: sha256 is {digest}, the published one {file.sha256}; it is not used")
    return None


def _unpack_glue(paths: dict[str, Path], output: Path, scratch: Path) -> None:
    """Lay out GLUE's files as the tasks name them: <folder>/<file>; the archives hold more than these."""
    expected = {
        f"{task.folder}/{file}"
        for task in TASKS.values()
        if task.suite == "glue"
        for file in (task.train_file, *task.dev_files.values(), *task.test_files.values())
    }

    # These are not in the archives: MRPC is split below, and the diagnostics are a file of their own.
    expected -= {f"MRPC/{name}.tsv" for name in ("train", "dev", "test")} | {"MNLI/diagnostic.tsv"}
    for path in paths.values():
        if path.suffix == ".zip":
            shutil.rmtree(scratch, ignore_errors=True)
            for name in expected.intersection(extract_archive(path, scratch)):
                (output / name).parent.mkdir(exist_ok=True)
                os.replace(scratch / name, output / name)
    if missing := sorted(name for name in expected if not (output / name).is_file()):
        raise InputError(f"the archives hold no {', '.join(missing)}; expected the files of GLUE's official archives")
    (output / "AX").mkdir()
    shutil.copyfile(paths["AX.tsv"], output / "AX" / "diagnostic.tsv")

    # Of MRPC GLUE offers only the ids of the dev pairs, so the split is made here.
    train, test, dev_ids = (paths[name] for name in _MRPC_FILES)
    _split_mrpc(train, test, dev_ids, output / "MRPC")


_MRPC_FILES = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "mrpc_dev_ids.tsv")


def _split_mrpc(train_file: Path, test_file: Path, dev_ids_file: Path, folder: Path) -> None:
    """Write MRPC's train, dev and test files from the original ones, as GLUE's download script does.

    The pairs of `dev_ids_file` become the dev set; the labels of the test file are left out and its rows numbered.
    """
    # A row of the file is a pair of sentence ids, which the training file has in columns 1 and 2.
    dev_ids = {tuple(row.split("\t")) for row in dev_ids_file.read_text(encoding="utf-8").splitlines()}
    header, *rows = train_file.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    sides: dict[str, list[str]] = {"train": [header], "dev": [header]}
    for row in rows:
        sides["dev" if tuple(row.split("\t")[1:3]) in dev_ids else "train"].append(row)

    # The header counts as row -1, so that the first pair has the index 0.
    header, *rows = test_file.read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    without_labels = [row.partition("\t")[2] for row in (header, *rows)]
    sides["test"] = [f"{'index' if number < 0 else number}\t{row}" for number, row in enumerate(without_labels, -1)]
    folder.mkdir()
    for name, lines in sides.items():
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")


def newest_finished_dump(wiki: str, *, sites: Sequence[str] = SITES) -> str:
    """Return the date of a wiki's newest finished dump. InputError if there is none or no site answers.

    It tries each site once with a short timeout, since sensors call it again later.
    """
    return _latest_files(_Client(sites, attempts=len(sites), retry_seconds=0.0, timeout_seconds=10.0), wiki)[0]


def why_unfinished(wiki: str, date: str, *, sites: Sequence[str] = SITES) -> str:
    """Return why a dump cannot be downloaded yet (missing, unfinished, no site answers); "" if it can."""
    try:
        _finished_files(_Client(sites, attempts=len(sites), retry_seconds=0.0, timeout_seconds=10.0), wiki, date)
    except InputError as error:
        return str(error)
    return ""


def _advance(progress: Callable[[int], None] | None, before: int, size: int) -> None:
    if progress is not None:
        progress(before + size)


class _NoAnswerError(InputError):
    """No site answered whether it has a file."""


def _latest_files(client: "_Client", wiki: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the newest date with finished articles, and its files."""
    listing = client.read(f"/{wiki}/").decode("utf-8", errors="replace")
    dates = sorted(set(re.findall(r'href="(\d{8})/"', listing)), reverse=True)
    # The newest dump is often still running, so the eight newest are tried.
    for date in dates[:8]:
        try:
            return date, _finished_files(client, wiki, date)
        except _NoAnswerError:  # says nothing about the dump: an older one would be taken for the newest
            raise
        except InputError:
            continue
    raise InputError(f"{wiki}: none of the dumps {', '.join(dates[:8]) or '(there are none)'} is finished; give a date")


def _finished_files(client: "_Client", wiki: str, date: str) -> dict[str, dict[str, Any]]:
    """Return name -> {"size", "url", "sha1"} of a dump's article files, in order."""
    where = f"/{wiki}/{date}/dumpstatus.json"
    text = client.read(where)
    try:
        jobs = json.loads(text)["jobs"]
        if not isinstance(jobs, dict) or not all(isinstance(jobs.get(job, {}), dict) for job in _JOBS):
            raise TypeError("its jobs are no objects")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{where}: not a dump status ({error}); give another date") from None

    # The first job that is done wins; multistream and plain files have the same articles.
    statuses = []
    for job in _JOBS:
        status = jobs.get(job, {}).get("status", "missing")
        statuses.append(f"{job} is {status}")
        if status != "done":
            continue
        # Whole article files only, without their indexes, in the order of the parts.
        files = {
            name: entry
            for name, entry in sorted(jobs[job].get("files", {}).items(), key=lambda item: _part_number(item[0]))
            if re.fullmatch(rf"{wiki}-{date}-pages-articles[\w-]*\.xml[\w-]*\.bz2", name)
            and isinstance(entry.get("size"), int)
            and re.fullmatch(r"[0-9a-f]{40}", str(entry.get("sha1")))
        }
        if files:
            return files
    raise InputError(f"{wiki} {date}: the dump is not finished ({', '.join(statuses)}); wait, or give another date")


def _part_number(name: str) -> tuple[int, str]:
    match = re.search(r"(\d+)\.xml", name)
    return (int(match[1]) if match else 0, name)


def _check_space(directory: Path, size: int) -> None:
    needed = size - sum(path.stat().st_size for path in directory.iterdir())
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise InputError(f"{directory}: the download needs {needed:,} more bytes, and {free:,} are free")


def _fetch_file(
    client: "_Client",
    path: Path,
    remote: str,
    size: int,
    expected: tuple[str, str],
    progress: Callable[[int], None],
) -> None:
    """Download the rest of `path` and check its (algorithm, hash); a damaged file is downloaded once more."""
    algorithm, published = expected
    for is_last in (False, True):
        client.fetch(remote, path, size, progress)
        found = _digest(path, algorithm)
        if found == published:
            return
        path.unlink()  # damaged in transfer
        if is_last:
            raise InputError(
                f"{path.name}: {algorithm} is {found}, the published one is {published}, twice; try again later"
            )


def _digest(path: Path, algorithm: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


class _Client:
    """Sends requests to the sites in turn, one connection at a time."""

    def __init__(
        self, sites: Sequence[str], attempts: int, retry_seconds: float, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        self._sites = list(dict.fromkeys(site.rstrip("/") for site in sites))
        self._attempts = attempts
        self._retry_seconds = retry_seconds
        self._timeout_seconds = timeout_seconds

    def read(self, path: str) -> bytes:
        """Return the content of a small file. InputError if no site has it."""
        reasons: list[str] = []
        without: set[str] = set()  # addresses that answered "not found"
        for attempt in range(self._attempts):
            url = self._sites[attempt % len(self._sites)] + path
            retry_after = 0.0
            try:
                with self._open(url, 0) as response:
                    return bytes(response.read())
            except urllib.error.HTTPError as error:
                reasons.append(f"{url}: {error.code} {error.reason}")
                retry_after = _retry_after(error)
                # A missing file is final once every site has said so; any other failure may pass.
                if error.code == 404:
                    without.add(url)
                if len(without) == len(self._sites):
                    break
            except (OSError, http.client.HTTPException) as error:
                reasons.append(f"{url}: {_reason(error)}")
            if attempt + 1 < self._attempts:
                self._wait(attempt, retry_after, reasons[-1])
        else:
            raise _NoAnswerError(f"no site has {path} ({'; '.join(dict.fromkeys(reasons))}); try again later")
        raise InputError(f"no site has {path} ({'; '.join(dict.fromkeys(reasons))}); check the wiki and the date")

    def fetch(self, path: str, target: Path, size: int, progress: Callable[[int], None]) -> None:
        """Append to `target` until it has `size` bytes; give up after failures without any new bytes."""
        failures = 0
        site = 0
        reason = ""
        farthest = target.stat().st_size if target.exists() else 0  # a server without ranges begins again each time
        while (start := target.stat().st_size if target.exists() else 0) < size:
            if failures >= self._attempts:
                raise InputError(
                    f"{target.name}: interrupted at {start:,} of {size:,} bytes ({reason}); run the same command again"
                    " to resume"
                )
            url = self._sites[site % len(self._sites)] + path
            reason, retry_after = f"{url}: ended early", 0.0
            try:
                with self._open(url, start) as response:
                    if start and response.status != 206:  # a server without ranges sends the whole file
                        target.unlink()
                        start = 0
                    self._append(response, target, start, size, progress)
            except (OSError, http.client.HTTPException) as error:  # an HTTPError is an OSError
                reason = f"{url}: {_reason(error)}"
                retry_after = _retry_after(error)
            arrived = target.stat().st_size if target.exists() else 0
            if arrived < size:
                failures = 0 if arrived > farthest else failures + 1
                farthest = max(farthest, arrived)
                site += 1
                if failures < self._attempts:
                    self._wait(failures, retry_after, reason)

        # A part of another version may be longer; the checksum decides afterwards.
        if target.stat().st_size > size:
            os.truncate(target, size)
        progress(size)

    @staticmethod
    def _append(response: Any, target: Path, start: int, size: int, progress: Callable[[int], None]) -> None:
        # Another attempt does not help a full disk, as it does a lost connection.
        with naming_full_disk(target), open(target, "ab") as stream:
            while start < size and (chunk := response.read(min(_CHUNK_BYTES, size - start))):
                stream.write(chunk)
                start += len(chunk)
                progress(start)

    def _open(self, url: str, start: int) -> Any:
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=self._timeout_seconds)

    def _wait(self, attempt: int, retry_after: float, reason: str) -> None:
        """Wait longer after each failure, and as long as the site asks for, up to a limit; log why."""
        own = min(60.0, self._retry_seconds * (attempt + 1))
        seconds = max(own, min(retry_after, _MAX_WAIT * self._retry_seconds))
        if seconds:
            LOG.warning(f"{reason}; asking again in {seconds:.0f} s")
        time.sleep(seconds)


def _retry_after(error: BaseException) -> float:
    """Return the seconds that a busy site asks to wait (429, 503), or 0."""
    text = error.headers.get("Retry-After", "") if isinstance(error, urllib.error.HTTPError) else ""
    return float(text) if text.isdigit() else 0.0


def _reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "reason", "") or error or type(error).__name__).split())
