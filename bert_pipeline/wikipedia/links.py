"""Links: what of `[[…]]` and `[http://… …]` is text."""

import re
from collections import Counter

from bert_pipeline.wikipedia.languages import WIKIPEDIA_CODES
from bert_pipeline.wikipedia.marks import MARK, SEAM
from bert_pipeline.wikipedia.siteinfo import CATEGORY_NAMESPACE, FILE_NAMESPACE, Site

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
