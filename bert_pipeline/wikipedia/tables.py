"""Blocks that are no prose: wiki tables, HTML tables and HTML lists."""

import re
from collections import Counter

from bert_pipeline.wikipedia.marks import PARAGRAPH, PIPE

_TABLE_EDGE = re.compile(r"\n[ \t:*#;\ue000]*+(?:(\{\|)|(\|\}(?!\})))")
"""With the line end before it, for which one looks faster than for a line's beginning."""
_UNCLOSED_END = re.compile(r"\n[ \t]*+\n(?![ \t]*+[|!{\n])|\n(?===)")
_BLOCK = re.compile(r"<(/?)(table|ul|ol|dl|div)\b([^<>]*+)>", re.IGNORECASE)
_BOX = re.compile(
    r"""\bclass\s*+=[^=]*?\b(?:thumb|thumbinner|thumbcaption|gallery|gallerybox|hatnote|dablink|rellink|navbox|infobox
    |metadata|noprint|ambox|messagebox|toc|tocright|tocleft|reflist|references-small|printfooter)\b
    |\bdisplay\s*+:\s*+none""",
    re.IGNORECASE | re.VERBOSE,
)
"""Divisions that hold captions, notices and navigation, by their class."""


_HTML_KINDS = {"table": "table", "ul": "list", "ol": "list", "dl": "list"}


def drop_tables(text: str, dropped: Counter[str]) -> str:
    """Drop `{| … |}`, nested ones with their outer one; a table that is never closed ends where its rows end."""
    if PIPE in text and f"{{{PIPE}" in text:  # "{{{!}}" and "{{(!}}" begin one
        text = text.replace(PIPE, "|")
    if "{" not in text or "{|" not in text:
        return text
    pieces: list[str] = []
    opened: list[int] = []
    position = 0
    for match in _TABLE_EDGE.finditer(f"\n{text}"):  # so that a match starts where its line does in `text`
        if match[1]:
            opened.append(match.start())
        elif opened:
            start = opened.pop()
            if not opened and start >= position:
                dropped["table"] += 1
                pieces.append(text[position:start])
                pieces.append(PARAGRAPH)
                position = match.end() - 1
    while opened and opened[0] < position:
        opened.pop(0)
    if opened:
        start = opened[0]
        end = _UNCLOSED_END.search(text, start)
        dropped["table"] += 1
        pieces.append(text[position:start])
        pieces.append(PARAGRAPH)
        position = end.start() if end else len(text)
    pieces.append(text[position:])
    return "".join(pieces)


def drop_html_blocks(text: str, dropped: Counter[str]) -> str:
    """Drop HTML tables, lists and boxes with all that they hold.

    Tags that have no partner are left to the inline stage.
    """
    if "<" not in text:
        return text
    spans: list[tuple[int, int]] = []
    stacks: dict[str, list[tuple[int, str]]] = {"table": [], "ul": [], "ol": [], "dl": [], "div": []}
    for match in _BLOCK.finditer(text):
        name = match[2].lower()
        if not match[1]:
            kind = _HTML_KINDS.get(name) or ("box" if _BOX.search(match[3]) else "")
            stacks[name].append((match.start(), kind))
        elif stacks[name]:
            start, kind = stacks[name].pop()
            if kind:
                spans.append((start, match.end()))
                dropped[kind] += 1
    pieces: list[str] = []
    position = 0
    for start, end in sorted(spans):
        if start >= position:
            pieces += (text[position:start], PARAGRAPH)
        position = max(position, end)
    pieces.append(text[position:])
    return "".join(pieces)
