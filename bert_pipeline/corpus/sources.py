"""Sources on the command line: the kind of each source, and its files."""

import contextlib
import glob
from collections.abc import Sequence
from typing import Literal, get_args

from bert_pipeline.compression import COMPRESSED_SUFFIXES, open_bytes, without_compression
from bert_pipeline.errors import InputError, UsageError, suggest
from bert_pipeline.storage import files_in, files_matching, is_file, is_remote, scheme_of, to_path

SourceKind = Literal["wikipedia", "text", "lines", "book", "jsonl", "parquet", "pairs"]
SOURCE_KINDS: tuple[SourceKind, ...] = get_args(SourceKind)

_SUFFIXES: dict[SourceKind, tuple[str, ...]] = {
    "wikipedia": (".xml", ".xml.bz2", ".xml.gz", ".bz2", ".gz"),
    "text": (".txt",),
    "lines": (".txt",),
    "book": (".txt",),
    "jsonl": (".jsonl", ".json", ".ndjson"),
    "parquet": (".parquet",),
    "pairs": (".tsv", ".txt"),
}
"""Suffixes of the files taken from a directory; a file given by name may have any suffix."""
_COMPRESSIBLE: tuple[SourceKind, ...] = ("text", "lines", "book", "jsonl", "pairs")

CIRRUS_SEARCH = "of a CirrusSearch dump, whose texts have no paragraphs; take the XML dump (pages-articles.xml.bz2)"
AS_RECORDS = 'write its texts as JSON lines, {"text": "…"} each, and name that jsonl:'


def kind_hint(path: str, file: str, by_start: Sequence[SourceKind] = ()) -> str:
    """Return how to name the kinds, other than a dump, that the suffix of a file of `path` may mean; "" without any."""
    plain = without_compression(file.lower())
    if plain.endswith(".csv"):
        return f"; of a table, {AS_RECORDS}"
    kinds = [kind for kind in SOURCE_KINDS if kind != "wikipedia" and plain.endswith(_SUFFIXES[kind])] or by_start
    if not kinds:
        return ""
    others = f" (or {', '.join(f'{kind}:' for kind in kinds[1:])})" if kinds[1:] else ""
    return f"; if it is of another kind, name that: {kinds[0]}:{path}{others}"


def file_kind_hint(file: str) -> str:
    """Return the same for a file that is no dump, by its suffix or else its first bytes."""
    start = b""
    with contextlib.suppress(OSError, InputError), open_bytes(file) as stream:
        start = stream.read(9)
    if start == b'{"index":':
        return f"; it is {CIRRUS_SEARCH}"
    by_start: list[SourceKind] = ["parquet"] if start[:4] == b"PAR1" else ["jsonl"] if start[:1] == b"{" else []
    return kind_hint(file, file, by_start)


def split_name(source: str) -> tuple[str, str]:
    """Split NAME=KIND:PATH into the name of the source, which its document ids begin with, and KIND:PATH.

    The name is "" where there is none: an "=" in a path without a kind belongs to the path.
    """
    name, _, rest = source.partition("=")
    is_name = bool(name) and all(char.isalnum() or char in "-_" for char in name)
    return (name, rest) if is_name and rest.startswith(tuple(f"{kind}:" for kind in SOURCE_KINDS)) else ("", source)


def parse_languages(texts: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Parse "en" "dewiki=de" to the language of all sources, None if there is none, and those of some by their names.

    UsageError if a name is missing, or a language is given twice.
    """
    languages: dict[str, str] = {}
    for text in texts:
        name, _, code = text.rpartition("=")
        if text.startswith("="):
            raise UsageError(f"--language {text}: the name of the source is missing, as in dewiki=de")
        if name in languages:
            what = f"the source {name}" if name else "the corpus"
            raise UsageError(f"--language {text}: {what} has the language {languages[name]!r} already; leave one out")
        languages[name] = code
    return languages.pop("", None), languages


def parse_source(source: str) -> tuple[SourceKind, list[str]]:
    """Resolve KIND:PATH, such as "jsonl:PATH", or a bare PATH of a dump, to its kind and files.

    PATH is a file, a glob or a directory, or the URL of one. InputError if it matches no file, UsageError for another
    KIND.
    """
    prefix, colon, rest = source.partition(":")
    # Only a known kind is a prefix: any other name with a colon is a path.
    kind, path = next(((kind, rest) for kind in SOURCE_KINDS if colon and prefix == kind), ("wikipedia", source))
    if not path:
        raise UsageError(f"{source!r}: expected a path after {prefix}:")
    if scheme_of(path) and not is_remote(path):
        path = str(to_path(path))  # of a file: URL

    # A directory gives the files of the kind's suffixes, sorted: their order is part of the corpus.
    if (names := files_in(path)) is not None:
        unpacked = without_compression if kind in _COMPRESSIBLE else str
        files = [name for name in names if unpacked(name.lower()).endswith(_SUFFIXES[kind])]
        if not files:
            packed = f", plain or compressed ({', '.join(COMPRESSED_SUFFIXES)})" if kind in _COMPRESSIBLE else ""
            hint = next(filter(None, (kind_hint(path, name) for name in names)), "")
            raise InputError(
                f"{path}: holds no {kind} files ({', '.join(_SUFFIXES[kind])}){packed}; give another path, or a "
                f"pattern for other names, such as '{kind}:{path}/*'{hint}"
            )
        return kind, files

    # A file whose name contains brackets or a "*" is taken literally.
    if is_file(path):
        return kind, [path]
    if files := files_matching(path):
        return kind, files
    if colon and path == source and prefix.isalpha() and not scheme_of(path):
        raise UsageError(f"{source}: no such file, and no kind of source {prefix!r}{suggest(prefix, SOURCE_KINDS)}")
    if not is_remote(path) and to_path(path).is_fifo():
        raise InputError(f"{path}: a pipe, which can be read only once; write its content to a file, and name that")
    what = "the pattern matches no file" if glob.has_magic(path) else "no such file"
    hint = ", or name the kind too: NAME=wikipedia:PATH" if "=" in path else ""
    raise InputError(f"{path}: {what}; check the path{hint}")
