"""Archives are unpacked completely and safely, or not at all."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.tasks import archive as archive_module
from bert_pipeline.tasks.archive import extract_archive

CONTENT = {"RTE/train.tsv": b"index\tsentence1\n", "RTE/original/read me.txt": b"", "top.txt": b"x" * 5000}


def make_zip(path: Path, members: dict[str, bytes] = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as container:
        for name, data in members.items():
            container.writestr(name, data)
    return path


def make_tar(path: Path, members: dict[str, bytes] = CONTENT, mode: str = "w:gz", **entry: object) -> Path:
    with tarfile.open(path, mode) as container:  # type: ignore[call-overload]
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in entry.items():
                setattr(member, key, value)
            container.addfile(member, io.BytesIO(data))
    return path


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


MAKERS: list[Callable[[Path], Path]] = [
    make_zip,
    lambda path: make_tar(path, mode="w"),
    lambda path: make_tar(path, mode="w:gz"),
    lambda path: make_tar(path, mode="w:bz2"),
    lambda path: make_tar(path, mode="w:xz"),
]


@pytest.mark.parametrize("make", MAKERS, ids=["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_archive_is_unpacked_whole(tmp_path, make):
    names = extract_archive(make(tmp_path / "archive"), tmp_path / "out")
    assert files_below(tmp_path / "out") == CONTENT
    assert names == sorted(CONTENT)


def refuses(archive: Path, message: str, **options: int) -> None:
    """Assert that unpacking raises `message` and writes nothing, inside or outside of the directory."""
    folder = archive.parent
    before = files_below(folder)
    with pytest.raises(InputError, match=message):
        extract_archive(archive, folder / "out", **options)
    assert files_below(folder) == before
    assert not (folder / "out").exists()


BAD_NAMES = ["../evil.txt", "a/../../evil.txt", "/tmp/evil.txt", "C:evil.txt", "a\\..\\evil.txt", "a/.."]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("make", [make_zip, make_tar], ids=["zip", "tar"])
def test_member_that_leaves_the_directory_is_named_and_nothing_extracted(tmp_path, make, name):
    (tmp_path / "inner").mkdir()
    archive = make(tmp_path / "inner" / "archive", {"good.txt": b"good", name: b"evil", "last.txt": b""})
    refuses(archive, "member .*would leave the directory")


def test_zip_member_with_a_second_name_is_refused(tmp_path, monkeypatch):
    archive = make_zip(tmp_path / "archive", {"good.txt": b"good", "evil.txt": b"evil"})
    infolist = zipfile.ZipFile.infolist

    def with_a_unicode_path_field(self):
        first, second = infolist(self)
        second.filename = "../evil.txt"  # as Python 3.12 reads it from there
        return [first, second]

    monkeypatch.setattr(zipfile.ZipFile, "infolist", with_a_unicode_path_field)
    refuses(archive, "member '../evil.txt' would leave the directory")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO], ids=["link", "device", "pipe"])
def test_zip_member_that_is_no_file_is_refused(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "archive", "w") as container:
        container.writestr("good.txt", b"good")
        member = zipfile.ZipInfo("strange")
        member.create_system = 3
        member.external_attr = (kind | 0o644) << 16
        container.writestr(member, "/etc/passwd")
    refuses(tmp_path / "archive", "member 'strange' is a link or a device")


@pytest.mark.parametrize(
    "kind",
    [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE],
    ids=["symlink", "link", "dev", "fifo"],
)
def test_tar_member_that_is_no_file_is_refused(tmp_path, kind):
    make_tar(tmp_path / "archive", {"strange": b""}, type=kind, linkname="/etc/passwd")
    refuses(tmp_path / "archive", "member 'strange' is a link, a device")


@pytest.mark.parametrize("make", [make_zip, make_tar], ids=["zip", "tar"])
def test_bomb_is_refused_before_it_is_unpacked(tmp_path, make):
    archive = make(tmp_path / "archive", {"a.txt": b"text", "zeros": bytes(40 << 20)})
    assert archive.stat().st_size < 100_000
    refuses(archive, "member 'zeros' brings the archive to more than the 16777216 bytes")


@pytest.mark.parametrize("make", [make_zip, make_tar], ids=["zip", "tar"])
def test_archive_larger_than_allowed_is_refused(tmp_path, make):
    refuses(make(tmp_path / "archive"), "member 'top.txt' brings the archive to more than the 4000", max_bytes=4000)


@pytest.mark.parametrize("make", [make_zip, make_tar], ids=["zip", "tar"])
def test_too_many_members_are_refused(tmp_path, make, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 2)
    refuses(make(tmp_path / "archive"), "member 'top.txt' is one more than the 2 files")


def test_zip_member_that_announces_another_size_is_refused(tmp_path):
    archive = make_zip(tmp_path / "archive", {"a.txt": b"x" * 1000})
    raw = archive.read_bytes()
    assert raw.count((1000).to_bytes(4, "little")) == 2
    archive.write_bytes(raw.replace((1000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    refuses(archive, "not a whole zip or tar archive")


def test_tar_header_that_would_fill_the_memory_is_refused(tmp_path):
    member = tarfile.TarInfo("x")
    member.pax_headers = {"comment": "y" * (4 << 20)}
    with tarfile.open(tmp_path / "archive", "w:gz", format=tarfile.PAX_FORMAT) as container:
        container.addfile(member)
    refuses(tmp_path / "archive", "header.* is longer than")


def test_repeated_member_name_raises(tmp_path):
    with tarfile.open(tmp_path / "archive", "w") as container:
        for name in ("a/b.txt", "a/./b.txt"):
            container.addfile(tarfile.TarInfo(name))
    refuses(tmp_path / "archive", "is repeated")


def test_file_and_directory_of_one_name_leave_nothing_behind(tmp_path):
    refuses(make_tar(tmp_path / "archive", {"a": b"file", "a/b": b"below"}), "cannot be unpacked")


def test_encrypted_member_is_refused(tmp_path):
    archive = make_zip(tmp_path / "archive", {"secret.txt": b"abc"})
    raw = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(signature) + offset] |= 1
    archive.write_bytes(bytes(raw))
    refuses(archive, "member 'secret.txt' is encrypted")


@pytest.mark.parametrize("make", MAKERS, ids=["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"])
def test_truncated_archive_leaves_nothing_behind(tmp_path, make):
    archive = make(tmp_path / "archive")
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    refuses(archive, "not a whole zip or tar archive")


def test_damaged_byte_is_noticed(tmp_path):
    data = bytes(range(256)) * 40
    archive = make_zip(tmp_path / "archive", {"a.txt": data})
    raw = bytearray(archive.read_bytes())
    raw[120] ^= 0xFF
    archive.write_bytes(bytes(raw))
    refuses(archive, "not a whole zip or tar archive")


def test_name_that_is_not_in_its_encoding_is_refused(tmp_path):
    archive = make_zip(tmp_path / "archive", {"ä.txt": b"abc"})
    archive.write_bytes(archive.read_bytes().replace("ä".encode(), b"\xff\xff"))
    refuses(archive, "not a whole zip or tar archive")


def test_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "archive").write_bytes(b"<html>404 not found</html>" * 100)
    refuses(tmp_path / "archive", "not a whole zip or tar archive")


def test_missing_archive_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone.zip: cannot be read"):
        extract_archive(tmp_path / "gone.zip", tmp_path / "out")


def test_directory_with_files_is_not_touched(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already and is not empty"):
        extract_archive(make_zip(tmp_path / "archive"), tmp_path / "out")
    assert files_below(tmp_path / "out") == {"mine.txt": b"mine"}
