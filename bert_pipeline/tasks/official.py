"""The published files of the tasks: where they are, and the hashes by which a copy is recognized."""

from pathlib import Path
from typing import Literal, NamedTuple

from bert_pipeline.configuration import read_yaml

DOWNLOAD_KIND = "task_files"
"""Kind of the artifact that `bert download` writes."""


class RemoteFile(NamedTuple):
    """A file of a fixed content on a site."""

    path: str
    """Path on the site; its last part is the name of the file."""
    size: int
    digest: str
    algorithm: Literal["sha1", "sha256"] = "sha256"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


OFFICIAL_FILES: dict[str, tuple[str, tuple[RemoteFile, ...]]] = {
    suite: (
        entry["site"],
        tuple(
            RemoteFile(path, int(size), sha256) for path, size, sha256 in map(str.split, entry["files"].splitlines())
        ),
    )
    for suite, entry in read_yaml(Path(__file__).with_name("official.yaml")).items()
}
"""Suite -> its official site and files."""
