"""Disambiguation pages, known by the templates that mark them and by their titles."""

import functools
import re

_TOPICS = (
    "airport|biology|call sign|callsign|caselaw|case law|chinese title|church|genus|geo|hn|hospital|human name|letter"
    "|letter[-–]number comb|letter[-–]number combination|math|mathematics|mathematical|mil-unit|military unit|milunit"
    "|meta|music|number|opus|opus number|phonetics|place name|political party|portal|road|school|species latin name"
    "|species latin name abbreviation|split|sports|station|surname|synagogue|taxonomy|taxonomic authority|template|tn"
    "|town hall|wikipedia|wo?o number"
).replace(" ", "[ _]")
_ENGLISH = (
    r"disambig(?:uation)?(?![ _](?:needed|link)|[ _-]inline)(?:[ _-][^|{}\[\]<>\n]*+)?|disamb|dab|hndis"
    rf"|(?:{_TOPICS})[ _-]?(?:disambig(?:uation)?|disamb|dab|dis)(?:[ _-][^|{{}}\[\]<>\n]*+)?"
)
"""https://en.wikipedia.org/wiki/Wikipedia:Disambiguation/Templates; many other wikis have the first of these too."""

_LOCAL = {
    "af": "dubbelsinnig", "als": "begriffsklärung", "an": "desambig", "ar": "توضيح", "ast": "dixebra",
    "az": "dəqiqləşdirmə", "ba": "күп мәғәнәлелек", "bar": "begriffsklärung", "be": "неадназначнас[ьц]?ць",
    "be-tarask": "неадназначнас[ьц]?ць", "be-x-old": "неадназначнас[ьц]?ць", "bg": "пояснение|пояснителна страница",
    "bn": "দ্ব্যর্থতা নিরসন", "br": "hvlstumm|digejañ(?: anvioù-badez)?", "bs": "čvor", "ca": "desambigua(?:ció)?",
    "ceb": "giklaro", "cs": r"rozcestník(?: - [^|{}\[\]<>\n]*+)?", "cy": "anamrwysedd|gwahaniaethu", "da": "flertydig",
    "de": "begriffsklärung|bks", "el": "αποσαφ(?:ήνιση)?", "eo": "apartigilo", "es": "desambiguaci[óo]n|desambig|des",
    "et": "täpsustus(?:lehekülg)?", "eu": "argipen", "fa": "ابهام[\u200c ]?زدایی", "fi": "täsmennyssivu",
    "fr": (
        r"homonymie(?: [^|{}\[\]<>\n]*+)?|patronyme|paronymie|toponymie|internationalisation|isomérie"
        "|(?:arrondissements|batailles|cantons|personnes|unités|villes) homonymes"
        "|bandeau standard pour page d'homonymie"
    ),
    "fy": "tfs|neibetsjuttings", "ga": "idirdhealú", "gl": "homónimos", "he": "פירושונים", "hi": "बहुविकल्पी शब्द",
    "hr": r"(?:nova )?razdvojba\w?|preusmjerenje u razdvojbu", "hsb": "wjacezmyslnosć",
    "hu": "egy[ée]rt(?:-redir)?", "hy": "երկիմաստ|բազմիմաստություն", "id": r"disingkat|disambiguasi",
    "io": "homonimo", "is": "aðgreining", "it": "disambigua|sigla[234]|cogni", "ja": r"aimai|\w*曖昧さ回避",
    "ka": "მრავალმნიშვნელოვანი|მრავმნიშ", "ko": "동음이의(?:어)?", "ku": "cudakirin", "la": "discretiva|disnomen",
    "lb": "homonymie", "lt": "nuorodinis", "mk": "појаснување|geodis", "ms": "nyahkekaburan",
    "nds": "mehrdüdig begreep", "nl": r"dp\w*+|doorverwijspagina|cognomen", "nn": "fleirtyding",
    "no": r"peker|pekerside|etternavn|(?:to|tre)bokstavsforkortelse", "oc": "omonimia",
    "pl": "ujednoznacznienie|disambrulers|disambigc|strona ujednoznaczniająca", "pt": r"desambig\w*+",
    "qu": "sut'ichana qillqa|sjm", "ro": "dezambiguizare|dez",
    "ru": "неоднозначность|многозначность|однофамильцы|список однофамильцев|тёзки|полные тёзки", "scn": "sigla[23]",
    "sh": "višeznačna odrednica|višeznačnost|razdvojba|razvrstavanje|vzo|čvor", "sk": "rozlišovacia stránka",
    "simple": "[23]cc", "sl": "razločitev", "sq": "kthjellim", "sr": "вишезначна(?: одредница)?|višeznačna odrednica",
    "sv": r"förgrening\w*+|gren|grensida|gaffel|betydelselista|efternamn|trebokstavsför\w++|tladisambig|[34]l[ac]",
    "sw": "maana", "ta": "பக்கவழி நெறிப்படுத்தல்", "te": "(?:వివరమైన )?అయోమయ నివృత్తి", "tg": "ибҳомзудоӣ|рафъи ибҳом",
    "th": "แก้กำกวม|คำกำกวม", "tl": "paglilinaw", "tr": "anlam ?ayrımı?",
    "uk": "неоднозначність|багатозначність|disambig[gn]", "vec": "disambigua", "vi": "trang định hướng|định hướng",
    "wa": "omonimeye", "yi": "באדייטען", "zh": "消歧义(?:页)?|消歧義(?:頁)?", "zh-yue": "搞清楚",
}  # fmt: skip
"""Local names of the template by language, as MediaWiki:Disambiguationspage of each wiki and pywikibot's family file
(https://github.com/wikimedia/pywikibot) list them; where a wiki uses another, its pages go as lists do, for want of
prose."""

_TITLES = (
    "(disambiguation)", "(begriffsklärung)", "(homonymie)", "(desambiguación)", "(desambiguação)", "(desambiguació)",
    "(disambigua)", "(doorverwijspagina)", "(olika betydelser)", "(flertydig)", "(flere betydninger)",
    "(täsmennyssivu)", "(ujednoznacznienie)", "(rozcestník)", "(rozlišovacia stránka)", "(egyértelműsítő lap)",
    "(dezambiguizare)", "(anlam ayrımı)", "(định hướng)", "(значения)", "(значення)", "(пояснение)",
    "(вишезначна одредница)", "(αποσαφήνιση)", "(توضيح)", "(ابهام‌زدایی)", "(פירושונים)",
    "(曖昧さ回避)", "(消歧义)", "(消歧義)", "(동음이의)",
)  # fmt: skip
"""What such titles end with, in brackets, on wikis that write it there."""


@functools.lru_cache(maxsize=32)
def _template(language: str) -> re.Pattern[str]:
    """The template that marks a disambiguation page on the wikis of a language."""
    names = "|".join(filter(None, (_ENGLISH, _LOCAL.get(language) or _LOCAL.get(language.partition("-")[0]))))
    return re.compile(rf"\{{\{{\s*+(?:{names})\s*+[|}}\n]", re.IGNORECASE)


def is_disambiguation(text: str, title: str, language: str) -> bool:
    """Whether a page only says what else its title may mean."""
    return (
        title.lower().endswith(_TITLES)
        or "__DISAMBIG__" in text
        or _template(language.lower()).search(text) is not None
    )
