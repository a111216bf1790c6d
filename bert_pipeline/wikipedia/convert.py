"""Template:Convert and its family: "{{convert|5|km|mi}}" reads "5 kilometres (3.1 mi)".

Rounding follows Module:Convert: the precision of the input, adjusted by the ratio of the units, with at least two
significant figures. https://en.wikipedia.org/wiki/Template:Convert, https://en.wikipedia.org/wiki/Module:Convert
"""

import dataclasses
import math
import re
from collections.abc import Sequence

from bert_pipeline.wikipedia.units import UnitOfMeasure, find_unit

_RANGE_WORDS = {
    "to": (" to ", " to "), "-": ("–", "–"), "–": ("–", "–"), "to(-)": (" to ", "–"), "and": (" and ", " and "),
    "and(-)": (" and ", " and "), "by": (" by ", " by "), "x": (" by ", " × "), "×": (" by ", " × "),
    "xx": (" × ", " × "),
    "or": (" or ", " or "), "+/-": (" ± ", " ± "), "±": (" ± ", " ± "), "+": (" + ", " + "), ",": (", ", ", "),
    "to about": (" to about ", " to about "), "by(x)": (" by ", " × "), "x(by)": (" × ", " by "), "*": (" × ", " × "),
    "versus": (" versus ", " versus "), "vs": (" vs. ", " vs. "),
}  # fmt: skip
"""Word between two values -> (as written beside full names, as written beside symbols)."""

_NUMBER = re.compile(r"([-−+]?)([\d,]*\.?\d*)(?:[eE]([-+−]?\d+))?(?:(?:\+|-|⁄| )?(\d+)(?:/|//|⁄)(\d+))?")
_SPELLING = (("metre", "meter"), ("litre", "liter"), ("tonne", "metric ton"))


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A number as an article writes it."""

    value: float
    text: str
    """As shown: with thousands separators and a true minus sign."""
    precision: int
    """Decimals; negative for trailing zeros of a whole number."""
    is_fraction: bool = False
    is_compound: bool = False
    """The sum of two units: 5 ft 11 in."""


def parse_number(text: str) -> Number | None:
    """Read "1,500", "-4.25", "1.5e6", "3+1/2"; None when `text` is no number."""
    text = text.strip().replace("&nbsp;", "").replace("&minus;", "-")
    match = _NUMBER.fullmatch(text)
    if match is None or not text or not any(char.isdigit() for char in text) or len(text) > 40:
        return None
    sign, digits, exponent, numerator, denominator = match.groups()
    digits = digits.replace(",", "")
    if digits in ("", "."):
        if numerator is None:
            return None
        digits = ""
    if numerator is not None and not digits and match[2] == "" and text[:1].isdigit() is False and sign == "":
        return None
    whole = float(digits) if digits else 0.0
    if exponent:
        whole *= 10.0 ** int(exponent.replace("−", "-"))
    value = whole
    minus = "−" if sign in ("-", "−") else ""
    shown = group_thousands(digits)
    if numerator is not None:
        if int(denominator) == 0:
            return None
        value += int(numerator) / int(denominator)
        shown = f"{shown}+{numerator}⁄{denominator}" if shown else f"{numerator}⁄{denominator}"
        precision = max(1, round(math.log10(int(denominator))))
    elif "." in digits:
        precision = len(digits.partition(".")[2])
    else:
        precision = -(len(digits) - len(digits.rstrip("0"))) if digits.strip("0") else 0
    if exponent:
        precision -= int(exponent.replace("−", "-"))
        shown = f"{shown}×10{raise_figures(exponent)}"
    return Number(-value if minus else value, minus + shown, precision, numerator is not None)


def raise_figures(text: str) -> str:
    """Superscript figures and signs."""
    return text.translate(str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻"))


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


def convert(arguments: Sequence[str], options: dict[str, str]) -> str | None:
    """Render a call: positional arguments, then named ones. None when a value or unit is not understood."""
    values: list[Number] = []
    words: list[tuple[str, str]] = []
    parts = [argument.strip() for argument in arguments]
    index = 0
    while index < len(parts):
        number = parse_number(parts[index])
        if number is None:
            break
        values.append(number)
        index += 1
        if index + 1 < len(parts) and parts[index] in _RANGE_WORDS and parse_number(parts[index + 1]):
            words.append(_RANGE_WORDS[parts[index]])
            index += 1
        else:
            break
    if not values or index >= len(parts):
        return None
    source = find_unit(parts[index])
    index += 1
    if source is None:
        return None
    style = _Style(options)
    compound: list[tuple[Number, UnitOfMeasure]] = [(values[0], source)]
    while len(values) == 1 and index + 1 < len(parts):  # 5 ft 11 in
        number, unit = parse_number(parts[index]), find_unit(parts[index + 1])
        if number is None or unit is None or unit.kind != source.kind or unit.scale >= compound[-1][1].scale:
            break
        compound.append((number, unit))
        index += 2
    targets = _find_targets(parts[index] if index < len(parts) else "", source, style, values[-1].value)
    if targets is None:
        return None
    is_target = index < len(parts) and parse_number(parts[index]) is None
    rest = parts[index + 1 if is_target else index :]
    precision = _requested_precision(rest, options)
    if len(compound) > 1:
        shown = " ".join(_with_unit(number.text, number.value, unit, style, source=True) for number, unit in compound)
        if style.adjective:
            shown = "-".join(f"{number.text}-{style.spell(unit.name)}" for number, unit in compound)
        last = compound[-1][1]
        total = sum(number.value * unit.scale for number, unit in compound) / last.scale
        smallest = compound[-1][0]
        values = [Number(total, "", max(0, smallest.precision), smallest.is_fraction, is_compound=True)]
        source = last
    else:
        shown = _range_text([value.text for value in values], words, values, source, style, source=True)
    outputs = [_output(values, words, source, target, precision, style) for target in targets]
    if style.display in ("out", "output only"):
        return "; ".join(outputs)
    if style.display in ("number", "output number only"):
        return "; ".join(output.partition(" ")[0] for output in outputs)
    if not outputs:
        return shown
    if style.flipped:
        first = _output(values, words, source, targets[0], precision, style, as_source=True)
        back = _range_text([v.text for v in values], words, values, source, style, source=False)
        return f"{first} ({'; '.join([back, *outputs[1:]])})"
    joined = "; ".join(outputs)
    if style.display == "or":
        return f"{shown} or {joined}"
    if style.display in ("comma", "semicolon"):
        return f"{shown}{',' if style.display == 'comma' else ';'} {joined}"
    if style.display == "sqbr":
        return f"{shown} [{joined}]"
    return f"{shown} ({joined})"


class _Style:
    """How a call wants its units written."""

    def __init__(self, options: dict[str, str]) -> None:
        self.display = options.get("disp", "")
        abbreviate = options.get("abbr", "")
        known = ("on", "off", "in", "out", "none", "no", "values", "unit")
        self.abbreviate = abbreviate if abbreviate in known else "off" if self.display == "or" else "out"
        self.usually_symbol = abbreviate not in ("off", "none", "no")
        """Of temperatures, which are written with their sign unless their name is asked for."""
        adjective = options.get("adj", "")
        self.adjective = adjective in ("on", "mid", "1") or options.get("disp") == "adj"
        self.middle = options.get("_middle", "")
        self.american = options.get("sp", "").lower() == "us"
        self.flipped = options.get("order") == "flip" or self.display == "flip"

    def spell(self, name: str) -> str:
        if self.american:
            for british, american in _SPELLING:
                name = name.replace(british, american)
        return name

    def uses_symbol(self, *, source: bool) -> bool:
        if self.abbreviate in ("on", "values", "unit"):
            return True
        if self.abbreviate in ("off", "none", "no"):
            return False
        return source == (self.abbreviate == "in")


def _find_targets(code: str, source: UnitOfMeasure, style: _Style, value: float) -> list[UnitOfMeasure | str] | None:
    """The units to convert to ("ftin" for feet and inches); None when the call names one that is not known."""
    if parse_number(code) is not None or not code:
        code = "ftin" if source.symbol == "m" and 0 < value < 3 else source.default
    whole = find_unit(code)
    found: list[UnitOfMeasure | str] = []
    for part in [code] if whole is not None else re.split(r"[ +]", code):
        if part in ("ftin", "ft in", "foot"):
            found.append("ftin")
            continue
        if part == "stlb":
            found.append("stlb")
            continue
        unit = find_unit(part)
        if unit is None or unit.kind != source.kind:
            return None
        if unit is not source:
            found.append(unit)
    return found


def _requested_precision(rest: Sequence[str], options: dict[str, str]) -> int | None:
    """Decimals asked for by the last positional argument, `round=` or `sigfig=` (as 100 + figures)."""
    if options.get("sigfig", "").isdigit():
        return 100 + int(options["sigfig"])
    if options.get("round") in ("5", "25", "0.5"):
        return {"5": 205, "25": 225, "0.5": 0}[options["round"]]
    for text in rest:
        if re.fullmatch(r"[-−]?\d{1,2}", text):
            return int(text.replace("−", "-"))
    return None


def _convert_value(value: float, source: UnitOfMeasure, target: UnitOfMeasure) -> float:
    base = source.scale / value if source.is_inverse and value else value * source.scale + source.offset
    return target.scale / base if target.is_inverse and base else (base - target.offset) / target.scale


def _precision(
    value: Number, output: float, source: UnitOfMeasure, target: UnitOfMeasure, requested: int | None
) -> int:
    """Decimals of an output: Module:Convert's default_precision where none are requested."""
    if requested is not None and requested < 100:
        return requested
    if output == 0 or value.value == 0 and source.kind != "temperature":
        return 0
    magnitude = math.floor(math.log10(abs(output)) + 1e-14)
    if requested is not None and requested < 200:
        return requested - 100 - 1 - magnitude
    if source.kind == "temperature":
        kelvin = abs(value.value * source.scale + source.offset)
        minimum = 2 if kelvin < 1e-8 else 2 - math.floor(math.log10(kelvin) + 1e-14)
        return max(value.precision, minimum)
    if target.is_precise_for_integers and value.value == math.floor(value.value):
        adjust = -math.log10(source.scale)
    elif value.is_compound and source.symbol == "in":
        adjust = math.log10(target.scale) + 2
    else:
        adjust = math.log10(abs(value.value / output))
    return max(math.floor(value.precision + adjust + math.log10(2)), 1 - magnitude)


def _output(
    values: Sequence[Number],
    words: Sequence[tuple[str, str]],
    source: UnitOfMeasure,
    target: "UnitOfMeasure | str",
    requested: int | None,
    style: _Style,
    *,
    as_source: bool = False,
) -> str:
    if isinstance(target, str):
        names = not style.uses_symbol(source=False)
        texts = [_in_two_units(value.value * source.scale, target, names=names) for value in values]
        return _join_range(texts, words, symbol=True)
    numbers = []
    for value in values:
        result = _convert_value(value.value, source, target)
        if requested is not None and requested >= 200:
            step = requested - 200
            result = math.floor(result / step + 0.5) * step
            precision = 0
        else:
            precision = min(12, max(-12, _precision(value, result, source, target, requested)))
        text = format_value(result, precision)
        numbers.append(Number(float(text.replace(",", "").replace("−", "-")), text, precision))
    texts = [number.text for number in numbers]
    return _range_text(texts, words, numbers, target, style, source=as_source)


def _in_two_units(value: float, target: str, *, names: bool) -> str:
    big, small, ratio, scale = ("ft", "in", 12, 0.0254) if target == "ftin" else ("st", "lb", 14, 0.45359237)
    if abs(value) < ratio * scale - scale / 2:  # below one big unit
        return f"{format_value(value / scale, 1)} {'inches' if names and small == 'in' else small}"
    whole, rest = divmod(math.floor(abs(value) / scale + 0.5), ratio)
    if names and target == "ftin":
        big, small = "foot" if whole == 1 else "feet", "inch" if rest == 1 else "inches"
    return f"{'−' if value < 0 else ''}{whole:,} {big} {rest} {small}"


def _range_text(
    texts: Sequence[str],
    words: Sequence[tuple[str, str]],
    values: Sequence[Number],
    unit: UnitOfMeasure,
    style: _Style,
    *,
    source: bool,
) -> str:
    symbol = style.uses_symbol(source=source)
    by = any(word[0].strip() in ("by", "×") for word in words)
    if symbol and by and unit.kind != "temperature":
        return _join_range([_with_unit(text, 2.0, unit, style, source=source) for text in texts], words, symbol=True)
    value = values[-1]
    joined = _join_range(texts, words, symbol=symbol)
    return _with_unit(
        joined, 2.0 if len(values) > 1 else value.value, unit, style, source=source, fraction=value.is_fraction
    )


def _join_range(texts: Sequence[str], words: Sequence[tuple[str, str]], *, symbol: bool) -> str:
    joined = texts[0]
    for word, text in zip(words, texts[1:]):
        joined += word[1 if symbol else 0] + text
    return joined


def _with_unit(
    text: str, value: float, unit: UnitOfMeasure, style: _Style, *, source: bool, fraction: bool = False
) -> str:
    if style.abbreviate == "values":
        return text
    if style.uses_symbol(source=source) or unit.kind.startswith("temperature") and style.usually_symbol:
        symbol = unit.symbol_in_words if style.abbreviate == "unit" and unit.symbol_in_words else unit.symbol
        if abs(value) == 1 and symbol in ("acres", "long tons", "short tons"):
            symbol = symbol[:-1]
        return text + symbol if symbol[:1] in ("/", "×") else f"{text} {symbol}"
    singular = abs(value) == 1 or fraction and abs(value) < 1
    if style.adjective:
        return f"{text}-{style.spell(unit.name).replace(' ', '-')}{style.middle if source else ''}"
    return f"{text} {style.spell(unit.name if singular else unit.plural)}"
