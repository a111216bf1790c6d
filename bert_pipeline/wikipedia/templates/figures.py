"""Numbers as articles write them: read, rounded, and written with separators, powers of ten and fractions."""

import dataclasses
import functools
import math
import re

_MAX_FIGURES = 14
"""Maximum number of significant figures in Module:Convert."""

_NUMBER = re.compile(r"([-−+]?)(\d[\d,]*\.?\d*|\.\d+)(?:[eE]([-+−]?\d{1,3}))?")
_FRACTION = re.compile(r"([-−+]?)(?:([\d,]+)\s*([-−+⁄ ]))?(\d{1,5})(//?|⁄)(\d{1,5})")
_RAISED = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A number as an article writes it."""

    value: float
    text: str
    """As shown: with thousands separators and a true minus sign."""
    precision: float
    """Decimals; negative for trailing zeros of a whole number; the logarithm of a fraction's denominator."""
    whole: str = ""
    """Its digits before a fraction."""
    fraction: tuple[int, int] | None = None
    """Numerator and denominator."""
    is_scientific: bool = False
    """Written with a power of ten: 1.5e6."""

    @property
    def is_singular(self) -> bool:
        """Return True if the name of a unit after it is singular: "1 mile", "half a mile"."""
        return abs(self.value) == 1 or self.fraction is not None and abs(self.value) <= 1


@functools.lru_cache(maxsize=2048)
def parse_number(text: str) -> Number | None:
    """Read "1,500", "-4.25", "1.5e6", "3+1/2"; None if `text` is not a number."""
    text = text.strip().replace("&nbsp;", "").replace("&minus;", "-")
    if len(text) > 40:
        return None
    match = _NUMBER.fullmatch(text)
    if match is None:
        return _parse_fraction(text)
    sign, digits, exponent = match.groups()
    digits = digits.replace(",", "").removesuffix(".")
    value = float(digits)
    shown = group_thousands(digits)

    # As Module:Convert counts: decimals, or the zeros at the end of a whole number, negated.
    if "." in digits or "." in match[2]:
        precision = len(digits.partition(".")[2])
    else:
        precision = -(len(digits) - len(digits.rstrip("0"))) if digits.strip("0") else 0

    # The power of ten moves value and precision alike.
    if exponent:
        power = int(exponent.replace("−", "-"))
        value *= 10.0**power
        precision -= power
        shown = f"{shown}×10{raise_figures(exponent.removeprefix('+'))}"
    if sign:
        shown = ("+" if sign == "+" else "−") + shown
    return Number(-value if sign in ("-", "−") else value, shown, precision, digits, is_scientific=bool(exponent))


def _parse_fraction(text: str) -> Number | None:
    match = _FRACTION.fullmatch(text)
    if match is None or int(match[6]) == 0:
        return None
    sign, whole, joint, numerator, slash, denominator = match.groups()
    is_negative = sign in ("-", "−")
    if not is_negative and joint in ("-", "−"):
        return None  # "3-1/2" may be three and a half, or three to a half
    value = int((whole or "0").replace(",", "")) + int(numerator) / int(denominator)
    shown = write_fraction(whole or "", int(numerator), int(denominator), sign="/" if slash == "//" else "⁄")
    return Number(
        -value if is_negative else value,
        f"−{shown}" if is_negative else shown,
        max(math.log10(int(denominator)), 1.0),
        whole or "",
        (int(numerator), int(denominator)),
    )


def write_fraction(whole: str, numerator: int, denominator: int, *, sign: str = "⁄") -> str:
    """ "3+1⁄2", as {{frac}} shows it; with the sign "/" as {{sfrac}} does."""
    text = f"{numerator}{sign}{denominator}"
    return f"{group_thousands(whole.replace(',', ''))}+{text}" if whole else text


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


def round_figures(value: float, figures: int) -> tuple[int, float]:
    """Return the precision that leaves so many significant figures, and the value rounded to it."""
    if not value:
        return max(0, figures - 1), 0.0
    rounded = float(f"{value:.{max(0, figures - 1)}e}")
    return figures - 1 - math.floor(math.log10(abs(rounded)) + 1e-14), rounded


def write_rounded(value: float, precision: int, *, scientific: bool = False) -> str:
    """Like `format_value`, but with a power of ten where Module:Convert uses one.

    From 10⁹ on and below 10⁻⁴; where the number converted from has a power of ten (`scientific`) from 10³ on and below
    10⁻².
    """
    large, small = (4, 2) if scientific else (10, 4)
    if abs(value) < 10.0**-small and round(value, precision):
        magnitude = math.floor(math.log10(abs(value)) + 1e-14)
        significand, _, power = f"{value:.{min(max(0, precision + magnitude), _MAX_FIGURES)}e}".partition("e")
        return f"{significand}×10{raise_figures(str(int(power)))}".replace("-", "−")
    # Large values: the rounded digits decide, and 10⁹ itself is written in full.
    text = format_value(value, max(-300, min(precision, _MAX_FIGURES)))
    digits = text.lstrip("−").replace(",", "")
    whole, _, decimals = digits.partition(".")
    is_power_of_ten = precision >= 0 and whole == "1" + "0" * (large - 1)
    if len(whole) < large or len(whole) == large and is_power_of_ten:
        return text
    figures = whole[: max(1, len(whole) + min(precision, 0))] + decimals
    significand = figures[0] + (f".{figures[1:]}" if figures[1:] else "")
    return f"{'−' if text[0] == '−' else ''}{significand}×10{raise_figures(str(len(whole) - 1))}"


def nearest_fraction(value: float, denominator: int) -> tuple[int, int, int]:
    """Return whole part, numerator and denominator, reduced, of the nearest multiple of 1 / `denominator`."""
    whole = math.floor(value)
    numerator = math.floor((value - whole) * denominator + 0.5 + 2e-14)
    if numerator >= denominator:
        return whole + 1, 0, 1
    divisor = math.gcd(numerator, denominator)
    return whole, numerator // divisor, denominator // divisor
