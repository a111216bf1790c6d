"""Audit of extracted text: markup that was left over, and scars where something was taken out."""

import re

_RESIDUE = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||'''|''|</?[a-zA-Z][a-zA-Z0-9]*+(?:\s[^<>\n]*+)?/?>|<!--|-->"
    r"|&(?:nbsp|ndash|mdash|lt|gt|amp|quot|#\d++|#x[0-9a-fA-F]++);|__[A-Z]{3,}+__|\[https?:|^[=*#|!]|[\ue000-\ue02f]"
    r"|\b(?:style|class|align|colspan|rowspan|bgcolor|width)\s?=\s?[\"']|\bthumb\|",
    re.MULTILINE,
)
_SCARS = re.compile(
    r"\( ?[,;:]? ?\)|\[ ?\]|\( (?! )[^)\n]|\([,;:]|[^\W\d_] [,;](?=\s)|[,;] ?[,;](?=[\s\w])|[,;] ?\)"
    r"|[^\W\d_] \.(?! ?\.)(?=\s|$)"
)


SUSPECT = r"[\[\]{}|<>&]|''|__|=|^[*#!]|[(] |[(][,;:)]| [,;.]|[,;] ?[,;)]|[\x{e000}-\x{e02f}]"
"""Found in every text that holds residue or scars, and quickly (RE2): the expressions above run on what has it."""


def count_residue(text: str) -> int:
    """The number of places where wiki markup or HTML is left in plain text."""
    return sum(1 for _ in _RESIDUE.finditer(text))


def count_scars(text: str) -> int:
    """The number of places where punctuation shows that something is missing: "( )", " ,", "(;"."""
    return sum(1 for _ in _SCARS.finditer(text))
