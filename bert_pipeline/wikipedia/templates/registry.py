"""Templates of a wiki by name, the arguments of a call, and the functions that an entry of a template file can name."""

import functools
import re
from collections.abc import Callable, Sequence


class Arguments:
    """Arguments of one template call: positional ones by number from 1, named ones by name; all stripped."""

    __slots__ = ("_span", "_text", "called", "name", "title", "values", "wiki")

    def __init__(
        self,
        called: str,
        parts: Sequence[str],
        wiki: "Wiki",
        title: str = "",
        text: str = "",
        span: tuple[int, int] = (0, 0),
        name: str = "",
    ) -> None:
        self.called = called
        """The name as written; `name` is the normalized one in lower case."""
        self.name = (name or called).lower()
        self.wiki = wiki
        self.title = title
        self._text = text
        self._span = span
        self.values: dict[str, str] = {"0": called}
        number = 0
        # A "=" after a tag or link belongs to the text: "<span style=…>", "[[a|b=c]]".
        for part in parts:
            key, equals, value = part.partition("=")
            if equals and "<" not in key and "[" not in key:
                self.values[key.strip().lower()] = value.strip()
            else:
                number += 1
                self.values[str(number)] = part.strip()

    @property
    def before(self) -> str:
        """The line up to the call, its last 300 characters at most."""
        first = max(0, self._span[0] - 300)
        return self._text[self._text.rfind("\n", first, self._span[0]) + 1 or first : self._span[0]]

    @property
    def after(self) -> str:
        """The ten characters after the call."""
        return self._text[self._span[1] : self._span[1] + 10]

    def get(self, *keys: str | int) -> str:
        """Return the first of `keys` that is not empty; "" if all are."""
        for key in keys:
            value = self.values.get(str(key))
            if value:
                return value
        return ""

    def says(self, key: str) -> bool:
        """Return True if an option is on: "yes", "y", "on", "1"."""
        return self.get(key).lower() in ("y", "yes", "on", "1", "true")

    def positional(self) -> list[str]:
        """Return the positional arguments in order, up to the first one missing."""
        values: list[str] = []
        while (value := self.values.get(str(len(values) + 1))) is not None:
            values.append(value)
        return values

    def given(self) -> list[str]:
        """Return the positional arguments that are not empty."""
        return [value for value in self.positional() if value]


Renderer = Callable[[Arguments], "str | None"]
"""Return the text of a call; None if it has none, which is dropped and counted."""


def show_nothing(arguments: Arguments) -> None:
    """Render a template that is known to show no text in a sentence."""


FUNCTIONS: dict[str, Renderer] = {}
"""Name after the "=" of an entry -> what it renders."""

FILTERS: dict[str, Callable[[str, "Wiki"], str]] = {}
"""Name after the ":" of a place in a pattern -> what it makes of the argument."""


def function(name: str) -> Callable[[Renderer], Renderer]:
    """Register a function under the name by which entries refer to it."""

    def add(renderer: Renderer) -> Renderer:
        FUNCTIONS[name] = renderer
        return renderer

    return add


PREFIX_LENGTH = 4
"""Least characters of a prefix, which spare most names a second look-up."""


class Wiki:
    """What the templates and parser functions of one wiki render."""

    def __init__(self) -> None:
        self.renderers: dict[str, Renderer] = {}
        """Name as `normalize_name` returns it -> renderer."""
        self.functions: dict[str, Renderer] = {}
        """Lower-case name before the colon of {{lc:Text}} -> renderer; the text is its first argument."""
        self.tables: dict[str, dict[str, str]] = {}
        self.is_english = True
        self.keeps_indented_prose = False
        """Sentences in lines indented by ":" are kept, because the wiki's writers indent running text so."""
        self.number = "1,234.5"
        """An example of how numbers are written: "12 345,6" leaves four digits together."""
        self.formats: dict[str, Renderer] = {}
        """How a date is written, from `year`, `month` and `day`, and a foreign word, from `name` and `text`."""
        self.prefixes: dict[str, Renderer] = {}
        """Beginning of names that have no renderer of their own -> renderer."""

    def find(self, name: str) -> Renderer | None:
        """Return the renderer of a normalized name, by the whole of it or its longest prefix; None if there is none."""
        renderer = self.renderers.get(name)
        if renderer is None and name[:PREFIX_LENGTH] in self._prefix_starts:
            return next((self.prefixes[prefix] for prefix in self._by_length if name.startswith(prefix)), None)
        return renderer

    @functools.lru_cache(maxsize=1 << 14)  # noqa: B019 (wikis are kept as long as the process)
    def find_call(self, written: str) -> tuple[str, Renderer | None, bool]:
        """Return the normalized name of a call, its renderer or None, and True if that is a parser function."""
        name = normalize_name(written)
        renderer = self.find(name)
        if renderer is None and ":" in name:
            renderer = self.functions.get(name.partition(":")[0].lower())
            return name, renderer, renderer is not None
        return name, renderer, False

    def write(self, form: str, **values: str) -> str:
        """Return values in one of the formats; "" if the wiki has it not."""
        renderer = self.formats.get(form)
        if renderer is None:
            return ""
        return renderer(Arguments("", [f"{key}={value}" for key, value in values.items()], self)) or ""

    @functools.cached_property
    def _prefix_starts(self) -> frozenset[str]:
        return frozenset(prefix[:PREFIX_LENGTH] for prefix in self.prefixes)

    @functools.cached_property
    def _by_length(self) -> list[str]:
        return sorted(self.prefixes, key=len, reverse=True)


_SPACES = re.compile(r"[ _]+")
_PREFIXES = re.compile(r"(?:template:)?(?:subst:)?", re.IGNORECASE)


@functools.lru_cache(maxsize=1 << 14)
def normalize_name(name: str) -> str:
    """Return the name that a template is found under: no underscores, no "Template:", and lower case or capitals only.

    To MediaWiki only the case of the first letter is the same: {{BRA|1968}} is a country, {{bra|x}} is in physics. Of
    names in mixed case, other spellings are redirects, if they are any page: "As of", "As Of", {{IPA-fr}}.
    """
    name = name.strip()
    if "_" in name or "  " in name:
        name = _SPACES.sub(" ", name)
    name = _PREFIXES.sub("", name).strip()
    return name if name.isupper() and sum(map(str.isalpha, name)) > 1 else name.lower()
