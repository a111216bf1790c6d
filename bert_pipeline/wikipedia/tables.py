"""Blocks that are no prose: wiki tables, HTML tables and HTML lists."""

import re
from collections import Counter

from bert_pipeline.wikipedia.marks import PARAGRAPH

_TABLE_EDGE = re.compile(r"^[ \t:*#;\ue000]*+(?:(\{\|)|(\|\}(?!\})))", re.MULTILINE)
_UNCLOSED_END = re.compile(r"\n[ \t]*+\n(?![ \t]*+[|!{\n])|\n(?===)")
_BLOCK = re.compile(r"<(/?)(table|ul|ol|dl)\b[^<>]*+>", re.IGNORECASE)


def drop_tables(text: str, dropped: Counter[str]) -> str:
    """Drop `{| … |}`, nested ones with their outer one; a table that is never closed ends where its rows end."""
    if "{|" not in text:
        return text
    pieces: list[str] = []
    opened: list[int] = []
    position = 0
    for match in _TABLE_EDGE.finditer(text):
        if match[1]:
            opened.append(match.start())
        elif opened:
            start = opened.pop()
            if not opened and start >= position:
                dropped["table"] += 1
                pieces.append(text[position:start])
                pieces.append(PARAGRAPH)
                position = match.end()
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
    """Drop HTML tables and lists with all that they hold; tags that have no partner are left to the inline stage."""
    if "<" not in text:
        return text
    spans: list[tuple[int, int]] = []
    stacks: dict[str, list[int]] = {"table": [], "ul": [], "ol": [], "dl": []}
    for match in _BLOCK.finditer(text):
        stack = stacks[match[2].lower()]
        if not match[1]:
            stack.append(match.start())
        elif stack:
            spans.append((stack.pop(), match.end()))
            dropped["table" if match[2].lower() == "table" else "list"] += 1
    pieces: list[str] = []
    position = 0
    for start, end in sorted(spans):
        if start >= position:
            pieces += (text[position:start], PARAGRAPH)
        position = max(position, end)
    pieces.append(text[position:])
    return "".join(pieces)
