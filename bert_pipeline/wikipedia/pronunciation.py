"""Templates of the International Phonetic Alphabet.

A pronunciation that is given beside a word, in brackets or between commas, is dropped; a sound that the sentence speaks
of ("the letter represents the vowel /a/") is one of its words and stays.
"""

import re

from bert_pipeline.wikipedia.registry import IN_CONTEXT, Arguments, register, register_prefix

_ASIDE = re.compile(
    r"(?:[,;([]|'''|\bpronunciation:?|\bIPA(?:\]\])?:?"
    r"|(?:^|[,;(–—-] ?)(?:also |usually |often |commonly )?pronounced:?)$",
    re.IGNORECASE,
)
"""What stands before a pronunciation that could be left out."""
_BEFORE_IN_SERIES = re.compile(r"(?:\{\{ipa[^{}]*+\}\}[ \ue000]*+[,;/~]?+ ?+(?:or|and|to)?+ ?+)++$", re.IGNORECASE)
"""Sounds in a series go the way of the first."""


IN_CONTEXT.add("ipa-")


@register_prefix("ipa-")
def _sound_of_a_language(arguments: Arguments) -> str | None:
    """With a second argument that is empty, the sound stands without the name of the language."""
    before = arguments.before
    if arguments.values.get("2") != "" or not arguments.get(1) or _is_aside(before) or _is_in_brackets(before):
        return None
    return f"[{arguments.get(1)}]"


@register("ipa, ipaslink, ipablink, ipalink, ipa link, ipa-link", in_context=True)
def _sound(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    if len(values) != 1 or _is_aside(arguments.before):
        return None
    slashes = {"ipaslink": "/", "ipablink": "["}.get(arguments.name, "")
    return f"{slashes}{values[0]}{slashes.replace('[', ']')}"


def _is_aside(before: str) -> bool:
    """Whether what follows the line `before` could be left out: it is a pronunciation given beside a word."""
    if before.rstrip(" ,;/~andort\ue000").endswith("}}"):
        before = _BEFORE_IN_SERIES.sub("", before).rstrip()
    if _ASIDE.search(before[-32:]):
        return True
    return before.endswith(("}}", "]]", "''")) and _is_in_brackets(before)


def _is_in_brackets(before: str) -> bool:
    return before.rfind("(") > before.rfind(")")
