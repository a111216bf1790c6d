"""Pairs are read from BLiMP's files and from tables, refused by line, and split into two disjoint parts."""

import hashlib
import json
import re
import weakref
import zipfile
from collections.abc import Iterator

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.exam.pairs import Pair, read_pairs, sample_pairs, write_pairs


def blimp_line(number: int, good: str = "Who hugs Richard?") -> str:
    row = {"sentence_good": good, "sentence_bad": "Who hug Richard?", "UID": "agreement", "pairID": str(number)}
    return json.dumps(row | {"linguistics_term": "subject_verb_agreement"}) + "\n"


def test_blimp_is_read_from_a_zip_a_folder_and_a_file(tmp_path):
    (tmp_path / "agreement.jsonl").write_text(blimp_line(0) + blimp_line(1))
    with zipfile.ZipFile(tmp_path / "blimp.zip", "w") as archive:
        archive.write(tmp_path / "agreement.jsonl", "blimp-master/data/agreement.jsonl")
        archive.writestr("blimp-master/raw_results/summary/models_summary.jsonl", '{"UID": "agreement", "gpt2": 0.9}')
    (tmp_path / "raw_results").mkdir()
    (tmp_path / "raw_results" / "models.jsonl").write_text('{"UID": "agreement", "gpt2": 0.9}')
    expected = Pair(
        pair_id="agreement:0",
        kind="agreement",
        group="subject_verb_agreement",
        good=("Who hugs Richard?",),
        bad=("Who hug Richard?",),
    )
    for path in ("agreement.jsonl", "blimp.zip", "."):
        pairs = read_pairs(tmp_path / path)
        assert pairs[0] == expected
        assert [pair.pair_id for pair in pairs] == ["agreement:0", "agreement:1"]


def test_a_folder_of_an_archive_is_read_alone(tmp_path):
    with zipfile.ZipFile(tmp_path / "babylm.zip", "w") as archive:
        archive.writestr("blimp_filtered/agreement.jsonl", blimp_line(0))
        archive.writestr("supplement_filtered/turn_taking.jsonl", blimp_line(1))
    (pair,) = read_pairs(tmp_path / "babylm.zip" / "supplement_filtered")
    assert pair.pair_id == "agreement:1"
    with pytest.raises(InputError, match="no pairs"):
        read_pairs(tmp_path / "babylm.zip" / "supplement")


def test_header_of_multiblimp_names_the_columns(tmp_path):
    path = tmp_path / "multiblimp_eng.tsv"
    path.write_text("phenomenon\tsentence_good\tsentence_bad\nSV-P\tIt is.\tIt am.\nSV-#\tIt is.\tIt are.\n")
    assert [(pair.kind, pair.good, pair.bad) for pair in read_pairs(path)] == [
        ("SV-P", ("It is.",), ("It am.",)),
        ("SV-#", ("It is.",), ("It are.",)),
    ]


def test_tables_have_two_columns_or_a_third_with_the_kind(tmp_path):
    path = tmp_path / "own.tsv"
    path.write_text(
        "\ufeffDer Hund\tDas Hund\tgender\r\nsie geht\tsie gehst\r\nich bin\tich bist\t\r\n", encoding="utf-8"
    )
    first, second, third = read_pairs(path)
    assert (first.good, first.bad, first.kind) == (("Der Hund",), ("Das Hund",), "gender")
    assert (second.bad, second.kind) == (("sie gehst",), "own")
    assert (third.bad, third.kind) == (("ich bist",), "own")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\nalone\n", "own.tsv:2: 1 tab-separated fields, expected good and bad, optionally kind"),
        (
            "Good\tBad\tKind\na\tb\tc\n",
            "own.tsv:2: found the keys Bad, Good, Kind; expected sentence_good and sentence_bad, or good and bad",
        ),
        ("one\t \n", "own.tsv:1: found 'one' and ' ', expected two texts"),
        (blimp_line(0) + blimp_line(1, good="a \ud83d"), "own.tsv:2: sentence_good has half of a surrogate pair"),
        ('{"sentence_good": "x", "sentence_bad": "y", "pairID": null}', "own.tsv:1: pairID is None, expected a text"),
        ('{"a":' * 100_000, "own.tsv:1: not valid JSON"),
        ('{"text": "x"}\n', "own.tsv:1: found the keys text; expected sentence_good"),
        ("\n", "own.tsv: no pairs"),
        (blimp_line(1) * 2, "1 pairs have the id of another, such as 'agreement:1'"),
    ],
)
def test_lines_that_are_no_pairs_are_refused(tmp_path, text, message):
    path = tmp_path / "own.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)):
        read_pairs(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("good", 3, "good is 3, expected a text or a list of two"),
        ("good", [], "good is [], expected a text or a list of two"),
        ("good", ["a", 3], "good is 3, expected a text"),
        ("good", ["a", "b"], "found 'b' and '', expected two texts"),
        ("bad", [" "], "found 'a' and ' ', expected two texts"),
        ("bad", ["\ud800"], "bad has half of a surrogate pair"),
        ("kind", ["k"], "kind is ['k'], expected a text"),
        ("source", 4, "source is 4, expected a text"),
        ("group", None, "group is None, expected a text"),
        ("pair_id", None, "pair_id is None, expected a text"),
    ],
)
def test_fields_of_another_type_are_refused(tmp_path, field, value, message):
    row = {"pair_id": "i", "kind": "k", "group": "", "good": ["a"], "bad": ["b"], "source": "s"}
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"pair_id": "j"} | {field: value}) + "\n")
    with pytest.raises(InputError, match=re.escape(f"pairs.jsonl:2: {message}")):
        read_pairs(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_archives_are_refused(tmp_path, compression):
    path = tmp_path / "own.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("own.jsonl", "".join(blimp_line(number) for number in range(20)))
    data = path.read_bytes()
    start, length = data.index(b"own.jsonl") + len(b"own.jsonl"), 30
    cases = (
        data[: start + 12] + bytes(length) + data[start + 12 + length :],
        set_bit(data, b"PK\x01\x02", 8, 0),  # encrypted
        set_bit(data, b"PK\x01\x02", 6, 7),  # of an unknown version
        set_bit(data, b"PK\x01\x02", 10, 6),  # of an unknown compression
    )
    for damaged in cases:
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"own\.zip: (damaged archive|cannot be read) \(.+\)"):
            read_pairs(path)


def test_archive_bomb_is_refused(tmp_path):
    path = tmp_path / "own.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("own.jsonl", bytes(17 << 20))
        archive.writestr("few.jsonl", blimp_line(1))
    message = r"own\.zip: its \.jsonl files, of which own\.jsonl is the largest, unpack to 17,"
    with pytest.raises(InputError, match=message):
        read_pairs(path)


def set_bit(data: bytes, signature: bytes, offset: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[data.index(signature) + offset] |= 1 << bit
    return bytes(changed)


def many_pairs() -> list[Pair]:
    return [
        Pair(pair_id=f"{kind}:{number}", kind=kind, good=("a",), bad=("b",), source=f"document {number // 3}")
        for kind in ("swap", "ending")
        for number in range(300)
    ]


def test_written_pairs_are_read_again(tmp_path):
    pairs = [*many_pairs(), Pair(pair_id="n", kind="next_sentence", good=("a\u2028", "b"), bad=("b", "a"))]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    assert read_pairs(tmp_path) == pairs


def test_parts_share_no_document():
    parts = {part: {pair.source for pair in many_pairs() if pair.part == part} for part in ("choosing", "reporting")}
    assert not parts["choosing"] & parts["reporting"]
    assert all(30 < len(documents) < 70 for documents in parts.values())  # of 100 documents


def test_parts_share_no_text_of_a_table(tmp_path):
    table = tmp_path / "own.tsv"
    table.write_text("".join(f"good {number % 20}\tbad {number}\n" for number in range(100)))
    pairs = read_pairs(table)
    parts = {part: {pair.good for pair in pairs if pair.part == part} for part in ("choosing", "reporting")}
    assert not parts["choosing"] & parts["reporting"]
    assert all(parts.values())


def test_sample_is_fixed_whatever_the_order():
    pairs = many_pairs()
    sample = sample_pairs(pairs, 20, "choosing")
    assert sample == sample_pairs(pairs[::-1], 20, "choosing")
    assert [pair.kind for pair in sample] == ["ending"] * 20 + ["swap"] * 20
    assert {pair.part for pair in sample} == {"choosing"}
    assert len(sample_pairs(pairs, 1000)) == 600
    assert sample_pairs(pairs, 20, "each") == [*sample, *sample_pairs(pairs, 20, "reporting")]
    by_hash = sorted(pairs[:300], key=lambda pair: hashlib.blake2b(pair.pair_id.encode(), digest_size=8).digest())
    assert sample_pairs(pairs[:300], 7) == by_hash[:7]


def test_sample_holds_few_pairs_at_a_time():
    alive: weakref.WeakSet[NotedPair] = weakref.WeakSet()
    most = 0

    def pairs() -> Iterator[Pair]:
        nonlocal most
        for number in range(500):
            pair = NotedPair(pair_id=str(number), kind="swap", good=("a",), bad=("b",), source=str(number))
            alive.add(pair)
            most = max(most, len(alive))
            yield pair

    assert len(sample_pairs(pairs(), 10, "each")) == 20
    assert most <= 2 * 20 + 2


class NotedPair(Pair):
    """Can be referred to weakly."""


@pytest.mark.real_data
def test_blimp_has_67_paradigms_in_12_groups(real_data):
    data = real_data / "zero_shot"
    pairs = read_pairs(data / "blimp.zip")
    assert (len(pairs), len({pair.kind for pair in pairs}), len({pair.group for pair in pairs})) == (67_000, 67, 12)
    fast = read_pairs(data / "blimp_fast.zip")
    assert (len(fast), len({pair.kind for pair in fast})) == (13_400, 67)
    babylm = {folder: read_pairs(data / "babylm.zip" / folder) for folder in ("blimp_filtered", "supplement_filtered")}
    assert [len(pairs) for pairs in babylm.values()] == [59_875, 5_218]
    assert len(read_pairs(data / "multiblimp_eng.tsv")) == 770
