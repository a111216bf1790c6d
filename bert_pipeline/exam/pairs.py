"""Minimal pairs: an acceptable text, and one that differs in a word or in an order and is worse.

Read from BLiMP's JSON lines (Warstadt et al. 2020), from tables of one's own and from directories of `build_exam`.
"""

import collections
import dataclasses
import hashlib
import io
import itertools
import json
import lzma
import operator
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Literal

from pydantic import PositiveInt

from bert_pipeline.configuration import configuration
from bert_pipeline.errors import InputError
from bert_pipeline.records import Record, Source, open_records, open_source, unicode_text

PAIRS_NAME = "pairs.jsonl"
NEXT_SENTENCE = "next_sentence"
"""Kind of the pairs of two sentences, which differ in their order."""

Part = Literal["choosing", "reporting"]

_MAX_RATIO, _RATIO_FLOOR_BYTES = 150, 16 << 20
"""Text compresses 3- to 20-fold, a bomb of zeros about 1,000-fold; up to 16 MB a high ratio does no harm."""
_BLIMP_GROUPS = {"s-selection": "argument_structure"}
"""What BLiMP's files call a group of its own, and its paper counts among another: so it has twelve."""


@configuration
class ExamConfig:
    """Pairs made from held-out text, and the trigrams beside whose model they are scored."""

    seed: int = 0
    """Decides where sentences are changed."""
    pairs_per_kind: PositiveInt = 1_000
    """Pairs of each kind, half of them for choosing among models and half for reporting."""
    max_words: PositiveInt = 50_000_000
    """Of a larger training text, the trigrams of a share of its documents are counted."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """An acceptable and an unacceptable text, or two sentences in the right and in the wrong order."""

    pair_id: str
    """Unique among the pairs of an exam."""
    kind: str
    """What differs: BLiMP's paradigm, such as "adjunct_island", or a kind of `PairMaker`."""
    group: str = ""
    """Group of kinds, such as BLiMP's "island_effects"; "" if there are none."""
    good: tuple[str, ...]
    bad: tuple[str, ...]
    source: str = ""
    """The document that the pair was made from; "" for a pair of a file."""

    @property
    def part(self) -> Part:
        """Which decisions the pair may serve: all pairs of a document are for choosing, or all for reporting.

        So are all pairs of files that have the same good text: a table may repeat one, and BLiMP repeats eight.
        """
        return "choosing" if _hash(self.source or "\n".join(self.good))[0] % 2 else "reporting"

    def to_json(self) -> str:
        """Return the pair as a line of pairs.jsonl."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


_TEXTS = (("sentence_good", "sentence_bad"), ("good", "bad"))
"""What BLiMP and tables call the two texts."""


def sample_pairs(pairs: Iterable[Pair], per_kind: int, part: Part | Literal["each"] | None = None) -> list[Pair]:
    """Return the same `per_kind` pairs of each kind for the same pairs in any order.

    Of one `part` only if it is given; as many of "each", those for choosing first. Of a kind and part, at most twice as
    many as are returned are held at a time.
    """
    kinds: dict[tuple[str, str], list[tuple[bytes, str, Pair]]] = collections.defaultdict(list)
    for pair in pairs:
        own = "" if part is None else pair.part
        if part in (None, "each", own):
            kept = kinds[own, pair.kind]
            kept.append((_hash(pair.pair_id), pair.pair_id, pair))
            if len(kept) >= 2 * per_kind:
                _keep_first(kept, per_kind)
    for kept in kinds.values():
        _keep_first(kept, per_kind)
    return [pair for key in sorted(kinds) for _, _, pair in kinds[key]]


def _keep_first(entries: list[tuple[bytes, str, Pair]], count: int) -> None:
    entries.sort(key=operator.itemgetter(0, 1))
    del entries[count:]


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def read_pairs(path: Path | str) -> list[Pair]:
    """Read pairs from a directory or zip archive of .jsonl files, a folder of an archive, or one file of any format.

    A row has `sentence_good` and `sentence_bad` as BLiMP's, and may have `UID` (or MultiBLiMP's `phenomenon`),
    `linguistics_term` and `pairID`; or it is a line of pairs.jsonl, or has `good` and `bad` and may have `kind`. Lines
    without these names are good text, tab, bad text, perhaps tab, kind. InputError names the line that is neither.
    """
    path = Path(path)
    pairs = []
    for source in _sources(path):
        records = open_records(source, names=("good", "bad", "kind?"), is_header=_is_header)
        for number, record in enumerate(records.rows, start=1):
            if record.error:
                raise InputError(record.error)
            if not record.is_blank:
                pairs.append(_pair_of(record, Path(source.name).stem, number))
    if not pairs:
        raise InputError(f"{path}: no pairs; expected .jsonl files as BLiMP's, or lines of good<TAB>bad<TAB>kind")
    # Of two equal ids, a choice of pairs would drop one or the other.
    if repeated := [name for name, count in collections.Counter(pair.pair_id for pair in pairs).items() if count > 1]:
        raise InputError(f"{path}: {len(repeated)} pairs have the id of another, such as {repeated[0]!r}; rename them")
    return pairs


def _is_header(cells: Sequence[str]) -> bool:
    return any({good, bad} <= {cell.strip().lower() for cell in cells} for good, bad in _TEXTS)


def read_pairs_of(path: Path | str, part: str) -> list[Pair]:
    """Read the pairs for "choosing" or "reporting", or "all"; InputError also if there are none of the part."""
    pairs = read_pairs(path)
    chosen = [pair for pair in pairs if part in (pair.part, "all")]
    if not chosen:
        raise InputError(f"{path}: none of the {len(pairs)} pairs is for {part}; give more pairs, or --part all")
    return chosen


def blimp_path(directory: Path) -> Path:
    """Return where BLiMP is below a directory: "blimp.zip", or a folder "blimp". InputError if it is not there."""
    for path in (directory / "blimp.zip", directory / "blimp"):
        if path.exists():
            return path
    raise InputError(
        f"{directory / 'blimp.zip'}: not found; download https://github.com/alexwarstadt/blimp and put its archive, or "
        f"its .jsonl files in a folder {directory / 'blimp'}, there, or give --pairs PATH"
    )


def _sources(path: Path) -> Iterator[Source]:
    """Yield each file of pairs, open, in the order of their names."""
    folder = ""
    file = next((parent for parent in path.parents if parent.is_file()), None)
    if file is not None:
        path, folder = file, f"{path.relative_to(file).as_posix()}/"  # babylm.zip/blimp_filtered
    try:
        if path.is_dir():
            made = path / PAIRS_NAME
            files = [file for file in sorted(path.rglob("*.jsonl")) if not _holds_no_pairs(file.relative_to(path))]
            for file in [made] if made.is_file() else files:
                with open_source(file) as source:
                    yield source
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.startswith(folder) and name.endswith(".jsonl")]
                members = [archive.getinfo(name) for name in sorted(names) if not _holds_no_pairs(PurePosixPath(name))]
                total = sum(member.file_size for member in members)
                allowed = max(_RATIO_FLOOR_BYTES, _MAX_RATIO * path.stat().st_size)
                if total > allowed:
                    largest = max(members, key=lambda member: member.file_size).filename
                    raise InputError(
                        f"{path}: its .jsonl files, of which {largest} is the largest, unpack to {total:,} bytes; at "
                        f"most {allowed:,} are expected in an archive of this size"
                    )
                for member in members:
                    stream = io.BytesIO(archive.read(member))
                    yield Source.of_stream(stream, f"{path}/{member.filename}")
        else:
            with open_source(path) as source:
                yield source
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
        raise InputError(f"{path}: damaged archive ({error}); download it again") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error


def _holds_no_pairs(path: PurePath) -> bool:
    """Return True for files of an archive's maker, and for the scores of models in BLiMP's repository."""
    return not {"__MACOSX", "raw_results"}.isdisjoint(path.parts)


def _pair_of(record: Record, stem: str, number: int) -> Pair:
    row, where = record.fields, record.where

    def field(*names: str) -> str:
        """Return the text of the first of some fields that is there, "" of none."""
        return next((_text(row[name], name, where) for name in names if name in row), "")

    texts = next((keys for keys in _TEXTS if {*keys} <= row.keys()), None)
    if texts is None:
        keys = ", ".join(sorted(row))
        raise InputError(f"{where}: found the keys {keys}; expected sentence_good and sentence_bad, or good and bad")
    good, bad = (_texts(row[key], key, where) for key in texts)
    for good_text, bad_text in itertools.zip_longest(good, bad, fillvalue=""):
        if not good_text.strip() or not bad_text.strip():
            raise InputError(f"{where}: found {good_text!r} and {bad_text!r}, expected two texts")
    kind = field("UID", "kind", "phenomenon").strip() or unicode_text(stem, "the file's name", where)
    group = field("linguistics_term", "group")
    # BLiMP numbers the pairs of a paradigm as `pairID`, its fast subset as `pair_id`; that of our own lines is whole.
    own = next((row[key] for key in ("pairID", "pair_id") if key in row), number)
    own = own if type(own) is int else field("pairID", "pair_id")
    return Pair(
        pair_id=str(own) if "source" in row else f"{kind}:{own}",
        kind=kind,
        group=_BLIMP_GROUPS.get(group, group),
        good=good,
        bad=bad,
        source=field("source"),
    )


def _texts(value: object, key: str, where: str) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) not in (1, 2):
        raise InputError(f"{where}: {key} is {value!r:.200}, expected a text or a list of two")
    return tuple(_text(text, key, where) for text in texts)


def _text(value: object, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where}: {key} is {value!r:.200}, expected a text")
    return value


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as the lines that `read_pairs` reads."""
    path.write_text("".join(f"{pair.to_json()}\n" for pair in pairs), encoding="utf-8", newline="\n")
