"""What goes along with a formula that is dropped, or with a value that depends on today.

Unlike a reference, both are words of their sentence. Brackets around them go, then the words that only led to them
("such as"), and where the sentence cannot stand without them ("has a population of", "then may mean") it goes whole.
What is left is mended by `marks.mend`.
"""

import re
from collections import Counter

from bert_pipeline.wikipedia.marks import FORMULA, MARK, VOID

_BRACKET_OR_LOSS = re.compile(f"([(){VOID}{FORMULA}])")
_LONGEST_BRACKET = 300
_MARKS = f"{MARK}{VOID}{FORMULA}"
_SENTENCE_END = re.compile(rf"(?<=\S)[.!?][\"'”’)\]{MARK}]*+ ++(?=[\"'“‘(\[{_MARKS}]*+[^\W_a-z])|[。！？]")
_ABBREVIATION = re.compile(
    r"(?:\b[^\W\d_]|\b(?:[eE]\.g|[iI]\.e|U\.S|[cC]a|[cC]f|vs|[vV]iz|[aA]pprox|[eE]st|[nN]os?|[vV]ols?|[eE]qs?|[fF]igs?"
    r"|Mr|Mrs|Ms|Dr|St|Mt|Prof|Sr|Jr|Inc|Ltd|Co|Gen|Col|Rev|et al))$"
)
_WORD = re.compile(r"[^\W_]++")
_WORDS_PER_FORMULA = 5
"""Fewer words than that to each of several formulas are but their frame: "where is the mass, and the speed"."""
_DATE_FIRST = re.compile(rf"^([\"“‘{MARK} ]*+)(?:As of|In|Since|By|During|Until|From|On) {VOID},? ?([^\W\d_]?)")
_DATE_LATER = re.compile(rf",? (?:as of|in|since|by|during|until|on) {VOID}(?=[{MARK} ]*+(?:[,.;:)]|$))")
"""A date that the sentence can do without."""
_LEADS_ONLY = re.compile(r"(?:,| [–—]|(?<=\()|) ?\b(?:such as|as in|like|e\.g\.|i\.e\.|namely|say),?$")
_NEEDS_WORD = frozenset(re.findall(r"\w+", """
    a an the is are was were be been by of as to that than for with from in on at and or not if when where while let
    equals equal equalling means mean denotes denote denoted represents satisfies gives give yields becomes obtain
    implies between into over under per since because which multiplied divided every each any either neither nor
"""))  # fmt: skip
"""What stands before a lost word must not end a clause: "is", "of"."""
_OPENS_CLAUSE = _NEEDS_WORD | {"but", "then", "so", "suppose", "assume", "whether", "though"}
_NEEDS_SUBJECT = frozenset(re.findall(r"\w+", """
    is are was were be has have had may can could might must should would will does do means denotes represents
    satisfies equals becomes holds stands belongs depends implies denote mean equal satisfy
"""))  # fmt: skip
_COMMA_AND_VERB = re.compile(r", ([^\W_]+)")
_ENDING = re.compile(rf"(?<=[{FORMULA}])(?:-?th\b|-fold\b|-(?=[^\W\d_])|['’]s\b|s\b)")
_BEFORE = re.compile(r"([^\W_]+)[ \"'“‘]*$")
_AFTER = re.compile(rf"[{MARK}\"'”’]*+ ?([^\W_]+|[,.;:!?()\]=<>≤≥+]|$)")


def settle_losses(text: str, dropped: Counter[str]) -> str:
    """Replace the marks of formulas and values in a paragraph by plain marks, with what has to go along.

    Sentences that go are counted under "sentence without its formula" and "sentence without its value".
    """
    text = _drop_brackets(text)
    if VOID not in text and FORMULA not in text:
        return text
    return "".join(_settle(sentence, dropped) for sentence in _sentences(text))


def _sentences(text: str) -> list[str]:
    """The text in pieces that end where a sentence ends; rather too long than too short."""
    pieces = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if match[0][0] == "." and _ABBREVIATION.search(text, max(start, match.start() - 12), match.start()):
            continue
        pieces.append(text[start : match.end()])
        start = match.end()
    pieces.append(text[start:])
    return pieces


def _settle(sentence: str, dropped: Counter[str]) -> str:
    if VOID in sentence:
        sentence = _DATE_FIRST.sub(lambda match: match[1] + match[2].upper(), _DATE_LATER.sub(MARK, sentence))
        if VOID in sentence:
            dropped["sentence without its value"] += 1
            return MARK
    num_formulas = sentence.count(FORMULA)
    if not num_formulas:
        return sentence
    first, *rest = _ENDING.sub("", sentence).split(FORMULA)
    kept = [first]
    is_broken = num_formulas > 1 and len(_WORD.findall(sentence)) < _WORDS_PER_FORMULA * num_formulas
    for part in rest:
        before = _LEADS_ONLY.sub("", kept[-1].rstrip())
        if len(before) == len(kept[-1].rstrip()):
            is_broken = is_broken or _is_needed(kept[-1], part)
        elif part.lstrip()[:1].isalnum():
            is_broken = True
        else:
            kept[-1] = before
            clause = _COMMA_AND_VERB.match(part)
            if clause and clause[1] in _NEEDS_SUBJECT:  # ", such as FORMULA, have": both commas
                part = part[1:]
        kept.append(part)
    if is_broken:
        dropped["sentence without its formula"] += 1
        return MARK
    return MARK.join(kept)


def _is_needed(before: str, after: str) -> bool:
    """Whether a clause falls apart without what stood here."""
    word = _BEFORE.search(before[-40:])
    last = word[1].lower() if word else ""
    match = _AFTER.match(after)
    following = match[1] if match else ""
    if not following:  # the paragraph ends: "is defined by the formula"
        return False
    if not following[0].isalnum():
        return last in _NEEDS_WORD or following in "=<>≤≥+"
    if following not in _NEEDS_SUBJECT:
        return False
    clause = before.rstrip(f" \"'“‘{MARK}")
    return not clause or clause[-1] in ",;:" or last in _OPENS_CLAUSE


def _drop_brackets(text: str) -> str:
    """Replace by a mark every innermost bracket that holds a loss; a long one only for a value."""
    pieces: list[str] = []
    opened: list[list[int]] = []  # [place in pieces, what it holds: 1 a formula, 2 a value]
    for part in _BRACKET_OR_LOSS.split(text):
        if part == "(":
            opened.append([len(pieces), 0])
        elif part in (VOID, FORMULA) and opened:
            opened[-1][1] = max(opened[-1][1], 2 if part == VOID else 1)
        elif part == ")" and opened:
            place, loss = opened.pop()
            if loss == 2 or loss and sum(map(len, pieces[place:])) <= _LONGEST_BRACKET:
                del pieces[place:]
                part = MARK
        pieces.append(part)
    return "".join(pieces)
