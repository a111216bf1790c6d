"""Which prose sentences of wikiextractor are in our extraction of the same dump, and why the others are not."""

import dataclasses
import html
import json
import re
import shutil
import subprocess
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.peer_environment import PeerEnvironment
from bert_pipeline.corpus.documents import split_sentences
from bert_pipeline.wikipedia.dump import Page, open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article

LEAST_SHARE = 0.75
"""A sentence is in ours when this share of its words stands there beside the same neighbour."""

LEAST_WORDS = 5
"""Shorter ones are labels as often as sentences."""

LOST = "lost prose"
_PLACEHOLDER = re.compile(r"\b(?:formula|codice)_\d+")
"""What wikiextractor writes for a formula or code."""
_LINE_REASONS = {
    "*": "list item", "#": "list item", ";": "definition list", ":": "indented line", "|": "table cell",
    "!": "table cell", "=": "heading", " ": "preformatted line", "{": "template",
}  # fmt: skip
_NOTE = re.compile(r"<!--.*?-->|<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref>", re.DOTALL | re.IGNORECASE)
_BLOCK = re.compile(r"(\{\||<div\b[^<>]*>|<table\b|<[uo]l\b)|(\|\}(?!\})|</div\b|</table\b|</[uo]l\b)", re.IGNORECASE)
_FILE = re.compile(r"\[\[(?:File|Image):", re.IGNORECASE)
_HEADING = re.compile(r"^=+(.*?)=+\s*(?:<!--.*)?$", re.MULTILINE)


@dataclasses.dataclass
class Coverage:
    """The sentences of one dump."""

    sentences: int = 0
    """Prose sentences that wikiextractor keeps."""
    found: int = 0
    """Those of them that are in ours."""
    missing: Counter[str] = dataclasses.field(default_factory=Counter)
    """Reason -> how many of the others."""
    lost: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """Title and sentence of what no rule of ours drops."""
    articles: int = 0
    """Pages of which wikiextractor gave text."""

    @property
    def share(self) -> float:
        return self.found / max(1, self.sentences)


def compare_dump(path: Path, peer: PeerEnvironment, scratch: Path) -> Coverage:
    """Run wikiextractor on a dump and look its sentences up in our extraction."""
    theirs = dict(_run_wikiextractor(path, peer, scratch))
    dump = open_dump(path)
    coverage = Coverage()
    for page in read_pages(dump):
        text = theirs.get(str(page.page_id), "")
        if not text:
            continue
        coverage.articles += 1
        reason = drop_reason(page, dump.site)
        ours: set[tuple[str, str]] = set()
        for passage in [] if reason else extract_article(page, dump.site).passages:
            words = split_words(passage)
            ours.update(zip(words, words[1:]))
        for sentence in prose_sentences(text, page.text, dump.site.language or "en"):
            coverage.sentences += 1
            if is_covered(sentence, ours):
                coverage.found += 1
                continue
            why = f"page: {reason}" if reason else why_missing(sentence, page)
            coverage.missing[why] += 1
            if why == LOST:
                coverage.lost.append((page.title, sentence))
    return coverage


def _run_wikiextractor(path: Path, peer: PeerEnvironment, scratch: Path) -> Iterator[tuple[str, str]]:
    """Page id and text of every article, as wikiextractor writes them."""
    output = scratch / "wikiextractor"
    shutil.rmtree(output, ignore_errors=True)
    command = [str(peer.python), "-m", "wikiextractor.WikiExtractor", str(path.resolve()), "-o", str(output)]
    settings = ["--json", "--no-templates", "-q", "--processes", "1", "-b", "64M"]
    subprocess.run([*command, *settings], check=True, capture_output=True, cwd=scratch)
    for file in sorted(output.rglob("wiki_*")):
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                yield str(record["id"]), record["text"]


def split_words(text: str) -> list[str]:
    """Letters and digits, case-folded; formulas are left out."""
    text = _PLACEHOLDER.sub(" ", html.unescape(text)).replace('"', "")  # wikiextractor quotes what is in italics
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())


def prose_sentences(text: str, wikitext: str, language: str) -> Iterator[str]:
    """The sentences of running text: not its headings, and nothing that ends without a full stop or is very short."""
    headings = {"".join(split_words(heading)) for heading in _HEADING.findall(wikitext)}
    for line in text.split("\n"):
        if "".join(split_words(line)) in headings:
            continue
        for sentence in split_sentences(line, language):
            ends = sentence.rstrip("\"'”’)")[-1:] in (".", "!", "?")
            if ends and len(split_words(sentence)) >= LEAST_WORDS:
                yield sentence


def is_covered(sentence: str, ours: set[tuple[str, str]]) -> bool:
    """True when most words of a sentence stand in `ours`, a set of neighbours, beside one of their neighbours."""
    words = split_words(sentence)
    pairs = [pair in ours for pair in zip(words, words[1:])]
    found = sum(before or after for before, after in zip([False, *pairs], [*pairs, False]))
    return found >= LEAST_SHARE * len(words)


def why_missing(sentence: str, page: Page) -> str:
    """The rule by which we drop the line of wikitext that a sentence comes from."""
    words = split_words(sentence)
    pairs = set(zip(words, words[1:]))
    lines = _NOTE.sub("", page.text).split("\n")
    number = max(range(len(lines)), key=lambda number: _common(lines[number], pairs))
    line = lines[number]
    if _FILE.match(line.lstrip()):
        return "caption"
    for first in (line[:1], line.lstrip()[:1]):
        if first in _LINE_REASONS:
            return _LINE_REASONS[first]
    opened: list[str] = []
    for match in _BLOCK.finditer("\n".join(lines[:number])):
        if match[1]:
            opened.append(match[1].lower())
        elif opened:
            opened.pop()
    for block in reversed(opened):
        if not block.startswith("<div"):
            return "table cell" if block in ("{|", "<table") else "list item"
        if "class" in block:
            return "caption or notice in a box"
    return "mostly formulas" if _PLACEHOLDER.search(sentence) else LOST


def _common(line: str, pairs: Iterable[tuple[str, str]]) -> int:
    words = split_words(line)
    return len(set(zip(words, words[1:])).intersection(pairs))
