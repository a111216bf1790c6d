"""Any text is digested, in time that grows with its length: pages with lines changed, characters of every category."""

import random
import sys
import unicodedata
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import count_steps

from bert_pipeline.corpus.batches import count_flaws
from bert_pipeline.corpus.documents import content_digest, make_document
from bert_pipeline.corpus.readers import read_book
from bert_pipeline.wikipedia.dump import Page, open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract_article
from bert_pipeline.wikipedia.sentences import split_sentences
from bert_pipeline.wikipedia.site import Site, read_site

WIKITEXT = Path(__file__).parents[2] / "data" / "wikitext"
PAGES = [block for path in sorted(WIKITEXT.rglob("*.txt")) for block in path.read_text().split("\n### ")]
LANGUAGES = ("en", "de", "fr", "ru", "he", "ar", "hi", "th", "ja", "zh", "ko", "my", "am", "hy")
SITES = [read_site(f'<mediawiki xml:lang="{code}">') for code in LANGUAGES]
LINES = ["----", "|}", "}}", "</ref>", "", "{|", "{{", "[[", "]]", "<ref>", "''", "-{", "}-", "<!--", "= =", ":", "* "]


def characters_by_category() -> dict[str, list[str]]:
    found = defaultdict(list)
    for code in range(sys.maxunicode + 1):
        found[unicodedata.category(chr(code))].append(chr(code))
    del found["Cs"]  # halves of characters, which no reader lets through
    return found


CHARACTERS = characters_by_category()
characters = st.sampled_from(sorted(CHARACTERS)).flatmap(lambda category: st.sampled_from(CHARACTERS[category]))
change = st.tuples(
    st.sampled_from(["delete", "repeat", "cut", "replace", "insert"]),
    st.integers(0, 10**6),
    st.integers(0, 200),
    st.one_of(st.sampled_from(LINES), st.lists(characters, max_size=8).map("".join)),
)


def changed(text: str, changes: list[tuple[str, int, int, str]]) -> str:
    """Return a text with lines deleted, repeated, cut and replaced, and characters inserted."""
    lines = text.split("\n")
    for kind, place, number, new in changes:
        index = place % len(lines)
        if kind == "delete" and len(lines) > 1:
            del lines[index]
        elif kind == "repeat":
            lines[index:index] = [lines[index]] * (number % 4)
        elif kind == "cut":
            lines[index] = lines[index][:number]
        elif kind == "replace":
            lines[index] = new
        else:
            lines[index] = lines[index][:number] + new + lines[index][number:]
    return "\n".join(lines)


def digest(text: str, site: Site) -> None:
    """Do with a page, and with plain text, what the corpus job does."""
    page = Page(title="T", namespace=0, page_id=1, revision_id=1, is_redirect=False, model="wikitext", text=text)
    drop_reason(page, site)
    for passages in (extract_article(page, site).passages, read_book(text)):
        document = make_document(document_id="w:1", title="T", language=site.language, passages=passages)
        if document is not None:
            assert all(sentence and sentence == sentence.strip() for sentence in document.sentences)
            content_digest(document)
            count_flaws(pa.array(document.sentences, pa.string()))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PAGES), st.lists(change, max_size=12), st.sampled_from(SITES))
def test_page_with_changed_lines_is_digested(text, changes, site):
    digest(changed(text, changes), site)


@pytest.mark.parametrize("line", LINES)
def test_line_of_markup_may_be_anywhere(line):
    rng = random.Random(line)
    for text in rng.sample(PAGES, 6):
        lines = text.split("\n")
        for place in {len(lines), rng.randint(0, len(lines))}:
            digest("\n".join([*lines[:place], line, *lines[place:]]), SITES[0])


@pytest.mark.parametrize("category", sorted(CHARACTERS))
def test_characters_of_every_category_are_digested(category):
    rng = random.Random(category)
    some = CHARACTERS[category]
    for char in sorted({*filter(str.isspace, some), *rng.sample(some, min(12, len(some)))}):
        text = f"He lives in block B{char}. It is{char} far{char}away.{char}"
        lines = [text, char, f"{char}\n{char}a. {char}B.", f"''{char}''", f"<b {char}>", f"({char})", f"----{char}"]
        lines += [f"{{{{{char}|{char}}}}}", f"[[{char}|{char}]]", f"[[File:{char}|{char}]]", f"-{{{char}:{char}}}-"]
        digest("\n\n".join(lines), SITES[ord(char) % len(SITES)])
        for language in rng.sample(LANGUAGES, 3):  # no character is lost
            assert "".join("".join(split_sentences(text, language)).split()) == "".join(text.split())


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(PAGES), st.lists(change, max_size=12))
def test_steps_grow_with_the_length_of_a_changed_page(text, changes):
    unit = changed(text, changes)[:1500] + "\n"
    digest(unit, SITES[0])  # what is done once in a process does not count
    assert count_steps(unit * 6, SITES[0]) <= 2.5 * count_steps(unit * 3, SITES[0]) + 1000


@pytest.mark.real_data
def test_pages_of_dumps_with_changed_lines_are_digested(real_data):
    rng = random.Random(0)
    for path in sorted((real_data / "wikipedia").rglob("*.xml*")):
        dump = open_dump(path)
        pages = [page.text for page in read_pages(dump) if page.namespace == 0 and len(page.text) < 20_000]
        for text in rng.sample(pages, min(3, len(pages))):
            changes = [
                (rng.choice(["delete", "repeat", "cut", "replace", "insert"]), rng.randrange(10**6), rng.randrange(200),
                 rng.choice([*LINES, rng.choice(CHARACTERS[rng.choice(sorted(CHARACTERS))])]))
                for _ in range(60)
            ]  # fmt: skip
            digest(changed(text, changes), dump.site)
