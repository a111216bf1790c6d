"""How many words a text has, also in scripts that write no spaces between them."""

import re

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
