"""Sources become a corpus directory: the same one for any number of workers, or none at all."""

import bz2
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bert_pipeline.audit import SUSPECT, count_residue, count_scars
from bert_pipeline.corpus import parse_source, plan_splits
from bert_pipeline.documents import Document, id_hash
from bert_pipeline.errors import BertError, ConfigurationError, InputError, UsageError
from bert_pipeline.formats.parquet import read_documents
from bert_pipeline.jobs.corpus import CorpusConfig, build_corpus
from bert_pipeline.jobs.options import num_workers, pipeline_options
from bert_pipeline.manifest import load_manifest
from bert_pipeline.wikipedia.show import show_article

ONE = ("--workers", "1")

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="bg">
  <siteinfo>
    <sitename>Test</sitename>
    <dbname>testwiki</dbname>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Беседа</namespace>
      <namespace key="6" case="first-letter">Файл</namespace>
      <namespace key="14" case="first-letter">Категория</namespace>
    </namespaces>
  </siteinfo>
"""
FOOTER = "</mediawiki>\n"


def make_page(number: int, text: str = "", *, title: str = "", head: str = "<ns>0</ns>", tail: str = "") -> str:
    return f"""  <page>
    <title>{title or f"Page {number}"}</title>
    {head}
    <id>{number}</id>
    <revision>
      <id>{number * 10}</id>
      <timestamp>2020-01-01T00:00:00Z</timestamp>
      <contributor><username>U</username><id>7</id></contributor>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text bytes="3" xml:space="preserve">{text or f"Text of {number}."}</text>{tail}
    </revision>
  </page>
"""


def make_export(*pages: str) -> str:
    return HEADER + "".join(pages) + FOOTER


def article(number: int, *, words: int = 30) -> str:
    return f"'''Article {number}''' is about [[thing]] {number}. " + f"It says {number} again and again. " * words


def some_pages(count: int = 40) -> list[str]:
    return [make_page(number, article(number)) for number in range(1, count + 1)]


def documents_of(directory: Path) -> list[Document]:
    return [document for path in load_manifest(directory).file_paths("documents-") for document in read_documents(path)]


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    """Where a corpus goes; nothing but it may be left beside it."""
    path = tmp_path / "made" / "corpus"
    path.parent.mkdir()
    yield path
    assert [entry.name for entry in path.parent.iterdir()] in (["corpus"], [])


def test_documents_carry_id_title_language_passages_and_split(tmp_path: Path, output: Path) -> None:
    text = "One is here. Two is here.\n\n== H ==\nThree is here.&lt;ref&gt;x&lt;/ref&gt;"
    dump = write(tmp_path / "d.xml", make_export(make_page(7, text, title="Tom &amp; Jerry"), make_page(8, article(8))))
    manifest = build_corpus([dump], output, CorpusConfig(), ONE)
    first, _ = documents_of(output)
    assert first.document_id == "testwiki:7"
    assert (first.title, first.language) == ("Tom & Jerry", "bg")
    assert first.sentences == ("One is here.", "Two is here.", "Three is here.")
    assert first.passage_starts == (0, 2)
    assert manifest.kind == "corpus"
    assert manifest.counts["documents"] == 2
    assert manifest.counts["documents_held_out"] == 1
    assert manifest.counts["dropped_elements"] == {"heading": 1, "reference": 1}
    assert manifest.files["documents-00000.parquet"]["rows"] == 2


def test_pages_are_dropped_and_counted_by_reason(tmp_path: Path, output: Path) -> None:
    pages = [
        make_page(1, article(1)),
        make_page(2, "#REDIRECT [[X]]", head='<ns>0</ns><redirect title="X" />'),
        make_page(3, "Talk.", head="<ns>1</ns>"),
        make_page(4, "'''X''' may be:\n* a\n{{disambiguation}}"),
        make_page(5, "{{Infobox|a=b}}\n* only a list"),
        make_page(6, " "),
    ]
    manifest = build_corpus([write(tmp_path / "d.xml", make_export(*pages))], output, CorpusConfig(), ONE)
    assert manifest.counts["pages_read"] == 6
    assert manifest.counts["dropped"] == {
        "disambiguation": 1, "empty": 1, "namespace": 1, "no prose": 1, "redirect": 1
    }  # fmt: skip
    assert manifest.counts["documents"] == 1


def test_one_and_two_workers_and_every_form_of_file_give_the_same_bytes(tmp_path: Path) -> None:
    pages = some_pages(60)
    streams = [HEADER, *("".join(pages[i : i + 7]) for i in range(0, 60, 7)), FOOTER]
    dump = write(tmp_path / "d.xml.bz2", b"".join(bz2.compress(part.encode()) for part in streams))
    config = CorpusConfig(unit_bytes=400, shard_bytes=20_000)
    one = build_corpus([dump], tmp_path / "one", config, ONE)
    two = build_corpus([dump], tmp_path / "two", config, ("--workers", "2"))
    assert one.content == two.content
    assert len(one.file_paths("documents-")) > 1
    assert one.counts["documents"] == 60
    load_manifest(tmp_path / "two", verify="sha256")
    packed = write(tmp_path / "d.xml.gz", gzip.compress(make_export(*pages).encode()))
    three = build_corpus([packed], tmp_path / "three", CorpusConfig(pages_per_unit=11, shard_bytes=20_000), ONE)
    assert [d.document_id for d in documents_of(tmp_path / "three")] == [
        d.document_id for d in documents_of(tmp_path / "one")
    ]
    assert three.counts["sentences"] == one.counts["sentences"]


def test_a_shard_holds_the_least_size_or_all(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.xml", make_export(*some_pages(40)))
    whole = build_corpus([dump], tmp_path / "whole", CorpusConfig(unit_bytes=3000), ONE)
    assert len(whole.files) == 1
    parts = build_corpus([dump], tmp_path / "parts", CorpusConfig(unit_bytes=3000, shard_bytes=9000), ONE)
    assert len(parts.files) > 2
    for path in parts.file_paths():
        assert sum(len(sentence) for document in read_documents(path) for sentence in document.sentences) >= 9000
    assert documents_of(tmp_path / "parts") == documents_of(tmp_path / "whole")


def test_of_one_id_the_later_revision_wins(tmp_path: Path, output: Path) -> None:
    old = make_page(1, "Old text is here.").replace("<id>10</id>", "<id>5</id>")
    new = make_page(1, "New text is here.")
    dump = write(tmp_path / "d.xml", make_export(new, make_page(2, article(2)), old))
    manifest = build_corpus([dump], output, CorpusConfig(), ONE)
    assert [document.sentences[0] for document in documents_of(output)][0] == "New text is here."
    assert manifest.counts["dropped"] == {"same id": 1}


def test_of_equal_texts_the_first_stays_and_none_is_in_both_splits(tmp_path: Path, output: Path) -> None:
    pages = [make_page(number, article(number % 10)) for number in range(1, 31)]
    manifest = build_corpus(
        [write(tmp_path / "d.xml", make_export(*pages))],
        output,
        CorpusConfig(unit_bytes=2000, held_out_per_mille=300),
        ONE,
    )
    documents = documents_of(output)
    assert [document.document_id for document in documents] == [f"testwiki:{number}" for number in range(1, 11)]
    assert manifest.counts["dropped"] == {"same text": 20}
    assert len({document.sentences for document in documents}) == 10


def test_split_follows_the_hash_of_the_id(tmp_path: Path, output: Path) -> None:
    dump = write(tmp_path / "d.xml", make_export(*some_pages(40)))
    build_corpus([dump], output, CorpusConfig(held_out_per_mille=200), ONE)
    for document in documents_of(output):
        expected = "held_out" if id_hash(document.document_id) % 1000 < 200 else "train"
        assert document.split == expected


def test_one_document_is_held_out_where_the_share_gives_none(tmp_path: Path, output: Path) -> None:
    dump = write(tmp_path / "d.xml", make_export(*some_pages(5)))
    manifest = build_corpus([dump], output, CorpusConfig(), ONE)
    assert (manifest.counts["documents_train"], manifest.counts["documents_held_out"]) == (4, 1)


def test_several_sources_make_one_corpus(tmp_path: Path, output: Path) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    write(folder / "a.xml", make_export(make_page(1, article(1))))
    write(folder / "b.xml.bz2", bz2.compress(make_export(make_page(2, article(2))).encode()))
    sources = [
        f"wikipedia:{folder}",
        "text:" + write(tmp_path / "t.txt", "A line is here.\nAnother one.\n\nA second document.\n"),
        "jsonl:" + write(tmp_path / "j.jsonl", json.dumps({"text": "Some text is here.", "id": "x"}) + "\n"),
        "pairs:" + write(tmp_path / "p.tsv", "Hello there.\tHow are you?\n"),
    ]
    manifest = build_corpus(sources, output, CorpusConfig(name="own"), ONE)
    ids = [document.document_id for document in documents_of(output)]
    assert ids == ["testwiki:1", "testwiki:2", "own:t-0", "own:t-1", "own:x", "own:p-1"]
    assert [entry["name"] for entry in manifest.inputs.values()] == ["a.xml", "b.xml.bz2", "t.txt", "j.jsonl", "p.tsv"]


def test_utf16_export_is_read(tmp_path: Path, output: Path) -> None:
    dump = write(tmp_path / "d.xml.bz2", bz2.compress(make_export(*some_pages(3)).encode("utf-16")))
    assert build_corpus([dump], output, CorpusConfig(), ONE).counts["documents"] == 3


def test_a_name_stands_in_for_a_missing_dbname(tmp_path: Path, output: Path) -> None:
    dump = write(tmp_path / "d.xml", make_export(*some_pages(2)).replace("<dbname>testwiki</dbname>", ""))
    build_corpus([dump], output, CorpusConfig(name="mine"), ONE)
    assert documents_of(output)[0].document_id == "mine:1"


def test_missing_end_is_counted_and_warned_of(tmp_path: Path, output: Path, caplog: pytest.LogCaptureFixture) -> None:
    dump = write(tmp_path / "d.xml", make_export(*some_pages(3)).removesuffix(FOOTER))
    manifest = build_corpus([dump], output, CorpusConfig(), ONE)
    assert manifest.counts["documents"] == 3
    assert manifest.counts["broken_files"] == 1
    assert "ends without </mediawiki>" in caplog.text


def test_page_cut_off_is_counted(tmp_path: Path, output: Path) -> None:
    text = make_export(*some_pages(3))
    manifest = build_corpus([write(tmp_path / "d.xml", text[: text.rindex("It says")])], output, CorpusConfig(), ONE)
    assert manifest.counts["documents"] == 2
    assert manifest.counts["dropped"] == {"cut off": 1}
    assert manifest.counts["broken_files"] == 1


def cut_bz2(text: str) -> bytes:
    return bz2.compress(text.encode(), compresslevel=1)[:-30]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (make_export(*some_pages(3)).removesuffix(FOOTER).encode(), "ends without </mediawiki>"),
        (make_export(*some_pages(3))[:-900].encode(), "breaks off inside page"),
        (bz2.compress((HEADER + some_pages(1)[0]).encode()), "ends without </mediawiki>"),
        (gzip.compress(make_export(*some_pages(900)).encode())[:-900], "cut off|breaks off"),
    ],
)
def test_strict_refuses_a_dump_that_breaks_off(tmp_path: Path, output: Path, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_corpus([write(tmp_path / "d.xml", content)], output, CorpusConfig(strict=True), ONE)
    assert not output.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.xml", b"no XML at all", "expected a MediaWiki export"),
        ("d.xml", b"<!DOCTYPE x><mediawiki></mediawiki>", "DOCTYPE"),
        ("d.xml", make_export(make_page(1, "a < b")).encode(), "malformed XML"),
        ("d.xml.bz2", bz2.compress(b"nothing like it"), "expected a MediaWiki export"),
        ("d.xml", make_export(make_page(1, "* list")).encode(), "no document is left .*1 no prose"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, output: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as raised:
        build_corpus([write(tmp_path / name, content)], output, CorpusConfig(), ONE)
    assert "\n" not in str(raised.value)
    assert not output.exists()


def test_errors_of_worker_processes_arrive_as_they_are(tmp_path: Path, output: Path) -> None:
    dump = write(tmp_path / "d.xml", make_export(make_page(1), make_page(2, "a < b")))
    with pytest.raises(InputError, match="page 'Page 2': malformed XML"):
        build_corpus([dump], output, CorpusConfig(), ("--workers", "2"))


def test_an_older_corpus_stays_when_the_new_one_fails(tmp_path: Path, output: Path) -> None:
    good = build_corpus([write(tmp_path / "d.xml", make_export(*some_pages(2)))], output, CorpusConfig(), ONE)
    with pytest.raises(InputError):
        build_corpus([write(tmp_path / "e.xml", "nothing")], output, CorpusConfig(), ONE)
    assert load_manifest(output).sha256 == good.sha256


@pytest.mark.parametrize(
    ("source", "message"),
    [("/none/at/all.xml", "no such file"), ("text:/none/*.txt", "matches no file"), ("jsonl:", "expected a path")],
)
def test_a_source_that_names_nothing_is_refused(source: str, message: str) -> None:
    with pytest.raises(BertError, match=message):
        parse_source(source)


def test_globs_and_directories_are_sorted(tmp_path: Path) -> None:
    for name in ("b.xml", "a.xml", "note.md"):
        write(tmp_path / name, make_export())
    expected = [str(tmp_path / "a.xml"), str(tmp_path / "b.xml")]
    assert parse_source(str(tmp_path)) == ("wikipedia", expected)
    assert parse_source(f"wikipedia:{tmp_path}/*.xml") == ("wikipedia", expected)


def test_units_are_a_function_of_the_input(tmp_path: Path) -> None:
    dump = write(tmp_path / "d.xml", make_export(*some_pages(40)))
    splits = plan_splits([dump], CorpusConfig(unit_bytes=5000))
    assert [split.start for split in splits] == list(range(0, Path(dump).stat().st_size, 5000))
    with pytest.raises(UsageError):
        plan_splits([], CorpusConfig())


@pytest.mark.parametrize(
    "values",
    [{"shard_bytes": 0}, {"held_out_per_mille": 501}, {"language": "e n"}, {"name": "a/b"}, {"unit_bytes": -1}],
)
def test_configuration_is_checked(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(values))):
        CorpusConfig(**values)


def test_progress_counts_pages(tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_pipeline.jobs.corpus._POLL_SECONDS", 0.01)
    seen: list[int] = []
    dump = write(tmp_path / "d.xml", make_export(*some_pages(400)))
    build_corpus([dump], output, CorpusConfig(unit_bytes=30_000), ONE, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 400


def test_article_is_shown_beside_its_wikitext(tmp_path: Path) -> None:
    text = "{{Infobox|a}}\nThe first passage is here.\n\n== Heading ==\nThe second passage is here."
    dump = write(tmp_path / "d.xml", make_export(make_page(1, text, title="Ada Lovelace")))
    shown = show_article("ada_Lovelace", dump, width=120)
    rows = [[cell.strip() for cell in row.split(" | ")] for row in shown.splitlines()[5:]]
    assert ["The first passage is here.", "The first passage is here."] in rows
    assert ["The second passage is here.", "The second passage is here."] in rows
    assert "infobox (1)" in shown
    with pytest.raises(InputError, match="did you mean 'Ada Lovelace'"):
        show_article("Ada Lovelaec", dump)


def test_residue_and_scars_are_told_from_prose() -> None:
    assert count_residue("A [[link]] and {{x}} with '''bold''' &nbsp; <ref name=a> here.") == 8
    assert count_residue('Prose (in brackets) with x < y, "quotes" and a list[0].') == 0
    assert count_scars("Ada ( ) was , well , here (; born) so .") == 5
    assert count_scars("Ada (born 1815), who was here. And so on . . . It ended.") == 0


@pytest.mark.parametrize(
    "text",
    ["a [[b", "a ]] b", "{{", "}}", "{| x", "||", "''a''", "</b>", "<!-- x", "x -->", "&nbsp;", "__TOC__", "[http://x",
     "= H =", "* item", "# item", "! head", "\ue000", "style = 'x'", "x|thumb|y thumb|",
     "( )", "(; x)", "[ ]", "( x)", "a , b", "a ,, b", "a, ) b", "a . b", "end ."],
)  # fmt: skip
def test_the_quick_look_misses_no_residue_and_no_scar(text: str) -> None:
    assert count_residue(text) + count_scars(text) > 0
    assert pc.match_substring_regex(pa.array([text]), SUSPECT).to_pylist() == [True]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), None), (("--workers", "3"), 3), (("--workers=1",), 1), (("--direct_num_workers=2",), 2)],
)
def test_local_runner_takes_the_workers_asked_for(arguments: tuple[str, ...], expected: int | None) -> None:
    found = num_workers(pipeline_options(arguments))
    assert found == expected if expected else found and found >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers=0",), "1 or more"),
        (("--workers",), "expected a value"),
        (("--direct_num_workrs=2",), "did you mean '--direct_num_workers'"),
        (("--runner=FlinkRunner", "--workers=2"), "local runner"),
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pipeline_options(arguments)


def test_options_of_other_runners_pass_through() -> None:
    options = pipeline_options(("--runner=FlinkRunner", "--flink_master=host:8081"))
    assert options.get_all_options()["flink_master"] == "host:8081"
    assert num_workers(options) is None


@pytest.mark.real_data
def test_the_english_dump_gives_a_clean_corpus(real_data: Path, output: Path) -> None:
    dump = real_data / "wikipedia" / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    manifest = build_corpus([str(dump)], output, CorpusConfig(), ONE)
    assert manifest.counts["documents"] >= 95
    assert manifest.counts["residue_per_million_characters"] < 20
    assert manifest.counts["scars_per_million_characters"] < 50
