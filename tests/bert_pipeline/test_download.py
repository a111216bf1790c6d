"""Dumps are downloaded completely or not at all, with network faults from a local server."""

import contextlib
import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import Handler, serving

from bert_pipeline.download import USER_AGENT, download_wikipedia
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.manifest import load_manifest

DATA = random.Random(3).randbytes(3_000_000)
NAME = "testwiki-20260101-pages-articles-multistream.xml.bz2"


def status(job: str = "done", *, data: bytes = DATA, sha1: str = "") -> bytes:
    files = {
        NAME: {
            "size": len(data),
            "url": f"/testwiki/20260101/{NAME}",
            "sha1": sha1 or hashlib.sha1(data).hexdigest(),
        },
        NAME.replace(".xml", "-index.txt"): {"size": 5, "url": "/x", "sha1": "0" * 40},
    }
    return json.dumps({"jobs": {"articlesmultistreamdump": {"status": job, "files": files}}, "version": "0.8"}).encode()


class Site:
    """A dump site: files by path, and faults to inject."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {
            "/testwiki/": b'<a href="20250101/">x</a> <a href="20260101/">x</a> <a href="20260201/">x</a>',
            "/testwiki/20260201/dumpstatus.json": status("in-progress"),
            "/testwiki/20260101/dumpstatus.json": status(),
            f"/testwiki/20260101/{NAME}": DATA,
        }
        self.break_after: list[int] = []
        """Number of bytes after which the connection breaks, for each of the next requests of a dump file."""
        self.busy = 0
        """Number of the next requests to reject, with `Retry-After: 17`."""
        self.has_ranges = True
        self.requests: list[tuple[str, str, str]] = []
        self.url = ""

    def answer(self, request: Handler) -> None:
        wanted = request.headers.get("Range", "")
        self.requests.append((request.path, wanted, request.headers.get("User-Agent", "")))
        if self.busy:
            self.busy -= 1
            request.send_response(503)
            request.send_header("Retry-After", "17")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        data = self.files.get(request.path)
        if data is None:
            request.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.has_ranges else 0
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        body = data[start:]
        if request.path.endswith(".bz2") and self.break_after:
            body = body[: self.break_after.pop(0)]
            request.close_connection = True
        request.wfile.write(body)


@contextlib.contextmanager
def served_site() -> Iterator[Site]:
    site = Site()

    class Served(Handler):
        def do_GET(self) -> None:
            site.answer(self)

    with serving(Served) as site.url:
        yield site


@pytest.fixture
def site() -> Iterator[Site]:
    with served_site() as site:
        yield site


def download(site: Site, output: Path, date: str = "20260101", **options: Any) -> Any:
    return download_wikipedia(
        "testwiki", date, output, **{"sites": [site.url], "retry_seconds": 0.0, "attempts": 3, **options}
    )


def test_finished_dump_is_downloaded_with_its_manifest(site: Site, tmp_path: Path) -> None:
    seen: list[int] = []
    manifest = download(site, tmp_path / "dump", progress=seen.append)
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA
    assert (manifest.kind, list(manifest.files)) == ("dump", [NAME])
    assert seen == sorted(seen)
    assert seen[-1] == len(DATA)
    assert {agent for _, _, agent in site.requests} == {USER_AGENT}
    assert [entry.name for entry in tmp_path.iterdir()] == ["dump"]


def test_latest_takes_the_newest_finished_dump(site: Site, tmp_path: Path) -> None:
    manifest = download(site, tmp_path / "dump", "latest")
    assert manifest.configuration == {"wiki": "testwiki", "date": "20260101"}


def test_broken_transfer_is_resumed_where_it_broke(site: Site, tmp_path: Path) -> None:
    site.break_after = [1_000_000, 700_000]
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA
    ranges = [wanted for path, wanted, _ in site.requests if path.endswith(NAME)]
    assert ranges == ["", "bytes=1000000-", "bytes=1700000-"]


def test_later_call_resumes_failed_download(site: Site, tmp_path: Path) -> None:
    site.break_after = [500_000, 0, 0, 0]
    with pytest.raises(InputError, match=r"interrupted at 500,000 of 3,000,000 bytes .* run the same command again"):
        download(site, tmp_path / "dump")
    assert not (tmp_path / "dump").exists()
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA
    assert site.requests[-1][1] == "bytes=500000-"


def test_server_without_ranges_is_read_from_the_beginning(site: Site, tmp_path: Path) -> None:
    site.has_ranges = False
    site.break_after = [1_000_000]
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA


def test_damaged_file_is_fetched_again_and_then_refused(site: Site, tmp_path: Path) -> None:
    site.files[f"/testwiki/20260101/{NAME}"] = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(InputError, match="sha1 is .* twice"):
        download(site, tmp_path / "dump")
    assert not (tmp_path / "dump").exists()
    assert sum(path.endswith(NAME) for path, _, _ in site.requests) == 2


def test_mirror_stands_in_for_a_site_without_the_file(site: Site, tmp_path: Path) -> None:
    del site.files[f"/testwiki/20260101/{NAME}"]
    with served_site() as mirror:
        download(site, tmp_path / "dump", sites=[site.url, mirror.url])
    assert load_manifest(tmp_path / "dump", verify="sha256").counts["bytes"] == len(DATA)


def test_retry_after_header_is_obeyed(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("bert_pipeline.download.time.sleep", waited.append)
    site.busy = 1
    download(site, tmp_path / "dump", retry_seconds=1.0)
    assert waited == [17.0]
    site.busy = 1
    download(site, tmp_path / "other", retry_seconds=0.1)  # no longer than sixty times our own waiting
    assert waited == [17.0, 6.0]


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"jobs": null}', b'{"jobs": {"articlesdump": 1}}', b"<html>busy</html>"]
)
def test_malformed_dump_status_raises(site: Site, tmp_path: Path, content: bytes) -> None:
    site.files["/testwiki/20260101/dumpstatus.json"] = content
    with pytest.raises(InputError, match="not a dump status") as raised:
        download(site, tmp_path / "dump")
    assert "\n" not in str(raised.value)


def test_several_files_are_taken_in_the_order_of_their_parts(site: Site, tmp_path: Path) -> None:
    names = [f"testwiki-20260101-pages-articles{n}.xml-p{n}p{n}9.bz2" for n in (1, 2, 10)]
    files = {}
    for number, name in enumerate(reversed(names)):
        data = DATA[: 1000 + number]
        site.files[f"/testwiki/20260101/{name}"] = data
        files[name] = {
            "size": len(data), "url": f"/testwiki/20260101/{name}", "sha1": hashlib.sha1(data).hexdigest()
        }  # fmt: skip
    jobs = {"articlesmultistreamdump": {"status": "waiting"}, "articlesdump": {"status": "done", "files": files}}
    site.files["/testwiki/20260101/dumpstatus.json"] = json.dumps({"jobs": jobs}).encode()
    manifest = download(site, tmp_path / "dump")
    assert sorted(manifest.files) == sorted(names)
    taken = [path.rpartition("/")[2] for path, _, _ in site.requests if path.endswith(".bz2")]
    assert taken == names


def test_unfinished_dump_is_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="20260201: the dump is not finished .*articlesmultistreamdump is in-progress"):
        download(site, tmp_path / "dump", "20260201")


def test_unknown_wiki_raises_one_sentence(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no site has /nowiki/20260101/dumpstatus.json") as raised:
        download_wikipedia("nowiki", "20260101", tmp_path / "dump", sites=[site.url], retry_seconds=0.0)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_unreachable_sites_raise_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="refused"):
        download_wikipedia(
            "testwiki", "20260101", tmp_path / "dump", sites=["http://127.0.0.1:9"], attempts=2, retry_seconds=0.0
        )


@pytest.mark.parametrize(
    ("wiki", "date"), [("../etc", "20260101"), ("enwiki", "yesterday"), ("EN", "latest"), ("", "latest")]
)
def test_names_and_dates_are_checked(tmp_path: Path, wiki: str, date: str) -> None:
    with pytest.raises(UsageError):
        download_wikipedia(wiki, date, tmp_path / "dump", sites=[])
