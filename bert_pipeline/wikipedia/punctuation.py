"""Punctuation of all scripts: the one table that repair, quality counts, the prose test and segmentation read."""

import re
from collections.abc import Iterable

# Brackets and quotation marks

BRACKETS = dict(
    zip("([{（［｛﹙「『｢〈《⟨⟪【〔〖〘〚\ufd3f༺༼᚛", ")]}）］｝﹚」』｣〉》⟩⟫】〕〗〙〛\ufd3e༻༽᚜", strict=True)
)
"""Opening bracket -> its closing one (categories Ps and Pe). CJK quotes with corner brackets are among them."""
PARENTHESES = {opener: BRACKETS[opener] for opener in "(（﹙"}
QUOTATIONS = ("“”", "‘’", "«»", "‹›", "„“", "„”", "‚‘", "‚’", "»«", "›‹", "””", "’’", "〝〟", "〝〞", '""', "''")
"""Pairs of quotation marks, as the languages write them: the closing mark of one is the opening mark of another."""
APOSTROPHES = frozenset("'’‘ʼ＇")
"""Quotation marks that occur inside words."""
OPENERS = frozenset([*BRACKETS, *"“‘«‹„‚〝"])
"""Marks of categories Ps and Pi: they belong to what follows."""
CLOSERS = frozenset([*BRACKETS.values(), *"”’»›〟〞"])
"""Marks of categories Pe and Pf: they belong to what precedes."""
QUOTATION_MARKS = frozenset("".join(QUOTATIONS)) | frozenset("「」『』｢｣＂＇‛‟")

# Marks between words and sentences

SENTENCE_ENDS = frozenset(
    "!.?…‼‽⁇⁈⁉․⸮"
    "։׃"  # Armenian full stop, Hebrew end of a verse
    "\u037e"  # Greek question mark; its canonical form ";" is a pause elsewhere
    "؝؞؟۔܀܁܂߹"  # Arabic, Urdu, Syriac, N'Ko
    "।॥᱾᱿꯫꫰꫱꣎꣏᥄᥅᰻᰼"  # Devanagari and other scripts of India
    "။។៕๚๛꩝꩞꩟᪨᪩᪪᪫꤯"  # Burmese, Khmer, Thai, Cham, Tai Tham, Kayah
    "།༎༏༐༑༒᠃᠉꡶꡷"  # Tibetan, Mongolian, Phags-pa
    "።፧፨᙮꘎꘏꛳꛷꓿᜵᜶꧈꧉᭚᭛᭞᭟᭽᭾"  # Ethiopic, Canadian syllabics, Vai, Bamum, Lisu, Philippine, Javanese, Balinese
    "。｡．！？︒︕︖﹒﹖﹗"  # Chinese and Japanese
)
"""Marks that end a sentence: Sentence_Terminal of Unicode 17 as far as a Wikipedia is written with them, without the
Burmese comma, and with the ellipsis and ends of verses (https://www.unicode.org/Public/17.0.0/ucd/PropList.txt)."""
PAUSES = frozenset(
    ",;:"
    "՝\u0387"  # Armenian comma, Greek semicolon
    "،؛܃܄܅܆܇܈߸"  # Arabic, Syriac, N'Ko
    "၊៖፣፤፥፦᠂᠄᠈"  # Burmese, Khmer, Ethiopic, Mongolian
    "꓾꘍꛴꛵꛶꧇᭝⹁"  # Lisu, Vai, Bamum, Javanese, Balinese, reversed comma
    "、，；：､﹐﹑﹔﹕"  # Chinese and Japanese
)
"""Commas, semicolons and colons: other marks of Unicode's Terminal_Punctuation, and the Armenian comma."""
COMMAS = frozenset(",՝،߸၊፣᠂᠈꓾꘍꛵⹁、，､﹐﹑")
COLONS = frozenset(":：﹕፥፦៖᠄꛴")
"""Pauses that lead to something."""
FULL_STOPS = frozenset(".։۔।॥။។።。｡．")
"""Marks that end a statement, in the scripts of today."""
UNSPACED_ENDS = frozenset("。！？｡")
"""Sentence ends without a space after them."""
CLOSE_UP = frozenset(",.،۔、。，")
"""Commas and full stops that follow a word without a space in every language that writes them. French puts a space
before ";", Hindi before "।", Khmer before "។"."""
SEPARATORS = PAUSES | frozenset(" \u3000/·・–—-")
"""Marks that separate words, and are nothing without one on each side."""

CJK = "\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uff01-\uffef"
"""Kana, Chinese characters and their punctuation, between which no space is written, as a class of a regular
expression."""
UNSPACED_LETTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
"""Letters of scripts without spaces between words, as a class of a regular expression: Thai, Lao, Burmese, Khmer, kana
and Chinese characters."""


def one_of(*marks: Iterable[str]) -> str:
    """Return a class of a regular expression, of Python's or RE2, that matches one of the marks."""
    return f"[{''.join(re.escape(mark) for mark in sorted(set().union(*marks)))}]"
