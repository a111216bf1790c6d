"""Expand templates {{…}} and links [[…]], nested in each other."""

import bisect
import re
from collections import Counter

from bert_pipeline.wikipedia.languages import WIKIPEDIAS
from bert_pipeline.wikipedia.placeholders import DROPPED, FORMULA, UNKNOWN_VALUE, protect
from bert_pipeline.wikipedia.punctuation import BRACKETS, PAUSES, QUOTATIONS, SENTENCE_ENDS, UNSPACED_LETTERS, one_of
from bert_pipeline.wikipedia.site import CATEGORY_NAMESPACE, FILE_NAMESPACE, MEDIA_NAMESPACE, TEMPLATE_NAMESPACE, Site
from bert_pipeline.wikipedia.templates import Arguments, Wiki, load_wiki, show_nothing

# A link without brackets inside, with at most one pipe and no colon before it, which is nine in ten of all links:
# [[word]], [[page|word]]. A "=" in its label would be read as the name of an argument where it is in a template
_PLAIN_LINK = re.compile(r"\[\[(?:[^|\[\]{}<>:\n]*+\||(?![^|\[\]{}:\n]*+:))([^|\[\]{}=\n]++)\]\]")


def replace_plain_links(text: str) -> str:
    """Replace simple links by their labels; leave those with a colon, nesting or more pipes to `expand_templates`."""
    return "".join(_PLAIN_LINK.split(text))  # the pattern's one group is the label: split keeps it


def expand_templates(
    text: str, site: Site, title: str, dropped: Counter[str], unknown: Counter[tuple[str, bool]], templates: str = ""
) -> str:
    """Replace templates by what they render or DROPPED, and links by their labels.

    Elements without text are counted in `dropped` by kind, templates that are in no file also in `unknown`: by name,
    and whether they must stand for a word; then they leave an unknown value. `templates` is a file of one's own.
    """
    expansion = _Expansion(text, site, load_wiki(site.language, templates, site.dbname), title, dropped, unknown)
    return "".join(expansion.expand_range(0, len(text), 0, depth=0))


MAX_DEPTH = 40
"""MediaWiki itself stops expanding templates at this depth."""

_EQUALS = protect("=")  # as {{=}} writes it: a "=" that names no argument
# The target of a link or the name of a template, from its opening brackets: "page" in [[page|word]]
_NAME = re.compile(r"\n?[^|{}\[\]<>\n]*+\n?")


class _Expansion:
    """Expansion of one page.

    All brackets are matched once, in `__init__`; then each span is expanded after those in it. `index` is always the
    index in `spans` of the first span that may be in the range.
    """

    def __init__(
        self, text: str, site: Site, wiki: Wiki, title: str, dropped: Counter[str], unknown: Counter[tuple[str, bool]]
    ) -> None:
        self.text = text
        self.site = site
        self.wiki = wiki
        self.title = title
        self.dropped = dropped
        self.unknown = unknown
        self.spans = match_brackets(text)
        self.starts = [span[0] for span in self.spans]

    def expand_range(self, start: int, end: int, index: int, depth: int) -> list[str]:
        """Return the text of a range in pieces: every second one is what an outermost span in it expands to."""
        pieces: list[str] = []
        position = start
        while index < len(self.spans) and self.spans[index][0] < end:
            span_start, span_end, width = self.spans[index]
            pieces.append(self.text[position:span_start])
            pieces.append(self._expand_span(span_start, span_end, width, index, depth))
            position = span_end
            # Skip the spans inside this one: it has expanded them.
            index = bisect.bisect_left(self.starts, span_end, index + 1)
        pieces.append(self.text[position:end])
        return pieces

    def _expand_span(self, start: int, end: int, width: int, index: int, depth: int) -> str:
        if depth >= MAX_DEPTH:
            self.dropped["nested too deeply"] += 1
            return DROPPED
        if self.text[start] == "[":
            return self._expand_link(start + 2, end - 2, index + 1, depth)
        if width == 3:  # {{{parameter|default}}}
            arguments = self._expand_arguments(start + 3, end - 3, index + 1, depth)
            return arguments[1] if len(arguments) > 1 else ""
        return self._expand_template(start + 2, end - 2, index + 1, depth)

    def _expand_link(self, start: int, end: int, index: int, depth: int) -> str:
        if kind := _dropped_link_kind(self._read_name(start, end).strip(), self.site):
            self.dropped[kind] += 1
            return DROPPED if kind == "file" else ""
        return _link_label(*self._expand_arguments(start, end, index, depth, maxsplit=1))

    def _expand_template(self, start: int, end: int, index: int, depth: int) -> str:
        written = self._read_name(start, end)
        name, renderer, is_function = self.wiki.find_call(written)
        if renderer is None and self.site.namespace_of(written) == TEMPLATE_NAMESPACE:  # {{Vorlage:Name}}
            name, renderer, is_function = self.wiki.find_call(written.partition(":")[2])
        if renderer is None or renderer is show_nothing:  # most templates: their arguments are not expanded
            is_word = renderer is None and not depth and _is_word(self.text, start - 2, end + 2, self.wiki)
            self.dropped["word of an unknown template" if is_word else "template"] += 1
            if renderer is None:
                self.unknown[name, is_word] += 1
            return UNKNOWN_VALUE if is_word else DROPPED
        parts = self._expand_arguments(start, end, index, depth)
        if is_function:  # {{lc:Text}}: the first argument is behind the colon
            parts.insert(1, parts[0].partition(":")[2])
        arguments = Arguments(written.strip(), parts[1:], self.wiki, self.title, self.text, (start - 2, end + 2), name)
        rendered = renderer(arguments)
        # What is computed from an unknown value is unknown
        if UNKNOWN_VALUE in parts and UNKNOWN_VALUE not in (rendered or ""):
            rendered = UNKNOWN_VALUE
        self.dropped["template"] += rendered in (None, UNKNOWN_VALUE, FORMULA)
        return DROPPED if rendered is None else rendered

    def _read_name(self, start: int, end: int) -> str:
        match = _NAME.match(self.text, start, end)
        return match[0] if match else ""

    def _expand_arguments(self, start: int, end: int, index: int, depth: int, maxsplit: int = -1) -> list[str]:
        """Split a range at the "|" of this level; what is expanded in it has neither "|" nor "=" of this level."""
        arguments: list[list[str]] = [[]]
        for number, piece in enumerate(self.expand_range(start, end, index, depth + 1)):
            is_expanded = number % 2 == 1
            if is_expanded and "=" in piece and "<" not in piece:  # in tags it separates attributes
                piece = piece.replace("=", _EQUALS)
            if is_expanded or "|" not in piece:
                arguments[-1].append(piece)
                continue
            first, *rest = piece.split("|", maxsplit if maxsplit < 0 else max(0, maxsplit + 1 - len(arguments)))
            arguments[-1].append(first)
            arguments.extend([part] for part in rest)
        return ["".join(argument) for argument in arguments]


# A word and a space before a call: "in {{…}}"; what is part of a sentence behind it: a word, the end of a word
_WORD_BEFORE = re.compile(r"(?:^|[\s\"“«(])([^\W\d_]+) $")
_WORD_AFTER = re.compile(r"(?:'{2,5})?(?: [\w\[]|['’-][^\W\d_])")
_PAUSE_AFTER = re.compile(rf"(?:'{{2,5}})?{one_of(PAUSES | SENTENCE_ENDS)}")
# What is written together with a word behind it: "l'", "anti-", "$", prepositions of Hebrew and Arabic
_PROCLITIC = re.compile(r"(?:[^\W\d_s]['’]|[^\W\d_]-|[$€£¥]|(?:^|[\s(\"])(?:[ובלמהשכ]{1,2}|[وفبكل]{1,2}(?:ال)?))$")
_ENDING = re.compile(rf"[^\W\d_{UNSPACED_LETTERS}]")
_HIRAGANA = re.compile("[\u3041-\u309f]{2}")
_ENCLOSING = frozenset([*QUOTATIONS, *map("".join, BRACKETS.items())]) - {"()", "（）", "﹙﹚", "[]", "［］", "{}"}
"""Pairs of marks that are not written with nothing in them."""
_CONTEXT = 60


def _is_word(text: str, start: int, end: int, wiki: Wiki) -> bool:
    """Return True if a call of a template that no file has must be a word of its sentence: "born in {{BCE|384}}, he".

    Marks, as those of missing sources, follow their word without a space, or a whole clause. So it is a word in
    quotation marks or italics, with an ending, between a word or comma and the next word; before a comma or full stop
    only after one as short as a preposition. A name before it is no hint: "Schiphol {{airport codes|AMS}} is". At the
    edge of brackets it is left out with what leads there. Without spaces, the wiki's file lists what surrounds a word.
    """
    line = text[max(0, start - _CONTEXT) : start].rpartition("\n")[2].replace(DROPPED, "")
    after = text[end : end + 8]
    tail = line.rstrip()
    before, behind = (tuple(wiki.tables.get(f"{side} values", ())) for side in ("before", "after"))
    if _HIRAGANA.match(tail[-2:]):  # the end of a word, or two of them: "もの", "には"
        before = tuple(word for word in before if len(word) > 1)
    if line[-1:] + after[:1] in _ENCLOSING or line[-2:] == after[:2] == "''" or _PROCLITIC.search(line):
        return True
    if line.endswith(" ") and _ENDING.match(after) and not after[0].isupper():
        return True
    if (not tail or line.endswith(", ")) and after.lstrip(" ")[:1].islower():
        return True
    if (tail or "。").endswith(before) and after.startswith(behind or ""):
        return True

    word = "".join(_WORD_BEFORE.findall(line))
    is_short = len(word) <= 3
    if not word or word != word.lower() and not (is_short and word.istitle()):
        return False
    ends_clause = is_short and line.rfind("(") <= line.rfind(")")
    return _WORD_AFTER.match(after) is not None or ends_clause and _PAUSE_AFTER.match(after) is not None


# {{a template}} or [[link]] without brackets inside, which are most of them; runs of braces, and pairs of brackets
_BRACKETS = re.compile(r"\{\{(?:[^{}\[\]]++\}\}(?!\})|\{*+)|\}\}+|\[\[(?:[^{}\[\]]++\]\])?+|\]\]")


def match_brackets(text: str) -> list[tuple[int, int, int]]:
    """Return (start, end, width) of every bracketed span, by start: width 2 for `{{` and `[[`, 3 for `{{{`.

    Brackets without a partner are text. Runs of braces are split as by MediaWiki's preprocessor, innermost first.
    """
    spans: list[tuple[int, int, int]] = []
    stack: list[list[int]] = []  # [position after the opening run, braces left in the run (0 for a link)]
    num_open_braces = 0
    for match in _BRACKETS.finditer(text):
        start, end = match.span()
        sign = text[start]
        if sign in "{[" and text[end - 1] in "}]":  # a whole template or link
            spans.append((start, end, 2))
        elif sign == "[":
            stack.append([end, 0])
        elif sign == "]":
            if stack and not stack[-1][1]:
                spans.append((stack.pop()[0] - 2, end, 2))
        elif sign == "{":
            stack.append([end, end - start])
            num_open_braces += 1
        else:
            # One run may close several: "}}}}" ends two templates, "}}}}}" a parameter in a template.
            left, position = end - start, start
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


_INTERWIKI = frozenset(
    {"w", "wikt", "wiktionary", "s", "wikisource", "b", "wikibooks", "q", "wikiquote", "n", "wikinews", "v", "d",
     "wikiversity", "voy", "wikivoyage", "c", "commons", "m", "meta", "species", "wikispecies", "mw", "doi", "rfc",
     "wikipedia", "project", "arxiv", "hdl", "imdbname", "imdbtitle", "wikidata", "bugzilla", "phab"}
)  # fmt: skip
"""Prefixes of links to other sites, which show their label."""


def _dropped_link_kind(target: str, site: Site) -> str:
    """Return the kind that a link without text is counted as, by its target; "" for one that shows its label."""
    prefix, colon, rest = target.partition(":")
    if not colon or not prefix:  # [[:Category:X]] is a link to the category
        return ""
    prefix = " ".join(prefix.replace("_", " ").split()).lower()
    namespace = site.namespaces.get(prefix)
    if namespace in (FILE_NAMESPACE, MEDIA_NAMESPACE):
        return "file"
    if namespace == CATEGORY_NAMESPACE:
        return "category"
    if namespace is None and rest and prefix not in _INTERWIKI and prefix in WIKIPEDIAS:  # [[fr:X]]
        return "interlanguage link"
    return ""


# What the pipe trick removes: " (band)" of [[Queen (band)|]], ", Texas" of [[Paris, Texas|]]
_PIPE_TRICK = re.compile(r" *+\([^()]*\)$|,.*$")


def _link_label(target: str, label: str | None = None) -> str:
    """Return the text that a link shows."""
    target = target.strip().removeprefix(":")
    if label is None:
        return target
    if label.strip():
        return label
    if label:
        return " "
    return _PIPE_TRICK.sub("", target.rpartition(":")[2])


# [https://example.org the label], [//example.org], [mailto:a@example.org the label]
_EXTERNAL_LINK = re.compile(
    rf"\[(?:(?:https?|ftps?|irc|news|gopher|svn|git):)?+//[^\s\[\]<>{DROPPED}]++[ \t]*+([^\[\]\n]*+)\]"
    r"|\[mailto:[^\s\]]++[ \t]*+([^\]\n]*+)\]",
    re.IGNORECASE,
)


def replace_external_links(text: str, dropped: Counter[str]) -> str:
    """Replace external links by their labels; those without one, which show a number, are dropped."""
    if "//" not in text and "[mailto" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        label = match[1] or match[2]
        if not label:
            dropped["external link"] += 1
        return label or DROPPED

    return _EXTERNAL_LINK.sub(replace, text)
