"""Units of measurement as Template:Convert knows them: codes, symbols, names, scales and default targets.

https://en.wikipedia.org/wiki/Template:Convert/list_of_units, https://en.wikipedia.org/wiki/Module:Convert/data
"""

import dataclasses
import functools
import re

from bert_pipeline.wikipedia.templates.unit_table import (
    ALIASES,
    DEFAULTS,
    DEFAULTS_BY_SIZE,
    MULTIPLES,
    PER_KINDS,
    UNITS,
)

_PREFIXES = {
    "Y": (24, "yotta"), "Z": (21, "zetta"), "E": (18, "exa"), "P": (15, "peta"), "T": (12, "tera"), "G": (9, "giga"),
    "M": (6, "mega"), "k": (3, "kilo"), "h": (2, "hecto"), "da": (1, "deca"), "d": (-1, "deci"), "c": (-2, "centi"),
    "m": (-3, "milli"), "μ": (-6, "micro"), "µ": (-6, "micro"), "u": (-6, "micro"), "n": (-9, "nano"),
    "p": (-12, "pico"), "f": (-15, "femto"), "a": (-18, "atto"),
}  # fmt: skip
_POWERS = {"3": "thousand", "6": "million", "9": "billion", "12": "trillion", "15": "quadrillion"}
_AMERICAN = (
    ("metre", "meter"), ("litre", "liter"), ("deca", "deka"), ("US ", "U.S. "), ("US\u00a0", "U.S. "),
    ("mpg‑US", "mpg‑U.S."),
)  # fmt: skip
_IN_POWERS = re.compile(r"e(3|6|9|12|15)(?=\D)(.+)")
_CURRENCIES = frozenset("$£€₹¥")


@dataclasses.dataclass(frozen=True, slots=True)
class UnitOfMeasure:
    """One unit; a value in it times `scale` (plus `offset`, for temperatures) is the value in the base unit."""

    code: str
    kind: str
    scale: float
    symbol: str
    name: str
    plural: str
    default: str
    """Code of the unit converted to where the call names none; several parted by spaces. See `default_target`."""
    offset: float = 0.0
    is_inverse: bool = False
    """The base unit is one divided by the value times `scale`: litres per 100 km, unlike miles per gallon."""
    is_named: bool = False
    """Written with its name even where symbols are asked for: "acres"."""
    is_signed: bool = False
    """Written with its symbol where nothing is asked for: "°C"."""
    power: str = ""
    """Of "million kilometres" the exponent, "6"."""
    parts: tuple["UnitOfMeasure | None", "UnitOfMeasure"] | None = None
    """Of "kilometres per hour" the unit above and the one below."""
    currency: str = ""
    """Written before the number: "$10 per acre"."""
    divisions: tuple["UnitOfMeasure", ...] = ()
    """Of "feet and inches" the units, the larger ones first."""

    def in_american(self) -> "UnitOfMeasure":
        """Return the unit as spelled with the option sp=us."""
        name, plural, symbol = self.name, self.plural, self.symbol
        if self.kind == "mass" and name == "tonne":
            name, plural = "metric ton", "metric tons"
        for british, american in _AMERICAN:
            name, plural = name.replace(british, american), plural.replace(british, american)
            symbol = symbol.replace(british, american)
        divisions = tuple(unit.in_american() for unit in self.divisions)
        return dataclasses.replace(self, name=name, plural=plural, symbol=symbol, divisions=divisions)

    @property
    def word_of_power(self) -> str:
        """ "million" """
        return _POWERS.get(self.power, "")


def _plural(name: str) -> str:
    head, per, tail = name.partition(" per ")
    return f"{head}s{per}{tail}"


def _read_units(kind: str, rows: str) -> dict[str, UnitOfMeasure]:
    """Parse rows of "codes; scale; symbol; name[/plural]; default[; offset]"; a "~" in a code is a space.

    A "~" before the symbol means `is_named`, "!" `is_signed`, "-" before the scale for `is_inverse`.
    """
    units = {}
    for row in rows.strip().splitlines():
        codes, scale, symbol, names, default, *rest = (field.strip() for field in row.split(";"))
        name, _, plural = names.partition("/")
        name = name or symbol.lstrip("~")
        # The codes of a row are synonyms: the first is the unit's own.
        for code in codes.split():
            code = code.replace("~", " ")
            units[code] = UnitOfMeasure(
                code=codes.split()[0].replace("~", " "),
                kind=kind,
                scale=abs(float(scale)),
                symbol=symbol.lstrip("~!"),
                name=name,
                plural=plural or _plural(name),
                default=default.replace("~", " "),
                offset=float(rest[0]) if rest else 0.0,
                is_inverse=scale.startswith("-"),
                is_named=symbol.startswith("~"),
                is_signed=symbol.startswith("!"),
            )
    return units


_TABLE = {code: unit for kind, rows in UNITS.items() for code, unit in _read_units(kind, rows).items()}
_PREFIXABLE = {"m": 1, "m2": 2, "m3": 3, "g": 1, "L": 1, "l": 1, "t": 1, "W": 1, "Pa": 1, "bar": 1, "J": 1, "N": 1,
               "Hz": 1, "s": 1, "eV": 1, "pc": 1, "ly": 1, "cal": 1, "ton-TNT": 1, "Wh": 1, "W.h": 1, "V": 1,
               "VA": 1, "Sv": 1, "Gy": 1}  # fmt: skip
"""Units that take any prefix -> the power to which the prefix is raised."""


@functools.lru_cache(maxsize=1024)
def find_unit(code: str) -> UnitOfMeasure | None:
    """Return the unit with this code; prefixes ("MW"), powers of ten ("e6km2") and ratios ("kg/ha") are understood."""
    code = " ".join(code.replace("_", " ").replace("\u00a0", " ").split())
    code = ALIASES.get(code, code)
    unit = _TABLE.get(code)
    if unit is not None:
        return unit
    # A code of the table is never taken apart.
    if code in MULTIPLES:
        divisions = tuple(_TABLE[part] for part in MULTIPLES[code].split())
        return dataclasses.replace(divisions[0], code=code, divisions=divisions)
    return _prefixed(code) or _in_powers(code) or _ratio(code)


def _prefixed(code: str) -> UnitOfMeasure | None:
    # "da" is the only prefix of two letters.
    for length in (2, 1):
        prefix, base = code[:length], code[length:]
        if prefix in _PREFIXES and base in _PREFIXABLE:
            exponent, word = _PREFIXES[prefix]
            root = _TABLE[base]
            # Areas and volumes have the prefix inside: "square kilometre".
            place = root.name.find("metre") if base in ("m2", "m3") else 0
            return dataclasses.replace(
                root,
                code=code,
                scale=root.scale * 10.0 ** (exponent * _PREFIXABLE[base]),
                symbol=prefix.replace("u", "μ") + root.symbol,
                name=root.name[:place] + word + root.name[place:],
                plural=root.plural[:place] + word + root.plural[place:],
                default=DEFAULTS.get(code, root.default),
            )
    return None


def _in_powers(code: str) -> UnitOfMeasure | None:
    match = _IN_POWERS.fullmatch(code)
    root = find_unit(match[2]) if match else None
    if match is None or root is None or root.power or root.is_signed or root.divisions:
        return None
    default = DEFAULTS.get(code) or (f"e{match[1]}{root.default.split()[0]}" if root.default else "")
    scale = root.scale * 10.0 ** int(match[1])
    return dataclasses.replace(root, code=code, scale=scale, power=match[1], default=default)


def _ratio(code: str) -> UnitOfMeasure | None:
    """ "kg/ha": of two units; "/ha": of a number; "$/ha": of money."""
    above, slash, below = code.rpartition("/")
    # Above the slash may be a unit, a currency or nothing.
    lower = find_unit(below) if slash else None
    currency = above if above in _CURRENCIES else ""
    upper = find_unit(above) if above and not currency else None
    if lower is None or above and upper is None and not currency or lower.power or lower.divisions:
        return None

    # Some ratios are a kind of their own: a length by a time is a speed.
    kind = f"{upper.kind if upper else currency}/{lower.kind}"
    kind, factor = PER_KINDS.get(kind, (kind, 1.0))
    first = upper.name if upper else ""
    several = upper.plural if upper else ""
    default = DEFAULTS.get(code) or _ratio_of_defaults(above if currency else upper, lower)
    return UnitOfMeasure(
        code=code,
        kind=kind,
        scale=(upper.scale if upper else 1.0) / lower.scale * factor,
        symbol=f"{upper.symbol if upper else ''}/{lower.symbol}",
        name=f"{first} per {lower.name}".strip(),
        plural=f"{several} per {lower.name}".strip(),
        default=default,
        power=upper.power if upper else "",
        parts=(upper, lower),
        currency=currency,
    )


def _ratio_of_defaults(upper: UnitOfMeasure | str | None, lower: UnitOfMeasure) -> str:
    above = upper if isinstance(upper, str) or upper is None else default_target(upper, 1.0).split()[0:1]
    below = lower.code if lower.kind == "time" else (default_target(lower, 1.0).split() or [""])[0]
    first = above[0] if isinstance(above, list) and above else above if isinstance(above, str) else ""
    below = "ft" if below == "ftin" else below
    return f"{'ft' if first == 'ftin' else first}/{below}" if below and (first or upper is None) else ""


def default_target(unit: UnitOfMeasure, value: float) -> str:
    """Return the code of the unit that a value is converted to by default; "" if there is none."""
    by_size = DEFAULTS_BY_SIZE.get(unit.code)
    if by_size is not None:
        limit, small, large = by_size
        return small if 0 < value < limit else large
    return unit.default


def find_targets(code: str, source: UnitOfMeasure) -> list[UnitOfMeasure] | None:
    """Return the units named by "m", "km mi", "ft+in"; None if one is unknown or of another kind than `source`."""
    whole = find_unit(code)
    codes = [code] if whole is not None else code.split("+") if "+" in code else code.split()
    found = []
    for part in codes:
        unit = find_unit(part)
        if unit is None or not _are_convertible(unit, source):
            return None
        found.append(unit)
    return found


def _are_convertible(one: UnitOfMeasure, other: UnitOfMeasure) -> bool:
    return one.kind == other.kind or {one.kind, other.kind} == {"torque", "energy"}
