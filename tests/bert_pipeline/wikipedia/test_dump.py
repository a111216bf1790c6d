"""Pages are read from every form of export, whole or by range; missing and damaged parts are reported."""

import bz2
import gzip
import io
import random
import types
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from small_exports import FOOTER, HEADER, make_export, make_page

from bert_pipeline.errors import InputError
from bert_pipeline.sample import generate_sample
from bert_pipeline.wikipedia import bzip2
from bert_pipeline.wikipedia import dump as dump_module
from bert_pipeline.wikipedia.bzip2 import DamagedError, ends_cleanly, read_blocks
from bert_pipeline.wikipedia.dump import Dump, Page, ReadReport, is_truncated_bzip2, open_dump, read_pages


@pytest.fixture
def export():
    rng = random.Random(5)
    words = ["alpha", "beta", "&lt;ref&gt;", "&amp;nbsp;", "гама", "delta"]
    return make_export(*(make_page(n, " ".join(rng.choices(words, k=rng.randint(1, 400)))) for n in range(1, 120)))


@pytest.fixture(params=["indexed_bzip2", "bz2", "refused"])
def decoder(request, monkeypatch):
    """Decode .bz2 with the faster library, without it, and with one that refuses every block."""

    def refuse(stream: io.BytesIO, **options: int) -> None:
        raise TypeError("an option of another version")

    if request.param == "indexed_bzip2":
        pytest.importorskip("indexed_bzip2", reason="there is none for this version of Python")
    else:
        other = None if request.param == "bz2" else types.SimpleNamespace(open=refuse)
        monkeypatch.setattr(bzip2, "indexed_bzip2", other)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def random_export(num_pages: int, length: int) -> bytes:
    rng = random.Random(2)
    pages = (make_page(n, "".join(rng.choices("abcdefgh ", k=length))) for n in range(1, num_pages + 1))
    return make_export(*pages).encode()


def read_all(path: Path, report: ReadReport | None = None) -> list[Page]:
    return list(read_pages(open_dump(path), report=report))


def test_fields_of_a_page_are_read(tmp_path):
    text = "A &lt;b&gt; &amp;amp; &quot;c&quot;"
    path = write(tmp_path / "d.xml", make_export(make_page(12, text, title="Tom &amp; Jerry")).encode())
    assert read_all(path) == [Page("Tom & Jerry", 12, 0, 120, False, "wikitext", 'A <b> &amp; "c"')]


def test_site_is_read_from_the_header(tmp_path):
    site = open_dump(write(tmp_path / "d.xml", make_export().encode())).site
    assert (site.dbname, site.language) == ("testwiki", "bg")
    assert site.namespace_of("Файл:X.jpg") == 6
    assert site.namespace_of("Alien: Covenant") == 0


@pytest.mark.parametrize("name", ["d.xml", "d.xml.bz2", "d.xml.gz", "utf16.xml", "utf16.xml.bz2", "big-endian.xml.gz"])
def test_every_file_format_yields_the_same_pages(tmp_path, export, name):
    expected = read_all(write(tmp_path / "plain.xml", export.encode()))
    data = export.encode()
    if name.startswith("utf16"):
        data = b"\xff\xfe" + export.encode("utf-16-le")
    if name.startswith("big"):
        data = b"\xfe\xff" + export.encode("utf-16-be")
    pack = {"bz2": bz2.compress, "gz": gzip.compress}.get(name.rpartition(".")[2], bytes)
    assert read_all(write(tmp_path / name, pack(data))) == expected
    assert len(expected) == 119


@pytest.mark.parametrize("step", [1, 37, 1000, 10**9])
def test_ranges_of_a_plain_file_partition_its_pages(tmp_path, step):
    data = make_export(*(make_page(n) for n in range(1, 5))).encode()
    dump = open_dump(write(tmp_path / "d.xml", data))
    parts = [page for start in range(0, dump.size, step) for page in read_pages(dump, start, start + step)]
    assert [page.page_id for page in parts] == [1, 2, 3, 4]


@pytest.mark.parametrize("step", [53, 997, 10**9])
@pytest.mark.parametrize("form", ["one stream", "multistream", "cut anywhere"])
def test_ranges_of_a_bz2_file_partition_its_pages(tmp_path, export, step, form):
    data = export.encode()
    if form == "multistream":
        body = export.removeprefix(HEADER).removesuffix(FOOTER)
        pages = [f"  <page>{rest}" for rest in body.split("  <page>")[1:]]
        parts = [HEADER, *("".join(pages[i : i + 10]) for i in range(0, len(pages), 10)), FOOTER]
        packed = b"".join(bz2.compress(part.encode()) for part in parts)
    elif form == "cut anywhere":
        packed = b"".join(bz2.compress(data[i : i + 1711]) for i in range(0, len(data), 1711))
    else:
        packed = bz2.compress(data)
    dump = open_dump(write(tmp_path / "d.xml.bz2", packed))
    parts = [page for start in range(0, dump.size, step) for page in read_pages(dump, start, start + step)]
    assert parts == read_all(write(tmp_path / "d.xml", data))


@pytest.mark.usefixtures("decoder")
def test_bz2_blocks_at_any_bit_are_found(tmp_path):
    rng = random.Random(1)
    data = bytes(rng.choices(b"abcdefgh ", k=450_000))
    path = write(tmp_path / "d.bz2", bz2.compress(data, compresslevel=1))
    blocks = list(read_blocks(path, 0, None))
    assert len(blocks) >= 4
    assert b"".join(block for block, _ in blocks) == data
    assert ends_cleanly(path)


def test_bz2_is_decoded_by_the_faster_library(tmp_path, monkeypatch):
    pytest.importorskip("indexed_bzip2", reason="there is none for this version of Python")
    path = write(tmp_path / "d.bz2", bz2.compress(b"some text"))
    monkeypatch.delattr(bzip2, "bz2")
    assert [block for block, _ in read_blocks(path, 0, None)] == [b"some text"]


@pytest.mark.usefixtures("decoder")
def test_bz2_with_a_flipped_bit_is_never_read_as_other_data(tmp_path):
    data = b"some text, and some more of it"
    packed = bz2.compress(data)
    for bit in range(32, 8 * len(packed)):  # behind the header
        flipped = bytearray(packed)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            blocks = [block for block, _ in read_blocks(write(tmp_path / "d.bz2", bytes(flipped)), 0, None)]
        except DamagedError:
            continue
        assert blocks == [data]  # the checksum of the stream is not read


@pytest.mark.usefixtures("decoder")
def test_bz2_block_of_one_byte_repeated_is_read_whole(tmp_path):
    data = b"a" * 20_000_000  # run lengths are encoded before a block is filled
    blocks = read_blocks(write(tmp_path / "d.bz2", bz2.compress(data)), 0, None)
    assert [len(block) for block, _ in blocks] == [len(data)]


def test_page_longer_than_a_chunk_is_read(tmp_path):
    text = "word " * 600_000
    path = write(tmp_path / "d.xml.bz2", bz2.compress(make_export(make_page(1, text), make_page(2)).encode()))
    assert [len(page.text) for page in read_all(path)] == [len(text), len("Text of 2.")]


def test_redirects_are_detected_by_element_or_word(tmp_path):
    pages = (
        make_page(1, head='<ns>0</ns><redirect title="X" />'),
        make_page(2, "#REDIRECT [[X]]"),
        make_page(3, "#ПРЕНАСОЧВАНЕ [[X]]"),
        make_page(4, "\n#виж: [[X]]"),
        make_page(5, "# a list with a [[link]]"),
        make_page(6, "#1 [[X]]"),
        make_page(7, "# First [[X]] was there."),
        make_page(8, "#Първият [[X]]"),
    )
    flags = [page.is_redirect for page in read_all(write(tmp_path / "d.xml", make_export(*pages).encode()))]
    assert flags == [True, True, True, True, False, False, False, False]


@pytest.mark.parametrize(("mark", "pages", "unfinished"), [(FOOTER, [1, 2], ""), ("Text of 2", [1], "Page 2")])
def test_dump_that_breaks_off_is_reported_and_pages_are_kept(tmp_path, mark, pages, unfinished):
    found, text = ReadReport(), make_export(make_page(1), make_page(2))
    read = read_all(write(tmp_path / "d.xml", text[: text.rindex(mark)].encode()), found)
    assert [page.page_id for page in read] == pages
    assert (found.reached_end, found.is_closed, found.unfinished_page) == (True, False, unfinished)


@pytest.mark.usefixtures("decoder")
def test_bz2_cut_in_a_block_yields_the_pages_before(tmp_path):
    packed = bz2.compress(random_export(99, 3000), compresslevel=1)
    path = write(tmp_path / "d.xml.bz2", packed[: len(packed) * 3 // 4])
    report = ReadReport()
    kept = read_all(path, report)
    assert 20 < len(kept) < 99
    assert report.is_truncated
    assert is_truncated_bzip2(open_dump(path))


def test_bz2_cut_between_streams_lacks_the_end_tag(tmp_path):
    first, second = bz2.compress((HEADER + make_page(1)).encode()), bz2.compress((make_page(2) + FOOTER).encode())
    report = ReadReport()
    assert len(read_all(write(tmp_path / "cut.bz2", first), report)) == 1
    assert not report.is_closed
    report = ReadReport()
    assert len(read_all(write(tmp_path / "whole.bz2", first + second), report)) == 2
    assert report.is_closed


@pytest.mark.parametrize(("num_pages", "length", "share", "min_kept"), [(799, 3000, 0.75, 100), (300, 400, 0.9, 250)])
def test_gzip_cut_off_yields_the_pages_before(tmp_path, num_pages, length, share, min_kept):
    packed = gzip.compress(random_export(num_pages, length))
    report = ReadReport()
    kept = read_all(write(tmp_path / "d.xml.gz", packed[: int(len(packed) * share)]), report)
    assert min_kept < len(kept) < num_pages
    assert report.is_truncated


@pytest.mark.usefixtures("decoder")
def test_corrupt_bz2_error_names_byte_and_page(tmp_path):
    packed = bytearray(bz2.compress(random_export(99, 3000), compresslevel=1))
    packed[len(packed) // 2] ^= 0x10
    path = write(tmp_path / "d.xml.bz2", bytes(packed))
    with pytest.raises(
        InputError, match=r"d\.xml\.bz2: the bz2 data are damaged at byte [\d,]+ .* after page 'Page \d+'"
    ):
        read_all(path)


@pytest.mark.parametrize("behind", [b"garbage", b"\0", b"BZx", b"BZh9 is no block", b"\0" * 4096])
def test_data_behind_the_last_bz2_stream_are_damage(tmp_path, behind):
    packed = bz2.compress(make_export(make_page(1)).encode())
    with pytest.raises(InputError, match=rf"damaged at byte {len(packed):,} .* after page 'Page 1'"):
        read_all(write(tmp_path / "d.xml.bz2", packed + behind))
    for cut_off in (b"", b"BZ", b"BZh9", b"BZh91AY&S"):
        assert len(read_all(write(tmp_path / "d.xml.bz2", packed + cut_off))) == 1


@pytest.mark.usefixtures("decoder")
def test_corrupt_bz2_block_is_not_reported_as_truncated(tmp_path):
    packed = bytearray(bz2.compress(b"some text " * 1000))
    packed[40] ^= 1
    with pytest.raises(DamagedError) as raised:
        list(read_blocks(write(tmp_path / "d.bz2", bytes(packed)), 0, None))
    assert not raised.value.truncated


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"just some words\n", "found no XML, expected a MediaWiki export"),
        (b"<html><body>x</body></html>", "found XML of another kind"),
        (b'<!DOCTYPE mediawiki [<!ENTITY a "b">]><mediawiki><page></page></mediawiki>', "declares a DOCTYPE"),
        (b'<?xml version="1.0" encoding="latin-1"?><mediawiki></mediawiki>', "its encoding is latin-1"),
        (b"BZh91AY&SY and no more", "cut off before its first page"),
        (gzip.compress(b"<mediawiki>", mtime=0)[:12], "cut off before its first page"),
    ],
    ids=["empty", "words", "HTML", "DOCTYPE", "latin-1", "cut bz2", "cut gzip"],
)
def test_file_that_is_not_an_export_is_refused(tmp_path, content, message):
    path = write(tmp_path / "d.xml", content)
    with pytest.raises(InputError, match=message) as raised:
        open_dump(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        open_dump(tmp_path / "none.xml")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (("Text of", "a < b"), "page 'Page 2': malformed XML .*: line .*, column .*; the last intact page is 'Page 1'"),
        (("Text of", "a &nbsp; b"), "page 'Page 2': malformed XML .undefined entity"),
        (("Text of", "<x:a/>"), r"page 'Page 2': malformed XML \(unbound prefix: line .*, or correct the page"),
        (("</page>", ""), "page 'Page 2': malformed XML .* the last intact page is 'Page 1'"),
        (("</page>", "</pafe>"), "page 'Page 2': malformed XML .mismatched tag"),
        (("<page>", "<pafe>"), "malformed XML after page 'Page 1': found '<pafe>.*', expected <page>"),
        (("<page>", ""), "malformed XML after page 'Page 1': found '<title>Page 2.*', expected <page>"),
    ],
)
def test_malformed_xml_error_names_the_page(tmp_path, broken, message):
    for last in ([make_page(3)], []):
        path = write(tmp_path / "d.xml", make_export(make_page(1), make_page(2).replace(*broken), *last).encode())
        if last or broken[0] != "</page>":  # without another page, that one is cut off
            with pytest.raises(InputError, match=message):
                read_all(path)
    path = write(tmp_path / "d.xml", make_export(make_page(1).replace("<page>", "<pafe>"), make_page(2)).encode())
    with pytest.raises(InputError, match="malformed XML before its first page: found '<title>'"):
        read_all(path)


def test_comments_and_exports_between_pages_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(dump_module, "_CHUNK_BYTES", 7)  # every tag is split between chunks
    between = "<!-- a comment, and a longer one than the sixty-four bytes at the end of what is read --><?a b?>"
    path = write(tmp_path / "d.xml", (make_export(make_page(1), between, make_page(2)) + make_export()).encode())
    assert [page.title for page in read_all(path)] == ["Page 1", "Page 2"]
    path = write(tmp_path / "d.xml", make_export(make_page(1).replace('bytes="3"', 'a="b>c"')).encode())
    assert [page.text for page in read_all(path)] == ["Text of 1."]


def test_bz2_block_with_damaged_magic_number_is_refused(tmp_path):
    streams = [bz2.compress(text.encode()) for text in (HEADER + make_page(1), make_page(2), make_page(3) + FOOTER)]
    for damaged in range(2):
        packed = [bytearray(stream) for stream in streams]
        packed[damaged][5] ^= 1
        with pytest.raises(InputError, match="damaged at"):
            read_all(write(tmp_path / "d.xml.bz2", b"".join(packed)))


def test_damaged_gzip_is_refused(tmp_path):
    packed = gzip.compress(make_export(*(make_page(n) for n in range(1, 9))).encode())
    for place in (len(packed) // 2, len(packed) - 6):
        damaged = bytearray(packed)
        damaged[place] ^= 4
        with pytest.raises(InputError, match="gz(ip data are| file is) damaged"):
            read_all(write(tmp_path / "d.xml.gz", bytes(damaged)))


def test_wrong_encoding_error_names_the_page(tmp_path):
    data = make_export(make_page(1), make_page(2, "caf&amp;eteria, caf@")).encode().replace(b"caf@", b"caf\xe9")
    place = data.index(b"\xe9") - data.rindex(b"<page>") + 1
    message = rf"page 'Page 2' after page 'Page 1': not UTF-8 text \(.* at byte {place} of the page\).*fetch it again"
    with pytest.raises(InputError, match=message):
        read_all(write(tmp_path / "d.xml", data))


TEXT = '<text bytes="3" xml:space="preserve">Text of 1.</text>'
SLOT = """<content><role>mediainfo</role><origin>9</origin><model>wikibase-mediainfo</model>
<format>application/json</format><text bytes="9" xml:space="preserve">{"labels":{}}</text></content>"""
SECOND_REVISION = "<revision><id>11</id><comment>&lt;text&gt;</comment><model>css</model><text>new</text></revision>"
WELL_FORMED = {
    "slot after the text": make_page(1, tail=SLOT),
    "slot before the text": make_page(1).replace("<text", SLOT + "<text"),
    "slot in an earlier revision": make_page(1, tail=SLOT).replace("  </page>", SECOND_REVISION + "</page>"),
    "slot in the last revision": make_page(1).replace(
        "  </page>", SECOND_REVISION.replace("</revision>", SLOT + "</revision></page>")
    ),
    "slot without a main text": make_page(1).replace(TEXT, SLOT),
    "last revision without a text": make_page(1).replace("  </page>", "<revision><id>11</id></revision></page>"),
    "deleted text": make_page(1).replace(TEXT, '<text deleted="deleted" bytes="0" />'),
    "attributes in another order": make_page(1).replace(TEXT, "<text sha1='a>b' xml:space='preserve'\n>a</text >"),
    "quotation marks and > in attributes": make_page(1).replace("bytes=", "a='\"' b=\"it's > &quot;\" bytes="),
    "comments": make_page(1, "a<!-- <text>b</text> -->c").replace("<revision>", "<!-- <revision> --><revision>"),
    "comment after the text": make_page(1, tail="<!-- <revision><text>b</text></revision> -->"),
    "CDATA": make_page(1, "a<![CDATA[<text>&amp; </text>]]>c"),
    "entities of all kinds": make_page(1, "&apos;&#233;&#x263A;&lt;&gt;&amp;lt;&quot;", title="&#65;&amp;B"),
    "carriage returns": make_page(1, "a\r\nb\rc&#13;d").replace("\n", "\r\n"),
    "white space around numbers": make_page(1).replace("<id>1</id>", "<id>\n1\t</id>").replace(">0<", "> 0 <"),
    "fields after the revision": make_page(1)
    .replace("<id>1</id>", "")
    .replace("<ns>0</ns>", "")
    .replace("</page>", '<redirect title="x"></redirect><ns>-1</ns><id>1</id></page>'),
    "namespace in the title alone": make_page(1, title="Беседа:X", head=""),
    "colon in the title": make_page(1, title="2001: A Space Odyssey", head=""),
    "title between white space": make_page(1, title=" a  b "),
    "empty text": make_page(1).replace("Text of 1.", ""),
    "page of one line": make_page(1).replace("\n", ""),
    "discussion threads": make_page(1, head="<ns>90</ns><DiscussionThreading><id>5</id></DiscussionThreading>"),
    "uploads": make_page(1).replace("</page>", "<upload><text>b</text><redirect/><src>a</src></upload></page>"),
}
MALFORMED = {
    "control character": make_page(1, "a\x08b"),
    "noncharacter": make_page(1, "a\uffffb"),
    "end of CDATA": make_page(1, "[[a]]>"),
    "bare ampersand": make_page(1, "a & b"),
    "unknown entity": make_page(1, "a &nbsp; b"),
    "bare <": make_page(1, "a < b"),
    "tag without its end": make_page(1, "a <b> c"),
    "earlier revision": make_page(1, "a < b").replace("  </page>", SECOND_REVISION + "</page>"),
    "comment": make_page(1).replace("<contributor>", "<comment>a & b</comment><contributor>"),
    "head": make_page(1, head="<ns>0</ns><a b=c/>"),
    "tail": make_page(1, tail="<sha1>abc</sha>"),
    "attribute without quotation marks": make_page(1).replace('bytes="3"', "bytes=3"),
    "attribute twice": make_page(1).replace('bytes="3"', 'bytes="3" bytes="3"'),
    "page cut off": make_page(1)[:200],
    "text cut off": make_page(1).replace("</text>", ""),
    "title cut off": make_page(1).replace("</title>", ""),
}


def read_with_element_tree(dump: Dump) -> tuple[list[Page], bool]:
    """Read a whole file with another library; return the pages, and whether the file is well-formed to its end."""
    pages = []
    with (bz2.open if dump.compression else open)(dump.path, "rb") as stream:
        try:
            for _, element in ElementTree.iterparse(stream):
                if element.tag.rpartition("}")[2] != "page":
                    continue
                fields = {child.tag.rpartition("}")[2]: child for child in element}  # the last of each name
                revision = {child.tag.rpartition("}")[2]: child.text or "" for child in fields["revision"]}
                title, text = fields["title"].text or "", revision.get("text", "")
                page = Page(
                    title=title,
                    page_id=int(fields["id"].text or ""),
                    namespace=int(fields["ns"].text or "") if "ns" in fields else dump.site.namespace_of(title),
                    revision_id=int(revision["id"]),
                    is_redirect="redirect" in fields or dump.site.redirect.match(text) is not None,
                    model=revision.get("model") or "wikitext",
                    text=text,
                )
                pages.append(page)
                element.clear()
        except (ElementTree.ParseError, EOFError):
            return pages, False
    return pages, True


def assert_readers_agree(path: Path) -> int:
    """Compare the pages of a file with those that another library reads; return their number."""
    dump, report, pages = open_dump(path), ReadReport(), []
    try:
        for page in read_pages(dump, report=report):
            pages.append(page)
        is_whole = report.is_closed
    except InputError:
        is_whole = False
    assert (pages, is_whole) == read_with_element_tree(dump)
    return len(pages)


@pytest.mark.parametrize("name", WELL_FORMED)
def test_unusual_pages_are_read_as_another_parser_reads_them(tmp_path, name):
    path = write(tmp_path / "d.xml", make_export(make_page(2), WELL_FORMED[name], make_page(3)).encode())
    assert assert_readers_agree(path) == 3


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_pages_are_refused_as_by_another_parser(tmp_path, name):
    path = write(tmp_path / "d.xml", make_export(make_page(2), MALFORMED[name], make_page(3)).encode())
    assert assert_readers_agree(path) == 1


def test_number_of_a_page_that_is_none_is_named(tmp_path):
    path = write(tmp_path / "d.xml", make_export(make_page(1, head="<ns>Talk</ns>")).encode())
    with pytest.raises(InputError, match=r"page 'Page 1': its namespace <ns> is 'Talk', expected a number"):
        read_all(path)
    path = write(tmp_path / "d.xml", make_export(make_page(1).replace("<id>1<", "<id>²<")).encode())
    with pytest.raises(InputError, match="page 'Page 1': a page without id"):
        read_all(path)


def test_sample_is_read_as_another_parser_reads_it(tmp_path):
    sample = generate_sample(tmp_path / "sample", seed=3, num_articles=100)
    assert assert_readers_agree(next(sample.path.glob("*.bz2"))) > 100


@pytest.mark.real_data
def test_real_dumps_are_read_as_another_parser_reads_them(real_data):
    paths = [path for path in (real_data / "wikipedia").rglob("*") if path.is_file()]
    assert sum(map(assert_readers_agree, paths)) > 1000


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("name", "num_pages", "is_closed"),
    [
        ("enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2", 206, True),
        ("enwiki-2014-head-truncated.xml.bz2", 361, False),
        ("bgwiki-latest-pages-articles-shortened.xml.bz2", 3, True),
        ("aawiki-20260101-pages-meta-current.xml.bz2", 507, True),
        ("tinywiki-latest-pages-articles.xml", 8, True),
    ],
)
def test_real_dumps_are_read_completely(real_data, name, num_pages, is_closed):
    report = ReadReport()
    assert len(read_all(real_data / "wikipedia" / name, report)) == num_pages
    assert report.is_closed == is_closed
