"""Which templates show text, by name, and the arguments of a call."""

import re
from collections.abc import Callable, Sequence


class Arguments:
    """The arguments of one template call: positional ones by number from 1, named ones by name; all stripped."""

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
        for part in parts:
            key, equals, value = part.partition("=")
            if equals and "<" not in key and "[" not in key:
                self.values[key.strip().lower()] = value.strip()
            else:
                number += 1
                self.values[str(number)] = part.strip()

    @property
    def is_english(self) -> bool:
        """Whether the page is of a wiki in English; where the dump does not say it is taken to be."""
        return self.language.partition("-")[0] in ("", "en", "simple")

    def get(self, *keys: str | int) -> str:
        """The first of `keys` that is given and not empty; "" otherwise."""
        for key in keys:
            value = self.values.get(str(key))
            if value:
                return value
        return ""

    def positional(self) -> list[str]:
        """The positional arguments in order, up to the first one missing."""
        found: list[str] = []
        while (value := self.values.get(str(len(found) + 1))) is not None:
            found.append(value)
        return found

    def unstripped(self) -> list[str]:
        """The positional arguments that bear no number, with the spaces around them."""
        return [part for part in self.parts if "=" not in part]

    def named(self) -> dict[str, str]:
        """The arguments with names."""
        return {key: value for key, value in self.values.items() if not key.isdigit()}


Renderer = Callable[[Arguments], "str | None"]
"""The text that a call shows; None when it shows nothing, which is dropped and counted."""

RENDERERS: dict[str, Renderer] = {}
"""By normalized name, see `normalize_name`."""

LOCAL: dict[str, dict[str, Renderer]] = {}
"""Language of a wiki -> names that mean something of their own there; they come first."""

IN_CONTEXT: set[str] = set()
"""Names whose text depends on what stands around the call: they are given the line up to it as `Arguments.before`, and
the few characters behind it as `Arguments.after`."""

_PREFIXES: dict[str, Renderer] = {}
_STARTS: set[str] = set()

PARSER_FUNCTIONS: dict[str, Renderer] = {}
"""`{{lc:Text}}`: by the lower-case name before the colon; the text is the first argument."""

_SPACES = re.compile(r"[ _]+")


def normalize_name(name: str) -> str:
    """The name under which a template is looked up: spaces for underscores, lower case, no "Template:" before it."""
    name = name.strip().lower()
    if "_" in name or "  " in name:
        name = _SPACES.sub(" ", name)
    return name.removeprefix("template:").removeprefix("subst:").strip()


def find_renderer(name: str) -> Renderer | None:
    """The renderer of a normalized name, by the whole of it or by its beginning; None where it shows nothing."""
    renderer = RENDERERS.get(name)
    if renderer is None and name[:4] in _STARTS:
        return next((_PREFIXES[prefix] for prefix in _PREFIXES if name.startswith(prefix)), None)
    return renderer


def register(names: str, *, in_context: bool = False) -> Callable[[Renderer], Renderer]:
    """Register a renderer under names parted by commas."""

    def add(renderer: Renderer) -> Renderer:
        found = [" ".join(name.split()) for name in names.split(",")]
        assert not RENDERERS.keys() & set(found), found
        RENDERERS.update(dict.fromkeys(found, renderer))
        if in_context:
            IN_CONTEXT.update(found)
        return renderer

    return add


def register_prefix(prefix: str) -> Callable[[Renderer], Renderer]:
    """Register a renderer for all names that begin so, of at least four characters, and have none of their own."""

    def add(renderer: Renderer) -> Renderer:
        _PREFIXES[prefix] = renderer
        _STARTS.add(prefix[:4])
        return renderer

    return add


def shows(names: str, text: str) -> None:
    """Register templates that always show the same."""
    register(names)(lambda arguments: text)
