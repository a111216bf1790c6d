"""Preview of an extraction: the wikitext of one article with its passages in a second column."""

import re
import textwrap
from pathlib import Path

from bert_pipeline.errors import InputError, suggest
from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article


def preview_article(title: str, path: Path | str, *, width: int = 160, templates: str = "") -> str:
    """Format the wikitext of an article, and each passage to the right of the line that it begins in.

    `templates` is a template file of one's own.

    Raise InputError if the dump has no page with this title.
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
    extraction = extract_article(page, dump.site, count_templates=True, templates=templates)
    dropped = ", ".join(f"{count} {kind}" for kind, count in extraction.dropped.most_common())
    templates = ", ".join(f"{name} ({count})" for name, count in extraction.templates.most_common(40))
    head = [
        f"{page.title} (id {page.page_id}, revision {page.revision_id})",
        f"The page is dropped: {reason}." if reason else f"{len(extraction.passages)} passages are kept.",
        f"Dropped elements: {dropped or 'none'}.",
        f"Dropped templates: {templates or 'none'}.",
        "",
    ]
    return "\n".join(head + _format_columns(page.text, extraction.passages, (width - 3) // 2))


def _format_columns(wikitext: str, passages: list[str], width: int) -> list[str]:
    source = wikitext.split("\n")
    passages_of_line: dict[int, list[str]] = {}
    for number, passage in zip(_find_lines(source, passages), passages):
        passages_of_line.setdefault(number, []).append(passage)
    rows: list[str] = []
    right: list[str] = []  # rows of the right column that are still to be printed
    for number, line in enumerate(source):
        if number in passages_of_line:
            # The rest of earlier passages first: a passage never begins above the end of the one before.
            rows += [f"{'':{width}} | {part}".rstrip() for part in right]
            right = []
            for passage in passages_of_line[number]:
                right += [*textwrap.wrap(passage, width), ""]
        for part in textwrap.wrap(line, width) or [""]:
            rows.append(f"{part:{width}} | {right.pop(0) if right else ''}".rstrip())
    rows += [f"{'':{width}} | {part}".rstrip() for part in right]
    return rows


_WORD = re.compile(r"\w+")


def _find_lines(source: list[str], passages: list[str]) -> list[int]:
    """Return the line that each passage begins in.

    Passages and lines have the same order. So the lines of all passages are chosen together: those in ascending order
    that share the most words with their passages, first words counting most.
    """
    lines_of_word: dict[str, list[int]] = {}
    for number, line in enumerate(source):
        for word in set(_WORD.findall(line)):
            lines_of_word.setdefault(word, []).append(number)
    # Dynamic programming: `best` has the choices for the passages so far by their last line, the better the later.
    # The earlier lines of each choice are linked in `chain`
    best: list[tuple[float, int, int]] = [(0.0, 0, -1)]  # (score, last line, its index in `chain`)
    chain: list[tuple[int, int]] = []  # (line, index of the line before)
    for passage in passages:
        scores = _score_lines(_WORD.findall(passage)[:24], lines_of_word)
        chosen: list[tuple[float, int, int]] = []
        next_choice = 0
        previous = (-1.0, 0, -1)  # the best choice up to the line
        for line_number in sorted({*scores, *(last for _, last, _ in best)}):
            while next_choice < len(best) and best[next_choice][1] <= line_number:
                previous = max(previous, best[next_choice], key=lambda choice: choice[0])
                next_choice += 1
            if previous[0] < 0:
                continue
            score = previous[0] + scores.get(line_number, 0.0)
            if not chosen or score > chosen[-1][0]:
                chain.append((line_number, previous[2]))
                chosen.append((score, line_number, len(chain) - 1))
        best = chosen[-64:]
    # Follow the best choice back
    lines: list[int] = []
    index = best[-1][2]
    while index >= 0:
        number, index = chain[index]
        lines.append(number)
    return lines[::-1]


def _score_lines(words: list[str], lines_of_word: dict[str, list[int]]) -> dict[int, float]:
    """Return line -> how many of a passage's first words it has, for the 40 best lines; rare words count more."""
    scores: dict[int, float] = {}
    for index, word in enumerate(words):
        lines = lines_of_word.get(word, ())
        if len(lines) <= 200:
            for line in lines:
                scores[line] = scores.get(line, 0.0) + 1 / (len(lines) * (1 + index / 8))
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:40])
