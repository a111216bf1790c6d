import builtins
import errno
import io
import os
import pickle
import threading
from unittest import mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_pipeline import storage
from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import ArtifactError, DiskFullError, InputError, UnavailableError, UsageError
from bert_pipeline.manifest import fetched, publishing
from bert_pipeline.storage import (
    local_copy,
    local_directory,
    open_binary,
    remove_tree,
    replace_object,
    size_of,
    to_path,
    upload,
)


def test_local_names_and_file_urls_are_ordinary_paths(tmp_path):
    (tmp_path / "a b.txt").write_text("text")
    url = (tmp_path / "a b.txt").as_uri()
    assert to_path(url) == tmp_path / "a b.txt"
    assert type(to_path(url)) is type(to_path(str(tmp_path))) is type(tmp_path)
    assert not storage.is_remote(url)
    assert to_path(f"file://{tmp_path}/a#b") == to_path(f"file://localhost{tmp_path}/a#b") == tmp_path / "a#b"
    assert to_path("names=jsonl:C/a:b") == type(tmp_path)("names=jsonl:C/a:b")
    with open_binary(to_path(url)) as stream:
        assert isinstance(stream, io.BufferedReader)  # the same object as of open(): no slower


def test_files_of_a_store_are_written_listed_read_and_removed(store, tmp_path):
    directory = to_path(f"{store}/corpus")
    (tmp_path / "shard").write_bytes(b"0123456789")
    upload(tmp_path / "shard", directory / "train" / "shard")
    with atomic_write(directory / "other") as local:
        local.write_text("other")
    assert sorted(file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()) == [
        "other",
        "train/shard",
    ]
    assert size_of(f"{store}/corpus/train/shard") == 10
    with open_binary(directory / "train" / "shard") as stream:
        stream.seek(4)
        assert stream.read(3) == b"456"
    with local_copy(directory / "train" / "shard") as local:
        assert local.read_bytes() == b"0123456789"
    assert not local.exists()
    assert storage.modified(directory) > (tmp_path / "shard").stat().st_mtime - 60
    assert pickle.loads(pickle.dumps(directory)) == directory
    storage.remove_tree(directory)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("https://host/a/wiki.bz2?X-Amz-Signature=a/b&X=1", "https://host/a/wiki.bz2"),
        ("jsonl:https://me:secret@host/a.jsonl", "jsonl:https://host/a.jsonl"),
        ("s3://bucket/a?.xml", "s3://bucket/a?.xml"),
        ("me:secret@folder/a?b=c", "me:secret@folder/a?b=c"),
    ],
)
def test_names_for_manifests_have_no_secrets(name, expected):
    assert storage.without_secrets(name) == expected


def test_failed_write_uploads_nothing(store):
    with pytest.raises(ZeroDivisionError), atomic_write(to_path(f"{store}/file")) as local:
        raise ZeroDivisionError(local.write_text("half"))
    assert not to_path(f"{store}/file").exists()


@pytest.mark.parametrize("whole", [False, True])
def test_full_temporary_disk_is_named(store, whole):
    attempt = publishing(f"{store}/out", kind="corpus", configuration={}, inputs={})
    with (
        pytest.raises(DiskFullError, match="/bert-[^:]*: cannot be written: No space left on device; .*another TMPDIR"),
        attempt if whole else atomic_write(to_path(f"{store}/file")),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_path_of_a_store_is_never_opened_as_a_local_file(store):
    with pytest.raises(TypeError):
        builtins.open(to_path(f"{store}/file"), "wb")  # noqa: SIM115


def test_one_of_many_writers_of_an_object_wins(store):
    won = []

    def write(number: int) -> None:
        if replace_object(f"{store}/manifest.json", b"%d" % number, old=None):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert to_path(f"{store}/manifest.json").read_bytes() == b"%d" % won[0]


def test_object_is_replaced_only_if_nobody_else_did(store):
    name = f"{store}/manifest.json"
    assert replace_object(name, b"first", old=None)
    assert replace_object(name, b"second", old=b"first")
    assert not replace_object(name, b"third", old=b"first")
    assert to_path(name).read_bytes() == b"second"
    to_path(name).unlink()
    assert not replace_object(name, b"third", old=b"second")


def test_store_without_conditions_is_asked_before(store, monkeypatch):
    pipe_file = MemoryFileSystem.pipe_file

    def refuse(self, path, value, mode="overwrite", **options):
        if mode == "create":
            raise ValueError("unsupported mode")
        pipe_file(self, path, value, mode=mode, **options)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    assert replace_object(f"{store}/manifest.json", b"first", old=None)
    assert not replace_object(f"{store}/manifest.json", b"second", old=None)


def test_patterns_name_files_of_a_store(store):
    for name in ("a.txt", "b.xml", "deep/c.txt", "deep/er/d.txt"):
        fsspec.filesystem("memory").pipe_file(f"/bucket/in/{name}", b"x")
    found = {
        pattern: [name.removeprefix(f"{store}/in/") for name in storage.files_matching(f"{store}/in/{pattern}")]
        for pattern in ("*.txt", "**/*.txt", "[ab].*", "deep/*", "none*", "a.txt")
    }
    assert found == {
        "*.txt": ["a.txt"],
        "**/*.txt": ["a.txt", "deep/c.txt", "deep/er/d.txt"],
        "[ab].*": ["a.txt", "b.xml"],
        "deep/*": ["deep/c.txt"],
        "none*": [],
        "a.txt": [],  # no pattern
    }
    assert storage.files_matching("memory://b*/in") == []


def test_writer_whose_first_answer_was_lost_has_won(store):
    assert [replace_object(f"{store}/manifest.json", b"mine", old=None) for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s4://bucket/x", r"s4://bucket/x: no kind of storage is called 's4' \(known: file, gcs, gs, hdfs, "),
        ("s3://bucket/x", r"client of s3:// is not installed; .*pip install -e '.\[s3\]'"),
        ("s3:/bucket/x", r"s3:/bucket/x: found one slash after s3:, expected s3://"),
        ("gs://bucket/x", r"client of gs:// is not installed; .*pip install -e '.\[gcs\]'"),
        ("hf://datasets/owner/name/x", r"client of hf:// is not installed; Install it$"),
    ],
)
def test_unknown_scheme_and_missing_extra_are_one_sentence(name, message, monkeypatch):
    answer = ValueError("Protocol not known") if name.startswith("s4") else ImportError("Install it")
    monkeypatch.setattr(fsspec, "get_filesystem_class", mock.Mock(side_effect=answer))
    with pytest.raises(UsageError, match=message):
        to_path(name)


EndpointConnectionError, NoCredentialsError = (
    type(name, (Exception,), {"__module__": "botocore.exceptions"})
    for name in ("EndpointConnectionError", "NoCredentialsError")
)


@pytest.mark.parametrize(
    ("raised", "cause", "expected", "message"),
    [
        (EndpointConnectionError("no answer\nfrom x"), None, UnavailableError, "no answer from x"),
        (NoCredentialsError("Unable to locate credentials"), None, ArtifactError, "check the credentials"),
        (PermissionError("Access Denied"), EndpointConnectionError(), ArtifactError, "the store refuses access"),
        (OSError("SlowDown"), EndpointConnectionError(), UnavailableError, "SlowDown"),
    ],
)
def test_errors_of_a_client_are_one_sentence(store, monkeypatch, raised, cause, expected, message):
    raised.__cause__ = cause
    monkeypatch.setattr(MemoryFileSystem, "put_file", mock.Mock(side_effect=raised))
    with pytest.raises(expected, match=message) as error, atomic_write(to_path(f"{store}/file")) as local:
        local.write_text("text")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("memory://bucket/file: ")


def test_directory_of_an_environment_variable_is_local(tmp_path):
    assert local_directory(f"{tmp_path}/../{tmp_path.name}", "BERT_HOME") == tmp_path
    with pytest.raises(UsageError, match="BERT_HOME: found s3://bucket/home, expected a local directory"):
        local_directory("s3://bucket/home", "BERT_HOME")


def test_remove_tree_removes_files_directories_and_links_alone(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "directory/deep").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("directory", "file", "link", "absent"):
        remove_tree(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_other_errors_pass(tmp_path):
    with pytest.raises(ZeroDivisionError), storage.store_errors("s3://bucket"):
        raise ZeroDivisionError
    with pytest.raises(FileNotFoundError), open_binary("memory://bucket/nothing"):
        pass


def test_copy_of_an_absent_file_is_one_sentence():
    with (
        pytest.raises(InputError, match="memory://bucket/nothing: cannot be read .*; check the URL"),
        local_copy("memory://bucket/nothing"),
    ):
        pass


def test_files_of_a_store_are_fetched_once(store, tmp_path, monkeypatch):
    files = fsspec.filesystem("memory")
    files.pipe({"/bucket/task/train.tsv": b"a", "/bucket/task/deep/dev.tsv": b"b"})
    first = fetched(f"{store}/task", tmp_path / "cache")
    assert first.name == "task"
    assert {path.name: path.read_bytes() for path in first.rglob("*.tsv")} == {"train.tsv": b"a", "dev.tsv": b"b"}
    assert fetched(f"{store}/task/train.tsv", tmp_path / "cache").read_bytes() == b"a"
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "get_file", None)
        assert fetched(f"{store}/task", tmp_path / "cache") == first
    files.pipe_file("/bucket/task/train.tsv", b"changed")
    assert (fetched(f"{store}/task", tmp_path / "cache") / "train.tsv").read_bytes() == b"changed"
    assert fetched(first, tmp_path / "cache") == first
    with pytest.raises(UsageError, match="download it"):  # whose changes could not be seen
        fetched("https://example.org/train.tsv", tmp_path / "cache")


def test_markers_of_folders_are_not_fetched(store, tmp_path, monkeypatch):
    fsspec.filesystem("memory").pipe({"/bucket/task/deep/dev.tsv": b"bcd"})
    find = MemoryFileSystem.find

    def with_markers(self, path, detail=False):
        """List the empty objects that consoles make, as s3fs does."""
        listed = find(self, path, detail=True) | {f"{path}/": {"size": 0}, f"{path}/deep/": {"size": 0}}
        return listed if detail else list(listed)

    monkeypatch.setattr(MemoryFileSystem, "find", with_markers)
    copy = fetched(f"{store}/task", tmp_path / "cache")
    assert [path.name for path in copy.rglob("*")] == ["deep", "dev.tsv"]
    assert storage.sizes_below(to_path(f"{store}/task")) == {"deep/dev.tsv": 3}


def test_names_that_lead_out_of_a_directory_are_refused(store, tmp_path):
    with pytest.raises(InputError, match="leads out of its directory"):
        storage.path_below(tmp_path, "a/../../evil")
    with pytest.raises(InputError, match="no such file or directory"):
        fetched(f"{store}/nothing", tmp_path / "cache")
