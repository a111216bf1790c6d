"""Leftover markup and broken text are counted, and nothing else."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_pipeline.corpus.quality import QUALITY_COUNTS, SUSPECT, count_broken_text, count_markup

MARKUP = [
    "a [[b", "a ]] b", "{{", "}}", "{| x", "|}", "a || b", "''a''", "'''a'''", "</b>", "<br />", "a <ref name=x",
    "<!-- x",
    "x -->", "&nbsp;", "a &mdash; b", "&#160;", "&#xa0;", "__TOC__", "__NOTOC__", "[http://x y]", "[//x.org y]",
    "= H =", "== H ==", "* item", "# item", "! head", ": indented", "; term", "\ue000", 'style = "x"', "colspan=2",
    "x|thumb|y",
    "злева|Карта", "miniatur|hochkant", "ملف:Berlin.jpg", "ファイル:Tokyo.svg", "Foo.jpg|thumb",
    "x|200px", "File:Foo.jpg", "~~~~", "-{zh", "}-",
]  # fmt: skip
BROKEN_TEXT = [
    "a ( ) b", "a () b", "a (; x)", "a (, x)", "( , x)", "[ ]", "a ( x)", "(x )", "a , b", "a ,, b", "a, ) b", "(x;)",
    "(x; )",
    "a . b", "end .", "1950 .", "(x) , b", "a, . b", "is “”.", 'the sign "" is', "from the Greek , i.e.",
    "at the end of the.", "such as. An", "in 1990 ($ in 2016)", "paid $.",
    "東京（）", "東京（ ）", "東京（、とうきょう）", "北京（；英語：Peking）", "北京（英語：Peking、）",
    "英語では「」である", "書名『』は",
    "Beijing（）", "上海 、北京", "これで終わり 。", "都市、、首都", "首都、。", "首都（。）",
    "ولد (، 1949) في", "برلين ( ) مدينة", "المدينة ، التي", "المدينة، ، التي", "المدينة،.", "شہر ۔", "das „“ ist",
    "le mot «»", "le mot « » est", "mot ‹ ›", "ein ‚‘ Wort",
    "彼（〜）は作家", "彼（－）は", "Life (//) is",
    "ከተማ (፣ 1949)", "शहर (; 1949)", "မြို့ (၊ ၁၉၄၉)", "քաղաք ()",
]  # fmt: skip


def is_suspect(text: str) -> bool:
    """Apply the prefilter."""
    return bool(pc.match_substring_regex(pa.array([text]), SUSPECT)[0].as_py())


@pytest.mark.parametrize("text", MARKUP)
def test_leftover_markup_is_counted(text):
    assert count_markup(text) > 0
    assert is_suspect(text)


@pytest.mark.parametrize("text", BROKEN_TEXT)
def test_broken_text_is_counted(text):
    assert count_broken_text(text) > 0
    assert is_suspect(text)


@pytest.mark.parametrize(
    "text",
    [
        'Prose (in brackets) with x < y, "quotes" and a list[0].',
        "Ada (born 1815), who was here. And so on . . . It ended.",
        "2 < 3 & 5 > 4; f(x) = x == y; [sic] {a}; P(A|B).",
        "AT&T and R&D; fish & chips; 5 | 6; a = b; f(x) = |x|; the time 12:30; Q.E.D.",
        "He said: 'It's the dogs' bowl.' It cost $5 (or £3.50), i.e. 10 €; the '90s.",
        "Sie fing damit an, 's avonds in 2016 ; la ville compte 3 milliárd €, az éves növekedés.",
        "東京（とうきょう、英語: Tokyo）は、日本の首都である。「東京」、『江戸』。（笑）",
        "برلين (1949، ألمانيا)؛ هل هي مدينة؟ नगर है । ဖြစ်သည်။ ከተማ ነው ። »a« »b« « a » « b » „a“ „b“, ”a” ”b”",
        "It is (–)-menthol, blood type A(-), モーニング娘。、Berryz工房, and »a« ›b‹ » c « « d ».",
        "A .NET programme and a .22 rifle (.45 too) in (1945–) and (non-)smokers.",
    ],
)
def test_prose_is_not_counted(text):
    assert (count_markup(text), count_broken_text(text)) == (0, 0)


PIECES = [
    *"()[]{}<>|=*#!:;,. \"'&$€/a1x", *"（）、，。；：「」『』“”„«»،؛۔።፣၊।·é字", "the", " in", ".jpg", "px",
    "\xa0", "\n", *MARKUP, *BROKEN_TEXT,
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join))
def test_prefilter_has_no_false_negatives(text):
    assert is_suspect(text) or not any(count(text) for count in QUALITY_COUNTS.values())


def test_every_match_is_counted():
    assert count_markup("A [[link]] and {{x}} with '''bold''' &nbsp; <ref name=a> here.") == 8
    assert count_broken_text("Ada ( ) was , well , here (; born) so .") == 5
