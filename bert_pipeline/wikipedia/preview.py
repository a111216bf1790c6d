"""Preview of an extraction: the wikitext of one article with its passages in a second column."""

import difflib
import itertools
import re
import textwrap
from pathlib import Path

from bert_pipeline.errors import InputError, suggest
from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article

COLUMN = 78
"""Characters of a line in each of the two columns."""


def preview_article(title: str, path: Path | str, *, templates: str = "") -> str:
    """Format the wikitext of an article, and each passage to the right of the line that it begins in.

    `templates` is a template file of one's own. InputError if the dump has no page with this title.
    """
    dump = open_dump(path)
    titles = []
    # Titles on the way are kept for the suggestion.
    for page in read_pages(dump):
        if page.title.casefold() == title.replace("_", " ").casefold():
            break
        titles.append(page.title)
    else:
        raise InputError(f"{path}: no page is called {title!r}{suggest(title, titles) if len(titles) < 50_000 else ''}")
    # A page that the corpus drops is shown as well, with the reason.
    reason = drop_reason(page, dump.site)
    extraction = extract_article(page, dump.site, templates=templates)
    dropped = ", ".join(f"{count} {kind}" for kind, count in extraction.dropped.most_common())
    templates = ", ".join(f"{name} ({count})" for name, count in extraction.templates.most_common(40))
    head = [
        f"{page.title} (id {page.page_id}, revision {page.revision_id})",
        f"The page is dropped: {reason}." if reason else f"{len(extraction.passages)} passages are kept.",
        f"Dropped elements: {dropped or 'none'}.",
        f"Dropped templates: {templates or 'none'}.",
        "",
    ]
    return "\n".join(head + _format_columns(page.text, extraction.passages))


def _format_columns(wikitext: str, passages: list[str]) -> list[str]:
    source = wikitext.split("\n")
    passages_of_line: dict[int, list[str]] = {}
    for number, passage in zip(_find_lines(source, passages), passages):
        passages_of_line.setdefault(number, []).append(passage)
    rows: list[str] = []
    right: list[str] = []  # rows of the right column that are still to be printed
    for number, line in enumerate(source):
        if number in passages_of_line:
            # The rest of earlier passages first: a passage never begins above the end of the one before.
            rows += [f"{'':{COLUMN}} | {part}".rstrip() for part in right]
            right = []
            for passage in passages_of_line[number]:
                right += [*textwrap.wrap(passage, COLUMN), ""]
        for part in textwrap.wrap(line, COLUMN) or [""]:
            rows.append(f"{part:{COLUMN}} | {right.pop(0) if right else ''}".rstrip())
    rows += [f"{'':{COLUMN}} | {part}".rstrip() for part in right]
    return rows


def _find_lines(source: list[str], passages: list[str]) -> list[int]:
    """Return the line that each passage begins in: that of its first word in the longest common runs of words."""
    lines_of, words = _words(source)
    passages_of, own = _words(passages)
    begins: dict[int, int] = {}
    for left, right, size in difflib.SequenceMatcher(None, words, own).get_matching_blocks():
        for offset in range(size):
            begins.setdefault(passages_of[right + offset], lines_of[left + offset])
    # One whose words are all common ones, or from a template, is beside the one before it.
    return list(itertools.accumulate((begins.get(number, 0) for number in range(len(passages))), max))


def _words(texts: list[str]) -> tuple[list[int], list[str]]:
    """Return the words of texts, and the number of the text of each."""
    pairs = [(number, word) for number, text in enumerate(texts) for word in re.findall(r"\w+", text)]
    return [number for number, _ in pairs], [word for _, word in pairs]
