"""Templates of one wiki, read from TOML files: names, and the pattern or function that each name renders.

docs/templates.md describes the files. Those of this project are in `data`, one per language; the English one holds on
every wiki that gives its names no other meaning.
"""

import functools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.storage import read_errors, to_path
from bert_pipeline.wikipedia.languages import current_code, names_with_fallbacks
from bert_pipeline.wikipedia.placeholders import FORMULA, PARAGRAPH_BREAK, PIPE, UNKNOWN_VALUE, protect
from bert_pipeline.wikipedia.templates.registry import (
    FILTERS,
    FUNCTIONS,
    PREFIX_LENGTH,
    Arguments,
    Renderer,
    Wiki,
    normalize_name,
    show_nothing,
)

DATA = Path(__file__).parent / "data"
GENERAL = "en"
"""The file that holds on every wiki."""

_SIGNS = {"UNKNOWN": UNKNOWN_VALUE, "FORMULA": FORMULA, "PARAGRAPH": PARAGRAPH_BREAK, "PIPE": PIPE}
_SECTIONS = {"wiki", "international", "indented_prose", "templates", "functions", "tables", "words", "formats"}
_ENTRY_KEYS = {"text", "source"}
_FORMATS = {"date", "language", "number", "quotation"}
_Error = Callable[[str], Exception]


@functools.lru_cache(maxsize=64)
def load_wiki(language: str, file: str = "", dbname: str = "") -> Wiki:
    """Return the templates of the wikis of a language ("", "fr", "de-AT"), and those of a file of one's own.

    Those of the file of a single wiki ("frwiktionary"), if there is one, replace those of its language.

    Raise InputError if the file cannot be read or is no template file, with the line that is wrong.
    """
    wiki = Wiki()
    code = current_code(language)
    language = code.partition("-")[0] or GENERAL
    wiki.is_english = language == GENERAL
    _add_file(wiki, DATA / f"{GENERAL}.toml", is_general=not wiki.is_english)
    own = DATA / f"{language}.toml"
    if not wiki.is_english and language.isalnum() and own.is_file():
        _add_file(wiki, own)
    if dbname.isalnum() and (own := DATA / f"{dbname}.toml").is_file():
        _add_file(wiki, own)
    if file:
        _add_file(wiki, to_path(file))
    # What the wiki calls the parser functions and variables of the English file: {{KISBETŰ:A}}, {{JETZIGES_JAHR}}
    for names in names_with_fallbacks(code):
        for word, english in names.get("words", {}).items():
            if english in wiki.functions:
                wiki.functions.setdefault(word, wiki.functions[english])
            elif english.upper() in wiki.renderers:
                wiki.renderers.setdefault(word.upper(), _variable(wiki.renderers[english.upper()]))
    return wiki


def _variable(renderer: Renderer) -> Renderer:
    """Return the renderer of a variable: with arguments, its name is that of a template."""
    return lambda arguments: None if len(arguments.values) > 1 else renderer(arguments)


# Files


def _add_file(wiki: Wiki, path: Path, *, is_general: bool = False) -> None:
    """Add a file: its names replace those of the files before. Raise InputError with the line that is wrong."""
    file = _File(path)
    wiki.keeps_indented_prose = file.flag("indented_prose", wiki.keeps_indented_prose)
    tables = file.tables("tables")
    wiki.tables |= tables
    words = file.tables("words")
    tables |= words
    # English words and formats are not used by the functions that other wikis call.
    if not is_general:
        wiki.tables |= words
        for key, text in file.formats().items():
            if key == "number":
                wiki.number = text
            else:
                wiki.formats[key] = compile_pattern(text, tables, functools.partial(file.error, key))
    for section, renderers in (("functions", wiki.functions), ("templates", wiki.renderers)):
        for name, text, key in file.entries(section, tables):
            renderer = _compile(wiki, text, tables, functools.partial(file.error, key))
            # What shows nothing holds on every wiki, since no sentence gets a wrong word
            if is_general and section == "templates" and text and key.partition(" | ")[0] not in file.international:
                continue
            if name.endswith("*"):
                if len(name) <= PREFIX_LENGTH:
                    raise file.error(key, f"{name!r} has less than {PREFIX_LENGTH} characters before its '*'")
                wiki.prefixes[name[:-1]] = renderer
            else:
                renderers[name] = renderer


def _compile(wiki: Wiki, text: str, tables: Mapping[str, Mapping[str, str]], error: _Error) -> Renderer:
    if not text.startswith("="):
        return compile_pattern(text, tables, error)
    renderer = FUNCTIONS.get(text[1:]) or wiki.renderers.get(normalize_name(text[1:]))
    if renderer is None:
        raise error(f"no function or template is called {text[1:]!r}")
    return renderer


class _File:
    """One template file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with read_errors(path):
                self.text = path.read_text(encoding="utf-8-sig")
            self.content: dict[str, Any] = tomllib.loads(self.text)
        except UnicodeDecodeError:
            raise InputError(f"{path}: not UTF-8 text; expected a template file (docs/templates.md)") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path}: not TOML: {error}; docs/templates.md describes the file") from None
        for key in self.content.keys() - _SECTIONS:
            raise self.error(key, f"found {key!r}, expected one of {', '.join(sorted(_SECTIONS))}")

    def error(self, key: str, problem: str) -> InputError:
        """Return an error for the first line that has this key."""
        begins = re.compile(rf"[\s\[\"']*{re.escape(key)}[\s\]\"'=]")
        lines = (number for number, line in enumerate(self.text.splitlines(), 1) if begins.match(line))
        place = f", line {number}" if (number := next(lines, 0)) else ""
        return InputError(f"{self.path}{place}: {problem}; docs/templates.md describes the file")

    def flag(self, key: str, default: bool) -> bool:
        """Return a setting that is true or false."""
        value = self.content.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"found {key} = {value!r}, expected true or false")
        return value

    @property
    def international(self) -> Sequence[str]:
        """First names of the entries that hold on the wikis of other languages too."""
        names: Sequence[str] = self.content.get("international", ())
        return names

    def tables(self, section: str) -> dict[str, dict[str, str]]:
        """Return the tables of a section by name; words in a text are numbered from 1, those in a list are alike."""
        tables = {}
        for name, table in self._mapping(section).items():
            if isinstance(table, str):
                table = {str(number): word for number, word in enumerate(table.split(), 1)}
            elif isinstance(table, list):
                table = {str(word): str(word) for word in table}
            if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
                raise self.error(name, f"{name} is no table of texts")
            tables[name] = {key.lower(): value for key, value in table.items()}
        return tables

    def formats(self) -> dict[str, str]:
        """Return the formats, which are texts."""
        formats = self._mapping("formats")
        for name, value in formats.items():
            if name not in _FORMATS or not isinstance(value, str):
                raise self.error(name, f"found {name!r}, expected a text for one of {', '.join(sorted(_FORMATS))}")
            if name == "number" and not re.fullmatch(r"\d+\D\d{3}\D\d", value):
                raise self.error(name, f"found {value!r}, expected a number as the wiki writes it, such as '1,234.5'")
        return formats

    def entries(self, section: str, tables: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str, str]]:
        """Yield (name, text, key) of every name of a section."""
        for key, entry in self._mapping(section).items():
            text = entry.get("text") if isinstance(entry, dict) else entry
            if isinstance(entry, dict) and (unknown := sorted(entry.keys() - _ENTRY_KEYS)):
                raise self.error(key, f"{key!r} has {unknown[0]!r}, expected only {', '.join(sorted(_ENTRY_KEYS))}")
            if not isinstance(text, str):
                raise self.error(key, f"{key!r} has no text")
            names = [name.strip() for name in key.split(" | ")] if key != "|" else [key]
            for name in names:
                if (match := _TABLE_IN_NAME.search(name)) and match[1] not in tables:
                    raise self.error(key, f"no table is called {match[1]!r}")
                for expanded, shown in _expand(name, text, tables):
                    yield normalize_name(expanded) if section == "templates" else expanded.lower(), shown, key

    def _mapping(self, section: str) -> dict[str, Any]:
        table = self.content.get(section, {})
        if not isinstance(table, dict):
            raise self.error(section, f"{section} is no table")
        return table


_TABLE_IN_NAME = re.compile(r"\{([\w ]+)\}")


def _expand(name: str, text: str, tables: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield a name and its text; one with {table} in it once for each key, with its value for {table} in the text."""
    match = _TABLE_IN_NAME.search(name)
    if match is None:
        yield name, text
        return
    for key, value in tables[match[1]].items():
        yield name.replace(match[0], key), text.replace(match[0], value)


# Patterns

_TOKEN = re.compile(r"\\(.)|\{([^{}]+)\}|([\[\]])|([^\\{}\[\]]+)", re.DOTALL)
_Part = str | Callable[[Arguments], str]


def compile_pattern(pattern: str, tables: Mapping[str, Mapping[str, str]], error: _Error = ValueError) -> Renderer:
    """Return the renderer of a pattern such as "{1|name}[ ({2:number})]", as docs/templates.md describes it."""
    if not pattern:
        return show_nothing
    sections: list[tuple[bool, list[_Part]]] = [(False, [])]
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise error(f"{pattern!r} has an open brace or an odd backslash at character {position + 1}")
        escaped, place, bracket, literal = match.groups()
        position = match.end()
        if bracket:
            if (bracket == "[") == sections[-1][0]:
                raise error(f"{pattern!r} has a bracket without its partner, or brackets in brackets")
            sections.append((bracket == "[", []))
        elif place:
            sections[-1][1].append(_compile_place(place, tables, error))
        else:
            sections[-1][1].append((escaped or literal).replace("'", protect("'")))  # no emphasis
    if sections[-1][0]:
        raise error(f"{pattern!r} has a '[' without its ']'")
    return _join_sections([section for section in sections if section[1]])


def _compile_place(place: str, tables: Mapping[str, Mapping[str, str]], error: _Error) -> _Part:
    if place in _SIGNS:
        return _SIGNS[place]
    if place[0] == "*":
        return lambda arguments: place[1:].join(arguments.given())
    names, _, how = place.partition(":")
    keys = names.split("|")
    default = keys.pop()[1:-1] if keys[-1][:1] == "'" else ""
    if not how:
        return lambda arguments: arguments.get(*keys) or default
    if how in FILTERS:
        convert = FILTERS[how]
        return lambda arguments: (value := arguments.get(*keys) or default) and convert(value, arguments.wiki)
    if how not in tables:
        raise error(f"{{{place}}}: found {how!r}, expected one of {', '.join([*FILTERS, *tables])}")
    table = tables[how]

    def look_up(arguments: Arguments) -> str:
        value = arguments.get(*keys) or default
        return table.get(value.lower(), table.get("*", value)) if value else ""

    return look_up


def _join_sections(sections: list[tuple[bool, list[_Part]]]) -> Renderer:
    # Text alone, and one argument alone: most entries
    if len(sections) == 1 and not sections[0][0]:
        parts = sections[0][1]
        if all(isinstance(part, str) for part in parts):
            text = "".join(part for part in parts if isinstance(part, str))
            return lambda arguments: text
        if len(parts) == 1 and not isinstance(parts[0], str):
            place = parts[0]
            return lambda arguments: place(arguments) or None

    def render(arguments: Arguments) -> str | None:
        shown = ""
        for is_optional, parts in sections:
            values = [part if isinstance(part, str) else part(arguments) for part in parts]
            if all(values):
                shown += "".join(values)
            elif not is_optional:
                return None
        return shown or None

    return render
