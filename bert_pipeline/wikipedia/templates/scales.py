"""Templates of quantities that are measured by an example: masses of stars, magnitudes of earthquakes, teeth."""

from bert_pipeline.wikipedia.templates.registry import Arguments, Renderer, register

_BODIES = {"solar": "☉", "jupiter": "J", "earth": "🜨", "lunar": "☾"}
_SYMBOLS = {"mass": "M", "radius": "R", "luminosity": "L"}


def _measured_by(symbol: str) -> Renderer:
    def render(arguments: Arguments) -> str:
        return f"{arguments.get(1)} {symbol}".strip()

    return render


for _body, _sign in _BODIES.items():
    for _kind, _letter in _SYMBOLS.items():
        register(f"{_body} {_kind}")(_measured_by(_letter + _sign))


_TONNAGES = {
    "grt": "gross register tons", "nrt": "net register tons", "gt": "gross tonnage", "nt": "net tonnage",
    "dwt": "tons deadweight", "ldt": "light displacement tonnage",
}  # fmt: skip


@register(", ".join(_TONNAGES))
def _tonnage(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:GRT: the unit in full where it comes first."""
    number = arguments.get(1)
    if not number:
        return None
    if number.isdecimal():
        number = f"{int(number):,}"
    unit = arguments.name.upper()
    return f"{number} {_TONNAGES[arguments.name]} ({unit})" if arguments.get("first") else f"{number} {unit}"


@register("dentalformula, dental formula")
def _dental_formula(arguments: Arguments) -> str | None:
    """Teeth of each kind in the upper jaw over those in the lower."""
    return "/".join(filter(None, (arguments.get("upper"), arguments.get("lower")))) or None


@register("m, earthquake magnitude")
def _magnitude(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Earthquake_magnitude: {{M|w|7.2}}; other wikis mean other things."""
    if not arguments.is_english:
        return None
    scale, number = arguments.get(1), arguments.get(2)
    letter = "m" if scale[:1].lower() == "b" else "M"
    return f"{letter}{'L' if scale == 'l' else scale} {number}".strip()
