"""Audit of extraction: what is kept and dropped of given dumps, how clean it is, and what wikiextractor keeps beside.

Prints Markdown; `--write docs/corpus.md` puts it between the two marks in that file.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.coverage import Coverage, compare_dump
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.working_directory import working_directory
from bert_pipeline.corpus.job import DROPPED_NAME, build_corpus
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.wikipedia.dump import open_dump

BEGIN, END = "<!-- audit: begin -->", "<!-- audit: end -->"
MOST_TITLES = 40


class DumpAudit:
    """The corpus of one dump, and wikiextractor's text of it where it is English."""

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
    """The tables."""
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
    "characters in", "characters out", "left-overs per million", "scars per million",
)  # fmt: skip


def _row(counts: dict[str, Any]) -> list[str]:
    dropped = counts["dropped"]
    numbers = [
        counts["pages_read"], dropped.get("redirect", 0), dropped.get("namespace", 0), counts["documents"],
        counts["articles_without_text"], counts["passages"], counts["sentences"], counts["characters_in"],
        counts["characters_out"],
    ]  # fmt: skip
    rates = [counts["residue_per_million_characters"], counts["scars_per_million_characters"]]
    return [f"{number:,}" for number in numbers] + [f"{rate:.1f}" for rate in rates]


def _without_output(audit: DumpAudit) -> list[list[str]]:
    by_reason: dict[str, list[str]] = {}
    for _, reason, title in audit.dropped:
        by_reason.setdefault(reason, []).append(title)
    rows = []
    for reason, titles in sorted(by_reason.items()):
        more = f" and {len(titles) - MOST_TITLES} more" if len(titles) > MOST_TITLES else ""
        rows.append([f"`{audit.name}`", reason, ", ".join(titles[:MOST_TITLES]) + more])
    return rows


def _coverage_row(audit: DumpAudit, reasons: Sequence[str]) -> list[str]:
    coverage = audit.coverage
    numbers = [str(coverage.missing[reason]) for reason in reasons]
    return [f"`{audit.name}`", f"{coverage.sentences:,}", f"{coverage.found:,}", f"{coverage.share:.2%}", *numbers]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def write_between_marks(path: Path, text: str) -> None:
    """Replace what stands between the two marks of a file. UsageError where it lacks them."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{path}: lacks the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the dumps and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus_audit", description=__doc__)
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMP")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the marks of this file")
    args = parser.parse_args(arguments)
    directory = working_directory("corpus-audit")
    peer = PeerEnvironment(working_directory("corpus") / "environment", ("wikiextractor",))
    if peer.problem:
        print(f"wikiextractor could not be installed: {peer.problem}", file=sys.stderr)
    try:
        audits = [DumpAudit(path, peer, directory) for path in args.dumps]
        text = render(audits, peer)
        print(text)
        for audit in audits:
            for title, sentence in audit.coverage.lost if not audit.problem else []:
                print(f"lost: {audit.name}: {title}: {sentence}", file=sys.stderr)
        if args.write:
            write_between_marks(args.write, text)
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
