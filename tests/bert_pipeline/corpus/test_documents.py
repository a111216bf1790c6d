"""Documents, their readers, and the hashes that decide splits and duplicates."""

import hashlib
from pathlib import Path

import pytest

from bert_pipeline.corpus.documents import (
    Document,
    content_digest,
    id_hash,
    is_book,
    make_document,
    read_book,
    read_json_documents,
    read_pair_documents,
    read_text_documents,
)
from bert_pipeline.errors import InputError

SENTENCE_LINES = "The first sentence.\nThe second one!\n\n\nAnother document starts here.\nIt goes on.\n"
BOOK = """The Project Gutenberg EBook of Something

*** START OF THIS PROJECT GUTENBERG EBOOK SOMETHING ***

It was a dark night and the
rain fell without an end. Nobody
was abroad.

The second paragraph
comes here.

*** END OF THIS PROJECT GUTENBERG EBOOK SOMETHING ***

Licence of many words.
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_passages_are_segmented_and_their_starts_kept() -> None:
    document = make_document(
        document_id="w:1", title="T", language="en", passages=["One here. Two here.", "  ", "Three here."]
    )
    assert document is not None
    assert document.sentences == ("One here.", "Two here.", "Three here.")
    assert document.passage_starts == (0, 2)
    assert document.passages == [("One here.", "Two here."), ("Three here.",)]


def test_empty_text_gives_no_document() -> None:
    assert make_document(document_id="w:1", title="T", language="en", passages=["", " \n"]) is None


def test_content_digest_depends_on_text_but_not_title() -> None:
    def digest(*sentences: str, title: str = "T") -> bytes:
        return content_digest(
            Document(
                document_id="w:1", title=title, language="en", sentences=sentences, passage_starts=(0,), split="train"
            )
        )

    assert digest("a", "b") == digest("a", "b", title="U")
    assert len({digest("a", "b"), digest("b", "a"), digest("a b"), digest("a")}) == 4


def test_id_hashes_are_those_of_blake2b() -> None:
    digest = hashlib.blake2b(b"enwiki:12", digest_size=8).digest()
    assert id_hash("enwiki:12") == int.from_bytes(digest, "big")
    shares = sum(id_hash(f"enwiki:{n}") % 1000 < 5 for n in range(40_000)) / 40_000
    assert 0.003 < shares < 0.007


def test_sentence_per_line_format_is_detected() -> None:
    assert not is_book(SENTENCE_LINES)
    assert is_book(BOOK)
    assert is_book("A line that goes on\nand on without an end\nuntil it stops.\n")


def test_google_format_keeps_its_sentences(tmp_path: Path) -> None:
    documents = list(read_text_documents(write(tmp_path / "a.txt", SENTENCE_LINES), "own", "en"))
    assert [document.sentences for document in documents] == [
        ("The first sentence.", "The second one!"),
        ("Another document starts here.", "It goes on."),
    ]
    assert [document.document_id for document in documents] == ["own:a-0", "own:a-1"]


def test_book_is_joined_parted_and_freed_of_its_licence(tmp_path: Path) -> None:
    assert read_book(BOOK) == [
        "It was a dark night and the rain fell without an end. Nobody was abroad.",
        "The second paragraph comes here.",
    ]
    (document,) = read_text_documents(write(tmp_path / "book.txt", BOOK), "own", "en")
    assert document.passage_starts == (0, 2)
    assert document.document_id == "own:book"


def test_json_lines_give_documents_with_their_own_ids(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        '{"text": "One. Two.\\n\\nThree.", "id": 7, "title": "T", "language": "de"}\n\n{"text": "Four."}\n',
    )
    first, second = read_json_documents(path, "own", "en")
    assert (first.document_id, first.title, first.language, first.passage_starts) == ("own:7", "T", "de", (0, 2))
    assert (second.document_id, second.language) == ("own:a-3", "en")


@pytest.mark.parametrize(
    ("line", "found"), [("{broken", "not JSON"), ("[1]", "found list"), ('{"body": "x"}', "found keys body")]
)
def test_bad_json_lines_are_refused_by_file_and_line(tmp_path: Path, line: str, found: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "x."}}\n{line}\n')
    with pytest.raises(InputError, match=rf"a\.jsonl:2: .*{found}"):
        list(read_json_documents(path, "own", "en"))


def test_pairs_are_documents_of_two_sentences(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", 'Hello there.\tHow are you?\n\nOne "quoted.\tTwo.\n')
    documents = list(read_pair_documents(path, "own", "en"))
    assert [document.sentences for document in documents] == [
        ("Hello there.", "How are you?"),
        ('One "quoted.', "Two."),
    ]


def test_pair_with_wrong_columns_raises_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", "a\tb\nonly one\n")
    with pytest.raises(InputError, match=r"p\.tsv:2: 1 columns, expected 2"):
        list(read_pair_documents(path, "own", "en"))


def test_other_encodings_raise(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("naïve".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        list(read_text_documents(path, "own", "en"))


@pytest.mark.real_data
def test_novels_and_google_sample_are_recognized(real_data: Path) -> None:
    folder = real_data / "text"
    counts = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".txt":
            counts[path.stem] = len(list(read_text_documents(path, "own", "en")))
    assert counts.pop("google_bert_sample_text") > 1
    assert set(counts.values()) == {1}
