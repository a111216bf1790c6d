"""Sentence segmentation by language, with Wikimedia's sentencex: 240 languages, and no model to load.

What it parts in the middle of a sentence is put together again, by rules that hold in every language: no sentence
begins in lower case after "!" or "?" (titles such as "Mamma Mia!"), with a closing bracket, or behind the bare number
of an enumeration. And a sentence in brackets is one, which it leaves with the sentence behind it.
"""

import re

import sentencex

_NUMBER = re.compile(r"(?:^|[;,:] )\(?\d{1,2}[.)]$")
_TAKES_NUMBER = re.compile(r"\b(?:[Vv]ol|[Nn]os?|[Ff]igs?|[Oo]p|[Cc]h|Art|[Ss]ec|[Pp]p?|[Ee]qs?|[Vv]v?|[Nn]r)\.$")
_SENTENCE_IN_BRACKETS = re.compile(
    r"\([^()a-z](?:[^()]++|\([^()]*+\))++(?:(?<=[.!?])|(?<=[.!?][\"”’]))\) (?=[^\W_a-z]|[\"“])"
)
"""It begins in a capital and holds at least a few words, unlike "(U.S.) Army"."""


def split_sentences(text: str, language: str) -> list[str]:
    """Split one passage into its sentences, without white space around them; languages unknown to the library work."""
    sentences: list[list[str]] = []
    end = ""  # what the last one ends with
    for part in sentencex.segment(language, text):
        if not (stripped := part.strip()):
            continue
        if end and _goes_on(end, stripped[0]):
            sentences[-1].append(part)
        else:
            sentences.append([part])
        end = stripped
    return [piece for parts in sentences for piece in _take_off_brackets("".join(parts).strip())]


def _goes_on(end: str, first: str) -> bool:
    """Whether a sentence that ends so far with `end` goes on with what begins with `first`."""
    last = end[-1]
    if first.islower():
        return last in "!?" or last in ".)" and _NUMBER.search(end, max(0, len(end) - 6)) is not None
    if first in ")]”»,;":
        return True
    if last in ".)" and len(end) <= 4 and _NUMBER.match(end):
        return True
    return first.isdigit() and last == "." and _TAKES_NUMBER.search(end, max(0, len(end) - 6)) is not None


def _take_off_brackets(sentence: str) -> list[str]:
    """A sentence in brackets, and the one behind it."""
    if sentence[0] != "(" or (match := _SENTENCE_IN_BRACKETS.match(sentence)) is None:
        return [sentence]
    inside = match[0].strip()
    return [inside, sentence[match.end() :].strip()] if inside.count(" ") >= 3 else [sentence]
