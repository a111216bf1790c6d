"""Templates of the International Phonetic Alphabet.

A pronunciation after a word, in brackets or between commas, is dropped; a sound that the sentence speaks
of ("the letter represents the vowel /a/") is one of its words and stays.
"""

import re

from bert_pipeline.wikipedia.placeholders import DROPPED
from bert_pipeline.wikipedia.templates.registry import IN_CONTEXT, Arguments, register, register_prefix

_ASIDE = re.compile(
    r"(?:[,;([]|''|\bpronunciation:?|\bIPA(?:\]\])?:?"
    r"|(?:^|[,;(–—-] ?)(?:also |usually |often |commonly )?pronounced:?)$",
    re.IGNORECASE,
)
"""What precedes a pronunciation that can be left out: a comma, a bracket, a word in italics or bold."""
_SUBJECT = re.compile(r"(?:[^\W_],|\bpronunciation)$")
_WORD_FOLLOWS = re.compile(rf"[{DROPPED}]?+[ \xa0][{DROPPED}]?+[a-z]")
"""Behind a comma or the word "pronunciation", a sound that a word follows at once is part of the sentence: "In Moroccan
Arabic, /i u/ also have allophones"."""
_EXAMPLE = re.compile(r"(?:\b[ei]\.[eg]\.|\bfor (?:example|instance)|\bnamely|\bsuch as|\bviz\.),?$")
_BLANKS = f" \xa0{DROPPED}"
_FOREIGN_WORD = re.compile(
    r"\{\{(?:lang|rtl-lang|transl|tlit|nihongo|script|wikt-lang|zh\b)[^{}]*+\}\}$", re.IGNORECASE
)
_LAST_OF_ASIDE = "':]adnADN"
"""The last characters of its longer matches; other lines need no search."""
_BEFORE_IN_SERIES = re.compile(r"(?:\{\{ipa[^{}]*+\}\}[ \ue000]*+[,;/~]?+ ?+(?:or|and|to)?+ ?+)++$", re.IGNORECASE)
"""Sounds in a series go the way of the first."""


IN_CONTEXT.add("ipa-")


@register_prefix("ipa-")
def _sound_of_a_language(arguments: Arguments) -> str | None:
    """Render the sound without the name of the language if the second argument is empty.

    Longer ones are whole words, which follow their spelling.
    """
    before, sound = arguments.before.rstrip(_BLANKS), arguments.get(1)
    if arguments.values.get("2") != "" or not 1 <= len(sound) <= 4 or _is_aside(before) or _is_in_brackets(before):
        return None
    return f"[{sound}]"


@register("ipa, ipaslink, ipablink, ipalink, ipa link, ipa-link", in_context=True)
def _sound(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    is_linked = "link" in arguments.name  # its second argument is what is shown of the link
    before = arguments.before.rstrip(_BLANKS)
    if len(values) not in (1, 1 + is_linked) or _is_aside(before) and not _is_spoken_of(before, arguments.after):
        return None
    slashes = {"ipaslink": "/", "ipablink": "["}.get(arguments.name, "")
    return f"{slashes}{values[-1]}{slashes.replace('[', ']')}"


@register("audio", in_context=True)
def _recording(arguments: Arguments) -> str | None:
    """A recording shows its label, which is a word of the sentence where it is set in bold or italics."""
    return arguments.get(2) or None if arguments.before.endswith("''") else None


def _is_aside(before: str) -> bool:
    """Return True if what follows `before` can be left out: a pronunciation after a word or in brackets."""
    if before.rstrip(" ,;/~andort\ue000").endswith("}}"):
        before = _BEFORE_IN_SERIES.sub("", before).rstrip()
    last = before[-1:] or "."
    if last in ",;([" or last in _LAST_OF_ASIDE and _ASIDE.search(before[-32:]):
        return True
    if last == "}" and _FOREIGN_WORD.search(before[-200:]):
        return True
    return before.endswith(("}}", "]]")) and _is_in_brackets(before)


def _is_spoken_of(before: str, after: str) -> bool:
    """Return True if the sentence needs a sound, although it is in the place of an aside."""
    if before[-1:] in ",.s" and _EXAMPLE.search(before[-16:]):
        return True
    return _WORD_FOLLOWS.match(after) is not None and _SUBJECT.search(before[-16:]) is not None


def _is_in_brackets(before: str) -> bool:
    return before.rfind("(") > before.rfind(")")
