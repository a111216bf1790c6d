"""Text files as bytes: compression, and spans that give the same documents as the whole file."""

import bz2
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_pipeline.compression import open_bytes
from bert_pipeline.corpus import readers, text_files
from bert_pipeline.corpus.batches import read_document_ids
from bert_pipeline.corpus.documents import without_controls
from bert_pipeline.corpus.parquet import Document
from bert_pipeline.corpus.readers import READERS, FailedRecord
from bert_pipeline.corpus.splits import CorpusConfig, plan_splits, read_batches
from bert_pipeline.corpus.text_files import Span, TextKind, plan_spans, stem_of
from bert_pipeline.errors import InputError


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
        stream.flush()
        stream.close()
    return bytes(sink.getvalue())


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd
}  # fmt: skip


def documents_of(path: Path, kind: TextKind, span: Span = text_files.WHOLE) -> list[Document]:
    return [document for document in READERS[kind](path, "own", "en", span) if document]


# Spans

ENDS = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n", "\r\r", "\n \t\n", "\n\u3000\n", "\n\xa0\r\n"])
WORDS = st.sampled_from(
    ["A b.", "é", "漢字。", "\u3000", " ", "😀", "\u2028", "\x85", "\x0c", "\x1c", "\ufeff", "x y z"]
)
TEXTS = st.lists(st.tuples(WORDS, ENDS | st.just(""))).map(lambda pieces: "".join(map("".join, pieces)))
RECORDS = st.lists(st.tuples(st.sampled_from(["", " ", "{}", "A b.", "漢字。 é", "😀"]), ENDS))


def as_json(records: list[tuple[str, str]]) -> str:
    texts = (json.dumps({"text": text}, ensure_ascii=False) if text.strip() else text for text, _ in records)
    return "".join(text + end for text, (_, end) in zip(texts, records))


def as_pairs(records: list[tuple[str, str]]) -> str:
    return "".join((f"{text}\t{text}" if text.strip() else text) + end.replace("\t", " ") for text, end in records)


CONTENTS = st.one_of(
    st.tuples(st.sampled_from(["lines", "book"]), TEXTS),
    st.tuples(st.just("jsonl"), RECORDS.map(as_json)),
    st.tuples(st.just("pairs"), RECORDS.map(as_pairs)),
)


@settings(max_examples=300, deadline=None)
@given(
    content=CONTENTS,
    bom=st.booleans(),
    split_bytes=st.integers(1, 20),
    limit=st.sampled_from([1, 7, 30, 1000]),
    at_a_time=st.sampled_from([3, 10, 1000]),
)
def test_spans_give_the_documents_of_the_whole_file(tmp_path_factory, content, bom, split_bytes, limit, at_a_time):
    kind, text = content
    path = tmp_path_factory.getbasetemp() / "spans.txt"
    data = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "MAX_DOCUMENT_BYTES", limit)
        whole = documents_of(path, kind)
        patch.setattr(text_files, "_LINES_BYTES", at_a_time)
        spans = list(plan_spans(path, kind, split_bytes))
        assert [document for span in spans for document in documents_of(path, kind, span)] == whole
        # The spans are the file, without gap or overlap; and a file that cannot be cut gives the same documents.
        assert [spans[0].start, *(span.stop for span in spans)] == [*(span.start for span in spans), None]
        path.write_bytes(gzip.compress(data))
        assert documents_of(path, kind) == whole


@given(text=TEXTS)
@settings(max_examples=200, deadline=None)
def test_lines_are_those_of_googles_script(tmp_path_factory, text):
    """https://github.com/google-research/bert/blob/master/create_pretraining_data.py, `create_training_instances`."""
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_text(text, encoding="utf-8", newline="")
    expected: list[list[str]] = [[]]
    with open(path, encoding="utf-8-sig") as stream:
        for line in stream:
            if not line.strip():
                expected.append([])
            # It keeps control characters, which the tokenizer drops.
            elif sentence := without_controls(line).strip():
                expected[-1].append(sentence)
    assert [list(document.sentences) for document in documents_of(path, "lines")] == [
        sentences for sentences in expected if sentences
    ]


def test_document_without_blank_lines_is_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MAX_DOCUMENT_BYTES", 20)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"Sentence {number}.\n" for number in range(5)))
    assert [(document.document_id, document.sentences) for document in documents_of(path, "lines")] == [
        ("own:a-0", ("Sentence 0.", "Sentence 1.")),
        ("own:a-1", ("Sentence 2.", "Sentence 3.")),
        ("own:a-2", ("Sentence 4.",)),
    ]


LINE_ENDS = pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CR LF", "CR"])


@LINE_ENDS
def test_only_lf_and_cr_end_a_line(tmp_path, end):
    path = tmp_path / "a.txt"
    written = [f"One{char}two." for char in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"]
    sentences = ["One two."] * 6 + written[6:]  # control characters become blanks
    path.write_text(end.join(written), newline="")
    assert documents_of(path, "lines")[0].sentences == tuple(sentences)
    assert readers.detect_format(path, "en") == "lines"
    path.write_text(end.join(f"{text}\t{text}" for text in written), newline="")
    assert [document.sentences for document in documents_of(path, "pairs")] == [(text, text) for text in sentences]
    path.write_text(end.join(json.dumps({"text": text}, ensure_ascii=False) for text in written), newline="")
    assert len(documents_of(path, "jsonl")) == len(written)


@LINE_ENDS
def test_limit_of_a_line_is_that_of_each(tmp_path, monkeypatch, end):
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "x"}}{end}[' + '{"text": "x"}, ' * 20 + f"]{end}", newline="")
    with pytest.raises(InputError, match=rf"a\.jsonl: the line at byte {13 + len(end)} is longer than 256 MiB"):
        documents_of(path, "jsonl")
    path = tmp_path / "a.txt"
    path.write_text(f"A sentence is here.{end}" * 20, newline="")
    assert documents_of(path, "lines")[0].sentences == ("A sentence is here.",) * 20
    path.write_text(f"A sentence is here.{end}" * 3 + "x" * 101, newline="")
    with pytest.raises(InputError, match=f"the line at byte {3 * (19 + len(end))} is longer than 256 MiB"):
        documents_of(path, "lines")


# Compression

CONTENT: dict[TextKind, str] = {
    "lines": "Ein Satz.\nEin zweiter.\n\nÜber das nächste Dokument.\n",
    "book": "Ein Satz. Noch\neiner.\n\nÜber den nächsten Absatz.\n",
    "jsonl": '{"text": "Ein Satz."}\n{"text": "Über den nächsten."}\n',
    "pairs": "Ein Satz.\tNoch einer.\n",
}


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("kind", CONTENT)
def test_compressed_files_give_the_same_documents(tmp_path, kind, suffix):
    plain, packed = tmp_path / "a.txt", tmp_path / f"a.txt.{suffix}"
    data = CONTENT[kind].encode()
    plain.write_bytes(data)
    packed.write_bytes(COMPRESS[suffix](data[:20]) + COMPRESS[suffix](data[20:]))  # two streams make one file
    assert documents_of(packed, kind) == documents_of(plain, kind) != []
    assert list(plan_spans(packed, kind, 1)) == [Span()]


def test_compression_is_known_by_content(tmp_path):
    (tmp_path / "a.txt.gz").write_text("Plain text.\n")
    (tmp_path / "b.txt").write_bytes(bz2.compress(b"Packed text.\n"))
    (tmp_path / "c.txt.GZ").write_bytes(gzip.compress(b"Packed too.\n"))
    assert [stem_of(tmp_path / name) for name in ("a.txt.gz", "b.txt", "c.txt.GZ")] == ["a.txt", "b", "c"]
    assert documents_of(tmp_path / "b.txt", "lines")[0].sentences == ("Packed text.",)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_truncated_and_damaged_files_are_refused(tmp_path, suffix):
    path = tmp_path / f"a.txt.{suffix}"
    data = COMPRESS[suffix]("".join(f"Line {number} is here.\n" for number in range(9000)).encode())
    path.write_bytes(data[:-12])
    with pytest.raises(InputError, match=rf"a\.txt\.{suffix}: the \w+ data are cut off; fetch the file again"):
        documents_of(path, "lines")
    first, second = COMPRESS[suffix](b"One is here.\n"), COMPRESS[suffix](b"Two is here.\n")
    damaged = [data[:6] + b"\xff" * 30 + data[36:]]
    damaged += [first + behind for behind in (b"Plain text.\n", b"\n", b"BZh9")]
    # The header of a later stream
    damaged += [first + second[:index] + b"\xff" + second[index + 1 :] + second for index in range(4)]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"a\.txt\.{suffix}: the \w+ data are (damaged|cut off)"):
            documents_of(path, "lines")


@pytest.mark.parametrize("number", [0, 1, 15])
def test_skippable_frames_of_zstd_are_skipped(tmp_path, number):
    path, frame = tmp_path / "a.txt.zst", bytes([0x50 + number]) + b"\x2a\x4d\x18\x04\0\0\0skip"
    path.write_bytes(frame + zstd(b"One is here.\n") + frame + frame + zstd(b"Two is here.\n") + frame)
    assert documents_of(path, "lines")[0].sentences == ("One is here.", "Two is here.")


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_streams_are_padded_with_zeros_and_may_be_empty(tmp_path, suffix, monkeypatch):
    path = tmp_path / f"a.txt.{suffix}"
    streams = [COMPRESS[suffix](data) for data in (b"One is here.\n", b"", b"Two is here.\n" * 5000)]
    path.write_bytes(b"".join(stream + bytes(8) for stream in streams))
    for size in (1, 64, io.DEFAULT_BUFFER_SIZE):
        monkeypatch.setattr(io, "DEFAULT_BUFFER_SIZE", size)
        (document,) = documents_of(path, "lines")
        assert document.sentences == ("One is here.", *["Two is here."] * 5000)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_wrong_encoding_is_reported_by_byte(tmp_path, suffix):
    path = tmp_path / f"a.txt.{suffix}"
    data = b"Eine Zeile ist hier.\n" * 60_000
    path.write_bytes(COMPRESS[suffix](data + "Über".encode("latin-1") + data))
    (failed,) = documents_of(path, "lines")
    assert isinstance(failed, FailedRecord)
    assert "at byte 1,260,000 of the text" in failed.reason


def test_missing_file_is_not_taken_for_damaged_data(tmp_path):
    with pytest.raises(FileNotFoundError), open_bytes(tmp_path / "none.gz"):
        pass


@pytest.mark.parametrize("query", ["sv=1&sig=SECRET3.x", "sig=SEC/RET4%3D&se=2026"])
def test_document_names_omit_the_query_of_a_url(store, tmp_path, query):
    fsspec.filesystem("memory").pipe_file(f"/bucket/a.jsonl?{query}", b'{"text": "One is here."}\n')
    (split,) = plan_splits([f"jsonl:{store}/a.jsonl?{query}"], CorpusConfig())
    (batch,) = read_batches(split, CorpusConfig(), tmp_path)
    assert read_document_ids(batch.stem, np.arange(1), tmp_path) == ["a:a-1"]
