"""Rows of every format: formats and encodings are recognized, and a row that cannot be read is an error of its own."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.records import Record, Source, open_records, open_source
from bert_pipeline.storage import to_path

ROWS = [{"id": "7", "text": 'He said "no", twice.'}, {"id": "8", "text": "{é} \u2028 漢"}]
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress
}  # fmt: skip


def data_of(suffix: str) -> bytes:
    """Return the rows as a file of a format."""
    sink = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    if suffix == ".parquet":
        pq.write_table(table, sink)
    elif suffix == ".arrow":
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    elif suffix == ".jsonl":
        sink.write("".join(json.dumps(row) + "\n" for row in ROWS).encode())
    elif suffix == ".tsv":
        sink.write("".join("\t".join(cells) + "\n" for cells in (ROWS[0], *(row.values() for row in ROWS))).encode())
    else:
        text = io.StringIO()
        csv.writer(text).writerows([list(ROWS[0]), *(list(row.values()) for row in ROWS)])
        sink.write(text.getvalue().encode())
    return sink.getvalue()


def read(path: Path | str | Source, names: Sequence[str] = (), header: Sequence[str] = ()) -> list[Record]:
    with open_source(path) as source:
        return list(open_records(source, names=names, is_header=lambda cells: set(header) <= set(cells)).rows)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="surrogateescape"))
    return path


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_lines_are_read_from_disk_store_and_stream(tmp_path, suffix, compression):
    data = COMPRESS[compression](data_of(suffix))
    path = write(tmp_path / f"a{suffix}{compression}", data)
    records = read(path)
    assert [record.fields for record in records] == ROWS
    assert [record.where for record in records] == [f"{path}:{n}" for n in ((1, 2) if suffix == ".jsonl" else (2, 3))]
    url = f"memory://records/a{suffix}{compression}"
    to_path(url).write_bytes(data)
    assert [record.fields for record in read(url)] == ROWS
    source = Source.of_stream(io.BytesIO(data_of(suffix)), f"archive.zip/a{suffix}")
    assert [record.fields for record in open_records(source.peek()).rows] == ROWS
    assert [record.fields for record in open_records(source).rows] == ROWS  # the look ahead took nothing


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_binary_tables_are_read_from_files_by_name_or_content(tmp_path, suffix):
    for name in (f"a{suffix}", "a"):
        path = write(tmp_path / name, data_of(suffix))
        assert [(record.where, record.fields) for record in read(path)] == [
            (f"{path}: row {number}", row) for number, row in enumerate(ROWS, start=1)
        ]
    texts = pa.array([b"a", "é".encode("latin-1"), b"b"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": texts}), tmp_path / "c.parquet")
    found = [(record.fields, record.error) for record in read(tmp_path / "c.parquet")]
    assert [fields for fields, _ in found] == [{"text": "a"}, {}, {"text": "b"}]
    assert "can't decode byte 0xe9" in found[1][1]
    with pytest.raises(InputError, match=f"a: holds {suffix[1:]}, which is read from files only"):
        open_records(Source.of_stream(io.BytesIO(data_of(suffix)), "a"))
    write(tmp_path / f"b{suffix}", data_of(suffix)[:-30])
    with pytest.raises(InputError, match=f"b{suffix}: not a whole {suffix[1:]} file"):
        read(tmp_path / f"b{suffix}")


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a", "text\tid\na\t1\n", ["text", "id"]),
        ("a.txt", 'text,id\n"a, b",1\n', ["text", "id"]),
        ("a", "a, b\tc\n", ["one", "two"]),
        ("a.csv", "a\n", []),  # a header alone
        ("a.tsv", '{"text": "a", "id": 1}\n', ["text", "id"]),
        ("a", '\n{"text": 1}\n', ["text"]),
        ("a", 'damaged}\n{"text": 1}\n{"text": 2}\n', ["text"]),
        ("a.jsonl", 'damaged}\n{"text": 1}\n', ["text"]),
        ("a", "{a text} in braces\n{\n", ["one"]),
        ("a", '{"quoted"} text\n', ["one"]),
    ],
)
def test_format_is_told_by_name_and_first_lines(tmp_path, name, content, columns):
    last = read(write(tmp_path / name, content), ["one", "two?"], ["text", "id"])[-1:]
    assert [list(record.fields) for record in last if not record.error] == [columns] * bool(columns)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{\n "data": []\n}', "a:1: found one JSON document, expected JSON lines or a list, of objects"),
        ("[\n1,\n", "a:3: not valid JSON"),
    ],
)
def test_json_document_without_rows_is_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / "a", content))


@pytest.mark.parametrize("indent", [None, 1], ids=["pandas", "lines"])
def test_rows_of_a_json_list_are_objects(tmp_path, indent):
    objects = [{"id": number, "text": "long " * 5000} for number in range(3)]
    bad = [*objects, 7, {"text": "\ud800"}]
    *good, number, half = read(write(tmp_path / "a.json", json.dumps(bad, indent=indent)))
    assert [record.fields for record in good] == objects
    assert number.error == f"{tmp_path / 'a.json'}: item 4: found a JSON int, expected an object"
    assert "item 5: text has half of a surrogate pair" in half.error


def test_separator_and_encoding_are_those_that_are_stated(tmp_path):
    file = tmp_path / "a.csv.gz"
    file.write_bytes(gzip.compress('text;note\n"a;b";"Müller, é"\n'.encode("cp1252")))
    with open_source(file, separator=";", encoding="cp1252") as source:
        assert [record.fields for record in open_records(source).rows] == [{"text": "a;b", "note": "Müller, é"}]
    for encoding, written in (("cp1252", "utf-8"), ("utf-16", "utf-16"), ("utf-16-le", "utf-16-le")):
        file.write_bytes(gzip.compress("text\nZoë\n".encode(written)))
        with open_source(file, encoding=encoding) as source:  # UTF-8 is read as such, whatever is stated
            assert [record.fields for record in open_records(source).rows] == [{"text": "Zoë"}]
    message = r"a.csv.gz: not text in ascii \(.*\); give its encoding"
    with pytest.raises(InputError, match=message), open_source(file, encoding="ascii"):
        pass


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbftext,id\na,0\nb,1\n",
        b"text,id\na,0\nb,1",
        b"text,id\r\na,0\r\nb,1\r\n",
        b"text,id\na,0\nb,1\n\n\n",
    ],
    ids=["byte-order mark", "no final line feed", "carriage returns", "blank lines at the end"],
)
def test_variants_of_the_same_file_read_the_same(tmp_path, content):
    for suffix, separator in ((".csv", b","), (".tsv", b"\t")):
        records = read(write(tmp_path / f"a{suffix}", content.replace(b",", separator)))
        assert [record.fields for record in records] == [{"text": "a", "id": "0"}, {"text": "b", "id": "1"}]


def test_lines_of_text_are_no_csv_of_a_stated_separator(tmp_path):
    file = write(tmp_path / "a.txt", "one; two\rthree\nfour\n")
    for separator in ("", ";"):
        with open_source(file, separator=separator) as source:
            records = open_records(source, names=["text"], is_header=lambda cells: "id" in cells)
            assert [record.fields["text"] for record in records.rows] == ["one; two\rthree", "four"]


def test_quotes_are_text_in_tsv_and_hold_lines_together_in_csv(tmp_path):
    tsv = read(write(tmp_path / "a.tsv", 'text\tid\n"an opened quote\t""\n'))
    assert [record.fields for record in tsv] == [{"text": '"an opened quote', "id": '""'}]
    rows = read(write(tmp_path / "a.csv", 'text,id\r\n"says\r\n""no"".",1\r\n\r\nb,2\r\n'))
    assert [(record.where[-2:], record.fields["text"]) for record in rows] == [(":2", 'says\n"no".'), (":5", "b")]
    assert [record.fields["text"] for record in read(write(tmp_path / "b.csv", "text,id\ra,1\rb,2\r"))] == ["a", "b"]


def test_fields_hold_line_separators_and_long_texts(tmp_path):
    text = "one\u2028two\x85three\x0bfour\rfive " + "x" * 200_000
    for content in (f"text\n{text}\n", json.dumps({"text": text}, ensure_ascii=False)):
        (record,) = read(write(tmp_path / "a", content))
        assert record.fields == {"text": text}


@pytest.mark.parametrize(
    ("name", "content", "errors"),
    [
        ("a.tsv", "a\tb\n1\n\n\udcff\t2\n3\t4\n", ["2: 1 columns, expected 2", "3: 1 columns", "4: not UTF-8 text "
            "(invalid start byte at byte 0 of the line); convert it"]),
        ("a.tsv", "a\n1\n2\0\n3\n", ["3: holds zero bytes"]),
        ("a.csv", "a,b\n1\n\udcff,2\n3,4\n", ["2: 1 columns, expected 2", "3: not UTF-8 text"]),
        ("a.csv", 'a,b\n"1,2\n3,4\n"5\n5",6\n', ["2: lines 2 to 4 as one row: not valid CSV"]),
        ("a.csv", 'a,b\n"1,2\n3,4\n"5,6\n7,8\n', ["2: lines 2 to 4 as one row: not valid CSV", "4: lines 4 to 5 as"]),
        ("a.csv", 'a,b\n1,2\n"3,4\n5,6\n7 is 8"\n9,10\n', ["3: lines 3 to 5 as one row: 1 columns, expected 2"]),
        ("a.csv", 'a,b\n"1\n2",2,3\n3,4\n', ["2: lines 2 to 3 as one row: 3 columns, expected 2; is a quotation mark"]),
        ("a.jsonl", '{"a": 1}\n{"a"\n[1]\n{"a": "\udcff"}\n{"a": {"b": ["\\ud83d"]}}\n' + '{"a":' * 100_000,
            ["2: not valid JSON", "3: found a JSON list", "4: not UTF-8 text", "5: a has half of a surrogate pair",
             "6: not valid JSON"]),
        ("a", "one\n\na\tb\tc\n", ["3: 3 tab-separated fields, expected one, optionally two"]),
    ],
)  # fmt: skip
def test_bad_row_is_named_and_the_others_are_read(tmp_path, name, content, errors):
    path = write(tmp_path / name, content)
    records = read(path, ["one", "two?"], ["a"])
    found = [record.error for record in records if record.error]
    assert [error.startswith(f"{path}:{start}") for error, start in zip(found, errors, strict=True)] == [True] * len(
        found
    )
    assert [record for record in records if not record.error and not record.is_blank]


def test_fields_of_a_line_have_the_names_that_are_given(tmp_path):
    path = write(tmp_path / "a", "a\tb\tc\n\na\n")
    full, blank, short = read(path, ["one", "rest*"], ["header"])
    assert (full.fields, short.fields) == ({"one": "a", "rest": ["b", "c"]}, {"one": "a", "rest": []})
    assert blank == Record(f"{path}:2", {}, is_blank=True)


def test_repeated_column_and_missing_file_are_named(tmp_path):
    for suffix, content in ((".csv", "a,b,a\n1,2,3\n"), (".tsv", "a\tb\ta\n1\t2\t3\n")):
        with pytest.raises(InputError, match=r"the column 'a' occurs twice, expected each once"):
            read(write(tmp_path / f"a{suffix}", content))
    with pytest.raises(InputError, match=r"gone.tsv: cannot be read \(No such file"):
        read(tmp_path / "gone.tsv")


@pytest.mark.parametrize("data", ["the film\nthe song\n".encode("utf-16"), bytes(range(256)) * 40 + b"\nPK\n"])
def test_binary_data_are_no_text(tmp_path, data):
    with pytest.raises(InputError, match="a.txt:1: not UTF-8 text, as most of the first lines; convert or unpack"):
        read(write(tmp_path / "a.txt", data))
