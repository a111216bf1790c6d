"""Audit of extraction: what is kept and dropped of dumps, how clean it is, and what wikiextractor keeps in addition.

Prints Markdown; `--write docs/scores/corpus-audit.md` puts it between the two marker lines of that file. For English
dumps, every prose sentence that wikiextractor keeps is looked up in our corpus, and the missing ones are attributed to
the rule that drops their line of wikitext.
"""

import dataclasses
import html
import json
import re
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import PeerEnvironment, errors_as_exit_codes, markdown_table, program, working_directory
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.failed_records import DROPPED_NAME
from bert_pipeline.wikipedia.dump import Page, open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article
from bert_pipeline.wikipedia.punctuation import CLOSERS, QUOTATION_MARKS, SENTENCE_ENDS
from bert_pipeline.wikipedia.sentences import split_sentences

BEGIN, END = "<!-- audit: begin -->", "<!-- audit: end -->"
MAX_TITLES = 40
MIN_SHARE = 0.75
"""A sentence is found if this share of its words has the same neighbor in our corpus."""
MIN_WORDS = 5
"""Shorter sentences are labels as often as sentences."""

LOST = "lost prose"
_PLACEHOLDER = re.compile(r"\b(?:formula|codice)_\d+")
"""Written by wikiextractor in place of formulas and code."""
_LINE_REASONS = {
    "*": "list item", "#": "list item", ";": "definition list", ":": "indented line", "|": "table cell",
    "!": "table cell", "=": "heading", " ": "preformatted line", "{": "template",
}  # fmt: skip
_NOTE = re.compile(r"<!--.*?-->|<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref>", re.DOTALL | re.IGNORECASE)
_BLOCK = re.compile(r"(\{\||<div\b[^<>]*>|<table\b|<[uo]l\b)|(\|\}(?!\})|</div\b|</table\b|</[uo]l\b)", re.IGNORECASE)
_FILE = re.compile(r"\[\[(?:File|Image):", re.IGNORECASE)
_CLOSERS = "".join(CLOSERS | QUOTATION_MARKS | {" "})
_HEADING = re.compile(r"^=+(.*?)=+\s*(?:<!--.*)?$", re.MULTILINE)


class DumpAudit:
    """The corpus of one dump, and its coverage of wikiextractor's text if the dump is English."""

    def __init__(self, path: Path, peer: PeerEnvironment, directory: Path) -> None:
        self.name = path.name.partition(".")[0]
        corpus = directory / "corpus"
        shutil.rmtree(corpus, ignore_errors=True)
        self.problem = ""
        self.counts: dict[str, Any] = {}
        self.dropped: list[list[str]] = []
        try:
            self.counts = build_corpus([str(path)], corpus, beam_options=("--workers", "1")).counts
        except BertError as error:
            self.problem = str(error).removeprefix(f"{path}: ")
            return
        lines = (corpus / DROPPED_NAME).read_text(encoding="utf-8").splitlines()[1:]
        self.dropped = [line.split("\t") for line in lines]
        self.is_compared = open_dump(path).site.language == "en" and not peer.problem
        self.coverage = compare_dump(path, peer, directory) if self.is_compared else Coverage()


def render(audits: Sequence[DumpAudit], peer: PeerEnvironment) -> str:
    """Return the tables."""
    good = [audit for audit in audits if not audit.problem]
    parts = [_table(["dump", *_COLUMNS], [[f"`{audit.name}`", *_row(audit.counts)] for audit in good])]
    parts += [f"`{audit.name}`: {audit.problem}" for audit in audits if audit.problem]
    kinds = sorted({kind for audit in good for kind in audit.counts["dropped_elements"]})
    rows = [[kind, *(f"{audit.counts['dropped_elements'].get(kind, 0):,}" for audit in good)] for kind in kinds]
    parts += ["What was dropped inside of articles:", _table(["kind", *(f"`{audit.name}`" for audit in good)], rows)]
    parts.append("Articles without output:")
    parts.append(_table(["dump", "reason", "articles"], [row for audit in good for row in _without_output(audit)]))
    compared = [audit for audit in good if audit.coverage.sentences]
    if compared:
        version = peer.versions.get("wikiextractor", "")
        reasons = sorted({reason for audit in compared for reason in audit.coverage.missing})
        header = ["dump", "its sentences", "in ours", "share", *reasons]
        parts.append(f"Prose sentences that wikiextractor {version} keeps, and why some are not in ours:")
        parts.append(_table(header, [_coverage_row(audit, reasons) for audit in compared]))
        parts += [
            f"Of `{audit.name}` it writes nothing." for audit in good if audit.is_compared and audit not in compared
        ]
    return "\n\n".join(parts)


_COLUMNS = (
    "pages", "redirects", "other namespaces", "articles kept", "without output", "passages", "sentences",
    "characters in", "characters out", "leftover markup per million", "broken sentences per million",
    "words of unknown templates per million",
)  # fmt: skip


def _row(counts: dict[str, Any]) -> list[str]:
    dropped = counts["dropped"]
    numbers = [
        counts["pages_read"], dropped.get("redirect", 0), dropped.get("namespace", 0), counts["documents"],
        counts["articles_without_text"], counts["passages"], counts["sentences"], counts["characters_in"],
        counts["characters_out"],
    ]  # fmt: skip
    lost = counts["dropped_elements"].get("word of an unknown template", 0)
    rates = [counts["markup_per_million_characters"], counts["broken_text_per_million_characters"]]
    rates.append(1e6 * lost / max(1, counts["characters_out"]))
    return [f"{number:,}" for number in numbers] + [f"{rate:.1f}" for rate in rates]


def _without_output(audit: DumpAudit) -> list[list[str]]:
    by_reason: dict[str, list[str]] = {}
    for _, reason, title in audit.dropped:
        by_reason.setdefault(reason, []).append(title)
    rows = []
    for reason, titles in sorted(by_reason.items()):
        more = f" and {len(titles) - MAX_TITLES} more" if len(titles) > MAX_TITLES else ""
        rows.append([f"`{audit.name}`", reason, ", ".join(titles[:MAX_TITLES]) + more])
    return rows


def _coverage_row(audit: DumpAudit, reasons: Sequence[str]) -> list[str]:
    coverage = audit.coverage
    numbers = [str(coverage.missing[reason]) for reason in reasons]
    return [f"`{audit.name}`", f"{coverage.sentences:,}", f"{coverage.found:,}", f"{coverage.share:.2%}", *numbers]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    escaped = [[cell.replace("|", "&#124;") for cell in line] for line in (header, *rows)]
    return markdown_table(escaped[0], escaped[1:], rule=["---"] * len(header))


@dataclasses.dataclass
class Coverage:
    """Coverage of the prose sentences that wikiextractor keeps of one dump."""

    sentences: int = 0
    found: int = 0
    """Sentences that are in our corpus."""
    missing: Counter[str] = dataclasses.field(default_factory=Counter)
    """Number of other sentences by reason."""
    lost: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    """Title and sentence where no rule explains the loss."""

    @property
    def share(self) -> float:
        return self.found / max(1, self.sentences)


def compare_dump(path: Path, peer: PeerEnvironment, scratch: Path) -> Coverage:
    """Run wikiextractor on a dump and look up its sentences in our extraction."""
    theirs = dict(_run_wikiextractor(path, peer, scratch))
    dump = open_dump(path)
    coverage = Coverage()
    for page in read_pages(dump):
        text = theirs.get(str(page.page_id), "")
        if not text:
            continue
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
    """Yield page id and text of every article, as wikiextractor writes them."""
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
    """Return the case-folded words; formulas are omitted."""
    text = _PLACEHOLDER.sub(" ", html.unescape(text)).replace('"', "")  # wikiextractor puts italics in quotes
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())


def prose_sentences(text: str, wikitext: str, language: str) -> Iterator[str]:
    """Yield the sentences of running text: no headings, no short ones, none without a final full stop."""
    headings = {"".join(split_words(heading)) for heading in _HEADING.findall(wikitext)}
    for line in text.split("\n"):
        if "".join(split_words(line)) in headings:
            continue
        for sentence in split_sentences(line, language):
            if sentence.rstrip(_CLOSERS)[-1:] in SENTENCE_ENDS and len(split_words(sentence)) >= MIN_WORDS:
                yield sentence


def is_covered(sentence: str, ours: set[tuple[str, str]]) -> bool:
    """Return True if most words of a sentence have a neighbor with which they occur in `ours`, a set of word pairs."""
    words = split_words(sentence)
    pairs = [pair in ours for pair in zip(words, words[1:])]
    found = sum(before or after for before, after in zip([False, *pairs], [*pairs, False]))
    return found >= MIN_SHARE * len(words)


def why_missing(sentence: str, page: Page) -> str:
    """Return the rule that drops the line of wikitext from which a sentence comes."""
    words = split_words(sentence)
    pairs = set(zip(words, words[1:]))
    # The source line is the one with most word pairs in common; its first characters tell most rules.
    lines = _NOTE.sub("", page.text).split("\n")
    number = max(range(len(lines)), key=lambda number: _common(lines[number], pairs))
    line = lines[number]
    if _FILE.match(line.lstrip()):
        return "caption"
    for first in (line[:1], line.lstrip()[:1]):
        if first in _LINE_REASONS:
            return _LINE_REASONS[first]
    # Otherwise the innermost table, list or box that is open at that line.
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


def write_between_marks(path: Path, text: str) -> None:
    """Replace the text between the two marker lines of a file. Raise UsageError if it lacks them."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{path}: lacks the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the dumps and print the tables."""
    parser = program("corpus_audit", __doc__)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the marks of this file")
    args = parser.parse_args(arguments)
    directory = working_directory("corpus-audit")
    peer = PeerEnvironment(working_directory("corpus") / "environment", ("wikiextractor",))
    if peer.problem:
        print(f"wikiextractor could not be installed: {peer.problem}", file=sys.stderr)
    audits = [DumpAudit(path, peer, directory) for path in args.dumps]
    text = render(audits, peer)
    print(text)
    for audit in audits:
        for title, sentence in audit.coverage.lost if not audit.problem else []:
            print(f"lost: {audit.name}: {title}: {sentence}", file=sys.stderr)
    if args.write:
        write_between_marks(args.write, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
