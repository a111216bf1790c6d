"""Sources on the command line."""

import os

import pytest

from bert_pipeline.corpus.sources import parse_source
from bert_pipeline.errors import BertError


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/none/at/all.xml", "no such file; check the path$"),
        ("dewiki=dumps/de.xml", "no such file; .*, or name the kind too: NAME=wikipedia:PATH$"),
        ("text:/none/*.txt", "matches no file"),
        ("jsonl:", "expected a path"),
        ("line:a.txt", "no kind of source 'line' .did you mean 'lines'"),
        ("book:/none/a.txt", "^/none/a.txt: no such file"),
        ("csv:a.txt", "no kind of source 'csv' .known: book, jsonl, lines, pairs, parquet, text, wikipedia"),
    ],
)
def test_source_without_files_raises(source, message):
    with pytest.raises(BertError, match=message):
        parse_source(source)


def test_globs_and_directories_are_sorted(tmp_path):
    for name in ("b.xml", "a.xml", "note.md", ".hidden.xml"):
        (tmp_path / name).write_text("<mediawiki/>")
    expected = [str(tmp_path / "a.xml"), str(tmp_path / "b.xml")]
    assert parse_source(str(tmp_path)) == ("wikipedia", expected)
    assert parse_source(f"wikipedia:{tmp_path}/*.xml") == ("wikipedia", expected)


@pytest.mark.parametrize(
    ("prefix", "suffix"),
    [
        ("text:", ".txt"),
        ("lines:", ".txt.zst"),
        ("book:", ".txt"),
        ("jsonl:", ".jsonl"),
        ("jsonl:", ".jsonl.gz"),
        ("parquet:", ".parquet"),
        ("pairs:", ".tsv"),
        ("pairs:", ".tsv.xz"),
        ("wikipedia:", ".xml.bz2"),
    ],
)
def test_each_kind_takes_its_own_files_from_a_directory(tmp_path, prefix, suffix):
    for end in (suffix, ".txt", ".jsonl", ".tsv", ".xml.bz2", ".png"):
        (tmp_path / f"a{end}").write_text("x")
    kind, files = parse_source(f"{prefix}{tmp_path}")
    assert kind == prefix.removesuffix(":")
    assert str(tmp_path / f"a{suffix}") in files
    assert str(tmp_path / "a.png") not in files


@pytest.mark.parametrize("name", ["line:a.txt", "enwiki[1]"])
def test_known_file_may_have_any_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("x")
    assert parse_source(name) == ("wikipedia", [name])


def test_directory_without_files_of_the_kind_raises(tmp_path):
    (tmp_path / "a.png").write_text("x")
    with pytest.raises(
        BertError, match=r"holds no text files \(\.txt\), plain or compressed \(\.gz, .*, such as 'text:\S+/\*'$"
    ):
        parse_source(f"text:{tmp_path}")
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(
        BertError, match=rf"no wikipedia files .*, name that: text:{tmp_path} \(or lines:, book:, pairs:"
    ):
        parse_source(str(tmp_path))


def test_pipe_is_no_missing_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BertError, match="pipe: a pipe, which can be read only once; write its content to a file"):
        parse_source(f"text:{tmp_path / 'pipe'}")
