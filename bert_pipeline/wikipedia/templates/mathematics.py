"""Templates of mathematics: theorems and proofs, numbers of equations, sequences, numbers in words."""

from bert_pipeline.wikipedia.placeholders import FORMULA, PARAGRAPH_BREAK
from bert_pipeline.wikipedia.templates.figures import format_value, parse_number, round_figures
from bert_pipeline.wikipedia.templates.number_words import spell_number
from bert_pipeline.wikipedia.templates.registry import Arguments, register, shows

shows("tmath, cdd, dynkin, dynkin2", FORMULA)  # TeX in a template, and diagrams that stand for words
shows("numblk, equation box 1", PARAGRAPH_BREAK)  # a formula that is set off, with its number


@register("math theorem, theorem")
def _theorem(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Math_theorem: a block of its own, headed by name and note."""
    statement = arguments.get("math_statement", "math statement", 1)
    if not statement:
        return None
    note = f" ({arguments.get('note')})" if arguments.get("note") else ""
    return f"{PARAGRAPH_BREAK}{arguments.get('name') or 'Theorem'}{note} — {statement}{PARAGRAPH_BREAK}"


@register("math proof, proof")
def _proof(arguments: Arguments) -> str | None:
    """Drop the title, which is a heading above the proof."""
    text = arguments.get("proof", 1)
    return f"{PARAGRAPH_BREAK}{text}{PARAGRAPH_BREAK}" if text else None


@register("equationnote, equation note, eqnref, eqnnote")
def _number_of_equation(arguments: Arguments) -> str | None:
    return arguments.get(2, 1) or None


@register("oeis")
def _sequence(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:OEIS"""
    number = arguments.get("id", 1)
    return f"(sequence {arguments.get('name', 2) or number} in the OEIS)" if number else None


@register("oeis2c, oeis link")
def _number_of_sequence(arguments: Arguments) -> str | None:
    number = arguments.get("id", 1)
    return (f"OEIS: {number}" if arguments.name == "oeis2c" else number) if number else None


@register("rnd, round")
def _rounded(arguments: Arguments) -> str | None:
    number, decimals = parse_number(arguments.get(1)), arguments.get(2) or "0"
    if number is None or not decimals.removeprefix("-").isdecimal() or len(decimals) > 2:
        return None
    return format_value(number.value, int(decimals))


@register("winpct, winning percentage, winning pct, win pct")
def _share_of_wins(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Winning_percentage: wins, losses and ties, a tie as half a win."""
    numbers = [parse_number(arguments.get(place) or "0") for place in (1, 2, 3)]
    wins, losses, ties = [0.0 if number is None else number.value for number in numbers]
    games = wins + losses + ties
    if not arguments.get(2) or not 0 < games < 10**6:
        return None
    return f"{(wins + ties / 2) / games:.3f}".removeprefix("0")


@register("sigfig, significant figures")
def _significant_figures(arguments: Arguments) -> str | None:
    number, figures = parse_number(arguments.get(1)), arguments.get(2)
    if number is None or not figures.isdecimal() or not 0 < int(figures) < 15:
        return None
    precision, value = round_figures(number.value, int(figures))
    return format_value(value, precision)


@register("spellnum, spell number, spell num, numtext")
def _number_in_words(arguments: Arguments) -> str | None:
    number = parse_number(arguments.get(1))
    return spell_number(number, american=False) if number is not None else None
