"""One paragraph: its finished text, and whether it is prose."""

import re
from collections import Counter

from bert_pipeline.wikipedia.losses import settle_losses
from bert_pipeline.wikipedia.marks import FORMULA, VOID, mend, unprotect
from bert_pipeline.wikipedia.quotes import remove_emphasis
from bert_pipeline.wikipedia.words import count_unspaced_words


def finish_passage(text: str, dropped: Counter[str]) -> str:
    """Emphasis, marks and white space of one passage."""
    if "'" in text and "''" in text:
        text = remove_emphasis(text)
    if "  " in text or _ODD_SPACE.search(text):  # else splitting, a third of this function's time, would change nothing
        text = " ".join(text.split())
    text = text.strip()
    if FORMULA in text or VOID in text:
        text = settle_losses(text, dropped)
    text = mend(text).strip()
    if not text.isascii():
        text = unprotect(text)
        if _HAS_INVISIBLE.search(text):
            text = text.translate(_INVISIBLE)
        text = " ".join(text.split()) if "  " in text else text.strip()
    if " ." in text or " ," in text:
        text = _LOOSE.sub("", text)
    return text


_HAS_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_INVISIBLE = dict.fromkeys([0xAD, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065), 0xFEFF])
"""Soft hyphens, direction marks and the like. Joiners (U+200C, U+200D) stay: they spell words in several scripts."""
_ODD_SPACE = re.compile(r"[\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
"""White space other than " "."""
_LOOSE = re.compile(r"(?<=[^\s.]) (?=[,.](?:[\s)\"”»]|$))(?!\. ?\.)")
"""Spaces that writers leave before a comma or full stop; not those of ". . ."."""


def is_prose(passage: str) -> bool:
    """False for what stands alone without being a sentence: a label, a name, debris of a template."""
    if passage.startswith(("* ", "† ", "‡ ")):  # the legend of a table
        return False
    end = passage.rstrip(_CLOSERS)[-1:]
    if end in _SENTENCE_ENDS:
        return True
    num_spaces = passage.count(" ")
    if not num_spaces or not passage.isascii() and num_spaces < 8:
        num_spaces += count_unspaced_words(passage)
    if end in OPEN_ENDS:
        return num_spaces >= (1 if end == "," or passage.endswith(_SAYS) else 2)
    return len(passage) >= 80 or num_spaces >= 8 and not _LABEL.match(passage)


_SAYS = ("ed:", "said:", "says:", "wrote:", "writes:", "states:", "replies:")
"""Two words that lead over to a quotation: "Aldrin added:"."""
_LABEL = re.compile(r"[^\W\d_][\w-]*+(?: [\w-]++)?: ")
"""What a line of data begins with: "Great-grandfather: "."""
_CLOSERS = "\"'”’)]»›）」』】 "
_SENTENCE_ENDS = frozenset(".!?…。！？।॥։؟۔")
OPEN_ENDS = (",", ":", ";", "،", "：")
"""What leads over to a quotation, a list or a formula: "The signers were:"; but not "Notes:"."""
