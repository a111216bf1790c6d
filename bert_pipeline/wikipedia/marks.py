"""Marks left where something was dropped, and the mending of the text around them."""

import re

MARK = "\ue000"
"""Stands where inline markup was dropped: a reference, a formula, a template without prose."""
PIPE = "\ue001"
"""A "|" that is text, as {{!}} writes it: it parts no arguments."""
PARAGRAPH = f"\n\n{MARK}"
"""Parts passages; the mark says that a space after it does not open the line."""

_PROTECTED = "[]{}|<>'=*#:;&_-!~ \n"
_PROTECT = str.maketrans({char: chr(0xE010 + index) for index, char in enumerate(_PROTECTED)})
_UNPROTECT = str.maketrans({chr(0xE010 + index): char for index, char in enumerate(_PROTECTED)} | {PIPE: "|"})
_PRIVATE = re.compile("[\ue000-\ue02f]")
_HAS_PROTECTED = re.compile("[\ue001-\ue02f]")


def remove_private(text: str) -> str:
    """Remove the characters that this package uses as marks, should a page hold them."""
    return _PRIVATE.sub("", text) if _PRIVATE.search(text) else text


def protect(text: str) -> str:
    """Hide every character that markup is made of, as <nowiki> does."""
    return text.translate(_PROTECT)


def unprotect(text: str) -> str:
    """Bring hidden characters back."""
    return text.translate(_UNPROTECT) if _HAS_PROTECTED.search(text) else text


_OPENING = "([{“„«‹"
_CLOSING = ")]}”»›"
_SEPARATORS = " ,;:/–—-"
_DANGLING = (" or", " and", " from", " in", " also", " see", " pronounced", " pronunciation", "(pronounced", "(from")
"""Words that lead to what was dropped before a closing bracket: "(Latin: x, or MARK)"."""


_SERIES = re.compile(rf"{MARK}(?:[ ]*+(?:[,;:/–~]?[ ]*+(?:(?:and|or|to|with|from|also)(?=[ {MARK}]))?+)[ ]*+{MARK})++")
"""Marks that only separators part: "MARK, MARK or MARK" is one loss."""


def mend(text: str) -> str:
    """Remove the marks of one passage, and what their loss leaves behind: "( ; born 1950)", "Greek , that is"."""
    if MARK not in text:
        return text
    first, *rest = _SERIES.sub(MARK, text).split(MARK)
    pieces = [first]  # only the last piece is ever looked at or changed, so the work is linear
    for part in rest:
        if not part:
            continue
        while len(pieces) > 1 and not pieces[-1].rstrip():
            space = pieces.pop()
            pieces[-1] += space[:1]
        left = pieces[-1].rstrip()
        right = part.lstrip()
        before, after = left[-1:], right[:1]
        if before and before in _OPENING:
            pieces[-1] = left
            part = part.lstrip(_SEPARATORS)
            if part[:1] and part[0] in _CLOSING:
                pieces[-1] = left[:-1].rstrip()
                part = part[1:]
        elif after and after in _CLOSING:
            left = left.rstrip(_SEPARATORS)
            for word in _DANGLING:
                if left.endswith(word):
                    left = left[: -len(word)].rstrip(_SEPARATORS) if word[0] == " " else left[: 1 - len(word)]
                    break
            if left[-1:] and left[-1] in _OPENING:
                pieces[-1] = left[:-1].rstrip()
                part = right[1:]
            else:
                pieces[-1] = left
                part = right
        elif after and after in ",;:" and before and before in ",;:(":
            pieces[-1] = left
            part = right[1:]
        elif after and after in ".!?" and before and before in ",;:":
            pieces[-1] = left.rstrip(_SEPARATORS)
            part = right
        elif after and after in ",.;:!?" and (len(right) == 1 or not right[1].isalnum()):
            pieces[-1] = left
            part = right
        elif part[0] == " " and pieces[-1][-1:] in ("", " "):
            part = right
        if part:
            pieces.append(part)
    return "".join(pieces)
