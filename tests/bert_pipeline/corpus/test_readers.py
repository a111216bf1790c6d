"""Readers of text, JSON-lines, pair and Parquet sources, and the decision between the two formats of text."""

import json
import random
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_pipeline.corpus.parquet import Document
from bert_pipeline.corpus.readers import (
    READERS,
    FailedRecord,
    ParquetDocuments,
    Read,
    detect_format,
    plan_row_groups,
    read_book,
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

License of many words.
"""
HINDI = [["यह पहला वाक्य है।", "यह दूसरा वाक्य है।"], ["क्या यह तीसरा है?", "हाँ, यह है।"]] * 20


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def sentences_of(documents: list[Document | None]) -> list[tuple[str, ...]]:
    return [document.sentences for document in documents if document is not None]


# Lines and books


def test_google_format_keeps_its_sentences(tmp_path):
    documents = list(READERS["lines"](write(tmp_path / "a.txt", SENTENCE_LINES), "own", "en"))
    assert sentences_of(documents) == [
        ("The first sentence.", "The second one!"),
        ("Another document starts here.", "It goes on."),
    ]
    assert [document.document_id for document in documents if document] == ["own:a-0", "own:a-1"]


def test_book_is_joined_parted_and_freed_of_its_license(tmp_path):
    for form in ("auto", "plain", "markdown", "keep"):
        (document,) = READERS["book"](write(tmp_path / "book.txt", BOOK), "own", "en", form=form)
        assert document is not None
        assert document.sentences == (
            "It was a dark night and the rain fell without an end.",
            "Nobody was abroad.",
            "The second paragraph comes here.",
        )
        assert document.passage_starts == (0, 2)
        assert document.document_id == "own:book"


@pytest.mark.parametrize("name", ["ETEXT SOMETHING", "EBOOK, SOMETHING\nLONG"])
def test_license_is_known_by_its_older_forms(tmp_path, name):
    path = write(tmp_path / "book.txt", BOOK.replace("EBOOK SOMETHING", name))
    assert detect_format(path, "en") == "book"
    (document,) = READERS["book"](path, "own", "en")
    assert (document.sentences[0], document.sentences[-1]) == (
        "It was a dark night and the rain fell without an end.",
        "The second paragraph comes here.",
    )


@pytest.mark.parametrize(("stated", "language"), [("deu_Latn", "deu_Latn"), ("German", "fr"), (["de"], "fr")])
def test_language_of_a_record_is_a_code(tmp_path, stated, language):
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "Am 3. Mai.", "language": stated}))
    assert [document.language for document in READERS["jsonl"](path, "own", "fr")] == [language]


@pytest.mark.parametrize(
    ("text", "paragraph"),
    [
        ("これは文です。ひら\nがなで書く。\n", "これは文です。ひらがなで書く。"),
        ("เมืองนั้นมี\nมหาศาล\n", "เมืองนั้นมีมหาศาล"),
        ("彼は Berlin\nに住む。\n", "彼は Berlin に住む。"),
        ("  Hard line\r\n  ends.\n", "Hard line ends."),
    ],
)
def test_hard_line_end_is_a_space_where_the_script_has_spaces(text, paragraph):
    assert read_book(text) == [paragraph]


def test_long_book_is_continued_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_pipeline.corpus.text_files.MAX_DOCUMENT_BYTES", 110)
    documents = list(READERS["book"](write(tmp_path / "book.txt", BOOK), "own", "en"))
    assert [(document.document_id, document.title) for document in documents if document] == [
        ("own:book", "book"),
        ("own:book-1", "book 1"),
    ]
    assert sentences_of(documents) == [
        ("It was a dark night and the rain fell without an end.", "Nobody was abroad."),
        ("The second paragraph comes here.",),
    ]


@pytest.mark.parametrize("limit", range(20, 320, 20))
def test_licence_of_a_long_book_is_removed_wherever_a_part_ends(limit, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_pipeline.corpus.text_files.MAX_DOCUMENT_BYTES", limit)
    path = write(tmp_path / "book.txt", BOOK + "\nMore of it.\n" * 9)
    found = [sentence for sentences in sentences_of(list(READERS["book"](path, "own", "en"))) for sentence in sentences]
    assert found[-2:] == ["Nobody was abroad.", "The second paragraph comes here."]


def test_text_that_begins_like_bzip2_is_text(tmp_path):
    path = write(tmp_path / "a.txt", "BZhang went home.\nHe slept.\n")
    assert sentences_of(READERS["lines"](path, "own", "en")) == [("BZhang went home.", "He slept.")]


def failed_in(documents: Iterator[Read]) -> str:
    """Return why the last of some records failed; the others must not."""
    *others, last = documents
    assert isinstance(last, FailedRecord)
    assert not any(isinstance(document, FailedRecord) for document in others)
    return last.reason


def test_book_without_blank_lines_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_pipeline.corpus.text_files.MAX_LINE_BYTES", 100)
    path = write(tmp_path / "a.txt", "A sentence is here.\n" * 20)
    with pytest.raises(InputError, match="no blank line in the 256 MiB from byte 0 on.*lines:"):
        list(READERS["book"](path, "own", "en"))


def test_other_encodings_fail_with_the_byte(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"A\tB\n\n" + "na\tïve".encode("latin-1"))
    for read in (READERS["lines"], READERS["book"], READERS["pairs"]):
        assert re.search(
            r"a\.txt: not UTF-8 text \(.* at byte 8 of the text\); convert it", failed_in(read(path, "own", "en"))
        )


# The decision of `text:`


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SENTENCE_LINES, "lines"),
        ("\n\n".join("\n".join(document) for document in HINDI), "lines"),
        ("\n\n".join("\n".join(["これは文です。", "「次の文です。」"]) for _ in range(9)), "lines"),
        (BOOK, "book"),
        ("A line that goes on\nand on without an end\nuntil it stops.\n", "book"),
        ("\n\n".join(" ".join(document) for document in HINDI), "book"),  # a paragraph per line
        ("यह पहला वाक्य है। यह\nदूसरा वाक्य है। क्या\nयह तीसरा है? हाँ,\nयह है।\n\n" * 5, "book"),
        ("これは文です。次の\n文です。そして\n三番目の文です。\n\n" * 5, "book"),
        (" \n\n", "lines"),
    ],
    ids=["lines", "Hindi", "Japanese", "Gutenberg", "hard line ends", "Hindi paragraphs", "Hindi wrapped",
         "Japanese wrapped", "blank"],
)  # fmt: skip
def test_format_of_text_is_decided_in_every_script(tmp_path, text, expected):
    for language in ("en", "hi", "ja"):  # the option is often left out
        assert detect_format(write(tmp_path / "a.txt", text), language) == expected


def test_georgian_lines_do_not_begin_in_lower_case(tmp_path):
    text = "ქალაქი დიდია და\nძველია.\n" * 9
    with pytest.raises(InputError, match="cannot tell"):
        detect_format(write(tmp_path / "a.txt", text), "ka")


def test_archive_is_no_text(tmp_path):
    (tmp_path / "a.txt").write_text(SENTENCE_LINES)
    with tarfile.open(tmp_path / "books.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "a.txt", "a.txt")
    for read in (READERS["lines"], READERS["book"]):
        failed = [record for record in read(tmp_path / "books.tar.gz", "own", "en") if isinstance(record, FailedRecord)]
        assert "holds zero bytes: unpack it if it is a tar archive" in failed[0].reason


@pytest.mark.parametrize(
    "text",
    [
        "ผมชื่อเอ\nผมอยู่ที่กรุงเทพ\n\nวันนี้ฝนตก\nพรุ่งนี้ฝนไม่ตก\n" * 9,
        "เขาเกิดเมื่อปี ค.ศ. 1990 ที่กรุงเทพ\nพ.ศ. 2533 เป็นปีที่ฝนตก\n" * 9,
        "A title\nA second title\nA sentence is here.\n" * 9,
    ],
    ids=["Thai without marks", "Thai with abbreviations", "titles"],
)
def test_undecided_format_is_refused_with_a_remedy(tmp_path, text):
    with pytest.raises(InputError, match="cannot tell .* name it lines: or book: instead of text:"):
        detect_format(write(tmp_path / "a.txt", text), "en")


@pytest.mark.parametrize(
    ("name", "start", "found"),
    [
        ("a.html", "\n<!DOCTYPE html>\n<p>", "HTML"),
        ("a.txt", "<html lang=en>", "HTML"),
        ("a.wet", "WARC/1.0\r\n\r\n", "a web archive"),
        ("a.txt", '{"text": "', "JSON"),
        ("a.csv", "id;text\n", "a table"),
    ],
)
def test_text_that_is_of_another_format_is_refused(tmp_path, name, start, found):
    path = write(tmp_path / name, f"{start}A sentence is here.\nAnother one is there.\n")
    with pytest.raises(InputError, match=f"found {found}, expected text; write its texts as JSON lines"):
        detect_format(path, "en")


def test_text_of_another_encoding_is_not_decided(tmp_path):
    (tmp_path / "a.txt").write_bytes("Über.\n".encode("utf-16"))
    with pytest.raises(InputError, match="not UTF-8 text .* at byte 0"):
        detect_format(tmp_path / "a.txt", "en")
    (tmp_path / "a.txt").write_bytes("é".encode() + "漢字。\n".encode() * 200_000)  # a character crosses the megabyte
    assert detect_format(tmp_path / "a.txt", "ja") == "lines"


# JSON lines and pairs


def test_json_lines_give_documents_with_their_own_ids(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        '{"text": "One. Two.\\n\\nThree.", "id": 7, "title": "T", "language": "de"}\n'
        '\n{"text": "Four.", "title": null}\n',
    )
    first, second = READERS["jsonl"](path, "own", "en")
    assert first is not None
    assert second is not None
    assert (first.document_id, first.title, first.language, first.passage_starts) == ("own:7", "T", "de", (0, 2))
    assert (second.document_id, second.language, second.title) == ("own:a-3", "en", "")


def test_null_is_an_empty_text_in_json_lines_as_in_parquet(tmp_path):
    rows = [{"text": None}, {"text": "One."}]
    lines = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    table = write_table(tmp_path / "a.parquet", rows)
    for documents in (READERS["jsonl"](lines, "own", "en"), ParquetDocuments(table, "own", "en")):
        assert [document and document.document_id for document in documents] == [None, "own:a-2"]


def test_blank_id_is_none_and_zero_is_one(tmp_path):
    rows = [{"text": "One.", "id": identifier} for identifier in ("", "", " ", 0)]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    ids = [document.document_id for document in READERS["jsonl"](path, "own", "en") if document]
    assert ids == ["own:a-1", "own:a-2", "own:a-3", "own:0"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{broken", "not valid JSON"),
        pytest.param("[" * 100_000, "not valid JSON", id="nested"),
        ("[1]", "found a JSON list"),
        ('{"body": "x"}', "found keys body"),
        ('{"text": ["x"]}', 'found "text" of type list'),
        (r'{"text": "x \ud83d."}', r"text has half of a surrogate pair"),
    ],
)
def test_bad_json_lines_fail_by_file_and_line(tmp_path, line, found):
    path = write(tmp_path / "a.jsonl", f'{{"text": "x \\ud83d\\ude00."}}\n{line}\n')
    assert re.search(rf"a\.jsonl:2: .*{found}", failed_in(READERS["jsonl"](path, "own", "en")))


def test_pairs_are_documents_of_two_sentences(tmp_path):
    path = write(tmp_path / "p.tsv", 'Hello there.\tHow are you?\n\nOne "quoted.\tTwo.\n')
    documents = list(READERS["pairs"](path, "own", "en"))
    assert sentences_of(documents) == [("Hello there.", "How are you?"), ('One "quoted.', "Two.")]


def test_pair_with_wrong_columns_fails_with_file_and_line(tmp_path):
    for line, found in (("only one", "1 columns"), ("first\t", "an empty sentence")):
        path = write(tmp_path / "p.tsv", f"a\tb\n{line}\n")
        reason = failed_in(READERS["pairs"](path, "own", "en"))
        assert reason.endswith(f"p.tsv:2: {found}, expected 2 sentences separated by a tab")


# Parquet

ROWS = [
    {"id": str(number), "url": "u", "title": f"T{number}", "text": f"One is {number}. Two is too.\n\nThree."}
    for number in range(10, 30)
]


def write_table(path: Path, rows: Sequence[Mapping[str, object]], **options: int) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, **options)
    return path


def test_parquet_of_the_hub_gives_id_title_and_paragraphs(tmp_path):
    path = write_table(tmp_path / "train-00000-of-00041.parquet", ROWS, row_group_size=3)
    documents = [document for document in ParquetDocuments(path, "enwiki", "en") if document]
    assert documents[2] == Document(
        document_id="enwiki:12",
        title="T12",
        language="en",
        sentences=("One is 12.", "Two is too.", "Three."),
        passage_starts=(0, 2),
        split="train",
    )
    assert len(documents) == 20


def test_parquet_without_ids_is_numbered_by_row(tmp_path):
    path = write_table(tmp_path / "a.parquet", [{"text": row["text"]} for row in ROWS], row_group_size=3)
    whole = list(ParquetDocuments(path, "own", "en"))
    assert [document.document_id for document in whole if document] == [f"own:a-{row}" for row in range(1, 21)]
    for split_bytes in (1, 200, 10_000):
        spans = list(plan_row_groups(path, split_bytes))
        assert [document for span in spans for document in ParquetDocuments(path, "own", "en", span)] == whole
    assert len(list(plan_row_groups(path, 1))) == 7
    assert len(spans) == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "dictionary"])
def test_parquet_takes_other_types_of_text_and_languages_of_rows(tmp_path, kind):
    texts = pa.array(["Eins. Zwei.", None, "", "Three."])
    columns = {
        "text": texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind),
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "language": pa.array(["de", "de", "de", None]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    documents = list(ParquetDocuments(tmp_path / "a.parquet", "own", "en"))
    assert [document and (document.document_id, document.language, document.title) for document in documents] == [
        ("own:1", "de", ""), None, None, ("own:a-4", "en", "")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": ["x"], "id": [1]}, "found columns body, id, expected 'text' too; rename the column with"),
        ({"text": [1]}, "column 'text' holds int64, expected string"),
    ],
)
def test_parquet_of_other_columns_is_refused(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=f"a.parquet: not a Parquet file of documents: {message}"):
        list(plan_row_groups(tmp_path / "a.parquet", 1))


def test_damaged_parquet_is_refused_by_row_group(tmp_path):
    path = write_table(tmp_path / "a.parquet", ROWS, row_group_size=10)
    data = bytearray(path.read_bytes())
    offset = pq.ParquetFile(path).metadata.row_group(1).column(3).data_page_offset
    data[offset : offset + 60] = bytes(60)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.parquet: row group 1 cannot be read .*fetch the file again"):
        list(ParquetDocuments(path, "own", "en"))
    path.write_bytes(data[:-20])
    with pytest.raises(InputError, match=r"a\.parquet: not a Parquet file of documents"):
        list(ParquetDocuments(path, "own", "en"))


@pytest.mark.parametrize(
    ("number", "half_bytes", "options", "max_bytes"),
    [
        (20_000, 500, {}, 8e6),  # 20 MB in pages of 1 MB
        (16, 1_000_000, {"write_batch_size": 1, "data_page_size": 1, "use_dictionary": False}, 12e6),  # a page each
    ],
)
def test_row_group_is_not_held_whole(tmp_path, number, half_bytes, options, max_bytes):
    rng = random.Random(1)
    rows = [{"text": rng.randbytes(half_bytes).hex()} for _ in range(number)]
    path = write_table(tmp_path / "a.parquet", rows, **options)
    before = pa.total_allocated_bytes()
    documents = iter(ParquetDocuments(path, "own", "en"))
    next(documents)
    assert pa.total_allocated_bytes() - before < max_bytes
    assert number > 16 or len(list(documents)) == number - 1


def test_row_of_parquet_that_is_not_utf8_fails_alone(tmp_path):
    text = pa.array(["fine", "naïve".encode("latin-1")], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    reason = failed_in(ParquetDocuments(tmp_path / "a.parquet", "own", "en"))
    assert re.search("a.parquet: row 2: not UTF-8 text", reason)


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_record_whose_paragraphs_are_not_found_fails_alone(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("bert_pipeline.corpus.readers.prose_passages", lambda text, *_: [json.loads(text)])
    rows = [{"id": 1, "text": '"Fine."'}, {"id": 2, "text": "not"}, {"id": 3, "text": '"So fine."'}]
    path = tmp_path / "a"
    write(path, "\n".join(map(json.dumps, rows))) if kind == "jsonl" else write_table(path, rows)
    first, failed, last = READERS[kind](path, "own", "en")
    assert sentences_of([first, last]) == [("Fine.",), ("So fine.",)]
    assert (failed.document_id, failed.reason[:15]) == ("own:2", "JSONDecodeError")


# Real files


@pytest.mark.real_data
def test_novels_and_google_sample_are_recognized(real_data):
    formats = {path.stem: detect_format(path, "en") for path in sorted((real_data / "text").glob("*.txt"))}
    assert formats.pop("google_bert_sample_text") == "lines"
    assert set(formats.values()) == {"book"}
    for name in formats:
        assert len(list(READERS["book"](real_data / "text" / f"{name}.txt", "own", "en"))) == 1


@pytest.mark.real_data
def test_shared_parquet_gives_articles_and_novels(real_data):
    folder = real_data / "pretraining"
    path = folder / "wikipedia" / "train-00000.parquet"
    documents = iter(ParquetDocuments(path, "enwiki", "en"))
    first = next(documents)
    assert first is not None
    assert (first.document_id, first.title) == ("enwiki:12", "Anarchism")
    assert first.sentences[0].startswith("Anarchism is a political philosophy that advocates stateless societies")
    assert first.passages[1][0].startswith("As an anti-dogmatic philosophy, anarchism draws on")
    assert [span.first for span in plan_row_groups(path, 4 << 20)] == [0, 1000, 2000]
    (novel, *_) = plan_row_groups(folder / "books" / "train-00000.parquet", 4 << 20)
    assert (novel.start, novel.stop) == (0, 1)
