"""Templates that show dates and spans of time; none of them depends on the date of the run."""

import re

from bert_pipeline.wikipedia.placeholders import UNKNOWN_VALUE
from bert_pipeline.wikipedia.templates.numbers import format_value, parse_number
from bert_pipeline.wikipedia.templates.registry import Arguments, Wiki, function

_ISO_DATE = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)")
_IN_NUMBERS = re.compile(r"\d{1,2} \d{1,2} \d{3,4}")
_DAY_FIRST = re.compile(r"(\d{1,2}) (\D.*)", re.DOTALL)


def _write_date(wiki: Wiki, year: str, month: str, day: str, *, is_month_first: bool = False) -> str:
    months = wiki.tables.get("months", {})
    month = months.get(month.lstrip("0"), month)
    if month.title() in ("Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"):
        month = next((name for name in months.values() if name.startswith(month.title())), month)
    day = day.lstrip("0") or day
    day = wiki.tables.get("days", {}).get(day, day)
    if is_month_first and month and day:
        return f"{month} {day}, {year}".removesuffix(", ")
    if month.isdigit() or "date" not in wiki.formats:  # the months of the language are not known
        return "-".join(part.zfill(2) for part in (year, month, day) if part)
    return wiki.write("date", day=day, month=month, year=year)


@function("date")
def _date(arguments: Arguments) -> str | None:
    """Render a date given as year, month, day or the other way round, in one argument or in three.

    A part may end with "-", which keeps a link away (https://fr.wikipedia.org/wiki/Modèle:Date).
    """
    parts = [arguments.get(number).removesuffix("-").rstrip() for number in (1, 2, 3)]
    wiki = arguments.wiki
    if not any(parts[1:]):
        text = parts[0]
        if iso := _ISO_DATE.fullmatch(text):
            parts = [iso[1], iso[2], iso[3]]
        elif _IN_NUMBERS.fullmatch(text):
            parts = text.split()
        elif match := _DAY_FIRST.fullmatch(text):
            return f"{wiki.tables.get('days', {}).get(match[1], match[1])} {match[2]}"
        else:
            return text or None
    is_year_first = len(parts[0]) > 2 and parts[0].isdigit()
    year, month, day = parts if is_year_first else parts[::-1]
    is_english_order = wiki.is_english and is_year_first
    is_month_first = is_english_order and not (arguments.says("df") or arguments.get("mf").lower() in ("n", "no"))
    return _write_date(wiki, year.lstrip("0"), month, day, is_month_first=is_month_first) or None


@function("as of")
def _as_of(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:As_of"""
    if arguments.get("alt"):
        return arguments.get("alt")
    parts = [arguments.get(number) for number in (1, 2, 3)]
    # A date with one unknown part, as {{currentyear}}, is unknown.
    is_unknown = any(UNKNOWN_VALUE in part for part in parts)
    is_month_first = arguments.get("df").lower() == "us"
    date = UNKNOWN_VALUE if is_unknown else _write_date(arguments.wiki, *parts, is_month_first=is_month_first)
    if not date:
        return None
    start = "Since" if arguments.says("since") else "As of"
    if arguments.says("bare"):
        return date + arguments.get("post")
    start = start.lower() if arguments.says("lc") else start
    return f"{start}{arguments.get('pre') and ' ' + arguments.get('pre')} {date}{arguments.get('post')}"


@function("years ago")
def _years_ago(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Ma: a number or two, and words behind one of its own.

    The number may be the name of a period, whose beginning geologists revise.
    """
    unit = {"ka": "thousand", "ga": "billion"}.get(arguments.name, "million") + " years ago"
    start, end = parse_number(arguments.get(1)), parse_number(arguments.get(2))
    if start is None:
        return UNKNOWN_VALUE if arguments.get(1) else None
    decimals = arguments.get("round")
    is_rounded = decimals.isdecimal() and len(decimals) == 1
    shown = " to ".join(
        format_value(number.value, int(decimals)) if is_rounded else number.text
        for number in (start, end)
        if number is not None
    )
    error = f" ± {arguments.get('error')}" if arguments.get("error") else ""
    return f"{shown}{error} {unit if end else arguments.get(2) or unit}"


@function("year")
def _year(arguments: Arguments) -> str | None:
    """Return the year of a date: 1992 of "1 January 1992"."""
    year = re.search(r"\b\d{3,4}\b", arguments.get(1))
    return year[0] if year else arguments.get(1) or None


@function("century")
def _century(arguments: Arguments) -> str | None:
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
        shown = values[0] + (values[1] if len(values) > 1 else "er" if values[0] == "I" else "e")
    else:
        return None
    is_plural = kind == "s2" or kind == "sp" and values[5:6] == ["s"]
    era = " av. J.-C." if arguments.name.startswith("-") else ""
    return f"{shown} siècle{'s' if is_plural else ''}{era}"
