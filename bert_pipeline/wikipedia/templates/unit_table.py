"""The table of units behind `units`.

https://en.wikipedia.org/wiki/Template:Convert/list_of_units, https://en.wikipedia.org/wiki/Module:Convert/data
"""

UNITS = {
    "length": """
        m; 1; m; metre; ft
        ft; 0.3048; ft; foot/feet; m
        in; 0.0254; in; inch/inches; mm
        yd; 0.9144; yd; yard; m
        mi; 1609.344; mi; mile; km
        smi; 1609.344; mi; statute mile; km
        nmi; 1852; nmi; nautical mile; km mi
        fathom; 1.8288; ~fathom; ; ft m
        furlong; 201.168; ~furlong; ; ft m
        chain; 20.1168; ~chain; ; ft m
        rod; 5.0292; ~rod; ; ft m
        league; 4828.032; ~league; ; km
        hand; 0.1016; h; hand; in cm
        ly; 9.4607304725808e15; ly; light-year; AU
        pc; 3.0856775814913673e16; pc; parsec; ly
        AU; 149597870700; AU; astronomical unit; km mi
        Å; 1e-10; Å; ångström; in
        mil; 0.0000254; mil; ; mm
        thou; 0.0000254; thou; thou/thou; mm
        R-earth; 6371000; R🜨; Earth radius/Earth radii; km
        verst; 1066.8; ~verst; ; km mi
        li; 500; ~li; li/li; mi
        vara; 0.8466667; ~vara; ; ft m
        arpent-length; 58.5; ~arpent; ; ft m
        Hz; -3.3356409519815204e-9; Hz; hertz/hertz; m
        rpm; -5.559401586635867e-11; rpm; revolution per minute; Hz
    """,
    "area": """
        m2; 1; m²; square metre; sqft
        ha; 1e4; ha; hectare; acre
        a; 100; a; are; sqft
        daa; 1000; daa; decare; km2 sqmi
        acre; 4046.8564224; ~acre; ; ha
        sqmi; 2589988.110336; sq mi; square mile; km2
        sqft; 0.09290304; sq ft; square foot/square feet; m2
        sqin; 0.00064516; sq in; square inch/square inches; cm2
        sqyd; 0.83612736; sq yd; square yard; m2
        sqnmi nmi2; 3429904; sq nmi; square nautical mile; km2 sqmi
        dunam; 1000; ~dunam; ; km2 sqmi
        dunum; 1000; ~dunum; ; km2 sqmi
        donum; 1000; ~donum; ; km2 sqmi
        feddan; 4200; ~feddan; ; m2 sqft
        rood; 1011.7141056; ~rood; ; sqft m2
        arpent; 3418.89; ~arpent; ; ha
        sqverst; 1138062.24; ~square verst; ; km2 sqmi
        sqperch perches; 25.29285264; ~perch; perch/perches; m2
        rai; 1600; ~rai; rai/rai; m2
        tsubo; 3.305785123966942; ~tsubo; tsubo/tsubo; m2
        stremma; 1000; ~stremma; stremma/stremmata; ha acre
        township; 93239571.972; ~township; ; ha acre
    """,
    "volume": """
        m3; 1; m³; cubic metre; cuft
        cc; 1e-6; cc; cubic centimetre; cuin
        L; 0.001; L; litre; impgal usgal
        l; 0.001; l; litre; impgal usgal
        cuft; 0.028316846592; cu ft; cubic foot/cubic feet; m3
        cuin; 0.000016387064; cu in; cubic inch/cubic inches; cm3
        cuyd; 0.764554857984; cu yd; cubic yard; m3
        cumi; 4168181825.44058; cu mi; cubic mile; km3
        usgal; 0.003785411784; US gal; US gallon; L impgal
        impgal; 0.00454609; imp gal; imperial gallon; L usgal
        usfloz; 0.0000295735295625; US fl oz; US fluid ounce; mL
        impfloz; 0.0000284130625; imp fl oz; imperial fluid ounce; mL usfloz
        usqt; 0.000946352946; US qt; US quart; L
        impqt; 0.0011365225; imp qt; imperial quart; L
        uspt; 0.000473176473; US pt; US pint; L
        imppt; 0.00056826125; imp pt; imperial pint; L
        USdrygal; 0.00440488377086; US dry gal; US dry gallon; L
        USbu; 0.03523907016688; US bu; US bushel; impbu
        impbu; 0.03636872; imp bu; imperial bushel; impgal
        oilbbl; 0.158987294928; bbl; barrel; m3
        koilbbl; 158.987294928; kbbl; thousand barrels/thousand barrels; e3m3
        Moilbbl; 158987.294928; Mbbl; million barrels/million barrels; e6m3
        Goilbbl; 158987294.928; Gbbl; billion barrels/billion barrels; e9m3
        usbbl; 0.119240471196; US bbl; US barrel; L
        impbbl; 0.16365924; imp bbl; imperial barrel; L
        acre.ft; 1233.48183754752; acre⋅ft; acre-foot/acre-feet; m3
        MUSgal; 3785.411784; million US gal; million US gallons/million US gallons; ML
        Mimpgal; 4546.09; million imp gal; million imperial gallons/million imperial gallons; ML
        kcuft; 28.316846592; thousand cu ft; thousand cubic feet/thousand cubic feet; m3
        Mcuft; 28316.846592; million cu ft; million cubic feet/million cubic feet; e3m3
        Bcuft Gcuft; 28316846.592; billion cu ft; billion cubic feet/billion cubic feet; e6m3
        Tcuft; 28316846592; trillion cu ft; trillion cubic feet/trillion cubic feet; e9m3
        cord; 3.624556363776; ~cord; ; m3
        board~feet board~foot; 0.002359737216; board foot; board foot/board feet; m3
    """,
    "mass": """
        g; 0.001; g; gram; oz
        t; 1000; t; tonne; LT ST
        MT; 1000; t; metric ton; LT ST
        lb; 0.45359237; lb; pound; kg
        oz; 0.028349523125; oz; ounce; g
        st; 6.35029318; st; stone/stone; lb kg
        LT; 1016.0469088; ~long ton; ; t
        ST; 907.18474; ~short ton; ; t
        Lcwt; 50.80234544; Lcwt; hundredweight/hundredweight; lb
        Scwt; 45.359237; Scwt; hundredweight/hundredweight; lb
        long~cwt; 50.80234544; long cwt; long hundredweight/long hundredweight; lb kg
        short~cwt; 45.359237; short cwt; short hundredweight/short hundredweight; lb kg
        gr; 0.00006479891; gr; grain; g
        ozt; 0.0311034768; ozt; troy ounce; oz g
        lbt troy~pound; 0.3732417216; ~troy pound; ; lb kg
        dwt; 0.00155517384; dwt; pennyweight; oz g
        carat; 0.0002; ~carat; ; g
        drachm; 0.001771845195; ~drachm; ; g
        viss; 1.632932532; ~viss; viss/viss; kg
    """,
    "speed": """
        km/h; 0.277777777777778; km/h; kilometre per hour; mph
        mph; 0.44704; mph; mile per hour; km/h
        m/s; 1; m/s; metre per second; ft/s
        km/s; 1000; km/s; kilometre per second; mi/s
        ft/s; 0.3048; ft/s; foot per second/feet per second; m/s
        kn; 0.514444444444444; kn; knot; km/h mph
        Mach; 340.29; Mach; ; km/h mph
        furlong~per~fortnight; 0.000166309523809524; furlong per fortnight; ; km/h mph
    """,
    "temperature": """
        C; 1; !°C; degree Celsius/degrees Celsius; F; 273.15
        F; 0.555555555555556; !°F; degree Fahrenheit/degrees Fahrenheit; C; 255.372222222222
        K; 1; !K; kelvin; C F; 0
        R; 0.555555555555556; !°R; degree Rankine/degrees Rankine; K F C; 0
    """,
    "temperature change": """
        C-change; 1; !°C; degree Celsius change/degrees Celsius change; F-change
        F-change; 0.555555555555556; !°F; degree Fahrenheit change/degrees Fahrenheit change; C-change
        K-change; 1; !K; kelvin change; F-change
    """,
    "gradient": """
        m/km; 0.001; m/km; metre per kilometre; ft/mi
        ft/mi; 0.000189393939393939; ft/mi; foot per mile/feet per mile; m/km
    """,
    "time": """
        s; 1; s; second; min
        min; 60; min; minute; s
        h; 3600; h; hour; ks
        d; 86400; d; day; ks
        wk; 604800; week; ; Ms
        month; 2629746; month; ; Ms
        year; 31557600; yr; year; Ms
    """,
    "acceleration": """
        m/s2; 1; m/s²; metre per second squared; ft/s2
        ft/s2; 0.3048; ft/s²; foot per second squared/feet per second squared; m/s2
        g0; 9.80665; g₀; standard gravity/standard gravities; m/s2
    """,
    "power": """
        W; 1; W; watt; hp
        hp; 745.69987158227; hp; horsepower/horsepower; kW
        bhp; 745.69987158227; bhp; brake horsepower/brake horsepower; kW
        shp; 745.69987158227; shp; shaft horsepower/shaft horsepower; kW
        ihp; 745.69987158227; ihp; indicated horsepower/indicated horsepower; kW
        PS; 735.49875; PS; metric horsepower/metric horsepower; kW
        hp-metric; 735.49875; hp; metric horsepower/metric horsepower; kW
        BTU/h; 0.293071070172222; BTU/h; British thermal unit per hour; W
        VA; 1; VA; volt-ampere; hp
    """,
    "pressure": """
        Pa; 1; Pa; pascal; psi
        bar; 1e5; bar; ; kPa
        psi; 6894.75729316836; psi; pound per square inch; kPa
        ksi; 6894757.29316836; ksi; kilopound per square inch; MPa
        atm; 101325; atm; standard atmosphere; kPa
        inHg; 3386.388640341; inHg; inch of mercury/inches of mercury; kPa
        mmHg; 133.322387415; mmHg; millimetre of mercury/millimetres of mercury; kPa
        Torr; 133.322368421053; Torr; torr; kPa
        kg/cm2; 98066.5; kg/cm²; kilogram per square centimetre; psi
        kgf/cm2; 98066.5; kgf/cm²; kilogram-force per square centimetre; psi
    """,
    "energy": """
        J; 1; J; joule; cal
        cal; 4.184; cal; calorie; J
        Cal; 4184; Cal; calorie; kJ
        Wh; 3600; Wh; watt-hour; kJ
        W.h; 3600; W⋅h; watt-hour; kJ
        kWh; 3.6e6; kWh; kilowatt-hour; MJ
        BTU; 1055.05585262; BTU; British thermal unit; kJ
        MMBtu; 1055055852.62; MMBtu; million British thermal units/million British thermal units; GJ
        ftlb; 1.3558179483314; ft⋅lb; foot-pound; J
        ftlbf; 1.3558179483314; ft⋅lbf; foot-pound force/foot-pounds force; J
        eV; 1.602176487e-19; eV; electronvolt; aJ
        erg; 1e-7; erg; ; μJ
        ton-TNT; 4.184e9; ton of TNT; ton of TNT/tons of TNT; GJ
        BOE; 6117863200; BOE; barrel of oil equivalent/barrels of oil equivalent; GJ
    """,
    "torque": """
        Nm; 1; N⋅m; newton-metre; lbf.ft
        lbft; 1.3558179483314; lb⋅ft; pound-foot/pound-feet; Nm
        lbf.ft; 1.3558179483314; lbf⋅ft; pound force-foot/pound force-feet; Nm
        kgm kg.m; 9.80665; kg⋅m; kilogram metre; Nm lbft
        kgf.m; 9.80665; kgf⋅m; kilogram force-metre; Nm lbf.ft
        inlb; 0.1129848290276167; in⋅lb; inch-pound; Nm
    """,
    "force": """
        N; 1; N; newton; lbf
        lbf; 4.4482216152605; lbf; pound-force/pounds-force; N
        kgf; 9.80665; kgf; kilogram-force; N lbf
        gf; 0.00980665; gf; gram-force; mN
        tf; 9806.65; tf; tonne-force; kN
        LTf; 9964.01641818352; LTf; long ton-force; kN
        STf; 8896.443230521; STf; short ton-force; kN
    """,
    "volume/time": """
        oilbbl/d; 1.84013072833333e-6; bbl/d; barrel per day; m3/d
        koilbbl/d; 1.84013072833333e-3; kbbl/d; thousand barrels per day/thousand barrels per day; m3/d
        Moilbbl/d; 1.84013072833333; Mbbl/d; million barrels per day/million barrels per day; m3/d
    """,
    "density": """
        lb/in3; 27679.9047102031; lb/in³; pound per cubic inch; g/cm3
    """,
    "fuel": """
        km/L km/l; 1e6; km/L; kilometre per litre; mpgimp mpgus
        mpgus; 425143.707430272; mpg‑US; mile per US gallon; L/100~km+mpgimp
        mpgimp; 354006.189934647; mpg‑imp; mile per imperial gallon; L/100~km+mpgus
        L/100~km; -1e-8; L/100 km; litre per 100 kilometres/litres per 100 kilometres; mpgimp mpgus
    """,
    "/area": """
        PD/km2; 1e-6; /km²; inhabitants per square kilometre/inhabitants per square kilometre; PD/sqmi
        PD/sqmi; 3.86102158542446e-7; /sq mi; inhabitants per square mile/inhabitants per square mile; PD/km2
        PD/ha; 1e-4; /ha; inhabitants per hectare/inhabitants per hectare; PD/acre
        PD/acre; 0.000247105381467165; /acre; inhabitants per acre/inhabitants per acre; PD/ha
    """,
    "radiation": """
        Sv; 1; Sv; sievert; rem
        rem; 0.01; rem; ; Sv
    """,
    "dose": """
        Gy; 1; Gy; gray; rad
        rad; 0.01; rad; ; Gy
    """,
    "pace": """
        min/km; 0.06; min/km; minute per kilometre; min/mi
        min/mi; 0.0372822715342373; min/mi; minute per mile; min/km
    """,
}
"""Kind -> rows as `units` reads them."""

_ALIASES = """
metre m|metres m|meter m|meters m|kilometre km|kilometres km|kilometer km|kilometers km|centimetre cm|centimetres cm
centimeter cm|centimeters cm|millimetre mm|millimetres mm|millimeter mm|millimeters mm|foot ft|feet ft|inch in
inches in|yard yd|yards yd|mile mi|miles mi|statmi smi|nautical_mile nmi|nautical_miles nmi|fathoms fathom|ch chain
chains chain|rods rod|rd rod|fur furlong|furlongs furlong|leagues league|hands hand|hh hand|au AU|angstrom Å
light-year ly|light-years ly|oldUKnmi nmi|admiralty_nmi nmi|oldUSnmi nmi|sqm m2|m² m2|sqkm km2|km² km2|hectare ha
hectares ha|acres acre|mi2 sqmi|sqmile sqmi|sqmiles sqmi|ft2 sqft|sqfoot sqft|in2 sqin|yd2 sqyd|m³ m3|cum m3|km³ km3
ft3 cuft|cufoot cuft|in3 cuin|CID cuin|yd3 cuyd|mi3 cumi|litre L|litres L|liter L|liters L|USgal usgal|U.S.gal usgal
gal impgal|USGal usgal|usoz usfloz|USoz usfloz|USfloz usfloz|impoz impfloz|USqt usqt|USpt uspt|bbl oilbbl|USbbl usbbl
Impgal impgal|acre-ft acre.ft|acre·ft acre.ft|acre⋅ft acre.ft|acre_ft acre.ft|acre.foot acre.ft|USbsh USbu
bushel USbu|gram g|grams g|kilogram kg|kilograms kg|kgs kg|tonne t|tonnes t|metric_ton MT|metric_tons MT|pound lb
pounds lb|lbs lb|ounce oz|ounces oz|stone st|long_ton LT|long_tons LT|lt LT|short_ton ST|short_tons ST|cwt Lcwt
grain gr|troy_ounce ozt|toz ozt|oz_t ozt|kph km/h|kmh km/h|km/hr km/h|mi/h mph|MPH mph|fps ft/s|knot kn|knots kn|kt kn
°C C|celsius C|Celsius C|°F F|fahrenheit F|Fahrenheit F|°R R|°K K|kelvin K|C_change C-change|F_change F-change
second s|seconds s|minute min|minutes min|hour h|hours h|day d|days d|week wk|weeks wk|months month|years year|yr year
a_year year|m/s² m/s2|mps m/s|watt W|watts W|horsepower hp|metric_hp PS|cv PS|CV PS|BHP bhp|HP hp|ch_power PS
lbf/in2 psi|lb/in2 psi|PSI psi|torr Torr|inch_Hg inHg|kcal_th kcal|kW.h kWh|kWh_ kWh|ft.lb ftlb|ft·lbf ftlbf
ftlb-f ftlbf|ft.lbf ftlbf|btu BTU|Btu BTU|tTNT ton-TNT|ktTNT kton-TNT|MtTNT Mton-TNT|N.m Nm|N·m Nm|N⋅m Nm|lb.ft lbf.ft
lbfft lbf.ft|lb·ft lbft|lb-ft lbft|ft-lb lbft|lb-f lbf|pound-force lbf|kg-f kgf|ft3/s cuft/s|cuft/sec cuft/s
cu_ft/s cuft/s|cfs cuft/s|USgal/min usgal/min|USgpm usgal/min|USgal/d usgal/d|bbl/d oilbbl/d|kbbl/d koilbbl/d
mpgUS mpgus|mpg-us mpgus|mpg-US mpgus|mpgUs mpgus|mpg-imp mpgimp|mpg_imp mpgimp|mpgu.s. mpgus|mpg mpgus
L/100km L/100_km|l/100_km L/100_km|l/100km L/100_km|PD/sqkm PD/km2|PD/mi2 PD/sqmi|/sqkm /km2|/mi2 /sqmi|g/cc g/cm3
lb/ft3 lb/cuft|lb/yd3 lb/cuyd|rev/min rpm|KB kB
"""
ALIASES = {
    code.replace("_", " "): target.replace("_", " ")
    for entry in _ALIASES.replace("\n", "|").split("|")
    for code, _, target in [entry.strip().partition(" ")]
    if code
}
"""Other code -> code."""

MULTIPLES = {
    "ftin": "ft in", "footin": "ft in", "ydftin": "yd ft in", "ydft": "yd ft", "ydin": "yd in", "mift": "mi ft",
    "miyd": "mi yd", "mich": "mi chain", "mifur": "mi furlong", "stlb": "st lb", "stlboz": "st lb oz", "lboz": "lb oz",
    "LTcwt": "LT Lcwt",
}  # fmt: skip
"""Code -> units that are written together, the larger ones first."""

DEFAULTS = {
    "km": "mi", "hm": "mi", "Mm": "mi", "Gm": "mi", "cm": "in", "dm": "in", "mm": "in", "nm": "in", "pm": "in",
    "μm": "in", "µm": "in", "um": "in", "e9km": "AU", "e3acre": "km2", "e6acre": "km2", "e3ha": "e3acre",
    "km2": "sqmi", "hm2": "acre", "dm2": "sqin", "cm2": "sqin", "mm2": "sqin", "e3m2": "e6sqft", "cm3": "cuin",
    "mm3": "cuin", "dm3": "cuin", "km3": "cumi", "mL": "impfloz usfloz", "ml": "impfloz usfloz",
    "cL": "impfloz usfloz", "cl": "impfloz usfloz", "dL": "impfloz usfloz", "dl": "impfloz usfloz", "kL": "cuft",
    "kl": "cuft", "GL": "cuft", "Gl": "cuft", "kg": "lb", "Mg": "LT ST", "Gg": "lb", "mg": "gr", "μg": "gr",
    "µg": "gr", "ug": "gr", "MJ": "kWh", "GJ": "kWh", "TJ": "kWh", "PJ": "kWh", "aJ": "eV", "fJ": "keV", "pJ": "MeV",
    "keV": "fJ", "MeV": "pJ", "meV": "zJ", "kcal": "kJ", "MWh": "GJ", "GWh": "TJ", "TWh": "PJ", "ms": "s", "ns": "μs",
    "Ms": "wk", "ks": "h", "kpc": "kly", "Mpc": "Mly", "kly": "pc", "Mly": "kpc", "kton-TNT": "TJ", "Mton-TNT": "PJ",
    "GW": "hp", "mN": "gf", "mSv": "rem", "m3/s": "cuft/s", "cuft/s": "m3/s", "m3/d": "cuft/d", "cuft/d": "m3/d",
    "L/s": "cuft/s", "usgal/min": "m3/s", "usgal/d": "L/d", "L/d": "usgal/d", "L/min": "impgal/min usgal/min",
    "kg/m3": "lb/cuyd", "g/cm3": "lb/cuin", "g/L": "lb/cuin", "kg/L": "lb/usgal", "lb/cuft": "g/cm3",
    "lb/cuin": "g/cm3", "lb/cuyd": "kg/m3", "lb/usgal": "kg/L", "km/min": "mi/s", "mi/s": "km/s",
    "ft/min": "m/min", "t/ha": "LT/acre ST/acre", "N/m2": "psi", "kg/m2": "lb/sqft", "m/min": "ft/min",
    "g/km": "oz/mi", "/km2": "/sqmi", "/sqmi": "/km2", "/ha": "/acre", "/acre": "/ha",
}  # fmt: skip
"""Code of a unit with a prefix, a power or a ratio -> what it converts to, where not to that of its base."""

DEFAULTS_BY_SIZE = {"m": (3.0, "ftin", "ft"), "ML": (28.316846592, "e3cuft", "e6cuft"),
                    "Ml": (28.316846592, "e3cuft", "e6cuft")}  # fmt: skip
"""Code -> limit, what positive values below it convert to, and what the others convert to."""

PER_KINDS = {"length/time": ("speed", 1.0), "mass/volume": ("density", 1.0), "mass/area": ("pressure", 9.80665),
             "force/area": ("pressure", 1.0), "length/length": ("gradient", 1.0),
             "length/volume": ("fuel", 1.0)}  # fmt: skip
"""Kinds of two units parted by "/" -> the kind of the ratio, and a factor."""
