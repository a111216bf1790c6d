"""Sources to page batches: plan what each worker reads, read it, and write the documents.

A *split* is what one worker reads at a time: a byte range of a file, or some row groups of Parquet. It yields *page
batches*, whose documents go to one file each. Batches are a function of the input and the configuration, never of the
runner. Only statistics leave a batch (hashes, lengths, counts).
"""

import dataclasses
import functools
import gc
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from bert_pipeline.configuration import configuration
from bert_pipeline.corpus import readers
from bert_pipeline.corpus.batches import PageBatch, PageBatchWriter
from bert_pipeline.corpus.documents import make_document
from bert_pipeline.corpus.prose import ProseForm
from bert_pipeline.corpus.sources import SourceKind, file_kind_hint, parse_source, split_name
from bert_pipeline.corpus.text_files import WHOLE, Span, plan_spans, stem_of
from bert_pipeline.errors import ConfigurationError, InputError, UsageError, suggest
from bert_pipeline.failed_records import FAILED, failure
from bert_pipeline.storage import is_remote, size_of, to_path, version_of, without_secrets
from bert_pipeline.wikipedia.dump import (
    Dump,
    Page,
    ReadReport,
    ends_with_end_tag,
    is_truncated_bzip2,
    open_dump,
    read_pages,
)
from bert_pipeline.wikipedia.extract import drop_reason, extract_article
from bert_pipeline.wikipedia.languages import is_code
from bert_pipeline.wikipedia.site import Site

logger = logging.getLogger(__name__)


@configuration
class CorpusConfig:
    """How a corpus is made."""

    language: str = "en"
    """Language of sources that do not say it themselves; a dump does."""
    languages: dict[str, str] = dataclasses.field(default_factory=dict)
    """The same for some sources, by the first part of their document ids, such as {dewiki: de}."""
    name: str = ""
    """What document ids start with where a dump has no <dbname>, and in other sources; "" takes the file's name."""
    strict: bool = False
    """Refuse a dump that breaks off, instead of keeping its whole pages and counting the loss."""
    templates: str = ""
    """Template file of a wiki that the project has none for, or whose entries it should replace (docs/templates.md)."""
    held_out_per_mille: Annotated[int, Field(ge=0, le=500)] = 5
    """Share of the documents that pre-training never sees, in thousandths; at least one document, unless this is 0."""
    shard_bytes: PositiveInt = 64 << 20
    """Minimum text in a shard, in bytes; a smaller corpus is one shard."""
    split_bytes: PositiveInt = 4 << 20
    """Bytes of a dump (plain or .bz2), of a text file or of the texts of Parquet in a split: little, so that no worker
    is left alone with the last one, and much beside the block of .bz2 that a split reads beyond its end to finish its
    last page."""
    pages_per_split: PositiveInt = 2000
    """Documents in a batch of files that can only be read from the front (.gz, UTF-16);
    in other sources than dumps, at most."""
    prose: ProseForm = "auto"
    """What texts of `jsonl:`, `parquet:` and `book:` are: prose only (`keep`), or `plain` text or `markdown`, of which
    headings, lists, tables and references are dropped as those of a dump are; `auto` knows the columns of
    wikimedia/wikipedia (`plain`) and FineWiki (`markdown`) on the hub, and keeps other texts as they are."""
    near_duplicates: Literal["keep", "drop"] = "keep"
    """Keep and count near-duplicate documents, or drop all but the first of each group."""

    def __post_init__(self) -> None:
        codes = {"language": self.language} | {f"languages.{name}": code for name, code in self.languages.items()}
        for key, code in codes.items():
            if not is_code(code):
                raise ConfigurationError(f"{key}: found {code!r}, expected a code of a language, as 'en' or 'pt-br'")
        if any(char.isspace() or char in "/:" for char in self.name):
            raise ConfigurationError(f"name: found {self.name!r}, expected a name without spaces, '/' and ':'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """What one worker reads: a span of a file, in bytes, or in row groups of Parquet."""

    index: int
    kind: SourceKind
    """"lines" or "book" for a "text" source."""
    path: str
    span: Span = WHOLE
    name: str = ""
    """What its document ids begin with; "" takes the usual name."""
    stem: str = ""
    """What follows in the ids of records without one: the file's name, numbered if another file has it."""
    version: str
    """Version of the file that it was planned by."""


def plan_splits(sources: Sequence[str], config: CorpusConfig) -> list[Split]:
    """Split the sources for the workers, in order. InputError for the first file that does not match its kind."""
    if not sources:
        raise UsageError("no source given; name a dump, or files with their kind, such as jsonl:PATH")
    planned: list[tuple[Split, Iterable[Span]]] = []
    for source in sources:
        name, source = split_name(source)
        source_kind, files = parse_source(source)
        formats: dict[SourceKind, list[str]] = {}
        for path in files:
            kind = source_kind
            _check_file(path, kind)
            if kind == "text":
                language = _language_of(name or config.name or _default_name(path), config)
                kind = readers.detect_format(to_path(path), language)
                formats.setdefault(kind, []).append(os.path.basename(without_secrets(path)))
            file = Split(index=0, kind=kind, path=path, name=name, version=version_of(path))
            planned.append((file, _plan_spans(path, kind, config)))
        for kind, names in formats.items():
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            logger.info("%s: read as %s (%s): %s", without_secrets(source), kind, _FORMATS[kind], listed)
    known = {_name_of(file, config) for file, _ in planned} if config.languages else set[str]()
    if unknown := sorted(config.languages.keys() - known):
        raise UsageError(
            f"languages: no source has the name {unknown[0]!r}{suggest(unknown[0], known)}; give the first part of its "
            "document ids, such as dewiki in dewiki=parquet:PATH"
        )
    if config.prose != "auto" and not {"book", "jsonl", "parquet"} & {file.kind for file, _ in planned}:
        raise UsageError(f"prose={config.prose!r}: is of book:, jsonl: and parquet:, no source is one; leave it out")
    stems = _stems_of([file for file, _ in planned], config)
    splits: list[Split] = []
    for file, spans in planned:
        stem = "" if file.kind == "wikipedia" else stems[_file_of(file, config)]
        for span in spans:  # text is read now, ten minutes of 200 GB, after all files have been looked at
            splits.append(dataclasses.replace(file, index=len(splits), span=span, stem=stem))
    return splits


def _name_of(split: Split, config: CorpusConfig) -> str:
    """Return the first part of the ids of a split's documents."""
    stated = _open_dump(split.path).site.dbname if split.kind == "wikipedia" and not split.name else ""
    return split.name or stated or config.name or _default_name(split.path)


def languages_of_dumps(splits: Sequence[Split]) -> list[str]:
    """Return the languages of the dumps among the sources, in order."""
    paths = dict.fromkeys(split.path for split in splits if split.kind == "wikipedia")
    return list(dict.fromkeys(_open_dump(path).site.language for path in paths))


def _language_of(name: str, config: CorpusConfig) -> str:
    return config.languages.get(name, config.language)


_File = tuple[str, SourceKind, str]
"""What its ids begin with, kind and path. A file that is named twice is one file."""


def _file_of(split: Split, config: CorpusConfig) -> _File:
    return _name_of(split, config), split.kind, split.path


_PART_NUMBER = re.compile("-(0|[1-9][0-9]*)$")


def _stems_of(splits: Sequence[Split], config: CorpusConfig) -> dict[_File, str]:
    """Return the stem of each file that is no dump: equal ones are numbered, "a.2" for the second "a"."""
    files = dict.fromkeys(_file_of(split, config) for split in splits if split.kind != "wikipedia")
    stems = {file: stem_of(to_path(file[2])) for file in files}
    # A file whose own name is "a.2" keeps it. No hyphen: "a-2" is a part of a long book "a".
    owners: dict[tuple[str, str], _File] = {}
    for file, stem in stems.items():
        owners.setdefault((file[0], stem), file)
    numbers: Counter[tuple[str, str]] = Counter()
    for file, stem in stems.items():
        name, kind, path = file
        first = owners[name, stem]
        # A book "a-1" is called as a part or a record of another file "a".
        is_part = kind == "book" and (other := _PART_NUMBER.sub("", stem)) != stem and (name, other) in owners
        if file == first and not is_part:
            continue
        while (name, stems[file]) in owners:
            numbers[name, stem] += 1
            stems[file] = f"{stem}.{numbers[name, stem] + 1}"
        owners[name, stems[file]] = file
        if kind in ("jsonl", "parquet"):
            logger.warning(
                '%s: has the name of %s, and of records with one "id" in both the first is kept; unless they are the '
                "same, give each source a name, as in books=%s:PATH",
                path, first[2], kind,
            )  # fmt: skip
    return stems


_FORMATS = {"lines": "one sentence per line", "book": "running text"}


def _check_file(path: str, kind: SourceKind) -> None:
    try:  # the name becomes part of ids and of the manifest
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode(errors="backslashreplace")
        raise InputError(f"{shown}: found a name that is not UTF-8; rename the file or its folder") from None
    if kind == "wikipedia":  # `open_dump` checks the rest
        return
    if not is_remote(path) and not os.access(path, os.R_OK):
        raise InputError(f"{path}: cannot be read; check its permissions, and that a link leads to a file")
    if not size_of(path):
        raise InputError(f"{path}: the file is empty; fetch or make it again, or leave it out")


def _plan_spans(path: str, kind: SourceKind, config: CorpusConfig) -> Iterable[Span]:
    step = config.split_bytes
    if kind == "wikipedia":
        dump = _open_dump(path)
        if not dump.is_splittable:
            return [WHOLE]
        # Bounds ignore pages: a page belongs to the range that its first byte is in.
        return [Span(start, min(start + step, dump.size)) for start in range(0, dump.size, step)]
    if kind == "parquet":
        return list(readers.plan_row_groups(path, step))
    assert kind != "text"
    return plan_spans(path, kind, step)


def _open_dump(path: str) -> Dump:
    try:
        version = version_of(path)
    except OSError:
        return open_dump(path)  # raises InputError with the reason
    return _open_once(path, version)


@functools.lru_cache(maxsize=64)
def _open_once(path: str, version: str) -> Dump:
    # The version only belongs to the cache's key: a file that has changed is opened again.
    try:
        return open_dump(path)
    except InputError as error:
        raise InputError(f"{error}{file_kind_hint(path)}") from error


def read_batches(split: Split, config: CorpusConfig, directory: Path) -> Iterator[PageBatch]:
    """Read one split and write its batches to `directory`; a repeated call writes the same bytes.

    InputError if its file has changed since it was planned, before or meanwhile: records would be lost or read twice.
    """
    _check_version(split)
    read = _read_dump_batches if split.kind == "wikipedia" else _read_text_batches
    yield from _without_collections(read(split, config, directory))
    _check_version(split)


def _without_collections(batches: Iterator[PageBatch]) -> Iterator[PageBatch]:
    """Yield batches; while one is made, Python does not search for reference cycles, of which there are none.

    The search takes 3 % of the time of an extraction.
    """
    while True:
        gc.disable()
        try:
            batch = next(batches, None)
        finally:
            gc.enable()
        if batch is None:
            return
        yield batch


def _check_version(split: Split) -> None:
    if version_of(split.path) != split.version:
        raise InputError(f"{split.path}: the file changed while it was read; run again when it is complete")


def _read_text_batches(split: Split, config: CorpusConfig, directory: Path) -> Iterator[PageBatch]:
    name = _name_of(split, config)
    writer = PageBatchWriter(split.index, directory)
    # These sources have no revisions: with 0 for all, the first document of an id is kept.
    dropped: Counter[str] = Counter()
    reader, language = readers.READERS[split.kind], _language_of(name, config)
    read = reader(to_path(split.path), name, language, split.span, split.stem, config.prose, dropped)
    for document in read:
        counts = writer.batch.counts
        writer.batch.dropped_elements.update(dropped)
        dropped.clear()
        counts["pages_read"] += 1
        if document is None:
            writer.drop("empty", "", "")
            continue
        if isinstance(document, readers.FailedRecord):
            writer.fail(document.reason, document.document_id, document.title)
            is_full = writer.batch.dropped[FAILED] >= config.pages_per_split
        else:
            counts["characters_in"] += sum(map(len, document.sentences))
            writer.add(document, revision=0)
            is_full = counts["pages_read"] >= config.pages_per_split or counts["characters_in"] >= config.split_bytes
        # A worker holds one batch: a compressed file may have any length, and a document may be a book.
        if is_full:
            yield writer.finish()
    yield writer.finish(is_last=True)


def _read_dump_batches(split: Split, config: CorpusConfig, directory: Path) -> Iterator[PageBatch]:
    dump = _open_dump(split.path)
    name = _name_of(split, config)
    language = dump.site.language or _language_of(name, config)
    report = ReadReport()
    writer = PageBatchWriter(split.index, directory)
    bytes_read = 0

    # Every page read becomes a document or is counted as dropped, with the reason.
    for page in read_pages(dump, split.span.start, split.span.stop, report):
        writer.batch.counts["pages_read"] += 1
        try:
            _read_page(page, dump.site, writer, f"{name}:{page.page_id}", language, config.templates)
        except BaseException as error:
            writer.fail(failure(error), f"{name}:{page.page_id}", page.title)

        # A byte range makes one batch; a file read from the front is cut by the number of pages.
        if not dump.is_splittable and writer.batch.counts["pages_read"] >= config.pages_per_split:
            writer.batch.counts["bytes_in"] += report.bytes_read - bytes_read
            bytes_read = report.bytes_read
            yield writer.finish()

    # The last batch also reports how the file ends, which is known only now.
    writer.batch.counts["bytes_in"] += report.bytes_read - bytes_read
    writer.batch.problems.extend(_problems(dump, split, report))
    if report.unfinished_page:
        writer.drop("cut off", f"{name}:?", report.unfinished_page)
    yield writer.finish(is_last=True)


def _read_page(
    page: Page, site: Site, writer: PageBatchWriter, document_id: str, language: str, templates: str
) -> None:
    if reason := drop_reason(page, site):
        writer.drop(reason, "" if reason in _NO_ARTICLES else document_id, page.title)
        return
    extraction = extract_article(page, site, templates=templates)
    document = make_document(document_id=document_id, title=page.title, language=language, passages=extraction.passages)
    # Markup included, but of articles only: the share that becomes text measures the extraction.
    writer.batch.counts["characters_in"] += len(page.text)
    writer.batch.dropped_elements.update(extraction.dropped)
    writer.batch.lost_templates.update(extraction.lost)
    if document is None:
        writer.drop("no prose", document_id, page.title)
    else:
        writer.add(document, revision=page.revision_id)


_NO_ARTICLES = ("namespace", "redirect")
"""Reasons to drop pages that are not articles: counted, but not listed by title."""


def _problems(dump: Dump, split: Split, report: ReadReport) -> Iterator[str]:
    """Yield one sentence if the dump is truncated, in the split that holds its end."""
    path = without_secrets(str(dump.path))
    if report.unfinished_page:
        yield f"{path}: breaks off inside page {report.unfinished_page!r}, which is lost with all that followed"
    elif split.span.stop is not None and split.span.stop < dump.size:
        return
    elif report.is_truncated or is_truncated_bzip2(dump):
        yield f"{path}: the compressed file is cut off; whatever followed is lost"
    elif report.reached_end and not report.is_closed and not (dump.is_splittable and ends_with_end_tag(dump)):
        yield f"{path}: ends without </mediawiki>; whatever followed is lost"


def _default_name(path: str) -> str:
    stem = os.path.basename(without_secrets(path)).partition(".")[0]
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in stem) or "corpus"
