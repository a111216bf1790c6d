"""Articles as wikitext: infoboxes, links, references, inline templates, tables, lists and the pages around them."""

import random
from collections.abc import Iterable

from bert_pipeline.sample.articles import Article
from bert_pipeline.sample.grammar import with_marks
from bert_pipeline.sample.lexicon import ARTICLES, Trade
from bert_pipeline.sample.world import Organization, Person, Town, Work, World

GENERATED_NOTICE = "This is a generated sample: every name and fact in it is invented."


def article_wikitext(article: Article, titles: frozenset[str], rng: random.Random) -> str:
    """The whole page source of an article."""
    infobox: str = ARTICLES["infoboxes"].get(article.kind, "")
    parts = [infobox.format(article.entity), _hatnote(article, rng)]
    linked: set[str] = {article.title}
    # `linked` lasts for the article: only the first mention of a title is a link, as on Wikipedia.
    for section in article.sections:
        if section.heading:
            parts.append(f"== {section.heading} ==")
            parts.append(_furniture(article, section.heading, rng))
        for number, paragraph in enumerate(section.paragraphs):
            sentences = [_sentence(sentence, titles, linked, rng) for sentence in paragraph]
            if not section.heading and number == 0:
                sentences[0] = _bold_subject(sentences[0], article)
            parts.append(" ".join(sentences))
    parts.append(_see_also(article, rng, titles))
    parts.append("== References ==\n{{Reflist}}")
    categories = ["Generated articles", *ARTICLES["categories"].get(article.kind, ())]
    parts.append("\n".join(f"[[Category:{category.format(article.entity)}]]" for category in categories))
    return "\n\n".join(part for part in parts if part) + "\n"


def redirect_wikitext(target: str) -> str:
    """A redirect page."""
    return f"#REDIRECT [[{target}]]\n\n{{{{R from other name}}}}\n"


def disambiguation_wikitext(title: str, targets: Iterable[str]) -> str:
    """A disambiguation page."""
    lines = "\n".join(f"* [[{target}]]" for target in targets)
    return f"'''{title}''' may refer to:\n\n{lines}\n\n{{{{Disambiguation}}}}\n"


def talk_wikitext(title: str) -> str:
    """A talk page."""
    return (
        "{{Talk header}}\n\n== Sources ==\n\n"
        f"Where do the facts about [[{title}]] come from? [[User:Sample bot|Sample bot]] 12:00, 1 January 2020 (UTC)\n"
        f":{GENERATED_NOTICE} [[User:Sample bot|Sample bot]] 12:05, 1 January 2020 (UTC)\n"
    )


def main_page_wikitext(world: World) -> str:
    """The project page that says what the encyclopedia is."""
    return (
        f"'''Samplewiki''' is an invented encyclopaedia. {GENERATED_NOTICE}\n\n"
        f"It was drawn with the seed {world.seed} and tells of {len(world.persons)} persons, {len(world.towns)} towns, "
        f"{len(world.organizations)} organizations and {len(world.works)} works.\n"
    )


def _sentence(sentence: str, titles: frozenset[str], linked: set[str], rng: random.Random) -> str:
    def render(kind: str, surface: str, target: str) -> str:
        if not target or target not in titles or target in linked:
            return f"''{surface}''" if kind == "MISC" and " " in surface else surface
        linked.add(target)
        return f"[[{target}]]" if target == surface else f"[[{target}|{surface}]]"

    text = with_marks(sentence, render)
    # A few sentences have a reference, a comment or a template in them.
    chance = rng.random()
    if chance < 0.04:
        year, page = rng.randrange(1850, 1990), rng.randrange(1, 400)
        text += f"<ref>{{{{cite book |title=Annals |year={year} |page={page}}}}}</ref>"
    elif chance < 0.06:
        text += '<ref name="annals" />'
    elif chance < 0.07:
        text += "<!-- a source is wanted here -->"
    elif chance < 0.09 and " river " in text:
        text = text.replace(" river ", " {{nowrap|river}} ", 1)
    return text


def _bold_subject(sentence: str, article: Article) -> str:
    for subject in (article.title, article.title.lower()):
        if subject in sentence:
            return sentence.replace(subject, f"'''{subject}'''", 1)
    return sentence


def _hatnote(article: Article, rng: random.Random) -> str:
    if rng.random() < 0.05:
        return f"{{{{About|the {article.kind}|other uses|{article.title} (disambiguation)}}}}"
    return ""


def _furniture(article: Article, heading: str, rng: random.Random) -> str:
    """Return the parts of an article other than prose, under some headings."""
    entity = article.entity
    # Tables, images, lists and quotations: constructs that the extraction has to drop or to read.
    if isinstance(entity, Town) and heading == "Character":
        rows = "".join(f"|-\n| {year} || {rng.randrange(2, 90) * 100:,}\n" for year in range(1700, 1901, 50))
        return f'{{| class="wikitable"\n|+ Population\n! Year !! Inhabitants\n{rows}|}}'
    if isinstance(entity, Town) and heading == "History":
        return (
            f"[[File:{entity.title} old map.jpg|thumb|right|A map of [[{entity.title}]] from {entity.founded + 400}]]"
        )
    if isinstance(entity, Work) and heading == "Plot":
        words = [noun.plural for noun in entity.trade.goods]
        return "\n".join(f"* chapter {number}: ''{word}''" for number, word in enumerate(words, start=1))
    if isinstance(entity, Organization) and heading == "Activities":
        return "\n".join(
            f"; {noun.plural}\n: kept in the {entity.trade.places[0].singular}" for noun in entity.trade.tools
        )
    if isinstance(entity, Person) and heading == "Death and legacy" and rng.random() < 0.2:
        return f"{{{{Quote|text=Nobody knew more about {entity.trade.goods[0].plural}.|author={entity.mentor}}}}}"
    return ""


def _see_also(article: Article, rng: random.Random, titles: frozenset[str]) -> str:
    entity = article.entity
    if isinstance(entity, Trade) or rng.random() < 0.5:
        return ""
    return f"== See also ==\n* [[{entity.trade.title}]]" if entity.trade.title in titles else ""
