"""Templates that show formulas of chemistry and names of nuclides."""

import re

from bert_pipeline.wikipedia.templates.elements import NUMBERS, SYMBOLS
from bert_pipeline.wikipedia.templates.figures import raise_figures
from bert_pipeline.wikipedia.templates.registry import Arguments, register

_CHARGE = re.compile(r"\d*[+\-−]")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@register("chem, chemical formula")
def _formula(arguments: Arguments) -> str | None:
    """Elements and numbers by turns, charges, and before them the mass and the atomic number."""
    values = [value for value in arguments.positional() if value]
    shown = ""
    # Numbers before the first element are the mass, raised, and the atomic number, lowered.
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


@register("co2, co2e, h2o, ch4, n2o, nox, so2, sox, o2, o3, h2, n2, nh3, hcl, naoh, h2so4, hno3, caco3, sf6")
def _named_formula(arguments: Arguments) -> str:
    """Templates that are called as the formula that they show: {{CO2}}."""
    formula = arguments.name.upper()
    for symbol in ("Na", "Cl", "Ca"):
        formula = formula.replace(symbol.upper(), symbol)
    return {"NOX": "NOx", "SOX": "SOx", "CO2E": "CO2e"}.get(formula, formula)


@register("chemf")
def _formula_of_templates(arguments: Arguments) -> str | None:
    return "".join(arguments.positional()) or None


@register("nuclide, nuclide2, simplenuclide, simplenuclide2")
def _nuclide(arguments: Arguments) -> str | None:
    """An element, its mass number, and "m" where it is in an excited state; the simple ones lack the atomic number."""
    values = [value for value in arguments.positional() if value and value.lower() != "link"]
    name = next((value for value in values if not value.isdecimal()), "")
    mass = next((value for value in values if value.isdecimal()), "")
    symbol = SYMBOLS.get(name.lower(), name)
    state = values[2] if len(values) > 2 and re.fullmatch(r"m\d?", values[2]) else ""
    number = "" if "simple" in arguments.name else str(NUMBERS.get(symbol, "")).translate(_LOWERED)
    return raise_figures(mass) + state + number + symbol if mass and symbol else symbol or None


_PARTICLES = {
    "electron": "e⁻", "positron": "e⁺", "proton": "p", "neutron": "n", "photon": "γ", "gluon": "g", "graviton": "G",
    "muon": "μ⁻", "antimuon": "μ⁺", "tau": "τ⁻", "antitau": "τ⁺", "tauon": "τ⁻", "lepton": "ℓ", "quark": "q",
    "antiquark": "q̅", "antiproton": "p̅", "antineutron": "n̅", "neutrino": "ν", "antineutrino": "ν̅",
    "electron neutrino": "νe", "muon neutrino": "νμ", "tau neutrino": "ντ", "electron antineutrino": "ν̅e",
    "muon antineutrino": "ν̅μ", "tau antineutrino": "ν̅τ", "alpha": "α", "beta": "β", "gamma": "γ", "pion": "π",
    "kaon": "K", "eta": "η", "rho": "ρ", "omega": "ω", "phi": "ϕ", "psi": "ψ", "j/psi": "J/ψ", "upsilon": "ϒ",
    "delta": "Δ", "lambda": "Λ", "sigma": "Σ", "xi": "Ξ", "w boson": "W", "z boson": "Z", "b boson": "B",
    "x boson": "X", "y boson": "Y", "higgs boson": "H", "hyperon": "Y", "nucleon": "N", "deuteron": "d", "triton": "t",
    "antielectron": "e⁺",
}  # fmt: skip
_PARTICLES |= {f"{name} quark": name[0] for name in ("up", "down", "charm", "strange", "top", "bottom")}
_PARTICLES |= {f"{name} antiquark": name[0] + "̅" for name in ("up", "down", "charm", "strange", "top", "bottom")}


@register("subatomicparticle, subatomic particle")
def _particle(arguments: Arguments) -> str | None:
    """A name, its charge behind it: {{SubatomicParticle|W boson0}}, {{SubatomicParticle|Delta++}}."""
    name = arguments.get(1).lower().replace("−", "-")
    bare = name.rstrip("+-0")
    symbol = _PARTICLES.get(bare)
    if symbol is None:
        return None
    charge = name[len(bare) :]
    return symbol.rstrip("⁺⁻") + raise_figures(charge) if charge else symbol
