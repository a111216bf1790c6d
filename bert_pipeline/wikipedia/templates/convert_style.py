"""Style of a call of Template:Convert: how its numbers and units are written, and what is between two values.

https://en.wikipedia.org/wiki/Help:Convert/parameter_options, https://en.wikipedia.org/wiki/Module:Convert/text
"""

import dataclasses
import functools
import re
from collections.abc import Mapping

from bert_pipeline.wikipedia.templates.units import UnitOfMeasure


@dataclasses.dataclass(frozen=True, slots=True)
class Between:
    """Text between two values: with full names, and with symbols."""

    named: str
    symbol: str
    repeats_symbol: bool = False
    """ "5 m × 10 m" """
    repeats_output: bool = False
    hyphenates_symbols: bool = False
    is_change: bool = False
    """The value behind it is a difference: "20 ± 5 °C"."""
    shows_by_side: bool = False
    """`named` in what is converted from, `symbol` in what is converted to."""


DASH = Between("–", "–")
BETWEEN = {
    **dict.fromkeys(("-", "–", "&ndash;"), DASH),
    **dict.fromkeys(("x", "×", "&times;"), Between(" by ", " × ", repeats_symbol=True)),
    **dict.fromkeys(("±", "+/-", "&plusmn;"), Between(" ± ", " ± ", is_change=True)),
    **{word: Between(f" {word} ", f" {word} ", hyphenates_symbols=True) for word in ("to", "and", "or")},
    **{word: Between(f" {word} ", f" {word} ") for word in ("+", "by", "to about", "/", "versus", "vs.")},
    **{word: Between(f"{word} ", f"{word} ") for word in (",", ", and", ", or")},
    "to(-)": Between(" to ", "–", shows_by_side=True),
    "and(-)": Between(" and ", "–", shows_by_side=True),
    "by(x)": Between(" by ", " × ", repeats_output=True, shows_by_side=True),
    "xx": Between(" × ", " × "),
    "*": Between("×", "×"),
}
_ABBREVIATIONS = {"on": "on", "unit": "on", "off": "off", "none": "off", "no": "off", "in": "in", "out": "out",
                  "mos": "mos", "hh": "on"}  # fmt: skip
_WITH_NAMES = ("or", "br", "br()")


class Style:
    """How the numbers and units of a call are written."""

    def __init__(self, options: Mapping[str, str]) -> None:
        display = options.get("disp", "")
        abbr = options.get("abbr", "")
        self.abbreviation = _ABBREVIATIONS.get(abbr, "")
        """ "" where nothing is asked for, which is to abbreviate what is converted to."""
        self.display = display
        self.names_power = abbr == "unit"
        self.only_values = abbr == "values"
        self.repeats_symbol = abbr == "~"
        # adj= (once sing=) asks for an adjective, for words around it, or for the decimals of the input.
        adjective = options.get("adj") or options.get("sing", "")
        self.adjective = adjective in ("on", "mid", "1") or display == "adj"
        self.has_middle = adjective == "mid"
        self.has_word_before_unit = adjective == "pre"
        self.decimals_of_input = int(adjective[2]) if re.fullmatch("ri[0-9]", adjective) else None
        self.american = options.get("sp", "").lower() == "us"

        # order=out shows a target in place of the input; a flip swaps input and outputs.
        self.output_first = options.get("order") == "out"
        self.flipped = not self.output_first and (options.get("order") == "flip" or "flip" in (display, adjective))

        # spell=in means the number that is shown first: after a flip, the output.
        spelling = options.get("spell", "")
        self.spells_input = spelling.lower() in ("in", "on")
        self.spells_output = spelling.lower() == "on"
        self.capitalizes = spelling[:1].isupper()
        if self.flipped and self.spells_input and not self.spells_output:
            self.spells_input, self.spells_output = False, True

        # Separators and rounding: to a multiple, to significant figures, or to a fraction.
        self.separators = options.get("comma", "")
        self.round_to = float(options["round"]) if options.get("round") in ("0.5", "5", "10", "25", "50") else 0.0
        self.figures = int(options["sigfig"]) if options.get("sigfig", "").isdigit() else 0
        denominator = options.get("frac", "").removeprefix("-")
        self.denominator = int(denominator) if denominator.isdigit() and int(denominator[:6]) >= 2 else 0

    def uses_name(self, unit: UnitOfMeasure, *, source: bool) -> bool:
        if unit.is_named:
            return True
        if not self.abbreviation:
            if unit.is_signed:
                return False
            if self.display in _WITH_NAMES or self.spells_output:
                return True
        # `place` is the side with symbols: normally the one in brackets, which is the input after a flip.
        side = "in" if source else "out"
        place = self.abbreviation or ("in" if self.flipped else "out")
        if self.flipped and self.abbreviation in ("in", "out"):
            place = "in" if self.abbreviation == "out" else "out"
        return place not in ("on", side) and not (place == "mos" and not source)

    def separate(self, text: str) -> str:
        if not self.separators or "," not in text:
            return text
        whole = text.replace(",", "").partition(".")[0].lstrip("−+")
        keeps = self.separators == "5" and len(whole) > 4 or self.separators not in ("5", "off", "gaps", "gaps3")
        return text if keeps else text.replace(",", "")


@functools.lru_cache(maxsize=256)
def read_style(options: tuple[tuple[str, str], ...]) -> Style:
    """Return the style of these options, of which there are few."""
    return Style(dict(options))
