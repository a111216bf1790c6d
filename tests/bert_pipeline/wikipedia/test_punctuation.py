"""The table of punctuation agrees with Unicode's properties."""

import re
import unicodedata

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import regex

from bert_pipeline.wikipedia.punctuation import (
    BRACKETS,
    CLOSERS,
    OPENERS,
    PAUSES,
    QUOTATION_MARKS,
    QUOTATIONS,
    SENTENCE_ENDS,
    one_of,
)

NOT_IN_USE = "SAMARITAN|MANDAIC|RUNIC|COPTIC OLD NUBIAN|MEDIEVAL|STENOGRAPHIC|CORNISH|PUNCTUS|VERTICAL|LOW-REVERSED"
"""Scripts and marks of manuscripts that no Wikipedia is written in, and forms for vertical text."""
NEITHER = "ETHIOPIC WORDSPACE|SYRIAC CONTRACTION|HARKLEAN|SKEWED RIGHT|SBRUL SHAD|TAI VIET|LEPCHA|KOOMUUT|FOUR DOTS"
"""Separators of words and ornaments."""


def characters(unicode_property: str) -> set[str]:
    """Return the named characters of the basic plane with a property."""
    pattern = regex.compile(rf"\p{{{unicode_property}}}")
    return {char for char in map(chr, range(0x10000)) if pattern.match(char) and unicodedata.name(char, "")}


def names(chars: set[str], ignored: str) -> set[str]:
    return {name for name in map(unicodedata.name, chars) if not re.search(ignored, name)}


def test_sentence_ends_are_those_of_unicode_except_for_the_burmese_comma():
    terminal = characters("Sentence_Terminal")
    assert names(terminal - SENTENCE_ENDS, NOT_IN_USE) == {"MYANMAR SIGN LITTLE SECTION"}
    added = "HORIZONTAL ELLIPSIS|GREEK QUESTION MARK|SOF PASUQ|^THAI|^TIBETAN"
    assert names(set(SENTENCE_ENDS) - terminal, added) == set()


def test_pauses_are_the_other_terminal_marks_of_unicode():
    terminal = characters("Terminal_Punctuation")
    assert names(terminal - SENTENCE_ENDS - PAUSES, f"{NOT_IN_USE}|{NEITHER}") == set()
    assert names(set(PAUSES) - terminal, "ARMENIAN COMMA") == set()
    assert not PAUSES & SENTENCE_ENDS


def test_openers_and_closers_have_the_categories_of_unicode():
    assert {unicodedata.category(char) for char in OPENERS} == {"Ps", "Pi"}
    assert {unicodedata.category(char) for char in CLOSERS} == {"Pe", "Pf"}
    assert all(opener in OPENERS and closer in CLOSERS for opener, closer in BRACKETS.items())
    assert names(characters("Quotation_Mark") - QUOTATION_MARKS, NOT_IN_USE) == set()
    assert {len(pair) for pair in QUOTATIONS} == {2}


@pytest.mark.parametrize("marks", [OPENERS | CLOSERS, PAUSES, SENTENCE_ENDS, "^-]\\["])
def test_class_matches_its_marks_in_python_and_re2(marks):
    pattern = re.compile(one_of(marks))
    assert all(pattern.fullmatch(mark) for mark in marks)
    assert not pattern.search("a b—1_ \\" if "\\" not in marks else "a b")
    texts = pa.array(sorted(marks))
    assert pc.all(pc.match_substring_regex(texts, f"^{one_of(marks)}$")).as_py()
