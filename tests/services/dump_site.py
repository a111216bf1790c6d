"""A dump site on loopback with a finished dump of this month; its text is the generated encyclopedia."""

import contextlib
import datetime
import functools
import hashlib
import http.server
import json
from collections.abc import Iterator
from pathlib import Path

from loopback import Handler, serving

from bert_pipeline.sample import generate_sample


class DumpSite:
    """Serves a folder laid out as Wikimedia's dumps are."""

    def __init__(self, wiki: str, folder: Path) -> None:
        self.folder = folder
        self.date = f"{datetime.datetime.now(datetime.UTC):%Y%m}01"
        self.dump = f"{wiki}-{self.date}"
        directory = folder / wiki / self.date
        directory.mkdir(parents=True)
        name = f"{self.dump}-pages-articles-multistream.xml.bz2"
        generate_sample(folder / "sample", seed=9, num_articles=100)
        (export,) = (folder / "sample").glob("*.xml.bz2")
        data = export.read_bytes()
        (directory / name).write_bytes(data)
        file = {"size": len(data), "url": f"/{wiki}/{self.date}/{name}", "sha1": hashlib.sha1(data).hexdigest()}
        status = {"jobs": {"articlesmultistreamdump": {"status": "done", "files": {name: file}}}, "version": "0.8"}
        (directory / "dumpstatus.json").write_text(json.dumps(status), encoding="utf-8")

    @contextlib.contextmanager
    def running(self) -> Iterator["DumpSite"]:
        """Serve the folder for the duration of a block."""
        with serving(functools.partial(_Quiet, directory=str(self.folder))) as self.address:
            yield self


class _Quiet(Handler, http.server.SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""
