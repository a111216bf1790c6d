"""Texts to documents in sentences, and the hashes that decide splits and duplicates."""

import hashlib
import re
from collections.abc import Iterable, Sequence

from bert_pipeline.corpus.parquet import Document
from bert_pipeline.wikipedia.sentences import split_sentences

_HASHED_AT_A_TIME = 1024


def make_document(
    *, document_id: str, title: str, language: str, passages: Iterable[str | Sequence[str]]
) -> Document | None:
    """Make a document of passages, which are texts to split into sentences, or sentences; None if there are none."""
    sentences: list[str] = []
    starts: list[int] = []
    for passage in passages:
        of_passage = split_sentences(without_controls(passage), language) if isinstance(passage, str) else passage
        # A passage without sentences must not add a start: starts are strictly ascending.
        if of_passage:
            starts.append(len(sentences))
            sentences.extend(of_passage)
    if not sentences:
        return None
    return Document(
        document_id=document_id,
        title=title,
        language=language,
        sentences=tuple(sentences),
        passage_starts=tuple(starts),
    )


_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f]")


def without_controls(text: str) -> str:
    """Remove control characters, which no text has, except tabs and line feeds; those of white space become blanks."""
    return text if text.isprintable() else _CONTROLS.sub(lambda match: " " if match[0].isspace() else "", text)


def id_hash(document_id: str) -> int:
    """Hash an id to eight bytes; a document is held out if this modulo 1000 is below the share per mille."""
    return int.from_bytes(hashlib.blake2b(document_id.encode(), digest_size=8).digest(), "big")


def content_digest(document: Document) -> bytes:
    """Hash the sentences of a document to sixteen bytes, without its title and passages."""
    digest = hashlib.blake2b(digest_size=16)
    for first in range(0, len(document.sentences), _HASHED_AT_A_TIME):  # a document may have megabytes
        text = "\n".join(document.sentences[first : first + _HASHED_AT_A_TIME])
        digest.update((f"\n{text}" if first else text).encode())
    return digest.digest()
