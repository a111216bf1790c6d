"""Numbers in English words, as the option "spell" of {{convert}} writes them.

https://en.wikipedia.org/wiki/Module:ConvertNumeric
"""

from bert_pipeline.wikipedia.templates.figures import Number

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_THOUSANDS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"))
_PARTS = {2: ("half", "halves"), 3: ("third", "thirds"), 4: ("quarter", "quarters"), 5: ("fifth", "fifths"),
          6: ("sixth", "sixths"), 8: ("eighth", "eighths"), 10: ("tenth", "tenths"),
          16: ("sixteenth", "sixteenths")}  # fmt: skip
_LARGEST = 10**15


def spell_number(number: Number, *, american: bool) -> str | None:
    """ "three point five", "two and a half", "one hundred and three" (American: without "and"); None where too long."""
    digits = number.whole
    # "1.5e6" is spelled by its value, as its digits are not those of the number.
    if number.is_scientific and abs(number.value) < _LARGEST and number.value == int(number.value):
        digits = str(abs(int(number.value)))
    whole, _, decimals = digits.partition(".")
    if len(whole) > 15 or len(decimals) > 6 or not (whole + decimals + "0").isdigit():
        return None
    sign = "negative " if number.value < 0 else ""
    if number.fraction is not None:
        words = _spell_fraction(whole, *number.fraction, american=american)
        return sign + words if words else None
    words = spell_integer(int(whole or "0"), american=american)
    if decimals:
        words += " point " + " ".join(_ONES[int(digit)] for digit in decimals)
    return sign + words


def spell_integer(value: int, *, american: bool) -> str:
    """A number from zero on, below 10¹⁵, in words."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        tens, ones = divmod(value, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    joint = " " if american else " and "
    if value < 1000:
        hundreds, rest = divmod(value, 100)
        return f"{_ONES[hundreds]} hundred" + (joint + spell_integer(rest, american=american) if rest else "")
    scale, name = next(pair for pair in _THOUSANDS if value >= pair[0])
    count, rest = divmod(value, scale)
    words = f"{spell_integer(count, american=american)} {name}"
    return words + ((joint if rest < 100 else " ") + spell_integer(rest, american=american) if rest else "")


def _spell_fraction(whole: str, numerator: int, denominator: int, *, american: bool) -> str | None:
    parts = ("fourth", "fourths") if american and denominator == 4 else _PARTS.get(denominator)
    if parts is None or numerator >= 20:
        return None
    if not whole:
        return f"{_ONES[numerator]}-{parts[numerator > 1]}"
    one = "a" if denominator in (2, 4) and numerator == 1 else _ONES[numerator]
    return f"{spell_integer(int(whole), american=american)} and {one} {parts[numerator > 1]}"
