"""A page to its passages of prose.

What is dropped from the middle of a line leaves a placeholder, so that the punctuation around it, and only there, can
be repaired afterwards. Every stage is linear in the length of the page: brackets are matched with a stack, and no
regular expression runs over the same text twice.
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
    """Passages of one page, and counts of what was left out."""

    passages: list[str]
    """Running text, one string per passage, without line ends."""
    dropped: Counter[str]
    """Kind of element, as in the manifest of a corpus -> number of dropped elements."""
    templates: Counter[str]
    """Names of templates that are in no template file, if requested."""


def drop_reason(page: Page, site: Site) -> str:
    """Return why a page is not an article: "namespace", "redirect", "disambiguation", …; "" if it is one."""
    # By rising cost: only the last test searches the text.
    if page.namespace != 0:
        return "namespace"
    if page.is_redirect:
        return "redirect"
    if page.model != "wikitext":
        return "not wikitext"
    if not page.text.strip():
        return "empty"
    if _is_disambiguation(page.text, page.title, site.language):
        return "disambiguation"
    return ""


def extract_article(page: Page, site: Site, *, count_templates: bool = False, templates: str = "") -> Extraction:
    """Extract the passages of one article; none if all of them only lead to lists ("Foo may be:")."""
    extraction = extract(page.text, site, page.title, count_templates=count_templates, templates=templates)
    if all(passage.endswith(OPEN_ENDS) for passage in extraction.passages):
        extraction.dropped["fragment"] += len(extraction.passages)
        extraction.passages.clear()
    return extraction


def extract(
    text: str, site: Site, title: str = "", *, count_templates: bool = False, templates: str = ""
) -> Extraction:
    """Extract the passages of prose from wikitext; `templates` is a template file of one's own, "" for none."""
    dropped: Counter[str] = Counter()
    unknown: Counter[str] = Counter()

    # Remove private-use characters that are not ours, unify line ends
    text = remove_private_use(text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")

    # Comments, references, formulas and code, before anything in them is taken for markup
    if "<" in text:
        text = drop_opaque_tags(text, dropped)

    # Links and templates; the simple links first, because the general expansion is slow
    if "''" in text:
        text = separate_emphasis(text)
    text = replace_plain_links(text)
    if "{{" in text or "[[" in text:
        text = expand_templates(text, site, title, dropped, unknown if count_templates else None, templates)

    # Blocks, which templates may have opened or closed
    text = drop_tables(text, dropped)
    text = drop_html_blocks(text, dropped)

    # Inline markup; entities last, because "&lt;b>" is no tag. Most pages have no language variants or magic words, and
    # one character is found ten times as fast as two: the double conditions save 3 % of the time
    text = render_tags(text, dropped)
    text = replace_external_links(text, dropped)
    if "{" in text and "-{" in text:
        text = _VARIANT.sub(_choose_variant, text)
    if "_" in text and "__" in text:
        text = _MAGIC_WORD.sub("", text)
    if "&" in text:
        text = html.unescape(_MARKUP_ENTITY.sub(lambda match: protect(html.unescape(match[0])), text))

    # Lines to paragraphs; those that are prose lose their emphasis and placeholders there
    passages = PassageReader(site.language, dropped).read(text)
    return Extraction(passages=passages, dropped=dropped, templates=unknown)


# -{text}-, -{zh-hans:…; zh-hant:…}- (https://www.mediawiki.org/wiki/Writing_systems/Syntax)
_VARIANT = re.compile(r"-\{([^{}\n]*+)\}-")
# __NOTOC__, __KEIN_INHALTSVERZEICHNIS__
_MAGIC_WORD = re.compile(r"__[^\W\d_a-z]{3,}+(?:_[^\W\d_a-z]++)*+__")
# Entities of characters that would be markup: &#39;&#39; is two apostrophes and no italics, &ast; is no list
_MARKUP_ENTITY = re.compile(
    r"&(?:#(?:0*+(?:10|32|33|35|39|42|45|58|59|61|95|124)|[xX]0*+(?:[0aA]|2[01379aAdD]|3[aAbBdD]|5[fF]|7[cC]))"
    r"|apos|ast|num|equals|excl|colon|semi|verbar|vert|lowbar);"
)


def _choose_variant(match: re.Match[str]) -> str:
    """Return the first text of language variant markup; "" for conversion rules like -{H|zh-hans:a;zh-hant:b}-."""
    content = match[1]
    flags, bar, rest = content.rpartition("|")
    if flags.strip() == "R":
        return rest
    if bar and set(flags.strip()) <= set("HT-D+"):
        return ""
    # "zh-hans:a; zh-hant:b" has a code before its colon; any other colon is text.
    first = rest.partition(";")[0]
    code, colon, text = first.partition(":")
    return text.strip() if colon and code.strip().replace("-", "").isalnum() else rest


# Disambiguation pages


def _is_disambiguation(text: str, title: str, language: str) -> bool:
    """Return True if a page only lists the meanings of its title."""
    return (
        title.lower().endswith(_TITLE_ENDS)
        or "__DISAMBIG__" in text
        or _disambiguation_template(language.lower()).search(text) is not None
    )


@functools.lru_cache(maxsize=32)
def _disambiguation_template(language: str) -> re.Pattern[str]:
    """Compile the pattern of the template that marks a disambiguation page on the wikis of a language: {{disambig}}."""
    local_name = _LOCAL_NAMES.get(language) or _LOCAL_NAMES.get(language.partition("-")[0])
    names = "|".join(filter(None, (_ENGLISH_NAMES, local_name)))
    return re.compile(rf"\{{\{{\s*+(?:{names})\s*+[|}}\n]", re.IGNORECASE)


_TOPICS = (
    "airport|biology|call sign|callsign|caselaw|case law|chinese title|church|genus|geo|hn|hospital|human name|letter"
    "|letter[-–]number comb|letter[-–]number combination|math|mathematics|mathematical|mil-unit|military unit|milunit"
    "|meta|music|number|opus|opus number|phonetics|place name|political party|portal|road|school|species latin name"
    "|species latin name abbreviation|split|sports|station|surname|synagogue|taxonomy|taxonomic authority|template|tn"
    "|town hall|wikipedia|wo?o number"
).replace(" ", "[ _]")
_ENGLISH_NAMES = (
    r"disambig(?:uation)?(?![ _](?:needed|link)|[ _-]inline)(?:[ _-][^|{}\[\]<>\n]*+)?|disamb|dab|hndis"
    rf"|(?:{_TOPICS})[ _-]?(?:disambig(?:uation)?|disamb|dab|dis)(?:[ _-][^|{{}}\[\]<>\n]*+)?"
)
"""https://en.wikipedia.org/wiki/Wikipedia:Disambiguation/Templates; many other wikis have the first of these too."""

_LOCAL_NAMES = {
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
"""Language -> names of the template, as listed in MediaWiki:Disambiguationspage of each wiki and in pywikibot's family
file (https://github.com/wikimedia/pywikibot). On a wiki with another name, such pages are dropped for lack of prose."""

_TITLE_ENDS = (
    "(disambiguation)", "(begriffsklärung)", "(homonymie)", "(desambiguación)", "(desambiguação)", "(desambiguació)",
    "(disambigua)", "(doorverwijspagina)", "(olika betydelser)", "(flertydig)", "(flere betydninger)",
    "(täsmennyssivu)", "(ujednoznacznienie)", "(rozcestník)", "(rozlišovacia stránka)", "(egyértelműsítő lap)",
    "(dezambiguizare)", "(anlam ayrımı)", "(định hướng)", "(значения)", "(значення)", "(пояснение)",
    "(вишезначна одредница)", "(αποσαφήνιση)", "(توضيح)", "(ابهام‌زدایی)", "(פירושונים)",
    "(曖昧さ回避)", "(消歧义)", "(消歧義)", "(동음이의)",
)  # fmt: skip
"""Ends of titles, on wikis that mark disambiguation pages in the title."""
