"""Expand templates {{…}} and links [[…]], nested in each other."""

import bisect
import re
from collections import Counter

from bert_pipeline.wikipedia.dump import CATEGORY_NAMESPACE, FILE_NAMESPACE, Site
from bert_pipeline.wikipedia.languages import WIKIPEDIA_CODES
from bert_pipeline.wikipedia.placeholders import FORMULA, MARK, SEAM, VOID, protect
from bert_pipeline.wikipedia.templates.registry import (
    IN_CONTEXT,
    LOCAL,
    PARSER_FUNCTIONS,
    Arguments,
    find_renderer,
    normalize_name,
)

_PLAIN = re.compile(r"\[\[(?:[^|\[\]{}<>:\n]*+\||(?![^|\[\]{}:\n]*+:))([^|\[\]{}=\n]++)\]\]")
"""A link without brackets inside, with at most one pipe and no colon before it: nine in ten of all links.

Nor has its text a "=", which would be read as the name of an argument where the link stands in a template."""

_INTERWIKI = frozenset(
    {"w", "wikt", "wiktionary", "s", "wikisource", "b", "wikibooks", "q", "wikiquote", "n", "wikinews", "v", "d",
     "wikiversity", "voy", "wikivoyage", "c", "commons", "m", "meta", "species", "wikispecies", "mw", "doi", "rfc",
     "wikipedia", "project", "arxiv", "hdl", "imdbname", "imdbtitle", "wikidata", "bugzilla", "phab"}
)  # fmt: skip
_EXTERNAL = re.compile(
    r"\[(?:(?:https?|ftps?|irc|news|gopher|svn|git):)?+//[^\s\[\]<>\ue000]++[ \t]*+([^\[\]\n]*+)\]"
    r"|\[mailto:[^\s\]]++[ \t]*+([^\]\n]*+)\]",
    re.IGNORECASE,
)
_PIPE_TRICK = re.compile(r" *+\([^()]*\)$|,.*$")


_EDGE_OF_EMPHASIS = re.compile(r"''(?:\[\[[^\[\]|\n]*+\||\{\{[^{}|\n]*+\|(?:[^{}|\n]*+\|)?+|\]\]|\}\})(?='')")


def keep_apart(text: str) -> str:
    """Part emphasis inside of a label or argument from that around it: ''[[a|''b'']]''."""
    return _EDGE_OF_EMPHASIS.sub(rf"\g<0>{SEAM}", text)


def replace_plain_links(text: str) -> str:
    """Put the text of simple links in their place; links with a colon, nesting or more pipes are left for later."""
    return "".join(_PLAIN.split(text))  # the pattern's one group is the label: split keeps it


def replace_external_links(text: str, dropped: Counter[str]) -> str:
    """Put the text of external links in their place; a bare number of a link is dropped."""
    if "//" not in text and "[mailto" not in text:
        return text

    def label(match: re.Match[str]) -> str:
        found = match[1] or match[2]
        if found:
            return found
        dropped["external link"] += 1
        return MARK

    return _EXTERNAL.sub(label, text)


def is_dropped_link(target: str, site: Site) -> str:
    """The kind under which a link with this target is dropped with all its text; "" when its label stays."""
    prefix, colon, rest = target.partition(":")
    if not colon or not prefix:
        return ""
    prefix = " ".join(prefix.replace("_", " ").split()).lower()
    namespace = site.namespaces.get(prefix)
    if namespace == FILE_NAMESPACE or prefix == "media" and namespace == -2:
        return "file"
    if namespace == CATEGORY_NAMESPACE:
        return "category"
    if namespace is None and rest and prefix not in _INTERWIKI and prefix in WIKIPEDIA_CODES:
        return "interlanguage link"
    return ""


def link_label(target: str, label: str | None) -> str:
    """The text that a link shows."""
    target = target.strip()
    if label is None:
        return target.removeprefix(":")
    if label.strip():
        return label
    if label:
        return " "
    name = target.removeprefix(":").rpartition(":")[2]
    return _PIPE_TRICK.sub("", name)


MAX_DEPTH = 40
"""MediaWiki itself stops expanding templates at this depth."""

_EQUALS = protect("=")
"""A "=" that is text, as {{=}} writes it: it names no argument."""
_EDGE = re.compile(r"\{\{+|\}\}+|\[\[|\]\]")
_NAME = re.compile(r"\n?[^|{}\[\]<>\n]*+\n?")


def match_brackets(text: str) -> list[tuple[int, int, int]]:
    """Return (start, end, width) of every bracketed span, by start: width 2 for `{{` and `[[`, 3 for `{{{`.

    Edges without a partner are text. Runs of braces are parted as MediaWiki's preprocessor does, innermost first.
    """
    spans: list[tuple[int, int, int]] = []
    stack: list[list[int]] = []  # [position after the opening run, braces left in the run (0 for a link)]
    num_open_braces = 0
    for match in _EDGE.finditer(text):
        edge = match[0]
        if edge == "[[":
            stack.append([match.end(), 0])
        elif edge == "]]":
            if stack and not stack[-1][1]:
                spans.append((stack.pop()[0] - 2, match.end(), 2))
        elif edge[0] == "{":
            stack.append([match.end(), len(edge)])
            num_open_braces += 1
        else:
            left, position = len(edge), match.start()
            while left >= 2 and num_open_braces:
                while not stack[-1][1]:  # a link that is not closed inside a template
                    stack.pop()
                opening = stack[-1]
                width = 3 if opening[1] >= 3 and left >= 3 else 2
                position += width
                left -= width
                spans.append((opening[0] - width, position, width))
                opening[0] -= width
                opening[1] -= width
                if opening[1] < 2:
                    stack.pop()
                    num_open_braces -= 1
    spans.sort()
    return spans


class Expander:
    """Replaces the templates and links of one page."""

    def __init__(self, text: str, site: Site, title: str, dropped: Counter[str], unknown: Counter[str] | None) -> None:
        self.text = text
        self.site = site
        self.local = LOCAL.get(site.language.partition("-")[0], {})
        self.title = title
        self.dropped = dropped
        self.unknown = unknown
        self.spans = match_brackets(text)
        self.starts = [span[0] for span in self.spans]

    def expand(self) -> str:
        """The text with every template rendered or dropped, and every link its label."""
        return "".join(self._render(0, len(self.text), 0, depth=0))

    def _children(self, start: int, end: int, index: int) -> list[tuple[int, int, int, int]]:
        """The outermost spans in [start, end), each with its own index; `index` is the first that may be one."""
        found = []
        while index < len(self.spans) and self.spans[index][0] < end:
            child_start, child_end, width = self.spans[index]
            found.append((child_start, child_end, width, index))
            index = bisect.bisect_left(self.starts, child_end, index + 1)
        return found

    def _render(self, start: int, end: int, index: int, depth: int) -> list[str]:
        pieces: list[str] = []
        position = start
        for child_start, child_end, width, child_index in self._children(start, end, index):
            pieces.append(self.text[position:child_start])
            pieces.append(self._replace(child_start, child_end, width, child_index, depth))
            position = child_end
        pieces.append(self.text[position:end])
        return pieces

    def _replace(self, start: int, end: int, width: int, index: int, depth: int) -> str:
        if depth >= MAX_DEPTH:
            self.dropped["nested too deeply"] += 1
            return MARK
        if self.text[start] == "[":
            return self._link(start + 2, end - 2, index + 1, depth)
        if width == 3:
            arguments = self._arguments(start + 3, end - 3, index + 1, depth)
            return arguments[1] if len(arguments) > 1 else ""
        return self._template(start + 2, end - 2, index + 1, depth)

    def _link(self, start: int, end: int, index: int, depth: int) -> str:
        target = _NAME.match(self.text, start, end)[0]  # type: ignore[index]
        kind = is_dropped_link(target.strip(), self.site)
        if kind:
            self.dropped[kind] += 1
            return MARK if kind == "file" else ""
        parts = self._arguments(start, end, index, depth, maxsplit=1)
        return link_label(parts[0], parts[1] if len(parts) > 1 else None)

    def _template(self, start: int, end: int, index: int, depth: int) -> str:
        name = normalize_name(_NAME.match(self.text, start, end)[0])  # type: ignore[index]
        renderer = self.local.get(name) or find_renderer(name)
        is_function = False
        if renderer is None:
            renderer = PARSER_FUNCTIONS.get(name.partition(":")[0]) if ":" in name else None
            is_function = renderer is not None
        if renderer is None:
            self.dropped["template"] += 1
            if self.unknown is not None:
                self.unknown[name] += 1
            return MARK
        parts = self._arguments(start, end, index, depth)
        if is_function:  # {{lc:Text}}: the first argument stands behind the colon
            parts.insert(1, parts[0].partition(":")[2])
        before = after = ""
        if name in IN_CONTEXT or name[:4] in IN_CONTEXT:
            before, after = self._line_before(start - 2), self.text[end + 2 : end + 12]
        try:
            rendered = renderer(Arguments(name, parts[1:], self.title, self.site.language, before, after))
        except (ValueError, ArithmeticError):  # arguments that no one foresaw lose one template, not the job
            rendered = None
        if VOID in parts and VOID not in (rendered or ""):  # what is computed from a value that is not known
            rendered = VOID
        if rendered is None or rendered in (VOID, FORMULA):
            self.dropped["template"] += 1
            return rendered or MARK
        return rendered

    def _line_before(self, position: int) -> str:
        """The line up to here, its last 300 characters at most."""
        start = self.text.rfind("\n", max(0, position - 300), position) + 1
        return self.text[start or max(0, position - 300) : position]

    def _arguments(self, start: int, end: int, index: int, depth: int, maxsplit: int = -1) -> list[str]:
        """Split at the "|" of this level, children replaced."""
        arguments: list[list[str]] = [[]]
        pieces = self._render(start, end, index, depth + 1)
        for number, piece in enumerate(pieces):
            if number % 2 and "=" in piece and "<" not in piece:  # in tags it parts attributes
                piece = piece.replace("=", _EQUALS)
            if number % 2 or "|" not in piece:  # odd pieces are replaced children: their signs are text
                arguments[-1].append(piece)
                continue
            first, *rest = piece.split("|", maxsplit if maxsplit < 0 else max(0, maxsplit + 1 - len(arguments)))
            arguments[-1].append(first)
            arguments.extend([part] for part in rest)
        return ["".join(argument) for argument in arguments]
