"""Templates that show words of other languages, their names, romanizations and meanings."""

import re

from bert_pipeline.wikipedia.languages import LANGUAGE_NAMES
from bert_pipeline.wikipedia.templates.registry import Arguments, Renderer, register, register_prefix


@register("lang, rtl-lang, ltr-lang, lang-x2, script, langr")
def _lang(arguments: Arguments) -> str | None:
    """Render words; those of a reconstructed language have a star before them. https://en.wikipedia.org/wiki/Module:Lang"""
    text = arguments.get(2, "text")
    is_reconstructed = arguments.get(1).lower().endswith("-x-proto") and arguments.get("proto") != "no"
    return f"*{text}" if is_reconstructed and text and text[0] != "*" else text or None


@register("langnf, language with name/for")
def _word_for(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Language_with_name/for: German for 'word'."""
    name, meaning = arguments.get(2), arguments.get(3)
    return f"{name} for '{meaning}'" if name and meaning else None


@register("translation")
def _translation(arguments: Arguments) -> str | None:
    return f"transl. {arguments.get(1)}" if arguments.get(1) else None


@register("cyrl, rtgs, iast3")
def _labelled_script(arguments: Arguments) -> str | None:
    label = {"cyrl": "Cyrillic", "rtgs": "RTGS", "iast3": "IAST"}[arguments.name]
    return f"{label}: {arguments.get(1)}" if arguments.get(1) else None


@register("proto")
def _reconstructed(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Proto: a family of languages and the form."""
    words = [f"*{word}" for word in arguments.positional()[1:] if word]
    return f"Proto-{arguments.get(1).title()} {', '.join(words)}" if words else None


@register("native phrase, native name")
def _native_phrase(arguments: Arguments) -> str | None:
    name = LANGUAGE_NAMES.get(arguments.get(1).lower(), "")
    shown = f"{arguments.get(2)} ({name})" if name else arguments.get(2)
    return shown if arguments.get(2) else None


@register("ruby, ruby-ja, ruby-zh-p, ruby-zh-b, ruby-py")
def _with_reading(arguments: Arguments) -> str | None:
    """Render the word without its reading, which is above it in small letters."""
    return arguments.get(1) or None


@register("transl, transliteration, translit, tlit, xlit, wikt-lang, wt, wtl")
def _last_word(arguments: Arguments) -> str | None:
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
    if not arguments.is_english:
        return text  # there the label is another word
    label = arguments.get("label", "labels") or name
    is_labelled = arguments.get("label", "labels").lower() not in ("none", "no")
    shown = f"{label}: {text}" if is_labelled and label else text
    # A romanization is shown only for words in another script, as by Module:Lang.
    romanized = arguments.get("translit", "tr", "r") or (values[1] if len(values) > 1 else "")
    meaning = arguments.get("lit", "translation", "literal") or (values[2] if len(values) > 2 else "")
    if romanized and _HAS_OTHER_SCRIPT.search(text):
        before = "tr." if arguments.name == "lang-rus" else "romanized:"
        shown += f", {before} {romanized}" if is_labelled else f", {romanized}"
    if meaning:
        shown += f", lit. '{meaning}'" if is_labelled else f", '{meaning}'"
    return shown


_HAS_OTHER_SCRIPT = re.compile(
    "[\u0370-\u1dff\u1f00-\u1fff\u2c00-\u2c5f\u2c80-\ua71f\ua800-\uab2f\uab70-\ufaff\ufb13-\U0010ffff]"
)
"""Letters that are not Latin, whose words alone have a romanization. https://en.wikipedia.org/wiki/Module:Lang"""


for _code, _name in LANGUAGE_NAMES.items():
    if _code != "zh":
        register(f"lang-{_code}")(_named_language(_name))
register("ja-lang")(_named_language("Japanese"))
register_prefix("lang-")(_named_language(""))  # a language whose name is not known here: its words stay


@register("langx, lang-x, langwithname")
def _langx(arguments: Arguments) -> str | None:
    values = arguments.positional()
    if arguments.name == "langwithname" and len(values) > 2:
        return f"{values[1]}: {values[2]}"
    if len(values) < 2:
        return None
    code = values[0].lower()
    name = LANGUAGE_NAMES.get(code) or LANGUAGE_NAMES.get(code.partition("-")[0], "")
    return _label_and_text(name, arguments, values[1:])


@register("nihongo, nihongo3, nihongo4, nihongo krt, nihongo core")
def _nihongo(arguments: Arguments) -> str | None:
    """Three of English, kanji and romaji, the first one before the brackets."""
    english, kanji, romaji = arguments.get(1), arguments.get(2), arguments.get(3)
    extra, extra2 = arguments.get(4, "extra"), arguments.get(5, "extra2")
    if arguments.name in ("nihongo3", "nihongo krt"):
        first, inside = (romaji, [kanji, english]) if romaji else (english, [kanji])
        if arguments.name == "nihongo krt" and kanji:
            first, inside = kanji, [romaji, english]
    else:
        labels = ("Japanese: ", "Hepburn: ") if arguments.get("lead").lower() in ("y", "yes", "1") else ("", "")
        shown = labels[0] + kanji if kanji else ""
        first, inside = (english, [shown, romaji and labels[1] + romaji]) if english else (romaji, [shown])
    # Missing parts leave neither a comma nor empty brackets.
    brackets = ", ".join(filter(None, (*inside, extra)))
    return " ".join(filter(None, (first, brackets and f"({brackets})", extra2))) or None


@register("nihongo2, nihongo-s")
def _nihongo_plain(arguments: Arguments) -> str | None:
    """Render the kanji alone."""
    return arguments.get(1) or None


@register("nihongo foot")
def _nihongo_with_footnote(arguments: Arguments) -> str | None:
    """Render the English with the sign that ends it; the rest is in a footnote."""
    return arguments.get(1) + arguments.get(6, "post") or None


_CHINESE_LABELS = {
    "c": "Chinese", "s": "simplified Chinese", "t": "traditional Chinese", "p": "pinyin", "hp": "pinyin",
    "tp": "Tongyong Pinyin", "w": "Wade–Giles", "j": "Jyutping", "cy": "Cantonese Yale", "sl": "Sidney Lau",
    "poj": "Pe̍h-ōe-jī", "tl": "Tâi-lô", "zhu": "Zhuyin Fuhao",
}  # fmt: skip
"""In the order shown. https://en.wikipedia.org/wiki/Template:Lang-zh"""


@register(
    "zh, zhi, lang-zh, zh-cp, zh-tp, zh-stp, zh-sp, zh-tsp, zh-cw, zh-cpw, zh-t, zh-s, zh-c, zh-cpl, zh-stpl, zh-tspl"
)
def _chinese(arguments: Arguments) -> str | None:
    named = arguments.named()
    values = arguments.positional()
    # The names of the older templates spell their arguments: zh-tsp takes t, s and p.
    if values and arguments.name.startswith("zh-"):
        named = {**dict(zip(arguments.name[3:], values)), **named}
    elif values and "c" not in named:
        named["c"] = values[0]
    labels = dict(_CHINESE_LABELS)
    if named.get("s") == named.get("t") or not named.get("s") or not named.get("t"):
        labels |= {"s": "Chinese", "t": "Chinese"}  # one form alone, or both the same
        if named.get("s") and named.get("t"):
            del named["t"]
    if named.get("tp"):
        labels |= {"p": "Hanyu Pinyin", "hp": "Hanyu Pinyin"}

    # Simplified characters come first unless `first` names the traditional ones.
    order = list(labels)
    if "t" in named.get("first", ""):
        order[1], order[2] = "t", "s"
    hidden = named.get("labels", "").lower() == "no" or arguments.name == "zhi"
    shown = [named[key] if hidden else f"{labels[key]}: {named[key]}" for key in order if named.get(key)]
    if named.get("l"):
        shown.append(f"lit. '{named['l']}'")
    return "; ".join(shown) or None


@register("korean, ko-hhrm, korean/auto")
def _korean(arguments: Arguments) -> str | None:
    """ "^" and "_" are hints for those romanizations that the template makes by itself."""
    hidden = arguments.get("labels").lower() == "no"
    shown = []
    for label, text in (
        ("Korean", arguments.get("hangul", "hg", 1)), ("Hanja", arguments.get("hanja", "hj", 2)),
        ("RR", arguments.get("rr", 3)), ("MR", arguments.get("mr", 4)), ("lit.", arguments.get("lit")),
    ):  # fmt: skip
        if arguments.name == "korean/auto":
            text = "" if label in ("RR", "MR") else text.replace("^", "").replace("_", "")
        if text:
            shown.append(f"lit. '{text}'" if label == "lit." else text if hidden else f"{label}: {text}")
    return "; ".join(shown) or None


@register("literal translation, lit, lit., literal, literally")
def _literal_translation(arguments: Arguments) -> str:
    text = " or ".join(f"'{value}'" for value in arguments.positional() if value)
    return f"lit. {text}".strip()


@register("gloss")
def _gloss(arguments: Arguments) -> str | None:
    text = arguments.get(1)
    if not text:
        return None
    return f"({text})" if arguments.get("mode") == "def" else f"'{text}'"


@register("etymology, ety")
def _etymology(arguments: Arguments) -> str | None:
    """Threes of language, word and meaning: https://en.wikipedia.org/wiki/Template:Etymology"""
    values = [*arguments.positional(), "", ""]
    shown = ""
    for language, word, meaning in zip(values[::3], values[1::3], values[2::3]):
        name = LANGUAGE_NAMES.get(language, language)
        part = " ".join(filter(None, (name and f"from {name}", word, meaning and f"'{meaning}'")))
        shown += (", " if name else " and ") + part if shown and part else part
    return shown or None


@register("linktext")
def _linked_words(arguments: Arguments) -> str | None:
    return "".join(arguments.positional()) or None


@register("ill, interlanguage link, link-interwiki, illm, interlanguage link multi, ill-wd, ill2")
def _interlanguage(arguments: Arguments) -> str | None:
    first = arguments.get(1)
    if first in LANGUAGE_NAMES and arguments.get(2) and (arguments.name in ("ill", "ill2") or arguments.get(3)):
        return arguments.get("lt", 3, 2)  # the older order: language, title there, text
    return arguments.get("lt") or first or None


@register_prefix("script/")
def _script(arguments: Arguments) -> str | None:
    return arguments.get(1) or None
