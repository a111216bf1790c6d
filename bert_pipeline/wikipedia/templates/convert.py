"""Template:Convert: "{{convert|5|km|mi}}" reads "5 kilometres (3.1 mi)".

What is shown follows Module:Convert for the options that articles use: its words between values and its rounding (the
precision of the input, adjusted by the ratio of the units, with at least two significant figures).
https://en.wikipedia.org/wiki/Template:Convert/doc, https://en.wikipedia.org/wiki/Module:Convert
"""

import dataclasses
import functools
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from bert_pipeline.wikipedia.templates.numbers import Number, format_value, parse_number, raise_figures
from bert_pipeline.wikipedia.templates.registry import Arguments, function

_RANGE = re.compile(r"(.+?)(?: (to|and|or|by|x) |(-|–|x|×|±|/))(.+)")
_PRECISION = re.compile(r"[-−]?\d{1,2}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Unit:
    """One unit; a value in it times `scale` (plus `offset`, for temperatures) is the value in the base unit."""

    kind: str
    scale: float
    symbol: str
    name: str
    plural: str
    default: str
    """Codes of the units converted to where the call names none."""
    offset: float = 0.0
    is_named: bool = False
    """Written with its name even where symbols are asked for: "acres"."""
    is_signed: bool = False
    """Written with its symbol where nothing is asked for: "°C"."""
    divisions: tuple["_Unit", ...] = ()
    """Of "feet and inches" the units."""


@functools.cache
def _table() -> dict[str, _Unit]:
    """Read the units: "codes; scale; symbol; name[/plural]; default[; offset]"; units.toml describes a row."""
    content = tomllib.loads(Path(__file__).with_name("units.toml").read_text(encoding="utf-8"))
    units: dict[str, _Unit] = {}
    for kind, rows in content["units"].items():
        for row in rows.strip().splitlines():
            codes, scale, symbol, names, default, *offset = (field.strip() for field in row.split(";"))
            name, _, plural = (names or symbol.lstrip("~!")).partition("/")
            head, per, tail = name.partition(" per ")
            unit = _Unit(
                kind, float(scale), symbol.lstrip("~!"), name, plural or f"{head}s{per}{tail}", default,
                float(offset[0]) if offset else 0.0, symbol[0] == "~", symbol[0] == "!",
            )  # fmt: skip
            units |= dict.fromkeys((code.replace("_", " ") for code in codes.split()), unit)
    for code, parts in content["divided"].items():
        divisions = tuple(units[part] for part in parts.split())
        units[code] = dataclasses.replace(divisions[0], divisions=divisions)
    return units


_PREFIXES = {"T": (12, "tera"), "G": (9, "giga"), "M": (6, "mega"), "k": (3, "kilo"), "h": (2, "hecto"),
             "d": (-1, "deci"), "c": (-2, "centi"), "m": (-3, "milli"), "μ": (-6, "micro"), "µ": (-6, "micro"),
             "u": (-6, "micro"), "n": (-9, "nano"), "p": (-12, "pico")}  # fmt: skip
_PREFIXABLE = {"m": 1, "m2": 2, "m3": 3, "g": 1, "L": 1, "l": 1, "W": 1, "Pa": 1, "J": 1, "N": 1, "Hz": 1, "s": 1,
               "eV": 1, "pc": 1, "ly": 1, "Wh": 1, "cal": 1, "bar": 1, "t": 1}  # fmt: skip
"""Units that take any prefix -> the power to which the prefix is raised."""
_POWERS = {"e3": (1e3, "thousand"), "e6": (1e6, "million"), "e9": (1e9, "billion"), "e12": (1e12, "trillion")}

_MAX_CODE_CHARS = 40
"""A longer text is no code; the search for its parts is recursive."""


@functools.lru_cache(maxsize=1024)
def _find_unit(code: str) -> _Unit | None:
    """Return the unit with this code; prefixes ("MW"), ratios ("kg/ha") and powers of ten ("e6km2") are understood."""
    code = code.replace("_", " ").replace("\u00a0", " ")
    unit = _table().get(code)
    if unit is not None or len(code) > _MAX_CODE_CHARS:
        return unit
    prefix, base = code[:1], code[1:]
    root = _table().get(base)
    if root is not None and prefix in _PREFIXES and base in _PREFIXABLE:
        exponent, word = _PREFIXES[prefix]
        place = root.name.find("metre") if base in ("m2", "m3") else 0  # "square kilometre"
        names = [name[:place] + word + name[place:] for name in (root.name, root.plural)]
        scale = root.scale * 10.0 ** (exponent * _PREFIXABLE[base])
        return dataclasses.replace(
            root, scale=scale, symbol=prefix.replace("u", "μ") + root.symbol, name=names[0], plural=names[1]
        )
    if match := re.fullmatch(r"(e\d+)(.+)", code):
        unit, power = _find_unit(match[2]), _POWERS.get(match[1])
        if unit is None or power is None or unit.divisions:
            return None
        default = "" if " " in unit.default or not unit.default else match[1] + unit.default
        return dataclasses.replace(
            unit, scale=unit.scale * power[0], symbol=f"{power[1]} {unit.symbol}", name=f"{power[1]} {unit.plural}",
            plural=f"{power[1]} {unit.plural}", default=default,
        )  # fmt: skip
    above, slash, below = code.rpartition("/")
    upper, lower = _find_unit(above) if above else None, _find_unit(below) if slash else None
    if upper is None or lower is None or lower.divisions:
        return None
    default = f"{upper.default.split()[0]}/{lower.default.split()[0]}" if upper.default and lower.default else ""
    return _Unit(
        f"{upper.kind}/{lower.kind}", upper.scale / lower.scale, f"{upper.symbol}/{lower.symbol}",
        f"{upper.name} per {lower.name}", f"{upper.plural} per {lower.name}", default,
    )  # fmt: skip


class _Style:
    """How the numbers and units of a call are written."""

    def __init__(self, arguments: Arguments) -> None:
        self.display = arguments.get("disp")
        self.abbreviation = arguments.get("abbr")
        if arguments.name in ("cvt", "cnv") or not arguments.wiki.is_english:  # the units' names are English ones
            self.abbreviation = "on"
        self.is_adjective = arguments.get("adj") in ("on", "mid", "1") or arguments.get("sing") == "on"
        self.is_american = arguments.get("sp").lower() == "us"
        self.is_flipped = "flip" in (arguments.get("order"), self.display)
        self.figures = int(arguments.get("sigfig")) if re.fullmatch("[1-9]", arguments.get("sigfig")) else 0

    def name_of(self, unit: _Unit, number: Number, *, is_first: bool) -> str:
        """Return the symbol of a unit, or its name, singular or plural as the value requires."""
        is_long = self.abbreviation in ("off", "none", "no", "in" if not is_first else "out")
        if self.abbreviation not in ("on", "off", "none", "no", "in", "out"):
            is_long = not unit.is_signed and (is_first or self.display in ("or", "br"))
        if not is_long and not unit.is_named:
            return unit.symbol.replace("US", "U.S.") if self.is_american else unit.symbol
        is_singular = abs(number.value) == 1 or number.is_fraction and abs(number.value) < 1
        name = unit.name if self.is_adjective or is_singular else unit.plural
        if self.is_american:
            name = name.replace("metre", "meter").replace("litre", "liter").replace("tonne", "metric ton")
        return name.replace("US", "U.S.") if self.is_american else name

    def join(
        self, texts: Sequence[str], numbers: Sequence[Number], between: str, unit: _Unit, *, is_first: bool
    ) -> str:
        """Return the values with the word between them, and the unit after them."""
        name = self.name_of(unit, numbers[-1], is_first=is_first)
        is_long = unit.is_named or name not in (unit.symbol, unit.symbol.replace("US", "U.S."))
        if self.display == "output number only":
            name = ""
        if between == " × " and not is_long:
            return between.join(f"{text} {name}" for text in texts)
        joined = (" by " if between == " × " else between).join(texts)
        if is_long and self.is_adjective:
            return f"{joined}-{name}".replace(" ", "-")
        return f"{joined}{'' if name[:1] == '/' else ' '}{name}".strip()


_BETWEEN = {
    "-": "–", "–": "–", "&ndash;": "–", "to": " to ", "and": " and ", "or": " or ", "by": " by ", "x": " × ",
    "×": " × ", "±": " ± ", "+/-": " ± ", ",": ", ", "to(-)": " to ", "and(-)": " and ", "/": "/", "by(x)": " × ",
}  # fmt: skip
_JOINTS = {"or": (" or ", ""), "comma": (", ", ""), "semicolon": ("; ", ""), "sqbr": (" [", "]"), "br": (" ", "")}


@function("convert")
def convert(arguments: Arguments) -> str | None:
    """Render a call; a unit that is not known is shown as written, without a conversion."""
    parts = _split_range(arguments.positional())
    style = _Style(arguments)
    is_word = (
        arguments.get("adj") == "mid"
        and len(parts) > 2
        and not (_PRECISION.fullmatch(parts[-1]) or _find_unit(parts[-1]))
    )
    middle = parts.pop() if is_word else ""  # "10-metre-long"
    numbers, between, index = _read_values(parts)
    unit = _find_unit(parts[index]) if numbers and index < len(parts) else None
    if unit is None or unit.divisions:
        return f"{between.join(number.text for number in numbers)} {' '.join(parts[index : index + 1])}".strip() or None
    index += 1

    # 5 ft 11 in: one value, in its smallest unit
    is_first = not style.is_flipped
    shown = style.join([number.text for number in numbers], numbers, between, unit, is_first=is_first)
    total, source = numbers, unit
    while len(numbers) == 1 and index + 1 < len(parts):
        number, smaller = parse_number(parts[index]), _find_unit(parts[index + 1])
        if number is None or smaller is None or smaller.kind != source.kind or smaller.scale >= source.scale:
            break
        value = (total[0].value * source.scale + number.value * smaller.scale) / smaller.scale
        total = [Number(value, "", max(0, number.precision), number.is_fraction)]
        joint = "-" if style.is_adjective and style.abbreviation != "on" else " "
        shown += joint + style.join([number.text], [number], "", smaller, is_first=is_first)
        source = smaller
        index += 2

    shown += f"{'' if middle[:1] in ('', '-') else ' '}{middle}"

    # The targets and the precision: either may be missing
    short = "–" if any(part.endswith("(-)") for part in parts[:2]) else between
    code, precision = "", None
    for part in parts[index : index + 2]:
        if _PRECISION.fullmatch(part):
            precision = int(part.replace("−", "-"))
        elif not code:
            code = part
    if not code:
        code = "ftin" if unit is _table()["m"] and 0 < total[0].value < 3 else unit.default
    whole = _find_unit(code)
    targets = [whole] if whole else [_find_unit(part) for part in re.split(r"[ +]", code) if part]
    converted = [
        _convert_values(total, short, source, target, precision, style)
        for target in targets if target is not None and target.kind == source.kind
    ]  # fmt: skip
    if style.display in ("out", "output only", "number", "output number only"):
        return "; ".join(converted) or shown
    outputs = "; ".join(converted)
    if style.is_flipped and outputs:
        shown, outputs = outputs, shown
    opening, closing = _JOINTS.get(style.display, (" (", ")"))
    return f"{shown}{opening}{outputs}{closing}" if outputs else shown


def _split_range(parts: list[str]) -> list[str]:
    """ "5 to 10" and "5-10" in one argument are three."""
    first = parts[0] if parts else ""
    match = _RANGE.fullmatch(first) if len(first) < 40 and parse_number(first) is None else None
    if match and parse_number(match[1]) is not None and parse_number(match[4]) is not None:
        return [match[1], match[2] or match[3], match[4], *parts[1:]]
    return parts


def _read_values(parts: Sequence[str]) -> tuple[list[Number], str, int]:
    """Return the numbers, the text between them, and the index of the unit: "2", "by", "3", "by", "4", "m"."""
    numbers: list[Number] = []
    between, index = "", 0
    while index < len(parts) and (number := parse_number(parts[index])) is not None:
        numbers.append(number)
        index += 1
        is_followed = index + 1 < len(parts) and parse_number(parts[index + 1]) is not None
        if not is_followed or parts[index] not in _BETWEEN:
            break
        between = _BETWEEN[parts[index]]
        index += 1
    return numbers, between, index


def _convert_values(
    numbers: Sequence[Number], between: str, source: _Unit, target: _Unit, precision: int | None, style: _Style
) -> str:
    unit = target.divisions[-1] if target.divisions else target
    results = [(number.value * source.scale + source.offset - unit.offset) / unit.scale for number in numbers]
    if between == " ± ":
        results[1:] = [number.value * source.scale / unit.scale for number in numbers[1:]]
    # All values of a range get the decimals of the most exact one.
    places = max(_precision(number, result, source, unit) for number, result in zip(numbers, results))
    places = places if precision is None else precision
    if target.divisions:
        texts = [_divide(result, target.divisions, max(0, places), style) for result in results]
        return (" – " if between == "–" else between).join(texts)
    shown = []
    for result in results:
        if style.figures and precision is None and result:
            places = style.figures - 1 - math.floor(math.log10(abs(float(f"{result:.{style.figures - 1}e}"))) + 1e-14)
        shown.append(_write(result, max(-15, min(places, 14))))
    rounded = [parse_number(text) or Number(0, text, 0) for text in shown]
    return style.join(shown, rounded, between, unit, is_first=style.is_flipped)


def _precision(number: Number, result: float, source: _Unit, target: _Unit) -> int:
    """Return the decimals of an output, as default_precision of Module:Convert does."""
    magnitude = math.floor(math.log10(abs(result)) + 1e-14) if result else 0
    # Scales with an offset have no ratio: keep at least three significant figures of the kelvins.
    if source.kind == "temperature":
        kelvin = abs(number.value * source.scale + source.offset)
        return max(math.floor(number.precision), 2 if kelvin < 1e-8 else 2 - math.floor(math.log10(kelvin) + 1e-14))
    if not number.value or not result:
        return 0
    # As many decimals as the ratio of the units allows (log10(2) favors one more); at least two figures.
    adjust = math.log10(abs(number.value / result))
    if target.symbol in ("ft", "lb") and number.value == math.floor(number.value):
        adjust = -math.log10(source.scale)
    elif not number.text and source.symbol == "in":  # the sum of "5 ft 11 in"
        adjust = math.log10(target.scale) + 2
    return max(math.floor(number.precision + adjust + math.log10(2)), 1 - magnitude)


def _divide(result: float, divisions: Sequence[_Unit], decimals: int, style: _Style) -> str:
    """ "5 ft 11 in": round in the smallest unit, then carry upwards, so that "5 ft 12 in" cannot result."""
    rest = math.floor(abs(result) * 10**decimals + 0.5 + 2e-14) / 10**decimals
    shown: list[str] = []
    for larger, unit in zip((*reversed(divisions[:-1]), None), reversed(divisions)):
        ratio = round(larger.scale / unit.scale) if larger is not None else 0
        rest, count = divmod(rest, ratio) if ratio else (0.0, rest)
        name = style.name_of(unit, Number(count, "", 0), is_first=style.is_flipped)
        shown.append(f"{format_value(count, decimals)} {name}")
        decimals = 0
        if not rest:
            break
    return "−" * (result < 0) + " ".join(reversed(shown))


def _write(value: float, precision: int) -> str:
    """Write a value; from 10⁹ on and below 10⁻⁴ with a power of ten."""
    if abs(value) < 1e-4 and round(value, precision) or abs(value) >= 1e9:
        magnitude = math.floor(math.log10(abs(value)) + 1e-14)
        significand, _, power = f"{value:.{min(max(0, precision + magnitude), 14)}e}".partition("e")
        return f"{significand}×10{raise_figures(str(int(power)))}".replace("-", "−")
    return format_value(value, precision)
