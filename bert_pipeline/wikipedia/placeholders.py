"""Marks left where something was dropped, and the mending of the text around them."""

import re

MARK = "\ue000"
"""Stands where inline markup was dropped: a reference, a template without prose."""
PIPE = "\ue001"
"""A "|" that is text, as {{!}} writes it: it parts no arguments."""
SEAM = "\ue002"
"""Keeps apostrophes apart that only the taking off of a tag or link brings together: ''x''<sub>''i''</sub>."""
VOID = "\ue003"
"""Stands where a value is not known, as one that depends on today; a bracket that holds little else goes whole."""
FORMULA = "\ue004"
"""Stands where a formula was dropped."""
PARAGRAPH = f"\n\n{MARK}"
"""Parts passages; the mark says that a space after it does not open the line."""

_PROTECTED = "[]{}|<>'=*#:;&_-!~ \n"
_PROTECT = str.maketrans({char: chr(0xE010 + index) for index, char in enumerate(_PROTECTED)})
_UNPROTECT = str.maketrans(
    {chr(0xE010 + index): char.replace("\n", " ") for index, char in enumerate(_PROTECTED)}
    | {PIPE: "|", SEAM: "", VOID: "", FORMULA: ""}
)
_PRIVATE = re.compile("[\ue000-\ue02f]")
_HAS_PROTECTED = re.compile("[\ue001-\ue02f]")


def remove_private(text: str) -> str:
    """Remove the characters that this package uses as marks, should a page hold them."""
    may_hold_any = b"\xee" in text.encode("utf-8", "surrogatepass")  # their first byte: a quarter of a search's time
    return _PRIVATE.sub("", text) if may_hold_any else text


def protect(text: str) -> str:
    """Hide every character that markup is made of, as <nowiki> does."""
    return text.translate(_PROTECT)


def unprotect(text: str) -> str:
    """Bring hidden characters back."""
    return text.translate(_UNPROTECT) if _HAS_PROTECTED.search(text) else text


_OPENING = "([{“„«‹"
_CLOSING = ")]}”»›"
_SEPARATORS = " ,;:/–—-"
_SERIES = re.compile(rf"{MARK}(?:[ ]*+(?:[,;:/–~]?[ ]*+(?:(?:and|or|to|with|from|also)(?=[ {MARK}]))?+)[ ]*+{MARK})++")
"""Marks that only separators part: "MARK, MARK or MARK" is one loss."""


def mend(text: str) -> str:
    """Remove the marks of one passage, and what their loss leaves behind: "( ; born 1950)", "Greek , that is"."""
    if MARK not in text:
        return text
    first, *rest = _SERIES.sub(_as_one, text).split(MARK)
    pieces = [first]  # only the last piece is ever looked at or changed, so the work is linear
    for part in rest:
        if not part:
            continue
        for _ in range(4):  # brackets around brackets that held nothing else
            while len(pieces) > 1 and not pieces[-1].rstrip():
                space = pieces.pop()
                pieces[-1] += space[:1]
            if not part:
                break
            left, right = pieces[-1].rstrip(), part.lstrip()
            before, after = left[-1:], right[:1]
            if before and before in _OPENING:
                right = right.lstrip(_SEPARATORS)
                pieces[-1], part = left, right
                if right[:1] and right[0] in _CLOSING:
                    pieces[-1], part = left[:-1].rstrip(), right[1:]
                    continue
            elif after and after in _CLOSING:
                left = _drop_leading_words(left.rstrip(_SEPARATORS), 0)
                pieces[-1], part = left, right
                if left[-1:] and left[-1] in _OPENING:
                    pieces[-1], part = left[:-1].rstrip(), right[1:]
                    continue
            elif not before and len(pieces) == 1 and after and after in ",;:.":
                pieces[-1], part = "", right if right[:2] == ".." or right[1:2].isalnum() else right.lstrip(",;:. ")
            elif before and before in "\"'" and part[0] == before == pieces[-1][-1:]:
                if before == '"' or not (left[-2:-1] + part[1:2]).strip().isalnum():  # no two apostrophes of words
                    pieces[-1], part = left[:-1].rstrip(), part[1:]
                    continue
            elif _is_doubled(left, right):
                pieces[-1], part = left, right[1:]
            elif after and after in ".!?" and before and before in ",;:":
                pieces[-1], part = left.rstrip(_SEPARATORS), right
            elif after and after in ",.;:!?" and not right[1:2].isalnum() and right[:2] != "..":
                shorter = _drop_leading_words(left, 1)
                if after == "," and shorter != left and "," not in shorter[-60:]:
                    right = right[1:]  # ", pronounced MARK, is": both commas
                if shorter[-1:] and shorter[-1] in _OPENING:
                    right = right.lstrip(_SEPARATORS)
                pieces[-1], part = shorter, right
            elif part[0] == " " and pieces[-1][-1:] in ("", " "):
                part = right
            break
        if part:
            pieces.append(part)
    return "".join(pieces)


def _as_one(series: re.Match[str]) -> str:
    """One mark for several; a space between them stays where a word follows: "one.MARK MARKTwo"."""
    follows = series.string[series.end() : series.end() + 1]
    return f"{MARK} " if " " in series[0] and follows.isalnum() else MARK


def _is_doubled(left: str, right: str) -> bool:
    """Whether signs on either side of what was dropped now stand together, of which the first is enough."""
    before, after = left[-1:], right[:1]
    if not before or not after:
        return False
    if before == ".":
        return after == "." and right[1:2] != "." and left[-2:] != ".."
    return before == after and after in "–—" or after in ",;:" and before in ",;:("


_PRONOUNCED = re.compile(
    r"(?:[,;]|(?<=[(\[])) ?(?:(?:also|usually|often|sometimes|commonly|or|and|in|[A-Z][\w-]++) ){0,3}"
    r"(?:pronounced|pronunciations?|IPA)(?: as)?:?$"
)
_DANGLING = re.compile(r"(?:(?<=[(\[])| )(?:or|and|from|in|at|also|see)$")


def _drop_leading_words(left: str, least: int) -> str:
    """Take off words that only led to what was dropped behind them: "(Latin: x, or", "(English pronunciation:".

    With `least` 1 a sentence goes on behind, and only words that speak of a pronunciation are taken off.
    """
    shorter = _PRONOUNCED.sub("", left[-80:])
    if len(shorter) < len(left[-80:]):
        return left[:-80] + shorter.rstrip(_SEPARATORS)
    while not least and (word := _DANGLING.search(left, max(0, len(left) - 8))):
        left = left[: word.start()].rstrip(_SEPARATORS)
    return left
