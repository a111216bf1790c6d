"""Templates that show words of other languages, their names, romanizations and sounds; quotations and signs."""

import re

from bert_pipeline.wikipedia.placeholders import DROPPED
from bert_pipeline.wikipedia.templates.registry import Arguments, function

# Words of other languages


@function("labelled")
def _labelled(arguments: Arguments) -> str | None:
    """Render "German: Wort", as the wiki writes it, of {{lang-de|Wort}} or {{langx|de|Wort}}."""
    values = arguments.positional()
    if arguments.name.startswith("lang-"):
        code = arguments.name[5:]
    else:
        code = values.pop(0).lower() if values else ""
    text = arguments.get("text") or (values[0] if values else "")
    if not text:
        return None
    names = arguments.wiki.tables.get("languages", {})
    name = names.get(code) or arguments.wiki.is_english and names.get(code.partition("-")[0]) or ""
    label = arguments.get("label", "labels") or name
    is_labelled = label.lower() not in ("", "none", "no")
    if not arguments.wiki.is_english:
        text = " ".join(filter(None, (text, *values[1:2])))
        return arguments.wiki.write("language", name=label, text=text) or text if is_labelled else text
    shown = f"{label}: {text}" if is_labelled else text
    # A romanization is shown only for words in another script, as by Module:Lang.
    romanized = arguments.get("translit", "tr", "r") or (values[1] if len(values) > 1 else "")
    meaning = arguments.get("lit", "translation", "literal") or (values[2] if len(values) > 2 else "")
    if romanized and re.search("[^\x00-\u024f\u1e00-\u1eff\u2010-\u206f]", text):
        before = "tr." if code == "rus" else "romanized:"
        shown += f", {before} {romanized}" if is_labelled else f", {romanized}"
    if meaning:
        shown += f", lit. '{meaning}'"
    return shown


@function("nihongo")
def _nihongo(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Nihongo: three of English, kanji and romaji, the first before brackets."""
    english, kanji, romaji = arguments.get(1), arguments.get(2), arguments.get(3)
    if arguments.name == "nihongo3":
        first, inside = (romaji, [kanji, english]) if romaji else (english, [kanji])
    elif arguments.name == "nihongo krt" and kanji:
        first, inside = kanji, [romaji, english]
    else:
        labels = ("Japanese: ", "Hepburn: ") if arguments.says("lead") else ("", "")
        shown = labels[0] + kanji if kanji else ""
        first, inside = (english, [shown, romaji and labels[1] + romaji]) if english else (romaji, [shown])
    # Missing parts leave neither a comma nor empty brackets.
    brackets = ", ".join(filter(None, (*inside, arguments.get(4, "extra"))))
    return " ".join(filter(None, (first, brackets and f"({brackets})", arguments.get(5, "extra2")))) or None


_CHINESE_LABELS = {
    "c": "Chinese", "s": "simplified Chinese", "t": "traditional Chinese", "p": "pinyin", "hp": "pinyin",
    "tp": "Tongyong Pinyin", "w": "Wade–Giles", "j": "Jyutping", "cy": "Cantonese Yale", "sl": "Sidney Lau",
    "poj": "Pe̍h-ōe-jī", "tl": "Tâi-lô", "zhu": "Zhuyin Fuhao",
}  # fmt: skip
"""In the order shown. https://en.wikipedia.org/wiki/Template:Lang-zh"""


@function("chinese")
def _chinese(arguments: Arguments) -> str | None:
    named = {key: value for key, value in arguments.values.items() if not key.isdigit()}
    values = arguments.positional()
    # The names of the older templates spell their arguments: zh-tsp takes t, s and p.
    if values and arguments.name.startswith("zh-"):
        named = {**dict(zip(arguments.name[3:], values)), **named}
    elif values and "c" not in named:
        named["c"] = values[0]
    labels = dict(_CHINESE_LABELS)
    if named.get("s") == named.get("t") or not named.get("s") or not named.get("t"):
        labels |= {"s": "Chinese", "t": "Chinese"}  # one form alone, or both the same
        if named.get("s") and named.get("t"):
            del named["t"]
    # Simplified characters come first unless `first` names the traditional ones.
    order = list(labels)
    if "t" in named.get("first", ""):
        order[1], order[2] = "t", "s"
    is_bare = named.get("labels", "").lower() == "no" or arguments.name == "zhi"
    shown = [named[key] if is_bare else f"{labels[key]}: {named[key]}" for key in order if named.get(key)]
    if named.get("l"):
        shown.append(f"lit. '{named['l']}'")
    return "; ".join(shown) or None


@function("interlanguage link")
def _interlanguage(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Interlanguage_link; once the code of the language came first."""
    first = arguments.get(1)
    if first in arguments.wiki.tables.get("languages", {}) and arguments.get(2):
        return arguments.get("lt", 3, 2)
    return arguments.get("lt") or first or None


# Sounds

_ASIDE = re.compile(
    r"(?:[,;([]|''|\bpronunciation:?|\bIPA(?:\]\])?:?"
    r"|(?:^|[,;(–—-] ?)(?:also |usually |often |commonly )?pronounced:?)$",
    re.IGNORECASE,
)
"""What precedes a pronunciation that can be left out: a comma, a bracket, a word in italics or bold."""
_SUBJECT = re.compile(r"(?:[^\W_],|\bpronunciation)$")
_WORD_FOLLOWS = re.compile(rf"[{DROPPED}]?+[ \xa0][{DROPPED}]?+[a-z]")
"""Behind a comma or the word "pronunciation", a sound that a word follows at once is part of the sentence: "In Moroccan
Arabic, /i u/ also have allophones"."""
_EXAMPLE = re.compile(r"(?:\b[ei]\.[eg]\.|\bfor (?:example|instance)|\bnamely|\bsuch as|\bviz\.),?$")
_BLANKS = f" \xa0{DROPPED}"
_FOREIGN_WORD = re.compile(
    r"\{\{(?:lang|rtl-lang|transl|tlit|nihongo|script|wikt-lang|zh\b)[^{}]*+\}\}$", re.IGNORECASE
)
_BEFORE_IN_SERIES = re.compile(r"(?:\{\{ipa[^{}]*+\}\}[ \ue000]*+[,;/~]?+ ?+(?:or|and|to)?+ ?+)++$", re.IGNORECASE)
"""Sounds in a series go the way of the first."""


@function("sound of a language")
def _sound_of_a_language(arguments: Arguments) -> str | None:
    """Render the sound without the name of the language if the second argument is empty.

    Longer ones are whole words, which follow their spelling.
    """
    before, sound = arguments.before.rstrip(_BLANKS), arguments.get(1)
    if arguments.values.get("2") != "" or not 1 <= len(sound) <= 4 or _is_aside(before) or _is_in_brackets(before):
        return None
    return f"[{sound}]"


@function("sound")
def _sound(arguments: Arguments) -> str | None:
    """Render a sound that the sentence speaks of ("the letter represents the vowel /a/"), not a pronunciation."""
    values = arguments.given()
    is_linked = "link" in arguments.name  # its second argument is what is shown of the link
    before = arguments.before.rstrip(_BLANKS)
    if len(values) not in (1, 1 + is_linked) or _is_aside(before) and not _is_spoken_of(before, arguments.after):
        return None
    slashes = {"ipaslink": "/", "ipablink": "["}.get(arguments.name, "")
    return f"{slashes}{values[-1]}{slashes.replace('[', ']')}"


def _is_aside(before: str) -> bool:
    """Return True if what follows `before` can be left out: a pronunciation after a word or in brackets."""
    if before.rstrip(" ,;/~andort\ue000").endswith("}}"):
        before = _BEFORE_IN_SERIES.sub("", before).rstrip()
    if not before or _ASIDE.search(before[-32:]):
        return bool(before)
    if before[-1] == "}" and _FOREIGN_WORD.search(before[-200:]):
        return True
    return before.endswith(("}}", "]]")) and _is_in_brackets(before)


def _is_spoken_of(before: str, after: str) -> bool:
    """Return True if the sentence needs a sound, although it is in the place of an aside."""
    if before[-1:] in ",.s" and _EXAMPLE.search(before[-16:]):
        return True
    return _WORD_FOLLOWS.match(after) is not None and _SUBJECT.search(before[-16:]) is not None


def _is_in_brackets(before: str) -> bool:
    return before.rfind("(") > before.rfind(")")


@function("recording")
def _recording(arguments: Arguments) -> str | None:
    """A recording shows its label, which is a word of the sentence where it is set in bold or italics."""
    return arguments.get(2) or None if arguments.before.endswith("''") else None


# Quotations, marks and names


@function("quotation")
def _quotation(arguments: Arguments) -> str | None:
    """Render a quotation in marks if its sentence goes on behind it, else as a paragraph of its own.

    The words "after quotations" of the wiki's file tell which: Japanese writers put という or を on the next line.
    """
    words = arguments.wiki.tables.get("after quotations", {})
    text = arguments.get(1, "text")
    if "\n" not in text and arguments.after.removeprefix("\n").startswith(tuple(words)):
        return arguments.wiki.write("quotation", text=text) or None
    return arguments.wiki.renderers["blockquote"](arguments)


@function("sic")
def _sic(arguments: Arguments) -> str:
    """https://en.wikipedia.org/wiki/Template:Sic"""
    values = arguments.given()
    words = [value for value in values if value.lower() not in ("?", "y", "yes", "hide", "nolink")]
    text = "".join(words[:2])
    if arguments.get("hide") or "hide" in values:
        return text
    return f"{text} {'[sic?]' if '?' in values or arguments.name == 'sic?' else '[sic]'}".strip()


@function("page name")
def _page_name(arguments: Arguments) -> str | None:
    return arguments.title or None


@function("god")
def _name_of_god(arguments: Arguments) -> str | None:
    """In small capitals as {{LORD}}; at the beginning of a line {{God}} is a sidebar."""
    return "God" if arguments.before.strip() else None


@function("ship")
def _ship(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Ship: display 1 is the number alone, 2 the name, 5 lacks the name, …"""
    values = [*arguments.positional(), "", "", "", ""]
    if arguments.name != "ship":  # {{HMS|…}}
        values.insert(0, arguments.wiki.tables.get("ships", {}).get(arguments.name) or arguments.name.upper())
    prefix, name, number, display = values[:4]
    if display == "1" and number or not name:
        return number or None
    parts = {"2": [name], "3": [name], "5": [prefix]}.get(display, [prefix, name])
    shown = " ".join(part for part in parts if part)
    return f"{shown} ({number})" if number and display in ("", "3", "5") else shown


@function("ship class")
def _ship_class(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Sclass: a third argument leaves out the kind, the hyphen, or "class"."""
    name = arguments.get(1)
    forms = {"0": f"{name}-class", "4": f"{name} class", "5": name}
    return forms.get(arguments.get(3), f"{name}-class {arguments.get(2)}".strip()) if name else None


@function("bible")
def _verse_of_the_bible(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Bibleverse: the number of a book may come first, a translation last."""
    values = arguments.given()
    return " ".join(values[: 3 if values and values[0].isdigit() else 2]) or None


@function("minor planet")
def _minor_planet(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Minor_planet: a catalogue number, in brackets, may come first."""
    number, *parts = [*arguments.positional(), ""]
    if number.isdecimal() and parts[:1] != [""]:
        return f"({number}) {''.join(parts)}"
    return number + (" " if parts and parts[0][:1].isalpha() else "") + "".join(parts) or None


@function("harvard")
def _cited_author(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Harvard_citation_text"""
    *names, year = arguments.given() or [""]
    if not names:
        return None
    # Up to three names are listed; of more, only the first.
    people = f"{', '.join(names[:-1])} & {names[-1]}" if 1 < len(names) < 4 else names[0]
    people += " et al." if len(names) > 3 else ""
    page, pages, place = arguments.get("p", "page"), arguments.get("pp", "pages"), arguments.get("loc", "at")
    where = f", p. {page}" if page else f", pp. {pages}" if pages else ""
    where += f", {place}" if place else ""
    return f"{people} ({year}){where}" if arguments.name == "harvp" else f"{people} ({year}{where})"


@function("patent")
def _patent(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:US_patent: a second argument is shown in place of the number."""
    number = arguments.get(1)
    return arguments.get(2) or (f"U.S. Patent {int(number):,}" if re.fullmatch(r"\d{1,15}", number) else None)


@function("address")
def _address(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:URL: the address without scheme, and without a path that is only "/"."""
    return arguments.get(2) or arguments.get(1).rpartition("://")[2].rstrip("/") or None
