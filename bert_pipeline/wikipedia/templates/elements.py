"""The chemical elements: names and symbols in the order of their atomic numbers."""

_ELEMENTS = """
    hydrogen H helium He lithium Li beryllium Be boron B carbon C nitrogen N oxygen O fluorine F neon Ne sodium Na
    magnesium Mg aluminium Al silicon Si phosphorus P sulfur S chlorine Cl argon Ar potassium K calcium Ca scandium Sc
    titanium Ti vanadium V chromium Cr manganese Mn iron Fe cobalt Co nickel Ni copper Cu zinc Zn gallium Ga germanium
    Ge arsenic As selenium Se bromine Br krypton Kr rubidium Rb strontium Sr yttrium Y zirconium Zr niobium Nb
    molybdenum Mo technetium Tc ruthenium Ru rhodium Rh palladium Pd silver Ag cadmium Cd indium In tin Sn antimony Sb
    tellurium Te iodine I xenon Xe caesium Cs barium Ba lanthanum La cerium Ce praseodymium Pr neodymium Nd promethium
    Pm samarium Sm europium Eu gadolinium Gd terbium Tb dysprosium Dy holmium Ho erbium Er thulium Tm ytterbium Yb
    lutetium Lu hafnium Hf tantalum Ta tungsten W rhenium Re osmium Os iridium Ir platinum Pt gold Au mercury Hg
    thallium Tl lead Pb bismuth Bi polonium Po astatine At radon Rn francium Fr radium Ra actinium Ac thorium Th
    protactinium Pa uranium U neptunium Np plutonium Pu americium Am curium Cm berkelium Bk californium Cf einsteinium
    Es fermium Fm mendelevium Md nobelium No lawrencium Lr rutherfordium Rf dubnium Db seaborgium Sg bohrium Bh hassium
    Hs meitnerium Mt darmstadtium Ds roentgenium Rg copernicium Cn nihonium Nh flerovium Fl moscovium Mc livermorium Lv
    tennessine Ts oganesson Og
"""
_PAIRS = _ELEMENTS.split()
SYMBOLS = dict(zip(_PAIRS[::2], _PAIRS[1::2])) | {"aluminum": "Al", "sulphur": "S", "cesium": "Cs"}
"""Name -> symbol."""
NUMBERS = {symbol: number for number, symbol in enumerate(_PAIRS[1::2], start=1)}
"""Symbol -> atomic number."""
