"""Templates that show numbers, fractions, measures and money."""

import re

from bert_pipeline.wikipedia.marks import MARK, VOID
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
    for index, value in enumerate(values[:-1]):  # an unknown unit: at least what the writer typed
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
    return arguments.get(1) + raise_figures(arguments.get(2)) or None


@register("height, weight")
def _height(arguments: Arguments) -> str | None:
    named = arguments.named()
    for keys, target in ((("ft", "in"), "m"), (("m",), "ftin"), (("cm",), "ftin"), (("kg",), "lb"), (("lb",), "kg")):
        if keys[0] in named:
            values = [part for key in keys if key in named for part in (named[key], key)]
            precision = [named.get("precision", "2")] if target == "m" else []
            return convert([*values, target, *precision], {"abbr": "on"})
    return None


@register("val, physics value")
def _val(arguments: Arguments) -> str | None:
    commas = arguments.get("fmt") == "commas"
    value = _signed(arguments.get(1), commas=commas)
    if not value:
        return None
    shown = arguments.get("p") + value
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
    exponent = arguments.get("e")
    if exponent:
        shown = f"({shown})" if up and not down else shown
        shown += f"×10{raise_figures(exponent)}"
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
"""What may stand between two numbers of a value."""


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
    raised = raise_figures(exponent)
    return f"10{raised}" if arguments.name == "10^" else raised if arguments.name == "esp" else f"×10{raised}"


def _joins_number(arguments: Arguments) -> str:
    """A plus sign where a whole number stands right before a fraction: 3{{frac|1|2}} is no 31⁄2."""
    return "+" if arguments.before[-1:].isdigit() else ""


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
    exponent = arguments.get("e")
    shown = "".join(arguments.positional()) + (f"×10{raise_figures(exponent)}" if exponent else "")
    if not shown:
        return None
    return f"{arguments.get('lhs')} = {shown}" if arguments.get("lhs") else shown


@register("formatnum, number, nts, number table sorting, format number, ntsh text, ntc, nformat, fmtn, format num")
def _number(arguments: Arguments) -> str | None:
    number = arguments.get(1)
    shown = number if arguments.get("format") == "no" else _grouped(number)
    return " ".join(filter(None, (arguments.get("prefix"), shown))) if shown else None


def _grouped(text: str, language: str = "en") -> str:
    if MARK in text or VOID in text:  # the number was to come from a template that is not known
        return VOID
    return write_number(text, language)


PARSER_FUNCTIONS["formatnum"] = lambda arguments: _grouped(arguments.get(1), arguments.language)


shows("inflation, inflation/year, inflation year, to usd, to eur, to usd text", VOID)


@register("format price, formatprice")
def _price(arguments: Arguments) -> str | None:
    return _grouped(arguments.get(1)) or None


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
    padding = arguments.get("pad")
    decimals = padding if padding.isdecimal() else arguments.get(3)
    sign = arguments.get("%") or "%"
    if whole is None or not whole.value:
        return part.text + sign
    shown = format_value(100 * part.value / whole.value, int(decimals) if decimals.isdecimal() else 0)
    if "." in shown and not padding:
        shown = shown.rstrip("0").rstrip(".")
    return shown + sign


@register("pop density, density, population density")
def _population_density(arguments: Arguments) -> str | None:
    people, area = parse_number(arguments.get(1)), parse_number(arguments.get(2))
    unit = {"km2": "/km2", "sqmi": "/sqmi", "mi2": "/sqmi", "ha": "/ha", "acre": "/acre"}.get(arguments.get(3))
    if people is None or area is None or not area.value or unit is None:
        return None
    decimals = arguments.get("prec")
    density = people.value / area.value
    places = int(decimals) if decimals.isdigit() else 1 if density < 100 else 0
    shown = format_value(density, places).replace(",", "")
    return convert([shown, unit, "/sqmi" if unit == "/km2" else "/km2", str(places)], {"abbr": "on"})


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
    "indian rupee": "₹", "rupee": "₹", "indianrupee": "₹", "inrconvert text": "₹", "jpy": "¥", "¥": "¥",
    "yen": "¥", "cn¥": "CN¥", "cny": "CN¥", "rmb": "RMB", "krw": "₩", "₩": "₩", "php": "₱", "peso": "₱", "₱": "₱",
    "rub": "₽", "chf": "CHF ", "sek": "SEK ", "nok": "NOK ", "dkk": "DKK ", "pkr": "Rs. ", "brl": "R$", "try": "₺",
    "ils": "₪", "zar": "R", "ngn": "₦", "thb": "฿", "r$": "R$", "bdt": "৳", "mxn": "MX$",
}  # fmt: skip


@register(", ".join(_CURRENCIES))
def _currency(arguments: Arguments) -> str:
    """The amount as given; what it would be worth in another year or currency depends on the year of the run."""
    amount = arguments.get(1)
    sign = _CURRENCIES[arguments.name]
    if arguments.get("long").lower() == "no":
        sign = sign[-1]
    elif sign == "£" and arguments.get("long").lower() == "yes":
        sign = "GB£"
    return sign + (_grouped(amount) if amount not in ("link=no", "nolink=yes") else "")


@register("currency")
def _any_currency(arguments: Arguments) -> str | None:
    code = arguments.get(2, "type").lower()
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
