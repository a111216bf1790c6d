"""Templates of the French Wikipedia that no pattern describes: dates, centuries, times and measures."""

import re

from bert_pipeline.wikipedia.templates.figures import raise_figures
from bert_pipeline.wikipedia.templates.local.numbers import write_number
from bert_pipeline.wikipedia.templates.registry import Arguments

MONTHS = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre"
_ISO_DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)")


def date(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Date: day, month, year, and a topic that only the link needs.

    The month may be a number, the date may be in ISO's order, and a hyphen at the end of a part keeps the link away.
    """
    parts = [arguments.get(number) for number in (1, 2, 3)]
    if iso := _ISO_DATE.fullmatch(parts[0]):
        parts = [iso[3], iso[2], iso[1]]
    day, month, year = (part.removesuffix("-").rstrip() for part in parts)
    # A year in the first place: the parts are in ISO's order.
    if len(day) == 4 and day.isdigit():
        day, year = year, day
    if day.lstrip("0") == "1":
        day = "1er"
    if month.isdecimal() and 1 <= int(month) <= 12:
        month = MONTHS.split()[int(month) - 1]
    return " ".join(filter(None, (day.lstrip("0"), month, year))) or None


CENTURIES = ("s", "s-", "-s", "-s-", "s2", "s2-", "-s2", "-s2-", "sp", "sp-", "-sp", "-sp-")


def century(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:S-: {{s-|XIX|e}}, {{-s|III|e}} before Christ, {{s2-|III|e|IX|e}} for two.

    {{sp-|VII|e|ou|VIII|e}} has a word between them, and an "s" at the end for a plural.
    """
    values = arguments.positional()
    kind = arguments.name.strip("-")
    # {{s2-}} joins two centuries with "et", {{sp-}} with a word of its own.
    if kind == "s2":
        values[2:2] = ["et"]
    if kind != "s" and len(values) > 4:
        first, ending, joint, last, last_ending = values[:5]
        shown = f"{first}{ending} {joint} {last}{last_ending}"
    elif values and values[0]:
        ending = values[1] if len(values) > 1 else "er" if values[0] == "I" else "e"
        shown = values[0] + ending
    else:
        return None
    is_plural = kind == "s2" or kind == "sp" and values[5:6] == ["s"]
    era = " av. J.-C." if arguments.name.startswith("-") else ""
    return f"{shown} siècle{'s' if is_plural else ''}{era}"


def measure(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Unité: a number, then units and their exponents by turns."""
    number, *rest = [*arguments.positional(), ""]
    if not number:
        return None
    shown = write_number(re.sub(r"(?<=\d)[ \xa0\u202f](?=\d)", "", number).replace(",", "."), "fr")
    if arguments.get("e"):
        shown += f"×10{raise_figures(arguments.get('e'))}"
    units = [unit + raise_figures(exponent) for unit, exponent in zip(rest[::2], [*rest[1::2], ""]) if unit]
    return f"{shown} {'⋅'.join(units)}".strip()


def dimensions(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Dunité: {{dunité|30|40|cm}}"""
    *sizes, unit = [*filter(None, arguments.positional())] or [""]
    numbers = " × ".join(write_number(size.replace(",", "."), "fr") for size in sizes)
    return f"{numbers} {unit}" if sizes else None


def time(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Heure"""
    hours, minutes, seconds = (arguments.get(number) for number in (1, 2, 3))
    if not hours:
        return None
    if seconds:
        return f"{hours} h {minutes} min {seconds} s"
    return f"{hours} h {minutes}".strip()


def ordinals() -> list[str]:
    """Templates that show their own name: {{XIVe}}, {{Ve République}}."""
    numbers = [f"{roman}{'er' if roman == 'I' else 'e'}" for roman in _romans()]
    return [*numbers, "Ire", "Ire République", *(f"{roman}e République" for roman in ("II", "III", "IV", "V"))]


def _romans() -> list[str]:
    ones = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]
    return [ten + one for ten in ("", "X", "XX") for one in ones][1:22]


def names_of_time() -> dict[str, str]:
    """Templates that show their own name: {{XIXe siècle}}, {{Ier millénaire av. J.-C.}}, {{1er mai}}."""
    shown = [
        f"{roman}{'er' if roman == 'I' else 'e'} {span}{era}"
        for roman in _romans()
        for span in ("siècle", "millénaire")
        for era in ("", " av. J.-C.")
    ]
    shown += [f"1er {month}" for month in MONTHS.split()]
    return {text.lower(): text for text in shown}
