"""A dump of any size: the pages of a smaller one again and again, under other titles and ids."""

import bz2
import gzip
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

from bert_pipeline.errors import InputError
from bert_pipeline.sample import generate_sample

PAGES_PER_STREAM = 100
"""As in Wikimedia's own multistream files."""

_PAGE = re.compile(r"  <page>.*?</page>\n", re.DOTALL)
_TITLE = re.compile(r"(<title>)([^<]*)(</title>)")
_FIRST_ID = re.compile(r"(<id>)(\d+)(</id>)")


def sample_dump(directory: Path) -> Path:
    """Return the generated encyclopaedia's dump, made where it is not there yet."""
    sample = directory / "sample"
    if not (sample / "manifest.json").is_file():
        generate_sample(sample)
    return next(sample.glob("*.xml.bz2"))


def source_name(source: Path) -> str:
    """A file's name and size, for the names of what is made from it. InputError when there is no such file."""
    if not source.is_file():
        raise InputError(f"{source}: no such file; check the path")
    return f"{source.name.partition('.')[0]}-{source.stat().st_size}"


def repeat_dump(source: Path, target: Path, megabytes: float) -> Path:
    """Write at least so many megabytes of XML to `target` (.xml, or .xml.bz2 of many streams); returns `target`.

    Each copy of a page has a title and an id of its own and says its number in a last sentence, since an extraction
    may drop equal texts. An existing target is taken as it is. InputError when `source` holds no pages.
    """
    if target.exists():
        return target
    head, pages = _read(source)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as stream:
        for part in _parts(head, pages, int(megabytes * 1e6)):
            data = part.encode()
            stream.write(bz2.compress(data) if target.suffix == ".bz2" else data)
    os.replace(temporary, target)
    return target


def _read(source: Path) -> tuple[str, list[str]]:
    raw = source.read_bytes()
    if source.suffix in (".bz2", ".gz"):
        raw = bz2.decompress(raw) if source.suffix == ".bz2" else gzip.decompress(raw)
    text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    pages = _PAGE.findall(text)
    if not pages:
        raise InputError(f"{source}: no <page> found; give a MediaWiki export")
    return text[: text.index("  <page>")], pages


def _parts(head: str, pages: list[str], size: int) -> Iterator[str]:
    yield head
    written, copy = len(head.encode()), 0
    buffer = io.StringIO()
    while written < size:
        for index, page in enumerate(pages):
            number = copy * len(pages) + index + 1
            text = _copy(page, copy, number) if copy else page
            buffer.write(text)
            written += len(text.encode())
            if number % PAGES_PER_STREAM == 0:
                yield buffer.getvalue()
                buffer = io.StringIO()
            if written >= size:
                break
        copy += 1
    yield buffer.getvalue() + "</mediawiki>\n"


def _copy(page: str, copy: int, number: int) -> str:
    page = _TITLE.sub(lambda match: f"{match[1]}{match[2]} {copy + 1}{match[3]}", page, count=1)
    page = _FIRST_ID.sub(lambda match: f"{match[1]}{10_000_000 + number}{match[3]}", page, count=1)
    if "<redirect " in page:
        return page
    return page.replace("</text>", f"\n\nThis is copy number {copy + 1} of the article.\n</text>", 1)
