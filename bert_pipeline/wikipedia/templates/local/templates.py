"""Inline templates of other Wikipedias: what their own names show, by language.

A wiki's own names come before the English ones of `registry.RENDERERS`, which hold on every wiki that gives them no
other meaning. In the table a line is "names => text"; in the text {1} is an argument, {2|1} the first of several that
is given, and a part in [square brackets] falls away when an argument in it is empty. "=> = name" shows what the
template `name` of the English Wikipedia shows.
"""

import re
from collections.abc import Sequence

from bert_pipeline.wikipedia.languages import LANGUAGE_NAMES
from bert_pipeline.wikipedia.placeholders import UNKNOWN_VALUE
from bert_pipeline.wikipedia.templates.figures import raise_figures
from bert_pipeline.wikipedia.templates.local import french
from bert_pipeline.wikipedia.templates.local.labels import FORMS, labelled_forms
from bert_pipeline.wikipedia.templates.local.numbers import write_number
from bert_pipeline.wikipedia.templates.registry import LOCAL, RENDERERS, Arguments, Renderer

_TABLE = {
    "ar": """
        بدون لف => {1}
        إنج => بالإنجليزية: {1}
        فرن => بالفرنسية: {1}
        لات => باللاتينية: {1}
        وإو => {نص|عر|1}
        اقتباس, اقتباس خاص => = quote
    """,
    "bg": """
        цитат => = quote
    """,
    "de": """
        lang => {2}[ {3}]
        zitat, zitat-de, zitat-en, zitat-fr, zitat-la => = quote
        " => „{1}“
        bruch => = frac
        § => § {1}
        art., rn., nr., kapitälchen => {1}
        bibel => {1}[ {2}][,{3}]
        polytonisch, hebr, arf, urduf => {1}
    """,
    "es": """
        cita => = quote
        versalita, versalitas, coreano => {1}
        n.º, núm. => {name}[ {1}]
        bandera2 => = flag
        convertir => = convert
    """,
    "fr": """
        langue, lang => {2|texte}
        citation => « {1|texte} »
        guil, guillemets, " => « {1} »
        citation étrangère => « {1|texte} »
        tmp => {1}[ {2}]
        citation bloc, citation longue, vers => = quote
        incise, tiret => – {1} –
        lien => {texte|fr|1|trad}
        refnec, référence nécessaire, référence souhaitée, référence insuffisante, source insuffisante => {1}
        refsou, référence à confirmer, citation nécessaire => {1}
        quand, qui, lequel, laquelle, lesquels, lesquelles, pas clair, pourquoi, comment, où, combien => {1}
        passage évasif, évasif, romain, rom, rom-maj, souverain, souverain2, souverain3, souverain-, italique => {1}
        passage non neutre, passage à actualiser, passage promotionnel => {1}
        abréviation, abréviation discrète, abr, terme défini, petites capitales, pc => {1}
        japonais => = nihongo
        exp => = sup
        ind => = sub
        n°, p., t., vol., chap., ch., op., art., coll. => {name}[ {1}]
        no, numéro => n°[ {1}]
        nos, numéros => n°s[ {1}]
        m. => M.[ {1}]
        mm. => MM.[ {1}]
        mme => Mme[ {1}]
        mmes => Mmes[ {1}]
        mlle => Mlle[ {1}]
        dr => Dr[ {1}]
        pr => Pr[ {1}]
        mgr => Mgr[ {1}]
        st => St[ {1}]
        ste => Ste[ {1}]
        av jc, av. j.-c. => [{1} ]av. J.-C.
        ap jc, apr jc, ap. j.-c. => [{1} ]apr. J.-C.
        grec ancien => en grec ancien {1}[ / {2}][, « {3} »]
        formule chimique, fchim => = chem
        racine => = sqrt
        × => ×
        tmp => {1}[ {2}]
        er, re, e, nd, nde, 1er, 1re, 2e, 3e => {name}
    """,
    "he": """
        קישור שפה => {3|2}
    """,
    "it": """
        citazione => = quote
        converti => = convert
        ta, tutto attaccato, maiuscoletto, senza fonte, citazione necessaria, chiarire => {1}
    """,
    "ja": """
        仮リンク, 日本語版にない記事リンク => {label|1}
        snamei, sname, sname2 => {2|1}
        拡張漢字 => {2}
        by2 => {1}
        読み仮名, 読み仮名 ruby不使用, ふりがな => {1}（{2}）
        vanc, en, fr, de, es, it, la, ru, ko, pt, nl, sv, pl, el, ar, zh, vi, th => {1}
        ルビ, ruby, 補助漢字フォント, jis2004フォント, cp932フォント => {1}
        要出典範囲, 要検証範囲, 要説明範囲, 誰範囲, 誰範囲2, いつ範囲, 独自研究範囲, 正確性範囲 => {1|text}
        訳語疑問点範囲 => {1|text}
        信頼性要検証範囲, 疑問点範囲, 要校閲範囲, 更新範囲, 中立的観点範囲, 要追加記述範囲 => {1|text}
        jis90フォント, jis2000フォント => {1}
    """,
    "ko": """
        임시링크, 국기 => {1}
        인용문 => = quote
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
        ilc => {1}
        lknb => {1}[ {2}][ {3}]
        séc, século => século {1}
        ac => {1} a.C.
        dc => {1} d.C.
    """,
    "ru": """
        s, comment, комментарий => {1}
        цитата => = quote
        lang-en2, lang-de2, lang-fr2, lang-la2, lang-ru2, нет аи 2 => {1}
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
        le => {3|1}
        tsl => {4|3}
        link-wd => {3|2}
        lj, 僻字, cjk-new-char => {1}
        bd => {1}[{2}][－{3}][{4}]
    """,
}

_PLACE = re.compile(r"\{([^{}]+)\}")


def follow_pattern(pattern: str) -> Renderer:
    """Return a renderer of a pattern "text {1}[, {2|name}]", as described at the top of this module."""
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


def _measure_of(language: str) -> Renderer:
    """Return a renderer of a number and its unit, which may be a named argument or the second or third one."""

    def render(arguments: Arguments) -> str | None:
        number = arguments.get(1)
        if not number:
            return None
        exponent = f"×10{raise_figures(arguments.get('e'))}" if arguments.get("e") else ""
        unit = arguments.get("ul", "u", 2, 3)
        return f"{write_number(number.replace(' ', ''), language)}{exponent}{f' {unit}' if unit else ''}"

    return render


def _unbroken(arguments: Arguments) -> str:
    """https://es.wikipedia.org/wiki/Plantilla:Esd: a space, or words without line ends between them."""
    return arguments.get(1) or "\u00a0"


_MONTHS = {
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
}


def _date_in(language: str) -> Renderer:
    """https://es.wikipedia.org/wiki/Plantilla:Fecha: {{fecha|5|5|1990}}, in Portuguese {{dtlink|5|5|1990}}"""
    months = _MONTHS[language].split()

    def render(arguments: Arguments) -> str | None:
        day, month, year = (arguments.get(number) for number in (1, 2, 3))
        if month.isdecimal() and 1 <= int(month) <= 12:
            month = months[int(month) - 1]
        return " de ".join(filter(None, (day.lstrip("0"), month, year))) or None

    return render


def _russian_old_date(arguments: Arguments) -> str | None:
    """https://ru.wikipedia.org/wiki/Шаблон:OldStyleDate: the older date first."""
    new, year, old = (arguments.get(number) for number in (1, 2, 3))
    return f"{old} [{new}] {year}".strip() if old and new else None


def _value_of_today(arguments: Arguments) -> str:
    """An age, or the number of people that a table outside of the page holds."""
    return UNKNOWN_VALUE


def _german_height(arguments: Arguments) -> str | None:
    """https://de.wikipedia.org/wiki/Vorlage:Höhe: {{Höhe|122|DE-NHN}}"""
    level = {"DE-NHN": "ü. NHN", "DE-NN": "ü. NN", "AT": "ü. A.", "CH": "ü. M."}.get(arguments.get(2).upper(), "")
    height = arguments.get(1)
    return f"{write_number(height, 'de')} m {level}".strip() if height else None


def _labelled_in(language: str) -> Renderer:
    """{{langx|en|London}} and what it is called elsewhere: {{llang|en|London}}, {{w języku|en|London}}."""
    forms = labelled_forms(language)

    def render(arguments: Arguments) -> str | None:
        text = " ".join(filter(None, (arguments.get(2, "text"), arguments.get(3))))
        form = "" if arguments.get("label") == "none" else forms.get(arguments.get(1), "")
        return (form or "{text}").replace("{text}", text) if text else None

    return render


def _spanish_century(arguments: Arguments) -> str | None:
    """https://es.wikipedia.org/wiki/Plantilla:Siglo: {{siglo|XIX||s}}, {{siglo|I|a|S}}"""
    if not arguments.get(1):
        return None
    word = {"s": "siglo ", "S": "Siglo "}.get(arguments.get(3), "")
    return word + arguments.get(1) + {"a": " a. C.", "d": " d. C."}.get(arguments.get(2), "")


for _language, _lines in _TABLE.items():
    LOCAL[_language] = _read_table(_lines)
QUOTATIONS = {
    "be": "цытата", "ca": "citació", "cs": "citát", "da": "citat", "el": "παράθεση, απόσπασμα", "es": "cita textual",
    "eu": "aipua", "fa": "نقل قول", "fi": "sitaatti, lainaus", "he": "ציטוט", "hr": "citat", "hu": "idézet",
    "id": "kutipan", "ja": "引用文", "no": "sitat", "ro": "citat", "sk": "citát", "sr": "цитат, citat", "tr": "alıntı",
}  # fmt: skip
"""Further names of block quotations, whose arguments are those of {{quote}}."""
for _language, _names in QUOTATIONS.items():
    LOCAL.setdefault(_language, {}).update(dict.fromkeys(_names.split(", "), RENDERERS["quote"]))
for _language in FORMS:
    _table = LOCAL.setdefault(_language, {})
    _name_of = "{}s" if _language == "de" else "lang-{}"  # {{enS|…}}
    _text = "[ {1|text}][ {2}]" if _language in ("de", "pl") else " {1|text}[ {2}]"  # also {{frS}}, {{fr.}}
    for _code, _form in labelled_forms(_language).items():
        _pattern = _form.replace(" {text}", _text).replace("{text}", _text.strip())
        _table[_name_of.format(_code)] = follow_pattern(_pattern)
        if _language == "pl":
            _table[_form.removesuffix(" {text}")] = follow_pattern(_pattern)
    _table |= dict.fromkeys(("langx", "llang", "w języku"), _labelled_in(_language))

LOCAL["de"] |= {"höhe": _german_height, "formatzahl": _number_of("de"), "formatnum": _number_of("de")}
LOCAL["es"] |= {"siglo": _spanish_century, "fecha": _date_in("es"), "esd": _unbroken, "unidad": _measure_of("es")}
LOCAL["it"] |= dict.fromkeys(("m", "unità"), _measure_of("it"))
LOCAL["pt"] |= dict.fromkeys(("fmtn", "unidade"), _measure_of("pt")) | {"dtlink": _date_in("pt")}
LOCAL["ru"] |= dict.fromkeys(("число", "num"), _number_of("ru")) | {"oldstyledate": _russian_old_date}
_FRENCH_DATES = ("date", "date-", "date rapide", "date de naissance", "date de naissance-", "date de décès")
LOCAL["fr"] |= dict.fromkeys(_FRENCH_DATES, french.date)
LOCAL["fr"] |= dict.fromkeys(french.CENTURIES, french.century)
LOCAL["fr"] |= dict.fromkeys(("unité", "nombre", "nb"), french.measure)
LOCAL["fr"] |= {"heure": french.time, "dunité": french.dimensions}
LOCAL["fr"] |= {name: follow_pattern(text) for name, text in french.names_of_time().items()}
LOCAL["fr"] |= {roman.lower(): follow_pattern(roman) for roman in french.ordinals()}
for _code in LANGUAGE_NAMES:
    LOCAL["zh"] |= dict.fromkeys((f"link-{_code}", f"internal link helper/{_code}"), follow_pattern("{3|1}"))
for _language, _names in {
    "de": "alter, ewz, ewd, ewr, ewq, inflation", "es": "edad, inflación", "fr": "âge, inflation", "it": "età",
    "ja": "年齢, 年数", "pt": "idade, inflação", "ru": "возраст, население", "uk": "вік, населення",
}.items():  # fmt: skip
    LOCAL[_language] |= {name.strip(): _value_of_today for name in _names.split(",")}
