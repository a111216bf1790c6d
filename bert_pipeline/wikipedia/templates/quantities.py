"""Templates that show numbers, fractions, measures and money."""

import math
import re

from bert_pipeline.wikipedia.placeholders import DROPPED, UNKNOWN_VALUE
from bert_pipeline.wikipedia.templates.convert import convert
from bert_pipeline.wikipedia.templates.figures import format_value, group_thousands, parse_number, raise_figures
from bert_pipeline.wikipedia.templates.local.numbers import write_number
from bert_pipeline.wikipedia.templates.registry import PARSER_FUNCTIONS, Arguments, register, shows

_DIGITS = re.compile(r"\d[\d,]*(?:\.\d+)?")


@register("convert, cvt, conv, convert/2, convinfobox, convert2, cnv")
def _convert(arguments: Arguments) -> str | None:
    options = arguments.named()
    if arguments.name in ("cvt", "cnv") or not arguments.is_english:  # the names of units would be English ones
        options.setdefault("abbr", "on")
    is_spaced = options.get("disp") in ("x", "preunit")
    values = arguments.unstripped() if is_spaced else arguments.positional()
    shown = convert(values, options)
    if shown is not None:
        return shown
    for index, value in enumerate(values[:-1]):  # an unknown unit: as typed by the writer
        if parse_number(value) is None and index:
            return f"{' '.join(values[:index])} {value}"
    return " ".join(values[:2]) if len(values) > 1 and parse_number(values[0]) else None


def _simple_conversion(source: str, target: str) -> None:
    def render(arguments: Arguments) -> str | None:
        return convert([arguments.get(1), source, target], {"abbr": "on"})

    register(f"{source} to {target}")(render)


for _source, _target in (("km", "mi"), ("mi", "km"), ("ft", "m"), ("m", "ft"), ("kg", "lb"), ("lb", "kg"), ("c", "f")):
    _simple_conversion(_source, _target)


@register("hands")
def _hands(arguments: Arguments) -> str | None:
    """The height of a horse: https://en.wikipedia.org/wiki/Template:Hands"""
    values = [value for value in arguments.positional() if value]
    shown = convert([*values, "hand", "in cm"], {})
    if shown is None:
        return f"{' '.join(values)} hands" if values else None
    unit = arguments.get("abbr") if arguments.get("abbr") in ("h", "hh") else "hands"
    return shown.replace("; ", ", ").replace(" hands ", f" {unit} ")


@register("pow")
def _power(arguments: Arguments) -> str | None:
    """Render a power; without arguments, a note about a commander who was taken prisoner."""
    return arguments.get(1) + raise_figures(arguments.get(2)) or " (POW)"


@register("height, weight")
def _height(arguments: Arguments) -> str | None:
    named = arguments.named()
    for keys, target in ((("ft", "in"), "m"), (("m",), "ftin"), (("cm",), "ftin"), (("kg",), "lb"), (("lb",), "kg")):
        if keys[0] in named:
            values = [part for key in keys if key in named for part in (named[key], key)]
            precision = [named.get("precision", "2")] if target == "m" else []
            return convert([*values, target, *precision], {"abbr": "on"})
    return None


@register("val, physics value, value")
def _val(arguments: Arguments) -> str | None:
    commas = arguments.get("fmt") == "commas"
    value = _signed(arguments.get(1), commas=commas)
    exponent = arguments.get("e")
    if not value and not exponent:
        return None
    shown = arguments.get("p") + value
    # Arguments 2 and 3: an uncertainty "(5)", a number after "to", two errors, or one for both directions.
    up, down = arguments.get(2), arguments.get(3)
    if up.startswith("("):
        shown += up
        up = ""
    elif up in _JOINING and down:
        shown += f"{_JOINING[up]}{_signed(down, commas=commas)}"
        up = down = ""
    elif up and down:
        shown += f"+{up.lstrip('+')}−{down.lstrip('-−')}"
    elif up:
        shown += f" ± {_signed(up, commas=commas)}"

    # A power of ten applies to the value and its error, so both are in brackets.
    if exponent:
        shown = f"({shown})" if up and not down else shown
        shown += f"{'×' if value else ''}10{raise_figures(exponent)}"
    shown += arguments.get("end")
    unit = arguments.get("u", "ul", "upl")
    if unit:
        shown += unit if unit in ("%", "°", "″", "′") else f" {_unit(unit)}"
    per = arguments.get("up", "upl")
    if per:
        shown += f"/{_unit(per)}"
    return shown + arguments.get("s")


_JOINING = {"to": " to ", "-": "–", "–": "–", "and": " and ", "or": " or ", "by": " by ", "x": " × ", "×": " × ",
            ",": ", ", "/": " / "}  # fmt: skip
"""Texts between two numbers of a value."""


def _unit(text: str) -> str:
    """ "kg.m-2" -> "kg⋅m⁻²"."""
    text = re.sub(r"(?<=[A-Za-zμΩ°])([-−]?\d)(?!\d)", lambda match: raise_figures(match[1]), text)
    return text.replace(".", "⋅")


def _signed(text: str, *, commas: bool) -> str:
    """A true minus sign; the gaps that the template shows between thousands are style, not characters."""
    sign = "−" if text[:1] in "-−" and len(text) > 1 else ""
    digits = text.lstrip("-−+").replace(",", "")
    if not _DIGITS.fullmatch(digits):
        return text
    return sign + (group_thousands(digits) if commas else digits)


@register("e, x10^, exp, 10^, esp, enum")
def _power_of_ten(arguments: Arguments) -> str | None:
    exponent = arguments.get(1)
    if not exponent:
        return None
    raised = raise_figures("+" * (arguments.get(2) == "plus") + exponent)
    return f"10{raised}" if arguments.name == "10^" else raised if arguments.name == "esp" else f"×10{raised}"


def _joins_number(arguments: Arguments) -> str:
    """Return a plus sign if a whole number is right before a fraction: 3{{frac|1|2}} is not 31⁄2."""
    return "+" if arguments.before[-1:].isdigit() else ""


@register("1/2, 1/3, 2/3, 1/4, 3/4, 1/5, 1/6, 5/6, 1/8, 3/8, 5/8, 7/8, 1/16, 3/16", in_context=True)
def _named_fraction(arguments: Arguments) -> str:
    """Templates that are called as the fraction that they show: 7{{1/2}}."""
    return _joins_number(arguments) + arguments.name.replace("/", "⁄")


@register("frac, fraction, frac2, fract, ifrac, vulgar fraction", in_context=True)
def _fraction(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    if len(values) < 2:
        return f"{_joins_number(arguments)}1⁄{values[0]}" if values else "⁄"
    if len(values) == 2:
        return f"{_joins_number(arguments)}{values[0]}⁄{values[1]}"
    return f"{values[0]}+{values[1]}⁄{values[2]}" if len(values) == 3 else None


@register("sfrac, intmath fraction, tfrac, sfraction, mfrac, simple fraction", in_context=True)
def _stacked_fraction(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    if len(values) == 1:
        return f"{_joins_number(arguments)}1/{values[0]}"
    if len(values) == 2:
        return f"{_joins_number(arguments)}{values[0]}/{values[1]}"
    return f"{values[0]}+{values[1]}/{values[2]}" if len(values) == 3 else None


@register("radic, sqrt, surd")
def _root(arguments: Arguments) -> str | None:
    index = arguments.get(2)
    sign = {"": "√", "2": "√", "3": "∛", "4": "∜"}.get(index) or f"{raise_figures(index)}√"
    return sign + arguments.get(1) if arguments.get(1) else None


@register("gaps")
def _gaps(arguments: Arguments) -> str | None:
    exponent, base = arguments.get("e"), arguments.get("base") or "10"
    shown = "".join(arguments.positional()) + (f"×{base}{raise_figures(exponent)}" if exponent else "")
    if not shown:
        return None
    shown = f"{shown} {arguments.get('u')}".rstrip()
    return f"{arguments.get('lhs')} = {shown}" if arguments.get("lhs") else shown


@register("formatnum, number, nts, number table sorting, format number, ntsh text, ntc, nformat, fmtn, format num")
def _number(arguments: Arguments) -> str | None:
    number = arguments.get(1)
    shown = number if arguments.get("format") == "no" else _grouped(number)
    return " ".join(filter(None, (arguments.get("prefix"), shown))) if shown else None


def _grouped(text: str, language: str = "en") -> str:
    if DROPPED in text or UNKNOWN_VALUE in text:  # the number was to come from a template that is not known
        return UNKNOWN_VALUE
    return write_number(text, language)


def _formatnum(arguments: Arguments) -> str:
    """{{formatnum:…|R}} takes separators off: http://ballotpedia.org/Help:Format_Number"""
    if arguments.get(2).upper() in ("R", "NOSEP"):
        return arguments.get(1).replace(",", "")
    return _grouped(arguments.get(1), arguments.language)


PARSER_FUNCTIONS["formatnum"] = _formatnum


shows("inflation, inflation/year, inflation year, to usd, to eur, to usd text", UNKNOWN_VALUE)


_POWERS_OF_THOUSAND = (
    "thousand", "million", "billion", "trillion", "quadrillion", "quintillion", "sextillion", "septillion",
)  # fmt: skip


@register("format price, formatprice")
def _price(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Format_price: from a thousand on three figures and a word."""
    text, digits = arguments.get(1), arguments.get(2)
    if DROPPED in text or UNKNOWN_VALUE in text:
        return UNKNOWN_VALUE
    number = parse_number(text)
    if number is None or number.value < 0:
        return text or None
    if number.value < 1000:
        places = int(digits) if re.fullmatch(r"-?\d", digits) else 2
        return format_value(round(number.value, places), max(places, 2) if places > 0 else places)
    # Round first: 999,999 is "1 million", not "1000 thousand".
    rounded = float(f"{number.value:.3g}")
    group = min(int(math.log10(rounded)) // 3, len(_POWERS_OF_THOUSAND))
    return f"{rounded / 1000**group:.3g} {_POWERS_OF_THOUSAND[group - 1]}"


@register("ordinal, ord, suffix, ordinal suffix, nth")
def _ordinal(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Ordinal"""
    number = arguments.get(1)
    digits = number.lstrip("-−")
    if not digits.isdecimal() or 10 < int(digits[-2:]) < 20:
        return f"{number}th" if number else None
    endings = {"1": "st", "2": "nd", "3": "rd"} | ({"2": "d", "3": "d"} if arguments.get(2) == "d" else {})
    return number + endings.get(digits[-1], "th")


@register("percentage, pct, percent, percentage change")
def _percentage(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Percentage: zeros after the decimal point are cut off unless padded."""
    part, whole = parse_number(arguments.get(1)), parse_number(arguments.get(2))
    if part is None:
        return None
    # `pad` is the number of decimals that are kept even if they are zeros.
    padding = arguments.get("pad")
    decimals = padding if padding.isdecimal() else arguments.get(3)
    sign = arguments.get("%") or "%"
    if whole is None or not whole.value:
        return part.text + sign
    shown = format_value(100 * part.value / whole.value, int(decimals) if decimals.isdecimal() else 0)
    if "." in shown and not padding:
        shown = shown.rstrip("0").rstrip(".")
    return shown + sign


_AREAS = {"km2": (1e6, "km²"), "sqmi": (2589988.110336, "sq mi"), "acre": (4046.8564224, "acre"), "ha": (1e4, "ha"),
          "dunam": (1e3, "dunam"), "m2": (1.0, "m²")}  # fmt: skip
_AREA_NAMES = {"km²": "km2", "sqkm": "km2", "mi2": "sqmi", "acres": "acre", "m²": "m2", "sqm": "m2"}


@register("pop density, density, population density")
def _population_density(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Module:Pop_density: as many figures as the numbers divided can answer for."""
    people, area = parse_number(arguments.get(1)), parse_number(arguments.get(2))
    units = [_AREAS.get(_AREA_NAMES.get(name, name)) for name in (arguments.get(3), arguments.get(4)) if name]
    if people is None or area is None or area.value <= 0 or people.value < 0 or not units or units[0] is None:
        return None
    # The last digits of both numbers bound the error of their quotient.
    density, decimals = people.value / area.value, arguments.get("prec")
    error = (10.0**-people.precision + density * 10.0**-area.precision) / (2 * area.value)
    shown = []
    for size, name in filter(None, units):
        ratio = size / units[0][0]
        precision = 1 - math.log10(error * ratio)
        places = int(decimals) if decimals.isdecimal() else math.floor(precision + 0.5)
        number = format_value(density * ratio, places)
        shown.append(number if arguments.get("disp") == "num" else f"{number}/{name}")
    if arguments.get("disp") == "num":
        return shown[-1]
    if arguments.get("flip").lower() in ("on", "yes", "y", "1"):
        shown.reverse()
    return f"{shown[0]} ({shown[1]})" if len(shown) > 1 else shown[0]


@register("±, +-, plus minus, plusminus, plus-minus")
def _plus_minus(arguments: Arguments) -> str:
    return f"±{arguments.get(1)}"


@register("closed-closed, closed-open, open-closed, open-open, interval")
def _interval(arguments: Arguments) -> str:
    brackets = {"closed": "[]", "open": "()"}
    left, _, right = arguments.name.partition("-")
    text = arguments.get(1) + (f", {arguments.get(2)}" if arguments.get(2) else "")
    return f"{brackets.get(left, '()')[0]}{text}{brackets.get(right, '()')[1]}"


_CURRENCIES = {
    "us$": "US$", "usd": "US$", "usdollar": "US$", "us dollar": "US$", "$": "$", "a$": "A$", "aud": "A$", "au$": "A$",
    "can$": "CA$", "ca$": "CA$", "cad": "CA$", "canadian dollar": "CA$", "c$": "C$", "nz$": "NZ$", "nzd": "NZ$",
    "hk$": "HK$",
    "hkd": "HK$", "s$": "S$", "sgd": "S$", "gbp": "£", "£": "£", "gbp0": "£", "eur": "€", "euro": "€", "€": "€",
    "inr": "₹", "₹": "₹", "nt$": "NT$", "twd": "NT$",
    "indian rupee": "₹", "indian rupees": "₹", "indian rupee symbol": "₹", "india rs": "₹", "philippine peso": "₱",
    "rupee": "₹", "indianrupee": "₹", "inrconvert text": "₹", "jpy": "¥", "¥": "¥",
    "yen": "¥", "cn¥": "CN¥", "cny": "CN¥", "rmb": "RMB", "krw": "₩", "₩": "₩", "php": "₱", "peso": "₱", "₱": "₱",
    "rub": "₽", "chf": "CHF ", "sek": "SEK ", "nok": "NOK ", "dkk": "DKK ", "pkr": "Rs. ", "brl": "R$", "try": "₺",
    "ils": "₪", "zar": "R", "ngn": "₦", "thb": "฿", "r$": "R$", "bdt": "৳", "mxn": "MX$",
}  # fmt: skip


@register(", ".join(_CURRENCIES))
def _currency(arguments: Arguments) -> str:
    """Render the amount; its worth in another year or currency depends on the date of reading."""
    amount = arguments.get(1)
    sign = _CURRENCIES[arguments.name]
    if arguments.get("long").lower() == "no":
        sign = sign[-1]
    elif sign == "£" and arguments.get("long").lower() == "yes":
        sign = "GB£"
    return sign + (_grouped(amount) if amount not in ("link=no", "nolink=yes") else "")


_CODES_OF_CURRENCIES = {"": "usd", "us": "usd", "u.s.": "usd", "usa": "usd", "united states": "usd", "uk": "gbp",
                        "pound": "gbp", "pound sterling": "gbp", "sterling": "gbp", "stg": "gbp", "eu": "eur",
                        "rmb": "cny"}  # fmt: skip


@register("currency")
def _any_currency(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Currency"""
    code = arguments.get(2, "code", "type").lower()
    code = _CODES_OF_CURRENCIES.get(code, code)
    amount = _grouped(arguments.get(1, "amount"))
    return _CURRENCIES[code] + amount if code in _CURRENCIES and amount else None


@register("inrconvert, inr convert, us$convert")
def _converted_currency(arguments: Arguments) -> str | None:
    scale = {"k": " thousand", "m": " million", "b": " billion", "t": " trillion", "l": " lakh", "c": " crore"}
    scale |= {"lc": " lakh crore"}
    amount, word = _grouped(arguments.get(1)), scale.get(arguments.get(2).lower(), "")
    return f"₹{amount}{word}" if amount and arguments.name.startswith("inr") else None


@register("duration, time duration")
def _duration(arguments: Arguments) -> str | None:
    parts = [arguments.get("h", 1), arguments.get("m", 2), arguments.get("s", 3)]
    while parts and not parts[0]:
        parts.pop(0)
    return ":".join([parts[0], *(part.zfill(2) for part in parts[1:])]) if parts else None


@register("ra, dec, hours, degminsec")
def _angle(arguments: Arguments) -> str | None:
    signs = "hms" if arguments.name == "ra" else "°′″"
    shown = " ".join(f"{value}{sign}" for value, sign in zip(arguments.positional(), signs) if value)
    return shown.replace("-", "−") or None
