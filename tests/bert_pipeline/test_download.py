"""Dumps and task files are downloaded completely or not at all, with network faults from a local server."""

import argparse
import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from loopback import Handler, serving

from bert_pipeline import cli
from bert_pipeline.download import ATTEMPTS, USER_AGENT, download_tasks, download_wikipedia
from bert_pipeline.errors import ArtifactError, InputError, UsageError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.records import open_source
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.files import OFFICIAL_FILES, RemoteFile
from bert_pipeline.tasks.task import TaskData, load_task_data, read_examples

DATA = random.Random(3).randbytes(3_000_000)
NAME = "testwiki-20260101-pages-articles-multistream.xml.bz2"


def status(job: str = "done", *, data: bytes = DATA, sha1: str = "") -> bytes:
    files = {
        NAME: {"size": len(data), "url": f"/testwiki/20260101/{NAME}", "sha1": sha1 or hashlib.sha1(data).hexdigest()},
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
        """Number of the next requests to reject, with `Retry-After`."""
        self.retry_after = "17"
        self.unavailable = ""
        """Path of which every request is rejected."""
        self.has_ranges = True
        self.requests: list[tuple[str, str, str]] = []
        self.url = ""

    def answer(self, request: Handler) -> None:
        wanted = request.headers.get("Range", "")
        self.requests.append((request.path, wanted, request.headers.get("User-Agent", "")))
        if self.busy or request.path == self.unavailable:
            self.busy = max(0, self.busy - 1)
            request.send_response(503)
            request.send_header("Retry-After", self.retry_after)
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
def site():
    with served_site() as site:
        yield site


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The seconds that are waited for a site, which take no time here."""
    waited: list[float] = []
    monkeypatch.setattr("bert_pipeline.download.time.sleep", waited.append)
    return waited


def download(site: Site, output: Path, date: str = "20260101", **options: Any) -> Any:
    return download_wikipedia("testwiki", date, output, **{"sites": [site.url], **options})


def test_finished_dump_is_downloaded_with_its_manifest(site, tmp_path):
    seen: list[tuple[int, int]] = []
    manifest = download(site, tmp_path / "dump", progress=lambda *megabytes: seen.append(megabytes))
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA
    assert (manifest.kind, list(manifest.files)) == ("dump", [NAME])
    assert seen == sorted(seen)
    assert seen[-1] == (len(DATA) // 10**6, len(DATA) // 10**6)
    assert {agent for _, _, agent in site.requests} == {USER_AGENT}
    assert [entry.name for entry in tmp_path.iterdir()] == ["dump"]


def test_latest_takes_the_newest_finished_dump(site, tmp_path):
    manifest = download(site, tmp_path / "dump", "latest")
    assert manifest.configuration == {"wiki": "testwiki", "date": "20260101"}


@pytest.mark.parametrize("has_mirror", [False, True])
def test_latest_needs_an_answer_about_the_newest_dump(site, tmp_path, has_mirror):
    site.unavailable = "/testwiki/20260201/dumpstatus.json"
    with served_site() as mirror:
        del mirror.files[site.unavailable]  # the mirror is behind
        sites = [site.url, mirror.url][: 1 + has_mirror]
        reasons = "503 Service Unavailable" + "; .*404 Not Found" * has_mirror
        with pytest.raises(InputError, match=rf"no site has {site.unavailable} \(.*{reasons}\); try again later"):
            download(site, tmp_path / "dump", "latest", sites=sites)


def test_full_disk_is_no_lost_connection(site, tmp_path):
    parts = tmp_path / ".dump.download-testwiki-20260101"
    parts.mkdir()
    (parts / NAME).symlink_to("/dev/full")
    with pytest.raises(ArtifactError, match=f"{NAME}: cannot be written: No space left on device"):
        download(site, tmp_path / "dump")
    assert len([path for path, _, _ in site.requests if path.endswith(NAME)]) == 1


def test_broken_transfer_is_resumed_where_it_broke(site, tmp_path):
    site.break_after = [1_000_000, 700_000]
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA
    ranges = [wanted for path, wanted, _ in site.requests if path.endswith(NAME)]
    assert ranges == ["", "bytes=1000000-", "bytes=1700000-"]


def test_later_call_resumes_failed_download(site, tmp_path):
    site.break_after = [500_000, *[0] * ATTEMPTS]
    with pytest.raises(InputError, match=r"interrupted at 500,000 of 3,000,000 bytes .* run the same command again"):
        download(site, tmp_path / "dump")
    assert not (tmp_path / "dump").exists()
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA
    assert site.requests[-1][1] == "bytes=500000-"


def test_second_download_to_an_output_is_refused_while_the_first_one_runs(site, tmp_path):
    refused = []

    def again(*_):
        if not refused:
            with pytest.raises(ArtifactError, match="another download writes here") as raised:
                download(site, tmp_path / "dump")
            refused.append(raised)

    manifest = download(site, tmp_path / "dump", progress=again)
    assert load_manifest(manifest.directory, verify="sha256").counts["bytes"] == len(DATA)
    assert refused
    assert [path.name for path in tmp_path.iterdir()] == ["dump"]


def test_disk_without_locks_is_downloaded_to(site, tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    manifest = download(site, tmp_path / "dump")
    assert manifest.counts["bytes"] == len(DATA)


def test_interruption_while_files_are_hashed_loses_no_transfer(site, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("bert_pipeline.manifest.file_sha256", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            download(site, tmp_path / "dump")
    site.requests.clear()
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA
    assert not any(path.endswith(NAME) for path, _, _ in site.requests)


def test_directory_of_other_files_is_refused_before_the_transfer(site, tmp_path):
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="not ours"):
        download(site, tmp_path / "dump")
    assert not site.requests


def test_server_without_ranges_is_read_from_the_beginning(site, tmp_path):
    site.has_ranges = False
    site.break_after = [1_000_000]
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA


def test_server_without_ranges_that_always_breaks_off_is_given_up(site, tmp_path):
    site.has_ranges = False
    site.break_after = [1_000_000] * 50
    with pytest.raises(InputError, match=r"interrupted at 1,000,000 of .*run the same command again"):
        download(site, tmp_path / "dump")
    assert len(site.break_after) > 40


def test_damaged_file_is_refused_and_fetched_again_by_a_later_call(site, tmp_path):
    site.files[f"/testwiki/20260101/{NAME}"] = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(InputError, match="sha1 is .*, the published one is .*; run the same command to fetch it again"):
        download(site, tmp_path / "dump")
    assert not (tmp_path / "dump").exists()
    site.files[f"/testwiki/20260101/{NAME}"] = DATA
    download(site, tmp_path / "dump")
    assert (tmp_path / "dump" / NAME).read_bytes() == DATA


def test_mirror_stands_in_for_a_site_without_the_file(site, tmp_path):
    del site.files[f"/testwiki/20260101/{NAME}"]
    with served_site() as mirror:
        download(site, tmp_path / "dump", sites=[site.url, mirror.url])
    assert load_manifest(tmp_path / "dump", verify="sha256").counts["bytes"] == len(DATA)


def test_retry_after_header_is_obeyed_and_logged(site, tmp_path, caplog, waits):
    site.busy = 1
    download(site, tmp_path / "dump")
    assert waits == [17]
    assert "dumpstatus.json: 503 Service Unavailable; asking again in 17 s" in caplog.text
    site.busy, site.retry_after = 1, "9000"
    download(site, tmp_path / "other")
    assert waits == [17, 300]  # no longer
    site.busy, site.retry_after = ATTEMPTS, "0"
    with pytest.raises(InputError, match="try again later"):
        download(site, tmp_path / "none")
    assert waits[2:] == [5, 10, 15, 20, 25]  # longer after each failure, and none after the last one


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"jobs": null}', b'{"jobs": {"articlesdump": 1}}', b"<html>busy</html>"]
)
def test_malformed_dump_status_raises(site, tmp_path, content):
    site.files["/testwiki/20260101/dumpstatus.json"] = content
    with pytest.raises(InputError, match="not a dump status") as raised:
        download(site, tmp_path / "dump")
    assert "\n" not in str(raised.value)


def test_several_files_are_taken_in_the_order_of_their_parts(site, tmp_path):
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


def test_unfinished_dump_is_refused(site, tmp_path):
    with pytest.raises(InputError, match="20260201: the dump is not finished .*articlesmultistreamdump is in-progress"):
        download(site, tmp_path / "dump", "20260201")


@pytest.mark.parametrize("missing", ["size", "sha1", "url"])
def test_dump_of_which_one_part_has_no_checksum_yet_is_unfinished(site, tmp_path, missing):
    document = json.loads(status())
    files = document["jobs"]["articlesmultistreamdump"]["files"]
    second = {name: value for name, value in files[NAME].items() if name not in (missing, "sha1")}
    files[NAME.replace(".xml", "2.xml-p2p3")] = second
    site.files["/testwiki/20260101/dumpstatus.json"] = json.dumps(document).encode()
    with pytest.raises(InputError, match=r"not finished \(articlesmultistreamdump is done without checksums, "):
        download(site, tmp_path / "dump")


def test_unknown_wiki_raises_one_sentence(site, tmp_path):
    with pytest.raises(InputError, match="no site has /nowiki/20260101/dumpstatus.json") as raised:
        download_wikipedia("nowiki", "20260101", tmp_path / "dump", sites=[site.url])
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_unreachable_sites_raise_one_sentence(tmp_path):
    with pytest.raises(InputError, match="refused"):
        download_wikipedia("testwiki", "20260101", tmp_path / "dump", sites=["http://127.0.0.1:9"])


@pytest.mark.parametrize(
    ("wiki", "date"), [("../etc", "20260101"), ("enwiki", "yesterday"), ("EN", "latest"), ("", "latest")]
)
def test_names_and_dates_are_checked(tmp_path, wiki, date):
    with pytest.raises(UsageError):
        download_wikipedia(wiki, date, tmp_path / "dump", sites=[])


MSR_HEADER = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"


def glue_contents() -> dict[str, bytes]:
    """Small files in the layout of GLUE's official ones."""
    contents: dict[str, bytes] = {}
    for task in TASKS.values():
        if task.suite != "glue" or task.name == "mrpc":
            continue
        columns = [name for name in (task.columns.text_a, task.columns.text_b) if name]
        label = task.labels[0] if task.labels else "2.5"
        table = "\t".join(["index", *columns, task.columns.label]) + "\n" + "\t".join(["0", *columns, label]) + "\n"
        files = {*task.dev_files.values(), *task.test_files.values(), task.train_file} - {"diagnostic.tsv"}
        archive = {f"{task.folder}/{file}": table for file in sorted(files)}
        archive[f"{task.folder}/original/raw.txt"] = "not a task file"
        name = {"qqp": "QQP-clean", "qnli": "QNLIv2"}.get(task.name, task.folder)
        contents[f"glue/data/{name}.zip"] = zipped(archive)
    contents["glue/data/AX.tsv"] = b"index\tsentence1\tsentence2\n0\ta\tb\n"
    contents["glue/data/mrpc_dev_ids.tsv"] = b"3\t4\n"
    msr = "senteval/senteval_data/msr_paraphrase"
    contents[f"{msr}_train.txt"] = (MSR_HEADER + '1\t1\t2\ta "b\tc\n0\t3\t4\td\te\n1\t4\t3\tf\tg\n').encode()
    contents[f"{msr}_test.txt"] = (MSR_HEADER + "1\t5\t6\th\ti\n0\t7\t8\tj\tk\n").encode()
    return contents


@pytest.fixture
def serve_tasks(site, monkeypatch):
    """Make `site` the official site of a suite with these files."""

    def serve(suite: str, contents: dict[str, bytes]) -> None:
        site.files |= {f"/{path}": data for path, data in contents.items()}
        files = tuple(RemoteFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in contents.items())
        monkeypatch.setitem(OFFICIAL_FILES, suite, (site.url, files))

    return serve


def zipped(files: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return stream.getvalue()


def test_table_of_task_files_has_the_official_addresses():
    addresses = {f"{site}/{file.path}" for site, files in OFFICIAL_FILES.values() for file in files}
    assert {
        "https://dl.fbaipublicfiles.com/glue/data/CoLA.zip",
        "https://dl.fbaipublicfiles.com/glue/data/QQP-clean.zip",
        "https://dl.fbaipublicfiles.com/glue/data/QNLIv2.zip",
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/train-v2.0.json",
        "https://raw.githubusercontent.com/rowanz/swagaf/master/data/val.csv",
    } < addresses
    assert all(len(file.digest) == 64 and file.size for _, files in OFFICIAL_FILES.values() for file in files)


def test_files_are_official_by_hash():
    published = {file.name: file.digest for file in OFFICIAL_FILES["squad"][1] if "v1.1" in file.name}
    data = TaskData(task=TASKS["squad1"], train=[], dev={}, sha256=published)
    assert data.is_official
    assert not dataclasses.replace(data, own_split=True).is_official
    assert not dataclasses.replace(data, sha256=published | {"dev-v1.1.json": "0" * 64}).is_official


def test_glue_is_unpacked_as_every_task_reads_it(site, serve_tasks, tmp_path):
    serve_tasks("glue", glue_contents())
    manifest = download_tasks("glue", tmp_path / "glue")
    assert manifest.inputs["CoLA.zip"]["sha256"] == hashlib.sha256(site.files["/glue/data/CoLA.zip"]).hexdigest()
    assert not any("original" in name for name in manifest.files)
    for task in TASKS.values():
        if task.suite == "glue":
            data = load_task_data(task, tmp_path / "glue")
            assert data.train
            assert set(data.dev) == set(task.dev_files)
            assert set(data.test) == set(task.test_files)
            assert data.absent == ()
            assert data.is_official
    assert [path.name for path in tmp_path.iterdir()] == ["glue"]
    # A changed file, and the same files elsewhere, are not known to be official.
    changed = tmp_path / "glue" / "CoLA" / "dev.tsv"
    changed.write_text(changed.read_text().replace("\n0\t", "\n0\tanother "))
    assert not load_task_data("cola", tmp_path / "glue").is_official
    shutil.copytree(tmp_path / "glue" / "RTE", tmp_path / "copy" / "RTE")
    assert not load_task_data("rte", tmp_path / "copy").is_official


def test_mrpc_is_split_by_the_dev_ids_and_its_test_rows_are_numbered(serve_tasks, tmp_path):
    serve_tasks("glue", glue_contents())
    download_tasks("glue", tmp_path / "glue")
    data = load_task_data("mrpc", tmp_path / "glue")
    assert [(example.text_a, example.label) for example in data.train] == [('a "b', "1"), ("f", "1")]
    assert [(example.text_a, example.text_b) for example in data.dev["dev"]] == [("d", "e")]
    assert [(example.example_id, example.text_a, example.label) for example in data.test["test"]] == [
        ("0", "h", None),
        ("1", "j", None),
    ]


def test_task_files_of_a_folder_come_before_the_network(site, serve_tasks, tmp_path, caplog):
    contents = {f"rowanz/swagaf/master/data/{name}.csv": name.encode() * 9 for name in ("train", "val", "test")}
    serve_tasks("swag", contents)
    folder = tmp_path / "downloads"
    folder.mkdir()
    (folder / "train.csv").write_bytes(b"train" * 9)
    (folder / "val.csv").write_bytes(b"something else")
    download_tasks("swag", tmp_path / "swag", sources=[str(folder)])
    assert sorted(path.rpartition("/")[2] for path, _, _ in site.requests) == ["test.csv", "val.csv"]
    assert (tmp_path / "swag" / "val.csv").read_bytes() == b"val" * 9
    assert (folder / "train.csv").read_bytes() == b"train" * 9
    assert "val.csv: sha256 is" in caplog.text


def test_task_mirror_is_asked_first_and_the_official_site_next(site, serve_tasks, tmp_path):
    contents = {f"SQuAD-explorer/dataset/{name}.json": name.encode() for name in ("train-v1.1", "dev-v1.1")}
    serve_tasks("squad", contents)
    with served_site() as mirror:
        mirror.files["/SQuAD-explorer/dataset/train-v1.1.json"] = b"train-v1.1"
        download_tasks("squad", tmp_path / "squad", sources=[mirror.url])
    assert [path.rpartition("/")[2] for path, _, _ in site.requests] == ["dev-v1.1.json"]
    assert (tmp_path / "squad" / "train-v1.1.json").read_bytes() == b"train-v1.1"


def test_changed_task_file_is_refused_and_leaves_no_directory(site, serve_tasks, tmp_path):
    serve_tasks("swag", {"rowanz/swagaf/master/data/val.csv": b"official"})
    site.files["/rowanz/swagaf/master/data/val.csv"] = b"tampered"
    with pytest.raises(InputError, match=r"val.csv: sha256 is .*, the published one is .*; run the same"):
        download_tasks("swag", tmp_path / "swag")
    assert not (tmp_path / "swag").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../escaped.tsv", r"the archives hold no RTE/dev.tsv, RTE/test.tsv, RTE/train.tsv"),
        ("RTE/train.tsv", r"the archives hold no RTE/dev.tsv, RTE/test.tsv"),
    ],
)
def test_hostile_or_incomplete_archive_publishes_nothing(serve_tasks, tmp_path, name, message):
    serve_tasks("glue", glue_contents() | {"glue/data/RTE.zip": zipped({name: "x"})})
    with pytest.raises(InputError, match=message):
        download_tasks("glue", tmp_path / "glue")
    assert not (tmp_path / "glue").exists()
    assert not (tmp_path / "escaped.tsv").exists()


def test_download_command_prints_the_files_and_refuses_options_of_dumps(serve_tasks, tmp_path, capsys):
    serve_tasks("swag", {"rowanz/swagaf/master/data/val.csv": b"rows"})
    assert run_command("download", "swag", "--output", str(tmp_path / "swag")) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "swag" / "val.csv")]
    with pytest.raises(UsageError, match="--wiki is about Wikipedia dumps"):
        run_command("download", "swag", "--output", str(tmp_path / "x"), "--wiki", "dewiki")
    with pytest.raises(UsageError, match="expected the address of a mirror"):
        run_command("download", "wikipedia", "--output", str(tmp_path / "x"), "--from", str(tmp_path))
    with pytest.raises(InputError, match="no such folder; give a folder with val.csv"):
        run_command("download", "swag", "--output", str(tmp_path / "x"), "--from", str(tmp_path / "none"))


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_commands(parser.add_subparsers())
    arguments = parser.parse_args(words)
    return int(arguments.run(arguments))


@pytest.mark.real_data
def test_mrpc_of_the_original_files_equals_the_output_of_glues_script(serve_tasks, tmp_path, real_data):
    official = {file.name: file for file in OFFICIAL_FILES["glue"][1]}
    contents = glue_contents()
    for path in contents:
        name = path.rpartition("/")[2]
        original = real_data / "glue" / "MRPC" / name.replace("mrpc_dev_ids", "dev_ids")
        if "msr_" in name or "dev_ids" in name:
            contents[path] = original.read_bytes()
            assert hashlib.sha256(contents[path]).hexdigest() == official[name].digest
    serve_tasks("glue", contents)
    download_tasks("glue", tmp_path / "glue")
    for name in ("dev.tsv", "test.tsv"):
        lines = []
        for folder in (tmp_path, real_data):
            with open_source(folder / "glue" / "MRPC" / name) as source:
                lines.append([record.line for record in source.lines() if not record.is_blank])
        assert lines[0] == lines[1]
    assert len(read_examples(TASKS["mrpc"], tmp_path / "glue" / "MRPC" / "train.tsv")) == 3668
