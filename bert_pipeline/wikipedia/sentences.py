"""Passages to sentences, in any language.

`sentencex` proposes the boundaries, except in scripts whose marks it does not know. What it gets wrong is the same in
whole families of languages: a boundary is removed inside a bracket, before a lower-case letter, after an ordinal number
where ordinals are written "13.", and after an abbreviation that always precedes a word.
"""

import functools
import itertools
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencex

from bert_pipeline.wikipedia.languages import current_code
from bert_pipeline.wikipedia.punctuation import BRACKETS, CLOSERS, OPENERS, PAUSES, QUOTATION_MARKS, one_of


def _any_of(words: str) -> str:
    """Return the alternatives of a regular expression."""
    return "|".join(map(re.escape, words.split()))


_WORDS = tomllib.loads((Path(__file__).parent / "data" / "sentences.toml").read_text(encoding="utf-8"))


def split_sentences(text: str, language: str) -> list[str]:
    """Split a passage into stripped sentences; `language` is a code such as "en", and an unknown one means English."""
    language = _base_code(language)
    if "\n" in text and "\n\n" in text:  # which sentencex takes away
        text = text.replace("\n\n", " ")
    if text.isascii() or _OTHER_SPACE.search(text) is None:
        return _split(text, language)
    # sentencex panics at other white space than ASCII's: all rules see blanks, and positions stay
    spaced = _OTHER_SPACE.sub(" ", text)
    sentences = []
    stop = 0
    for sentence in _split(spaced, language):
        start = spaced.index(sentence, stop)
        stop = start + len(sentence)
        sentences.append(text[start:stop])
    return sentences


_OTHER_SPACE = re.compile("[\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")


def _split(text: str, language: str) -> list[str]:
    parts = [part for part in _propose(text, language) if part.strip()]
    stripped = list(map(str.strip, parts))
    in_bracket = _starts_in_bracket(parts, text) if len(parts) > 1 else ()
    has_capitals: bool | None = None  # computed only for a part that starts without one
    sentences: list[str] = []
    first = 0  # the first part of the current sentence
    for index in range(1, len(parts)):
        start = stripped[index]
        if has_capitals is None and not start[0].isupper():
            has_capitals = text != text.lower()
        is_inside = in_bracket and in_bracket[index] or _is_in_word(parts[index - 1], start)
        if not (is_inside or _continues(stripped[index - 1], start, language, has_capitals)):
            sentences.append(stripped[first] if index == first + 1 else "".join(parts[first:index]).strip())
            first = index
    if parts:
        sentences.append("".join(parts[first:]).strip())
    if "(" not in text or "(" not in [sentence[0] for sentence in sentences]:
        return sentences
    return [piece for sentence in sentences for piece in _split_brackets(sentence)]


@functools.lru_cache(maxsize=256)
def _base_code(language: str) -> str:
    return current_code(language).partition("-")[0]


# Proposed boundaries


def _propose(text: str, language: str) -> list[str]:
    """Return the parts of a text between the proposed boundaries; joined, they are the text."""
    if language == "th":
        return _split_thai(text)
    if ends := _OWN_ENDS.get(language):
        return _cut(text, (match.end() for match in ends.finditer(text)))
    masked = _mask(text, language)
    parts = _segment(masked, language)
    missed = {match.end() for match in _MISSED_END.finditer(text)}
    if masked is text and not missed:
        return parts
    return _cut(text, sorted(missed.union(list(itertools.accumulate(map(len, parts)))[:-1])))


def _segment(text: str, language: str) -> list[str]:
    """Return the parts between the boundaries of sentencex, some text at a time: it compares quotations and boundaries.

    What it finds last in a block may go on, so the next block begins there.
    """
    if len(text) <= _BLOCK_CHARACTERS:
        return list(sentencex.segment(language, text))
    cuts: list[int] = []
    start = 0
    while start + _BLOCK_CHARACTERS < len(text):
        block = text[start : start + _BLOCK_CHARACTERS]
        *ends, _ = itertools.accumulate(map(len, sentencex.segment(language, block)))
        cuts += (start + end for end in ends)
        half = _BLOCK_CHARACTERS // 2
        if ends and ends[-1] >= half:
            start += ends[-1]
        else:  # no boundary for long: go on at a blank, which is none
            start += block.rfind(" ", half) + 1 or _BLOCK_CHARACTERS
    cuts += (start + end for end in itertools.accumulate(map(len, sentencex.segment(language, text[start:]))))
    return _cut(text, cuts)


_BLOCK_CHARACTERS = 1 << 14
"""Longer than a paragraph that someone wrote; of a longer text, so much is segmented at a time."""


def _mask(text: str, language: str) -> str:
    """Replace characters that sentencex misunderstands by others; positions stay."""
    if "”" in text and " ”" in text:  # Swedish and Finnish open a quotation with the mark that closes it
        text = _OPENING_QUOTE.sub("“", text)
    if ") " in text:  # "(1) one; (2) two": it ends sentences before such items, and none behind them
        text = _ITEM_END.sub(")-", text)
    if language == "he" and '"' in text:  # in קמ"ר the sign belongs to the word, and opens no quotation
        return _GERSHAYIM.sub("״", text)
    if language in _KEPT_BEFORE_FIGURES:
        return _FIGURE_AFTER_END.sub(r"\1X", text)
    return text


def _cut(text: str, positions: Iterable[int]) -> list[str]:
    """Cut a text at ascending positions."""
    bounds = [0, *positions, len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(bounds) if start < stop]


_CLOSING = one_of(CLOSERS, "\"'")
_SPACED_ENDS = r"[।۔؟](?=\s)"  # Hindi and Urdu may be quoted
# One character first, then what must be around it: five times as fast as alternatives that begin differently
# "．" of the style that writes "，．", but not of figures and initials
_CJK_ENDS = (
    r"[。！？｡!?.।۔؟．](?:(?<=[。！？｡])|(?<=[^A-Za-zＡ-Ｚａ-ｚ\d]．)(?!\d)|(?<=[!?])(?=[\s%s])|"
    r"(?<=[a-zß-ÿ]{2}\.)(?=\s)|(?<=[।۔؟])(?=\s))"
)
_OWN_ENDS = {
    language: re.compile(rf"(?:{ends}){_CLOSING}*+\s*+")
    for languages, ends in {
        "am ti tig": rf"[።፧፨]|፡፡|[!?](?=\s)|(?<=[\u1200-\u135a]{{4}})\.(?=\s)|{_SPACED_ENDS}",
        "bo dz": rf"།[ ]?།|།(?=\s)|{_SPACED_ENDS}",
        "hy hyw": rf"[։!…](?=\s)|(?:(?<=[\w)»])|(?<=[\w)»] )):(?=\s)|(?<=\w{{3}})[․.](?=\s)|{_SPACED_ENDS}",
        "ja": _CJK_ENDS % "」』）)",
        "km": rf"[។៕]|[!?](?=\s)|{_SPACED_ENDS}",
        "lo": rf"[!?…](?=\s)|(?<=[\u0e80-\u0eff]{{4}})\.(?=\s)|{_SPACED_ENDS}",
        "my shn mnw": rf"။|[!?](?=\s)|{_SPACED_ENDS}",
        "zh gan lzh wuu yue cdo hak nan": _CJK_ENDS % "”’」』）)",
    }.items()
    for language in languages.split()
}  # fmt: skip
"""Language whose marks or spaces sentencex does not know -> the marks that end a sentence."""

_KEPT_BEFORE_FIGURES = frozenset(_WORDS["kept_before_figures"].split())
_FIRST_WORD = re.compile(rf"(?:{_any_of(_WORDS['first_words'])})\b")
# "measures 38 mm. The next", "и т. д. Затем", "for all x. Then": sentencex takes them for abbreviations before a word
_MISSED_END = re.compile(
    r"\.\s(?:(?:(?<=\d [cmk]m\.\s)|(?<=\d kg\.\s)|(?<=\bи (?:др|пр)\.\s)|(?<=\bи т\.[дп]\.\s)|(?<=\bи т\. [дп]\.\s))"
    rf"(?=[^\W\d_a-z])|(?:(?<=\s[a-uw-z]\.\s)|(?<=\susw\.\s))(?=\(?{_FIRST_WORD.pattern}))"
)
_FIGURE_AFTER_END = re.compile(r"([.!?…] )\d")
_OPENING_QUOTE = re.compile(r"(?<= )”(?=\w)")
_ITEM_END = re.compile(r"\) (?:(?<=[ (][\da-z]\) )|(?<=[ (][\divx]{2}\) )|(?<=[ (][ivx]{3}\) ))")
_GERSHAYIM = re.compile('(?<=[א-ת])"(?=[א-ת])')


def _split_thai(text: str) -> list[str]:
    """Split at spaces, which separate sentences but also phrases, names and figures: Thai has no full stop.

    A sentence begins with a word that opens one ("after", "in the year"), or with a long run without spaces that does
    not begin with a word that continues one ("and", "of", "is").
    """
    cuts = []
    start = previous = depth = 0
    for space in _THAI_SPACE.finditer(text):
        depth = max(0, depth + text.count("(", previous, space.start()) - text.count(")", previous, space.start()))
        if depth and text.find(")", space.start(), space.start() + _MAX_BRACKET_CHARACTERS) < 0:
            depth = 0  # it is never closed
        previous = space.start()
        length = space.start() - start
        if depth or length < _MIN_THAI_CHARACTERS or _THAI_UNFINISHED.search(text, max(start, previous - 8), previous):
            continue
        # An opening phrase may be short, and may also belong to the words before, mostly to a figure
        if _THAI_OPENER.match(text, space.end()):
            is_end = length >= _MIN_THAI_BEFORE_OPENER and not text[previous - 1].isdigit()
        else:
            is_end = _THAI_RUN.match(text, space.end()) is not None
            is_end &= length >= _MIN_THAI_SENTENCE or not _THAI_CLAUSE.match(text, start)
        if is_end:
            cuts.append(space.end())
            start = space.end()
    return _cut(text, cuts)


_MIN_THAI_CHARACTERS, _MIN_THAI_BEFORE_OPENER, _MIN_THAI_SENTENCE = 20, 25, 60
_MAX_BRACKET_CHARACTERS = 300
_THAI_SPACE = re.compile(r"[ \n]++")
# ๆ repeats the word before it: it may end a sentence, as any letter
_THAI_UNFINISHED = re.compile(r"(?:[,:–-]|(?<!\d)\d{1,3}|,\d{3}|และ|หรือ|กับ|ได้แก่|เช่น|คือ|ว่า|โดย|ของ|นั้น)$")
_THAI_OPENER = re.compile(f'["“]?(?:{_any_of(_WORDS["thai"]["openers"])})')
_THAI_CONTINUATION = _any_of(_WORDS["thai"]["continuations"])
_THAI_CLAUSE = re.compile(f"(?:{_any_of(_WORDS['thai']['clauses'])})")
# The spaces around ๆ, figures and Latin words separate no phrases
_THAI_RUN = re.compile(
    rf"[\"“]?(?!{_THAI_CONTINUATION})[\u0e01-\u0e2e\u0e40-\u0e44]"
    r"(?:\S| (?=[ๆ\dA-Za-z])|(?<=[ๆ\dA-Za-z]) ){24}"
)
"""A run of at least 25 characters that begins with none of the words that continue a sentence."""


# Boundaries that are removed


def _starts_in_bracket(parts: Sequence[str], text: str) -> Sequence[bool]:
    """Return for each part whether it starts inside a bracket that one of the next twelve parts closes; () if none."""
    has_others = not text.isascii() and _OTHER_BRACKET.search(text) is not None
    if "(" not in text and "[" not in text and not has_others:
        return ()
    changes = [part.count("(") - part.count(")") + part.count("[") - part.count("]") for part in parts]
    if has_others:
        others = (sum(map(_DEPTHS.__getitem__, _OTHER_BRACKET.findall(part))) for part in parts)
        changes = list(map(int.__add__, changes, others))
    if not any(changes):
        return ()
    depths = list(itertools.accumulate(changes, lambda depth, change: max(0, depth + change), initial=0))
    return [min(depths[index + 1 : index + 13]) < depths[index] for index in range(len(parts))]


_DEPTHS = dict.fromkeys(BRACKETS, 1) | dict.fromkeys(BRACKETS.values(), -1)
_OTHER_BRACKET = re.compile(one_of({*BRACKETS, *BRACKETS.values()} - set("()[]{}")))


def _is_in_word(end: str, start: str) -> bool:
    """Return True for a boundary without a space inside "pro-U.S.", "ASP.NET" or ".NET", but not "the USA.They"."""
    if end[-1] != "." or not start[0].isupper():
        return False
    before = end[-2:-1]
    return before == " " and not _FIRST_WORD.match(start) or before.isupper() and not start[1:2].islower()


def _continues(end: str, start: str, language: str, has_capitals: bool | None) -> bool:
    """Return True if a sentence ending in `end` continues with the part `start` of a text with or without capitals."""
    last = end[-1]
    if len(start) <= _MAX_WORDLESS_CHARACTERS and _WORD.search(start) is None:  # the "。" of （「そうだ。」）。
        return True
    if not start[0].isupper():  # most sentences start with a capital and skip these
        if start[0] in _NEVER_FIRST and not (start[0] in _EITHER_QUOTES and start[1:2].isalnum()):  # »Ja«, ”Ja”
            return True
        if last in "」』" and "\u3041" <= start[0] <= "\u309f":  # 「…。」と言った
            return True
        if has_capitals and _starts_in_lower_case(start):
            return True
        if start[0] == "(" and _CITATION.match(start):
            return True
    if last == "』" and end[-2:-1] in _TITLE_ENDS:  # 『ハロー・ドリー!』公開
        return True
    if last in ".)" and len(end) <= 4 and _NUMBER.match(end):
        return True
    if last == "!" and start.startswith(end[end.rfind(" ") + 1 :].lstrip(_OPENING)):  # "Tora! Tora! Tora!"
        return True
    if last != ".":
        return False
    if start[0].isdigit() and _TAKES_NUMBER.search(end, max(0, len(end) - 6)):
        return True
    before = end[-2:-1]
    if before in _ORDINAL_ENDS:
        ordinal = _ORDINAL.search(end, max(0, len(end) - 40))
        if ordinal and not ordinal["roman"] and _AFTER_ORDINAL.match(start):
            return True
        if ordinal and language in _ORDINAL_LANGUAGES and not _SCORE.search(end, max(0, len(end) - 8)):
            return ordinal["roman"] is None or language in _ROMAN_FIRST or not ordinal["name"]
    elif before == "m":
        if end[-4:-1] in ("a.m", "p.m") and _TIME_ZONE.match(start):
            return True
    elif before in "rгр" and len(end) <= 24 and _YEAR_ALONE.match(end):
        return True
    abbreviations, max_letters = _ABBREVIATIONS.get(language, (None, 0))
    # A longer word is none of them: no search at the end of most sentences
    if abbreviations is None or end[-max_letters - 2 : -1].isalpha() and len(end) > max_letters + 1:
        return False
    return abbreviations.search(end, max(0, len(end) - 12)) is not None


def _starts_in_lower_case(text: str) -> bool:
    letter = _FIRST_LETTER.match(text)
    # Georgian letters count as lower case, but their capitals are not in use.
    if letter is None or not letter[1].islower() or "\u10d0" <= letter[1] <= "\u10ff":
        return False
    return _LOWER_CASE_FIRST.match(text) is None


_NEVER_FIRST = CLOSERS | PAUSES | {"/"}
_TITLE_ENDS = frozenset("!?！？")
_OPENING = "".join(OPENERS | QUOTATION_MARKS)
_EITHER_QUOTES = "»›”"
"""Closing marks that open a quotation in some languages: in German books, in Swedish."""
_MAX_WORDLESS_CHARACTERS = 6
_WORD = re.compile(r"[^\W²³_]")
# The first letter, behind a dash, an equals sign, quotation marks or brackets
_FIRST_LETTER = re.compile(rf"(?:{one_of(OPENERS, QUOTATION_MARKS, '–—-=')}|\s)*+([^\W\d_])")
_LOWER_CASE_FIRST = re.compile(rf"(?:{_any_of(_WORDS['lower_case_first'])})(?!\w)")
_NUMBER = re.compile(r"(?:^|[;,:] )\(?(?:\d{1,2}|[A-Z])[.)]$")  # of an item, or the "Q." and "A." of a dialogue
_TAKES_NUMBER = re.compile(r"\b(?:[Nn]os?|[Ff]igs?|[Oo]p|[Cc]h|Art|[Ss]ec|[Pp]p?|[Pp]aras?|[Ee]qs?|[Vv]v?|[Nn]r)\.$")
# "(1964).", "(Psalms 133:1)." after a title or a quotation, "(EOM)," in a row: no sentence, as its mark is outside
_CITATION = re.compile(r"\((?:\w{1,20}|[^()\d]{0,30}\d[^()]{0,30})\)[.,;:]")

_ORDINAL_LANGUAGES = frozenset(_WORDS["ordinals"].split())
_ROMAN_FIRST = frozenset(_WORDS["roman_before_name"].split())
_ORDINAL_ENDS = frozenset("0123456789IVXL")
_ORDINAL = re.compile(r"(?P<name>[^\W\d_a-z]\w++ )?(?<![\w.,])(?:\d{1,2}0?|(?P<roman>[IVXL]+))\.$")
_SCORE = re.compile(r"(?:\d:|(?<!\S)[-+−])\d++\.$")  # "endete 3:2.", "−15."; not the ordinals "5./6.", "10–12."
_AFTER_ORDINAL = re.compile(rf"(?:{_any_of(_WORDS['after_ordinals'])})\b")
_TIME_ZONE = re.compile(r"(?:[A-Z][a-z]+ (?:(?:Standard|Daylight|Summer|Mean|Universal) )?Time|[A-Z]{1,2}[SD]?T|UTC)\b")
# "W 1930 r. Berlin", "W maju 1930 r. Berlin": they begin with a preposition, unlike the sentence "Zmarł w 1930 r."
_YEAR_ALONE = re.compile(rf"(?:{_any_of(_WORDS['before_years'])}) (?:[^\W\d_]++ )?\d{{4}} [rгр]\.$")

_ABBREVIATIONS = {
    language: (re.compile(rf"(?<![^\W\d_])(?<!\.)(?:{_any_of(words)})\.$", re.IGNORECASE), max(map(len, words.split())))
    for language, words in _WORDS["abbreviations"].items()
}

_SENTENCE_IN_BRACKETS = re.compile(
    r"\([^()a-z](?:[^()]++|\([^()]*+\))++(?:(?<=[.!?])|(?<=[.!?][\"”’]))\) (?=[^\W_a-z]|[\"“])"
)
"""It starts with a capital and has at least a few words, unlike "(U.S.) Army"."""


def _split_brackets(sentence: str) -> list[str]:
    """Split off a sentence in brackets at the start."""
    if sentence[0] != "(" or (match := _SENTENCE_IN_BRACKETS.match(sentence)) is None:
        return [sentence]
    inside = match[0].strip()
    return [inside, sentence[match.end() :].strip()] if inside.count(" ") >= 3 else [sentence]
