"""Templates that show dates and spans of time; none of them depends on the date of the run."""

import datetime

from bert_pipeline.wikipedia.marks import VOID
from bert_pipeline.wikipedia.registry import Arguments, register, shows

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
    return arguments.get("df").lower() in ("y", "yes", "1") or arguments.get("mf").lower() in ("n", "no", "0")


@register("as of, asof, as of?, as at")
def _as_of(arguments: Arguments) -> str | None:
    if arguments.get("alt"):
        return arguments.get("alt")
    date = _date(arguments.get(1), arguments.get(2), arguments.get(3), day_first=arguments.get("df").lower() != "us")
    if VOID in date:
        return VOID
    if not date:
        return None
    start = "As of" if arguments.get("since").lower() not in ("y", "yes", "1") else "Since"
    if arguments.get("bare").lower() in ("y", "yes", "1"):
        return date + arguments.get("post")
    if arguments.get("lc").lower() in ("y", "yes", "1", "on"):
        start = start.lower()
    return f"{start}{arguments.get('pre') and ' ' + arguments.get('pre')} {date}{arguments.get('post')}"


@register("circa, c., ca., ca, c, circa2")
def _circa(arguments: Arguments) -> str:
    values = [value for value in arguments.positional() if value]
    first = f"c. {values[0]}" if values else "c."
    return f"{first} – c. {values[1]}" if len(values) > 1 else first


@register("floruit, fl., fl")
def _floruit(arguments: Arguments) -> str:
    return " ".join(filter(None, ("fl.", " – ".join(value for value in arguments.positional() if value))))


@register("reign, r.")
def _reign(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    return f"r. {'–'.join(values)}" if values else None


@register("born, b., died, d.")
def _life(arguments: Arguments) -> str:
    return f"{arguments.name[0]}. {arguments.get(1)}".strip()


@register("birth date, birth-date, bda, birth date and age, birth-date and age, dob, birth, death date, death-date")
def _birth(arguments: Arguments) -> str | None:
    return _full_date(arguments)


@register("death date and age, dda")
def _death(arguments: Arguments) -> str | None:
    """The age at death depends on no day but those given."""
    shown, age = _full_date(arguments), _age_at(arguments.positional())
    return f"{shown} (aged {age})" if shown and age is not None else shown


@register(
    "start date, end date, start-date, start date and age, film date, release date, dts, date, dmy, mdy, start, end"
)
def _start(arguments: Arguments) -> str | None:
    return _full_date(arguments)


@register("birth year, birth year and age, death year, dtsh text, birth-year")
def _birth_year(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("death year and age")
def _death_year(arguments: Arguments) -> str | None:
    year, born = arguments.get(1), arguments.get(2)
    if year.isdigit() and born.isdigit():
        return f"{year} (aged {int(year) - int(born) - 1}–{int(year) - int(born)})"
    return year or None


def _full_date(arguments: Arguments) -> str | None:
    values = arguments.positional()
    if not values:
        return None
    if len(values) == 1 or not values[0].isdigit():
        return _iso_date(values[0])
    if len(values[0]) <= 2 < len(values[-1]):  # day, month, year, as other wikis have it
        return " ".join(values[:3])
    year, month, day = (*values[:3], "", "", "")[:3]
    return _date(year.lstrip("0"), month, day, day_first=_is_day_first(arguments)) or None


def _iso_date(text: str) -> str:
    try:
        date = datetime.date.fromisoformat(text)
    except ValueError:
        return text
    return f"{date.day} {_MONTHS[date.month - 1]} {date.year}"


@register("age, age in years, age nts")
def _age(arguments: Arguments) -> str | None:
    """Only between two given dates: the age today depends on today."""
    values = arguments.positional()
    age = _age_at([*values[3:6], *values[:3]])
    return VOID if age is None else str(age)


def _age_at(values: list[str]) -> int | None:
    """Years from the second of two dates (year, month, day) to the first."""
    try:
        year2, month2, day2, year, month, day = (int(value) for value in values[:6])
    except ValueError:
        return None
    return year2 - year - ((month2, day2) < (month, day))


shows(
    "currentyear, currentmonth, currentmonthname, currentmonthabbrev, currentday, currentday2, currentdayname,"
    " localyear, localmonth, localmonthname, localday, localdayname, today, years ago, years or months ago, time ago,"
    " numberofarticles, age in years and days, age in days, age in months, age in years and months, age in years nts",
    VOID,
)


@register("oldstyledate, oldstyledatedy, old style date")
def _old_style(arguments: Arguments) -> str | None:
    day, year, old = arguments.get(1), arguments.get(2), arguments.get(3)
    if not old:
        return None
    if arguments.name == "oldstyledatedy":
        return f"{day} {year} [O.S. {old}]"
    comma = "," if day[:1].isalpha() and year else ""
    return f"{day} [O.S. {old}]{comma} {year}".strip()


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
    unit = {"ma": "million years ago", "mya": "million years ago", "ka": "thousand years ago",
            "ga": "billion years ago"}.get(arguments.name)  # fmt: skip
    values = [value for value in arguments.positional() if value]
    if arguments.name == "annum":
        return None
    return f"{'–'.join(values[:2])} {unit}" if values else None


@register("decade link, centuries, century, decade, year, year in, year nav text")
def _named_time(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("since")
def _since(arguments: Arguments) -> str | None:
    date = _date(arguments.get(1), arguments.get(2), arguments.get(3), day_first=True)
    return f"since {date}" if date else None
