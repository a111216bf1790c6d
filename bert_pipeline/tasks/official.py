"""The published files of the tasks: where they are, and the hashes by which a copy is recognized."""

from pathlib import Path
from typing import NamedTuple

from bert_pipeline.configuration import read_yaml

DOWNLOAD_KIND = "task_files"
"""Kind of the artifact that `bert download` writes."""


class RemoteFile(NamedTuple):
    """A file of a fixed content on a site."""

    path: str
    """Path on the site; its last part is the name of the file."""
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def _remote_files(table: str) -> tuple[RemoteFile, ...]:
    """Parse lines of path, size and sha256."""
    rows = (line.split() for line in table.splitlines())
    return tuple(RemoteFile(path, int(size), sha256) for path, size, sha256 in rows)


OFFICIAL_FILES: dict[str, tuple[str, tuple[RemoteFile, ...]]] = {
    suite: (entry["site"], _remote_files(entry["files"]))
    for suite, entry in read_yaml(Path(__file__).with_name("official.yaml")).items()
}
"""Suite -> its official site and files."""
