"""Template:Convert and its family: "{{convert|5|km|mi}}" reads "5 kilometres (3.1 mi)".

What is shown follows Module:Convert: its options, its words between values, and its rounding (the precision of the
input, adjusted by the ratio of the units, with at least two significant figures).
https://en.wikipedia.org/wiki/Template:Convert/doc, https://en.wikipedia.org/wiki/Module:Convert
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from bert_pipeline.wikipedia.templates.convert_style import BETWEEN, DASH, Between, Style, read_style
from bert_pipeline.wikipedia.templates.figures import (
    Number,
    format_value,
    nearest_fraction,
    parse_number,
    raise_figures,
    round_figures,
    write_fraction,
    write_rounded,
)
from bert_pipeline.wikipedia.templates.number_words import spell_number
from bert_pipeline.wikipedia.templates.units import UnitOfMeasure, default_target, find_targets, find_unit

_PRECISION = re.compile(r"[-−]?\d{1,2}")
_WITHOUT_SPACES = re.compile(r"(.+?)(-|–|&ndash;|xx|x|×|\*|±)(.+)")
_JOINTS = {"or": (" or ", ""), "comma": (", ", ""), "semicolon": ("; ", ""), "sqbr": (" [", "]"), "br": (" ", ""),
           "br()": (" (", ")")}  # fmt: skip


def convert(arguments: Sequence[str], options: Mapping[str, str]) -> str | None:
    """Render a call: positional arguments, then named ones. None if a value or the unit is not understood.

    Spaces at the ends of positional arguments matter only behind the units: `disp=x| or about |`.
    """
    call = _read_call(arguments, options)
    return None if call is None else call.render()


@dataclasses.dataclass
class _Call:
    """One call, read."""

    values: list[Number]
    between: list[Between]
    source: UnitOfMeasure
    compound: list[tuple[Number, UnitOfMeasure]]
    """Of "5 ft 11 in" the parts; else empty."""
    targets: list[UnitOfMeasure]
    style: Style
    precision: int | None = None
    middle: str = ""
    """Behind the unit of an adjective: "10-metre-long"."""
    before_units: tuple[str, str] = ("", "")
    joints: tuple[str, str] = (" (", ")")
    """Around what is converted to."""

    def render(self) -> str:
        style = self.style
        shown = self._show_input()
        if style.display in ("unit", "unit or text"):
            return _name_of(self.source, self.values[-1], style, source=True)
        outputs = [self._show_output(target, as_input=style.output_first and not index)
                   for index, target in enumerate(self.targets)]  # fmt: skip
        if style.display == "unit2":
            return _name_of(self.targets[0], self.values[-1], style, source=False) if outputs else shown
        if style.display in ("out", "output only", "number", "output number only"):
            return "; ".join(outputs)

        # order=out shows the first target in place of the input; order=flip swaps input and outputs.
        if style.output_first and len(outputs) > 1:
            shown = outputs.pop(0)
        joined = (" or " if style.display in ("or", "(or)") else "; ").join(outputs)
        if style.flipped and outputs:
            shown, joined = joined, shown
        if outputs:
            shown = f"{shown}{self.joints[0]}{joined}{self.joints[1]}"
        return shown[:1].upper() + shown[1:] if style.capitalizes else shown

    def _show_input(self) -> str:
        style = self.style
        # "5 ft 11 in": a number and a unit for each part.
        if self.compound:
            parts = []
            for number, unit in self.compound:
                word = style.spells_input and spell_number(number, american=style.american)
                parts.append((word or style.separate(number.text), unit, number.is_singular))
            return _join_compound(parts, style, source=True) + ("" if style.flipped else self.middle)

        # One value, or a range: `_join` adds the words between the numbers, and their unit.
        texts = []
        for number in self.values:
            text = number.text
            if style.decimals_of_input is not None:
                text = format_value(number.value, style.decimals_of_input)
            word = style.spells_input and spell_number(number, american=style.american)
            texts.append(word or style.separate(text))
        return self._join(texts, self.values, self.source, source=True)

    def _show_output(self, target: UnitOfMeasure, *, as_input: bool) -> str:
        if target.divisions:
            return self._show_divisions(target)
        if target.code == self.source.code and as_input:
            texts = [self.style.separate(value.text) for value in self.values]
            return self._join(texts, self.values, target, source=True)
        # All values of a range get the decimals of the most exact one.
        results = [self._convert(value, target, index) for index, value in enumerate(self.values)]
        precisions = [self._precision(value, result, target) for value, result in zip(self.values, results)]
        numbers = [self._round(value, result, max(precisions)) for value, result in zip(self.values, results)]
        if target.code == "hand":
            numbers = [_in_hands(result) for result in results]
        texts = []
        for number in numbers:
            word = self.style.spells_output and spell_number(number, american=self.style.american)
            texts.append(word or self.style.separate(number.text))
        return self._join(texts, numbers, target, source=as_input)

    def _show_divisions(self, target: UnitOfMeasure) -> str:
        """ "5 ft 11 in": the value in the smallest unit, divided up."""
        smallest = target.divisions[-1]
        style = self.style
        results = [self._convert(value, smallest, index) for index, value in enumerate(self.values)]
        precision = max(self._precision(value, result, smallest) for value, result in zip(self.values, results))
        shown = []
        # Round in the smallest unit first, then carry upwards: "5 ft 12 in" cannot result.
        for result in results:
            rest, numerator, denominator = abs(result), 0, 1
            if style.denominator:
                whole, numerator, denominator = nearest_fraction(abs(result), style.denominator)
                rest = float(whole)
            decimals = 0 if style.denominator else max(0, precision)
            rest = math.floor(rest * 10**decimals + 0.5 + 2e-14) / 10**decimals
            parts: list[tuple[str, UnitOfMeasure, bool]] = []
            # From the smallest unit up: the remainder is in this unit, the quotient in the next.
            for larger, unit in zip((*reversed(target.divisions[:-1]), None), reversed(target.divisions)):
                ratio = round(larger.scale / unit.scale) if larger is not None else 0
                rest, count = divmod(rest, ratio) if ratio else (0.0, rest)
                text = style.separate(format_value(count, decimals))
                if numerator:
                    text = write_fraction(str(int(count)) if count else "", numerator, denominator)
                number = Number(count, text, 0, text)
                word = style.spells_output and not numerator and spell_number(number, american=style.american)
                parts.append((word or text, unit, count == 1 and not numerator))
                # Only the smallest unit has decimals or a fraction; larger ones are shown while something is left.
                decimals = numerator = 0
                if not rest:
                    break
            sign = "−" if result < 0 else ""
            shown.append(sign + _join_compound(parts[::-1], style, source=False))

        # A dash between values of several words has spaces around it.
        joined = shown[0]
        for between, text in zip(self.between, shown[1:]):
            joined += (" – " if between is DASH else self._word(between, named=False, source=False)) + text
        return joined + (self.middle if style.flipped else "")

    def _join(self, texts: Sequence[str], numbers: Sequence[Number], unit: UnitOfMeasure, *, source: bool) -> str:
        """Return values with the text between them, and their unit."""
        style = self.style
        named = style.uses_name(unit, source=source) and not style.only_values
        if unit.code == "Mach":
            return self._join_words([f"Mach {text}" for text in texts], source=source, named=named)

        # A power of ten is a word after the last number, "5 to 6 million", or a factor of each, "×10⁶".
        prefix, power, last_power = unit.currency, "", ""
        if unit.power:
            if named or style.names_power:
                last_power = f"{'-' if style.adjective and named else ' '}{unit.word_of_power}"
            else:
                power = last_power = f"×10{raise_figures(unit.power)}"
        name = "" if style.only_values else _name_of(unit, numbers[-1], style, source=source)
        gap = "" if not name or name[0] == "/" else " "
        middle = self.middle if source != style.flipped else ""
        before = self.before_units[not source]
        is_number_only = style.display in ("number", "output number only") and not source

        # "5 m × 10 m": some words between values repeat the symbol before them.
        repeats = any(
            (between.repeats_symbol and not named or between.repeats_output and source == style.flipped
             or style.abbreviation == "mos" and source) for between in self.between
        )  # fmt: skip
        # Each number with its currency and power, then the words between them and the unit.
        shown = []
        for index, text in enumerate(texts):
            is_last = index == len(texts) - 1
            text = prefix + text + (last_power if is_last else power)
            if repeats and not is_last and not (named and style.adjective) and not is_number_only:
                text += gap + name
            shown.append(text)
        joined = self._join_words(shown, source=source, named=named)
        if is_number_only:
            return joined
        if named and style.adjective:
            return f"{joined}{before or '-'}{_hyphenated(name)}{middle}"
        symbol = f" [{unit.symbol}]" if style.repeats_symbol and source and self.targets else ""
        return f"{joined}{before or gap}{name}{middle}{symbol}"

    def _join_words(self, shown: Sequence[str], *, source: bool, named: bool) -> str:
        joined = shown[0]
        for between, text in zip(self.between, shown[1:]):
            word = self._word(between, named=named, source=source)
            joined += (" – " if word == "–" and text.startswith("−") else word) + text
        return joined

    def _word(self, between: Between, *, named: bool, source: bool) -> str:
        style = self.style
        first = (source != style.flipped) if between.shows_by_side else named
        word = between.named if first else between.symbol
        hyphenates = named or between.hyphenates_symbols and style.abbreviation == "on"
        return word.replace(" ", "-") if style.adjective and hyphenates and not between.is_change else word

    def _convert(self, value: Number, target: UnitOfMeasure, index: int) -> float:
        source, amount = self.source, value.value
        if source.code == "hand":
            whole = math.trunc(amount)
            amount = whole + 2.5 * (amount - whole)  # 15.2 hands are 15 hands and 2 inches
        if source.is_inverse != target.is_inverse:
            return 1 / (amount * source.scale * target.scale) if amount else 0.0
        if index and self.between[index - 1].is_change:
            return amount * source.scale / target.scale
        if source.offset or target.offset:
            return (amount * source.scale + source.offset - target.offset) / target.scale
        return amount * (source.scale / target.scale)

    def _precision(self, value: Number, output: float, target: UnitOfMeasure) -> int:
        """Return the decimals of an output: the requested ones, or default_precision of Module:Convert."""
        if self.precision is not None:
            return self.precision
        source, amount, decimals = self.source, value.value, value.precision
        magnitude = math.floor(math.log10(abs(output)) + 1e-14) if output else 0
        # Scales with an offset have no ratio: keep at least three significant figures of the kelvins.
        if source.kind == "temperature":
            kelvin = abs(amount * source.scale + source.offset)
            minimum = 2 if kelvin < 1e-8 else 2 - math.floor(math.log10(kelvin) + 1e-14)
            return max(math.floor(decimals), minimum)
        if not amount or not output:
            return 0
        if source.code == "hand":
            whole = math.trunc(amount)
            inches = 4 * whole + round(10 * (amount - whole))
            num_zeros = len(str(inches)) - len(str(inches).rstrip("0"))
            return max(math.floor(math.log10(2 * inches / output)) - num_zeros, 0)
        # As many decimals as the ratio of the units allows (log10(2) favors one more); at least two figures.
        if target.code in ("ft", "lb") and amount == math.floor(amount):
            adjust = -math.log10(source.scale)
        elif self.compound and source.code == "in":
            adjust = math.log10(target.scale) + 2
        else:
            adjust = math.log10(abs(amount / output))
        return max(math.floor(decimals + adjust + math.log10(2)), 1 - magnitude)

    def _round(self, value: Number, result: float, precision: int) -> Number:
        style = self.style
        if style.denominator:
            whole, numerator, denominator = nearest_fraction(abs(result), style.denominator)
            sign = "−" if result < 0 else ""
            if not numerator:
                return Number(result, sign + format_value(whole, 0), 0, str(whole))
            text = write_fraction(str(whole) if whole else "", numerator, denominator)
            return Number(result, sign + text, 1, str(whole) if whole else "", (numerator, denominator))
        if self.precision is None and style.figures:
            precision, result = round_figures(result, style.figures)
        elif self.precision is None and style.round_to:
            result = math.floor(result / style.round_to + 0.5) * style.round_to
            precision = 1 if result != math.floor(result) else 0

        # Keep the value that is shown: it decides between "mile" and "miles", and is spelled in words.
        text = write_rounded(result, precision, scientific=value.is_scientific)
        digits = text.replace(",", "").lstrip("−")
        rounded = float(format_value(abs(result), max(-300, min(precision, 12))).replace(",", ""))
        return Number(-rounded if text.startswith("−") else rounded, text, precision, digits, is_scientific="×" in text)


def _in_hands(result: float) -> Number:
    """15 hands and 2 inches are written "15.2"."""
    hands, inches = divmod(math.floor(abs(result) * 4 + 0.5), 4)
    text = f"{hands}.{inches}" if inches else str(hands)
    return Number(float(text), text, 1, text)


def _name_of(unit: UnitOfMeasure, number: Number, style: Style, *, source: bool) -> str:
    """Return the symbol of the unit, or its name, singular or plural as the value requires."""
    if not style.uses_name(unit, source=source):
        return unit.symbol
    return unit.name if style.adjective or number.is_singular and not unit.power else unit.plural


def _join_compound(parts: Sequence[tuple[str, UnitOfMeasure, bool]], style: Style, *, source: bool) -> str:
    named = style.uses_name(parts[0][1], source=source)
    if not named:
        return " ".join(f"{text} {unit.symbol}" for text, unit, _ in parts)
    if style.adjective:
        return "-".join(f"{text}-{_hyphenated(unit.name)}" for text, unit, _ in parts)
    return " ".join(f"{text} {unit.name if singular else unit.plural}" for text, unit, singular in parts)


def _hyphenated(name: str) -> str:
    """ "square kilometre" -> "square-kilometre"; text in brackets keeps its spaces."""
    if name.endswith(")"):
        before, bracket, inside = name.partition(" (")
        return before.replace(" ", "-") + bracket + inside
    return name.replace(" ", "-")


def _read_call(arguments: Sequence[str], options: Mapping[str, str]) -> _Call | None:
    style = read_style(tuple(options.items()))
    parts = _split_ranges([argument.strip() for argument in arguments])
    shift = len(parts) - len(arguments)
    values: list[Number] = []
    between: list[Between] = []
    index = 0
    # Numbers and the words between them, up to the unit: "2", "by", "3", "by", "4".
    while index < len(parts) and (number := parse_number(parts[index])) is not None:
        values.append(number)
        index += 1
        if index + 1 < len(parts) and parts[index] in BETWEEN and parse_number(parts[index + 1]) is not None:
            between.append(BETWEEN[parts[index]])
            index += 1
        else:
            break
    source = find_unit(parts[index]) if values and index < len(parts) else None
    if source is None or source.divisions:
        return None
    index += 1
    compound = [(values[0], source)]
    while len(values) == 1 and index + 1 < len(parts):  # 5 ft 11 in
        number, unit = parse_number(parts[index]), find_unit(parts[index + 1])
        if number is None or unit is None or unit.kind != source.kind or unit.scale >= compound[-1][1].scale:
            break
        compound.append((number, unit))
        index += 2
    is_altitude = source.code == "Mach" and index < len(parts) and parse_number(parts[index]) is not None
    if is_altitude:  # the speed of sound there is not known here
        index += 1

    # "5 ft 11 in" is converted as one value, in its smallest unit.
    if len(compound) > 1:
        source = compound[-1][1]
        total = sum(number.value * unit.scale for number, unit in compound) / source.scale
        last = compound[-1][0]
        values = [Number(total, "", max(0, last.precision), fraction=last.fraction)]

    # The target, then the precision: either may be missing.
    code, precision = "", None
    if index < len(parts) and not _is_precision(parts[index]):
        code = parts[index]
        index += 1
    if index < len(parts) and _is_precision(parts[index]):
        precision = int(parts[index].replace("−", "-"))
        index += 1
    if not code:
        code = _default_code(source, values[0].value, compound)
    targets = [] if is_altitude or not code else find_targets(code, source) or []
    if not style.abbreviation:  # hands, and inches that come from hands, are written with their names
        names = ("hand", "in") if source.code == "hand" else ("hand",)
        targets = [dataclasses.replace(unit, is_named=True) if unit.code in names else unit for unit in targets]
    if style.american:
        source = source.in_american()
        compound = [(number, unit.in_american()) for number, unit in compound]
        targets = [target.in_american() for target in targets]

    # The remaining arguments are words whose spaces matter; splitting a range has shifted their positions.
    call = _Call(values, between, source, compound if len(compound) > 1 else [], targets, style, precision)
    _read_words(call, parts, [*[""] * max(0, shift), *arguments], index)
    return call


def _default_code(source: UnitOfMeasure, value: float, compound: Sequence[tuple[Number, UnitOfMeasure]]) -> str:
    if len(compound) > 1:
        return {"ft": "m", "yd": "m", "lb": "kg", "mi": "km", "st": "kg", "LT": "t"}.get(compound[0][1].code, "")
    return default_target(source, value)


def _read_words(call: _Call, parts: Sequence[str], unstripped: Sequence[str], index: int) -> None:
    """The words behind the units: of an adjective, before the units, and around what is converted to."""
    style = call.style

    def word(offset: int) -> str:
        return unstripped[index + offset] if index + offset < len(unstripped) else ""

    call.joints = _JOINTS.get(style.display, (" (", ")"))
    # adj=mid and adj=pre take one argument each, before those of disp=x and disp=preunit.
    if style.has_middle and word(0):
        call.middle = parts[index] if parts[index].startswith("-") else f" {parts[index]}"
        index += 1
    if style.has_word_before_unit:
        before = _spaced(word(0), end=True)
        call.before_units = ("", before) if style.flipped else (before, "")
        index += 1
    if style.display == "x":
        call.joints = (word(0), word(1)) if word(0).strip() else (" [ ", " ]")
    elif style.display == "preunit":
        first = _spaced(word(0), end=False)
        call.before_units = (first, "" if "&#32;" in word(1) else _spaced(word(1), end=False) or first)


def _spaced(text: str, *, end: bool) -> str:
    """A word before a unit, with a space before it, and one behind it where `end`; "+" is close to its number."""
    if text.strip() == "+":
        return "+ "
    if not text.strip():
        return ""
    text = text if text[0] in " -" else f" {text}"
    return f"{text} " if end and text[-1] not in " -" else text


def _is_precision(text: str) -> bool:
    return _PRECISION.fullmatch(text) is not None


def _split_ranges(parts: list[str]) -> list[str]:
    """ "5 to 10" and "5-10" in one argument are three."""
    first = parts[0] if parts else ""
    if parse_number(first) is not None:
        return parts
    words = first.split()
    if len(words) == 3 and words[1] in BETWEEN:
        return [*words, *parts[1:]]
    # "5-10", but not "5-1/2", which is a number.
    match = _WITHOUT_SPACES.fullmatch(first) if len(first) < 40 else None
    if match and parse_number(match[1]) is not None and parse_number(match[3]) is not None and "/" not in first:
        return [match[1], match[2], match[3], *parts[1:]]
    return parts
