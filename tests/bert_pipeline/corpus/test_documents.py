"""Documents, and the hashes that decide splits and duplicates."""

import hashlib

from bert_pipeline.corpus.documents import content_digest, id_hash, make_document, without_controls
from bert_pipeline.corpus.parquet import Document


def test_passages_are_segmented_and_their_starts_kept():
    document = make_document(
        document_id="w:1", title="T", language="en", passages=["One here. Two here.", "  ", "Three here."]
    )
    assert document is not None
    assert document.sentences == ("One here.", "Two here.", "Three here.")
    assert document.passage_starts == (0, 2)
    assert document.passages == [("One here.", "Two here."), ("Three here.",)]


def test_content_digest_depends_on_text_but_not_title():
    def digest(*sentences: str, title: str = "T") -> bytes:
        return content_digest(
            Document(
                document_id="w:1", title=title, language="en", sentences=sentences, passage_starts=(0,), split="train"
            )
        )

    assert digest("a", "b") == digest("a", "b", title="U")
    assert len({digest("a", "b"), digest("b", "a"), digest("a b"), digest("a")}) == 4
    many = [f"Sentence {number}." for number in range(3000)]
    assert digest(*many) == hashlib.blake2b("\n".join(many).encode(), digest_size=16).digest()


def test_id_hashes_are_those_of_blake2b():
    digest = hashlib.blake2b(b"enwiki:12", digest_size=8).digest()
    assert id_hash("enwiki:12") == int.from_bytes(digest, "big")
    shares = sum(id_hash(f"enwiki:{n}") % 1000 < 5 for n in range(40_000)) / 40_000
    assert 0.003 < shares < 0.007


def test_text_has_no_control_characters():
    assert without_controls("a\0b\x07c\x1b[0m\x9fd\x0ce\x85f\tg\nh") == "abc[0md e f\tg\nh"
    document = make_document(document_id="w:1", title="T", language="en", passages=["One\0 is\x1f here. Two\x7f too."])
    assert document is not None
    assert document.sentences == ("One is  here.", "Two too.")
