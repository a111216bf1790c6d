"""MediaWiki exports: what a dump is, and the pages in a byte range of it."""

import codecs
import dataclasses
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from bert_pipeline.errors import InputError
from bert_pipeline.storage import open_binary, read_errors, size_of, to_path
from bert_pipeline.wikipedia.bzip2 import DamagedError, ends_cleanly, read_blocks
from bert_pipeline.wikipedia.site import Site, read_site

_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 4 << 20
"""Enough for the last blocks of a .bz2 file."""
_HEADER_BYTES = 1 << 18
_MAX_PAGE_BYTES = 256 << 20
_MAX_GAP_BYTES = 1 << 16
"""Longest text between two pages that is checked as a whole."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dump:
    """One export file, with what its first bytes tell."""

    path: str
    size: int
    compression: Literal["", "gz", "bz2"]
    encoding: Literal["utf-8", "utf-16-le", "utf-16-be"]
    site: Site

    @property
    def is_splittable(self) -> bool:
        """True if byte ranges of the file can be read independently."""
        return self.compression != "gz" and self.encoding == "utf-8"


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """The latest revision of one page."""

    title: str
    page_id: int
    namespace: int
    revision_id: int
    is_redirect: bool
    model: str
    """The content model; "wikitext" if the export has none."""
    text: str


@dataclasses.dataclass
class ReadReport:
    """Findings about a range, filled in while its pages are read."""

    bytes_read: int = 0
    """Bytes of XML in the pages of this range."""
    reached_end: bool = False
    """The range extends to the end of the file."""
    is_closed: bool = False
    """The file ends with `</mediawiki>`."""
    is_truncated: bool = False
    """The compressed data are cut off."""
    unfinished_page: str = ""
    """Title of a page that is cut off by the end of the file ("?" if its title is incomplete too)."""


# Opening a dump


def open_dump(path: Path | str) -> Dump:
    """Read the header of an export. Raise InputError if it is missing, not an export, or declares a DOCTYPE."""
    path = to_path(path)
    with read_errors(path), open_binary(path) as stream:
        start, size = stream.read(4), size_of(path)
    if size == 0:
        raise InputError(f"{path}: the file is empty; expected a MediaWiki export (.xml, .xml.bz2 or .xml.gz)")
    # The compression is known by its first bytes, not by the file's name
    compression: Literal["", "gz", "bz2"] = ""
    if start[:3] == b"BZh":
        compression = "bz2"
    elif start[:2] == b"\x1f\x8b":
        compression = "gz"
    # Damage behind the header does not matter yet
    raw = b""
    try:
        for chunk, _ in _read_chunks(path, compression, 0, None):
            raw += chunk
            if len(raw) >= _HEADER_BYTES:
                break
    except (DamagedError, _TruncatedError, zlib.error, gzip.BadGzipFile) as error:
        if b"<page>" not in raw.replace(b"\0", b""):  # UTF-16 has a null byte after each letter
            truncated = error.truncated if isinstance(error, DamagedError) else isinstance(error, _TruncatedError)
            what = "is cut off before its first page" if truncated else "is damaged at its start"
            raise InputError(f"{path}: the {compression} file {what}; fetch it again") from None
    encoding = _detect_encoding(raw)
    header = raw.decode(encoding, errors="replace").lstrip("\ufeff")
    _check_is_export(path, header)
    site = read_site(header.partition("<page>")[0])
    return Dump(path=str(path), size=size, compression=compression, encoding=encoding, site=site)


def _detect_encoding(raw: bytes) -> Literal["utf-8", "utf-16-le", "utf-16-be"]:
    if raw.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if raw.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    return "utf-8"


def _check_is_export(path: Path, header: str) -> None:
    head = header.lstrip()
    # A DOCTYPE can declare entities that expand to more than the memory holds.
    if "<!DOCTYPE" in header.partition("<page>")[0] or "<!doctype" in header.partition("<page>")[0]:
        raise InputError(f"{path}: declares a DOCTYPE, which MediaWiki exports never do; refused for safety")
    if "<mediawiki" not in header:
        content = "XML of another kind" if head.startswith("<") else "no XML"
        raise InputError(f"{path}: found {content}, expected a MediaWiki export (its first element is <mediawiki>)")
    declared = re.match(r'<\?xml[^>]*\bencoding="([^"]+)"', head)
    if declared and declared[1].lower() not in ("utf-8", "utf8", "utf-16", "ascii", "us-ascii"):
        raise InputError(f"{path}: its encoding is {declared[1]}; expected UTF-8, or UTF-16 with a byte-order mark")


# Reading pages


def read_pages(dump: Dump, start: int = 0, stop: int | None = None, report: ReadReport | None = None) -> Iterator[Page]:
    """Yield the pages whose `<page>` begins in the bytes [start, stop) of the file as stored.

    A file that is cut off yields its complete pages; `report` tells what is missing. Raise InputError, with the last
    intact title, for damaged data and malformed XML.
    """
    report = report if report is not None else ReadReport()
    # The last intact page: named in each message, so that the damage can be found in the file.
    title = ""
    try:
        for blob in _page_blobs(dump, start, stop, report):
            page = _parse_page(blob, dump.site, dump.path, title)
            title = page.title
            yield page
    except DamagedError as error:
        raise InputError(
            f"{dump.path}: the bz2 data are damaged at byte {error.offset:,} (checksum or structure does not match)"
            f"{_after(title)}; fetch the file again"
        ) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{dump.path}: the gzip data are damaged ({error}){_after(title)}; fetch it again") from None
    except _StrayError as error:
        raise InputError(
            f"{dump.path}: malformed XML{_after(title)}: found {error.args[0]!r}, expected <page>"
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"{dump.path}: not {dump.encoding} text ({error.reason}){_after(title)}") from None


def _after(title: str) -> str:
    return f" after page {title!r}" if title else " before its first page"


class _StrayError(Exception):
    """Something other than a page was found between pages."""


class _TruncatedError(Exception):
    """Compressed data ended before their end mark."""


def _page_blobs(dump: Dump, start: int, stop: int | None, report: ReadReport) -> Iterator[bytes]:
    """Yield the bytes of each page of a range, from `<page>` to `</page>`."""
    buffer = b""
    base = own_end = 0  # in bytes of XML since the start of the range: start of `buffer`, end of the range's own bytes
    position = searched = 0  # in `buffer`: where the next page and its end are searched from
    is_inside = is_after_page = False
    for chunk, own in _utf8_chunks(dump, start, stop, report):
        # Stop as soon as no page of this range can begin any more; a page that began is read to its end
        if own:
            own_end += len(chunk)
        elif not own_end or not is_inside and base + len(buffer) - 5 >= own_end:
            return
        buffer, base, searched, position = buffer[position:] + chunk, base + position, max(0, searched - position), 0
        while True:
            if not is_inside:
                # Search the next page; only white space and comments may be before it
                begin = buffer.find(b"<page>", position)
                if is_after_page:
                    gap = buffer[position : begin if begin >= 0 else None]
                    if begin < 0 and b"</mediawiki>" not in gap and len(gap) < _MAX_GAP_BYTES:
                        break  # it is checked when it is complete
                    _check_gap(gap)
                    is_after_page = False
                    report.is_closed = begin < 0 and b"</mediawiki>" in gap
                elif start == 0 and begin >= 0 and b"<title>" in buffer[position:begin]:
                    raise _StrayError("<title>")
                if begin < 0:
                    position = max(position, len(buffer) - 64)
                    break
                if base + begin >= own_end:
                    return
                is_inside, position, searched = True, begin, begin
            # Search its end
            end = buffer.find(b"</page>", searched)
            if end < 0:
                searched = max(searched, len(buffer) - 6)
                if len(buffer) - position > _MAX_PAGE_BYTES:
                    raise InputError(
                        f"{dump.path}: {_find_title(buffer[position:])!r} does not end: no </page> in 256 MiB"
                    )
                break
            report.bytes_read += end + 7 - position
            yield buffer[position : end + 7]
            is_inside, is_after_page, position = False, True, end + 7
    # The file has ended: a range that ends earlier returns from the loop.
    report.reached_end = True
    if is_inside:
        report.unfinished_page = _find_title(buffer[position:])
    else:
        report.is_closed = report.is_closed or b"</mediawiki>" in buffer[-64:]


# <!-- a comment -->, <?a processing instruction?>
_COMMENT = re.compile(rb"<!--.*?-->|<\?.*?\?>", re.DOTALL)


def _check_gap(gap: bytes) -> None:
    """Raise _StrayError unless there is only white space, comments or the start of another export between pages."""
    if gap and not gap.isspace():
        rest = _COMMENT.sub(b"", gap.partition(b"</mediawiki>")[0]).strip()
        if rest:
            raise _StrayError(rest[:60].decode(errors="replace"))


def _utf8_chunks(dump: Dump, start: int, stop: int | None, report: ReadReport) -> Iterator[tuple[bytes, bool]]:
    """Yield the chunks of a range in UTF-8; note in the report if the compressed data are cut off."""
    chunks = _read_chunks(dump.path, dump.compression, start, stop)
    decoder = None if dump.encoding == "utf-8" else codecs.getincrementaldecoder(dump.encoding)()
    # A cut is no error here: the pages before it are kept, and the report states the loss.
    try:
        for chunk, own in chunks:
            yield (chunk if decoder is None else decoder.decode(chunk).encode()), own
    except _TruncatedError:
        report.is_truncated = True
    except DamagedError as error:
        if not error.truncated:
            raise
        report.is_truncated = True


def _read_chunks(path: Path | str, compression: str, start: int, stop: int | None) -> Iterator[tuple[bytes, bool]]:
    """Yield (bytes of XML, True if pages that begin in them belong to the range)."""
    if compression == "bz2":
        yield from read_blocks(path, start, stop)
    elif compression == "gz":
        with open_binary(path) as packed, gzip.open(packed, "rb") as stream:
            while True:
                try:
                    chunk = stream.read1(_CHUNK_BYTES)  # unlike read(), returns what is before a cut
                except EOFError:
                    raise _TruncatedError from None
                if not chunk:
                    return
                yield chunk, True
    else:
        with open_binary(path) as stream:
            stream.seek(start)
            position = start
            while True:
                # No chunk extends over `stop`, so that all of it belongs to the range, or nothing.
                own = stop is None or position < stop
                chunk = stream.read(_CHUNK_BYTES if stop is None or not own else min(_CHUNK_BYTES, stop - position))
                if not chunk:
                    return
                position += len(chunk)
                yield chunk, own


# The end of a dump


def is_truncated_bzip2(dump: Dump) -> bool:
    """Return True if a bz2 file lacks its end mark, which may be cut off exactly between two streams."""
    return dump.compression == "bz2" and not ends_cleanly(dump.path)


def ends_with_end_tag(dump: Dump) -> bool:
    """Return True if the file ends with `</mediawiki>`, even if its last range has no byte of that tag."""
    tail = b""
    for chunk, _ in _read_chunks(dump.path, dump.compression, max(0, dump.size - _TAIL_BYTES), None):
        tail = (tail + chunk)[-_MAX_GAP_BYTES:]
    return _COMMENT.sub(b"", tail).rstrip().endswith(b"</mediawiki>")


# One page


def _parse_page(blob: bytes, site: Site, path: str, after: str) -> Page:
    """Parse one `<page>…</page>`. Raise InputError if it is not well-formed, or lacks what makes it a page.

    `after` is the title of the page before, for errors.
    """
    title = _find_title(blob)
    place = f"page {title!r}" if title != "?" else f"the page{_after(after)}"
    try:
        page = ElementTree.fromstring(blob)
    except ElementTree.ParseError as error:
        _check_encoding(blob, path, _after(after) if title == "?" else f"in {place}{_after(after)}")
        raise InputError(
            f"{path}: {place}: malformed XML ({error} of the page); the last intact page is {after!r}; fetch the file "
            "again, or correct the page"
        ) from None
    # Of several revisions the last one, with nothing of those before it.
    revision = next(reversed(page.findall("revision")), ElementTree.Element("revision"))

    # Well-formed XML may lack what makes it a page. The text of a slot other than the main one is in <content>.
    name, page_id, namespace = (_text_of(page, key) for key in ("title", "id", "ns"))
    if not name or not page_id.strip().isdecimal():
        raise InputError(
            f"{path}: {place}: a page without {'title' if not name else 'id'}, so this is not a complete export"
        )
    if not namespace.strip().removeprefix("-").isdecimal() and namespace.strip():
        raise InputError(f"{path}: {place}: its namespace <ns> is {namespace!r}, expected a number")
    # Old exports lack the namespace and the model: both have defaults.
    revision_id, text = _text_of(revision, "id"), _text_of(revision, "text")
    return Page(
        title=name,
        page_id=int(page_id),
        namespace=int(namespace) if namespace.strip() else site.namespace_of(name),
        revision_id=int(revision_id) if revision_id.strip().isdecimal() else 0,
        is_redirect=page.find("redirect") is not None or site.redirect.match(text) is not None,
        model=_text_of(revision, "model") or "wikitext",
        text=text,
    )


def _text_of(parent: ElementTree.Element, name: str) -> str:
    """Return the text of the last child of a name, without that of its own children; "" without any."""
    element = next(reversed(parent.findall(name)), ElementTree.Element(name))
    return "".join([element.text or "", *(child.tail or "" for child in element)])


def _check_encoding(blob: bytes, path: str, place: str) -> None:
    """Raise InputError if a page is not UTF-8."""
    try:
        blob.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: {place.strip()}: not UTF-8 text ({error.reason} at byte {error.start + 1:,} of the page); the "
            "dump is damaged, fetch it again"
        ) from None


def _find_title(blob: bytes) -> str:
    title = re.search(rb"<title>([^<]*)</title>", blob)
    return title[1].decode(errors="replace") if title else "?"
