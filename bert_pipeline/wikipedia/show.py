"""One article's passages beside its wikitext, for debugging an extraction."""

import textwrap
from pathlib import Path

from bert_pipeline.errors import InputError, suggest
from bert_pipeline.wikipedia.article import drop_reason, extract_article
from bert_pipeline.wikipedia.dump import open_dump, read_pages


def show_article(title: str, path: Path | str, *, width: int = 160) -> str:
    """Two columns of text: the wikitext of the article with this title, and beside it what is kept.

    A passage stands beside the line it begins in. InputError when the dump has no such page.
    """
    dump = open_dump(path)
    titles = []
    for page in read_pages(dump):
        if page.title.casefold() == title.replace("_", " ").casefold():
            break
        titles.append(page.title)
    else:
        raise InputError(f"{path}: no page is called {title!r}{suggest(title, titles) if len(titles) < 50_000 else ''}")
    reason = drop_reason(page)
    extraction = extract_article(page, dump.site, count_templates=True)
    lines = [f"{page.title} (id {page.page_id}, revision {page.revision_id})"]
    lines.append(f"The page is dropped: {reason}." if reason else f"{len(extraction.passages)} passages are kept.")
    dropped = ", ".join(f"{count} {kind}" for kind, count in extraction.dropped.most_common())
    lines.append(f"Dropped elements: {dropped or 'none'}.")
    templates = ", ".join(f"{name} ({count})" for name, count in extraction.templates.most_common(40))
    lines += [f"Dropped templates: {templates or 'none'}.", ""]
    return "\n".join(lines + _columns(page.text, extraction.passages, (width - 3) // 2))


def _columns(wikitext: str, passages: list[str], width: int) -> list[str]:
    source = wikitext.split("\n")
    at_line: dict[int, list[str]] = {}
    start = 0
    for passage in passages:
        start = _find_line(source, passage, start)
        at_line.setdefault(start, []).append(passage)
    rows: list[str] = []
    right: list[str] = []
    for number, line in enumerate(source):
        if number in at_line:
            while right:
                rows.append(f"{'':{width}} | {right.pop(0)}")
            for passage in at_line[number]:
                right += [*textwrap.wrap(passage, width), ""]
        for part in textwrap.wrap(line, width) or [""]:
            rows.append(f"{part:{width}} | {right.pop(0) if right else ''}".rstrip())
    rows += [f"{'':{width}} | {part}".rstrip() for part in right]
    return rows


def _find_line(source: list[str], passage: str, start: int) -> int:
    """The first line from `start` that holds three neighbouring words of the passage's beginning."""
    words = passage.split()[:16]
    for first in range(max(1, len(words) - 2)):
        needle = " ".join(words[first : first + 3])
        for number in range(start, min(len(source), start + 2000)):
            if needle in source[number]:
                return number
    return start
