"""Numbers as {{formatnum:…}} writes them on the wikis of each language."""

import re

from bert_pipeline.wikipedia.templates.figures import group_thousands

_SPACED = (" ", ",", 5)
_DOTTED = (".", ",", 4)

_SEPARATORS = {
    "bg": _SPACED, "cs": _SPACED, "de": _DOTTED, "es": _SPACED, "fr": (" ", ",", 4), "it": (" ", ",", 4),
    "nl": _DOTTED, "pl": _SPACED, "pt": _SPACED, "ru": _SPACED, "sv": (" ", ",", 4), "tr": _DOTTED, "uk": _SPACED,
}  # fmt: skip
"""Language -> what parts thousands, the decimal point, and from how many digits on thousands are parted.

`$separatorTransformTable` and `$minimumGroupingDigits` in languages/messages of https://github.com/wikimedia/mediawiki;
every other language is written as English is.
"""

_DIGITS = re.compile(r"\d[\d,]*(?:\.\d+)?")


def write_number(text: str, language: str) -> str:
    """ "-12345.5" -> "−12,345.5", or "−12 345,5" in French; other texts are unchanged."""
    number = text.strip()
    sign = "−" if number[:1] in ("-", "−") and len(number) > 1 else ""
    digits = number.lstrip("-−").replace(",", "")
    if not _DIGITS.fullmatch(digits):
        return number
    found = _SEPARATORS.get(language.partition("-")[0])
    if found is None:
        return sign + group_thousands(digits)
    # Some languages leave four digits together: "1234", "12 345".
    thousands, point, min_digits = found
    whole, _, decimals = digits.partition(".")
    if len(whole) >= min_digits:
        whole = group_thousands(whole).replace(",", thousands)
    return sign + whole + (point + decimals if decimals else "")
