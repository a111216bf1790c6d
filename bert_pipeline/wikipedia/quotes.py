"""Apostrophes that stand for emphasis."""

import re

_RUN = re.compile(r"'{2,}+")


def remove_emphasis(text: str) -> str:
    """Remove the apostrophes of italics and bold from one paragraph; an apostrophe that is text stays ("Titanic's")."""
    if "'''" not in text:
        return text.replace("''", "")
    lengths = [min(len(run), 5) if len(run) != 4 else 3 for run in _RUN.findall(text)]
    num_bold = sum(length in (3, 5) for length in lengths)
    num_italic = sum(length in (2, 5) for length in lengths)
    literal = -1
    if num_bold % 2 and num_italic % 2:
        literal = _literal_apostrophe(text)
    return _RUN.sub(lambda match: _replacement(match, literal), text)


def _replacement(match: re.Match[str], literal: int) -> str:
    length = len(match[0])
    if length == 4 or match.start() == literal:
        return "'"
    return "'" * (length - 5) if length > 5 else ""


def _literal_apostrophe(text: str) -> int:
    """Where a run of three is an apostrophe and italics: MediaWiki's rule for unbalanced emphasis.

    The first such run after a single-letter word, else after a longer word, else after a space.
    https://www.mediawiki.org/wiki/Markup_spec/BNF/Inline_text
    """
    after_word = after_space = -1
    for match in _RUN.finditer(text):
        if len(match[0]) not in (3, 4):
            continue
        start = match.start() + len(match[0]) - 3
        before, two_before = text[start - 1 : start], text[start - 2 : start - 1]
        if before == " " or not before:
            after_space = match.start() if after_space < 0 else after_space
        elif two_before == " ":
            return match.start()
        elif after_word < 0:
            after_word = match.start()
    return after_word if after_word >= 0 else after_space
