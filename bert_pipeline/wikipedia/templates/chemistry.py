"""Templates that show formulas of chemistry and names of nuclides."""

import re

from bert_pipeline.wikipedia.templates.figures import raise_figures
from bert_pipeline.wikipedia.templates.registry import Arguments, register

_CHARGE = re.compile(r"\d*[+\-−]")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@register("chem, chemical formula")
def _formula(arguments: Arguments) -> str | None:
    """Elements and numbers by turns, charges, and before them the mass and the atomic number."""
    values = [value for value in arguments.positional() if value]
    shown = ""
    if values and values[0].isdigit():
        shown = raise_figures(values.pop(0))
        if values and values[0].isdigit():
            shown += values.pop(0).translate(_LOWERED)
    for value in values:
        shown += raise_figures(value) if _CHARGE.fullmatch(value) else value
    return shown or None


_SIGNS = {r"\s": "−", r"\d": "=", r"\t": "≡", r"\q": "≣", r"\h": "η", r"\m": "μ", r"\-": "-", r"\*": "*", "\\\\": "\\",
          "*": "·", "<->": " ⇌ ", "->": " → ", "<-": " ← "}  # fmt: skip
_TOKEN = re.compile(
    r"\\([hm])\{(\d+)\}|\\[\\sdtqhm*-]|\*| ?(<?->|<-) ?|\((\d*[+−-])\)|(?<=[A-Za-z0-9\])])([+−-])(?![A-Za-z0-9])"
    r"|\^\{([^{}]*)\}|_\{([^{}]*)\}"
)


@register("chem2")
def _written_formula(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Chem2"""

    def show(match: re.Match[str]) -> str:
        if match[1]:  # hapticity, and number of metals bridged
            return f"η{raise_figures(match[2])}-" if match[1] == "h" else f"μ{match[2]}-"
        raised = match[4] or match[5] or match[6]
        if raised:
            return raise_figures(raised)
        return _SIGNS.get(match[3] or match[0], (match[7] or "").replace("-", "−"))

    return _TOKEN.sub(show, arguments.get(1)) or None


@register("chemf")
def _formula_of_templates(arguments: Arguments) -> str | None:
    return "".join(arguments.positional()) or None


@register("nuclide, simplenuclide, simplenuclide2")
def _nuclide(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value and value.lower() != "link"]
    name = next((value for value in values if not value.isdigit()), "")
    mass = next((value for value in values if value.isdigit()), "")
    return f"{name}-{mass}" if name and mass else name or None


@register("subatomicparticle, subatomic particle")
def _particle(arguments: Arguments) -> str | None:
    return {"electron": "e⁻", "positron": "e⁺", "proton": "p", "neutron": "n", "photon": "γ", "muon": "μ⁻",
            "antimuon": "μ⁺", "tau": "τ⁻", "antitau": "τ⁺", "neutrino": "ν", "alpha": "α", "proton+": "p⁺",
            "neutron0": "n⁰"}.get(arguments.get(1).lower())  # fmt: skip
