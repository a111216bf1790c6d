"""Download of finished Wikipedia dumps, with resumed transfers and checked sha1.

https://meta.wikimedia.org/wiki/Data_dumps: the `dumpstatus.json` of a dump lists finished files, their sizes and
checksums. https://foundation.wikimedia.org/wiki/Policy:Wikimedia_Foundation_User-Agent_Policy: one connection at a
time, and a user agent that identifies the client.
"""

import functools
import hashlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.manifest import Manifest, load_manifest, publishing

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
    client = _Client(sites, attempts, retry_seconds)
    date, files = _latest_files(client, wiki) if date == "latest" else (date, _finished_files(client, wiki, date))
    parts = output.parent / f".{output.name}.download-{wiki}-{date}"
    parts.mkdir(parents=True, exist_ok=True)
    _check_space(parts, files)
    done = 0
    for name, entry in files.items():
        _fetch_file(client, parts / name, entry, functools.partial(_advance, progress, done))
        done += int(entry["size"])
    inputs = {name: {"name": name, "sha1": entry["sha1"]} for name, entry in files.items()}
    with publishing(output, kind="dump", configuration={"wiki": wiki, "date": date}, inputs=inputs) as draft:
        for name in files:
            os.replace(parts / name, draft.path / name)
        draft.counts = {"files": len(files), "bytes": done}
        draft.provenance = {"sites": list(sites)}
    shutil.rmtree(parts, ignore_errors=True)
    return load_manifest(output, kind="dump")


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


def _latest_files(client: "_Client", wiki: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the newest date with finished articles, and its files."""
    listing = client.read(f"/{wiki}/").decode("utf-8", errors="replace")
    dates = sorted(set(re.findall(r'href="(\d{8})/"', listing)), reverse=True)
    for date in dates[:8]:
        try:
            return date, _finished_files(client, wiki, date)
        except InputError:
            continue
    raise InputError(f"{wiki}: none of the dumps {', '.join(dates[:8]) or '(there are none)'} is finished; give a date")


def _finished_files(client: "_Client", wiki: str, date: str) -> dict[str, dict[str, Any]]:
    """Return name -> {"size", "url", "sha1"} of a dump's article files, in order."""
    where = f"/{wiki}/{date}/dumpstatus.json"
    try:
        jobs = json.loads(client.read(where))["jobs"]
        if not isinstance(jobs, dict) or not all(isinstance(jobs.get(job, {}), dict) for job in _JOBS):
            raise TypeError("its jobs are no objects")
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{where}: not a dump status ({error}); give another date") from None
    statuses = []
    for job in _JOBS:
        status = jobs.get(job, {}).get("status", "missing")
        statuses.append(f"{job} is {status}")
        if status != "done":
            continue
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


def _check_space(directory: Path, files: dict[str, dict[str, Any]]) -> None:
    there = sum(path.stat().st_size for path in directory.iterdir())
    needed = sum(int(entry["size"]) for entry in files.values()) - there
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise InputError(f"{directory}: the download needs {needed:,} more bytes, and {free:,} are free")


def _fetch_file(client: "_Client", path: Path, entry: dict[str, Any], progress: Callable[[int], None]) -> None:
    """Download the rest of `path` and check it; a damaged file is downloaded once more."""
    for is_last in (False, True):
        client.fetch(urllib.parse.urlsplit(entry["url"]).path, path, int(entry["size"]), progress)
        with open(path, "rb") as stream:
            found = hashlib.file_digest(stream, "sha1").hexdigest()
        if found == entry["sha1"]:
            return
        path.unlink()  # damaged in transfer
        if is_last:
            raise InputError(
                f"{path.name}: sha1 is {found}, the dump site states {entry['sha1']}, twice; try again later"
            )


class _Client:
    """Sends requests to the sites in turn, one connection at a time."""

    def __init__(
        self, sites: Sequence[str], attempts: int, retry_seconds: float, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        self._sites = [site.rstrip("/") for site in sites]
        self._attempts = attempts
        self._retry_seconds = retry_seconds
        self._timeout_seconds = timeout_seconds

    def read(self, path: str) -> bytes:
        """Return the content of a small file. InputError if no site has it."""
        reasons: list[str] = []
        for attempt in range(self._attempts):
            url = self._sites[attempt % len(self._sites)] + path
            retry_after = 0.0
            try:
                with self._open(url, 0) as response:
                    return bytes(response.read())
            except urllib.error.HTTPError as error:
                reasons.append(f"{url}: {error.code} {error.reason}")
                retry_after = _retry_after(error)
                if error.code == 404 and attempt + 1 >= len(self._sites):
                    break
            except (OSError, http.client.HTTPException) as error:
                reasons.append(f"{url}: {_reason(error)}")
            self._wait(attempt, retry_after)
        raise InputError(f"no site has {path} ({'; '.join(dict.fromkeys(reasons))}); check the wiki and the date")

    def fetch(self, path: str, target: Path, size: int, progress: Callable[[int], None]) -> None:
        """Append to `target` until it has `size` bytes; give up after failures without any new bytes."""
        failures = 0
        site = 0
        reason = ""
        while (start := target.stat().st_size if target.exists() else 0) < size:
            if failures >= self._attempts:
                raise InputError(
                    f"{target.name}: interrupted at {start:,} of {size:,} bytes ({reason}); run the same command again"
                    " to resume"
                )
            url = self._sites[site % len(self._sites)] + path
            retry_after = 0.0
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
                failures = 0 if arrived > start else failures + 1
                site += 1
                self._wait(failures, retry_after)
        if target.stat().st_size > size:
            os.truncate(target, size)
        progress(size)

    @staticmethod
    def _append(response: Any, target: Path, start: int, size: int, progress: Callable[[int], None]) -> None:
        with open(target, "ab") as stream:
            while start < size and (chunk := response.read(min(_CHUNK_BYTES, size - start))):
                stream.write(chunk)
                start += len(chunk)
                progress(start)

    def _open(self, url: str, start: int) -> Any:
        headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=self._timeout_seconds)

    def _wait(self, attempt: int, retry_after: float) -> None:
        """Wait longer after each failure, and as long as the site asks for, up to a limit."""
        own = min(60.0, self._retry_seconds * (attempt + 1))
        time.sleep(max(own, min(retry_after, _MAX_WAIT * self._retry_seconds)))


def _retry_after(error: BaseException) -> float:
    """Return the seconds that a busy site asks to wait (429, 503), or 0."""
    text = error.headers.get("Retry-After", "") if isinstance(error, urllib.error.HTTPError) else ""
    return float(text) if text.isdigit() else 0.0


def _reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "reason", "") or error or type(error).__name__).split())
