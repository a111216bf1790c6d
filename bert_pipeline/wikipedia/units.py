"""Units of measurement as Template:Convert knows them: symbols, names, scales and default targets.

https://en.wikipedia.org/wiki/Template:Convert/list_of_units, https://en.wikipedia.org/wiki/Module:Convert/data
"""

import dataclasses
import functools


@dataclasses.dataclass(frozen=True, slots=True)
class UnitOfMeasure:
    """One unit; a value in it times `scale` (plus `offset`, for temperatures) is the value in the base unit."""

    kind: str
    scale: float
    symbol: str
    name: str
    plural: str
    default: str
    """Code of the unit converted to where the call names none; several parted by spaces."""
    offset: float = 0.0
    is_precise_for_integers: bool = False
    """Module:Convert's "integer_more_precision"."""
    is_inverse: bool = False
    """The base unit is `scale` divided by the value: litres per 100 km beside miles per gallon."""
    symbol_in_words: str = ""
    """"million km", where the symbol is written with a power of ten."""


def _units(kind: str, rows: str) -> dict[str, UnitOfMeasure]:
    """Rows of "codes; scale; symbol; name; plural; default[; offset]"; plural "+" adds an s."""
    units = {}
    for row in rows.strip().splitlines():
        codes, scale, symbol, name, plural, default, *rest = (field.strip() for field in row.split(";"))
        unit = UnitOfMeasure(
            kind=kind,
            scale=float(scale),
            symbol=symbol,
            name=name,
            plural=f"{name}s" if plural == "+" else plural or name,
            default=default,
            offset=float(rest[0]) if rest else 0.0,
            is_precise_for_integers=codes.split()[0] in ("ft", "lb"),
            is_inverse=codes.startswith("L/100"),
        )
        for code in codes.split():
            units[code.replace("~", " ")] = unit
    return units


_PREFIXES = {
    "n": (1e-9, "nano"), "μ": (1e-6, "micro"), "µ": (1e-6, "micro"), "u": (1e-6, "micro"), "m": (1e-3, "milli"),
    "c": (1e-2, "centi"), "d": (1e-1, "deci"), "k": (1e3, "kilo"), "M": (1e6, "mega"), "G": (1e9, "giga"),
    "T": (1e12, "tera"), "h": (1e2, "hecto"),
}  # fmt: skip

_TABLE: dict[str, UnitOfMeasure] = {
    **_units(
        "length",
        """
        m metre metres; 1; m; metre; +; ft
        km kilometre kilometres kilometer; 1000; km; kilometre; +; mi
        cm; 0.01; cm; centimetre; +; in
        mm; 0.001; mm; millimetre; +; in
        ft foot feet; 0.3048; ft; foot; feet; m
        in inch inches; 0.0254; in; inch; inches; mm
        yd; 0.9144; yd; yard; +; m
        mi mile miles; 1609.344; mi; mile; +; km
        smi statmi; 1609.344; mi; statute mile; +; km
        nmi; 1852; nmi; nautical mile; +; km mi
        fathom; 1.8288; fathom; fathom; +; ft m
        furlong; 201.168; furlong; furlong; +; mi m
        chain ch; 20.1168; ch; chain; +; ft m
        rod; 5.0292; rod; rod; +; ft m
        league; 4828.032; league; league; +; km
        hand hands; 0.1016; h; hand; +; in cm
        ly; 9.4607304725808e15; ly; light-year; +; km
        pc; 3.0856775814913673e16; pc; parsec; +; ly
        AU au; 149597870700; AU; astronomical unit; +; km mi
        Å angstrom; 1e-10; Å; ångström; +; nm
        mil thou; 0.0000254; thou; thou; ; mm
        """,
    ),
    **_units(
        "area",
        """
        m2 sqm; 1; m²; square metre; +; sqft
        km2 sqkm; 1e6; km²; square kilometre; +; sqmi
        cm2; 1e-4; cm²; square centimetre; +; sqin
        mm2; 1e-6; mm²; square millimetre; +; sqin
        ha hectare; 1e4; ha; hectare; +; acre
        acre acres; 4046.8564224; acres; acre; +; ha
        sqmi mi2; 2589988.110336; sq mi; square mile; +; km2
        sqft ft2; 0.09290304; sq ft; square foot; square feet; m2
        sqin in2; 0.00064516; sq in; square inch; square inches; cm2
        sqyd; 0.83612736; sq yd; square yard; +; m2
        dunam; 1000; dunams; dunam; +; km2 sqmi
        """,
    ),
    **_units(
        "volume",
        """
        m3; 1; m³; cubic metre; +; cuft
        km3; 1e9; km³; cubic kilometre; +; cumi
        cm3 cc; 1e-6; cm³; cubic centimetre; +; cuin
        L l litre liter; 0.001; L; litre; +; impgal usgal
        ML Ml; 1000; ML; megalitre; +; e6impgal
        mL ml; 1e-6; mL; millilitre; +; impfloz usfloz
        cL; 1e-5; cL; centilitre; +; impfloz usfloz
        hL; 0.1; hL; hectolitre; +; impgal usgal
        cuft ft3; 0.028316846592; cu ft; cubic foot; cubic feet; m3
        cuin in3; 0.000016387064; cu in; cubic inch; cubic inches; cm3
        cuyd; 0.764554857984; cu yd; cubic yard; +; m3
        cumi mi3; 4168181825.44058; cu mi; cubic mile; +; km3
        usgal USgal U.S.gal; 0.003785411784; US gal; US gallon; +; L impgal
        impgal; 0.00454609; imp gal; imperial gallon; +; L usgal
        usfloz; 0.0000295735295625; US fl oz; US fluid ounce; +; mL
        impfloz; 0.0000284130625; imp fl oz; imperial fluid ounce; +; mL
        usqt; 0.000946352946; US qt; US quart; +; L
        uspt; 0.000473176473; US pt; US pint; +; L
        imppt; 0.00056826125; imp pt; imperial pint; +; L
        oilbbl bbl; 0.158987294928; bbl; barrel; +; m3
        usbbl; 0.119240471196; US bbl; US barrel; +; L
        acre.ft acre-ft acre·ft; 1233.48183754752; acre⋅ft; acre-foot; acre-feet; m3
        """,
    ),
    **_units(
        "mass",
        """
        kg; 1; kg; kilogram; +; lb
        g; 0.001; g; gram; +; oz
        mg; 1e-6; mg; milligram; +; gr
        t tonne tonnes; 1000; t; tonne; +; LT ST
        MT metric~ton; 1000; t; metric ton; +; LT ST
        lb lbs; 0.45359237; lb; pound; +; kg
        oz; 0.028349523125; oz; ounce; +; g
        st; 6.35029318; st; stone; stone; lb kg
        LT long~ton; 1016.0469088; long tons; long ton; +; t
        ST; 907.18474; short tons; short ton; +; t
        gr; 0.00006479891; gr; grain; +; g
        ozt; 0.0311034768; ozt; troy ounce; +; oz g
        carat; 0.0002; carats; carat; +; g
        """,
    ),
    **_units(
        "speed",
        """
        km/h kph; 0.277777777777778; km/h; kilometre per hour; kilometres per hour; mph
        mph mi/h; 0.44704; mph; mile per hour; miles per hour; km/h
        m/s; 1; m/s; metre per second; metres per second; ft/s
        km/s; 1000; km/s; kilometre per second; kilometres per second; mi/s
        mi/s; 1609.344; mi/s; mile per second; miles per second; km/s
        ft/s; 0.3048; ft/s; foot per second; feet per second; m/s
        ft/min; 0.00508; ft/min; foot per minute; feet per minute; m/s
        kn knot knots; 0.514444444444444; kn; knot; +; km/h mph
        """,
    ),
    **_units(
        "temperature",
        """
        C °C; 1; °C; degree Celsius; degrees Celsius; F; 273.15
        F °F; 0.555555555555556; °F; degree Fahrenheit; degrees Fahrenheit; C; 255.372222222222
        K; 1; K; kelvin; +; C F; 0
        """,
    ),
    **_units(
        "temperature change",
        """
        C-change; 1; °C; degree Celsius change; degrees Celsius change; F-change
        F-change; 0.555555555555556; °F; degree Fahrenheit change; degrees Fahrenheit change; C-change
        """,
    ),
    **_units(
        "gradient",
        """
        m/km; 0.001; m/km; metre per kilometre; metres per kilometre; ft/mi
        ft/mi; 0.000189393939393939; ft/mi; foot per mile; feet per mile; m/km
        """,
    ),
    **_units(
        "power",
        """
        W; 1; W; watt; +; hp
        hp; 745.69987158227; hp; horsepower; horsepower; kW
        bhp; 745.69987158227; bhp; brake horsepower; brake horsepower; kW
        shp; 745.69987158227; shp; shaft horsepower; shaft horsepower; kW
        ihp; 745.69987158227; ihp; indicated horsepower; indicated horsepower; kW
        PS; 735.49875; PS; metric horsepower; metric horsepower; kW
        """,
    ),
    **_units(
        "pressure",
        """
        Pa; 1; Pa; pascal; +; psi
        psi; 6894.75729316836; psi; pound per square inch; pounds per square inch; kPa
        bar; 1e5; bar; bar; +; kPa
        mbar; 100; mbar; millibar; +; hPa
        atm; 101325; atm; standard atmosphere; +; kPa
        inHg; 3386.388640341; inHg; inch of mercury; inches of mercury; kPa
        mmHg; 133.322387415; mmHg; millimetre of mercury; millimetres of mercury; kPa
        """,
    ),
    **_units(
        "energy",
        """
        J; 1; J; joule; +; cal
        cal; 4.184; cal; calorie; +; J
        kcal Cal; 4184; kcal; kilocalorie; +; kJ
        kWh; 3.6e6; kW⋅h; kilowatt-hour; +; MJ
        BTU; 1055.05585262; BTU; British thermal unit; +; kJ
        ftlbf ftlb; 1.3558179483314; ft⋅lbf; foot-pound force; foot-pounds force; J
        """,
    ),
    **_units(
        "torque",
        """
        Nm N.m N·m; 1; N⋅m; newton-metre; +; lbft
        lbft lb.ft; 1.3558179483314; lb⋅ft; pound-foot; pound-feet; Nm
        """,
    ),
    **_units(
        "force",
        """
        N; 1; N; newton; +; lbf
        lbf; 4.4482216152605; lbf; pound-force; pounds-force; N
        kgf; 9.80665; kgf; kilogram-force; kilograms-force; N
        """,
    ),
    **_units(
        "flow",
        """
        m3/s; 1; m³/s; cubic metre per second; cubic metres per second; cuft/s
        cuft/s ft3/s; 0.028316846592; cu ft/s; cubic foot per second; cubic feet per second; m3/s
        m3/d; 1.15740740740741e-5; m³/d; cubic metre per day; cubic metres per day; cuft/d
        cuft/d; 3.27741280000000e-7; cu ft/d; cubic foot per day; cubic feet per day; m3/d
        oilbbl/d; 1.84013072833333e-6; bbl/d; barrel per day; barrels per day; m3/d
        L/s; 0.001; L/s; litre per second; litres per second; cuft/s
        USgal/min usgal/min; 6.30901964e-5; US gal/min; US gallon per minute; US gallons per minute; m3/s
        USgal/d usgal/d; 4.38126364e-8; US gal/d; US gallon per day; US gallons per day; L/d
        L/d; 1.15740740740741e-8; L/d; litre per day; litres per day; USgal/d
        """,
    ),
    **_units(
        "population density",
        """
        /km2 PD/km2; 1e-6; /km²; per square kilometre; per square kilometre; /sqmi
        /sqmi PD/sqmi; 3.86102158542446e-7; /sq mi; per square mile; per square mile; /km2
        /ha; 1e-4; /ha; per hectare; per hectare; /acre
        /acre; 0.000247105381467165; /acre; per acre; per acre; /ha
        """,
    ),
    **_units(
        "density",
        """
        kg/m3; 1; kg/m³; kilogram per cubic metre; kilograms per cubic metre; lb/cuyd
        g/cm3; 1000; g/cm³; gram per cubic centimetre; grams per cubic centimetre; lb/cuin
        lb/cuft; 16.0184633739601; lb/cu ft; pound per cubic foot; pounds per cubic foot; kg/m3
        lb/cuin; 27679.9047102031; lb/cu in; pound per cubic inch; pounds per cubic inch; g/cm3
        lb/cuyd; 0.593276421257783; lb/cu yd; pound per cubic yard; pounds per cubic yard; kg/m3
        """,
    ),
    **_units(
        "fuel",
        """
        km/L; 1e6; km/L; kilometre per litre; kilometres per litre; mpgus
        mpgus mpg-us mpgUS; 425143.707430272; mpg‑US; mile per US gallon; miles per US gallon; mpgimp
        L/100~km L/100km; 1e8; L/100 km; litre per 100 kilometres; litres per 100 kilometres; mpgimp mpgus
        mpgimp mpg-imp; 354006.189934647; mpg‑imp; mile per imperial gallon; miles per imperial gallon; mpgus
        """,
    ),
}  # fmt: skip

_RAISED = {"3": "³", "6": "⁶", "9": "⁹", "12": "¹²"}

_COUNTED = {"oilbbl": "bbl", "oilbbl/d": "bbl/d", "cuft": "", "cuft/d": "", "USgal": "", "USgal/d": "", "impgal": ""}
"""Units counted in thousands and millions; a symbol where these have prefixes of their own, as barrels have."""
_COUNTS = {"k": ("thousand", 1e3, "k", ""), "M": ("million", 1e6, "MM", "e3"), "B": ("billion", 1e9, "G", "e6"),
           "G": ("billion", 1e9, "G", "e6"), "T": ("trillion", 1e12, "T", "e9")}  # fmt: skip
"""Prefix -> word, factor, prefix of the symbol, and that of the unit converted to by default."""

_PREFIXED = {"m": "ft", "W": "hp", "Pa": "psi", "J": "cal", "N": "lbf", "g": "oz", "t": "LT ST"}
"""Base units that take any prefix -> what prefixed ones convert to by default."""


@functools.lru_cache(maxsize=1024)
def find_unit(code: str) -> UnitOfMeasure | None:
    """The unit with this code; prefixes ("MW") and powers of ten ("e6km2") are understood. None when unknown."""
    unit = _TABLE.get(code)
    if unit is not None:
        return unit
    base, prefix = code[1:], _PREFIXES.get(code[:1])
    if base in _COUNTED and code[:1] in _COUNTS:
        word, factor, sign, power = _COUNTS[code[:1]]
        root, symbol = _TABLE[base], _COUNTED[base]
        return dataclasses.replace(
            root,
            scale=root.scale * factor,
            symbol=sign + symbol if symbol else f"{word} {root.symbol}",
            name=f"{word} {root.plural}",
            plural=f"{word} {root.plural}",
            default=power + root.default.split()[0],
        )
    if prefix is not None and base in _PREFIXED:
        root = _TABLE[base]
        return dataclasses.replace(
            root,
            scale=root.scale * prefix[0],
            symbol=code[:1].replace("u", "μ") + root.symbol,
            name=prefix[1] + root.name,
            plural=prefix[1] + root.plural,
            default=_PREFIXED[base],
        )
    if code[:1] == "e" and code[1:2].isdigit():
        digits = code[1:3] if code[2:3].isdigit() else code[1:2]
        words = {"3": "thousand", "6": "million", "9": "billion", "12": "trillion"}.get(digits)
        root_unit = find_unit(code[1 + len(digits) :])
        if words and root_unit is not None:
            return dataclasses.replace(
                root_unit,
                scale=root_unit.scale * 10.0 ** int(digits),
                symbol=f"×10{_RAISED[digits]} {root_unit.symbol}",
                symbol_in_words=f"{words} {root_unit.symbol}",
                name=f"{words} {root_unit.plural}",
                plural=f"{words} {root_unit.plural}",
                default=" ".join(f"e{digits}{default}" for default in root_unit.default.split()[:1]),
            )
    return None
