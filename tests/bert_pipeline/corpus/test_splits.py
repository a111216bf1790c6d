"""Building corpus directories: equal for any number of workers, complete or absent."""

import bz2
import gc
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_exports import FOOTER, HEADER, make_export, make_page

from bert_pipeline.corpus import duplicates, job
from bert_pipeline.corpus.batches import PageBatchWriter
from bert_pipeline.corpus.documents import id_hash
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.parquet import Document, read_documents
from bert_pipeline.corpus.quality import describe_corpus
from bert_pipeline.corpus.splits import CorpusConfig, plan_splits, read_batches
from bert_pipeline.errors import ArtifactError, ConfigurationError, InputError, UsageError
from bert_pipeline.hashes import file_sha256
from bert_pipeline.manifest import Manifest, load_manifest

ONE = ("--workers", "1")


def article(number: int, *, words: int = 30) -> str:
    return f"'''Article {number}''' is about [[thing]] {number}. " + f"It says {number} again and again. " * words


def some_pages(count: int = 40) -> list[str]:
    return [make_page(number, article(number)) for number in range(1, count + 1)]


def documents_of(directory: Path) -> list[Document]:
    return [document for path in load_manifest(directory).file_paths("documents-") for document in read_documents(path)]


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def write_records(path: Path, records: Iterable[dict[str, Any]]) -> str:
    """Write JSON lines; return the name of the source."""
    return "jsonl:" + write(path, "".join(json.dumps(record) + "\n" for record in records))


def build(output: Path, *pages: str, **settings: Any) -> Manifest:
    """Build a corpus from a dump of these pages, which is written above the corpus."""
    dump = write(output.parents[1] / "d.xml", make_export(*pages))
    return build_corpus([dump], output, CorpusConfig(**settings), ONE)


@pytest.fixture
def output(tmp_path):
    """The path of a corpus; the test fails if other files remain next to it."""
    path = tmp_path / "made" / "corpus"
    path.parent.mkdir()
    yield path
    assert [entry.name for entry in path.parent.iterdir()] in (["corpus"], [])


@pytest.mark.parametrize(
    ("function", "is_lost", "message"),
    [
        ("_write_shard", lambda made: "00001" in made["name"], r"no result for documents-00001\.parquet \([\d,]+ rows"),
        ("_read_batches", lambda batch: batch.split == 1, r"parts of the sources that were read: found \d+, expected"),
        ("_read_batches", lambda batch: not batch.is_last, r"batches of documents that were read: found \d+, expected"),
        ("_find", lambda found: found.by == "id", r"comparisons: found 21, expected 22; nothing was published"),
    ],
)
def test_elements_lost_by_a_runner_keep_the_earlier_corpus(output, monkeypatch, function, is_lost, message):
    dump = write(output.parents[1] / "d.xml", make_export(*some_pages()))
    text = write(output.parents[1] / "text.txt", "".join(f"Sentence number {i} is here.\n\n" for i in range(30)))
    config = CorpusConfig(split_bytes=9000, shard_bytes=9000, pages_per_split=10)
    earlier = build_corpus([dump, f"lines:{text}"], output, config, ONE)
    assert len([name for name in earlier.files if name.startswith("documents-")]) > 2
    work = getattr(job, function)
    monkeypatch.setattr(job, function, lambda *item, **given: [r for r in work(*item, **given) if not is_lost(r)])
    with pytest.raises(ArtifactError, match=message):
        build_corpus([dump, f"lines:{text}"], output, config, ONE)
    assert load_manifest(output, verify="sha256").sha256 == earlier.sha256


def test_documents_compared_in_many_parts_are_decided_alike(output, monkeypatch):
    pages = [*some_pages(), make_page(1, article(1, words=3)), make_page(90, article(2))]
    contents = []
    for limit in (1 << 20, 2):
        monkeypatch.setattr(duplicates, "_DOCUMENTS_PER_TASK", limit)
        contents.append(build(output, *pages).content)
    assert contents[0] == contents[1]
    assert {"same id", "same text"} <= contents[0]["counts"]["dropped"].keys()


def test_documents_carry_id_title_language_passages_and_split(output):
    text = "One is here. Two is here.\n\n== H ==\nThree is here.&lt;ref&gt;x&lt;/ref&gt;"
    manifest = build(output, make_page(7, text, title="Tom &amp; Jerry"), make_page(8, article(8)))
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


def test_every_article_without_output_is_listed_with_its_reason(tmp_path, output):
    newer = make_page(6, "Newer text is here.").replace("<id>60</id>", "<id>61</id>")
    pages = [
        make_page(1, article(1)),
        make_page(2, "#REDIRECT [[X]]", head='<ns>0</ns><redirect title="X" />'),
        make_page(3, "Talk.", head="<ns>1</ns>"),
        make_page(4, "{{disambiguation}}", title="X &amp; Y"),
        make_page(5, "* only a list"),
        make_page(6, "Older text is here."),
        make_page(7, article(1)),
        newer,
        make_page(8, " "),
    ]
    dump = write(tmp_path / "d.xml", make_export(*pages).removesuffix(FOOTER) + "<page><title>Torn</title>")
    manifest = build_corpus([dump], output, CorpusConfig(split_bytes=1500), ONE)
    assert (output / "dropped.tsv").read_text(encoding="utf-8").splitlines() == [
        "document_id\treason\ttitle",
        "testwiki:4\tdisambiguation\tX & Y",
        "testwiki:5\tno prose\tPage 5",
        "testwiki:8\tempty\tPage 8",
        "testwiki:?\tcut off\tTorn",
        "testwiki:6\tsame id\tPage 6",
        "testwiki:7\tsame text as testwiki:1\tPage 7",
    ]
    assert manifest.counts["articles_without_text"] == 6
    assert manifest.counts["pages_read"] == 9
    assert manifest.counts["dropped"] == {
        "cut off": 1, "disambiguation": 1, "empty": 1, "namespace": 1, "no prose": 1, "redirect": 1, "same id": 1,
        "same text": 1,
    }  # fmt: skip
    assert "dropped.tsv" in manifest.files


def test_sample_passages_are_whole_passages_of_different_documents(output):
    pages = [make_page(number, f"One is {number}. Two is too.\n\nThree is {number}.") for number in range(1, 31)]
    manifest = build(output, *pages, make_page(99, article(99, words=90)), split_bytes=2000, shard_bytes=200)
    sample = manifest.counts["passages_sample"]
    assert len({entry["document_id"] for entry in sample}) == len(sample) == 10
    passages = {" ".join(passage) for document in documents_of(output) for passage in document.passages}
    assert all(entry["passage"].removesuffix("…") in " ".join(passages) for entry in sample)
    assert max(len(entry["passage"]) for entry in sample) <= 400
    text = describe_corpus(manifest.counts)
    assert "pages: 31 read, 31 kept; dropped: none" in text
    assert sample[0]["passage"] in text
    # Few documents give several passages each.
    pages = [make_page(number, "\n\n".join(f"Part {part} is of {number}." for part in range(8))) for number in (1, 2)]
    sample = build(output, *pages).counts["passages_sample"]
    assert len({entry["passage"] for entry in sample}) == len(sample) == 10
    assert len({entry["document_id"] for entry in sample}) == 2


def test_bytes_do_not_depend_on_workers_or_compression(tmp_path):
    pages = some_pages(60)
    streams = [HEADER, *("".join(pages[i : i + 7]) for i in range(0, 60, 7)), FOOTER]
    dump = write(tmp_path / "d.xml.bz2", b"".join(bz2.compress(part.encode()) for part in streams))
    config = CorpusConfig(split_bytes=400, shard_bytes=20_000)
    one = build_corpus([dump], tmp_path / "one", config, ONE)
    four = build_corpus([dump], tmp_path / "four", config, ("--workers", "4"))
    assert one.content == four.content
    assert len(one.file_paths("documents-")) > 1
    assert one.counts["documents"] == 60
    load_manifest(tmp_path / "four", verify="sha256")
    packed = write(tmp_path / "d.xml.gz", gzip.compress(make_export(*pages).encode()))
    three = build_corpus([packed], tmp_path / "three", CorpusConfig(pages_per_split=11, shard_bytes=20_000), ONE)
    assert [d.document_id for d in documents_of(tmp_path / "three")] == [
        d.document_id for d in documents_of(tmp_path / "one")
    ]
    assert three.counts["sentences"] == one.counts["sentences"]


def test_repeated_batch_has_equal_bytes(tmp_path):
    dump = write(tmp_path / "d.xml", make_export(*some_pages(20), make_page(99, "* only a list")))
    config = CorpusConfig(split_bytes=4000)
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
    for split in plan_splits([dump], config):
        first = list(read_batches(split, config, tmp_path / "once"))
        for _ in range(2):  # a bundle that a runner tries twice
            assert list(read_batches(split, config, tmp_path / "again")) == first
    written = {path.name: path.read_bytes() for path in (tmp_path / "once").iterdir()}
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()}
    assert len(written) > 6


def test_names_of_files_and_categories_come_from_the_dump(output):
    text = "Текст. [[Файл:A.jpg|мини|надпис [[тук]]]] [[Категория:X]] [[Файл]] остава. [[Image:B.png|thumb|caption]]"
    build(output, make_page(1, text))
    assert documents_of(output)[0].sentences == ("Текст.", "Файл остава.")


@pytest.mark.parametrize("version", ["0.3", "0.5", "0.8", "0.10", "0.11"])
def test_exports_of_every_schema_version_are_read(tmp_path, output, version):
    old = version in ("0.3", "0.5")
    head = HEADER.replace("0.11", version)
    if old:
        head = head.replace("    <dbname>testwiki</dbname>\n", "")
    pages = make_page(1, article(1)) + make_page(2, "#ПРЕНАСОЧВАНЕ [[X]]") + make_page(3, "Talk.", title="Беседа:X")
    if old:  # neither namespace nor content model; redirects by their word alone
        pages = pages.replace("    <ns>0</ns>\n", "").replace("      <model>wikitext</model>\n", "")
    else:
        pages = pages.replace("<title>Беседа:X</title>\n    <ns>0</ns>", "<title>Беседа:X</title>\n    <ns>1</ns>")
    dump = write(tmp_path / "d.xml", head + pages + FOOTER)
    manifest = build_corpus([dump], output, CorpusConfig(name="testwiki"), ONE)
    assert [document.document_id for document in documents_of(output)] == ["testwiki:1"]
    assert manifest.counts["dropped"] == {"namespace": 1, "redirect": 1}


@pytest.mark.parametrize("behind", ["", "\n" * 100, f"<!-- {'x' * 100} -->"], ids=["nothing", "line ends", "a comment"])
def test_sound_dump_is_whole_wherever_its_last_range_begins(tmp_path, behind):
    export = (make_export(*some_pages(6)) + behind).encode()
    plain, packed = write(tmp_path / "d.xml", export), write(tmp_path / "d.xml.bz2", bz2.compress(export))
    for path in (plain, packed):
        size = Path(path).stat().st_size
        for last in (3, 5, 9, 20, 150):
            config = CorpusConfig(split_bytes=size - last)
            units = [unit for split in plan_splits([path], config) for unit in read_batches(split, config, tmp_path)]
            assert sum(unit.counts.get("pages_read", 0) for unit in units) == 6
            assert [problem for unit in units for problem in unit.problems] == []


def test_replaced_dump_is_read_again(tmp_path):
    for number in (3, 5):
        path = write(tmp_path / "d.xml", make_export(*some_pages(number)))
        config = CorpusConfig()
        (split,) = plan_splits([path], config)
        assert sum(unit.counts["pages_read"] for unit in read_batches(split, config, tmp_path)) == number


def test_garbage_collection_pauses_within_batches(tmp_path, monkeypatch):
    while_made: list[bool] = []
    finish = PageBatchWriter.finish

    def watched(writer: PageBatchWriter, **named: Any) -> Any:
        while_made.append(gc.isenabled())
        if len(while_made) == 4:
            raise InputError("a damaged file")
        return finish(writer, **named)

    monkeypatch.setattr(PageBatchWriter, "finish", watched)
    source = write_records(tmp_path / "a.jsonl", ({"text": f"Record {number:03} is here."} for number in range(40)))
    config = CorpusConfig(pages_per_split=10)
    (split,) = plan_splits([source], config)
    batches = read_batches(split, config, tmp_path)
    assert gc.isenabled()
    assert next(batches)
    assert gc.isenabled()
    with pytest.raises(InputError):
        list(batches)
    assert gc.isenabled()
    assert while_made == [False] * 4


@pytest.mark.parametrize("is_read", [False, True], ids=["before", "while it is read"])
def test_source_that_changes_after_planning_is_refused(tmp_path, is_read):
    lines = [json.dumps({"text": f"Record {number:03} is here."}) + "\n" for number in range(200)]
    text, dump = write(tmp_path / "a.jsonl", "".join(lines)), write(tmp_path / "d.xml", make_export(*some_pages(40)))
    config = CorpusConfig(split_bytes=1200, pages_per_split=10)
    splits = {split.path: split for split in plan_splits([f"jsonl:{text}", dump], config)}
    for path, content in ((text, "".join(lines[::2])), (dump, make_export(*some_pages(20)))):
        batches = read_batches(splits[path], config, tmp_path)
        if is_read:
            next(batches)
        write(Path(path), content)
        with pytest.raises(InputError, match="the file changed while it was read; run again"):
            list(batches)


def test_shard_holds_min_size_or_everything(tmp_path):
    dump = write(tmp_path / "d.xml", make_export(*some_pages(40)))
    whole = build_corpus([dump], tmp_path / "whole", CorpusConfig(split_bytes=3000), ONE)
    (only,) = whole.file_paths("documents-")
    assert pq.ParquetFile(only).num_row_groups == 1  # however small the units are
    parts = build_corpus([dump], tmp_path / "parts", CorpusConfig(split_bytes=3000, shard_bytes=9000), ONE)
    assert len(parts.file_paths("documents-")) > 2
    for path in parts.file_paths("documents-"):
        assert sum(len(sentence) for document in read_documents(path) for sentence in document.sentences) >= 9000
    assert documents_of(tmp_path / "parts") == documents_of(tmp_path / "whole")


def test_latest_revision_of_an_id_is_kept(output):
    old = make_page(1, "Old text is here.").replace("<id>10</id>", "<id>5</id>")
    new = make_page(1, "New text is here.")
    manifest = build(output, new, make_page(2, article(2)), old)
    assert [document.sentences[0] for document in documents_of(output)][0] == "New text is here."
    assert manifest.counts["dropped"] == {"same id": 1}


def test_first_of_equal_texts_is_kept(output):
    pages = [make_page(number, article(number % 10)) for number in range(1, 31)]
    manifest = build(output, *pages, split_bytes=2000, held_out_per_mille=300)
    documents = documents_of(output)
    assert [document.document_id for document in documents] == [f"testwiki:{number}" for number in range(1, 11)]
    assert manifest.counts["dropped"] == {"same text": 20}
    assert len({document.sentences for document in documents}) == 10


def test_split_follows_the_hash_of_the_id_and_one_document_is_held_out(output):
    counts = build(output, *some_pages(5)).counts
    assert (counts["documents_train"], counts["documents_held_out"]) == (4, 1)
    build(output, *some_pages(40), held_out_per_mille=200)
    for document in documents_of(output):
        expected = "held_out" if id_hash(document.document_id) % 1000 < 200 else "train"
        assert document.split == expected


def test_corpus_without_held_out_documents_is_a_warning(output, caplog):
    assert build(output, *some_pages(1)).counts["documents_held_out"] == 0
    assert "no document is held out: there is only one; add" in caplog.text


def test_words_of_templates_that_are_in_no_file_are_counted_by_name(output, caplog):
    lost = "He left in {{qqyear|384}}. It has {{qqnumber|5}} houses and {{qqnumber|7}} hills. It is old{{qqmark}}."
    counts = build(output, make_page(1, lost), *some_pages(2)[1:], held_out_per_mille=500).counts
    assert "It is old." in [" ".join(document.sentences) for document in documents_of(output)]
    assert counts["lost_templates"] == {"qqnumber": 2, "qqyear": 1}
    assert counts["dropped_elements"]["word of an unknown template"] == 3
    assert "3 words lost to templates that are in no file" in caplog.text
    assert "qqnumber 2, qqyear 1; --templates FILE" in caplog.text


def test_kept_document_is_named_by_those_that_repeat_its_text(tmp_path, output):
    texts = {"a": article(1) + " End.", "b": article(1) + " Fin.", "c": article(1) + " Fin.", "b2": article(2)}
    rows = [{"id": name[0], "text": text} for name, text in texts.items()]
    rows += [{"id": "d", "text": texts["b2"]}, {"id": "e", "text": texts["c"]}]
    source = write_records(tmp_path / "w.jsonl", rows)
    build_corpus([source], output, CorpusConfig(near_duplicates="drop", split_bytes=900), ONE)
    # The first of a text may be a near duplicate itself
    assert (output / "dropped.tsv").read_text(encoding="utf-8").splitlines()[1:] == [
        "w:b\tnear duplicate of w:a\t",
        "w:c\tsame text as w:a\t",
        "w:b\tsame id\t",
        "w:e\tsame text as w:a\t",
    ]


@pytest.mark.parametrize("code", ["klingon", "English", "jp", "e", "en/us", "pt.br"])
def test_what_is_no_code_of_a_language_is_refused(code):
    with pytest.raises(ConfigurationError, match=rf"language: found '{code}', expected a code of a language"):
        CorpusConfig(language=code)
    for known in ("simple", "zh-min-nan", "pt-BR", "tlh", "eng_Latn", "zu"):
        CorpusConfig(language=known, languages={"a": known})


def test_cirrus_search_dump_is_recognized(tmp_path, output):
    page = '{"index":{"_type":"page","_id":"1"}}\n{"title":"A","text":"It is one line."}\n'
    path = tmp_path / "wiki-cirrussearch-content.json.gz"
    write(path, gzip.compress(page.encode() * 30))
    for source in (str(path), f"jsonl:{path}"):
        with pytest.raises(InputError, match=r"of a CirrusSearch dump, .* take the XML dump"):
            build_corpus([source], output, CorpusConfig(), ONE)


def test_several_sources_make_one_corpus(tmp_path, output):
    folder = tmp_path / "dumps"
    folder.mkdir()
    write(folder / "a.xml", make_export(make_page(1, article(1))))
    write(folder / "b.xml.bz2", bz2.compress(make_export(make_page(2, article(2))).encode()))
    sources = [
        f"wikipedia:{folder}",
        "text:" + write(tmp_path / "t.txt", "A line is here.\nAnother one.\n\nA second document.\n"),
        write_records(tmp_path / "j.jsonl", [{"text": "Some text is here.", "id": "x"}]),
        "pairs:" + write(tmp_path / "p.tsv", "Hello there.\tHow are you?\n"),
    ]
    manifest = build_corpus(sources, output, CorpusConfig(name="own"), ONE)
    ids = [document.document_id for document in documents_of(output)]
    assert ids == ["testwiki:1", "testwiki:2", "own:t-0", "own:t-1", "own:x", "own:p-1"]
    assert [entry["name"] for entry in manifest.inputs.values()] == ["a.xml", "b.xml.bz2", "t.txt", "j.jsonl", "p.tsv"]


def test_every_kind_gives_the_same_corpus_for_any_units_and_workers(tmp_path):
    texts = [f"Document {number} is here. It has two lines.\n\nÜber {number}. End." for number in range(40)]
    table = pa.table({"id": list(range(40)), "url": ["u"] * 40, "title": ["T"] * 40, "text": texts})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=3)
    sources = [
        f"parquet:{tmp_path / 'p.parquet'}",
        write_records(tmp_path / "j.jsonl", ({"text": "j" + text} for text in texts)),
        "jsonl:" + write(tmp_path / "k.jsonl.gz", gzip.compress(json.dumps({"text": "A compressed one."}).encode())),
        "lines:" + write(tmp_path / "l.txt", "\n\n".join("\n".join(text.split("\n\n")) for text in texts)),
        "book:" + write(tmp_path / "b.txt", "\n\n".join(texts)),
        "pairs:" + write(tmp_path / "q.tsv", "".join(f"Pair {number}.\tIts second.\n" for number in range(40))),
    ]
    whole = build_corpus(sources, tmp_path / "whole", CorpusConfig(), ONE)
    assert whole.counts["documents"] == whole.counts["pages_read"] == 40 + 40 + 1 + 40 + 1 + 40
    one = build_corpus(sources, tmp_path / "one", CorpusConfig(split_bytes=100, shard_bytes=2000), ONE)
    four = build_corpus(sources, tmp_path / "four", CorpusConfig(split_bytes=100, shard_bytes=2000), ("--workers", "4"))
    assert one.content == four.content
    assert len(one.file_paths("documents-")) > 1
    assert documents_of(tmp_path / "one") == documents_of(tmp_path / "whole")


def test_batches_of_a_compressed_file_are_flushed_by_size(tmp_path):
    text = "\n\n".join(f"A document of one sentence, number {number}." for number in range(100))
    source = "lines:" + write(tmp_path / "a.txt.gz", gzip.compress(text.encode()))
    config = CorpusConfig(split_bytes=1000)
    (split,) = plan_splits([source], config)
    assert [batch.counts["pages_read"] for batch in read_batches(split, config, tmp_path)] == [27, 27, 27, 19]


def test_batches_are_flushed_by_failures_too(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"content": "Of another key."}\n' * 25))
    config = CorpusConfig(pages_per_split=10)
    (split,) = plan_splits([f"jsonl:{path}"], config)
    assert [batch.dropped["failed"] for batch in read_batches(split, config, tmp_path)] == [10, 10, 5]


def test_records_without_text_are_counted(tmp_path, output):
    lines = [{"text": "A text is here."}, {"text": " "}, {"text": "Another."}]
    manifest = build_corpus([write_records(tmp_path / "a.jsonl", lines)], output, CorpusConfig(), ONE)
    assert (manifest.counts["pages_read"], manifest.counts["documents"]) == (3, 2)
    assert manifest.counts["dropped"] == {"empty": 1}


def test_detected_text_format_is_logged(tmp_path, caplog):
    caplog.set_level("INFO")
    hindi = "\n\n".join(f"यह वाक्य {number} है।\nदूसरा वाक्य {number} है।" for number in range(40))
    write(tmp_path / "h.txt", hindi)
    write(tmp_path / "novel.txt.gz", gzip.compress(b"It was a dark night and\nthe rain fell. Nobody\nwas abroad."))
    text = build_corpus([f"text:{tmp_path}"], tmp_path / "text", CorpusConfig(), ONE)
    named = [f"lines:{tmp_path}/h.txt", f"book:{tmp_path}/novel.txt.gz"]
    assert build_corpus(named, tmp_path / "named", CorpusConfig(), ONE).sha256 == text.sha256
    assert text.counts["documents"] == 41
    assert f"text:{tmp_path}: read as lines (one sentence per line): h.txt" in caplog.text
    assert f"text:{tmp_path}: read as book (running text): novel.txt.gz" in caplog.text


def test_files_of_one_name_get_different_ids(tmp_path, caplog):
    folders = ("a", "b", "c")
    for folder in folders:
        (tmp_path / folder).mkdir()
        lines = (json.dumps({"text": f"Line {number} of {folder} is here."}) + "\n" for number in range(40))
        write(tmp_path / folder / "x.jsonl", "".join(lines))
    write(tmp_path / "c" / "x.2.jsonl", json.dumps({"text": "A file of that name is here."}))
    source = f"jsonl:{tmp_path}/*/*.jsonl"
    one = build_corpus([source, source], tmp_path / "one", CorpusConfig(), ONE)
    assert [document.document_id for document in documents_of(tmp_path / "one")] == [
        *(f"x:x-{number}" for number in range(1, 41)),
        *(f"x:x.3-{number}" for number in range(1, 41)),
        "x:x.2-1",
        *(f"x:x.4-{number}" for number in range(1, 41)),
    ]
    assert one.counts["dropped"] == {"same id": 121}  # of the files that are named twice
    two = build_corpus([source, source], tmp_path / "two", CorpusConfig(split_bytes=100), ("--workers", "2"))
    assert two.content["files"] == one.content["files"]


def test_part_of_a_long_book_and_a_book_of_that_name_differ(tmp_path, output, monkeypatch):
    monkeypatch.setattr("bert_pipeline.corpus.text_files.MAX_DOCUMENT_BYTES", 10)
    write(tmp_path / "a.txt", "The first part.\n\nThe second part.\n")
    write(tmp_path / "a-1.txt", "Another book.\n")
    write(tmp_path / "b-1.txt", "A third book.\n")
    build_corpus([f"own=book:{tmp_path}"], output, CorpusConfig(), ONE)
    assert [document.document_id for document in documents_of(output)] == ["own:a-1.2", "own:a", "own:a-1", "own:b-1"]


def test_files_of_one_name_are_a_warning_where_records_have_ids(tmp_path, caplog):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "x.txt", f"A line of {folder} is here.\n")
        write(tmp_path / folder / "x.jsonl", json.dumps({"text": f"A line of {folder} is here."}))
    plan_splits([f"lines:{tmp_path}/*/x.txt", f"book:{tmp_path}/a/x.txt"], CorpusConfig())
    assert not caplog.messages
    plan_splits([f"jsonl:{tmp_path}/*/x.jsonl"], CorpusConfig())
    (message,) = caplog.messages
    assert message.startswith(f"{tmp_path}/b/x.jsonl: has the name of {tmp_path}/a/x.jsonl")
    assert "give each source a name, as in books=jsonl:PATH" in message


def test_documents_that_share_an_id_are_a_warning(tmp_path, caplog):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", json.dumps({"id": 1, "text": f"A text of {name} is here."}) + "\n")
    names = [f"web=jsonl:{tmp_path}/a.jsonl", f"web=jsonl:{tmp_path}/b.jsonl"]
    assert build_corpus(names, tmp_path / "one", CorpusConfig(), ONE).counts["dropped"] == {"same id": 1}
    assert "1 document with the id of another one dropped" in caplog.text
    caplog.clear()
    names[1] = names[1].replace("web=", "press=")
    assert build_corpus(names, tmp_path / "two", CorpusConfig(), ONE).counts["dropped"] == {}
    assert not caplog.messages


@pytest.mark.parametrize("kind", ["text", "lines", "book", "jsonl", "parquet", "pairs"])
def test_empty_file_is_refused(tmp_path, output, kind):
    with pytest.raises(InputError, match=r"a\.txt: the file is empty"):
        build_corpus([f"{kind}:{write(tmp_path / 'a.txt', '')}"], output, CorpusConfig(), ONE)


@pytest.fixture
def endless(tmp_path):
    """A text whose planning fails when it is read: a line of 300 MiB."""
    path = tmp_path / "endless.txt"
    with open(path, "wb") as stream:
        stream.truncate(300 << 20)
    return f"lines:{path}"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("lines:{}/none.txt", "none.txt: no such file"),
        ("lines:{}/empty.txt", "empty.txt: the file is empty"),
        ("lines:{}/folder", "folder/link.txt: cannot be read; check its permissions, and that a link leads to a file"),
        ("text:{}/folder/*.txt", "folder/link.txt: cannot be read"),
        ("parquet:{}/a.parquet", "a.parquet: not a Parquet file of documents: found columns other"),
        ("{}/a.parquet", "a.parquet: "),
    ],
)
def test_wrong_file_is_refused_before_the_texts_of_others_are_read(tmp_path, endless, source, message):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link.txt").symlink_to(tmp_path / "nowhere")
    pq.write_table(pa.table({"other": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        plan_splits([endless, source.format(tmp_path)], CorpusConfig())


@pytest.mark.parametrize("kind", ["lines", "text", "pairs", "wikipedia"])
def test_prose_of_sources_that_have_no_such_setting_is_refused(tmp_path, kind):
    content = make_export(*some_pages(1)) if kind == "wikipedia" else "A line is here.\nIt ends.\n"
    source = f"{kind}:{write(tmp_path / 'a.txt', content)}"
    with pytest.raises(UsageError, match="prose='plain': is of book:, jsonl: and parquet:, no source is one"):
        plan_splits([source], CorpusConfig(prose="plain"))
    book = f"book:{write(tmp_path / 'b.txt', content)}"
    assert len(plan_splits([source, book], CorpusConfig(prose="plain"))) == 2


def test_output_that_is_not_ours_is_refused_before_texts_are_read(endless, output):
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="holds files that are not ours"):
        build_corpus([endless], output, CorpusConfig(), ONE)


@pytest.mark.parametrize("kind", ["wikipedia", "text", "lines", "book", "jsonl", "parquet", "pairs"])
@pytest.mark.parametrize("name", [b"caf\xe9/a.txt", b"caf\xe9.txt"], ids=["folder", "file"])
def test_name_that_is_not_utf8_is_refused(tmp_path, kind, name):
    path = os.path.join(os.fsencode(tmp_path), name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(b"A line is here.\n")
    with pytest.raises(InputError, match=r"caf\\xe9.*: found a name that is not UTF-8; rename") as raised:
        plan_splits([f"{kind}:{os.fsdecode(path)}"], CorpusConfig())
    str(raised.value).encode()


def test_dropped_list_replaces_tabs_and_line_ends(tmp_path, output):
    rows = [{"id": identifier, "title": "A\tB", "text": "A text is here."} for identifier in ("0", "1\t2\n3\r4\x855")]
    build_corpus([write_records(tmp_path / "a.jsonl", rows)], output, CorpusConfig(), ONE)
    assert (output / "dropped.tsv").read_text(encoding="utf-8").splitlines() == [
        "document_id\treason\ttitle",
        "a:1 2 3 4 5\tsame text as a:0\tA B",
    ]


def test_utf16_export_is_read(tmp_path, output):
    dump = write(tmp_path / "d.xml.bz2", bz2.compress(make_export(*some_pages(3)).encode("utf-16")))
    assert build_corpus([dump], output, CorpusConfig(), ONE).counts["documents"] == 3


def test_name_replaces_missing_dbname(tmp_path, output):
    dump = write(tmp_path / "d.xml", make_export(*some_pages(2)).replace("<dbname>testwiki</dbname>", ""))
    build_corpus([dump], output, CorpusConfig(name="mine"), ONE)
    assert documents_of(output)[0].document_id == "mine:1"


@pytest.mark.parametrize(
    ("mark", "documents", "dropped", "warning"),
    [
        (FOOTER, 3, {}, "ends without </mediawiki>"),
        ("It says", 2, {"cut off": 1}, "breaks off inside page"),
        ("</text>", 2, {"cut off": 1}, "breaks off inside page"),
    ],
)
def test_dump_that_breaks_off_is_one_broken_file(tmp_path, output, caplog, mark, documents, dropped, warning):
    text = make_export(*some_pages(3))
    text = text[: text.rindex(mark)]
    for split_bytes in (1 << 20, len(text) - 100):
        dump = write(tmp_path / "d.xml", text)
        counts = build_corpus([dump], output, CorpusConfig(split_bytes=split_bytes), ONE).counts
        assert (counts["broken_files"], counts["documents"], counts["dropped"]) == (1, documents, dropped)
        assert warning in caplog.text
        assert f"of {documents} pages read, {documents} documents kept" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (make_export(*some_pages(3)).removesuffix(FOOTER).encode(), "ends without </mediawiki>"),
        (make_export(*some_pages(3))[:-900].encode(), "breaks off inside page"),
        (bz2.compress((HEADER + some_pages(1)[0]).encode()), "ends without </mediawiki>"),
        (gzip.compress(make_export(*some_pages(900)).encode(), mtime=0)[:-900], "cut off|breaks off"),
    ],
    ids=["no end tag", "inside a page", "bz2 without end tag", "cut gzip"],
)
def test_strict_refuses_a_dump_that_breaks_off(tmp_path, output, content, message):
    with pytest.raises(InputError, match=message):
        build_corpus([write(tmp_path / "d.xml", content)], output, CorpusConfig(strict=True), ONE)
    assert not output.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.xml", b"no XML at all", "expected a MediaWiki export"),
        ("notes.txt", b"no XML at all", r"no XML.*name that: text:\S+notes.txt \(or lines:, book:, pairs:\)"),
        ("x.jsonl.gz", gzip.compress(b'{"text": "x"}\n'), r"no XML.*name that: jsonl:\S+x.jsonl.gz$"),
        ("x.parquet", b"PAR1\0\0", r"no XML.*name that: parquet:\S+x.parquet$"),
        ("x.csv.gz", gzip.compress(b"id,text\n"), r"no XML.*; of a table, write its texts as JSON lines"),
        ("data", b"PAR1\0\0", r"no XML.*name that: parquet:\S+data$"),
        ("data", b'{"text": "x"}\n', r"no XML.*name that: jsonl:\S+data$"),
        ("d.xml", b"<!DOCTYPE x><mediawiki></mediawiki>", "DOCTYPE"),
        ("d.xml", make_export(make_page(1, "a < b")).encode(), "malformed XML"),
        ("d.xml.bz2", bz2.compress(b"nothing like it"), "expected a MediaWiki export"),
        ("d.xml", make_export(make_page(1, "* list")).encode(), "no document is left .*1 no prose"),
    ],
    ids=["no XML", "text", "packed JSON", "Parquet", "table", "Parquet by content", "JSON by content", "DOCTYPE",
         "malformed XML", "no export", "no prose"],
)  # fmt: skip
def test_malformed_input_raises_one_sentence_and_leaves_nothing(tmp_path, output, name, content, message):
    with pytest.raises(InputError, match=message) as raised:
        build_corpus([write(tmp_path / name, content)], output, CorpusConfig(), ONE)
    assert "\n" not in str(raised.value)
    assert not output.exists()


def test_error_of_worker_process_is_raised_unchanged(tmp_path, output):
    dump = write(tmp_path / "d.xml", make_export(make_page(1), make_page(2, "a < b")))
    with pytest.raises(InputError, match="page 'Page 2': malformed XML"):
        build_corpus([dump], output, CorpusConfig(), ("--workers", "2"))


def test_failed_job_does_not_wait_for_the_hash_of_its_input(tmp_path):
    dump = write(tmp_path / "d.xml", make_export(make_page(1, "a < b")))
    program = f"""
import time
from bert_pipeline.corpus import job
job.foreign_input = lambda path: time.sleep(600)  # a large file, or a store that does not answer
job.build_corpus([{dump!r}], {str(tmp_path / "corpus")!r}, beam_options=("--workers", "1"))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert "malformed XML" in ended.stderr
    assert ended.returncode == 1


def test_failed_build_keeps_older_corpus(output):
    good = build(output, *some_pages(2))
    with pytest.raises(InputError):
        build(output, make_page(1, "a < b"))
    assert load_manifest(output).sha256 == good.sha256


def test_batches_are_a_function_of_the_input(tmp_path):
    dump = write(tmp_path / "d.xml", make_export(*some_pages(40)))
    splits = plan_splits([dump], CorpusConfig(split_bytes=5000))
    assert [split.span.start for split in splits] == list(range(0, Path(dump).stat().st_size, 5000))
    with pytest.raises(UsageError):
        plan_splits([], CorpusConfig())


@pytest.mark.parametrize(
    "values",
    [{"shard_bytes": 0}, {"held_out_per_mille": 501}, {"language": "e n"}, {"name": "a/b"}, {"split_bytes": -1}],
)
def test_configuration_is_checked(values):
    with pytest.raises(ConfigurationError, match=next(iter(values))):
        CorpusConfig(**values)


def test_progress_counts_pages(tmp_path, output):
    seen: list[int] = []
    dump = write(tmp_path / "d.xml", make_export(*some_pages(400)))
    build_corpus([dump], output, CorpusConfig(split_bytes=30_000), ONE, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 400


@pytest.mark.real_data
def test_english_dump_gives_clean_corpus(real_data, output):
    dump = real_data / "wikipedia" / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    manifest = build_corpus([str(dump)], output, CorpusConfig(), ONE)
    assert manifest.counts["documents"] >= 95
    assert manifest.counts["markup_per_million_characters"] < 2
    assert manifest.counts["broken_text_per_million_characters"] < 4


def test_template_file_refers_to_templates_of_the_language(output, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[templates]\n"citation longue bis" = "=citation bloc"\n')
    text = "Il a dit ceci. {{citation longue bis|Le texte de la citation est ici.}} " + "C'est comme ça. " * 20
    export = make_export(make_page(1, text)).replace('xml:lang="bg"', 'xml:lang="fr"')
    build_corpus([write(tmp_path / "d.xml", export)], output, CorpusConfig(templates=str(own)), ONE)
    assert "Le texte de la citation est ici." in documents_of(output)[0].sentences
    with pytest.raises(UsageError, match="templates are of dumps, and no source is one"):
        build_corpus(
            [f"lines:{write(tmp_path / 'a.txt', text)}"], tmp_path / "b", CorpusConfig(templates=str(own)), ONE
        )
    # Bulgarian has no such template.
    with pytest.raises(InputError, match="no function or template is called 'citation bloc'"):
        build(output, make_page(1, article(1)), templates=str(own))


def test_template_file_is_applied_and_recorded_as_it_was_at_the_start(output, tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    own.write_text('[templates]\n"people" = "some {1} people"\n')
    before, run = file_sha256(own), job._run

    def edit_then_run(*arguments: Any) -> None:
        own.write_text('[templates]\n"people" = "nobody"\n')
        run(*arguments)

    monkeypatch.setattr(job, "_run", edit_then_run)
    text = "In the town of Foo live {{people|12345}} today. " + "It is as it is. " * 20
    manifest = build(output, make_page(1, text), templates=str(own))
    assert documents_of(output)[0].sentences[0] == "In the town of Foo live some 12345 people today."
    assert manifest.inputs["templates"] == {"name": "own.toml", "sha256": before}
    assert "templates" not in manifest.configuration  # its path is no part of the identity


def test_bad_template_file_leaves_nothing_behind(output, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('[templates]\n"people" = "{1"\n')
    with pytest.raises(InputError, match=r"own\.toml, line 2: .* has an open brace"):
        build(output, make_page(1, article(1)), templates=str(own))
    assert not output.exists()
