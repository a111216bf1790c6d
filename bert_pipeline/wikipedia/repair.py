"""Repair sentences after dropping formulas and date-dependent values."""

import re
from collections import Counter

from bert_pipeline.wikipedia.placeholders import FORMULA, MARK, SEAM, VOID

_WORD = re.compile(r"[^\W_]++")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
"""Letters of scripts that write no spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""
_LETTERS_PER_WORD = 3


def count_unspaced_words(text: str) -> int:
    """The words of scripts without spaces, by their letters."""
    return 0 if text.isascii() else len(_UNSPACED.findall(text)) // _LETTERS_PER_WORD


def count_words(text: str) -> int:
    """The words of a text: runs of letters, and where a script parts none, by its letters."""
    return len(_WORD.findall(text)) + count_unspaced_words(text)


_LOSS = f"[{VOID}{FORMULA}]"
_LOSSES = re.compile(_LOSS)
_BRACKET_OR_LOSS = re.compile(f"([(){VOID}{FORMULA}])")
_MARKS = f"{MARK}{VOID}{FORMULA}"
_BLANKS = f" {MARK}"
_SENTENCE_END = re.compile(rf"(?<=\S)[.!?][\"'”’)\]{MARK}]*+ ++(?=[\"'“‘(\[{_MARKS}]*+[^\W_a-z])|[。！？]")
_ABBREVIATION = re.compile(
    r"(?:\b[^\W\d_]|\b(?:[eE]\.g|[iI]\.e|U\.S|[cC]a|[cC]f|vs|[vV]iz|[aA]pprox|[eE]st|[nN]os?|[vV]ols?|[eE]qs?|[fF]igs?"
    r"|Mr|Mrs|Ms|Dr|St|Mt|Prof|Sr|Jr|Inc|Ltd|Co|Gen|Col|Rev|et al))$"
)
_WORDS_PER_GAP = 5
"""With fewer words to each place where a subject or predicate is missing, a sentence goes: "it may mean, as means"."""
_WORDS_PER_VALUE = 5
_MOST_LOSSES = 100
_LEAST_WORDS = 3
_ENDS = (".", "!", "?")
_WORDS_OF_BRACKET = {FORMULA: 5, VOID: 7}
"""With fewer words to each loss, a bracket goes: "(read x bar)", "($5 in current dollar terms)"."""
_LONGEST_BRACKET = 300
"""Characters; a longer one says more than that."""

_DATE_FIRST = re.compile(rf"^([\"“‘{MARK} ]*+)(?:As of|In|Since|By|During|Until|From|On) {VOID},? ?([^\W\d_]?)")
_DATE_LATER = re.compile(rf",? (?:as of|in|since|by|during|until|on) {VOID}(?=[{MARK} ]*+(?:[,.;:)]|$))")
"""A date that the sentence can do without."""
_LEADS_ONLY = re.compile(
    r"(?:,| ?[–—]|(?<=\()|) ?\b(?:such as|as in|like|e\.g\.|i\.e\.|namely|say|for (?:example|instance)),?$"
)
_COMPARES = ("such as", "like")
_AND_LOSS = rf"[ {MARK}]*+(?:,[ {MARK}]*+)?+(?<=[ ,{MARK}])(?:and|or|nor)\b[ {MARK}]*+{_LOSS}"
_COMMA_LOSS = rf"[ {MARK}]*+,[ {MARK}]*+{_LOSS}"
_SERIES = re.compile(rf"({_LOSS})(?:(?:{_COMMA_LOSS})*+{_AND_LOSS}(?!{_AND_LOSS})|(?:{_COMMA_LOSS})++)")
"""Losses in a row are one, but not the object of one clause and the subjects of the next: "in x, and y and z are"."""
_SINGULAR = re.compile(rf"[ {MARK}]*+(?:is|has|was|means|denotes|represents|equals|becomes|stands|holds|depends)\b")
"""Behind a row these say that its last member is the subject of another clause: "the sum is x, and y is the rest"."""
_ENDING = re.compile(rf"(?<={_LOSS})(?:-?th\b|-fold\b|-(?=[^\W\d_])|['’]s\b|s\b)")
_SIGN_AFTER = re.compile(r"^ ?[=<>≤≥≈+] ?(?=[^\W_])")
_SIGNS_BEFORE = " =<>≤≥≈"
_CURRENCY = re.compile(r"(?:\b(?:about|approximately|around|nearly|over|roughly|some) )?(?:\b[A-Z]{1,3} ?)?[$£€¥] ?$")
_LAST_WORD = re.compile(r"(?:^|(?<=[\s(]))(?:[ei]\.[eg]\.|[^\W_]+)$")
_AFTER = re.compile(rf"[{MARK}\"'”’]*+ ?([^\W_]+|[,.;:!?()\]]|$)")
_OPENINGS = (", and ", ", or ", ", nor ")
_COMMA_AND_VERB = re.compile(r", ([^\W_]+)")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PREPOSITIONS = _words("of to by with from for in on at as than into onto over under per until within like")
_CONJUNCTIONS = _words("and or but nor that then so if when whenever where while since because whereas unless whether")
_DETERMINERS = _words("a an the any each every all both either neither")
_STRANDED = _PREPOSITIONS | _CONJUNCTIONS | _DETERMINERS | _words("such equivalently")
"""What ends no clause, and means nothing there: "such that", "for every"."""
_CARRIED = _PREPOSITIONS | _DETERMINERS
"""What does not stand before words that open a clause or phrase: "the writing of | instead of | may mean"."""
_OPENS_PHRASE = _PREPOSITIONS | _CONJUNCTIONS | _words("instead there which")
_ENDS_CLAUSE = _CONJUNCTIONS - {"that", "then", "so"}
_OPENS_CLAUSE = _CONJUNCTIONS | _words("let suppose assume i.e. e.g.")
_PREDICATES = _words("""
    is are was were be been equals equal equalling means mean denotes denote denoted represents satisfies gives give
    yields becomes obtain implies between multiplied divided let suppose assume define if when where
""")
"""What ends no clause, but cannot be taken off either."""
_NEEDS_SUBJECT = _words("""
    is are was were be has have had may can could might must should would will does do means denotes represents
    satisfies equals becomes holds stands belongs depends implies denote mean equal satisfy
""")


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
    has_value = VOID in sentence
    if has_value:
        sentence = _DATE_FIRST.sub(lambda match: match[1] + match[2].upper(), _DATE_LATER.sub(MARK, sentence))
    if VOID not in sentence and FORMULA not in sentence:
        return sentence
    first, *rest = _LOSSES.split(_ENDING.sub("", _SERIES.sub(_as_one, sentence)))
    if len(rest) > _MOST_LOSSES:  # no sentence, and looking at all that stands before each would take quadratic time
        return MARK.join([first, *rest])
    kept = [first]
    num_gaps = 0
    for part in rest:
        if has_value:
            kept[-1] = _CURRENCY.sub("", kept[-1])
        before, after, is_gap = _take_along(kept.pop(), _SIGN_AFTER.sub(" ", part))
        while kept and not before.strip(_BLANKS):  # nothing is left between two losses: they are one
            before, after, is_gap = _take_along(kept.pop(), after)
        if not kept and not before.strip(_BLANKS) and first.strip(_BLANKS):  # "For FORMULA, the sum": it begins behind
            after = after.lstrip(_BLANKS + ",;:")
            after = after[:1].upper() + after[1:]
        num_gaps += is_gap
        kept += [before, after]
    least = max(_LEAST_WORDS, _WORDS_PER_GAP * num_gaps, _WORDS_PER_VALUE * sentence.count(VOID))
    num_words = count_words(" ".join(kept))
    if num_words < least and not first.rstrip(_BLANKS).endswith(_ENDS):
        if num_words:
            dropped[f"sentence without its {'value' if has_value else 'formula'}"] += 1
        return MARK
    # ", and" that opens a clause is not taken for what parts two losses
    return MARK.join(
        f",{SEAM}{piece[1:]}" if piece.startswith(_OPENINGS) and len(piece) < 7 else piece for piece in kept
    )


def _as_one(series: re.Match[str]) -> str:
    return series[0] if _SINGULAR.match(series.string, series.end()) else series[1]


def _take_along(before: str, after: str) -> tuple[str, str, bool]:
    """The text around a loss without the words that only led to it, and whether a subject or predicate is missing."""
    text = before.rstrip(_SIGNS_BEFORE)
    match = _AFTER.match(after)
    following = match[1] if match else ""
    shorter = text[:-40] + _LEADS_ONLY.sub("", text[-40:])
    if len(shorter) < len(text):
        if not following.isalnum():
            verb = _COMMA_AND_VERB.match(after)
            if verb and verb[1] in _NEEDS_SUBJECT:  # ", such as FORMULA, have": both commas
                after = after[1:]
            return shorter, after, False
        if text.endswith(_COMPARES):  # "expressions like FORMULA contain"
            return shorter, after, False
    is_gap = False
    shorter = text
    if following in _NEEDS_SUBJECT:
        shorter = _strip_words(text, _CARRIED)
        clause = shorter.rstrip(f"{_BLANKS}\"'“‘")
        is_gap = shorter == text and (not clause or clause[-1] in ",;:" or _last_word(clause) in _OPENS_CLAUSE)
    elif following in _OPENS_PHRASE:
        shorter = _strip_words(text, _CARRIED)
        is_gap = following in _ENDS_CLAUSE and _last_word(shorter) in _PREDICATES
    elif following and not following.isalnum():
        shorter = _strip_words(text, _STRANDED)
        is_gap = not text.strip(_BLANKS) or _last_word(shorter) in _PREDICATES
    return (shorter if shorter != before.rstrip() else before), after, is_gap


def _last_word(text: str) -> str:
    found = _LAST_WORD.search(text[-40:])
    return found[0].lower() if found else ""


def _strip_words(text: str, words: frozenset[str]) -> str:
    """The text without the words of this kind that it ends with, four at most."""
    for _ in range(4):
        word = _last_word(text)
        if word not in words:
            break
        text = text[: -len(word)].rstrip()
    return text


def _drop_brackets(text: str) -> str:
    """Replace by a mark every innermost bracket that holds little but losses."""
    pieces: list[str] = []
    opened: list[list[int]] = []  # [place in pieces, position in the text, whether a loss stands in it]
    position = 0
    for part in _BRACKET_OR_LOSS.split(text):
        if part == "(":
            opened.append([len(pieces), position, False])
        elif part in (VOID, FORMULA) and opened:
            opened[-1][2] = True
        elif part == ")" and opened:
            place, start, has_loss = opened.pop()
            if has_loss and position - start <= _LONGEST_BRACKET and _is_little("".join(pieces[place:])):
                del pieces[place:]
                part = MARK
        position += len(part)
        pieces.append(part)
    return "".join(pieces)


def _is_little(bracket: str) -> bool:
    least = sum(bracket.count(loss) * num_words for loss, num_words in _WORDS_OF_BRACKET.items())
    return count_words(bracket) < least
