"""Download of finished Wikipedia dumps and of the official task files, with resumed transfers and checked hashes.

https://meta.wikimedia.org/wiki/Data_dumps: the `dumpstatus.json` of a dump lists finished files, their sizes and
checksums. https://foundation.wikimedia.org/wiki/Policy:Wikimedia_Foundation_User-Agent_Policy: one connection at a
time, and a user agent that identifies the client.
"""

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
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bert_pipeline.atomic import disk_errors, locked
from bert_pipeline.errors import ArtifactError, InputError, UsageError, suggest
from bert_pipeline.manifest import Manifest, load_manifest, publishing, refuse_foreign_directory
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.files import DOWNLOAD_KIND, OFFICIAL_FILES, RemoteFile

LOG = logging.getLogger(__name__)
T = TypeVar("T")

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
ATTEMPTS = 6
"""Failures in a row, without any new byte, after which a transfer is given up."""
RETRY_SECONDS = 5.0
"""Pause after the first failure; each further one is longer by as much, up to a minute."""
_MAX_WAIT = 60
"""Limit of the `Retry-After` that is obeyed, as a multiple of the first pause: 5 minutes."""
LOCK_NAME = ".lock"
"""Lock file of a directory of unfinished transfers."""


def download_wikipedia(
    wiki: str,
    date: str,
    output: Path | str,
    *,
    sites: Sequence[str] = SITES,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Download the articles of one dump ("enwiki", "20261101" or "latest") into a directory with a manifest.

    An interrupted transfer is resumed, also by a later call: parts are kept in a hidden directory next to `output`
    until all are complete. `progress` is called with the megabytes so far, and those of all. InputError if the dump
    does not exist or is not finished, a checksum does not match, or no site answers.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]{1,40}", wiki):
        raise UsageError(f"wiki: found {wiki!r}, expected a database name such as enwiki or simplewiki")
    if not re.fullmatch(r"\d{8}|latest", date):
        raise UsageError(f"date: found {date!r}, expected YYYYMMDD or latest")
    refuse_foreign_directory(Path(output), "dump")
    client = _Client(sites)
    date, files = _latest_files(client, wiki) if date == "latest" else (date, _finished_files(client, wiki, date))

    def link(paths: Mapping[str, Path], target: Path) -> None:
        # Linked, not copied: a dump fills the disk once. The parts stay until the directory is published, so that an
        # interruption while files are hashed loses none of them.
        for name, path in paths.items():
            try:
                os.link(path, target / name)
            except OSError:  # a file system without links
                os.replace(path, target / name)

    # The date is part of the name: a later call for "latest" must not continue the files of an older dump.
    parts = f"{wiki}-{date}"
    return _download(client, files, Path(output), "dump", {"wiki": wiki, "date": date}, parts, link, progress=progress)


def download_tasks(suite: str, output: Path | str, *, sources: Sequence[str] = ()) -> Manifest:
    """Download the files of "glue", "squad" or "swag" and unpack them into a directory that `--data` takes.

    `sources` are asked before the official site: folders that hold the files (below their names, or the paths of the
    site), and mirrors of the site. A file in a folder is used if it has the published hash. Transfers are resumed as in
    `download_wikipedia`. InputError if no source has a file, a hash does not match, or an archive lacks a task's file.
    """
    if suite not in OFFICIAL_FILES:
        raise UsageError(f"unknown task files {suite!r}{suggest(suite, OFFICIAL_FILES)}")
    refuse_foreign_directory(Path(output), DOWNLOAD_KIND)
    site, files = OFFICIAL_FILES[suite]

    # Local folders first, then mirrors, then the official site.
    folders = [Path(source) for source in sources if "://" not in source]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; give a folder with {files[0].name} or the address of a mirror")
    client = _Client([*(source for source in sources if "://" in source), site])
    local = {file.name: path for file in files if (path := _local_copy(file, folders)) is not None}

    def copy(paths: Mapping[str, Path], target: Path) -> None:  # local files are never moved out of their folder
        for name, path in paths.items():
            shutil.copyfile(path, target / name)

    lay_out = _unpack_glue if suite == "glue" else copy
    return _download(client, files, Path(output), DOWNLOAD_KIND, {"suite": suite}, suite, lay_out, local)


def _download(
    client: "_Client",
    files: Sequence[RemoteFile],
    output: Path,
    kind: str,
    configuration: Mapping[str, str],
    parts_name: str,
    lay_out: Callable[[Mapping[str, Path], Path], None],
    found: Mapping[str, Path] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Fetch the files that are not `found` on this machine, and publish what `lay_out(paths, directory)` makes of them.

    Paths are by name.
    """
    paths, report = dict(found or {}), progress or (lambda done, total: None)
    parts = output.parent / f".{output.name}.download-{parts_name}"
    # Two downloads would append to the same files.
    busy = ArtifactError(f"{parts}: another download writes here; wait for it, or give another output")
    with locked(parts / LOCK_NAME, wait=0, busy=busy):
        needed = sum(file.size for file in files if file.name not in paths)
        needed -= sum(path.stat().st_size for path in parts.iterdir())
        if needed > (free := shutil.disk_usage(parts).free):
            raise InputError(f"{parts}: the download needs {needed:,} more bytes, and {free:,} are free")
        # One file after the other, as Wikimedia asks.
        done, total = 0, sum(file.size for file in files)

        def show(size: int) -> None:
            report((done + size) // 10**6, total // 10**6)

        for file in files:
            if file.name not in paths:
                paths[file.name] = parts / file.name
                client.fetch(file, parts / file.name, show)
            done += file.size
        inputs = {file.name: {"name": file.name, file.algorithm: file.digest} for file in files}
        with publishing(output, kind=kind, configuration=configuration, inputs=inputs) as draft:
            lay_out(paths, draft.path)
            draft.counts = {"files": len(files), "bytes": done}
            draft.provenance = {"sites": client.sites}
        shutil.rmtree(parts, ignore_errors=True)
    return load_manifest(output, kind=kind)


def _local_copy(file: RemoteFile, folders: Sequence[Path]) -> Path | None:
    """Return the first local file with the published hash; a file with another hash is reported and passed over."""
    for path in (folder / name for folder in folders for name in (file.name, file.path)):
        if path.is_file():
            if (digest := _digest(path, file.algorithm)) == file.digest:
                return path
            LOG.warning(f"{path}: {file.algorithm} is {digest}, the published one {file.digest}; it is not used")
    return None


def _unpack_glue(paths: Mapping[str, Path], output: Path) -> None:
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
        if path.suffix == ".zip":  # its hash has been verified
            with zipfile.ZipFile(path) as archive:
                archive.extractall(output, expected.intersection(archive.namelist()))
    if missing := sorted(name for name in expected if not (output / name).is_file()):
        raise InputError(f"the archives hold no {', '.join(missing)}; expected the files of GLUE's official archives")
    (output / "AX").mkdir()
    shutil.copyfile(paths["AX.tsv"], output / "AX" / "diagnostic.tsv")

    # Of MRPC GLUE offers only the ids of the dev pairs, so the split is made here.
    names = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt", "mrpc_dev_ids.tsv")
    train, test, dev_ids = (paths[name] for name in names)
    _split_mrpc(train, test, dev_ids, output / "MRPC")


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
    return _latest_files(_Client(sites, is_patient=False), wiki)[0]


def why_unfinished(wiki: str, date: str, *, sites: Sequence[str] = SITES) -> str:
    """Return why a dump cannot be downloaded yet (missing, unfinished, no site answers); "" if it can."""
    try:
        _finished_files(_Client(sites, is_patient=False), wiki, date)
    except InputError as error:
        return str(error)
    return ""


def _latest_files(client: "_Client", wiki: str) -> tuple[str, list[RemoteFile]]:
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


def _finished_files(client: "_Client", wiki: str, date: str) -> list[RemoteFile]:
    """Return a dump's article files, in order."""
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
        files = [
            RemoteFile(urllib.parse.urlsplit(entry.get("url", "")).path, entry.get("size"), entry.get("sha1"), "sha1")
            for name, entry in jobs[job].get("files", {}).items()
            if re.fullmatch(rf"{wiki}-{date}-pages-articles[\w-]*\.xml[\w-]*\.bz2", name)
        ]
        # Without those whose checksums are not there yet, articles would be missing.
        if files and all(
            isinstance(file.size, int) and re.fullmatch("[0-9a-f]{40}", str(file.digest)) for file in files
        ):
            return sorted(files, key=lambda file: (int((re.findall(r"(\d+)\.xml", file.name) or [0])[0]), file.name))
        statuses[-1] += " without checksums"
    raise InputError(f"{wiki} {date}: the dump is not finished ({', '.join(statuses)}); wait, or give another date")


def _digest(path: Path, algorithm: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


class _NoAnswerError(InputError):
    """No site answered whether it has a file."""


class _Client:
    """Sends requests to the sites in turn, one connection at a time."""

    def __init__(self, sites: Sequence[str], *, is_patient: bool = True) -> None:
        """Unless it `is_patient`, a client asks each site once, for ten seconds."""
        self.sites = list(dict.fromkeys(site.rstrip("/") for site in sites))
        self._attempts, self._retry_seconds = (ATTEMPTS, RETRY_SECONDS) if is_patient else (len(self.sites), 0.0)
        self._timeout_seconds = 60.0 if is_patient else 10.0

    def read(self, path: str) -> bytes:
        """Return the content of a small file. InputError if no site has it."""

        def receive(url: str) -> bytes:
            with self._open(url, 0) as response:
                return bytes(response.read())

        return self._ask(path, receive)

    def fetch(self, file: RemoteFile, target: Path, progress: Callable[[int], None]) -> None:
        """Append to `target` until it is complete. InputError if no site sends the rest, or another file."""

        def arrived() -> int:
            return target.stat().st_size if target.exists() else 0

        def receive(url: str) -> None:
            start = arrived()
            with self._open(url, start) as response:
                if start and response.status != 206:  # a server without ranges sends the whole file
                    target.unlink()
                    start = 0
                # Another attempt does not help a full disk, as it does a lost connection.
                with disk_errors(target), open(target, "ab") as stream:
                    while start < file.size and (chunk := response.read(min(_CHUNK_BYTES, file.size - start))):
                        stream.write(chunk)
                        start += len(chunk)
                        progress(start)
            if arrived() < file.size:
                raise OSError("ended early")

        try:
            if arrived() < file.size:
                self._ask(file.path, receive, arrived)
        except InputError as error:
            reason = f"interrupted at {arrived():,} of {file.size:,} bytes ({error})"
            raise InputError(f"{target.name}: {reason}; run the same command again to resume") from None
        if (digest := _digest(target, file.algorithm)) != file.digest:
            target.unlink()  # damaged in transfer, or a part of another version
            raise InputError(
                f"{target.name}: {file.algorithm} is {digest}, the published one is {file.digest}; run the same "
                "command to fetch it again"
            )
        progress(file.size)

    def _ask(self, path: str, receive: Callable[[str], T], arrived: Callable[[], int] = int) -> T:
        """Return what `receive` makes of the URL of the first site with which it does not fail.

        InputError if all sites lack the file, _NoAnswerError after failures in a row in which no byte `arrived`.
        """
        reasons: list[str] = []
        without: set[str] = set()  # addresses that answered "not found"
        number, failures, farthest = 0, 0, arrived()
        while True:
            url = f"{self.sites[number % len(self.sites)]}/{path.lstrip('/')}"
            number += 1
            try:
                return receive(url)
            except (OSError, http.client.HTTPException) as error:  # an HTTPError is an OSError
                answer = error if isinstance(error, urllib.error.HTTPError) else None
                reason = " ".join(str(getattr(error, "reason", "") or error or type(error).__name__).split())
                reasons.append(f"{url}: {answer.code} {reason}" if answer else f"{url}: {reason}")
                # A missing file is final once every site has said so; any other failure may pass.
                if answer and answer.code == 404:
                    without.add(url)
                asked = answer.headers.get("Retry-After", "") if answer else ""
            # A server without ranges begins again each time, and gets no farther.
            failures = 0 if arrived() > farthest else failures + 1
            farthest = max(farthest, arrived())
            tried = "; ".join(dict.fromkeys(reasons))
            if len(without) == len(self.sites):
                raise InputError(f"no site has {path} ({tried}); check the wiki and the date")
            if failures >= self._attempts:
                raise _NoAnswerError(f"no site has {path} ({tried}); try again later")
            # Wait longer after each failure, and as long as a busy site asks for (429, 503), up to a limit.
            own = min(60.0, self._retry_seconds * max(1, failures))
            limit = _MAX_WAIT * self._retry_seconds
            if seconds := max(own, min(float(asked), limit) if asked.isdigit() else 0.0):
                LOG.warning(f"{reasons[-1]}; asking again in {seconds:.0f} s")
                time.sleep(seconds)

    def _open(self, url: str, start: int) -> Any:
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=self._timeout_seconds)
