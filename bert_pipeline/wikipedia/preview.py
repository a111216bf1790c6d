"""One article's passages beside its wikitext, for debugging an extraction."""

import re
import textwrap
from pathlib import Path

from bert_pipeline.errors import InputError, suggest
from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article


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
    reason = drop_reason(page, dump.site)
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
    for begin, passage in zip(_find_lines(source, passages), passages):
        at_line.setdefault(begin, []).append(passage)
    rows: list[str] = []
    right: list[str] = []
    for number, line in enumerate(source):
        if number in at_line:
            rows += [f"{'':{width}} | {part}".rstrip() for part in right]
            right = []
            for passage in at_line[number]:
                right += [*textwrap.wrap(passage, width), ""]
        for part in textwrap.wrap(line, width) or [""]:
            rows.append(f"{part:{width}} | {right.pop(0) if right else ''}".rstrip())
    rows += [f"{'':{width}} | {part}".rstrip() for part in right]
    return rows


def _find_lines(source: list[str], passages: list[str]) -> list[int]:
    """For each passage the line that it begins in.

    Passages and lines have one order, so the lines of all passages together are chosen: the ascending choice whose
    lines share the most words with their passages, a line's first words counting most.
    """
    words_of_line = [set(_WORD.findall(line)) for line in source]
    lines_of_word: dict[str, list[int]] = {}
    for number, words in enumerate(words_of_line):
        for word in words:
            lines_of_word.setdefault(word, []).append(number)
    best: list[tuple[float, int, int]] = [(0.0, 0, -1)]  # score, line, place of the one before in `chain`
    chain: list[tuple[int, int]] = []  # (line, place of the one before)
    for passage in passages:
        scores = _scores(_WORD.findall(passage)[:24], lines_of_word)
        chosen: list[tuple[float, int, int]] = []
        place = 0
        ahead = (-1.0, 0, -1)
        for line in sorted({*scores, *(end for _, end, _ in best)}):
            while place < len(best) and best[place][1] <= line:
                ahead = max(ahead, best[place], key=lambda end: end[0])
                place += 1
            if ahead[0] < 0:
                continue
            score = ahead[0] + scores.get(line, 0.0)
            if not chosen or score > chosen[-1][0]:
                chain.append((line, ahead[2]))
                chosen.append((score, line, len(chain) - 1))
        best = chosen[-64:]
    lines: list[int] = []
    place = best[-1][2]
    while place >= 0:
        line, place = chain[place]
        lines.append(line)
    return lines[::-1]


_WORD = re.compile(r"\w+")


def _scores(words: list[str], lines_of_word: dict[str, list[int]]) -> dict[int, float]:
    """Line -> how well it fits these first words of a passage; rare words say more."""
    scores: dict[int, float] = {}
    for place, word in enumerate(words):
        lines = lines_of_word.get(word, ())
        if len(lines) <= 200:
            for line in lines:
                scores[line] = scores.get(line, 0.0) + 1 / (len(lines) * (1 + place / 8))
    return dict(sorted(scores.items(), key=lambda item: -item[1])[:40])
