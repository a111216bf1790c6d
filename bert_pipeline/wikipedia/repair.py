"""Repair the prose around dropped elements: first whole sentences, then the punctuation.

A formula or an unknown value is a word of its sentence: "the area is FORMULA, where r is the radius" makes no sense
without it. `repair_sentences` removes the words that depend on it, or the sentence. Any other dropped element leaves at
most odd punctuation, "Greece ( ; born 1950)", which `repair_punctuation` corrects.
"""

import re
from collections import Counter

from bert_pipeline.wikipedia.placeholders import BOUNDARY, DROPPED, FORMULA, UNKNOWN_VALUE

# Sentences without their formula or value

_MISSING_WORD = f"[{UNKNOWN_VALUE}{FORMULA}]"
_BLANKS = f" {DROPPED}"


def repair_sentences(text: str, dropped: Counter[str], language: str = "") -> str:
    """Replace formulas and unknown values in a paragraph by DROPPED, and remove what depends on them.

    Which words depend on a value is known for English; in other languages the sentence is removed. Removed sentences
    are counted in `dropped`, as "sentence without its formula" or "sentence without its value".
    """
    text = _drop_brackets(text)
    if UNKNOWN_VALUE not in text and FORMULA not in text:
        return text
    if UNKNOWN_VALUE in text and language.partition("-")[0] not in ("", "en", "simple"):
        sentences = _split_sentences(text)
        dropped["sentence without its value"] += sum(UNKNOWN_VALUE in sentence for sentence in sentences)
        text = "".join(DROPPED if UNKNOWN_VALUE in sentence else sentence for sentence in sentences)
    return "".join(_repair_sentence(sentence, dropped) for sentence in _split_sentences(text))


_BRACKET_OR_MISSING_WORD = re.compile(f"([(){UNKNOWN_VALUE}{FORMULA}])")
_MIN_WORDS_IN_BRACKET = {FORMULA: 5, UNKNOWN_VALUE: 7}
"""With fewer words per missing one, a bracket is removed: "(read x bar)", "($5 in current dollar terms)"."""
_MAX_BRACKET_CHARS = 300
"""A longer bracket stays, whatever is missing in it."""


def _drop_brackets(text: str) -> str:
    """Replace by DROPPED every innermost bracket that contains little besides formulas and unknown values."""
    pieces: list[str] = []
    opened: list[list[int]] = []  # [index of the "(" in pieces, its position in the text, whether a word is missing]
    position = 0
    for part in _BRACKET_OR_MISSING_WORD.split(text):
        if part == "(":
            opened.append([len(pieces), position, False])
        elif part in (UNKNOWN_VALUE, FORMULA) and opened:
            opened[-1][2] = True
        elif part == ")" and opened:
            # A bracket is judged when it closes: all of it but the ")" is in `pieces[index:]`.
            index, start, is_incomplete = opened.pop()
            if is_incomplete and position - start <= _MAX_BRACKET_CHARS:
                bracket = "".join(pieces[index:])
                min_words = sum(bracket.count(missing) * num for missing, num in _MIN_WORDS_IN_BRACKET.items())
                if count_words(bracket) < min_words:
                    del pieces[index:]
                    part = DROPPED
        position += len(part)
        pieces.append(part)
    return "".join(pieces)


# The end of a sentence: ". " of "is true. The next", '." ' of 'is "true." The next'; not ". " of "cf. the next"
_SENTENCE_END = re.compile(
    rf"(?<=\S)[.!?][\"'”’)\]{DROPPED}]*+ ++(?=[\"'“‘(\[{DROPPED}{UNKNOWN_VALUE}{FORMULA}]*+[^\W_a-z])|[。！？]"
)
# An abbreviation up to its full stop, which ends no sentence: "J", "e.g", "Dr"
_ABBREVIATION = re.compile(
    r"(?:\b[^\W\d_]|\b(?:[eE]\.g|[iI]\.e|U\.S|[cC]a|[cC]f|vs|[vV]iz|[aA]pprox|[eE]st|[nN]os?|[vV]ols?|[eE]qs?|[fF]igs?"
    r"|Mr|Mrs|Ms|Dr|St|Mt|Prof|Sr|Jr|Inc|Ltd|Co|Gen|Col|Rev|et al))$"
)


def _split_sentences(text: str) -> list[str]:
    """Split a text after its sentences; where in doubt, leave two sentences together."""
    pieces = []
    start = 0
    for match in _SENTENCE_END.finditer(text):
        if match[0][0] == "." and _ABBREVIATION.search(text, max(start, match.start() - 12), match.start()):
            continue
        pieces.append(text[start : match.end()])
        start = match.end()
    pieces.append(text[start:])
    return pieces


_MIN_WORDS = 3
_MIN_WORDS_PER_CLAUSE = 5
"""With fewer words per clause that lacks its subject or predicate, a sentence is removed: "it may mean, as means"."""
_MIN_WORDS_PER_VALUE = 5
_MAX_MISSING_WORDS = 100
_ENDS = (".", "!", "?")

# A date that the sentence does not need: "As of VALUE, the town", "has 500 members as of VALUE."
_DATE_FIRST = re.compile(
    rf"^([\"“‘{DROPPED} ]*+)(?:As of|In|Since|By|During|Until|From|On) {UNKNOWN_VALUE},? ?([^\W\d_]?)"
)
_DATE_LATER = re.compile(rf",? (?:as of|in|since|by|during|until|on) {UNKNOWN_VALUE}(?=[{DROPPED} ]*+(?:[,.;:)]|$))")

# Missing words in a row count as one: "FORMULA, FORMULA and FORMULA". The object of one clause and the subjects of the
# next are no row: "in FORMULA, and FORMULA and FORMULA are"
_AND_MISSING = rf"[ {DROPPED}]*+(?:,[ {DROPPED}]*+)?+(?<=[ ,{DROPPED}])(?:and|or|nor)\b[ {DROPPED}]*+{_MISSING_WORD}"
_COMMA_MISSING = rf"[ {DROPPED}]*+,[ {DROPPED}]*+{_MISSING_WORD}"
_MISSING_ROW = re.compile(
    rf"({_MISSING_WORD})(?:(?:{_COMMA_MISSING})*+{_AND_MISSING}(?!{_AND_MISSING})|(?:{_COMMA_MISSING})++)"
)
# A verb after a row whose last member is the subject of another clause: " is" of "the sum is FORMULA, and FORMULA is"
_SINGULAR_VERB = re.compile(
    rf"[ {DROPPED}]*+(?:is|has|was|means|denotes|represents|equals|becomes|stands|holds|depends)\b"
)
# What is attached to a formula: "FORMULA-th", "FORMULA-fold", "FORMULA-dimensional" (only the hyphen), "FORMULA's"
_ATTACHED = re.compile(rf"(?<={_MISSING_WORD})(?:-?th\b|-fold\b|-(?=[^\W\d_])|['’]s\b|s\b)")
# The sign that relates a formula to the word after it: "FORMULA = 5"
_SIGN_AFTER = re.compile(r"^ ?[=<>≤≥≈+] ?(?=[^\W_])")
# The currency of a value, and how exact it is: "about US$ VALUE"
_CURRENCY = re.compile(r"(?:\b(?:about|approximately|around|nearly|over|roughly|some) )?(?:\b[A-Z]{1,3} ?)?[$£€¥] ?$")
_CONJUNCTION_PIECES = (", and ", ", or ", ", nor ")


def _repair_sentence(sentence: str, dropped: Counter[str]) -> str:
    """Return a sentence with DROPPED in place of its missing words, or DROPPED alone if too few words are left."""
    has_value = UNKNOWN_VALUE in sentence
    if has_value:
        sentence = _DATE_LATER.sub(DROPPED, sentence)
        sentence = _DATE_FIRST.sub(lambda match: match[1] + match[2].upper(), sentence)
    if UNKNOWN_VALUE not in sentence and FORMULA not in sentence:
        return sentence
    first, *rest = re.split(_MISSING_WORD, _ATTACHED.sub("", _MISSING_ROW.sub(_merge_row, sentence)))
    if len(rest) > _MAX_MISSING_WORDS:  # no sentence, and the text before each is searched: quadratic time
        return DROPPED.join([first, *rest])
    # `kept` holds the texts between the missing words, without the words that depend on these
    kept = [first]
    num_broken_clauses = 0
    for part in rest:
        if has_value:
            kept[-1] = _CURRENCY.sub("", kept[-1])
        before, after, is_broken = _drop_dependent_words(kept.pop(), _SIGN_AFTER.sub(" ", part))
        while kept and not before.strip(_BLANKS):  # nothing is left between two missing words: they are one
            before, after, is_broken = _drop_dependent_words(kept.pop(), after)
        if not kept and not before.strip(_BLANKS) and first.strip(_BLANKS):  # "For FORMULA, the sum" -> "The sum"
            after = after.lstrip(_BLANKS + ",;:")
            after = after[:1].upper() + after[1:]
        num_broken_clauses += is_broken
        kept += [before, after]
    # A sentence of too few words is removed, except where it is the end of another one: "is true. FORMULA"
    num_words = count_words(" ".join(kept))
    min_words = max(
        _MIN_WORDS, _MIN_WORDS_PER_CLAUSE * num_broken_clauses, _MIN_WORDS_PER_VALUE * sentence.count(UNKNOWN_VALUE)
    )
    if num_words < min_words and not first.rstrip(_BLANKS).endswith(_ENDS):
        if num_words:
            dropped[f"sentence without its {'value' if has_value else 'formula'}"] += 1
        return DROPPED
    # BOUNDARY: the ", and" of a clause must not be taken for one that separates two dropped elements
    return DROPPED.join(
        f",{BOUNDARY}{piece[1:]}" if piece.startswith(_CONJUNCTION_PIECES) and len(piece) < 7 else piece
        for piece in kept
    )


def _merge_row(row: re.Match[str]) -> str:
    return row[0] if _SINGULAR_VERB.match(row.string, row.end()) else row[1]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PREPOSITIONS = _words("of to by with from for in on at as than into onto over under per until within like")
_CONJUNCTIONS = _words("and or but nor that then so if when whenever where while since because whereas unless whether")
_DETERMINERS = _words("a an the any each every all both either neither")
_STRANDED = _PREPOSITIONS | _CONJUNCTIONS | _DETERMINERS | {"such", "equivalently"}
"""Words that cannot end a clause, and mean nothing there: "such that", "for every"."""
_DEPENDENT = _PREPOSITIONS | _DETERMINERS
"""Words that cannot come before one that opens a clause or phrase: "the writing of | instead of | may mean"."""
_OPENS_PHRASE = _PREPOSITIONS | _CONJUNCTIONS | {"instead", "there", "which"}
_ENDS_CLAUSE = _CONJUNCTIONS - {"that", "then", "so"}
_OPENS_CLAUSE = _CONJUNCTIONS | {"let", "suppose", "assume", "i.e.", "e.g."}
_PREDICATES = _words(
    """
    is are was were be been equals equal equalling means mean denotes denote denoted represents satisfies gives give
    yields becomes obtain implies between multiplied divided let suppose assume define if when where
    """
)
"""Words that cannot end a clause, but cannot be removed either."""
_NEEDS_SUBJECT = _words(
    """
    is are was were be has have had may can could might must should would will does do means denotes represents
    satisfies equals becomes holds stands belongs depends implies denote mean equal satisfy
    """
)

# The introduction of an example, at the end of the text before it: ", such as", " – e.g.,", "(for instance"
_INTRODUCTION = re.compile(
    r"(?:,| ?[–—]|(?<=\()|) ?\b(?:such as|as in|like|e\.g\.|i\.e\.|namely|say|for (?:example|instance)),?$"
)
_COMPARISONS = ("such as", "like")
# The next word or sign: "contain" of " contain", "," of '", where'
_NEXT_WORD = re.compile(rf"[{DROPPED}\"'”’]*+ ?([^\W_]+|[,.;:!?()\]]|$)")
_COMMA_AND_VERB = re.compile(r", ([^\W_]+)")


def _drop_dependent_words(before: str, after: str) -> tuple[str, str, bool]:
    """Remove the words that only led to a missing one.

    Return the text before and after it, and whether a clause now lacks its subject or predicate.
    """
    text = before.rstrip(" =<>≤≥≈")
    match = _NEXT_WORD.match(after)
    next_word = match[1] if match else ""

    # An example that is missing takes its introduction with it
    shorter = text[:-40] + _INTRODUCTION.sub("", text[-40:])
    if len(shorter) < len(text):
        if not next_word.isalnum():
            verb = _COMMA_AND_VERB.match(after)
            if verb and verb[1] in _NEEDS_SUBJECT:  # "numbers, such as FORMULA, have": both commas
                after = after[1:]
            return shorter, after, False
        if text.endswith(_COMPARISONS):  # "expressions like FORMULA contain"
            return shorter, after, False

    is_broken = False
    shorter = text
    if next_word in _NEEDS_SUBJECT:  # "the sum of FORMULA is", or "where FORMULA is", which is broken
        shorter = _strip_last_words(text, _DEPENDENT)
        clause = shorter.rstrip(f"{_BLANKS}\"'“‘")
        is_broken = shorter == text and (not clause or clause[-1] in ",;:" or _last_word(clause) in _OPENS_CLAUSE)
    elif next_word in _OPENS_PHRASE:  # "it equals FORMULA if"
        shorter = _strip_last_words(text, _DEPENDENT)
        is_broken = next_word in _ENDS_CLAUSE and _last_word(shorter) in _PREDICATES
    elif next_word and not next_word.isalnum():  # "the area is FORMULA."
        shorter = _strip_last_words(text, _STRANDED)
        is_broken = not text.strip(_BLANKS) or _last_word(shorter) in _PREDICATES
    return (shorter if shorter != before.rstrip() else before), after, is_broken


def _strip_last_words(text: str, words: frozenset[str]) -> str:
    """Remove words of this kind from the end of a text, four at most."""
    for _ in range(4):
        word = _last_word(text)
        if word not in words:
            break
        text = text[: -len(word)].rstrip()
    return text


_LAST_WORD = re.compile(r"(?:^|(?<=[\s(]))(?:[ei]\.[eg]\.|[^\W_]+)$")


def _last_word(text: str) -> str:
    found = _LAST_WORD.search(text[-40:])
    return found[0].lower() if found else ""


# Punctuation around dropped elements

_OPENING = frozenset("([{“„«‹")
_CLOSING = frozenset(")]}”»›")
_PAUSES = frozenset(",;:")
_STOPS = frozenset(".!?")
_QUOTES = frozenset("\"'")
_SEPARATORS = " ,;:/–—-"
# Dropped elements with only separators between them count as one: "DROPPED, DROPPED or DROPPED"
_DROPPED_ROW = re.compile(
    rf"{DROPPED}(?:[ ]*+(?:[,;:/–~]?[ ]*+(?:(?:and|or|to|with|from|also)(?=[ {DROPPED}]))?+)[ ]*+{DROPPED})++"
)


def repair_punctuation(text: str) -> str:
    """Remove DROPPED from a passage, with the punctuation it leaves: "( ; born 1950)", "Greek , that is"."""
    if DROPPED not in text:
        return text
    first, *rest = _DROPPED_ROW.sub(_merge_dropped_row, text).split(DROPPED)
    pieces = [first]  # only the last piece is read or changed, so the work is linear
    for part in rest:
        if not part:
            continue
        for _ in range(4):  # brackets in brackets: "([DROPPED])"
            while len(pieces) > 1 and not pieces[-1].rstrip():
                space = pieces.pop()
                pieces[-1] += space[:1]
            if not part:
                break
            pieces[-1], part, removed_pair = _close_gap(pieces[-1], part, is_start=len(pieces) == 1)
            if not removed_pair:
                break
        if part:
            pieces.append(part)
    return "".join(pieces)


def _merge_dropped_row(row: re.Match[str]) -> str:
    """Return one DROPPED for several, with a space where a word follows: "one.<ref/> <ref/>Two"."""
    next_char = row.string[row.end() : row.end() + 1]
    return f"{DROPPED} " if " " in row[0] and next_char.isalnum() else DROPPED


def _close_gap(before: str, after: str, *, is_start: bool) -> tuple[str, str, bool]:
    """Return the texts around a dropped element as they read without it, and True if brackets around it were removed.

    The dropped element is written as * in the examples. `is_start` if `before` starts the passage.
    """
    left, right = before.rstrip(), after.lstrip()
    last, next_char = left[-1:], right[:1]
    if last in _OPENING:  # "(*; born 1950)" -> "(born 1950)"
        right = right.lstrip(_SEPARATORS)
        if right[:1] in _CLOSING:  # "(*)"
            return left[:-1].rstrip(), right[1:], True
        return left, right, False
    if next_char in _CLOSING:  # "(Greek, or *)" -> "(Greek)"
        left = _drop_last_words(left.rstrip(_SEPARATORS), in_brackets=True)
        if left[-1:] in _OPENING:  # "(from *)"
            return left[:-1].rstrip(), right[1:], True
        return left, right, False
    if is_start and not last and (next_char in _PAUSES or next_char == "."):  # "*, a town"; but "*.5", "*..."
        return "", right if right[:2] == ".." or right[1:2].isalnum() else right.lstrip(",;:. "), False
    if last in _QUOTES and after[0] == last == before[-1:]:
        if last == '"' or not (left[-2:-1] + after[1:2]).strip().isalnum():  # '"*"'; but "dogs'*'s"
            return left[:-1].rstrip(), after[1:], True
        return before, after, False
    if _is_doubled(left, right):  # "one, *, two" -> "one, two"
        return left, right[1:], False
    if next_char in _STOPS and last in _PAUSES:  # "and others: *." -> "and others."
        return left.rstrip(_SEPARATORS), right, False
    if (next_char in _STOPS or next_char in _PAUSES) and not right[1:2].isalnum() and right[:2] != "..":
        shorter = _drop_last_words(left, in_brackets=False)
        if next_char == "," and shorter != left and "," not in shorter[-60:]:  # "X, pronounced *, is": both commas
            right = right[1:]
        if shorter[-1:] in _OPENING:  # "(pronounced *; born 1950)"
            right = right.lstrip(_SEPARATORS)
        return shorter, right, False
    if after[0] == " " and before[-1:] in ("", " "):  # one space is enough
        return before, right, False
    return before, after, False


def _is_doubled(left: str, right: str) -> bool:
    """Return True if two signs meet of which the first is enough."""
    last, next_char = left[-1:], right[:1]
    if last == "." == next_char:
        return right[1:2] != "." and left[-2:] != ".."
    return last == next_char and last in ("–", "—") or last in _PAUSES and next_char in _PAUSES


# ", pronounced", "(English pronunciation:", ", also pronounced as" at the end of a text
_PRONOUNCED = re.compile(
    r"(?:[,;]|(?<=[(\[])) ?(?:(?:also|usually|often|sometimes|commonly|or|and|in|[A-Z][\w-]++) ){0,3}"
    r"(?:pronounced|pronunciations?|IPA)(?: as)?:?$"
)
# " or", "(from" at the end of a text
_CONNECTIVE = re.compile(r"(?:(?<=[(\[])| )(?:or|and|from|in|at|also|see)$")


def _drop_last_words(left: str, *, in_brackets: bool) -> str:
    """Remove words that only led to a dropped element: "(Latin: x, or", "(English pronunciation:".

    Outside of brackets the sentence continues, so that only words about its pronunciation are removed.
    """
    tail = left[-80:]
    shorter = _PRONOUNCED.sub("", tail)
    if len(shorter) < len(tail):
        return left[:-80] + shorter.rstrip(_SEPARATORS)
    while in_brackets and (word := _CONNECTIVE.search(left, max(0, len(left) - 8))):
        left = left[: word.start()].rstrip(_SEPARATORS)
    return left


# Words

_WORD = re.compile(r"[^\W_]++")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
"""Letters of scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""
_UNSPACED_LETTERS_PER_WORD = 3


def count_words(text: str) -> int:
    """Count the runs of letters; where a script has no spaces, estimate the words from the letters."""
    return len(_WORD.findall(text)) + count_unspaced_words(text)


def count_unspaced_words(text: str) -> int:
    """Estimate the number of words in scripts without spaces."""
    return 0 if text.isascii() else len(_UNSPACED.findall(text)) // _UNSPACED_LETTERS_PER_WORD
