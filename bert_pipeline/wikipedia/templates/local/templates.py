"""Inline templates of other Wikipedias: what their own names show, by language.

A wiki's own names come before the English ones of `registry.RENDERERS`, which hold on every wiki that gives them no
other meaning. In the table a line is "names => text"; in the text {1} is an argument, {2|1} the first of several that
is given, and a part in [square brackets] falls away when an argument in it is empty. "=> = name" shows what the
template `name` of the English Wikipedia shows.
"""

import re
from collections.abc import Sequence

from bert_pipeline.wikipedia.templates.local import french
from bert_pipeline.wikipedia.templates.local.labels import FORMS, labelled_forms
from bert_pipeline.wikipedia.templates.local.numbers import write_number
from bert_pipeline.wikipedia.templates.registry import LOCAL, RENDERERS, Arguments, Renderer

_TABLE = {
    "bg": """
        цитат => = quote
    """,
    "de": """
        lang => {2}[ {3}]
        zitat, zitat-de, zitat-en, zitat-fr, zitat-la => = quote
        bruch => = frac
        § => § {1}
        polytonisch, hebr, arf, urduf => {1}
    """,
    "es": """
        cita => = quote
        esd => = nbsp
        unidad => {1}[ {2}]
        versalita, versalitas => {1}
    """,
    "fr": """
        langue, lang => {2|texte}
        citation => « {1|texte} »
        guil, guillemets => « {1} »
        citation bloc, citation longue => = quote
        incise => – {1} –
        refnec, référence nécessaire, référence souhaitée, référence insuffisante, source insuffisante => {1}
        quand, qui, lequel, pas clair, pourquoi, comment => {1}
        passage non neutre, passage à actualiser, passage promotionnel => {1}
        abréviation, abréviation discrète, abr, terme défini, petites capitales, pc => {1}
        japonais => = nihongo
        exp => = sup
        ind => = sub
        n° => n°[ {1}]
        tmp => {1}[ {2}]
        er, re, e, nd, nde, 1er, 1re, 2e, 3e => {name}
    """,
    "it": """
        citazione => = quote
        unità => {1}[ {2}]
        m => {1}[ {u|3}]
        ta, tutto attaccato, maiuscoletto, senza fonte, citazione necessaria, chiarire => {1}
    """,
    "ja": """
        仮リンク => {label|1}
        読み仮名, ふりがな => {1}（{2}）
        ルビ, ruby, 補助漢字フォント, jis2004フォント, cp932フォント => {1}
        要出典範囲, 要検証範囲 => {1|text}
    """,
    "nl": """
        citaat => = quote
    """,
    "pl": """
        cytat => = quote
    """,
    "pt": """
        citação, quote1, quote2 => = quote
        carece de fontes2 => {1}
    """,
    "ru": """
        s, comment, комментарий => {1}
        цитата => = quote
        нп, нп1, нп2, нп3, нп4, нп5, iw, не переведено 2, не переведено 3, не переведено 5 => {2|1}
        не переведено => {текст|надо|2|1}
        нихонго, nihongo => {1} (яп. {2}[ {3}][, {4}])
        китайский => кит. трад. {1}[, упр. {2}][, пиньинь {3}][, палл. {4}]
        nl => {1}[ {2}]
        флагификация => = flag
        ударение => {1}\u0301
    """,
    "sv": """
        citat => = quote
    """,
    "uk": """
        s => {1}
        цитата => = quote
        нп, нп5, iw => {2|1}
        флагіфікація => = flag
    """,
    "zh": """
        le, link-en, link-ja, link-fr, link-de, link-es, link-it, link-ru, link-ko, link-la, link-pt, link-nl => {3|1}
        internal link helper/en, internal link helper/ja, internal link helper/fr => {3|1}
        tsl => {4|3}
        link-wd => {3|2}
        lj, 僻字, cjk-new-char => {1}
        bd => {1}{2}[－{3}{4}]
    """,
}

_PLACE = re.compile(r"\{([^{}]+)\}")


def follow_pattern(pattern: str) -> Renderer:
    """A renderer of "text {1}[, {2|name}]", as the head of this module describes it."""
    sections: list[tuple[bool, list[str | Sequence[str]]]] = []
    for number, section in enumerate(re.split(r"[\[\]]", pattern)):
        parts: list[str | Sequence[str]] = [
            part.split("|") if index % 2 else part for index, part in enumerate(_PLACE.split(section))
        ]
        sections.append((bool(number % 2), [part for part in parts if part]))

    def render(arguments: Arguments) -> str | None:
        shown = ""
        for is_optional, parts in sections:
            values = [part if isinstance(part, str) else arguments.get(*part) for part in parts]
            if all(values):
                shown += "".join(values)
            elif not is_optional:
                return None
        return shown.strip() or None

    return render


def _read_table(table: str) -> dict[str, Renderer]:
    found: dict[str, Renderer] = {}
    for line in table.strip().splitlines():
        keys, _, pattern = (part.strip() for part in line.partition("=>"))
        for name in (key.strip() for key in keys.split(",")):
            if pattern.startswith("= "):
                found[name] = RENDERERS[pattern.removeprefix("= ")]
            else:
                found[name] = follow_pattern(pattern.replace("{name}", name))
    return found


def _number_of(language: str) -> Renderer:
    """A number with the separators of its language, and what it counts."""

    def render(arguments: Arguments) -> str | None:
        number = arguments.get(1)
        return " ".join(filter(None, (write_number(number, language), arguments.get(2)))) if number else None

    return render


def _german_height(arguments: Arguments) -> str | None:
    """https://de.wikipedia.org/wiki/Vorlage:Höhe: {{Höhe|122|DE-NHN}}"""
    level = {"DE-NHN": "ü. NHN", "DE-NN": "ü. NN", "AT": "ü. A.", "CH": "ü. M."}.get(arguments.get(2).upper(), "")
    height = arguments.get(1)
    return f"{write_number(height, 'de')} m {level}".strip() if height else None


def _spanish_century(arguments: Arguments) -> str | None:
    """https://es.wikipedia.org/wiki/Plantilla:Siglo: {{siglo|XIX||s}}, {{siglo|I|a|S}}"""
    if not arguments.get(1):
        return None
    word = {"s": "siglo ", "S": "Siglo "}.get(arguments.get(3), "")
    return word + arguments.get(1) + {"a": " a. C.", "d": " d. C."}.get(arguments.get(2), "")


for _language, _lines in _TABLE.items():
    LOCAL[_language] = _read_table(_lines)
for _language in FORMS:
    _name_of = "{}s" if _language == "de" else "lang-{}"  # {{enS|…}}
    for _code, _form in labelled_forms(_language).items():
        LOCAL[_language][_name_of.format(_code)] = follow_pattern(_form.replace("{text}", "{1|text}[ {2}]"))

LOCAL["de"] |= {"höhe": _german_height, "formatzahl": _number_of("de"), "formatnum": _number_of("de")}
LOCAL["es"]["siglo"] = _spanish_century
LOCAL["ru"] |= dict.fromkeys(("число", "num"), _number_of("ru"))
LOCAL["fr"] |= dict.fromkeys(("date", "date-", "date de naissance", "date de décès"), french.date)
LOCAL["fr"] |= dict.fromkeys(french.CENTURIES, french.century)
LOCAL["fr"] |= dict.fromkeys(("unité", "nombre", "nb"), french.measure)
LOCAL["fr"]["heure"] = french.time
LOCAL["fr"] |= {name: follow_pattern(text) for name, text in french.names_of_time().items()}
