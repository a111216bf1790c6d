"""Templates that show dates and spans of time; none of them depends on the date of the run."""

import datetime
import re

from bert_pipeline.wikipedia.placeholders import UNKNOWN_VALUE
from bert_pipeline.wikipedia.templates.figures import format_value, parse_number
from bert_pipeline.wikipedia.templates.registry import RENDERERS, Arguments, register, shows

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def _month(text: str) -> str:
    if text.isdigit() and 1 <= int(text) <= 12:
        return _MONTHS[int(text) - 1]
    found = [month for month in _MONTHS if len(text) >= 3 and month.lower().startswith(text.lower())]
    return found[0] if found else text


def _date(year: str, month: str, day: str, *, day_first: bool) -> str:
    if not month:
        return year
    name = _month(month)
    if not day:
        return f"{name} {year}".strip()
    day = day.lstrip("0") or day
    if day_first:
        return f"{day} {name} {year}".strip()
    return f"{name} {day}, {year}" if year else f"{name} {day}"


def _is_day_first(arguments: Arguments) -> bool:
    if arguments.get("df").lower() in ("y", "yes", "1") or arguments.get("mf").lower() in ("n", "no", "0"):
        return True
    return arguments.get("format").lower() == "dmy"


@register("as of, asof, as of?, as at")
def _as_of(arguments: Arguments) -> str | None:
    if arguments.get("alt"):
        return arguments.get("alt")
    date = _date(arguments.get(1), arguments.get(2), arguments.get(3), day_first=arguments.get("df").lower() != "us")
    # A date with one unknown part, as {{currentyear}}, is unknown.
    if UNKNOWN_VALUE in date:
        date = UNKNOWN_VALUE
    if not date:
        return None
    start = "As of" if arguments.get("since").lower() not in ("y", "yes", "1") else "Since"
    if arguments.get("bare").lower() in ("y", "yes", "1"):
        return date + arguments.get("post")
    if arguments.get("lc").lower() in ("y", "yes", "1", "on"):
        start = start.lower()
    return f"{start}{arguments.get('pre') and ' ' + arguments.get('pre')} {date}{arguments.get('post')}"


@register("circa, c., ca., ca, c, circa2, cx")
def _circa(arguments: Arguments) -> str:
    values = [value for value in arguments.positional() if value]
    first = f"c. {values[0]}" if values else "c."
    return f"{first} – c. {values[1]}" if len(values) > 1 else first


@register("floruit, fl., fl")
def _floruit(arguments: Arguments) -> str:
    return " ".join(filter(None, ("fl.", " – ".join(value for value in arguments.positional() if value))))


@register("reign, r.")
def _reign(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Reign: a missing beginning is a "?"."""
    spans = []
    for first, last in ((arguments.get(place), arguments.get(place + 1)) for place in (1, 3)):
        if first or last:
            is_spaced = " " in first or " " in last or arguments.get("era")
            spans.append(f"{first or '?'}{' – ' if is_spaced and last else '–'}{last}")
    shown = ", ".join(spans) or arguments.get("single", "post-date")
    return " ".join(filter(None, ("r.", shown, arguments.get("era"))))


@register("born, b., died, d., born-in, died-in, est.")
def _life(arguments: Arguments) -> str:
    return f"{arguments.name if arguments.name == 'est.' else arguments.name[0] + '.'} {arguments.get(1)}".strip()


@register("birth date, birth-date, bda, birth date and age, birth-date and age, dob, birth, death date, death-date")
def _birth(arguments: Arguments) -> str | None:
    return _full_date(arguments)


@register("death date and age, dda, event date and age")
def _death(arguments: Arguments) -> str | None:
    """Return the date with the age at death, which may be one of two if the birthday is unknown."""
    shown = _full_date(arguments)
    year, month, day, *born = [*arguments.positional(), "", "", ""]
    age = _age_between(born[:3], [year, month, day])
    return f"{shown} (aged {age})" if shown and age else shown


@register("death-date and age")
def _death_in_words(arguments: Arguments) -> str | None:
    died, born = _parts_of(arguments.get(1)), _parts_of(arguments.get(2))
    age = _age_between(born, died) if born and died else None
    return f"{arguments.get(3, 1)} (aged {age})" if age else arguments.get(3, 1) or None


@register("death date and given age")
def _death_and_given_age(arguments: Arguments) -> str | None:
    shown = _full_date(arguments)
    return f"{shown} (aged {arguments.get(4)})" if shown and arguments.get(4) else shown


@register(
    "start date, end date, start-date, end-date, start date and age, film date, release date, dts, date, dmy, mdy,"
    " start, end, start date text, end date text, birth date text, death date text"
)
def _start(arguments: Arguments) -> str | None:
    return _full_date(arguments)


@register("birth year, birth year and age, death year, dtsh text, birth-year")
def _birth_year(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("death year and age")
def _death_year(arguments: Arguments) -> str | None:
    year, born = arguments.get(1), arguments.get(2)
    age = _age_between([born], [year])
    shown = _date(year, arguments.get(3), "", day_first=True)
    return f"{shown} (aged {age})" if age else shown or None


def _full_date(arguments: Arguments) -> str | None:
    values = arguments.positional()
    if not values:
        return None
    if len(values) == 1 or not values[0].isdigit():
        return _iso_date(values[0], day_first=arguments.name != "dts" or _is_day_first(arguments))
    if len(values[0]) <= 2 < len(values[-1]):  # day, month, year, as other wikis have it
        return " ".join(values[:3])
    year, month, day = (*values[:3], "", "", "")[:3]
    return _date(year.lstrip("0"), month, day, day_first=_is_day_first(arguments)) or None


def _iso_date(text: str, *, day_first: bool) -> str:
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        return text
    return _date(str(date.year), str(date.month), str(date.day), day_first=day_first)


@register("age, age in years, age nts, age in years and days, ayd, aymd")
def _age(arguments: Arguments) -> str | None:
    """Return the age between two dates; that of today is unknown. https://en.wikipedia.org/wiki/Template:Age"""
    values = arguments.positional()
    if values and not values[0].isdigit():
        dates = [_parts_of(value) for value in values[:2]]
    else:
        dates = [[part.lstrip("0") for part in values[place : place + 3]] for place in (0, 3)]
    if len(dates) < 2 or not all(date and date[0] for date in dates):
        return UNKNOWN_VALUE
    if arguments.name in ("age", "age in years", "age nts"):
        return _age_between(*dates) or UNKNOWN_VALUE
    return _span(*dates, with_months="month" in arguments.name or arguments.name == "aymd")


RENDERERS["age in years, months and days"] = _age  # a comma parts the names that `register` takes


def _span(start: list[str], end: list[str], *, with_months: bool) -> str:
    """ "14 years, 1 day", or "7 years, 7 months and 21 days"."""
    try:
        first, last = (datetime.date(*map(int, date)) for date in (start, end))
    except (TypeError, ValueError):
        return UNKNOWN_VALUE
    num_months = (last.year - first.year) * 12 + last.month - first.month - (last.day < first.day)
    # Count whole years (or months), then the days from that anniversary, or from the last day of a shorter month.
    if not with_months:
        num_months -= num_months % 12
    year, month = divmod(first.year * 12 + first.month - 1 + num_months, 12)
    length = (datetime.date(year + month // 11, (month + 1) % 12 + 1, 1) - datetime.timedelta(1)).day
    num_days = (last - datetime.date(year, month + 1, min(first.day, length))).days
    counts = ((num_months // 12, "year"), (num_months % 12, "month"), (num_days, "day"))
    parts = [f"{count} {name}{'s' * (count != 1)}" for count, name in counts if count]
    return (" and " if with_months else ", ").join(filter(None, (", ".join(parts[:-1]), *parts[-1:]))) or "0 days"


def _age_between(born: list[str], died: list[str]) -> str | None:
    """Return the years from one date (year, month, day) to a later one: "51", or "51–52" if days are unknown."""
    if not all(date and date[0].isdigit() for date in (born, died)):
        return None
    years = int(died[0]) - int(born[0])
    # The first part that differs tells if the birthday has passed; an unknown part leaves two ages.
    for later, earlier in zip(died[1:], born[1:]):
        if not (later.isdigit() and earlier.isdigit()):
            break
        if later != earlier and int(later) != int(earlier):
            return str(years - (int(later) < int(earlier)))
    else:
        if len(born) > 2 and len(died) > 2:
            return str(years)
    return f"{years - 1}–{years}" if years else "0"


_IN_WORDS = re.compile(r"(?:(\d{1,2}) )?(?:([A-Z][a-z]+),? )?(?:(\d{1,2}), )?(\d{3,4})")


def _parts_of(text: str) -> list[str]:
    """Year, month and day of "24 February 1993", "February 24, 1993" or "1993"; [] for what is no date."""
    match = _IN_WORDS.fullmatch(text)
    if match is None:
        return text.split("-") if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) else []
    month = str(_MONTHS.index(match[2]) + 1) if match[2] in _MONTHS else ""
    return [match[4], month, match[1] or match[3] or ""]


shows(
    "currentyear, currentmonth, currentmonthname, currentmonthabbrev, currentday, currentday2, currentdayname,"
    " localyear, localmonth, localmonthname, localday, localdayname, today, years ago, years or months ago, time ago,"
    " numberofarticles, age in days, age in months, age in years and months, age in years nts",
    UNKNOWN_VALUE,
)


@register("oldstyledate, oldstyledatedy, old style date")
def _old_style(arguments: Arguments) -> str | None:
    day, year, old = arguments.get(1), arguments.get(2), arguments.get(3)
    if not old:
        return None
    if arguments.name == "oldstyledatedy":
        return f"{day} {year} [O.S. {old}]"
    return f"{day} [O.S. {old}] {year}".strip()


@register("old style to new style, os2ns")
def _new_style(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Old_Style_to_New_Style"""
    old, year, new = arguments.get(1), arguments.get(2), arguments.get(3)
    return f"{old} [{new} N.S.] {year}".strip() if old and new else None


@register("bce, bc, ce, ad, 'bc, bhe")
def _era(arguments: Arguments) -> str:
    years = [value for value in arguments.positional() if value.lower() != "link"]
    return f"{years[0] if years else ''} {arguments.name.strip(chr(39)).upper()}".strip()


@register("ma, mya, annum, ka, ga")
def _years_ago(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Ma: a number or two, an uncertainty, and other words behind them.

    The number may be the name of a period, whose beginning geologists revise.
    """
    unit = {"ma": "million years ago", "mya": "million years ago", "ka": "thousand years ago",
            "ga": "billion years ago"}.get(arguments.name)  # fmt: skip
    if unit is None or not arguments.get(1):
        return None
    start, end = parse_number(arguments.get(1)), parse_number(arguments.get(2))
    # Not a number but the name of a period, whose date is not in the page.
    if start is None:
        return UNKNOWN_VALUE
    decimals = arguments.get("round")
    shown = [
        format_value(number.value, int(decimals)) if decimals.lstrip("-").isdecimal() else number.text
        for number in (start, end)
        if number is not None
    ]
    error = f" ± {arguments.get('error')}" if arguments.get("error") else ""
    return f"{' to '.join(shown)}{error} {unit if end else arguments.get(2) or unit}"


@register("decade link")
def _decade(arguments: Arguments) -> str | None:
    return f"{arguments.get(1)}s" if arguments.get(1) else None


@register("year")
def _year(arguments: Arguments) -> str | None:
    """Of a date: 1992 of "1 January 1992"."""
    year = re.search(r"\b\d{3,4}\b", arguments.get(1))
    return year[0] if year else arguments.get(1) or None


@register("centuries, century, decade, year in, year nav text")
def _named_time(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("since")
def _since(arguments: Arguments) -> str | None:
    date = _date(arguments.get(1), arguments.get(2), arguments.get(3), day_first=True)
    return f"since {date}" if date else None
