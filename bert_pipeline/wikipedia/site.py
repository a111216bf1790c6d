"""A wiki: the names of its namespaces and magic words, and of the templates that mark its disambiguation pages.

All are exact names. They come from the header of the export, from MediaWiki's messages in the wiki's language and its
fallback languages (`data/mediawiki.json`, made by `benchmarks/mediawiki_names.py`), and from
`data/disambiguation.toml`. Those of English are valid everywhere.
"""

import dataclasses
import functools
import html
import re
import tomllib
from pathlib import Path
from typing import Any

from bert_pipeline.wikipedia.languages import current_code, mediawiki_names, names_with_fallbacks
from bert_pipeline.wikipedia.templates import normalize_name

MEDIA_NAMESPACE = -2
FILE_NAMESPACE = 6
TEMPLATE_NAMESPACE = 10
CATEGORY_NAMESPACE = 14

_DATA = Path(__file__).parent / "data"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One wiki, as described in the header of its export."""

    dbname: str
    """"enwiki"; empty if the export has none (schema versions before 0.8, hand-made files)."""
    language: str
    """"en"; empty if the export has none."""
    namespaces: dict[str, int]
    """Lower-case local, canonical and old names of namespaces (without the main one) -> number."""
    redirect: re.Pattern[str]
    """Matches the start of a redirect: "#WEITERLEITUNG [["."""
    switches: re.Pattern[str]
    """Finds behavior switches: __NOTOC__, __KEIN_INHALTSVERZEICHNIS__."""
    disambiguation_switches: tuple[str, ...]
    """The switches that mark a disambiguation page."""
    disambiguation_templates: frozenset[str]
    """Normalized names of the templates that mark a disambiguation page."""
    _other_names: set[str] = dataclasses.field(default_factory=set, init=False, repr=False, compare=False)
    """Names of templates that were found to be others, as `_NAME` finds them: pages call the same ones."""

    def namespace_of(self, title: str) -> int:
        """Return the namespace of a title's prefix; 0 if it is none ("Alien: Covenant")."""
        prefix, colon, _ = title.partition(":")
        if not colon:
            return 0
        return self.namespaces.get(prefix.replace("_", " ").strip().lower(), 0)

    def is_disambiguation(self, title: str, text: str) -> bool:
        """Return True if a page only lists the meanings of its title."""
        return (
            title.lower().endswith(_disambiguation()[0])
            or any(switch in text for switch in self.disambiguation_switches)
            or self._calls_template(text)
        )

    def _calls_template(self, text: str) -> bool:
        """Return True if the text calls a template of disambiguation pages outside of comments and other templates."""
        # Few pages have such a name at all, or one with a comment in it: only those are read with their brackets
        names = {*_NAME.findall(text)} - self._other_names
        if not any(name.endswith("<") or self._marks_disambiguation(name[:-1]) for name in names):
            if len(self._other_names) < _MAX_OTHER_NAMES:
                self._other_names.update(name for name in names if len(name) <= _MAX_NAME_CHARACTERS)
            return False
        text = _HIDDEN.sub("", text)
        # A call inside of another template counts only if that one is never closed: then its braces are text
        opened: list[list[bool]] = []  # [whether it has such a name, whether it holds a call with such a name]
        for brackets in _BRACKETS.finditer(text):
            if brackets[0] != "}}":
                opened.append([self._marks_disambiguation(brackets[1]), False])
            elif opened and opened.pop()[0]:
                if not opened:
                    return True
                opened[-1][1] = True
        return any(holds_call for _, holds_call in opened)

    def _marks_disambiguation(self, template: str) -> bool:
        if self.namespace_of(template) == TEMPLATE_NAMESPACE:  # {{Vorlage:Begriffsklärung}}
            template = template.partition(":")[2]
        return normalize_name(template).lower() in self.disambiguation_templates


# {{name|, {{name}}, {{name<!-- a comment -->, a name that ends its line; each with the character after it
_NAME = re.compile(r"\{\{([^|{}\[\]<>\n]*+[|}\n<])")
_MAX_OTHER_NAMES, _MAX_NAME_CHARACTERS = 1 << 13, 60
_BRACKETS = re.compile(r"\{\{([^|{}\[\]<>\n]*+)|\}\}")
_HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)|<nowiki\s*+/>|<nowiki\b[^<>]*+>.*?(?:</nowiki\s*+>|\Z)", re.DOTALL)

# <namespace key="14" case="first-letter">Kategorie</namespace>
_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>/]*>([^<]*)</namespace>')
_DATABASE = re.compile(r"<dbname>([^<]*)</dbname>")
_LANGUAGE = re.compile(r'<mediawiki\b[^>]*?\bxml:lang="([^"]*)"')


def read_site(header: str) -> Site:
    """Read the header of an export: everything before the first page."""
    database = _DATABASE.search(header)
    match = _LANGUAGE.search(header)
    language = match[1].strip() if match else ""
    fields = _read_names(language.lower())
    # The names in the header take precedence
    own = {html.unescape(name).strip().lower(): int(key) for key, name in _NAMESPACE.findall(header)}
    return Site(
        dbname=html.unescape(database[1]).strip() if database else "",
        language=language,
        **{**fields, "namespaces": fields["namespaces"] | own},
    )


@functools.lru_cache(maxsize=32)
def _read_names(language: str) -> dict[str, Any]:
    """Return the fields of `Site` that follow from a language; with "", file and category names of all languages."""
    chain = names_with_fallbacks(language)
    namespaces: dict[str, int] = {}
    if not language:
        kept = (MEDIA_NAMESPACE, FILE_NAMESPACE, CATEGORY_NAMESPACE)
        languages = mediawiki_names()["languages"].values()
        every = [entry for names in languages for entry in names.get("namespaces", {}).items()]
        namespaces = {name: number for name, number in every if number in kept}
    # The nearest language last: of equal names, its own takes precedence
    for names in reversed(chain):
        namespaces |= names.get("namespaces", {})
    by_kind = {
        kind: "|".join(re.escape(word) for names in chain for word in names.get(kind, ()))
        for kind in ("redirects", "switches", "cased_switches")
    }
    by_language, code = _disambiguation()[1], current_code(language)
    templates = [by_language.get(name, frozenset()) for name in ("en", code.partition("-")[0], code)]
    return {
        "namespaces": namespaces,
        "redirect": re.compile(rf"\s*+(?:{by_kind['redirects']})\s*+:?\s*+\[\[", re.IGNORECASE),
        "switches": re.compile(rf"(?i:{by_kind['switches']})|{by_kind['cased_switches']}"),
        "disambiguation_switches": tuple(names["disambiguation"] for names in chain if "disambiguation" in names),
        "disambiguation_templates": frozenset().union(*templates),
    }


@functools.lru_cache(maxsize=1)
def _disambiguation() -> tuple[tuple[str, ...], dict[str, frozenset[str]]]:
    """Return how titles of disambiguation pages end, and language -> names of their templates."""
    content = tomllib.loads((_DATA / "disambiguation.toml").read_text(encoding="utf-8"))
    return tuple(content["titles"]), {code: frozenset(names) for code, names in content["templates"].items()}
