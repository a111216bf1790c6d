"""Write bert_pipeline/wikipedia/data/mediawiki.json: what MediaWiki calls its namespaces and magic words, by language.

`python -m benchmarks.mediawiki_names DIRECTORY` reads the sources of a MediaWiki release. Those of Debian's package are
in usr/share/mediawiki after `apt-get download mediawiki && dpkg-deb --extract mediawiki_*.deb .`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from bert_pipeline.atomic import atomic_write

OUTPUT = Path(__file__).parents[1] / "bert_pipeline" / "wikipedia" / "data" / "mediawiki.json"

_NAMESPACES = {
    "MEDIA": -2, "SPECIAL": -1, "TALK": 1, "USER": 2, "USER_TALK": 3, "FILE": 6, "FILE_TALK": 7, "IMAGE": 6,
    "IMAGE_TALK": 7, "MEDIAWIKI": 8, "MEDIAWIKI_TALK": 9, "TEMPLATE": 10, "TEMPLATE_TALK": 11, "HELP": 12,
    "HELP_TALK": 13, "CATEGORY": 14, "CATEGORY_TALK": 15,
}  # fmt: skip
_DISAMBIGUATION = {"en": "__DISAMBIG__", "ko": "__동음이의__", "mk": "__ПОЈАСНУВАЊЕ__", "ml": "_വിവക്ഷിതം_"}
"""https://github.com/wikimedia/mediawiki-extensions-Disambiguator, Disambiguator.i18n.magic.php"""
_CODES_OF_WIKIPEDIAS = {"no": "nb", "simple": "en"}
"""https://noc.wikimedia.org/conf/InitialiseSettings.php.txt, wgLanguageCode"""
_SWITCHES_OF_EXTENSIONS = [
    "__ARCHIVEDTALK__", "__EXPECTED_UNCONNECTED_PAGE__", "__EXPECTUNUSEDTEMPLATE__", "__EXPECTWITHOUTSCANS__",
    "__NOGLOBAL__", "__NOTALK__",
]  # fmt: skip
"""https://www.mediawiki.org/wiki/Help:Magic_words#Behavior_switches"""

_RENDERED = (
    "lc uc lcfirst ucfirst formatnum pagename subjectpagename basepagename fullpagename numberofarticles numberofpages"
    " numberoffiles numberofusers numberofactiveusers numberofedits currentyear currentmonth currentmonthname"
    " currentmonthnamegen currentmonthabbrev currentday currentday2 currentdayname currenttime currenthour currentweek"
    " localyear localmonth localmonthname localmonthnamegen localday localdayname localtime localhour"
)
"""Variables and parser functions that `wikipedia/templates/data/en.toml` renders, by MediaWiki's own names."""

_STRING = r"""(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")"""


def read_array(source: str, name: str) -> str:
    """Return what is between the brackets of `$name = [ … ];` in PHP source code, without comments."""
    array = re.search(rf"^\${name} = \[$(.*?)^\];", source, re.MULTILINE | re.DOTALL)
    return re.sub(r"/\*.*?\*/|^\s*(?:#|//)[^\n]*", "", array[1], flags=re.MULTILINE | re.DOTALL) if array else ""


def read_strings(code: str) -> list[str]:
    """Return the string literals of PHP source code."""
    return [re.sub(r"\\(.)", r"\1", single or double) for single, double in re.findall(_STRING, code)]


def read_language(source: str) -> dict[str, Any]:
    """Return what one file of messages defines; the rest comes from its fallback languages."""
    names = re.findall(rf"NS_(\w+)\s*=>\s*({_STRING})", read_array(source, "namespaceNames"))
    aliases = re.findall(rf"({_STRING})\s*=>\s*NS_(\w+)", read_array(source, "namespaceAliases"))
    by_name = [(literal, number) for number, literal, *_ in names] + [(alias[0], alias[-1]) for alias in aliases]
    namespaces = {read_strings(literal)[0].replace("_", " ").lower(): number for literal, number in by_name}
    # 'notoc' => [ 0, '__NOTOC__' ]: 0 if the words are also valid in other case
    words = re.findall(r"'(\w+)'\s*=>\s*\[\s*'?([01])'?,([^\]]*)\]", read_array(source, "magicWords"))
    magic_words = {key: (read_strings(code), case == "1") for key, case, code in words}
    fallback = re.search(r"^\$fallback = '([^']*)'", source, re.MULTILINE)
    switches: dict[bool, list[str]] = {False: [], True: []}
    for synonyms, is_cased in magic_words.values():
        switches[is_cased] += [word for word in synonyms if word.startswith("__")]
    rendered = {
        word.rstrip(":").replace("_", " ").lower(): key
        for key, (synonyms, _) in magic_words.items()
        for word in synonyms
        if key in _RENDERED.split() and len(word.rstrip(":")) > 1  # skip the case flag of files in an old form
    }
    return {
        "fallback": [code.strip() for code in fallback[1].split(",")] if fallback else [],
        "namespaces": {
            name: _NAMESPACES[number]
            for name, number in namespaces.items()
            if number in _NAMESPACES and "$1" not in name
        },
        "redirects": magic_words.get("redirect", ([], False))[0],
        "switches": switches[False],
        "cased_switches": switches[True],
        "words": rendered,
    }


def read_release(directory: Path) -> dict[str, Any]:
    """Return the contents of mediawiki.json."""
    version = re.search(r"'MW_VERSION', '([^']*)'", (directory / "includes/Defines.php").read_text(encoding="utf-8"))
    renamed = re.search(
        r"DEPRECATED_LANGUAGE_CODE_MAPPING = \[(.*?)\];",
        (directory / "includes/language/LanguageCode.php").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    if not version or not renamed:
        raise ValueError(f"{directory}: found other code in includes/, expected that of MediaWiki 1.39")
    old_codes = read_strings(renamed[1])
    languages = {}
    for path in sorted((directory / "languages/messages").glob("Messages*.php")):
        code = path.stem.removeprefix("Messages").lower().replace("_", "-")
        languages[code] = read_language(path.read_text(encoding="utf-8"))
        if code in _DISAMBIGUATION:
            languages[code]["disambiguation"] = _DISAMBIGUATION[code]
    # English is the end of every chain of fallbacks
    english = languages["en"]
    english["namespaces"] |= {"project": 4, "project talk": 5}
    english["cased_switches"] += _SWITCHES_OF_EXTENSIONS
    for code in languages.keys() - {"en"}:
        own = languages[code]
        for key in ("redirects", "switches", "cased_switches"):
            own[key] = [word for word in own[key] if word not in english[key]]
        own["words"] = {word: key for word, key in own["words"].items() if word not in english["words"]}
        # Of the talk pages of other namespaces, only the header of an export has the local names
        own["namespaces"] = {name: n for name, n in own["namespaces"].items() if n == 1 or n < 0 or n % 2 == 0}
    del english["words"]  # en.toml has them
    return {
        "version": f"MediaWiki {version[1]}",
        "renamed": {**dict(zip(old_codes[::2], old_codes[1::2])), **_CODES_OF_WIKIPEDIAS},
        "languages": {code: {key: value for key, value in own.items() if value} for code, own in languages.items()},
    }


def main() -> None:
    content = read_release(Path(sys.argv[1]))
    # One language a line, so that a difference can be read
    lines = [
        f"{json.dumps(code)}: {json.dumps(own, ensure_ascii=False)}" for code, own in content.pop("languages").items()
    ]
    head = json.dumps(content, ensure_ascii=False, indent=1)[:-2]
    with atomic_write(OUTPUT) as path:
        path.write_text(f'{head},\n "languages": {{\n  ' + ",\n  ".join(lines) + "\n }\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
