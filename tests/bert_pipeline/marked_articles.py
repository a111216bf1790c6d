"""Articles whose prose was marked by hand: the span of each passage in the wikitext, and hashes of its words.

`python -m tests.bert_pipeline.marked_articles READING DUMPS OUTPUT` makes the marks from a reading: a text file with
the lines of each article that are prose, and the text that a reader sees for each template. The marks contain no text.
"""

import base64
import dataclasses
import difflib
import hashlib
import html
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article

MIN_SHARE = 0.95
"""A passage counts as found, or as right, if at least this share of its words is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """One marked passage."""

    start: int
    end: int
    words: tuple[int, ...]
    """Sixteen bits of the hash of each word, in order."""
    is_optional: bool
    """A label or half a sentence that may be kept or not, without effect on the score."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarkedArticle:
    """One page of a dump."""

    dump: str
    title: str
    sha256: str
    """Hash of the wikitext."""
    passages: tuple[Passage, ...]
    """Empty for a page without prose: a redirect, a disambiguation, a list."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Agreement of an extraction with the marks of one article."""

    title: str
    marked: int
    found: int
    kept: int
    right: int
    words_marked: int
    words_kept: int
    words_common: int
    missed: tuple[tuple[int, int], ...]
    """Spans of marked passages that are not in the extraction."""
    wrong: tuple[str, ...]
    """Passages of the extraction that are not marked."""


def split_words(text: str) -> list[str]:
    """Split a text into words of letters and digits, case-folded; numbers lose their thousands separators."""
    text = unicodedata.normalize("NFKC", text).casefold()
    return re.findall(r"[^\W_]+", re.sub(r"(?<=\d)[,\s](?=\d{3}(?!\d))", "", text))


def hash_words(text: str) -> tuple[int, ...]:
    """Hash each word to sixteen bits."""
    return tuple(
        int.from_bytes(hashlib.blake2b(word.encode(), digest_size=2).digest(), "little") for word in split_words(text)
    )


def load_marks(path: Path) -> list[MarkedArticle]:
    """Read the marked articles of a file."""
    return [
        MarkedArticle(
            dump=entry["dump"],
            title=entry["title"],
            sha256=entry["sha256"],
            passages=tuple(
                Passage(
                    start=start,
                    end=end,
                    words=tuple(np.frombuffer(base64.b64decode(words), dtype="<u2").tolist()),
                    is_optional=bool(flags),
                )
                for start, end, words, *flags in entry["passages"]
            ),
        )
        for entry in json.loads(path.read_text(encoding="utf-8"))
    ]


def score_article(article: MarkedArticle, passages: Sequence[str]) -> Score:
    """Compare the passages of an extraction with the marks, word by word in order."""
    # Align the words of both
    marked = [word for passage in article.passages for word in passage.words]
    found = [hash_words(passage) for passage in passages]
    kept = [word for words in found for word in words]
    in_marked, in_kept = np.zeros(len(marked), dtype=bool), np.zeros(len(kept), dtype=bool)
    matcher = difflib.SequenceMatcher(None, marked, kept, autojunk=False)
    for block in matcher.get_matching_blocks():
        in_marked[block.a : block.a + block.size] = True
        in_kept[block.b : block.b + block.size] = True
    optional = np.concatenate(
        [np.zeros(0, dtype=bool), *(np.full(len(p.words), p.is_optional) for p in article.passages)]
    )
    is_excused = np.zeros(len(kept), dtype=bool)  # words of the extraction that match optional ones
    for block in matcher.get_matching_blocks():
        is_excused[block.b : block.b + block.size] = optional[block.a : block.a + block.size]
    # Compare passage by passage
    missed: list[tuple[int, int]] = []
    num_marked = position = 0
    for passage in article.passages:
        share = in_marked[position : position + len(passage.words)]
        position += len(passage.words)
        if not passage.is_optional and len(share):
            num_marked += 1
            if share.mean() < MIN_SHARE:
                missed.append((passage.start, passage.end))
    wrong: list[str] = []
    num_kept = position = 0
    for text, words in zip(passages, found):
        share, excused = in_kept[position : position + len(words)], is_excused[position : position + len(words)]
        position += len(words)
        if len(words) and not excused.any():
            num_kept += 1
            if share.mean() < MIN_SHARE:
                wrong.append(text)
    counts = in_marked[~optional]
    return Score(
        title=article.title,
        marked=num_marked,
        found=num_marked - len(missed),
        kept=num_kept,
        right=num_kept - len(wrong),
        words_marked=len(counts),
        words_kept=int((~is_excused).sum()),
        words_common=int(counts.sum()),
        missed=tuple(missed),
        wrong=tuple(wrong),
    )


def score_dumps(articles: Iterable[MarkedArticle], dumps: Path) -> list[Score]:
    """Extract every marked article from its dump in the directory `dumps`, and score it."""
    scores = []
    by_dump: dict[str, dict[str, MarkedArticle]] = {}
    for article in articles:
        by_dump.setdefault(article.dump, {})[article.title] = article
    for name, expected in by_dump.items():
        dump = open_dump(dumps / name)
        for page in read_pages(dump):
            if article := expected.pop(page.title, None):
                if hashlib.sha256(page.text.encode()).hexdigest() != article.sha256:
                    raise ValueError(f"{name}: {page.title!r} is not the text that was marked")
                passages = [] if drop_reason(page, dump.site) else extract_article(page, dump.site).passages
                scores.append(score_article(article, passages))
        if expected:
            raise ValueError(f"{name}: has no {', '.join(expected)}")
    return scores


# Making marks from a reading

_NOTE = re.compile(r"<!--.*?-->|<ref\b[^<>]*?/>|<ref\b[^<>]*>.*?</ref>", re.DOTALL | re.IGNORECASE)
_FORMULA = re.compile(r"<math\b[^<>]*>.*?</math>", re.DOTALL)
_TAG = re.compile(r"</?(?:sub|sup|small|big|br|onlyinclude|blockquote|nowiki)\s*/?>")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_WEB_LINK = re.compile(r"\[(?:https?|ftp)://\S+ ([^\]]*)\]")


def logical_lines(text: str) -> list[tuple[int, int]]:
    """Return the spans of the lines of a page; line ends in references, comments and templates do not count."""
    inside = np.zeros(len(text), dtype=bool)
    for match in _NOTE.finditer(text):
        inside[match.start() : match.end()] = True
    opened: list[int] = []
    for match in re.finditer(r"\{\{|\}\}", text):
        if not inside[match.start()]:
            if match[0] == "{{":
                opened.append(match.start())
            elif opened and not opened[1:]:
                inside[opened.pop() : match.end()] = True
            elif opened:
                opened.pop()
    ends = [match.start() for match in re.finditer("\n", text) if not inside[match.start()]]
    return list(zip([0, *(end + 1 for end in ends)], [*ends, len(text)]))


def read_plainly(wikitext: str, replacements: Sequence[tuple[str, str]]) -> str:
    """Return the text of a passage, templates replaced as in the reading. Raise ValueError for unexplained markup."""
    text = _NOTE.sub("", re.sub(r"[^\S\n]", " ", wikitext))
    for old, new in replacements:
        pattern = "[^{}]*".join(map(re.escape, old.split("…")))
        text = re.sub(pattern, lambda match, new=new: new, text)  # type: ignore[misc]
    text = _FORMULA.sub("", text)
    for _ in range(3):
        text = _LINK.sub(r"\1", text)
    text = _TAG.sub("", _WEB_LINK.sub(r"\1", text))
    text = html.unescape(re.sub("'{2,}", "", text))
    if left := re.search(r"\{\{|\}\}|\[\[|\]\]|<[a-z/]", text):
        raise ValueError(f"not explained: {text[max(0, left.start() - 20) : left.start() + 60]!r}")
    return text


def mark_articles(reading: str, dumps: Path) -> list[dict[str, object]]:
    """Return the entries of a marks file.

    A reading is a line "@ DUMP | TITLE" for each article, a line "keep 5 7+8 10?" with the numbers of its lines that
    are prose (+ joins lines to one passage, ? marks an optional one), and lines "WIKITEXT => TEXT", where … in the
    wikitext stands for anything without braces. Replacements before the first article hold for all.
    """
    entries: list[dict[str, object]] = []
    common: list[tuple[str, str]] = []
    pages: dict[str, dict[str, str]] = {}
    for block in f"common\n{reading}".split("\n@ "):
        own: list[tuple[str, str]] = []
        kept: list[str] = []
        head, *lines = block.split("\n")
        for line in lines:
            old, arrow, new = line.partition(" => ") if " => " in line else line.partition(" =>")
            if arrow:
                own.append((old, new))
            elif line.startswith("keep"):
                kept += line.split()[1:]
        if head == "common":
            common = own
            continue
        name, _, title = (part.strip() for part in head.partition("|"))
        if name not in pages:
            pages[name] = {}
            for page in read_pages(open_dump(dumps / name)):
                pages[name].setdefault(page.title, page.text)
        text = pages[name][title]
        spans = logical_lines(text)
        passages: list[list[object]] = []
        for item in kept:
            numbers = [int(number) - 1 for number in item.rstrip("?").split("+")]
            start, end = spans[numbers[0]][0], spans[numbers[-1]][1]
            try:
                words = hash_words(read_plainly(text[start:end], [*own, *common]))
            except ValueError as error:
                raise ValueError(f"{title}, line {item}: {error}") from None
            encoded = base64.b64encode(np.array(words, dtype="<u2").tobytes()).decode()
            passages.append([start, end, encoded, *(["optional"] if item.endswith("?") else [])])
        digest = hashlib.sha256(text.encode()).hexdigest()
        entries.append({"dump": name, "title": title, "sha256": digest, "passages": passages})
    return entries


def write_marks(entries: list[dict[str, object]], path: Path) -> None:
    """Write one passage per line, which keeps diffs small."""
    blocks = []
    for entry in entries:
        passages = entry["passages"]
        assert isinstance(passages, list)
        head = json.dumps({key: value for key, value in entry.items() if key != "passages"}, ensure_ascii=False)
        rows = ",\n".join(f"  {json.dumps(passage)}" for passage in passages)
        blocks.append(f'{head[:-1]}, "passages": [\n{rows}\n]}}' if rows else f'{head[:-1]}, "passages": []}}')
    path.write_text("[\n" + ",\n".join(blocks) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    write_marks(mark_articles(Path(sys.argv[1]).read_text(encoding="utf-8"), Path(sys.argv[2])), Path(sys.argv[3]))
