"""Templates that show formulas of chemistry and names of nuclides."""

import re

from bert_pipeline.wikipedia.templates.numbers import raise_figures
from bert_pipeline.wikipedia.templates.registry import Arguments, function

_CHARGE = re.compile(r"\d*[+\-−]")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@function("chem")
def _formula(arguments: Arguments) -> str | None:
    """Elements and numbers by turns, charges, and before them the mass and the atomic number."""
    values = arguments.given()
    shown = ""
    # Numbers before the first element are the mass, raised, and the atomic number, lowered.
    if values and values[0].isdigit():
        shown = raise_figures(values.pop(0))
        if values and values[0].isdigit():
            shown += values.pop(0).translate(_LOWERED)
    for value in values:
        shown += raise_figures(value) if _CHARGE.fullmatch(value) else value
    return shown or None


_SIGNS = {r"\s": "−", r"\d": "=", r"\t": "≡", "*": "·", "<->": " ⇌ ", "->": " → ", "<-": " ← "}
_TOKEN = re.compile(
    r"\\[sdt]|\*| ?(<?->|<-) ?|\((\d*[+−-])\)|(?<=[A-Za-z0-9\])])([+−-])(?![A-Za-z0-9])|\^\{([^{}]*)\}|_\{([^{}]*)\}"
)


@function("chem2")
def _written_formula(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Chem2"""

    def show(match: re.Match[str]) -> str:
        raised = match[2] or match[3] or match[4]
        return raise_figures(raised) if raised else _SIGNS.get(match[1] or match[0], match[5] or "")

    return _TOKEN.sub(show, arguments.get(1)) or None


@function("nuclide")
def _nuclide(arguments: Arguments) -> str | None:
    """An element, its mass number, and "m" where it is in an excited state; the simple ones lack the atomic number."""
    values = [value for value in arguments.given() if value.lower() != "link"]
    name = next((value for value in values if not value.isdecimal()), "")
    mass = next((value for value in values if value.isdecimal()), "")
    symbols = arguments.wiki.tables.get("elements", {})
    symbol = symbols.get(name.lower(), name)
    state = values[2] if len(values) > 2 and re.fullmatch(r"m\d?", values[2]) else ""
    number = "" if "simple" in arguments.name or symbol not in symbols.values() else (
        str([*dict.fromkeys(symbols.values())].index(symbol) + 1).translate(_LOWERED)
    )  # fmt: skip
    return raise_figures(mass) + state + number + symbol if mass and symbol else symbol or None
