"""Numbers: read, rounded, and written with the separators of a wiki; templates that show numbers and measures."""

import dataclasses
import functools
import math
import re

from bert_pipeline.wikipedia.placeholders import DROPPED, UNKNOWN_VALUE
from bert_pipeline.wikipedia.templates.registry import FILTERS, Arguments, Wiki, function

_NUMBER = re.compile(r"([-−+]?)(\d[\d,]*\.?\d*|\.\d+)(?:[eE]([-+−]?\d{1,2}))?")
_FRACTION = re.compile(r"([-−+]?)(?:(\d[\d,]*)\s*([-−+⁄ ]))?(\d{1,5})(//?|⁄)(\d{1,5})")
_RAISED = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A number as an article writes it."""

    value: float
    text: str
    """As shown: with thousands separators and a true minus sign."""
    precision: float
    """Decimals; negative for trailing zeros of a whole number; the logarithm of a fraction's denominator."""
    is_fraction: bool = False


@functools.lru_cache(maxsize=2048)
def parse_number(text: str) -> Number | None:
    """Read "1,500", "-4.25", "1.5e6", "3+1/2"; None if `text` is not a number."""
    text = text.strip().replace("&nbsp;", "").replace("&minus;", "-")
    match = _NUMBER.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        return _parse_fraction(text)
    sign, digits, exponent = match.groups()
    digits = digits.replace(",", "").removesuffix(".")
    value, shown = float(digits), group_thousands(digits)
    # As Module:Convert counts: decimals, or the zeros at the end of a whole number, negated.
    if "." in digits or "." in match[2]:
        precision = len(digits.partition(".")[2])
    else:
        precision = -(len(digits) - len(digits.rstrip("0"))) if digits.strip("0") else 0
    if exponent:
        power = int(exponent.replace("−", "-"))
        value *= 10.0**power
        precision -= power
        shown = f"{shown}×10{raise_figures(exponent.removeprefix('+'))}"
    if sign:
        shown = ("+" if sign == "+" else "−") + shown
    return Number(-value if sign in ("-", "−") else value, shown, precision)


def _parse_fraction(text: str) -> Number | None:
    match = _FRACTION.fullmatch(text) if len(text) <= 40 else None
    if match is None or int(match[6]) == 0:
        return None
    sign, whole, joint, numerator, slash, denominator = match.groups()
    is_negative = sign in ("-", "−")
    if not is_negative and joint in ("-", "−"):
        return None  # "3-1/2" may be three and a half, or three to a half
    value = int((whole or "0").replace(",", "")) + int(numerator) / int(denominator)
    shown = f"{numerator}{'/' if slash == '//' else '⁄'}{denominator}"
    shown = f"{group_thousands(whole.replace(',', ''))}+{shown}" if whole else shown
    precision = max(math.log10(int(denominator)), 1.0)
    return Number(-value if is_negative else value, "−" * is_negative + shown, precision, is_fraction=True)


def raise_figures(text: str) -> str:
    """Replace figures and signs by superscript ones."""
    return text.replace("&minus;", "−").translate(_RAISED)


def group_thousands(digits: str) -> str:
    """ "12345.678" -> "12,345.678"."""
    whole, point, decimals = digits.partition(".")
    return (f"{int(whole):,}" if whole else ("0" if point else "")) + point + decimals


def format_value(value: float, precision: int) -> str:
    """Round to `precision` decimals (tens and hundreds where negative) and write with separators."""
    if precision >= 0:
        text = f"{abs(value) + (2e-14 if precision <= 8 else 0.0):,.{precision}f}"
    else:
        shift = 10**-precision
        text = f"{float(f'{abs(value) / shift:.0f}') * shift:,.0f}"
    return f"−{text}" if value < 0 and text.strip("0.,") else text


# Numbers of a wiki

_DIGITS = re.compile(r"\d[\d,]{0,99}(?:\.\d+)?")


def write_number(text: str, wiki: Wiki) -> str:
    """ "-12345.5" -> "−12,345.5", or "−12 345,5" in French; other texts are unchanged.

    `wiki.number` is an example: "12 345,6" leaves four digits together, "1.234,5" does not.
    """
    number = text.strip()
    sign = "−" if number[:1] in ("-", "−") and len(number) > 1 else ""
    digits = number.lstrip("-−").replace(",", "")
    if not _DIGITS.fullmatch(digits):
        return number
    example = wiki.number
    thousands, point = (char for char in example if not char.isdigit())
    whole, _, decimals = digits.partition(".")
    if len(whole) >= sum(map(str.isdigit, example)) - 1:
        whole = group_thousands(whole).replace(",", thousands)
    return sign + whole + (point + decimals if decimals else "")


# The number at the start of "53 200,5 habitants"
_FIGURES = re.compile(r"[-−]?\d(?:\d|[ \xa0\u202f.,](?=\d))*+(?=\s|$)")


def rewrite_number(text: str, wiki: Wiki) -> str:
    """Write the number at the start of a text that an editor wrote, with or without separators.

    A single comma is the decimal sign where that is a comma: "4203,5 hab./km" is "4 203,5 hab./km" in French.
    """
    figures = _FIGURES.match(text.strip())
    if figures is None:
        return text.strip()
    number = re.sub(r"[ \xa0\u202f]", "", figures[0])
    if wiki.number[-2] == "," and number.count(",") == 1:
        number = number.replace(",", ".")
    shown = write_number(number, wiki) if _DIGITS.fullmatch(number.lstrip("-−")) else figures[0]
    return shown + figures.string[figures.end() :]


FILTERS["number"] = rewrite_number
FILTERS["raised"] = lambda text, wiki: raise_figures(text)
FILTERS["upper"] = lambda text, wiki: text.upper()
FILTERS["lower"] = lambda text, wiki: text.lower()
FILTERS["first upper"] = lambda text, wiki: text[:1].upper() + text[1:]
FILTERS["first lower"] = lambda text, wiki: text[:1].lower() + text[1:]
FILTERS["day"] = lambda text, wiki: text.lstrip("0") or text


def _lacks_value(text: str) -> bool:
    return DROPPED in text or UNKNOWN_VALUE in text  # it was to come from a template that is not known


@function("formatnum")
def _formatnum(arguments: Arguments) -> str | None:
    """Render a number and what it counts; {{formatnum:…|R}} takes separators off."""
    text = arguments.get(1)
    if _lacks_value(text):
        return UNKNOWN_VALUE
    if arguments.get(2).upper() in ("R", "NOSEP"):
        return text.replace(",", "")
    return write_number(text, arguments.wiki)


# "12 * 2.5", "1 / 3 round 2"
_SUM = re.compile(r"\s*+(-?\d{1,12}(?:\.\d{1,6})?)\s*+([-+*/])\s*+(\d{1,12}(?:\.\d{1,6})?)\s*+(?:round\s*+(\d))?\s*+")


@function("calculate")
def _calculate(arguments: Arguments) -> str:
    """Calculate with two numbers; most calculations in articles begin with the current year, which is unknown."""
    match = _SUM.fullmatch(arguments.get(1))
    if match is None or match[2] == "/" and (not match[4] or float(match[3]) == 0):
        return UNKNOWN_VALUE
    left, right = float(match[1]), float(match[3])
    value = {"-": left - right, "+": left + right, "*": left * right}.get(match[2], left / right if right else 0.0)
    return format_value(value, int(match[4])) if match[4] else f"{value:.12g}".replace("-", "−")


# Measures

_JOINING = {"to": " to ", "-": "–", "–": "–", "and": " and ", "or": " or ", "by": " by ", "x": " × ", "×": " × ",
            ",": ", ", "/": " / "}  # fmt: skip


@function("val")
def _value(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Val: a value, its error, a power of ten, a unit."""
    value, exponent = _signed(arguments, 1), arguments.get("e")
    if not value and not exponent:
        return None
    shown = arguments.get("p") + value
    # Arguments 2 and 3: an uncertainty "(5)", a number after "to", two errors, or one for both directions.
    up, down = arguments.get(2), arguments.get(3)
    if up.startswith("("):
        shown += up
    elif up in _JOINING and down:
        shown += f"{_JOINING[up]}{_signed(arguments, 3)}"
    elif up and down:
        shown += f"+{up.lstrip('+')}−{down.lstrip('-−')}"
    elif up:
        shown += f" ± {_signed(arguments, 2)}"
        shown = f"({shown})" if exponent else shown
    if exponent:
        shown += f"{'×' if value else ''}10{raise_figures(exponent)}"
    unit, per = (_unit(arguments.get(*keys)) for keys in (("u", "ul", "upl"), ("up", "upl")))
    shown += arguments.get("end") + (unit if unit in ("", "%", "°", "″", "′") else f" {unit}")
    return shown + (f"/{per}" if per else "") + arguments.get("s")


def _unit(text: str) -> str:
    """ "kg.m-2" -> "kg⋅m⁻²"."""
    text = re.sub(r"(?<=[A-Za-zμΩ°])([-−]?\d)(?!\d)", lambda match: raise_figures(match[1]), text)
    return text.replace(".", "⋅")


def _signed(arguments: Arguments, number: int) -> str:
    """A true minus sign; the gaps that the template shows between thousands are style, not characters."""
    text = arguments.get(number)
    sign = "−" if text[:1] in "-−" and len(text) > 1 else ""
    digits = text.lstrip("-−+").replace(",", "")
    if not _DIGITS.fullmatch(digits):
        return text
    return sign + (group_thousands(digits) if arguments.get("fmt") == "commas" else digits)


@function("measure")
def _measure(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Unité: a number, then units and their exponents by turns."""
    number, *rest = [*arguments.positional(), ""]
    if not number or _lacks_value(number):
        return UNKNOWN_VALUE if number else None
    shown = rewrite_number(number, arguments.wiki)
    if arguments.get("e"):
        shown += f"×10{raise_figures(arguments.get('e'))}"
    units = [unit + raise_figures(power) for unit, power in zip(rest[::2], [*rest[1::2], ""]) if unit]
    return f"{shown} {'⋅'.join(units)}".strip()


@function("fraction")
def _fraction(arguments: Arguments) -> str | None:
    """Render 1⁄2, with a plus sign where a whole number is right before it: 3{{frac|1|2}} is not 31⁄2."""
    values = arguments.name.split("/") if "/" in arguments.name else arguments.given()  # {{1/2}}
    line = "/" if arguments.name in ("sfrac", "intmath fraction", "tfrac", "mfrac", "simple fraction") else "⁄"
    if not 0 < len(values) < 4:
        return None if values else line
    joint = "+" if arguments.before[-1:].isdigit() else ""
    if len(values) == 3:
        joint = f"{values.pop(0)}+"
    return f"{joint}{line.join(values if len(values) == 2 else ['1', *values])}"


@function("significant figures")
def _significant_figures(arguments: Arguments) -> str | None:
    number, figures = parse_number(arguments.get(1)), arguments.get(2)
    if number is None or not number.value or not re.fullmatch("[1-9]|1[0-4]", figures):
        return None
    rounded = float(f"{number.value:.{int(figures) - 1}e}")
    return format_value(rounded, int(figures) - 1 - math.floor(math.log10(abs(rounded)) + 1e-14))


@function("dimensions")
def _dimensions(arguments: Arguments) -> str | None:
    """https://fr.wikipedia.org/wiki/Modèle:Dunité: {{dunité|30|40|cm}}"""
    *sizes, unit = arguments.given() or [""]
    numbers = " × ".join(write_number(size.replace(",", "."), arguments.wiki) for size in sizes)
    return f"{numbers} {unit}" if sizes else None


_NUMERAL = re.compile(r"[-−+]?\d{1,3}(?:\.\d+)?")


@function("coordinates")
def _coordinates(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Coord: "{{coord|12|19|N|70|1|W}}" reads "12°19′N 70°1′W".

    In the title line, which is no prose, it shows nothing here.
    """
    display = arguments.get("display").lower()
    if display and "inline" not in display and display not in ("i", "it", "ti", "i,t"):
        return None
    values = arguments.positional()
    if arguments.get("ns") and arguments.get("text"):  # {{Coordinate|NS=52/31/7/N|EW=…|text=DMS}} in German
        values = [*arguments.get("ns").split("/"), *arguments.get("ew").split("/")]
    numbers: list[str] = []
    halves: list[str] = []
    # A letter ends one half: up to three numbers before it are degrees, minutes and seconds.
    for value in values:
        if _NUMERAL.fullmatch(value):
            numbers.append(value.replace("−", "-"))
        elif value.upper() in ("N", "S", "E", "W", "O") and 1 <= len(numbers) <= 3:
            halves.append("".join(map("".join, zip(numbers, "°′″"))) + value.upper())
            numbers = []
        else:
            break
    # Two decimal numbers without letters: the signs name the halves.
    if not halves and len(numbers) == 2:
        for number, positive, negative in zip(numbers, "NE", "SW"):
            halves.append(f"{number.lstrip('-+')}°{negative if number.startswith('-') else positive}")
    return " ".join(halves) if len(halves) == 2 else None
