"""Registry of the templates that render as text, by name, and the arguments of a call."""

import re
from collections.abc import Callable, Sequence


class Arguments:
    """Arguments of one template call: positional ones by number from 1, named ones by name; all stripped."""

    __slots__ = ("after", "before", "language", "name", "parts", "title", "values")

    def __init__(
        self,
        name: str,
        parts: Sequence[str],
        title: str = "",
        language: str = "",
        before: str = "",
        after: str = "",
    ) -> None:
        self.name = name
        self.parts = parts
        self.language = language
        self.before = before
        self.after = after
        self.title = title
        self.values: dict[str, str] = {}
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
    def is_english(self) -> bool:
        """True if the page is of a wiki in English, or of one whose language is unknown."""
        return self.language.partition("-")[0] in ("", "en", "simple")

    def get(self, *keys: str | int) -> str:
        """Return the first of `keys` that is not empty; "" if all are."""
        for key in keys:
            value = self.values.get(str(key))
            if value:
                return value
        return ""

    def positional(self) -> list[str]:
        """Return the positional arguments in order, up to the first one missing."""
        found: list[str] = []
        while (value := self.values.get(str(len(found) + 1))) is not None:
            found.append(value)
        return found

    def unstripped(self) -> list[str]:
        """Return the positional arguments without explicit numbers, with the spaces around them."""
        return [part for part in self.parts if "=" not in part]

    def named(self) -> dict[str, str]:
        """Return the arguments with names."""
        return {key: value for key, value in self.values.items() if not key.isdigit()}


Renderer = Callable[[Arguments], "str | None"]
"""Return the text of a call; None if it has none, which is dropped and counted."""

RENDERERS: dict[str, Renderer] = {}
"""Name as `normalize_name` returns it -> renderer."""

LOCAL: dict[str, dict[str, Renderer]] = {}
"""Language of a wiki -> its own names, which take precedence, -> renderer."""

IN_CONTEXT: set[str] = set()
"""Names, or their first four characters, whose text depends on that around the call: they get the line up to it as
`Arguments.before`, and the few characters after it as `Arguments.after`."""

_PREFIXES: dict[str, Renderer] = {}
_PREFIX_STARTS: set[str] = set()  # first four characters, to look up most names once

PARSER_FUNCTIONS: dict[str, Renderer] = {}
"""Lower-case name before the colon of {{lc:Text}} -> renderer; the text is its first argument."""

_SPACES = re.compile(r"[ _]+")


def normalize_name(name: str) -> str:
    """Return the name that a template is registered under: lower case, no underscores, no "Template:"."""
    name = name.strip().lower()
    if "_" in name or "  " in name:
        name = _SPACES.sub(" ", name)
    return name.removeprefix("template:").removeprefix("subst:").strip()


def find_renderer(name: str) -> Renderer | None:
    """Return the renderer of a normalized name, by the whole of it or its prefix; None if there is none."""
    renderer = RENDERERS.get(name)
    if renderer is None and name[:4] in _PREFIX_STARTS:
        return next((_PREFIXES[prefix] for prefix in _PREFIXES if name.startswith(prefix)), None)
    return renderer


def register(names: str, *, in_context: bool = False) -> Callable[[Renderer], Renderer]:
    """Register a renderer under names separated by commas."""

    def add(renderer: Renderer) -> Renderer:
        found = [" ".join(name.split()) for name in names.split(",")]
        assert not RENDERERS.keys() & set(found), found
        RENDERERS.update(dict.fromkeys(found, renderer))
        if in_context:
            IN_CONTEXT.update(found)
        return renderer

    return add


def register_prefix(prefix: str) -> Callable[[Renderer], Renderer]:
    """Register a renderer for all names with a prefix of at least four characters that have none of their own."""

    def add(renderer: Renderer) -> Renderer:
        _PREFIXES[prefix] = renderer
        _PREFIX_STARTS.add(prefix[:4])
        return renderer

    return add


def shows(names: str, text: str) -> None:
    """Register templates that always render as the same text."""
    register(names)(lambda arguments: text)
