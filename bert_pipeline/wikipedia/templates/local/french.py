"""Templates of the French Wikipedia that no pattern describes: dates, centuries, times and measures."""

import re

from bert_pipeline.wikipedia.templates.figures import raise_figures
from bert_pipeline.wikipedia.templates.local.numbers import write_number
from bert_pipeline.wikipedia.templates.registry import Arguments


def date(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Date: day, month, year, and a topic that only the link needs."""
    day, month, year = (arguments.get(number) for number in (1, 2, 3))
    if day.lstrip("0") == "1":
        day = "1er"
    return " ".join(filter(None, (day.lstrip("0"), month, year))) or None


CENTURIES = ("s", "s-", "-s", "-s-", "s2", "s2-", "-s2", "-s2-", "sp", "sp-", "-sp", "-sp-")


def century(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:S-: {{s-|XIX|e}}, {{-s|III|e}} before Christ, {{s2-|III|e|IX|e}} for two.

    {{sp-|VII|e|ou|VIII|e}} has a word between them, and an "s" at the end for a plural.
    """
    values = arguments.positional()
    kind = arguments.name.strip("-")
    if kind == "s2":
        values[2:2] = ["et"]
    if kind != "s" and len(values) > 4:
        first, ending, joint, last, last_ending = values[:5]
        shown = f"{first}{ending} {joint} {last}{last_ending}"
    elif values and values[0]:
        shown = "".join(values[:2])
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


def time(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Heure"""
    hours, minutes, seconds = (arguments.get(number) for number in (1, 2, 3))
    if not hours:
        return None
    if seconds:
        return f"{hours} h {minutes} min {seconds} s"
    return f"{hours} h {minutes}".strip()


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
    months = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre"
    shown += [f"1er {month}" for month in months.split()]
    return {text.lower(): text for text in shown}
