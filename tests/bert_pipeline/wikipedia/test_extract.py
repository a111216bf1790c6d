"""Wikitext becomes passages of prose, and nothing else: cases by construct, in tests/data/wikitext/passages."""

import re
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_pipeline.corpus.quality import count_broken_text, count_markup
from bert_pipeline.errors import InputError
from bert_pipeline.wikipedia import expand
from bert_pipeline.wikipedia.dump import Page, open_dump, read_pages
from bert_pipeline.wikipedia.extract import drop_reason, extract, extract_article
from bert_pipeline.wikipedia.repair import repair_punctuation
from bert_pipeline.wikipedia.site import read_site

CASE_FILES = sorted((Path(__file__).parents[2] / "data" / "wikitext" / "passages").glob("*.txt"))
SITE = read_site('<mediawiki xml:lang="en"><namespace key="6" case="first-letter">File</namespace>')


def read_cases(path: Path) -> list[object]:
    """Read the cases of a file: a name after "###", the wikitext, "---", and passages separated by blank lines."""
    cases = []
    for block in path.read_text(encoding="utf-8").split("\n### ")[1:]:
        name, _, rest = block.partition("\n")
        wikitext, _, expected = rest.rpartition("\n---")
        passages = [passage for passage in expected.strip().split("\n\n") if passage]
        cases.append(pytest.param(wikitext, passages, id=f"{path.stem}: {name}"))
    return cases


@pytest.mark.parametrize(("wikitext", "passages"), [case for path in CASE_FILES for case in read_cases(path)])
def test_passages_are_the_prose_that_a_reader_sees(wikitext, passages):
    assert extract(wikitext, SITE, "Some Title").passages == passages


@pytest.mark.parametrize("mark", ["\u2069", "\u061c", "\u200f"])
def test_marks_of_direction_are_removed(mark):
    assert extract(f"كتاب عن المدينة.{mark}", SITE, "Some Title").passages == ["كتاب عن المدينة."]


def test_long_bold_sentence_without_spaces_is_no_heading():
    sentence = "北京是中华人民共和国的首都，也是全国的政治、文化、科技创新和国际交往的中心。"
    assert extract(f"'''{sentence}'''", SITE, "Some Title").passages == [sentence]
    assert extract(f"'''{sentence[:20]}'''", SITE, "Some Title").passages == []


def test_case_files_cover_every_construct():
    num_cases = {path.stem: len(read_cases(path)) for path in CASE_FILES}
    expected = {
        "emphasis", "links", "lists", "magic_words", "references", "repair", "scripts", "tables", "tags", "unclosed"
    }  # fmt: skip
    assert expected <= set(num_cases)
    assert sum(num_cases.values()) >= 455


@pytest.mark.parametrize("path", CASE_FILES, ids=lambda path: path.stem)
def test_case_file_begins_with_a_description(path):
    assert path.read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize(
    "sentence",
    [
        "However, Smith won it in 1999. He retired afterwards, and the team never won the cup again.",
        "Later, Ali met him in 1998. They married in the next year and moved to the coast.",
        "Eventually, Apple did so in 2007. The telephone was sold in every country.",
        "Meanwhile, NASA had cut it by 1972. The rockets were given to museums.",
        "Originally, Bach had put it on for Easter 1724. The parts were lost after his death.",
    ],
)
def test_inverted_name_alone_is_no_bibliography_entry(sentence):
    assert extract(sentence, SITE).passages == [sentence]


@pytest.mark.parametrize("names", ["Smith, Jane and Jean de la Tour", "Berg, Max van der, und Otto von Lahn"])
def test_bibliography_entry_may_have_particles_among_its_names(names):
    found = extract(f"{names}. 1999. A very long and thorough history of all the cities on the river. London.", SITE)
    assert (found.passages, found.dropped["reference"]) == ([], 1)


def test_carriage_returns_are_line_ends():
    assert extract("== T ==\r\nOne two.\r\n\r\nThree.\r\n* item\r\n", SITE).passages == ["One two.", "Three."]


@pytest.mark.parametrize("after", ["", "\n", "\n\n", "\n== A heading ==", "\n* item", "\n[[Category:Towns]]", "\n----"])
def test_horizontal_rule_is_no_paragraph(after):
    assert extract(f"It is a town.\n----{after}", SITE).passages == ["It is a town."]
    assert extract(f"-----{after}\nIt is a town.", SITE).passages == ["It is a town."]


def test_article_that_only_leads_to_lists_has_no_passages():
    lists = "Foo can be one of these:\n* a place\nIn other languages it is called:\n* bar\n"
    page = Page("Foo", 1, 0, 1, False, "wikitext", lists)
    assert extract_article(page, SITE).passages == []
    with_prose = Page("Foo", 1, 0, 1, False, "wikitext", f"Foo is a word.\n\n{lists}")
    assert len(extract_article(with_prose, SITE).passages) == 3


@pytest.mark.parametrize(
    "wikitext", ["{{Infobox|a=b}}", "{{a}}{{b|{{c}}}}", "<!-- x -->", "[[Category:A]]", "== T ==\n* a"]
)
def test_page_without_prose_has_no_passage_but_counts(wikitext):
    extraction = extract(wikitext, SITE)
    assert extraction.passages == []
    assert sum(extraction.dropped.values()) >= 1


def test_dropped_elements_are_counted_by_kind():
    text = """{{Infobox|x}}
== H ==
Prose.<ref>x</ref><!-- c --> [[File:A.jpg|thumb]] <math>\\bar{x}</math> [http://x.org]
* a
* b
{|
| x
|}
[[Category:X]] [[fr:Y]]
<gallery>A.jpg</gallery>
 code = 1
 more = 2
"""
    dropped = extract(text, SITE).dropped
    assert dropped == Counter(
        {"template": 1, "heading": 1, "reference": 1, "comment": 1, "file": 1, "formula": 1, "external link": 1,
         "list": 2, "table": 1, "category": 1, "interlanguage link": 1, "gallery": 1, "code": 1}
    )  # fmt: skip


INDENTED = """; ナイト2000
: 人工知能を搭載したスーパーカーで、主人公の相棒として活躍する。
:: 会話ができるほか、自動で走行することもできる<ref>x</ref>。
: 演 - ウィリアム・ダニエルズ、日本語吹替 - 野島昭生（追加吹替：？）
: 声優。
: この項目は削除しないでください。--[[利用者:A|A]] 2010年1月1日 (金) 00:00 (UTC)
: ※県内の他の都市圏については、該当する各記事の説明を参照のこと。
: ''ここでは車両について説明する。番組については別の記事を参照のこと。''
:* 箇条書きの項目は、文であっても段落ではないので残さない。
: ここで <math>E</math> は物体が持つエネルギーを表している量である。
:{| class="wikitable"
| この表の中にある文は、どの言語の記事でも残さない。
|}
"""


def test_indented_sentences_are_kept_where_writers_indent_prose():
    extraction = extract(INDENTED, read_site('<mediawiki xml:lang="ja">'))
    assert extraction.passages == [
        "人工知能を搭載したスーパーカーで、主人公の相棒として活躍する。",
        "会話ができるほか、自動で走行することもできる。",
    ]
    assert extraction.dropped["indented sentence, kept"] == 2
    assert extraction.dropped["list"] == 8
    assert "indented sentence" not in extraction.dropped


def test_indented_sentences_are_counted_where_they_are_dropped(tmp_path):
    text = "He wrote this:\n: The house stands on a hill beside the sea.\n: See the house.\n"
    extraction = extract(text, SITE)
    assert extraction.passages == ["He wrote this:"]
    assert (extraction.dropped["indented sentence"], extraction.dropped["list"]) == (1, 1)

    # What is repaired in a dropped line is not counted
    assert "sentence without its value" in extract("It is {{CURRENTYEAR}} years old.", SITE).dropped
    assert extract(": It is {{CURRENTYEAR}} years old.", SITE).dropped.keys() <= {"list", "template", "hidden"}

    # A template file of one's own decides otherwise
    own = tmp_path / "own.toml"
    own.write_text("indented_prose = true\n")
    extraction = extract(text, SITE, templates=str(own))
    assert extraction.passages == ["He wrote this:", "The house stands on a hill beside the sea."]
    own = tmp_path / "wrong.toml"
    own.write_text('indented_prose = "yes"\n')
    with pytest.raises(InputError, match=r"wrong\.toml, line 1: found indented_prose = 'yes', expected true or false"):
        extract(text, SITE, templates=str(own))


def test_templates_of_no_file_are_counted_by_name_and_where_they_stood_for_a_word():
    extraction = extract("{{Infobox X|a}} {{infobox_x}} {{nowrap|b}} stands in {{qq}} here.", SITE)
    assert extraction.templates == Counter({"infobox x": 2, "qq": 1})
    assert extraction.lost == Counter({"qq": 1})
    assert extraction.dropped["word of an unknown template"] == extraction.dropped["sentence without its value"] == 1


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("en", "The wide and old area of it is {{qq|5}}."),
        ("en", 'He wrote "{{qq|A Title}}" and died.'),
        ("en", "The ship ''{{qq|Name}}'' sank in a storm."),
        ("en", "The anti-{{qq|war}} movement grew in size."),
        ("en", "It cost $ {{qq|5}} then, or ${{qq|6}} now."),
        ("en", "In the first year, {{qq|he}} was given a prize."),
        ("en", "{{qq|The town}} is in the north."),
        ("fr", "C'est l'{{qq|auteur}} de plusieurs livres."),
        ("it", "Fu il capo dell’{{qq|ordine}}, poi del paese."),
        ("hu", "A régi város {{qq|Pest}}ben van, és nagy."),
        ("he", "הוא נולד ב{{qq|ירושלים}} וגדל שם."),
        ("ar", "عمل ب{{qq|القاهرة}} سنة واحدة."),
        ("ko", "그는 {{qq|서울}}에서 태어났다."),
        ("ru", "Автор «{{qq|Книга}}» жил долго."),
        ("ja", "彼は「{{qq|題名}}」という本を書いた。"),
        ("ja", "彼は東京の{{qq|店}}で長く働いた。"),
        ("ja", "長く働いた。<ref>X</ref>{{qq|店}}は東京にある。"),
        ("ja", "{{qq|店}}は東京にある。"),
        ("zh", "该公司由{{qq|某人}}创办。"),
        ("zh", "他写了《{{qq|书名}}》一书。"),
        ("zh", "总部位于 {{qq|上海}}。"),
        ("th", "เขาเป็นคนของ{{qq|จังหวัด}}ในประเทศไทย"),
    ],
)
def test_sentence_without_a_word_of_an_unknown_template_is_dropped_in_every_language(language, sentence):
    extraction = extract(f"{sentence}\n\nIt has a church.", read_site(f'<mediawiki xml:lang="{language}">'))
    assert extraction.passages == ["長く働いた。"] * ("<ref>" in sentence) + ["It has a church."]
    assert extraction.lost["qq"] >= 1


def test_bracket_without_a_word_of_an_unknown_template_is_dropped():
    assert extract("It was built (by {{qq|a man}} and others) in 1950.", SITE).passages == ["It was built in 1950."]


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("en", "The dogs'{{qq|when}} food, however,{{qq|who}} is ''good''{{qq|why}} for them."),
        ("ja", "そのもの{{qq|誰}}が重要で、しかし{{qq|誰}}、彼は日本{{qq|注}}に帰った。"),
        ("zh", "北京{{qq|谁}}是首都，人口{{qq|何时}}众多{{qq}}。"),
    ],
)
def test_mark_of_an_unknown_template_leaves_its_sentence(language, sentence):
    extraction = extract(sentence, read_site(f'<mediawiki xml:lang="{language}">'))
    assert extraction.passages == [re.sub(r"\{\{.*?\}\}|''", "", sentence)]


def test_redirects_other_namespaces_and_models_are_dropped():
    assert drop_reason(Page("T", 1, 0, 1, True, "wikitext", "x"), SITE) == "redirect"
    assert drop_reason(Page("T", 1, 1, 1, False, "wikitext", "x"), SITE) == "namespace"
    assert drop_reason(Page("T", 1, 0, 1, False, "javascript", "x"), SITE) == "not wikitext"


MARKUP = [
    "{{", "}}", "[[", "]]", "{|", "|}", "|", "\n", "''", "'''", "<ref>", "</ref>", "<!--", "-->", "<div>", "=", "a",
    "Word. ", "(", ")", "[http://x ", ",", "<nowiki>", "</nowiki>", "nowrap|", "File:", ":", "*", " ", "&lt;", "{{{",
    "<math>", "</math>", "]", "-{", "}-", "convert|5|km", "\ue000", "<br/>", "__X__",
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(MARKUP), max_size=40))
def test_arbitrary_markup_leaves_no_placeholders(parts):
    for passage in extract("".join(parts), SITE).passages:
        assert passage == passage.strip()
        assert "\n" not in passage
        assert not any("\ue000" <= char <= "\ue02f" for char in passage)


def test_punctuation_is_repaired_only_at_placeholders():
    text = "f( ) , g() [ ] ; (, x) stays ."
    assert repair_punctuation(text) == text


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "min_characters", "max_broken_text"),
    [
        ("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2", 2_400_000, 6),
        ("enwiki-2014-head-truncated.xml.bz2", 4_400_000, 12),
        ("languages/arwiki-head.xml.bz2", 35_000, 0),
        ("languages/hywiki-head.xml.bz2", 20_000, 0),
        ("languages/jawiki-head.xml.bz2", 15_000, 0),
        ("languages/kowiki-head.xml.bz2", 2_000, 0),
        ("languages/mlwiki-head.xml.bz2", 4_000, 1),
        ("languages/trwiki-head.xml.bz2", 12_000, 0),
        ("languages/jawiki-every-second-page.xml.bz2", 550_000, 10),
        ("languages/mywiki-head.xml.bz2", 8_000, 0),
        ("languages/tawiki-head.xml.bz2", 5_000, 0),
    ],
)
def test_articles_have_little_markup_and_broken_text(real_data, name, min_characters, max_broken_text):
    dump = open_dump(real_data / "wikipedia" / name)
    text = ""
    num_empty = 0
    for page in read_pages(dump):
        if not drop_reason(page, dump.site):
            passages = extract(page.text, dump.site, page.title).passages
            num_empty += not passages
            text += "\n".join(passages) + "\n"
    assert len(text) > min_characters
    assert num_empty <= 4
    assert count_markup(text) <= max(2, len(text) * 20e-6)
    assert count_broken_text(text) <= max_broken_text


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from([*"{}[]a|\n", "{{", "}}", "[[", "]]", "{{a}}", "[[b]]"]), max_size=14).map("".join))
def test_brackets_of_whole_templates_and_links_are_matched(text):
    one_by_one = re.compile(r"\{\{+|\}\}+|\[\[|\]\]")
    with mock.patch.object(expand, "_BRACKETS", one_by_one):
        expected = expand.match_brackets(text)
    assert expand.match_brackets(text) == expected


@pytest.mark.parametrize("reference", ["&#xE003;", "&#57348;", "&#xe010", "&#0057391;"])
def test_reference_to_a_placeholder_is_none(reference):
    wikitext = f"The letter {reference} of this script is seldom written, <nowiki>{reference}</nowiki>as all know."
    assert extract(wikitext, SITE).passages == ["The letter of this script is seldom written, as all know."]
    longer = extract("Above it is &#xE0030; in all lists of letters.", SITE)
    assert longer.passages == ["Above it is \U000e0030 in all lists of letters."]
