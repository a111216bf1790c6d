"""Tags, tables and emphasis of wikitext: dropped, or rendered as text."""

import html
import re
from collections import Counter

from bert_pipeline.wikipedia.placeholders import FORMULA, MARK, PARAGRAPH, PIPE, SEAM, protect

_OPAQUE_KINDS = {
    "ref": "reference",
    "references": "reference",
    "math": "formula",
    "chem": "formula",
    "ce": "formula",
    "gallery": "gallery",
    "imagemap": "gallery",
    "pre": "code",
    "source": "code",
    "syntaxhighlight": "code",
    "score": "code",
    "timeline": "code",
    "hiero": "hieroglyphs",
    "graph": "code",
    "chart": "code",
    "mapframe": "code",
    "maplink": "map",
    "templatedata": "invisible",
    "templatestyles": "invisible",
    "inputbox": "code",
    "categorytree": "code",
    "includeonly": "invisible",
    "indicator": "invisible",
    "languages": "invisible",
    "section": "invisible",
    "nowiki": "",
}
"""Extension tags whose content MediaWiki does not read as wikitext in place, and the kind each is counted under."""

_COMPOUND = re.compile(r"\s*+([A-Z][A-Za-z0-9()\[\]]{0,40})(?:\^?+\{?+(\d?+[+-])\}?+)?+\s*+")
"""A formula of chemistry that is a word of its sentence, as {{chem}} shows it: "H2O", "SO4²⁻"; no reaction."""
_LEFT_BEHIND = {"reference": MARK, "formula": FORMULA, "invisible": MARK, "hieroglyphs": MARK, "map": MARK}
"""What stands where an inline element was; others part passages."""
_INLINE_CODE = re.compile(r"\s(?:inline\b|enclose\s*+=\s*+[\"']?none)", re.IGNORECASE)
"""https://www.mediawiki.org/wiki/Extension:SyntaxHighlight"""
_TEXT_OF_MAP = re.compile(r"""\stext\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")
"""https://www.mediawiki.org/wiki/Help:Extension:Kartographer"""
_ALONE = re.compile(rf"\n(?<=[^\n]\n)([{MARK}{FORMULA}]++)\n(?=[^\W_]|[\"'(\[])")
"""A formula or reference on a line of its own amid a paragraph, which it does not part."""

_SHORT_REFERENCE = re.compile(r"<ref(?=[\s>/])[^<>]*+(?:(?<=/)>|(?<!/)>[^<]*+</ref>)")
"""A reference without tags inside: most of them, and found without leaving the expression."""

_OPAQUE_OPEN = re.compile(r"<(?:!--|(" + "|".join(_OPAQUE_KINDS) + r")(?=[\s/>]))", re.IGNORECASE)
_CLOSE = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _OPAQUE_KINDS}


def drop_opaque_tags(text: str, dropped: Counter[str]) -> str:
    """Drop comments, references, formulas, galleries and code; hide the content of <nowiki> from later stages."""
    text, num_short = _SHORT_REFERENCE.subn(MARK, text)
    dropped["reference"] += num_short
    pieces: list[str] = []
    position = 0
    exhausted: set[str] = set()  # tags that are not closed any more: looked for once
    while match := _OPAQUE_OPEN.search(text, position):
        start = match.start()
        name = (match[1] or "").lower()
        if not name:
            pieces.append(text[position:start])
            position = _end_of_comment(text, start)
            if text[start - 1 : start] == "(" and text[position : position + 1] in ")-,; ":
                pieces.append(MARK)
            dropped["comment"] += 1
            continue
        tag_end = text.find(">", match.end())
        if tag_end < 0:
            break
        pieces.append(text[position:start])
        kind = _OPAQUE_KINDS[name]
        tag = text[match.end() : tag_end]
        if text[tag_end - 1] == "/":
            content, position = "", tag_end + 1
        else:
            closing = None if name in exhausted else _CLOSE[name].search(text, tag_end + 1)
            if closing:
                content, position = text[tag_end + 1 : closing.start()], closing.end()
            else:  # never closed: a slip of the writer, and what follows may be prose
                exhausted.add(name)
                content, position = "", tag_end + 1
                kind = "invisible" if kind == "formula" else kind
        if kind == "map" and (label := _TEXT_OF_MAP.search(tag)):
            pieces.append(label[1] or label[2] or MARK)
        elif kind == "code" and name in ("source", "syntaxhighlight") and _INLINE_CODE.search(tag):
            pieces.append(protect(content.strip()))
        elif name in ("ce", "chem") and (compound := _COMPOUND.fullmatch(content)):
            pieces.append(compound[1] + (compound[2] or "").translate(_RAISED))
        elif kind:
            dropped[kind] += 1
            pieces.append(_LEFT_BEHIND.get(kind, PARAGRAPH))
            if kind == "formula" and "block" in tag:  # one that is set off ends its line
                pieces.append(" ")
        else:
            pieces.append(protect(html.unescape(content)) or SEAM)
    pieces.append(text[position:])
    return _ALONE.sub(r"\n\1 ", "".join(pieces))


def _end_of_comment(text: str, start: int) -> int:
    """Where the comment ends; one that stands alone on its line takes the line with it, as MediaWiki does."""
    end = text.find("-->", start + 4)
    if end < 0:
        return len(text)
    end += 3
    if start == 0 or text[start - 1] == "\n":
        stop = end
        while stop < len(text) and text[stop] in " \t":
            stop += 1
        if stop < len(text) and text[stop] == "\n":
            return stop + 1
    return end


_BREAKS = frozenset(
    {"p", "div", "center", "blockquote", "poem", "hr", "section", "article", "caption", "td", "tr", "th"}
)
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_INLINE = frozenset(
    {"span", "small", "big", "b", "i", "u", "em", "strong", "font", "abbr", "cite", "q", "dfn", "var", "code", "tt",
     "kbd", "samp", "s", "del", "ins", "strike", "bdi", "bdo", "mark", "data", "time", "ruby", "rb", "rp", "rt", "wbr",
     "noinclude", "onlyinclude", "sub", "sup", "nobr", "ref", "nowiki", "references", "math", "gallery", "includeonly",
     "pre", "source", "syntaxhighlight", "a", "img", "li", "ul", "ol", "dl", "dd", "dt", "table", "tbody", "thead",
     "rtc", "phonos", "langconvert", "translate", "tvar"}
)  # fmt: skip

_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*+)\b[^<>]*+>")
_BREAKS_IN_A_ROW = re.compile(r"<br\b[^<>]*+>(?:\s*+<br\b[^<>]*+>)++", re.IGNORECASE)
_SUPERSCRIPT = re.compile(r"<sup\b[^<>]*+>((?:&nbsp;)?+[0-9+−–()-]++)</sup\s*+>", re.IGNORECASE)
_HIDDEN = re.compile(r"<(span|div)\b[^<>]*?display:\s*+none[^<>]*+>[^<>]*+</\1\s*+>", re.IGNORECASE)
_LOOSE_ITEM = re.compile(r"<li\b[^<>]*+>[^\n]*+", re.IGNORECASE)
"""An item of a list that was never opened or closed, up to the end of its line."""
_HEADING = re.compile(r"<(h[1-6])\b[^<>]*+>[^<>\n]*+</\1\s*+>", re.IGNORECASE)
_RAISED = str.maketrans("0123456789+−–-()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁽⁾")


def render_tags(text: str, dropped: Counter[str]) -> str:
    """Take HTML tags off their text; block tags part passages, raised figures stay raised."""
    if "<" not in text:
        return text
    text, num_hidden = _HIDDEN.subn("", text)
    text, num_headings = _HEADING.subn(PARAGRAPH, text)
    dropped["hidden"] += num_hidden
    dropped["heading"] += num_headings
    if "<li" in text or "<LI" in text:
        text, num_items = _LOOSE_ITEM.subn(PARAGRAPH, text)
        dropped["list"] += num_items
    text = _BREAKS_IN_A_ROW.sub(PARAGRAPH, text)
    text = _SUPERSCRIPT.sub(lambda match: match[1].translate(_RAISED), text)
    return _TAG.sub(_replace_tag, text)


def raised(text: str) -> str:
    """Superscript figures: "6" -> "⁶"; text that has none stays as it is."""
    return text.translate(_RAISED) if all(char in "0123456789+−–-()" for char in text) else text


def _replace_tag(match: re.Match[str]) -> str:
    name = match[1].lower()
    if name in _INLINE:
        return SEAM if match.string[match.start() - 1 : match.start()] == "'" else ""
    if name == "br":
        return f"{MARK} "  # the mark says that this space does not open the line
    if name in _BREAKS or name in _HEADINGS:
        return PARAGRAPH
    return match[0]


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


_RUN = re.compile(r"'{2,}+")


def remove_emphasis(text: str) -> str:
    """Remove the apostrophes of italics and bold from one paragraph; an apostrophe that is text stays ("Titanic's")."""
    if "'''" not in text:
        return text.replace("''", "")
    lengths = [min(len(run), 5) if len(run) != 4 else 3 for run in _RUN.findall(text)]
    num_bold = sum(length in (3, 5) for length in lengths)
    num_italic = sum(length in (2, 5) for length in lengths)
    literal = -1
    if num_bold % 2 and num_italic % 2:
        literal = _literal_apostrophe(text)
    return _RUN.sub(lambda match: _replacement(match, literal), text)


def _replacement(match: re.Match[str], literal: int) -> str:
    length = len(match[0])
    if length == 4 or match.start() == literal:
        return "'"
    return "'" * (length - 5) if length > 5 else ""


def _literal_apostrophe(text: str) -> int:
    """Where a run of three is an apostrophe and italics: MediaWiki's rule for unbalanced emphasis.

    The first such run after a single-letter word, else after a longer word, else after a space.
    https://www.mediawiki.org/wiki/Markup_spec/BNF/Inline_text
    """
    after_word = after_space = -1
    for match in _RUN.finditer(text):
        if len(match[0]) not in (3, 4):
            continue
        start = match.start() + len(match[0]) - 3
        before, two_before = text[start - 1 : start], text[start - 2 : start - 1]
        if before == " " or not before:
            after_space = match.start() if after_space < 0 else after_space
        elif two_before == " ":
            return match.start()
        elif after_word < 0:
            after_word = match.start()
    return after_word if after_word >= 0 else after_space
