"""Templates that show their own text: styled, quoted, in brackets; signs, spaces and magic words."""

from bert_pipeline.wikipedia.placeholders import PARAGRAPH_BREAK, PIPE, protect
from bert_pipeline.wikipedia.templates.registry import PARSER_FUNCTIONS, Arguments, Renderer, register, shows

# Text that is only styled

_STYLED = """
nowrap, nobr, nobreak, no break, nwr, nowraplinks, j, small, smaller, smalldiv, big, bigger, larger, large, huge, em,
strong, bold, italic, bdi, mvar, math, var, bigmath, serif, sans-serif, monospace, mono, tt, codett, kbd, samp, char,
button, overline, underline, strikethrough, noitalic, no italic, nobold, no bold, normal, small caps, smallcaps,
smallcaps2, smallcaps all, sc, sc1, sc2, tsc, smcaps, aut, allcaps, caps, unicode, iast, iso 15919, pie,
polytonic, hebrew, nastaliq, naskh, mongolunicode, bo-textonly, clarify span, cl-span, cns, citation needed span,
dubious span, better source span, which span, nq, tq, xt, dfn, dfni, vec, blue, red, green, gray, highlight, raw,
no wrap, text, lcons, varserif, var serif
"""


@register(_STYLED)
def _first(arguments: Arguments) -> str | None:
    return arguments.get(1, "text") or None


@register("visible anchor, vanchor")
def _anchor(arguments: Arguments) -> str | None:
    return arguments.get("text", 1) or None


@register("abbr, abbrv, tooltip, abbreviation, abbrlink, code, codes")
def _shown_word(arguments: Arguments) -> str | None:
    return arguments.get(1, "code", "text") or None


@register(
    "font, font color, color, colour, fontcolor, resize, font size, fs, h:title, hover title, colored link, color link,"
    " background color, bg, lower, raise"
)
def _second(arguments: Arguments) -> str | None:
    values = arguments.positional()
    return arguments.get("text") or (values[-1] if values else None)


@register("not a typo, notatypo, nat, typo, proper name, as written, chem name, bug workaround")
def _in_parts(arguments: Arguments) -> str | None:
    """A word may be given in several parts, to hide it from those who correct spelling."""
    return "".join(arguments.positional()) or None


@register("key press, keypress, key, kbd press")
def _key_press(arguments: Arguments) -> str | None:
    chain = arguments.values.get("chain", "+")
    chain = f" {chain} " if any(part.startswith("chain= ") for part in arguments.parts) else chain
    return chain.join(value for value in arguments.positional() if value) or None


@register("sup, superscript, smallsup")
def _sup(arguments: Arguments) -> str:
    return f"<sup>{arguments.get(1)}</sup>"


@register("sub, subscript, smallsub")
def _sub(arguments: Arguments) -> str:
    return arguments.get(1)


@register("su, subsup, sup sub")
def _sup_sub(arguments: Arguments) -> str:
    return f"{arguments.get('b', 2)}<sup>{arguments.get('p', 1)}</sup>"


# Quotations


@register(
    "quote, blockquote, bquote, cquote, quotation, block quote, blockquotation, long quotation, poem, poem quote,"
    " poemquote, quote without source, centered pull quote, bq, block quotation, block indent, blockindent, bi, center,"
    " centre, centered"
)
def _quotation(arguments: Arguments) -> str | None:
    text = arguments.get(1, "text", "quote", "content", "texte", "texto", "testo", "תוכן")
    return f"{PARAGRAPH_BREAK}{text}{PARAGRAPH_BREAK}" if text else None


@register("verse translation, verse transliteration-translation")
def _verses(arguments: Arguments) -> str | None:
    """Side by side: the verses of one language, then those of another."""
    verses = [verse for verse in arguments.positional() if verse]
    return f"{PARAGRAPH_BREAK}{PARAGRAPH_BREAK.join(verses)}{PARAGRAPH_BREAK}" if verses else None


@register("quote inline, inline quote, talk quote inline, tqi")
def _inline_quotation(arguments: Arguments) -> str | None:
    text = arguments.get(1, "text")
    return f'"{text}"' if text else None


@register("sic, sic2, sic-inline, sic?")
def _sic(arguments: Arguments) -> str:
    """https://en.wikipedia.org/wiki/Template:Sic"""
    values = [value for value in arguments.positional() if value]
    words = [value for value in values if value.lower() not in ("?", "y", "yes", "hide", "nolink")]
    text = "".join(words[:2])
    if arguments.get("hide") or "hide" in values:
        return text
    note = "[sic?]" if "?" in values or arguments.name == "sic?" else "[sic]"
    return f"{text} {note}".strip()


# Signs

for _names, _text in {
    "!": PIPE, "pipe": PIPE, "!!": PIPE * 2, "(!": f"{{{PIPE}", "!-": f"{PIPE}-", "!)": f"{PIPE}}}",
    "=, equals": "=", "((": "{{", "))": "}}", "(, lb": "{", "), rb": "}",
    "nbsp, spaces, space, nbs, nb5, nb10": "\u00a0",
    "sp, indent, in5": " ",
    "0": "", "nowrap begin, nobr begin, nowrap end, nobr end, wrap": "",
    "br, break, crlf, brk": " ",
    "ndash, endash, en dash, –, nbndash, nbnd": "–",
    "mdash, em dash, emdash, —, mdashb, --": "—",
    "snd, spnd, snds, spndash, sndash, spaced ndash, spaced en dash": " – ",
    "spacedndash, spaced endash, spaced en dash space, dash": " – ", "spaced mdash, spaced em dash, smdash": " — ",
    "bull, bullet, •": " • ", "dot, middot, ·, interpunct": " · ", "'s": "'s", "', apostrophe, apos, aps, -'": "'",
    "'-": "'", "okina, ‘okina, `": "ʻ", "hamza": "ʾ", "ayin, ayn": "ʿ", "\", -\", \"-": '"', "' \", '\"": "'\"",
    "\" ', \"'": "\"'", "hyphen, hyph, nbhyph, nbh, non-breaking hyphen": "-", "\\, spaced slash": " / ", "frasl": "⁄",
    "pb, paragraph break, parabr": PARAGRAPH_BREAK, "minus": "−", "plus, +": "+", "times": "×", "pi": "π", "infin": "∞",
    "ell": "ℓ", "eqm": "⇌", "larr": "←", "rarr": "→", "lord": "Lord", "degree, deg": "°",
    "dagger, †": "†", "ddagger, double-dagger, ‡": "‡", "tm": "™", "reg": "®",
    "half": "½", "pm": "±", "aka, a.k.a., also known as": "a.k.a.", "space+double": '"', "single+space": "'",
    "sect, §, section sign, sectionsign": "§", "figure space, figspace, fsp": "\u2007",
    "ellipsis, ...": "...", "sharp": "♯", "flat": "♭", "natural": "♮",
    "tau": "τ", "gamma": "γ", "lambda": "λ", "theta": "θ", "phi": "φ", "sigma": "σ", "alpha": "α", "beta": "β",
    "hydrogen": "H", "helium": "He", "carbon": "C", "nitrogen": "N", "oxygen": "O", "sulfur": "S", "iron": "Fe",
    "polonium": "Po", "radium": "Ra", "thorium": "Th", "uranium": "U", "plutonium": "Pu", "bismuth": "Bi",
}.items():  # fmt: skip
    shows(_names, protect(_text) if "'" in _text else _text)  # {{'}} beside italics is no emphasis


@register("prime, double prime, pprime")
def _prime(arguments: Arguments) -> str:
    """https://en.wikipedia.org/wiki/Template:Prime: behind its argument."""
    return arguments.get(1) + ("′" if arguments.name == "prime" else "″")


@register("god", in_context=True)
def _name_of_god(arguments: Arguments) -> str | None:
    """In small capitals as {{LORD}}; at the beginning of a line {{God}} is a sidebar."""
    return "God" if arguments.before.strip() else None


@register("shy, soft hyphen, lrm, rlm, px2, two pixel space, zwsp, zero width space, wbr, zwj, zwnj, word joiner, wj")
def _invisible_sign(arguments: Arguments) -> str:
    """https://en.wikipedia.org/wiki/Template:Zero_width_space: it may part its arguments."""
    return "".join(arguments.positional())


@register("thinsp, thin space, thinspace, hair space, hairsp, hsp, nnbsp")
def _thin_space(arguments: Arguments) -> str:
    """https://en.wikipedia.org/wiki/Template:Thin_space: between its arguments, around a single one."""
    parts = arguments.positional()
    return " ".join(parts) if len(parts) > 1 else f" {parts[0]} " if parts else " "


@register("music")
def _music(arguments: Arguments) -> str | None:
    sign = arguments.get(1).lower()
    signs = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮", "n": "♮", "doubleflat": "𝄫", "bb": "𝄫"}
    signs |= {"doublesharp": "𝄪", "##": "𝄪", "x": "𝄪", "treble": "𝄞", "bass": "𝄢", "scale": "", "hat": "^", "dot": "."}
    if sign == "scale":  # a degree of the scale, with a hat over it
        return arguments.get(2) or None
    if sign in ("time", "time signature"):
        return f"{arguments.get(2)}/{arguments.get(3)}"
    return signs.get(sign) or (sign if sign in signs.values() else None)


_BRACKETS = {
    "angle bracket": "⟨⟩", "angbr": "⟨⟩", "anglebracket": "⟨⟩", "angbr ipa": "⟨⟩", "grapheme": "⟨⟩", "gpm": "⟨⟩",
    "vr": "⟨⟩", "gph": PIPE * 2, "graphetic unit": PIPE * 2,
    "orth": "⟨⟩", "angle": "⟨⟩", "bracket": "[]", "brackets": "[]", "parentheses": "()", "pars": "()",
    "interp": "[]", "abs": PIPE * 2, "ket": f"{PIPE}⟩", "bra": f"⟨{PIPE}", "norm": "‖‖",
    "floor": "⌊⌋", "ceil": "⌈⌉", "mset": "{}",
}  # fmt: skip


@register(", ".join(_BRACKETS))
def _bracketed(arguments: Arguments) -> str | None:
    text = arguments.get(1)
    return _BRACKETS[arguments.name][0] + text + _BRACKETS[arguments.name][1] if text else None


@register("bra-ket, bra–ket, braket")
def _inner_product(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Bra–ket; the first argument of {{braket}} selects the brackets."""
    values = arguments.positional()
    kind = values.pop(0) if values and arguments.name == "braket" else "bra-ket"
    symbols = [symbol for symbol in values if symbol]
    if not symbols:
        return None
    if kind in ("bra", "ket"):
        return _BRACKETS[kind][0] + symbols[0] + _BRACKETS[kind][1]
    return f"⟨{PIPE.join(symbols)}⟩"


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
