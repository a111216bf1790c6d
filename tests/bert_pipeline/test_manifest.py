import contextlib
import datetime
import errno
import functools
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_pipeline.atomic import atomic_write, disk_errors, remove_abandoned_drafts
from bert_pipeline.errors import ArtifactError, DiskFullError, InputError, UnavailableError
from bert_pipeline.hashes import checked_copy, content_sha256
from bert_pipeline.manifest import (
    MANIFEST_NAME,
    files_of,
    foreign_input,
    input_of,
    load_manifest,
    local_artifact,
    publishing,
    refuse_foreign_directory,
)
from bert_pipeline.storage import make_directory, sizes_below, to_path

KNOWN_SHA256 = "44f3076eefb9e368380996274b882cfa179e5f63ebf8cd262c0ba5fb07fd4178"
"""Identity of the directory that `publish` writes, as computed before directories could be in a store."""


def publish(directory: Path | str, text: str = "one\ntwo\n", *, by_workers: bool = False, **inputs: dict) -> None:
    settings = {"configuration": {"language": "en"}, "inputs": inputs, "by_workers": by_workers}
    with publishing(directory, kind="corpus", **settings) as draft:
        make_directory(draft.path / "train")
        with atomic_write(draft.path / "train" / "part.txt") as path:
            path.write_text(text)
        draft.rows["train/part.txt"] = 2
        draft.counts["documents"] = 2
        draft.provenance["workers"] = 4


drafting = functools.partial(publishing, kind="corpus", configuration={}, inputs={})


@pytest.fixture
def older(tmp_path):
    """A published corpus; the test fails if it is not as it was at the end, or if there is anything beside it."""
    publish(tmp_path / "corpus")
    sha256 = load_manifest(tmp_path / "corpus").sha256
    yield tmp_path / "corpus"
    assert load_manifest(tmp_path / "corpus", verify="sha256").sha256 == sha256
    assert leftovers(tmp_path) == []


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def assert_refused(place: Path | str, message: str, kind: str = "corpus") -> None:
    """Check that publishing is refused before the work begins."""
    with pytest.raises(ArtifactError, match=message), publishing(place, kind=kind, configuration={}, inputs={}):
        pytest.fail("the work began")


def test_published_directory_has_manifest(tmp_path):
    publish(tmp_path / "corpus")
    manifest = load_manifest(tmp_path / "corpus", kind="corpus", verify="sha256")
    assert manifest.files["train/part.txt"]["rows"] == 2
    assert manifest.files["train/part.txt"]["bytes"] == 8
    assert manifest.counts == {"documents": 2}
    assert manifest.provenance["workers"] == 4
    assert leftovers(tmp_path) == []


def test_hash_depends_on_content_only(tmp_path):
    publish(tmp_path / "first")
    publish(tmp_path / "second")
    publish(tmp_path / "other", text="one\nsix\n")
    hashes = [load_manifest(tmp_path / name).sha256 for name in ("first", "second", "other")]
    assert hashes[0] == hashes[1] != hashes[2]


def test_inputs_are_named_by_their_hashes(tmp_path):
    publish(tmp_path / "corpus")
    source = tmp_path / "dump.xml"
    source.write_text("<mediawiki/>")
    corpus = load_manifest(tmp_path / "corpus")
    publish(tmp_path / "next", corpus=input_of(corpus), dump=foreign_input(source))
    inputs = load_manifest(tmp_path / "next").inputs
    assert inputs["corpus"]["content_sha256"] == corpus.sha256
    assert inputs["dump"]["name"] == "dump.xml"
    assert len(inputs["dump"]["sha256"]) == 64


def test_failure_leaves_nothing_and_keeps_the_older_artifact(older):
    with pytest.raises(RuntimeError), drafting(older) as draft:
        raise RuntimeError((draft.path / "half.txt").write_text("half"))


def test_file_that_was_lost_is_not_published(older):
    message = r"train/part\.txt: not found, but 2 rows were written to it"
    with pytest.raises(ArtifactError, match=message), drafting(older) as draft:
        draft.rows["train/part.txt"] = 2


def test_another_format_is_refused_and_not_replaced_by_another_kind(tmp_path):
    publish(tmp_path / "corpus")
    assert load_manifest(tmp_path / "corpus").format_version == 3
    path = tmp_path / "corpus" / MANIFEST_NAME
    document = json.loads(path.read_text())
    for version in (2, 4):
        document["content"]["format_version"] = version
        document["content_sha256"] = content_sha256(document["content"])
        path.write_text(json.dumps(document))
        message = f"its format is {version}, this version of the project reads 3; make the corpus again"
        with pytest.raises(ArtifactError, match=message):
            load_manifest(tmp_path / "corpus")
        with pytest.raises(ArtifactError, match="holds a corpus, which a vocabulary would replace"):
            refuse_foreign_directory(tmp_path / "corpus", "vocabulary")
    publish(tmp_path / "corpus")
    assert load_manifest(tmp_path / "corpus").format_version == 3


def test_directory_without_manifest_is_never_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="not ours"):
        publish(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("within", [False, True])
def test_full_disk_is_named_and_keeps_the_older_artifact(older, within):
    with (
        pytest.raises(DiskFullError, match=rf"^{older}: cannot be written: No space .* [\d,]+ bytes are free"),
        drafting(older) as draft,
        atomic_write(draft.path / "shard") if within else contextlib.nullcontext(),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_is_named_where_no_temporary_directory_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with (
        pytest.raises(DiskFullError, match=rf"^{tmp_path}/file: cannot be written: No space"),
        disk_errors(tmp_path / "file"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("a/b", errno.EROFS, "a/b: cannot be written: {}: Read-only file system; "),
        ("mine", errno.EACCES, "mine: cannot be written: {}: Permission denied; "),
    ],
)
def test_place_that_cannot_be_written_is_named(tmp_path, monkeypatch, name, code, message):
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(Path, "mkdir", mock.Mock(side_effect=OSError(code, os.strerror(code))))
    assert_refused(tmp_path / name, message.format(tmp_path))


@pytest.mark.parametrize(
    ("name", "what"),
    [(".", "the working directory"), ("absolute", "the working directory"), ("mounted", "a mount point")],
)
def test_directory_that_cannot_be_replaced_is_refused_before_the_work(tmp_path, monkeypatch, name, what):
    monkeypatch.chdir(tmp_path)
    if name == "mounted":
        (tmp_path / name).mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "mounted")
    place = tmp_path if name == "absolute" else name
    assert_refused(place, f"is {what}, which cannot be replaced; give a path in it")


def test_link_to_nowhere_is_refused_before_the_work(tmp_path):
    (tmp_path / "target").symlink_to(tmp_path / "missing")
    assert_refused(tmp_path / "target", "symbolic link to .*missing, which is not a directory; give another path")


def test_draft_of_dead_process_is_removed(tmp_path):
    dead = tmp_path / ".corpus.partial-999999999"
    dead.mkdir()
    publish(tmp_path / "corpus")
    assert not dead.exists()


def test_two_writers_keep_their_drafts_and_the_second_is_refused(tmp_path):
    target = tmp_path / "corpus"

    def write_slowly():
        with drafting(target) as slow:
            (slow.path / "slow.txt").write_text("slow")
            # The other writer has the same process id, as it may in another container that shares the volume.
            publish(target)
            assert (slow.path / "slow.txt").is_file()

    with pytest.raises(ArtifactError, match="corpus: another run has published or written here since this one began"):
        write_slowly()
    assert list(load_manifest(target, verify="sha256").files) == ["train/part.txt"]
    assert not (target / "slow.txt").exists()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("store", ["", "memory://late"])
def test_late_files_of_lost_workers_are_not_published(tmp_path, store):
    target = to_path(f"{store}/{tmp_path.name}") if store else tmp_path / "corpus"
    with drafting(target, by_workers=True) as draft:
        for name in ("shard-0", "list", "shard-0.tmp", "scratch/part"):
            make_directory((draft.path / name).parent)
            (draft.path / name).write_text(name)
        draft.rows["shard-0"] = 1
        draft.files_without_rows = {"list"}
    manifest = load_manifest(target, verify="sha256")
    assert list(manifest.files) == ["list", "shard-0"]
    left = sizes_below(manifest.path) if store else {path.name for path in target.iterdir()}
    assert set(left) - {MANIFEST_NAME} == {"list", "shard-0"}


@pytest.mark.parametrize("published", [False, True])
def test_files_added_to_the_output_during_the_job_are_kept(tmp_path, published):
    target = tmp_path / "corpus"
    if published:
        publish(target)

    def write_while_a_note_is_left():
        with drafting(target):
            target.mkdir(exist_ok=True)
            (target / "notes.txt").write_text("mine")

    with pytest.raises(ArtifactError, match="published or written here"):
        write_while_a_note_is_left()
    assert (target / "notes.txt").read_text() == "mine"
    assert leftovers(tmp_path) == []


def test_output_that_is_a_link_is_replaced_and_its_target_kept(tmp_path):
    publish(tmp_path / "elsewhere" / "corpus")
    (tmp_path / "corpus").symlink_to(tmp_path / "elsewhere" / "corpus")
    publish(tmp_path / "corpus")
    assert not (tmp_path / "corpus").is_symlink()
    load_manifest(tmp_path / "elsewhere" / "corpus", verify="sha256")
    assert leftovers(tmp_path) == []


def test_output_name_is_no_pattern_for_drafts(tmp_path):
    publish(tmp_path / "corpus")
    (tmp_path / "corpus").rename(tmp_path / ".corpus.partial-999999999-old")
    publish(tmp_path / "c*s")
    assert leftovers(tmp_path) == [".corpus.partial-999999999-old"]


def test_without_locks_a_draft_is_abandoned_when_it_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", mock.Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    young, old = (tmp_path / f".corpus.partial-{name}" for name in ("young", "old"))
    young.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    monkeypatch.setattr(time, "time", lambda: 1e10)  # this host's clock is wrong
    publish(tmp_path / "corpus")
    assert leftovers(tmp_path) == [young.name]


def test_kill_between_the_two_renames_keeps_the_older_artifact(older):
    older.rename(older.parent / ".corpus.partial-999999999-old")
    (older.parent / ".corpus.partial-999999999").mkdir()
    remove_abandoned_drafts(older)


def test_failed_rename_puts_the_older_artifact_back(older, monkeypatch):
    rename = os.rename

    def fail_for_draft(source, target):
        if ".partial-" in Path(source).name and not Path(source).name.endswith("-old"):
            raise OSError(errno.EIO, "input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_for_draft)
    with pytest.raises(OSError, match="input/output error"):
        publish(older, text="one\nsix\n")


@pytest.mark.parametrize(
    ("damage", "verify", "message"),
    [
        (lambda part: part.unlink(), "sizes", "part.txt: is missing, expected 8 bytes"),
        (lambda part: part.write_text("x"), "sizes", "part.txt: has 1 bytes, expected 8 bytes"),
        (lambda part: part.write_text("one\nsix\n"), "sha256", r"part\.txt: sha256 is"),
    ],
)
def test_damaged_file_is_named_with_found_and_expected(tmp_path, store, damage, verify, message):
    for place in (str(tmp_path / "corpus"), f"{store}/corpus"):
        publish(place)
        damage(load_manifest(place).file_paths()[0])
        with pytest.raises(ArtifactError, match=message):
            load_manifest(place, verify=verify)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "no manifest.json"),
        (lambda path: path.write_text("{"), "not a valid manifest"),
        (lambda path: path.write_text(path.read_text().replace(": 2", ": 3")), "does not match its own hash"),
        (lambda path: None, "found a corpus, expected a vocabulary"),
    ],
)
def test_manifest_that_is_absent_damaged_or_of_another_kind_raises(tmp_path, damage, message):
    publish(tmp_path / "corpus")
    damage(tmp_path / "corpus" / MANIFEST_NAME)
    with pytest.raises(ArtifactError, match=message):
        load_manifest(tmp_path / "corpus", kind="vocabulary")


def test_file_is_hashed_once_a_process_until_it_changes(older, monkeypatch):
    with mock.patch("hashlib.file_digest", wraps=hashlib.file_digest) as digest:
        for _ in range(2):
            load_manifest(older, verify="sha256")  # a file of this moment may change and keep its time
        assert digest.call_count == 2
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 10)
        for _ in range(3):
            load_manifest(older, verify="sha256")
        assert digest.call_count == 3
    file = older / "train" / "part.txt"
    status, text = file.stat(), file.read_text()
    file.write_text(text.upper())
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # the time of change stays that of the damage
    with pytest.raises(ArtifactError, match="changed or damaged"):
        load_manifest(older, verify="sha256")
    file.write_text(text)


def test_input_is_named_without_the_signature_of_its_url(store):
    fsspec.filesystem("memory").pipe_file("/bucket/dump.xml?X-Amz-Signature=secret", b"x")
    assert foreign_input(f"{store}/dump.xml?X-Amz-Signature=secret")["name"] == "dump.xml"


def test_missing_input_file_raises(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        foreign_input(tmp_path / "absent.xml")


def names_in(url: str) -> list[str]:
    return sorted(name.removeprefix("/bucket/corpus/") for name in fsspec.filesystem("memory").find(url))


@pytest.fixture
def shared(store):
    """The URL of an artifact in a store."""
    publish(f"{store}/corpus")
    return f"{store}/corpus"


def test_artifact_of_another_kind_is_not_replaced(tmp_path, store):
    for place in (tmp_path / "corpus", f"{store}/corpus"):
        publish(place)
        assert_refused(place, "corpus: holds a corpus, which a vocabulary would replace", kind="vocabulary")
        with publishing(place, kind="skipped", configuration={}, inputs={}, replaces="corpus"):
            pass
        assert load_manifest(place).kind == "skipped"
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot be written"):
        publish(tmp_path / "file" / "below")


def test_artifact_has_the_same_hash_on_disk_and_in_a_store(tmp_path, store):
    publish(tmp_path / "corpus")
    publish(f"{store}/corpus")
    publish(f"{store}/other", by_workers=True)
    publish((tmp_path / "by url").as_uri())
    hashes = {
        load_manifest(place, kind="corpus", verify="sha256").sha256
        for place in (tmp_path / "corpus", f"{store}/corpus", f"{store}/other", (tmp_path / "by url").as_uri())
    }
    assert hashes == {KNOWN_SHA256}
    manifest = load_manifest(f"{store}/corpus")
    assert manifest.file_paths("train/")[0].read_text() == "one\ntwo\n"
    assert names_in(f"{store}/corpus") == [f"{manifest.provenance['attempt']}/train/part.txt", "manifest.json"]


def make_old(prefix: str) -> None:
    """Let the files below a prefix of the store have been written eight days ago."""
    for name, file in fsspec.filesystem("memory").store.items():
        if name.startswith(f"/bucket/corpus/{prefix}"):
            file.modified = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=8)


def test_replaced_artifact_of_a_store_stays_for_its_age(shared):
    reader = load_manifest(shared)
    make_old("")
    publish(shared, "three\n", by_workers=True)
    assert load_manifest(shared, verify="sha256").file_paths()[0].read_text() == "three\n"
    assert reader.file_paths()[0].read_text() == "one\ntwo\n"  # a job that began before the replacement
    publish(shared, "three\n", by_workers=True)
    assert reader.file_paths()[0].read_text() == "one\ntwo\n"  # its own files are old, the replacing manifest is not
    make_old("")
    publish(shared, "three\n", by_workers=True)
    assert not any(name.startswith(reader.path.name) for name in names_in(shared))
    assert load_manifest(shared, verify="sha256").file_paths()[0].read_text() == "three\n"


@pytest.mark.parametrize("older", [False, True])
def test_first_of_concurrent_publications_wins_in_a_store(store, older):
    if older:
        publish(f"{store}/corpus", text="old\n")

    def lose() -> None:
        with drafting(f"{store}/corpus", by_workers=True) as draft:
            with atomic_write(draft.path / "part.txt") as path:
                path.write_text("late\n")
            publish(f"{store}/corpus", text="first\n")

    with pytest.raises(ArtifactError, match="another run has published here.*is kept"):
        lose()
    manifest = load_manifest(f"{store}/corpus", verify="sha256")
    assert manifest.file_paths()[0].read_text() == "first\n"
    assert len(names_in(f"{store}/corpus")) == 2 + older


def test_failure_leaves_nothing_in_a_store(store):
    def fail() -> None:
        with drafting(f"{store}/corpus", by_workers=True) as draft:
            with atomic_write(draft.path / "part.txt") as path:
                path.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names_in(f"{store}/corpus") == []


def test_manifest_whose_write_was_not_answered_keeps_its_files(store, monkeypatch):
    write = MemoryFileSystem.pipe_file

    def lose_the_answer(self, path: str, value: bytes, **options: Any) -> None:
        write(self, path, value, **options)
        if path.endswith(MANIFEST_NAME):
            raise UnavailableError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lose_the_answer)
    with pytest.raises(UnavailableError):
        publish(f"{store}/corpus")
    assert load_manifest(f"{store}/corpus", verify="sha256").counts == {"documents": 2}


def test_left_overs_in_a_store_are_removed_by_their_age(store, monkeypatch):
    files = fsspec.filesystem("memory")
    for name in ("attempt-0a/part", "attempt-0b/part"):
        files.pipe_file(f"/bucket/corpus/{name}", b"x")
    make_old("attempt-0a")
    monkeypatch.setattr(time, "time", lambda: 1e10)  # this host's clock is wrong, the store's is not
    publish(f"{store}/corpus")
    assert "attempt-0a/part" not in names_in(f"{store}/corpus")
    assert "attempt-0b/part" in names_in(f"{store}/corpus")  # another machine may still write to it


def test_other_files_in_a_store_are_never_overwritten(store):
    fsspec.filesystem("memory").pipe_file("/bucket/corpus/photo.jpg", b"x")
    with pytest.raises(ArtifactError, match="holds files that are not ours"):
        publish(f"{store}/corpus")


@pytest.mark.parametrize("text", ["{", "[]", '{"provenance": {"attempt": "../other"}}', '{"provenance": 1}'])
def test_damaged_manifest_in_a_store_is_replaced_and_removes_nothing(store, text):
    publish(f"{store}/other")
    files = fsspec.filesystem("memory")
    files.pipe({"/bucket/corpus/manifest.json": text.encode()})
    with pytest.raises(ArtifactError, match="corpus/manifest.json: not a valid manifest"):
        load_manifest(f"{store}/corpus")
    publish(f"{store}/corpus")
    for name in ("corpus", "other"):
        load_manifest(f"{store}/{name}", verify="sha256")


def test_layouts_of_foreign_copies_are_found(tmp_path, store, shared):
    there = load_manifest(shared)
    fsspec.filesystem("memory").get("/bucket/corpus/", str(tmp_path / "same layout/"), recursive=True)
    copied = load_manifest(tmp_path / "same layout", verify="sha256")
    assert (copied.sha256, copied.directory) == (there.sha256, tmp_path / "same layout")
    assert files_of(tmp_path / "same layout") == copied.path != copied.directory
    flat = local_artifact(shared, tmp_path / "cache")
    fsspec.filesystem("memory").put(f"{flat}/", "/bucket/back/", recursive=True)
    back = load_manifest(f"{store}/back", verify="sha256")
    assert (back.sha256, back.path, back.directory) == (there.sha256, *[to_path(f"{store}/back")] * 2)


def test_file_that_is_removed_while_it_is_copied_is_named(tmp_path, shared, monkeypatch):
    monkeypatch.setattr(MemoryFileSystem, "get_file", mock.Mock(side_effect=FileNotFoundError))
    with pytest.raises(ArtifactError, match="train/part.txt: removed or replaced while it was copied; run the command"):
        local_artifact(shared, tmp_path / "cache")


def test_manifest_of_a_store_names_no_files_elsewhere(store, shared):
    path = to_path(f"{store}/corpus/manifest.json")
    path.write_text(path.read_text().replace('"attempt-', '"attempt-../../'))
    with pytest.raises(ArtifactError, match="not a valid manifest"):
        load_manifest(shared)


def test_artifact_of_a_store_is_copied_once(shared, tmp_path, monkeypatch):
    copy = local_artifact(shared, tmp_path / "cache")
    assert load_manifest(copy, verify="sha256").sha256 == KNOWN_SHA256
    assert local_artifact(copy, tmp_path / "cache") == copy
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "get_file", None)
        assert local_artifact(shared, tmp_path / "cache") == copy
    (copy / "train" / "part.txt").unlink()  # by a clean-up of old files
    assert local_artifact(shared, tmp_path / "cache") == copy
    assert (copy / "train" / "part.txt").read_text() == "one\ntwo\n"


def test_shard_of_a_store_is_fetched_once_and_checked(shared, monkeypatch):
    path, entry = load_manifest(shared).file_paths()[0], "0" * 64
    sha256 = load_manifest(shared).files["train/part.txt"]["sha256"]
    with monkeypatch.context() as patch:
        opened = mock.Mock(side_effect=fsspec.filesystem("memory").open)
        patch.setattr(MemoryFileSystem, "open", opened)
        with checked_copy(path, sha256) as local:
            assert local.read_text() == "one\ntwo\n"
    assert opened.call_count == 1
    with pytest.raises(ArtifactError, match=f"{path}: sha256 is .*, expected 000000"), checked_copy(path, entry):
        pytest.fail("the block began")


def test_artifact_that_arrives_damaged_is_not_kept(shared, tmp_path):
    load_manifest(shared).file_paths()[0].write_text("one\nsix\n")
    with pytest.raises(ArtifactError, match="sha256 is"):
        local_artifact(shared, tmp_path / "cache")
    assert not (tmp_path / "cache" / KNOWN_SHA256).exists()


@pytest.mark.parametrize(
    ("answer", "expected", "message"),
    [
        (FileNotFoundError("The specified bucket does not exist"), InputError, "create the bucket"),
        (PermissionError("Access Denied"), ArtifactError, "check the credentials"),
    ],
)
def test_store_that_takes_no_files_is_named_before_the_work(store, monkeypatch, answer, expected, message):
    answer.__cause__ = type("ClientError", (Exception,), {"__module__": "botocore.exceptions"})()
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", mock.Mock(side_effect=answer))
    with pytest.raises(expected, match=message), drafting(f"{store}/corpus"):
        pytest.fail("the work began")
