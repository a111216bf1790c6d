"""Repair the prose around dropped elements: first whole sentences, then the punctuation.

A formula or an unknown value is a word of its sentence: "for every FORMULA, the area is FORMULA" says little without
it. `repair_sentences` removes clauses and sentences that consist of little else. Any other dropped element leaves at
most odd punctuation, "Greece ( ; born 1950)", which `repair_punctuation` corrects. The rules are the same in every
language, except for a few English words in brackets.
"""

import itertools
import re
from collections import Counter

from bert_pipeline.wikipedia.placeholders import DROPPED, FORMULA, UNKNOWN_VALUE
from bert_pipeline.wikipedia.punctuation import (
    APOSTROPHES,
    BRACKETS,
    CJK,
    CLOSE_UP,
    CLOSERS,
    COLONS,
    FULL_STOPS,
    OPENERS,
    PARENTHESES,
    PAUSES,
    QUOTATION_MARKS,
    QUOTATIONS,
    SENTENCE_ENDS,
    SEPARATORS,
    UNSPACED_ENDS,
    UNSPACED_LETTERS,
    one_of,
)

_OPEN, _CLOSE, _PAUSE = one_of(PARENTHESES), one_of(PARENTHESES.values()), one_of(PAUSES)
_QUOTE = one_of(QUOTATION_MARKS)

# Sentences without their formula or value

_MISSING = f"[{UNKNOWN_VALUE}{FORMULA}]"
_MIN_WORDS_PER_FORMULA = 4
"""With fewer, a sentence is removed: "it may mean"; a bracket, with less than twice as many."""

# An innermost bracket of at most 300 characters: "(read x bar)"
_BRACKET = re.compile(rf"{_OPEN}(?:(?!{_OPEN}|{_CLOSE}).){{0,300}}{_CLOSE}")
# The end of a sentence: ". " of "is true. The next", '." ' of 'is "true." The next', "。"; not ". " of "J. Smith",
# "St. John", "31. Mai" or "cf. the next", nor any in a bracket: where in doubt, two sentences are left together
_SENTENCE_END = re.compile(
    rf"({_OPEN}(?:(?!{_OPEN}|{_CLOSE}|{one_of(UNSPACED_ENDS)}).){{0,300}}{_CLOSE})"
    rf"|(?<!\b\w)(?<!\b\d\d)(?<!\b[^\W\d_a-z][a-z])(?<!\b[^\W\d_a-z][a-z][a-z]){one_of(SENTENCE_ENDS)}"
    rf"(?:{_QUOTE}|{one_of(CLOSERS, DROPPED)})*+ ++(?=[\W_]{{0,20}}+(?:[^\W_a-z]|$))|{one_of(UNSPACED_ENDS)}"
)
# Several missing words with little between them: "FORMULA, FORMULA, and FORMULA", "FORMULA is FORMULA"
_AND_MISSING = rf"[ {DROPPED}]++(?:[^\W\d_]{{1,4}} [ {DROPPED}]*+)?+{_MISSING}"
_COMMA_MISSING = rf"[ {DROPPED}]*+{_PAUSE}[ {DROPPED}]*+{_MISSING}"
_ROW = re.compile(
    rf"({_MISSING})(?:(?:{_COMMA_MISSING})++(?:(?:[ {DROPPED}]*+{_PAUSE})?{_AND_MISSING})?|(?:{_AND_MISSING})++)"
)
# What belongs to a missing word: "FORMULA = 5", "FORMULA-th", "FORMULA's", the hyphen of "FORMULA-dimensional"
_ATTACHED = re.compile(
    rf" ?[=<>≤≥≈+] ?(?={_MISSING})|(?<={_MISSING})(?: ?[=<>≤≥≈+]|['’-]?[^\W\d_]{{1,2}}\b|['’-](?=\w))"
)
# A clause of up to three words that ends with its missing one: ", such as FORMULA"
_CLAUSE_END = rf"(?=(?:{_QUOTE}|[{DROPPED} ])*+(?:{one_of(PAUSES, SENTENCE_ENDS, PARENTHESES.values(), '–—')}|$))"
_SHORT_CLAUSE = re.compile(
    rf"(?<={one_of(PAUSES, PARENTHESES, '–—')}) ?(?:[^\W\d_][\w.]{{0,20}} ){{0,3}}[{UNSPACED_LETTERS}]{{0,9}}"
    rf"{_MISSING}{_CLAUSE_END}"
)
# Short words that lead to a missing one at the end of a clause: "For all FORMULA, ", " as" of "defined as FORMULA."
_FIRST_WORDS = re.compile(
    rf"^((?:[{DROPPED} ]|{_QUOTE})*+)(?:[^\W\d_]{{1,4}} ){{0,2}}{_MISSING}[{DROPPED} ]*+{_PAUSE} *+(.)"
)
_LAST_WORD = re.compile(rf"(?<=\w) [^\W\d_]{{1,4}} {FORMULA}{_CLAUSE_END}")


def repair_sentences(text: str, dropped: Counter[str]) -> str:
    """Replace formulas and unknown values in a paragraph by DROPPED, and remove what says little without them.

    Removed sentences are counted in `dropped`, as "sentence without its formula" or "sentence without its value".
    """
    text = _BRACKET.sub(_repair_bracket, text)
    ends = [0, *(match.end() for match in _SENTENCE_END.finditer(text) if not match[1]), len(text)]
    return "".join(_repair_sentence(text[start:end], dropped) for start, end in zip(ends, ends[1:]))


def _repair_bracket(bracket: re.Match[str]) -> str:
    min_words = 2 * _MIN_WORDS_PER_FORMULA * bracket[0].count(FORMULA)
    return DROPPED if UNKNOWN_VALUE in bracket[0] or count_words(bracket[0]) < min_words else bracket[0]


def _repair_sentence(sentence: str, dropped: Counter[str]) -> str:
    """Return a sentence with DROPPED in place of its missing words, or DROPPED alone if it says little without them."""
    if UNKNOWN_VALUE not in sentence and FORMULA not in sentence:
        return sentence
    kind = "value" if UNKNOWN_VALUE in sentence else "formula"
    sentence = _ATTACHED.sub("", _ROW.sub(r"\1", sentence))
    min_words = _MIN_WORDS_PER_FORMULA * sentence.count(FORMULA)
    # Clauses first, so that "As of VALUE, the town is old" has no value left
    sentence = _FIRST_WORDS.sub(lambda words: words[1] + words[2].upper(), sentence)
    sentence = _LAST_WORD.sub(DROPPED, _SHORT_CLAUSE.sub(DROPPED, sentence))
    num_words = count_words(sentence)
    if num_words >= min_words and UNKNOWN_VALUE not in sentence:
        return sentence.replace(FORMULA, DROPPED)
    if num_words:
        dropped[f"sentence without its {kind}"] += 1
    return DROPPED


# Punctuation around dropped elements

_STRAIGHT_QUOTES = APOSTROPHES | {'"'}
_PAIRS = frozenset([*map("".join, BRACKETS.items()), *QUOTATIONS])
_AMBIGUOUS = frozenset(pair[0] for pair in QUOTATIONS) & frozenset(pair[1] for pair in QUOTATIONS)
"""Marks that open quotations in one language and close them in another: "«a»", "»a«"."""
_DASHES = frozenset("–—")
_SEPARATORS = "".join(SEPARATORS)
_CJK = re.compile(f"[{CJK}]{{2}}")
# Dropped elements with only separators between them count as one: "DROPPED, DROPPED or DROPPED"
_IN_ROW = one_of(PAUSES, "/–~〜～－―")
_DROPPED_ROW = re.compile(rf"{DROPPED}(?: *+(?:{_IN_ROW} *+|(?:and|or)(?=[ {DROPPED}]) *+)?+{DROPPED})++")
# What only leads to a dropped element: "English pronunciation:" of "(English pronunciation: *; born 1950)", or one of a
# few English words: "(pronounced *; born 1950)", "(born 1950, or *)"
_LEAD_IN_WORDS = ("or", "and", "from", "in", "at", "also", "see", "pronounced")
_LEAD_IN = re.compile(
    rf"(?:(?<={one_of(OPENERS, PAUSES)})|^)(?:(?!{one_of(OPENERS, CLOSERS, PAUSES)}).){{1,60}}{one_of(COLONS)}$"
    rf"|(?<={_OPEN})(?:{'|'.join(_LEAD_IN_WORDS)})$"
)
_LAST_LEAD_IN = re.compile(rf"(?<= )(?:{'|'.join(_LEAD_IN_WORDS)})$")


def repair_punctuation(text: str) -> str:
    """Remove DROPPED from a passage, with the punctuation it leaves: "( ; born 1950)", "Greek , that is"."""
    if DROPPED not in text:
        return text
    first, *rest = _DROPPED_ROW.sub(_merge_row, text).split(DROPPED)
    pieces = _in_pieces(first)  # only the last piece is read or changed, so the work is linear
    for part in rest:
        if not part:
            continue
        for _ in range(4):  # brackets in brackets "([DROPPED])", words that lead there "(from DROPPED)"
            while len(pieces) > 1 and not pieces[-1].rstrip():
                space = pieces.pop()
                pieces[-1] += space[:1]
            if not part:
                break
            pieces[-1], part, is_open = _close_gap(pieces[-1], part, is_start=len(pieces) == 1)
            if not is_open:
                break
        if part:
            pieces += _in_pieces(part)
    return "".join(pieces)


_PIECE_CHARACTERS = 1024


def _in_pieces(text: str) -> list[str]:
    """Cut a text into pieces, each far longer than what is read of it."""
    cuts = range(len(text) % _PIECE_CHARACTERS or _PIECE_CHARACTERS, len(text), _PIECE_CHARACTERS)
    return [text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)])]


def _merge_row(row: re.Match[str]) -> str:
    """Return one DROPPED for several, with a space where a word follows: "one.<ref/> <ref/>Two"."""
    next_char = row.string[row.end() : row.end() + 1]
    return f"{DROPPED} " if " " in row[0] and next_char.isalnum() else DROPPED


def _close_gap(before: str, after: str, *, is_start: bool) -> tuple[str, str, bool]:
    """Return the texts around a dropped element as they read without it, and True if something around it was removed.

    The dropped element is written as * in the examples. `is_start` if `before` starts the passage.
    """
    left, right = before.rstrip(), after.lstrip()
    last, next_char = left[-1:], right[:1]
    # Brackets and quotation marks
    is_edge = next_char in PAUSES or next_char in CLOSERS
    if is_edge and (last in COLONS or left.endswith(_LEAD_IN_WORDS)):
        lead_in = _LEAD_IN.search(left, max(0, len(left) - 62))
        if lead_in and (lead_in.start() or not is_start):  # "(Arabic: *; born 1950)" -> "(*; born 1950)"
            return left[: lead_in.start()], after, True
    if last in _STRAIGHT_QUOTES:  # '"*"'; but "dogs'*'s"
        if after[0] == last == before[-1:] and (last == '"' or not (left[-2:-1] + after[1:2]).strip().isalnum()):
            return left[:-1].rstrip(), after[1:], True
    elif before[-1:] + after[0] in _PAIRS:  # "»*«"
        return left[:-1].rstrip(), right[1:], True
    elif _is_opener(left):  # "(*; born 1950)" -> "(born 1950)"
        right = right.lstrip(_SEPARATORS)
        return (left[:-1].rstrip(), right[1:], True) if _is_closer(right) else (left, right, False)
    if _is_closer(right):  # "(Greek, or *)" -> "(Greek)"
        left = left.rstrip(_SEPARATORS)
        if word := _LAST_LEAD_IN.search(left, max(0, len(left) - 10)):
            return left[: word.start()], after, True
        return (left[:-1].rstrip(), right[1:], True) if _is_opener(left) else (left, right, False)

    # Pauses and stops
    is_literal = next_char.isascii() and right[1:2].isalnum() or right[:2] == ".."  # ".5", ":x", "..."
    if is_start and not last and (next_char in PAUSES or next_char in FULL_STOPS):  # "*, a town"
        return "", right if is_literal else right.lstrip(_SEPARATORS + next_char), False
    if _is_doubled(left, right):  # "one, *, two" -> "one, two"
        return left, right[1:], False
    if next_char in SENTENCE_ENDS and last in PAUSES:  # "and others: *." -> "and others."
        return left.rstrip(_SEPARATORS), right, False
    if (next_char in SENTENCE_ENDS or next_char in PAUSES) and not is_literal:
        is_spaced = after[0] == " " != before[-1:] and next_char not in CLOSE_UP  # as in French: "one* ; two"
        return left, after if is_spaced else right, False
    if _CJK.fullmatch(last + next_char):  # "徹底性」* があり"
        return left, right, False
    if after[0] == " " and before[-1:] in ("", " "):  # one space is enough
        return before, right, False
    return before, after, False


def _is_opener(left: str) -> bool:
    """Return True if a text ends in an opening bracket or quotation mark."""
    last, before = left[-1:], left[-2:-1]
    return last in OPENERS and (last not in _AMBIGUOUS or before in ("", " ") or before in OPENERS)


def _is_closer(right: str) -> bool:
    """Return True if a text starts with a closing bracket or quotation mark."""
    first = right[:1]
    return first in CLOSERS and first not in APOSTROPHES and (first not in _AMBIGUOUS or not right[1:2].isalnum())


def _is_doubled(left: str, right: str) -> bool:
    """Return True if two signs meet of which the first is enough."""
    last, next_char = left[-1:], right[:1]
    if last in FULL_STOPS and last == next_char:
        return right[1:2] != "." and left[-2:] != ".."
    return last in _DASHES and last == next_char or last in PAUSES and next_char in PAUSES


# A space that a writer left where none belongs: "a word , and", "( a word )"; not those of ". . ."
_LOOSE_SPACE = re.compile(
    rf" (?:(?<={_OPEN} )(?=\S)|(?={_CLOSE}|{one_of(CLOSE_UP - set(',.'))})"
    rf"|(?<=[^\s.] )(?=[,.](?:\s|{one_of(CLOSERS, QUOTATION_MARKS)}|$))(?!\. ?\.))"
)
_LOOSE_SPACES = [(mark, f" {mark}") for mark in sorted({*CLOSE_UP, *PARENTHESES.values()})]
_LOOSE_SPACES += [(mark, f"{mark} ") for mark in PARENTHESES]
_ASCII_LOOSE_SPACES = [spaces for spaces in _LOOSE_SPACES if spaces[0].isascii()]


def remove_loose_spaces(text: str) -> str:
    """Remove the spaces before commas, full stops and closing brackets, and after opening brackets."""
    for mark, space in _ASCII_LOOSE_SPACES if text.isascii() else _LOOSE_SPACES:
        if mark in text and space in text:  # much faster than the expression, and few texts have one
            return _LOOSE_SPACE.sub("", text)
    return text


# Words

_WORD = re.compile(r"[^\W_]++")
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}]")
_UNSPACED_LETTERS_PER_WORD = 3


def count_words(text: str) -> int:
    """Count the runs of letters; where a script has no spaces, estimate the words from the letters."""
    return len(_WORD.findall(text)) + count_unspaced_words(text)


def count_unspaced_words(text: str) -> int:
    """Estimate the number of words in scripts without spaces."""
    return 0 if text.isascii() else len(_UNSPACED.findall(text)) // _UNSPACED_LETTERS_PER_WORD
