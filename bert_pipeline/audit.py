"""Audit of extracted text: markup that was left over, and scars where something was taken out."""

import re

_RESIDUE = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||''|==|~~~|-\{|\}-|<!--|-->|^[=*#|!:;]|[\ue000-\ue02f]"
    r"|</?[a-zA-Z][a-zA-Z0-9]*+(?:\s[^<>\n]*+)?/?>"
    r"|</?(?:ref|br|div|span|small|su[bp]|gallery|math|table|t[drh]|nowiki|blockquote|center|references)\b"
    r"|&(?:[a-zA-Z]{2,8}|#\d++|#x[0-9a-fA-F]++);|__[A-Z]{3,}+__|\[(?:https?|ftp):|\[//"
    r"|\|(?:thumb|left|right|center|frame|frameless|upright|\d++px)\b|\bthumb\||\b(?:File|Image):\S+\.[a-zA-Z]{3}"
    r"|\b(?:style|class|align|width)\s?=\s?[\"']|\b(?:colspan|rowspan|bgcolor|cellpadding|cellspacing|valign)\s?=",
    re.MULTILINE,
)
_SCARS = re.compile(
    r"\(\s*[,;:]?\s*\)|\[\s*\]|“\s*”|‘\s*’|(?<![\w\"])\"\"(?![\w\"])"  # nothing in brackets or quotation marks
    r"|\( (?! )[^)\n]|\([,;:]|\(\.(?=\s)|(?<=\S) \)|[,;:] ?\)"  # brackets that lost their first or last word
    r"|[\w)\]”’\"] [,;](?=\s|$)|[,;:] ?[,;](?=[\s\w])|, ?\.(?=\s|$)"
    r"|[\w)\]”’\"] \.(?! ?\.)(?=\s|$)"
    r"|(?<!['’-])\b(?:the|an|such as)[.,;)](?=\s|$)"  # words that want another after them
    r"|(?<=\s)['’]s\b|(?<!\d)(?<!\d )[$£€](?=\s?[.,;()]| (?:in|as|per|of|million|billion)\b)"
)


SUSPECT = (
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|[|}]|''|==|~~~|-\{|\}-|<!--|-->|^[=*#|!:;]|[\x{e000}-\x{e02f}]|</?[a-zA-Z]"
    r"|&(?:[a-zA-Z]{2,8};|#)|__[A-Z]|\[(?:https?|ftp|//)|\|(?:thumb|left|right|cent|frame|upright|\S+px)|thumb\|"
    r"|(?:File|Image):\S|(?:style|class|align|width|span|color|cellpadding|cellspacing)\s?="
    r"|\(\s*[,;:]?\s*\)|\[\s*\]|“\s*”|‘\s*’|\"\"|\( |\([,;:.]| \)|[,;:] ?\)| [,;.](?:\s|$)|[,;:] ?[,;]|, ?\.(?:\s|$)"
    r"|\b(?:the|an|such as)[.,;)](?:\s|$)|\s['’]s|[$£€](?:\s?[.,;()]| (?:in|as|per|of|million|billion))"
)
"""The two expressions above less what RE2 lacks: it finds, quickly, all that holds residue or scars and little else."""


def count_residue(text: str) -> int:
    """The number of places where wiki markup or HTML is left in plain text."""
    return sum(1 for _ in _RESIDUE.finditer(text))


def count_scars(text: str) -> int:
    """The number of places where it shows that something is missing: "( )", " ,", "(;", "the.", a lone "$"."""
    return sum(1 for _ in _SCARS.finditer(text))
