"""Tags, tables and emphasis of wikitext: dropped, or rendered as text."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from html.entities import html5
from pathlib import Path

from bert_pipeline.wikipedia.placeholders import BOUNDARY, DROPPED, FORMULA, PARAGRAPH_BREAK, PIPE, protect, unescape

# Opaque tags: comments and extensions

_NAMES = tomllib.loads((Path(__file__).parent / "data" / "tags.toml").read_text(encoding="utf-8"))
_OPAQUE_KINDS = {name: kind for kind, names in _NAMES["opaque"].items() for name in names.split()}
_INLINE_REPLACEMENTS = {
    "reference": DROPPED, "formula": FORMULA, "invisible": DROPPED, "hieroglyphs": DROPPED, "map": DROPPED
}  # fmt: skip
"""Kinds that do not end the paragraph."""

# A reference without tags in it, which is most of them: <ref name="a">Smith 2001</ref>, <ref name="a" />
_SHORT_REFERENCE = re.compile(r"<ref(?=[\s>/])[^<>]*+(?:(?<=/)>|(?<!/)>[^<]*+</ref>)")
# <!--, <ref , <math>; content and end are found from there
_OPAQUE_START = re.compile(r"<(?:!--|(" + "|".join(_OPAQUE_KINDS) + r")(?=[\s/>]))", re.IGNORECASE)
_OPAQUE_END = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _OPAQUE_KINDS}
# A formula or reference on a line of its own that does not end the paragraph: "where\n<math>x</math>\nis the"
_ALONE = re.compile(rf"\n(?<=[^\n]\n)([{DROPPED}{FORMULA}]++)\n(?=[^\W_]|[\"'(\[])")


def drop_opaque_tags(text: str, dropped: Counter[str]) -> str:
    """Drop comments, references, formulas, galleries and code; protect the content of <nowiki> from later stages."""
    text, num_short = _SHORT_REFERENCE.subn(DROPPED, text)
    dropped["reference"] += num_short
    pieces: list[str] = []
    position = line_start = 0
    unclosed: set[str] = set()  # names without a further end tag: each is searched for once
    while match := _OPAQUE_START.search(text, position):
        start = match.start()
        line_start = max(line_start, text.rfind("\n", position, start) + 1)
        name = (match[1] or "").lower()
        # A comment
        if not name:
            pieces.append(text[position:start])
            position = _end_of_comment(text, start)
            if text[start - 1 : start] == "(" and text[position : position + 1] in ")-,; ":  # "(<!-- born --> )"
                pieces.append(DROPPED)
            dropped["comment"] += 1
            continue
        # An extension tag: find its content and its end
        tag_end = text.find(">", match.end())
        if tag_end < 0:
            break
        pieces.append(text[position:start])
        kind = _OPAQUE_KINDS[name]
        content, position = "", tag_end + 1
        if text[tag_end - 1] != "/":
            end = None if name in unclosed else _OPAQUE_END[name].search(text, tag_end + 1)
            if end:
                content, position = text[tag_end + 1 : end.start()], end.end()
            else:  # a mistake of the writer: what follows may be prose
                unclosed.add(name)
                kind = "invisible" if kind == "formula" else kind
        # Alone on its line, or in a list, a formula is no word of a sentence
        is_displayed = text[line_start] in ":;*#" or line_start == start and text[position : position + 1] in "\n"
        attributes = text[match.end() : tag_end]
        word = "" if name != "math" or is_displayed or "block" in attributes else _read_formula(content)
        pieces.append(protect(word) or _render_opaque_tag(name, attributes, content, kind, dropped))
    pieces.append(text[position:])
    return _ALONE.sub(r"\n\1 ", "".join(pieces))


def _end_of_comment(text: str, start: int) -> int:
    """Return where a comment ends; one alone on its line includes the line end, as in MediaWiki."""
    end = text.find("-->", start + 4)
    if end < 0:
        return len(text)
    end += 3
    # The line must hold nothing else, or removing its end would join two lines of text.
    if start == 0 or text[start - 1] == "\n":
        stop = end
        while stop < len(text) and text[stop] in " \t":
            stop += 1
        if stop < len(text) and text[stop] == "\n":
            return stop + 1
    return end


# <maplink text="the route"> (https://www.mediawiki.org/wiki/Help:Extension:Kartographer)
_MAP_LABEL = re.compile(r"""\stext\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")
# <source lang="c" inline>, <syntaxhighlight enclose="none"> (https://www.mediawiki.org/wiki/Extension:SyntaxHighlight)
_INLINE_CODE = re.compile(r"\s(?:inline\b|enclose\s*+=\s*+[\"']?none)", re.IGNORECASE)
# A chemical formula that is a word of its sentence: <chem>H2O</chem>, <ce>SO4^{2-}</ce>; no reaction
_COMPOUND = re.compile(r"\s*+([A-Z][A-Za-z0-9()\[\]]{0,40})(?:\^?+\{?+(\d?+[+-])\}?+)?+\s*+")
_SUPERSCRIPTS = str.maketrans("0123456789+−–-()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻⁽⁾")
# A formula that is a word of its sentence: "x_1", "f(x) \ge 0", "\mathbb{R}^2"; TeX names most signs as HTML does
_TEX_STYLE = re.compile(r"\\(?:math[a-z]{2,4}|text|operatorname|boldsymbol) *+\{([\w ]++)\}|\\[,;:! ]|~")
_TEX_FUNCTION = re.compile(
    r"\\(log|(?:(?:arc)?(?:sin|cos|tan)h?|exp|ln|max|min|sup|inf|det|dim|deg|gcd|ker|Pr)(?!_))"
    r"(?![A-Za-z])(?=( *+[A-Za-z\d\\])?)"
)
_TEX_SIGN = re.compile(r"\\([A-Za-z]++)")
_TEX_INDEX = re.compile(r"(?<=[\w)\]])(?:_([^\W_]|\{[\w, +-]++\})|\^([\dn]|\{[\d+n-]++\})|\^\{? *+(st|nd|rd|th)\b\}?)")
_TEX_POWERS = _SUPERSCRIPTS | {ord("n"): "ⁿ"}
_TEX_FRACTION = re.compile(r"\\[dt]?frac *+\{(\w++|\([\w +-]++\))\} *+\{(\w++)\}|\\sqrt *+\{(\d++|\w)\}")
_TEX_BRACE = re.compile(r"\\([{}%])|\\(?:left|right)(?![a-z.])|[{}]")
_PLAIN_FORMULA = re.compile(r"[^\\_^&`´✓ˆ-˝]{1,40}")


def _read_formula(tex: str) -> str:
    """Return a formula in plain letters; "" if they do not tell all of it, as of a sum with its limits."""
    text = _TEX_STYLE.sub(lambda style: f" {style[1] or ''}", tex)
    text = _TEX_FUNCTION.sub(lambda name: f" {name[1]} " if name[2] else f" {name[1]}", text)
    text = _TEX_SIGN.sub(lambda sign: html5.get(f"{_NAMES['signs'].get(sign[1], sign[1])};", sign[0]), text)
    text = _TEX_INDEX.sub(lambda index: (index[1] or index[3] or index[2].translate(_TEX_POWERS)).strip("{}"), text)
    text = _TEX_FRACTION.sub(lambda match: f"√{match[3]}" if match[3] else f"{match[1]}/{match[2]}", text)
    text = " ".join(_TEX_BRACE.sub(lambda brace: brace[1] or "", text).split())
    return text if _PLAIN_FORMULA.fullmatch(text) else ""


def _render_opaque_tag(name: str, attributes: str, content: str, kind: str, dropped: Counter[str]) -> str:
    """Return what replaces an extension tag; count it in `dropped` if that is a placeholder."""
    if kind == "map" and (label := _MAP_LABEL.search(attributes)):
        return label[1] or label[2] or DROPPED
    if name in ("source", "syntaxhighlight") and _INLINE_CODE.search(attributes):
        return protect(content.strip())
    if name in ("ce", "chem") and (compound := _COMPOUND.fullmatch(content)):
        return compound[1] + (compound[2] or "").translate(_SUPERSCRIPTS)
    if not kind:  # <nowiki>; an empty one separates apostrophes: ''a''<nowiki/>'s
        return protect(unescape(content)) or BOUNDARY
    dropped[kind] += 1
    if kind == "formula" and "block" in attributes:  # a displayed formula ends its line
        return f"{FORMULA} "
    return _INLINE_REPLACEMENTS.get(kind, PARAGRAPH_BREAK)


# Tables and HTML blocks

# The line of a table's start or end, "{| class=…" or "|}", also when indented ":{|"; no "|}}" of a template. It begins
# with the end of the line before, which is faster to search for than the beginning of a line
_TABLE_EDGE = re.compile(rf"\n[ \t:*#;{DROPPED}]*+(?:(\{{\|)|(\|\}}(?!\}})))")
# The end of a table that is never closed: a blank line with no row after it, or a heading
_UNCLOSED_TABLE_END = re.compile(r"\n[ \t]*+\n(?![ \t]*+[|!{\n])|\n(?===)")


def drop_tables(text: str, dropped: Counter[str]) -> str:
    """Drop tables `{| … |}` with those nested in them; one that is never closed ends after its last row."""
    if PIPE in text and f"{{{PIPE}" in text:  # "{{{!}}" and "{{(!}}" begin a table
        text = text.replace(PIPE, "|")
    if "{" not in text or "{|" not in text:
        return text
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    for match in _TABLE_EDGE.finditer(f"\n{text}"):  # so that a match starts where its line does in `text`
        if match[1]:
            opened.append(match.start())
        elif opened:
            spans.append((opened.pop(), match.end() - 1))
    # The outermost open table; its rows are not prose, but what follows them is, and further tables are closed.
    if opened:
        end = _UNCLOSED_TABLE_END.search(text, opened[0])
        spans.append((opened[0], end.start() if end else len(text)))
    spans.sort()
    outermost_end = 0
    for start, stop in spans:
        dropped["table"] += start >= outermost_end
        outermost_end = max(outermost_end, stop)
    return _cut(text, spans)


def _cut(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Replace spans, in ascending order, by paragraph breaks; a span in another one is part of it."""
    pieces: list[str] = []
    position = 0
    for start, end in spans:
        if start >= position:
            pieces += (text[position:start], PARAGRAPH_BREAK)
        position = max(position, end)
    pieces.append(text[position:])
    return "".join(pieces)


# <table class="wikitable">, </ul>
_BLOCK = re.compile(r"<(/?)(table|ul|ol|dl|div)\b([^<>]*+)>", re.IGNORECASE)
_BLOCK_KINDS = {"table": "table", "ul": "list", "ol": "list", "dl": "list"}
# The attributes of a <div> that holds a caption, notice or navigation: class="thumb tright", style="display:none"
_BOX = re.compile(
    r"""\bclass\s*+=[^=]*?\b(?:thumb|thumbinner|thumbcaption|gallery|gallerybox|hatnote|dablink|rellink|navbox|infobox
    |metadata|noprint|ambox|messagebox|toc|tocright|tocleft|reflist|references-small|printfooter)\b
    |\bdisplay\s*+:\s*+none""",
    re.IGNORECASE | re.VERBOSE,
)


def drop_html_blocks(text: str, dropped: Counter[str]) -> str:
    """Drop HTML tables, lists and boxes with their content; tags without a partner are left to `render_tags`."""
    if "<" not in text:
        return text
    spans: list[tuple[int, int]] = []
    stacks: dict[str, list[tuple[int, str]]] = {"table": [], "ul": [], "ol": [], "dl": [], "div": []}
    # A stack for each name, since writers cross tags: a <div> left open must not take the end of a table.
    for match in _BLOCK.finditer(text):
        name = match[2].lower()
        if not match[1]:
            kind = _BLOCK_KINDS.get(name) or ("box" if _BOX.search(match[3]) else "")
            stacks[name].append((match.start(), kind))
        elif stacks[name]:
            start, kind = stacks[name].pop()
            if kind:
                spans.append((start, match.end()))
                dropped[kind] += 1
    return _cut(text, sorted(spans))


# Inline tags

_BLOCK_TAGS, _INLINE_TAGS = (frozenset(_NAMES[kind].split()) for kind in ("block", "inline"))

# <b>, </span>, <br clear="all">
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*+)\b[^<>]*+>")
# <br><br />
_BREAKS_IN_A_ROW = re.compile(r"<br\b[^<>]*+>(?:\s*+<br\b[^<>]*+>)++", re.IGNORECASE)
# <sup>2</sup>, <sup>&nbsp;−1</sup>; other superscripts lose their tags only
_SUPERSCRIPT = re.compile(r"<sup\b[^<>]*+>((?:&nbsp;)?+[0-9+−–()-]++)</sup\s*+>", re.IGNORECASE)
# <span style="display:none">sort key</span>
_HIDDEN = re.compile(r"<(span|div)\b(?=[^<>]*?display:\s*+none)[^<>]*+>[^<>]*+</\1\s*+>", re.IGNORECASE)
# <h3>Title</h3>
_HEADING = re.compile(r"<(h[1-6])\b[^<>]*+>[^<>\n]*+</\1\s*+>", re.IGNORECASE)
# "<li>an item" of a list without <ul>, up to the end of its line
_LOOSE_ITEM = re.compile(r"<li\b[^<>]*+>[^\n]*+", re.IGNORECASE)


def render_tags(text: str, dropped: Counter[str]) -> str:
    """Remove HTML tags around text; block tags end the paragraph, digits in <sup> become superscript characters."""
    if "<" not in text:
        return text
    # Elements that are dropped with their content come first: the last line removes tags only.
    text, num_hidden = _HIDDEN.subn(lambda match: DROPPED if _leaves_a_space(match) else "", text)
    text, num_headings = _HEADING.subn(PARAGRAPH_BREAK, text)
    dropped["hidden"] += num_hidden
    dropped["heading"] += num_headings
    if "<li" in text or "<LI" in text:
        text, num_items = _LOOSE_ITEM.subn(PARAGRAPH_BREAK, text)
        dropped["list"] += num_items
    text = _BREAKS_IN_A_ROW.sub(PARAGRAPH_BREAK, text)
    text = _SUPERSCRIPT.sub(lambda match: match[1].translate(_SUPERSCRIPTS), text)
    return _TAG.sub(_render_tag, text)


def _render_tag(match: re.Match[str]) -> str:
    name = match[1].lower()
    if name in _INLINE_TAGS:
        if _leaves_a_space(match):
            return DROPPED
        return BOUNDARY if match.string[match.start() - 1 : match.start()] == "'" else ""
    if name == "br":
        return f"{DROPPED} "  # because of DROPPED, the space does not begin a line of code
    return PARAGRAPH_BREAK if name in _BLOCK_TAGS else match[0]  # "<x>" may be text


_TAGS = re.compile(r"(?:<[^<>]*+>)*+")
_MAX_TAGS = 500
"""Characters of tags before a tag at the beginning of its line."""


def _leaves_a_space(match: re.Match[str]) -> bool:
    """Tell whether a line without its first tags would begin with a space, as a line of code does."""
    text, start = match.string, match.start()
    if text[match.end() : match.end() + 1] != " ":
        return False
    earliest = max(0, start - _MAX_TAGS)
    line_end = text.rfind("\n", earliest, start)
    if line_end < 0 < earliest:
        return False
    return _TAGS.fullmatch(text, line_end + 1, start) is not None


# Emphasis

# The edge of a link or template between apostrophes: "''[[a|''", "''{{nowrap|''", "'']]''", "''}}''"
_EDGE_IN_EMPHASIS = re.compile(r"''(?:\[\[[^\[\]|\n]*+\||\{\{[^{}|\n]*+\|(?:[^{}|\n]*+\|)?+|\]\]|\}\})(?='')")
_APOSTROPHES = re.compile(r"'{2,}+")


def separate_emphasis(text: str) -> str:
    """Separate emphasis in a label or argument from that around it, before they are replaced: ''[[a|''b'']]''."""
    return _EDGE_IN_EMPHASIS.sub(rf"\g<0>{BOUNDARY}", text)


def remove_emphasis(text: str) -> str:
    """Remove the apostrophes of italics and bold from a paragraph; one that is text stays ("''Titanic'''s")."""
    if "'''" not in text:
        return text.replace("''", "")
    # Two apostrophes are italics, three bold, five both; of four the first is text, as are those before the last five
    lengths = [min(len(run), 5) if len(run) != 4 else 3 for run in _APOSTROPHES.findall(text)]
    num_bold = sum(length in (3, 5) for length in lengths)
    num_italic = sum(length in (2, 5) for length in lengths)
    literal = _find_literal_apostrophe(text) if num_bold % 2 and num_italic % 2 else -1

    def replace(run: re.Match[str]) -> str:
        if len(run[0]) == 4 or run.start() == literal:
            return "'"
        return "'" * (len(run[0]) - 5)

    return _APOSTROPHES.sub(replace, text)


def _find_literal_apostrophe(text: str) -> int:
    """Return where three apostrophes are one and italics: MediaWiki's rule for unbalanced emphasis.

    The first ones after a single-letter word, else after a longer word, else after a space.
    https://www.mediawiki.org/wiki/Markup_spec/BNF/Inline_text
    """
    after_word = after_space = -1
    for match in _APOSTROPHES.finditer(text):
        if len(match[0]) not in (3, 4):
            continue
        # Of four apostrophes the first one is text, and the other three are the candidate.
        start = match.start() + len(match[0]) - 3
        before, two_before = text[start - 1 : start], text[start - 2 : start - 1]
        if before == " " or not before:
            after_space = match.start() if after_space < 0 else after_space
        elif two_before == " ":
            return match.start()
        elif after_word < 0:
            after_word = match.start()
    return after_word if after_word >= 0 else after_space
