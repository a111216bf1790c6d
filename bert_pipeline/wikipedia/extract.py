"""Wikitext of one page to its passages of prose.

The stages run once each over the page: opaque tags (comments, references, formulas, code), plain links, nested
templates and links, tables and HTML blocks, inline markup, and at last line by line. What is dropped from the middle
of a line leaves a mark, so that the punctuation around it, and only there, can be mended afterwards. Every stage is
linear in the length of the page: brackets are matched with a stack, and no expression runs over the same text twice.
"""

import dataclasses
import functools
import html
import re
from collections import Counter

from bert_pipeline.wikipedia.dump import Page, Site
from bert_pipeline.wikipedia.expand import expand_templates, replace_external_links, replace_plain_links
from bert_pipeline.wikipedia.markup import (
    drop_html_blocks,
    drop_opaque_tags,
    drop_tables,
    render_tags,
    separate_emphasis,
)
from bert_pipeline.wikipedia.paragraphs import OPEN_ENDS, PassageReader
from bert_pipeline.wikipedia.placeholders import protect, remove_private_use


@dataclasses.dataclass
class Extraction:
    """What one page gave."""

    passages: list[str]
    """Running text, one string a passage, without line ends."""
    dropped: Counter[str]
    """Kind of element -> how many were dropped."""
    templates: Counter[str]
    """Names of dropped templates, where asked for."""


def extract(text: str, site: Site, title: str = "", *, count_templates: bool = False) -> Extraction:
    """Return the passages of prose of a page's wikitext."""
    dropped: Counter[str] = Counter()
    templates: Counter[str] = Counter()
    text = remove_private_use(text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "<" in text:
        text = drop_opaque_tags(text, dropped)
    if "''" in text:
        text = separate_emphasis(text)
    text = replace_plain_links(text)
    if "{{" in text or "[[" in text:
        text = expand_templates(text, site, title, dropped, templates if count_templates else None)
    text = drop_tables(text, dropped)
    text = drop_html_blocks(text, dropped)
    text = render_tags(text, dropped)
    text = replace_external_links(text, dropped)
    if "{" in text and "-{" in text:  # one sign is looked for ten times as fast as two: together 3 % of the time
        text = _VARIANT.sub(_choose_variant, text)
    if "_" in text and "__" in text:
        text = _MAGIC_WORD.sub("", text)
    if "&" in text:
        text = html.unescape(_MARKUP_BY_ENTITY.sub(lambda match: protect(html.unescape(match[0])), text))
    passages = PassageReader(site.language, dropped).read(text)
    return Extraction(passages=passages, dropped=dropped, templates=templates)


_VARIANT = re.compile(r"-\{([^{}\n]*+)\}-")
_MAGIC_WORD = re.compile(r"__[^\W\d_a-z]{3,}+(?:_[^\W\d_a-z]++)*+__")
_MARKUP_BY_ENTITY = re.compile(
    r"&(?:#(?:0*+(?:10|32|33|35|39|42|45|58|59|61|95|124)|[xX]0*+(?:[0aA]|2[01379aAdD]|3[aAbBdD]|5[fF]|7[cC]))"
    r"|apos|ast|num|equals|excl|colon|semi|verbar|vert|lowbar);"
)
"""Entities of signs that would be markup: &#39;&#39; is two apostrophes, &#42; a star."""


def _choose_variant(match: re.Match[str]) -> str:
    """Language variant markup: -{text}- and -{zh-hans:…; zh-hant:…}- show their first text, rules show none."""
    content = match[1]
    flags, bar, rest = content.rpartition("|")
    if flags.strip() == "R":
        return rest
    if bar and set(flags.strip()) <= set("HT-D+"):
        return ""
    first = rest.partition(";")[0]
    code, colon, text = first.partition(":")
    return text.strip() if colon and code.strip().replace("-", "").isalnum() else rest


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


def drop_reason(page: Page, site: Site) -> str:
    """Why a page is no article to read: "namespace", "redirect", "disambiguation", …; "" when it is one."""
    if page.namespace != 0:
        return "namespace"
    if page.is_redirect:
        return "redirect"
    if page.model != "wikitext":
        return "not wikitext"
    if not page.text.strip():
        return "empty"
    if is_disambiguation(page.text, page.title, site.language):
        return "disambiguation"
    return ""


def extract_article(page: Page, site: Site, *, count_templates: bool = False) -> Extraction:
    """The passages of one article."""
    extraction = extract(page.text, site, page.title, count_templates=count_templates)
    if all(passage.endswith(OPEN_ENDS) for passage in extraction.passages):  # what leads to lists, without a sentence
        extraction.dropped["fragment"] += len(extraction.passages)
        extraction.passages.clear()
    return extraction
