import contextlib
import datetime
import errno
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import fsspec
import pytest

from bert_pipeline import storage
from bert_pipeline.atomic import atomic_write, naming_full_disk, remove_abandoned_drafts
from bert_pipeline.errors import ArtifactError, DiskFullError, InputError, UnavailableError
from bert_pipeline.manifest import (
    MANIFEST_NAME,
    checked_copy,
    content_sha256,
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


def publish(directory: Path | str, text: str = "one\ntwo\n", **inputs: dict) -> None:
    with publishing(directory, kind="corpus", configuration={"language": "en"}, inputs=inputs) as draft:
        (draft.path / "train").mkdir()
        (draft.path / "train" / "part.txt").write_text(text)
        draft.rows["train/part.txt"] = 2
        draft.counts["documents"] = 2
        draft.provenance["workers"] = 4


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


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


def test_failure_leaves_nothing_and_keeps_the_older_artifact(tmp_path):
    publish(tmp_path / "corpus")
    before = load_manifest(tmp_path / "corpus").sha256

    def fail() -> None:
        with publishing(tmp_path / "corpus", kind="corpus", configuration={}, inputs={}) as draft:
            (draft.path / "half.txt").write_text("half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        fail()
    assert load_manifest(tmp_path / "corpus", verify="sha256").sha256 == before
    assert leftovers(tmp_path) == []


def test_file_that_a_listing_lacks_is_not_published(tmp_path, monkeypatch):
    publish(tmp_path / "corpus")
    before = load_manifest(tmp_path / "corpus").sha256
    listing = Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda self, name: (p for p in listing(self, name) if p.name != "part.txt"))
    with pytest.raises(ArtifactError, match=r"train/part\.txt: not found, but 2 rows were written to it"):
        publish(tmp_path / "corpus")
    assert load_manifest(tmp_path / "corpus", verify="sha256").sha256 == before


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


def test_publishing_replaces_older_artifact(tmp_path):
    publish(tmp_path / "corpus")
    publish(tmp_path / "corpus", text="one\nsix\n")
    assert (tmp_path / "corpus" / "train" / "part.txt").read_text() == "one\nsix\n"


def test_directory_without_manifest_is_never_overwritten(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="not ours"):
        publish(tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years of work"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("within", [False, True])
def test_full_disk_is_named_and_keeps_the_older_artifact(tmp_path, within):
    publish(tmp_path / "corpus")
    older = load_manifest(tmp_path / "corpus")
    with (
        pytest.raises(
            DiskFullError, match=rf"^{tmp_path}/corpus: cannot be written: No space .* [\d,]+ bytes are free"
        ),
        publishing(tmp_path / "corpus", kind="corpus", configuration={}, inputs={}) as draft,
        atomic_write(draft.path / "shard") if within else contextlib.nullcontext(),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert load_manifest(tmp_path / "corpus", verify="sha256").sha256 == older.sha256
    assert leftovers(tmp_path) == []


def test_full_disk_is_named_where_no_temporary_directory_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    with (
        pytest.raises(DiskFullError, match=rf"^{tmp_path}/file: cannot be written: No space"),
        naming_full_disk(tmp_path / "file"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_link_to_nowhere_is_refused_before_the_work(tmp_path):
    target = tmp_path / "target"
    target.symlink_to(tmp_path / "missing")
    with (
        pytest.raises(ArtifactError, match="symbolic link to .*missing, which is not a directory; give another path"),
        publishing(target, kind="corpus", configuration={}, inputs={}),
    ):
        pytest.fail("the work began")


def test_read_only_place_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with (
        pytest.raises(ArtifactError, match=f"{tmp_path}/a/b: cannot be written: {tmp_path}: Read-only file system; "),
        publishing(tmp_path / "a/b", kind="corpus", configuration={}, inputs={}),
    ):
        pytest.fail("the work began")


def test_place_of_an_empty_directory_is_the_one_above(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.setattr(Path, "mkdir", mock.Mock(side_effect=PermissionError(errno.EACCES, os.strerror(errno.EACCES))))
    with (
        pytest.raises(ArtifactError, match=f"{tmp_path}/mine: cannot be written: {tmp_path}: Permission denied; "),
        publishing(tmp_path / "mine", kind="corpus", configuration={}, inputs={}),
    ):
        pytest.fail("the work began")


@pytest.mark.parametrize("name", [".", "absolute", "mounted"])
def test_directory_that_cannot_be_replaced_is_refused_before_the_work(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    what = "the working directory"
    if name == "mounted":
        (tmp_path / name).mkdir()
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "mounted")
        what = "a mount point"
    with (
        pytest.raises(ArtifactError, match=f"is {what}, which cannot be replaced; give a path in it"),
        publishing(tmp_path if name == "absolute" else name, kind="corpus", configuration={}, inputs={}),
    ):
        pytest.fail("the work began")


def test_draft_of_dead_process_is_removed(tmp_path):
    dead = tmp_path / ".corpus.partial-999999999"
    dead.mkdir()
    publish(tmp_path / "corpus")
    assert not dead.exists()


def test_two_writers_keep_their_drafts_and_the_second_is_refused(tmp_path):
    target = tmp_path / "corpus"

    def write_slowly():
        with publishing(target, kind="corpus", configuration={}, inputs={}) as slow:
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
def test_what_a_given_up_worker_writes_late_is_not_published(tmp_path, store):
    target = to_path(f"{store}/{tmp_path.name}") if store else tmp_path / "corpus"
    with publishing(target, kind="corpus", configuration={}, inputs={}, by_workers=True) as draft:
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
def test_files_put_into_the_output_meanwhile_are_kept(tmp_path, published):
    target = tmp_path / "corpus"
    if published:
        publish(target)

    def write_while_a_note_is_left():
        with publishing(target, kind="corpus", configuration={}, inputs={}):
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


def test_drafts_of_another_output_that_its_name_matches_as_a_pattern_are_left(tmp_path):
    publish(tmp_path / "corpus")
    (tmp_path / "corpus").rename(tmp_path / ".corpus.partial-999999999-old")
    publish(tmp_path / "c*s")
    assert leftovers(tmp_path) == [".corpus.partial-999999999-old"]


def test_without_locks_a_draft_is_abandoned_when_it_is_old(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    young, old = (tmp_path / f".corpus.partial-{name}" for name in ("young", "old"))
    young.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    publish(tmp_path / "corpus")
    assert leftovers(tmp_path) == [young.name]


def test_kill_between_the_two_renames_keeps_the_older_artifact(tmp_path):
    publish(tmp_path / "corpus")
    (tmp_path / "corpus").rename(tmp_path / ".corpus.partial-999999999-old")
    (tmp_path / ".corpus.partial-999999999").mkdir()
    remove_abandoned_drafts(tmp_path / "corpus")
    load_manifest(tmp_path / "corpus", verify="sha256")
    assert leftovers(tmp_path) == []


def test_failed_rename_puts_the_older_artifact_back(tmp_path, monkeypatch):
    publish(tmp_path / "corpus")
    rename = os.rename

    def fail_for_draft(source, target):
        if ".partial-" in Path(source).name and not Path(source).name.endswith("-old"):
            raise OSError(errno.EIO, "input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_for_draft)
    with pytest.raises(OSError, match="input/output error"):
        publish(tmp_path / "corpus", text="one\nsix\n")
    load_manifest(tmp_path / "corpus", verify="sha256")
    assert leftovers(tmp_path) == []


def test_flipped_bit_changes_hash(tmp_path):
    publish(tmp_path / "corpus")
    part = tmp_path / "corpus" / "train" / "part.txt"
    part.write_bytes(bytes([part.read_bytes()[0] ^ 1]) + part.read_bytes()[1:])
    load_manifest(tmp_path / "corpus")  # sizes still agree
    with pytest.raises(ArtifactError, match=r"part\.txt: sha256 is"):
        load_manifest(tmp_path / "corpus", verify="sha256")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / MANIFEST_NAME).unlink(), "no manifest.json"),
        (lambda folder: (folder / "train" / "part.txt").unlink(), "is missing, expected 8 bytes"),
        (lambda folder: (folder / "train" / "part.txt").write_text("x"), "has 1 bytes, expected 8 bytes"),
        (lambda folder: (folder / MANIFEST_NAME).write_text("{"), "not a valid manifest"),
    ],
)
def test_damaged_artifact_raises_with_found_and_expected(tmp_path, damage, message):
    publish(tmp_path / "corpus")
    damage(tmp_path / "corpus")
    with pytest.raises(ArtifactError, match=message):
        load_manifest(tmp_path / "corpus")


def test_edited_manifest_raises(tmp_path):
    publish(tmp_path / "corpus")
    path = tmp_path / "corpus" / MANIFEST_NAME
    document = json.loads(path.read_text())
    document["content"]["counts"]["documents"] = 3_000_000
    path.write_text(json.dumps(document))
    with pytest.raises(ArtifactError, match="does not match its own hash"):
        load_manifest(tmp_path / "corpus")


def test_other_kind_of_artifact_raises(tmp_path):
    publish(tmp_path / "corpus")
    with pytest.raises(ArtifactError, match="found a corpus, expected a vocabulary"):
        load_manifest(tmp_path / "corpus", kind="vocabulary")


def test_input_is_named_without_the_signature_of_its_url(store):
    fsspec.filesystem("memory").pipe_file("/bucket/dump.xml?X-Amz-Signature=secret", b"x")
    assert foreign_input(f"{store}/dump.xml?X-Amz-Signature=secret")["name"] == "dump.xml"


def test_missing_input_file_raises(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        foreign_input(tmp_path / "absent.xml")


@pytest.fixture
def store():
    """The URL of an empty store in memory."""
    fsspec.filesystem("memory").store.clear()
    yield "memory://bucket"
    fsspec.filesystem("memory").store.clear()


def names_in(url: str) -> list[str]:
    return sorted(name.removeprefix("/bucket/corpus/") for name in fsspec.filesystem("memory").find(url))


def publish_by_workers(directory: str, text: str = "one\ntwo\n") -> None:
    with publishing(directory, kind="corpus", configuration={"language": "en"}, inputs={}, by_workers=True) as draft:
        with atomic_write(draft.path / "train" / "part.txt") as path:
            path.write_text(text)
        draft.rows["train/part.txt"] = 2
        draft.counts["documents"] = 2


def test_artifact_of_another_kind_is_not_replaced(tmp_path, store):
    for place in (tmp_path / "corpus", f"{store}/corpus"):
        publish(place)
        with (
            pytest.raises(ArtifactError, match="corpus: holds a corpus, which a vocabulary would replace"),
            publishing(place, kind="vocabulary", configuration={}, inputs={}),
        ):
            pytest.fail("nothing is written")
        with publishing(place, kind="skipped", configuration={}, inputs={}, replaces="corpus"):
            pass
        assert load_manifest(place).kind == "skipped"
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot be written"):
        publish(tmp_path / "file" / "below")


def test_hash_of_a_local_artifact_is_the_known_one(tmp_path):
    publish(tmp_path / "corpus")
    assert load_manifest(tmp_path / "corpus").sha256 == KNOWN_SHA256


def test_artifact_has_the_same_hash_on_disk_and_in_a_store(tmp_path, store):
    publish(tmp_path / "corpus")
    publish(f"{store}/corpus")
    publish_by_workers(f"{store}/other")
    publish((tmp_path / "by url").as_uri())
    hashes = {
        load_manifest(place, kind="corpus", verify="sha256").sha256
        for place in (tmp_path / "corpus", f"{store}/corpus", f"{store}/other", (tmp_path / "by url").as_uri())
    }
    assert hashes == {KNOWN_SHA256}
    manifest = load_manifest(f"{store}/corpus")
    assert manifest.file_paths("train/")[0].read_text() == "one\ntwo\n"
    assert names_in(f"{store}/corpus") == [f"{manifest.provenance['attempt']}/train/part.txt", "manifest.json"]


def make_old(store: str, prefix: str) -> None:
    """Let the files of a directory in a store have been written eight days ago."""
    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=8)
    files = fsspec.filesystem("memory").store
    for name in files:
        if name.startswith(f"{store.removeprefix('memory:/')}/corpus/{prefix}"):
            files[name].modified = old


def test_replaced_artifact_of_a_store_stays_for_its_age(store):
    publish(f"{store}/corpus")
    reader = load_manifest(f"{store}/corpus")
    make_old(store, "")
    publish_by_workers(f"{store}/corpus", text="three\n")
    assert load_manifest(f"{store}/corpus", verify="sha256").file_paths()[0].read_text() == "three\n"
    assert reader.file_paths()[0].read_text() == "one\ntwo\n"  # a job that began before the replacement
    publish_by_workers(f"{store}/corpus", text="three\n")
    assert reader.file_paths()[0].read_text() == "one\ntwo\n"  # its own files are old, the replacing manifest is not
    make_old(store, "")
    publish_by_workers(f"{store}/corpus", text="three\n")
    assert not any(name.startswith(reader.path.name) for name in names_in(f"{store}/corpus"))
    assert load_manifest(f"{store}/corpus", verify="sha256").file_paths()[0].read_text() == "three\n"


@pytest.mark.parametrize("older", [False, True])
def test_of_two_runs_that_publish_to_a_store_one_wins_and_the_other_says_so(store, older):
    if older:
        publish(f"{store}/corpus", text="old\n")

    def lose() -> None:
        with publishing(f"{store}/corpus", kind="corpus", configuration={}, inputs={}, by_workers=True) as draft:
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
        with publishing(f"{store}/corpus", kind="corpus", configuration={}, inputs={}, by_workers=True) as draft:
            with atomic_write(draft.path / "part.txt") as path:
                path.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names_in(f"{store}/corpus") == []


def test_manifest_whose_write_was_not_answered_keeps_its_files(store, monkeypatch):
    replace = storage.replace_object

    def lose_the_answer(name: Path, data: bytes, *, old: bytes | None) -> bool:
        replace(name, data, old=old)
        raise UnavailableError("no answer")

    monkeypatch.setattr(storage, "replace_object", lose_the_answer)
    with pytest.raises(UnavailableError):
        publish(f"{store}/corpus")
    assert load_manifest(f"{store}/corpus", verify="sha256").counts == {"documents": 2}


def test_left_overs_in_a_store_are_removed_by_their_age(store, monkeypatch):
    files = fsspec.filesystem("memory")
    for name in ("attempt-0a/part", "attempt-0b/part"):
        files.pipe_file(f"/bucket/corpus/{name}", b"x")
    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=8)
    files.store["/bucket/corpus/attempt-0a/part"].modified = old
    publish(f"{store}/corpus")
    assert "attempt-0a/part" not in names_in(f"{store}/corpus")
    assert "attempt-0b/part" in names_in(f"{store}/corpus")  # another machine may still write to it


def test_other_files_in_a_store_are_never_overwritten(store):
    fsspec.filesystem("memory").pipe_file("/bucket/corpus/photo.jpg", b"x")
    with pytest.raises(ArtifactError, match="holds files that are not ours"):
        publish(f"{store}/corpus")


def test_damaged_artifact_in_a_store_is_named(store):
    publish(f"{store}/corpus")
    path = load_manifest(f"{store}/corpus").file_paths()[0]
    path.write_text("one\nsix\n")
    with pytest.raises(ArtifactError, match="sha256 is"):
        load_manifest(f"{store}/corpus", verify="sha256")
    path.write_text("one\n")
    with pytest.raises(ArtifactError, match="has 4 bytes, expected 8"):
        load_manifest(f"{store}/corpus")
    path.unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        load_manifest(f"{store}/corpus")


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


def test_marker_of_a_folder_is_no_file(store):
    # As consoles of stores write it; `memory` would refuse to list such a name beside others.
    found = {"bucket/corpus/": {"size": 0}, "bucket/corpus/part/": {"size": 0}, "bucket/corpus/part/x": {"size": 3}}
    path = to_path(f"{store}/corpus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(path.fs), "find", lambda *_, **__: {f"/{name}": entry for name, entry in found.items()})
        assert sizes_below(path) == {"part/x": 3}


def test_artifact_that_other_means_copied_from_a_store_and_back_is_found(tmp_path, store):
    publish(f"{store}/corpus")
    there = load_manifest(f"{store}/corpus")
    fsspec.filesystem("memory").get("/bucket/corpus/", str(tmp_path / "same layout/"), recursive=True)
    copied = load_manifest(tmp_path / "same layout", verify="sha256")
    assert (copied.sha256, copied.directory) == (there.sha256, tmp_path / "same layout")
    assert files_of(tmp_path / "same layout") == copied.path != copied.directory
    flat = local_artifact(f"{store}/corpus", tmp_path / "cache")
    fsspec.filesystem("memory").put(f"{flat}/", "/bucket/back/", recursive=True)
    back = load_manifest(f"{store}/back", verify="sha256")
    assert (back.sha256, back.path, back.directory) == (
        there.sha256,
        to_path(f"{store}/back"),
        to_path(f"{store}/back"),
    )


def test_file_that_is_removed_while_it_is_copied_is_named(tmp_path, store, monkeypatch):
    publish(f"{store}/corpus")

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(storage, "download", gone)
    with pytest.raises(ArtifactError, match="train/part.txt: removed or replaced while it was copied; run the command"):
        local_artifact(f"{store}/corpus", tmp_path / "cache")


def test_manifest_of_a_store_names_no_files_elsewhere(store):
    publish(f"{store}/corpus")
    path = to_path(f"{store}/corpus/manifest.json")
    path.write_text(path.read_text().replace('"attempt-', '"attempt-../../'))
    with pytest.raises(ArtifactError, match="not a valid manifest"):
        load_manifest(f"{store}/corpus")


def test_artifact_of_a_store_is_copied_once(store, tmp_path, monkeypatch):
    publish(f"{store}/corpus")
    copy = local_artifact(f"{store}/corpus", tmp_path / "cache")
    assert load_manifest(copy, verify="sha256").sha256 == KNOWN_SHA256
    assert local_artifact(copy, tmp_path / "cache") == copy
    with monkeypatch.context() as patch:
        patch.setattr(storage, "download", None)
        assert local_artifact(f"{store}/corpus", tmp_path / "cache") == copy
    (copy / "train" / "part.txt").unlink()  # by a clean-up of old files
    assert local_artifact(f"{store}/corpus", tmp_path / "cache") == copy
    assert (copy / "train" / "part.txt").read_text() == "one\ntwo\n"


def test_shard_of_a_store_is_fetched_once_and_checked(store, monkeypatch):
    publish(f"{store}/corpus")
    path, entry = load_manifest(f"{store}/corpus").file_paths()[0], "0" * 64
    fetched = []
    download = storage.download
    with monkeypatch.context() as patch:
        patch.setattr(storage, "download", lambda *names: fetched.append(download(*names)))
        patch.setattr(storage, "open_binary", None)
        with checked_copy(path, load_manifest(f"{store}/corpus").files["train/part.txt"]["sha256"]) as local:
            assert local.read_text() == "one\ntwo\n"
    assert len(fetched) == 1
    with pytest.raises(ArtifactError, match=f"{path}: sha256 is .*, expected 000000"), checked_copy(path, entry):
        pytest.fail("the block began")


def test_artifact_that_arrives_damaged_is_not_kept(store, tmp_path):
    publish(f"{store}/corpus")
    load_manifest(f"{store}/corpus").file_paths()[0].write_text("one\nsix\n")
    with pytest.raises(ArtifactError, match="sha256 is"):
        local_artifact(f"{store}/corpus", tmp_path / "cache")
    assert not (tmp_path / "cache" / KNOWN_SHA256).exists()


@pytest.mark.parametrize(
    ("answer", "expected", "message"),
    [
        (FileNotFoundError("The specified bucket does not exist"), InputError, "create the bucket"),
        (PermissionError("Access Denied"), ArtifactError, "check the credentials"),
    ],
)
def test_store_that_takes_no_files_is_named_before_the_work(store, monkeypatch, answer, expected, message):
    def refuse(*_: object, **__: object) -> None:
        raise answer

    refused = type("ClientError", (Exception,), {"__module__": "botocore.exceptions"})()
    answer.__cause__ = refused
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", refuse)
    worked = []

    def work() -> None:
        with publishing(f"{store}/corpus", kind="corpus", configuration={}, inputs={}):
            worked.append(True)

    with pytest.raises(expected, match=message):
        work()
    assert not worked
