"""Inline templates that carry prose: name -> what the reader sees.

A template that is not registered is dropped, which is right for infoboxes, navigation, notices and citations. Nothing
depends on the date of the run. What each template shows is taken from its documentation on the English Wikipedia,
https://en.wikipedia.org/wiki/Template:NAME.
"""

from bert_pipeline.wikipedia.languages import LANGUAGE_NAMES
from bert_pipeline.wikipedia.marks import PARAGRAPH, PIPE
from bert_pipeline.wikipedia.registry import PARSER_FUNCTIONS, Arguments, Renderer, register, shows

# Text that is only styled

_STYLED = """
nowrap, nobr, nobreak, no break, nowrap begin, small, smaller, smalldiv, big, bigger, larger, large, huge, em, strong,
bold, italic, bdi, mvar, math, var, tmath, bigmath, serif, sans-serif, monospace, mono, tt, codett, kbd, samp, key
press, key, button, overline, underline, strikethrough, noitalic, no italic, nobold, no bold, normal, small
caps, smallcaps, sc, smcaps, allcaps, caps, unicode, iast, iso 15919, pie, polytonic, hebrew, script/hebrew,
script/arabic, script/coptic, script/armenian, script/syriac, script/cuneiform, script/slavonic, script/glagolitic,
script/nastaliq, visible anchor, vanchor, not a typo, nat, typo, proper name, as written, clarify span, cl-span, cns,
citation needed span, dubious span, better source span, which span, hover title, nq, linktext, sronly, screen
reader-only, tq, xt, dfn
"""


@register(_STYLED)
def _first(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("abbr, abbrv, tooltip, abbreviation, h:title, code, codes")
def _shown_word(arguments: Arguments) -> str | None:
    return arguments.get(1, "code", "text") or None


@register("font, font color, color, colour, fontcolor, resize, font size, fs")
def _second(arguments: Arguments) -> str | None:
    values = arguments.positional()
    return arguments.get("text") or (values[-1] if values else None)


@register("key press, keypress")
def _key_press(arguments: Arguments) -> str | None:
    return "+".join(value for value in arguments.positional() if value) or None


@register("sup, superscript")
def _sup(arguments: Arguments) -> str:
    return f"<sup>{arguments.get(1)}</sup>"


@register("sub, subscript")
def _sub(arguments: Arguments) -> str:
    return arguments.get(1)


@register("su, subsup, sup sub")
def _sup_sub(arguments: Arguments) -> str:
    return f"{arguments.get('b', 2)}<sup>{arguments.get('p', 1)}</sup>"


# Quotations


@register(
    "quote, blockquote, bquote, cquote, quotation, block quote, blockquotation, long quotation, poem, poem quote,"
    " poemquote, quote without source, centered pull quote, bq, block quotation"
)
def _quotation(arguments: Arguments) -> str | None:
    text = arguments.get(1, "text", "quote", "content")
    return f"{PARAGRAPH}{text}{PARAGRAPH}" if text else None


@register("quote inline, inline quote, talk quote inline, tqi")
def _inline_quotation(arguments: Arguments) -> str | None:
    text = arguments.get(1, "text")
    return f'"{text}"' if text else None


@register("sic, sic2, sic-inline")
def _sic(arguments: Arguments) -> str:
    words = [value for value in arguments.positional() if value and value.lower() not in ("y", "yes", "hide", "nolink")]
    text = "".join(words[:2])
    if arguments.get("hide") or "hide" in arguments.positional():
        return text
    return f"{text} [sic]" if text else "[sic]"


# Other languages


@register("lang, rtl-lang, ltr-lang")
def _lang(arguments: Arguments) -> str | None:
    return arguments.get(2, "text") or None


@register("transl, transliteration, translit, tlit, xlit")
def _transliteration(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    return values[-1] if len(values) > 1 else None


def _named_language(name: str) -> Renderer:
    def render(arguments: Arguments) -> str | None:
        return _label_and_text(name, arguments, arguments.positional())

    return render


def _label_and_text(name: str, arguments: Arguments, values: list[str]) -> str | None:
    text = arguments.get("text") or (values[0] if values else "")
    if not text:
        return None
    hidden = arguments.get("label", "labels").lower()
    shown = text if hidden in ("none", "no") else f"{arguments.get('label') or name}: {text}"
    romanized = arguments.get("translit", "tr") or (values[1] if len(values) > 1 else "")
    meaning = arguments.get("lit", "translation", "literal") or (values[2] if len(values) > 2 else "")
    if romanized:
        shown += f", romanized: {romanized}"
    if meaning:
        shown += f", lit. '{meaning}'"
    return shown


for _code, _name in LANGUAGE_NAMES.items():
    register(f"lang-{_code}")(_named_language(_name))
register("ja-lang")(_named_language("Japanese"))


@register("langx, lang-x, langnf, langwithname")
def _langx(arguments: Arguments) -> str | None:
    values = arguments.positional()
    if arguments.name == "langwithname" and len(values) > 2:
        return f"{values[1]}: {values[2]}"
    if len(values) < 2:
        return None
    name = LANGUAGE_NAMES.get(values[0].lower()) or LANGUAGE_NAMES.get(values[0].lower().partition("-")[0])
    return _label_and_text(name, arguments, values[1:]) if name else values[1]


@register("nihongo, nihongo2, nihongo3")
def _nihongo(arguments: Arguments) -> str | None:
    english, kanji, romaji = arguments.get(1), arguments.get(2), arguments.get(3)
    if arguments.name == "nihongo2":
        return english or None
    if arguments.name == "nihongo3":
        english, kanji, romaji = romaji or english, kanji, english if romaji else ""
        return (
            f"{arguments.get(2) and arguments.get(1)} ({', '.join(filter(None, (arguments.get(2), arguments.get(3))))})"
        )
    extra, extra2 = arguments.get(4, "extra"), arguments.get(5, "extra2")
    if not english:
        english, romaji = romaji, ""
    inside = ", ".join(filter(None, (kanji, romaji, extra)))
    return f"{english} ({inside}){' ' + extra2 if extra2 else ''}" if inside else english or None


_CHINESE_LABELS = (
    ("c", "Chinese"), ("t", "traditional Chinese"), ("s", "simplified Chinese"), ("p", "pinyin"), ("hp", "pinyin"),
    ("w", "Wade–Giles"), ("j", "Jyutping"), ("cy", "Cantonese Yale"), ("poj", "Pe̍h-ōe-jī"), ("tl", "Tâi-lô"),
    ("l", "lit."),
)  # fmt: skip


@register("zh, zh-cp, zh-tp, zh-stp, zh-sp, zh-tsp, zh-cw, zh-cpw, zh-t, zh-s, zh-c")
def _chinese(arguments: Arguments) -> str | None:
    named = arguments.named()
    values = arguments.positional()
    if values and arguments.name.startswith("zh-"):
        named = {**dict(zip(arguments.name[3:], values)), **named}
    elif values and "c" not in named:
        named["c"] = values[0]
    hidden = named.get("labels", "").lower() == "no"
    shown = []
    for key, label in _CHINESE_LABELS:
        if text := named.get(key):
            if key == "l":
                shown.append(f"lit. '{text}'")
            else:
                shown.append(text if hidden else f"{label}: {text}")
    return "; ".join(shown) or None


@register("korean, ko-hhrm")
def _korean(arguments: Arguments) -> str | None:
    hangul, hanja = arguments.get("hangul", "hg", 1), arguments.get("hanja", "hj", 2)
    romanized = arguments.get("rr", "mr", 3)
    shown = [text for text in (f"Korean: {hangul}" if hangul else "", f"Hanja: {hanja}" if hanja else "") if text]
    if romanized:
        shown.append(f"RR: {romanized}")
    return "; ".join(shown) or None


@register("literal translation, gloss, lit")
def _gloss(arguments: Arguments) -> str | None:
    text = arguments.get(1)
    if not text:
        return None
    return f"'{text}'" if arguments.name in ("gloss", "trans") else f"lit. '{text}'"


@register("ill, interlanguage link, link-interwiki, illm, interlanguage link multi, ill-wd, ill2")
def _interlanguage(arguments: Arguments) -> str | None:
    first = arguments.get(1)
    if first in LANGUAGE_NAMES and arguments.get(2) and (arguments.name in ("ill", "ill2") or arguments.get(3)):
        return arguments.get("lt", 3, 2)  # the older order: language, title there, text
    return arguments.get("lt", "display") or first.partition(" (")[0] or None


@register("wikt-lang, wt")
def _dictionary_link(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    return values[-1] if values else None


# Signs

for _names, _text in {
    "!": PIPE, "pipe": PIPE, "!!": PIPE * 2, "=, equals": "=", "((": "{{", "))": "}}", "(, lb": "{", "), rb": "}",
    "nbsp, spaces, space, nbs": "\u00a0", "thinsp, thin space, hair space, hairsp": " ", "sp, indent, in5": " ",
    "shy, zwj, zwnj, wbr, zwsp": "", "nowrap end, nobr end": "", "ndash, endash, en dash, –": "–",
    "mdash, em dash, emdash, —, mdashb": "—", "snd, spnd, snds, spndash, sndash, spaced ndash, spaced en dash": " – ",
    "spacedndash, spaced endash, spaced en dash space": " – ", "spaced mdash, spaced em dash, smdash": " — ",
    "bull, bullet, •": " • ", "dot, middot, ·, interpunct": " · ", "'s": "'s", "', apostrophe, apos, aps, -'": "'",
    "'-": "'", "okina, ‘okina, `": "ʻ", "hamza": "ʾ", "ayin, ayn": "ʿ", "\", -\", \"-": '"', "' \", '\"": "'\"",
    "\" ', \"'": "\"'", "hyphen, hyph": "-", "minus": "−", "plus, +": "+", "times": "×", "pi": "π", "infin": "∞",
    "ell": "ℓ", "eqm": "⇌", "larr": "←", "rarr": "→", "lord": "Lord", "god": "God", "degree, deg": "°", "prime": "′",
    "double prime, pprime": "″", "dagger, †": "†", "ddagger, double-dagger, ‡": "‡", "tm": "™", "reg": "®",
    "half": "½", "numero": "№", "ellipsis, ...": "...", "sharp": "♯", "flat": "♭", "natural": "♮",
    "hydrogen": "H", "helium": "He", "carbon": "C", "nitrogen": "N", "oxygen": "O", "sulfur": "S", "iron": "Fe",
    "polonium": "Po", "radium": "Ra", "thorium": "Th", "uranium": "U", "plutonium": "Pu", "bismuth": "Bi",
}.items():  # fmt: skip
    shows(_names, _text)


@register("music")
def _music(arguments: Arguments) -> str | None:
    sign = arguments.get(1).lower()
    signs = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮", "n": "♮", "doubleflat": "𝄫", "bb": "𝄫"}
    signs |= {"doublesharp": "𝄪", "##": "𝄪", "x": "𝄪", "treble": "𝄞", "bass": "𝄢", "scale": "", "hat": "^", "dot": "."}
    if sign in ("time", "time signature"):
        return f"{arguments.get(2)}/{arguments.get(3)}"
    return signs.get(sign)


@register("angle bracket, angbr, anglebracket, grapheme, vr, orth, bracket, brackets, angle")
def _angle_brackets(arguments: Arguments) -> str | None:
    text = arguments.get(1)
    if not text:
        return None
    return f"[{text}]" if arguments.name in ("bracket", "brackets") else f"⟨{text}⟩"


# Names


@register("sortname, sort name")
def _sort_name(arguments: Arguments) -> str | None:
    return " ".join(filter(None, (arguments.get(1), arguments.get(2)))) or None


@register("sort")
def _sort(arguments: Arguments) -> str | None:
    return arguments.get(2) or arguments.get(1) or None


@register("flag, flagcountry, flagu, flaglist, flag country, flagteam, flag+link")
def _flag(arguments: Arguments) -> str | None:
    return arguments.get("name", 1) or None


_SHIP_PREFIXES = (
    "uss, hms, hmas, hmcs, hmnzs, ss, ms, mv, rms, usns, uscgc, uscs, usat, css, ins, hnoms, hdms, hswms, orp, jds,"
    " rfa, sms, tss, ps, mts, pns, rss, hmt, hmhs, hmy, hsv, frv, rv, sv, nrp, hnlms, bap, roks, tcg, htms, bns, lé,"
    " usrc, sas"
)
_SHIP_NAMES = {"lé": "LÉ", "hnoms": "HNoMS", "hdms": "HDMS", "hswms": "HSwMS", "hnlms": "HNLMS"}


@register(_SHIP_PREFIXES)
def _ship(arguments: Arguments) -> str | None:
    name = arguments.get(1)
    if not name:
        return None
    shown = _SHIP_NAMES.get(arguments.name, arguments.name.upper())
    display = arguments.get(3)
    if display == "2":
        return name
    if display == "1" or not arguments.get(2) or display in ("6",):
        return f"{shown} {name}"
    return f"{shown} {name} ({arguments.get(2)})"


@register("ship")
def _any_ship(arguments: Arguments) -> str | None:
    prefix, name, number = arguments.get(1), arguments.get(2), arguments.get(3)
    shown = " ".join(filter(None, (prefix, name)))
    display = arguments.get(4)
    if display == "2":
        return name or None
    return f"{shown} ({number})" if number and not display and not number.isdigit() and "-" in number else shown or None


@register("sclass, sclass2, sclass-s, ship class, sclass2-")
def _ship_class(arguments: Arguments) -> str | None:
    name, kind = arguments.get(1), arguments.get(2)
    return f"{name}-class {kind}".strip() if name else None


@register("ov")
def _orbiter(arguments: Arguments) -> str | None:
    return {"099": "Challenger", "101": "Enterprise", "102": "Columbia", "103": "Discovery", "104": "Atlantis",
            "105": "Endeavour"}.get(arguments.get(1))  # fmt: skip


@register("mpl, mp, mpl-, minor planet")
def _minor_planet(arguments: Arguments) -> str | None:
    return f"{arguments.get(1)}{' ' if arguments.get(2)[:1].isalpha() else ''}{arguments.get(2)}" or None


@register("dp, dwarf planet, planet")
def _planet(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("bibleverse, bibleref, bible verse, bibleref2, bibleref2c, bibleverse-nb, bibleref2-nb, bible")
def _bible(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    if arguments.name.startswith(("bibleverse", "bible verse")) and values and values[0].isdigit() and len(values) > 1:
        values = [f"{values[0]} {values[1]}", *values[2:]]
    return " ".join(values[:2]) or None


@register("cite quran, quran, qref, quran-usc, quran-usc-range")
def _quran(arguments: Arguments) -> str | None:
    return f"Quran {arguments.get(1)}:{arguments.get(2)}" if arguments.get(2) else None


@register("harvtxt, harvcoltxt, citet")
def _cited_author(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    if len(values) < 2:
        return None
    *names, year = values
    people = (
        names[0]
        if len(names) == 1
        else f"{', '.join(names[:-1])} & {names[-1]}"
        if len(names) < 4
        else f"{names[0]} et al."
    )
    return f"{people} ({year})"


@register("us patent, uspat, us patent application")
def _patent(arguments: Arguments) -> str | None:
    number = arguments.get(1)
    return f"U.S. Patent {int(number):,}" if number.isdigit() else None


@register("url")
def _url(arguments: Arguments) -> str | None:
    return arguments.get(2) or arguments.get(1).removeprefix("http://").removeprefix("https://") or None


@register("24hlm")
def _le_mans(arguments: Arguments) -> str | None:
    return f"{arguments.get(1)} 24 Hours of Le Mans" if arguments.get(1) else None


@register("aside")
def _aside(arguments: Arguments) -> str | None:
    return f" ({arguments.get(1)}) " if arguments.get(1) else None


@register(
    "nfly, nbay, mlby, nhly, baseball year, mlb year, by, wsy, alcs, nlcs, f1, cfby, wcy, ncaay, mlsy, wnbay, cfly, scf"
)
def _year(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


# Chemistry


@register("chem, chem2, chemical formula")
def _chemical(arguments: Arguments) -> str | None:
    text = "".join(value for value in arguments.positional())
    if arguments.name in ("chem2", "ce"):
        text = text.replace("*", "·").replace("_", "").replace("[", "[").replace("<sub>", "").replace("</sub>", "")
    return text or None


@register("chemf")
def _chemical_names(arguments: Arguments) -> str | None:
    return "".join(arguments.positional()) or None


@register("nuclide, simplenuclide, simplenuclide2")
def _nuclide(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    name = next((value for value in values if not value.isdigit()), "")
    mass = next((value for value in values if value.isdigit()), "")
    return f"{name}-{mass}" if name and mass else name or None


# Magic words and parser functions


@register("pagename, subjectpagename, basepagename, fullpagename")
def _page_name(arguments: Arguments) -> str | None:
    return arguments.title or None


def _function(names: str, render: Renderer) -> None:
    for name in names.split():
        PARSER_FUNCTIONS[name] = render


_function("lc", lambda arguments: arguments.get(1).lower())
_function("uc", lambda arguments: arguments.get(1).upper())
_function("ucfirst", lambda arguments: arguments.get(1)[:1].upper() + arguments.get(1)[1:])
_function("lcfirst", lambda arguments: arguments.get(1)[:1].lower() + arguments.get(1)[1:])
_function("nowiki", lambda arguments: arguments.get(1))
