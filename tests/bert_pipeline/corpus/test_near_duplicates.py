"""Near-duplicate documents and passages: found, counted, dropped, and never on both sides of the held-out split."""

import itertools
import json
import pickle
import random
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bert_pipeline.corpus import near_duplicates
from bert_pipeline.corpus.batches import PageBatch
from bert_pipeline.corpus.duplicates import plan_comparisons, split_codes
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.near_duplicates import (
    NUM_BANDS,
    NUM_VALUES,
    Comparison,
    SignedTexts,
    compute_signatures,
    count_words,
    find_pairs,
    group_pairs,
    join,
    pack_pairs,
    plan_band_tasks,
    sign_documents,
    unpack_pairs,
    write_signed_texts,
)
from bert_pipeline.corpus.parquet import Document, document_table, read_documents
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.errors import UsageError
from bert_pipeline.failed_records import DROPPED_NAME
from bert_pipeline.manifest import Manifest
from bert_pipeline.randomness import combine
from bert_pipeline.storage import to_path, upload

Build: TypeAlias = Callable[..., Manifest]
Texts: TypeAlias = list[list[str]]

WORDS = [f"{first}{second}{third}" for first in "bdfgklm" for second in "aeiou" for third in "nrstvz"]
JAPANESE = [chr(code) for code in range(0x4E00, 0x4E80)]


def some_words(rng: random.Random, number: int) -> list[str]:
    return rng.choices(WORDS, k=number)


def edited(words: Sequence[str], rng: random.Random, share: float, alphabet: Sequence[str] = WORDS) -> list[str]:
    """Replace a share of the words, each with probability `share`."""
    return [rng.choice(alphabet) if rng.random() < share else word for word in words]


def make(number: int, *passages: str) -> Document:
    return Document(
        document_id=f"made:{number}",
        title="",
        language="en",
        sentences=passages,
        passage_starts=tuple(range(len(passages))),
        split="train",
    )


def similarity(first: Sequence[str], second: Sequence[str]) -> float:
    """The exact Jaccard similarity of the five-grams of two lists of words."""
    left, right = ({tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (first, second))
    return len(left & right) / len(left | right)


def found_pairs(batches: Sequence[Sequence[Document]], directory: Path, num_parts: int = 1) -> set[tuple[int, int]]:
    """The pairs of documents that all tasks find, by their numbers over all batches; passages are left out."""
    stems = [f"batch-{index}" for index in range(len(batches))]
    texts = []
    bounds = [0]
    for index, (stem, documents) in enumerate(zip(stems, batches)):
        signed = sign_documents(document_table(list(documents)))
        write_signed_texts([signed], stem, directory)
        texts += [(index, *text) for text in signed.texts.tolist()]
        bounds.append(len(texts))
    parts = itertools.product(range(NUM_BANDS), range(num_parts))
    tasks = [Comparison(by=band, part=part, num_parts=num_parts) for band, part in parts]
    found = np.concatenate([find_pairs(task, stems, np.array(bounds), directory) for task in tasks])
    pairs, are_near = unpack_pairs(found)
    starts = [0, *itertools.accumulate(map(len, batches))]
    numbers = [starts[batch] + document if passage < 0 else -1 for batch, document, passage, _ in texts]
    return {(numbers[i], numbers[j]) for i, j in pairs[are_near].tolist() if numbers[i] >= 0}


@pytest.mark.parametrize(
    ("alphabet", "separator"), [(WORDS, " "), (JAPANESE, "")], ids=["words", "characters without spaces"]
)
def test_pairs_agree_with_the_exact_similarity(alphabet, separator, tmp_path):
    rng = random.Random(5)
    texts = []
    for _ in range(400):
        original = rng.choices(alphabet, k=rng.randint(60, 400))
        texts.append(original)
        texts.append(edited(original, rng, rng.choice([0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1]), alphabet))
    documents = [make(index, separator.join(words)) for index, words in enumerate(texts)]
    found = found_pairs([documents[:250], [], documents[250:]], tmp_path)

    exact = {(2 * index, 2 * index + 1): similarity(*texts[2 * index : 2 * index + 2]) for index in range(400)}
    assert found <= exact.keys()  # texts with nothing in common are never near
    assert min(exact[pair] for pair in found) > 0.65
    near = {pair for pair in exact if exact[pair] >= 0.8}
    assert sum(exact[pair] >= 0.75 for pair in found) >= 0.97 * len(found)
    assert len(near & found) >= 0.9 * len(near)
    clear = {pair for pair in exact if exact[pair] >= 0.9}
    assert len(clear) > 100
    assert clear <= found


def test_case_punctuation_and_spaces_make_no_difference():
    words = some_words(random.Random(1), 50)
    plain, other = " ".join(words), " — ".join(words).upper() + "!"
    values, num_words = compute_signatures(pa.array([plain, other]), np.arange(2), 2)
    assert (values[:, 0] == values[:, 1]).all()
    assert num_words.tolist() == [50, 50]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It's 3.5 km, isn't it?", 8),
        ("東京は、日本の首都。 Tokyo 2020年", 11),
        ("हिन्दी भाषा", 2),
        ("ភាសាខ្មែរ", 9),
        ("", 0),
        (" — ", 0),
    ],
)
def test_words_are_counted_in_every_script(text, number):
    assert count_words(pa.array([text, "one", "more"]), np.array([0, 1, 3])).tolist() == [number, 2]


def test_signature_does_not_depend_on_the_texts_around_it():
    rng = random.Random(2)
    sentences = pa.array([" ".join(some_words(rng, 8_000)) for _ in range(40)])  # more than is handled at a time
    values, num_words = compute_signatures(sentences, np.arange(40), 40)
    for index in range(40):
        alone, number = compute_signatures(sentences[index : index + 1], np.arange(1), 1)
        assert (alone[:, 0] == values[:, index]).all()
        assert number[0] == num_words[index]


def test_many_texts_are_compared_in_parts_with_the_same_result(tmp_path):
    rng = random.Random(3)
    documents = [make(index, " ".join(some_words(rng, 40))) for index in range(60)]
    batches = [documents, documents[:30]]
    expected = {(index, 60 + index) for index in range(30)}
    assert found_pairs(batches, tmp_path) == found_pairs(batches, tmp_path, num_parts=10) == expected
    assert len(plan_band_tasks(30_000_000)) > 5 * NUM_BANDS


def test_groups_do_not_depend_on_the_order_of_pairs(tmp_path):
    rng = random.Random(4)
    pairs = np.array([sorted(rng.sample(range(200), 2)) for _ in range(150)])
    group = join(pairs, 200)
    # The same, one pair after another.
    expected = list(range(200))
    for _ in range(200):
        for left, right in pairs.tolist():
            expected[left] = expected[right] = min(expected[left], expected[right])
    assert group.tolist() == expected
    assert join(pairs[rng.sample(range(150), 150)], 200).tolist() == expected

    write_signed_texts([sign_documents(document_table([make(i, " ".join(WORDS)) for i in range(50)]))], "b", tmp_path)
    parts = [pairs[:50] // 2, pairs[50:] // 2]
    parts = [part[part[:, 0] < part[:, 1]] for part in parts]
    bounds = np.array([0, 100])
    first, second = (group_pairs(np.concatenate(order), ["b"], bounds, tmp_path) for order in (parts, parts[::-1]))
    assert first.group.tolist() == second.group.tolist()


# --- corpora ---


def long_passage(rng: random.Random, number: int = 40) -> str:
    return f"{' '.join(some_words(rng, number)).capitalize()}."


def reworded(passage: str) -> str:
    return f"{passage} Yes, it is."


@pytest.fixture
def build(tmp_path):
    """Build a corpus from lists of passages, in two sources of JSON lines, in units of five documents."""

    def build(texts: Sequence[Sequence[str]], *, workers: int = 1, **settings: Any) -> Manifest:
        half = len(texts) // 2
        for name, some in (("a", texts[:half]), ("b", texts[half:])):
            lines = [json.dumps({"text": "\n\n".join(passages)}) for passages in some]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        sources = [f"jsonl:{tmp_path / name}.jsonl" for name in "ab"]
        config = CorpusConfig(pages_per_split=5, **{"shard_bytes": 3_000, **settings})
        return build_corpus(sources, tmp_path / "corpus", config, ["--workers", str(workers)])

    return build


def documents_of(manifest: Manifest) -> dict[str, Document]:
    return {
        document.document_id: document
        for path in manifest.file_paths("documents-")
        for document in read_documents(path)
    }


@pytest.fixture
def texts():
    """Forty documents: b-11 to b-15 resemble a-1 to a-5, b-16 has a passage of a-6, b-17 two passages and no other."""
    rng = random.Random(6)
    texts = [[long_passage(rng) for _ in range(rng.randint(2, 4))] for _ in range(40)]
    for index in range(5):
        texts[30 + index] = [*texts[index][:-1], reworded(texts[index][-1])]
    texts[35][1] = texts[5][0]
    texts[36] = [texts[6][0], texts[7][1]]
    return texts


def test_near_documents_are_kept_and_counted_by_default(build, texts):
    manifest = build(texts)
    assert manifest.counts["documents"] == 40
    assert manifest.counts["dropped"] == {}
    assert manifest.counts["near_duplicates"] == {"documents": 5, "passages": 3}


def test_near_documents_are_dropped_and_listed(build, texts):
    manifest = build(texts, near_duplicates="drop")
    assert manifest.counts["dropped"] == {"near duplicate": 5}
    assert manifest.counts["near_duplicates"] == {"documents": 5, "passages": 3}
    lines = (manifest.path / DROPPED_NAME).read_text(encoding="utf-8").splitlines()[1:]
    assert lines == [f"b:b-{11 + index}\tnear duplicate of a:a-{1 + index}\t" for index in range(5)]
    documents = documents_of(manifest)
    assert len(documents) == manifest.counts["documents"] == 35
    assert documents["b:b-16"].sentences == tuple(texts[35])
    assert manifest.counts["passages"] == sum(map(len, texts)) - sum(map(len, texts[30:35]))


@pytest.mark.parametrize("near", ["keep", "drop"])
def test_content_does_not_depend_on_workers_and_shards(build, texts, near):
    one = build(texts, near_duplicates=near)
    assert len(one.file_paths("documents-")) > 2
    contents, documents = one.content, documents_of(one)
    if near == "drop":
        assert build(texts, near_duplicates=near, workers=2).content == contents
    whole = build(texts, near_duplicates=near, shard_bytes=1 << 20)
    assert len(whole.file_paths("documents-")) == 1
    assert documents_of(whole) == documents


def test_held_out_documents_are_near_to_no_training_document(build):
    rng = random.Random(7)
    originals = [some_words(rng, 120) for _ in range(60)]
    texts = [edited(words, rng, 0.01) for words in originals for _ in range(3)]
    rng.shuffle(texts)
    manifest = build([[" ".join(words)] for words in texts], held_out_per_mille=400)
    documents = documents_of(manifest)
    held_out, train = (
        [
            document.sentences[0].lower().rstrip(".").split()
            for document in documents.values()
            if document.split == split
        ]
        for split in ("held_out", "train")
    )
    assert len(held_out) + len(train) == manifest.counts["documents"] > 120
    assert 30 < len(held_out) < 90
    assert max(similarity(one, other) for one in held_out for other in train) < 0.8


def passages_by_split(manifest: Manifest) -> dict[str, set[tuple[str, ...]]]:
    found: dict[str, set[tuple[str, ...]]] = {"train": set(), "held_out": set()}
    for document in documents_of(manifest).values():
        found[document.split].update(document.passages)
    return found


@pytest.mark.parametrize("near", ["keep", "drop"])
def test_held_out_documents_share_no_passage_with_excerpts(build, near):
    rng = random.Random(9)
    long = [[long_passage(rng) for _ in range(6)] for _ in range(60)]
    excerpts = [[rng.choice(passages)] for passages in long]
    compilation = [passages[2] for passages in long[:5]]
    manifest = build([*long, *excerpts, compilation], held_out_per_mille=200, near_duplicates=near)
    assert manifest.counts["documents"] == 121
    assert 10 < manifest.counts["documents_held_out"] < 50
    found = passages_by_split(manifest)
    assert not found["train"] & found["held_out"]


def test_boilerplate_joins_no_documents(build):
    rng = random.Random(10)
    boilerplate = long_passage(rng)
    long = [[*(long_passage(rng) for _ in range(4)), boilerplate] for _ in range(60)]
    stubs = [[boilerplate, f"This is number {number} of {rng.choice(WORDS)}."] for number in range(12)]
    manifest = build([*long, *stubs], held_out_per_mille=300)
    documents = documents_of(manifest)
    assert len(documents) == 72
    assert {documents[f"b:b-{25 + number}"].split for number in range(12)} == {"train"}
    held_out = manifest.counts["documents_held_out"]
    assert 10 < held_out < 28
    # Beside the boilerplate nothing of the held-out text is trained on.
    found = passages_by_split(manifest)
    assert len(found["held_out"]) == 4 * held_out + 1
    assert len(found["train"] & found["held_out"]) == 1


def split_all(ids, per_mille, trained=()):
    """The splits of documents of which all are kept."""
    return split_codes(ids, per_mille, num_kept=len(ids), is_trained=np.isin(np.arange(len(ids)), trained))


@pytest.mark.parametrize(
    ("groups", "per_mille", "expected"),
    [
        # A split that would be empty gets a group, which stays together.
        ([900, 900, 950, 950], 5, [2, 2, 1, 1]),
        ([900] * 4, 5, [1] * 4),
        ([3] * 4, 5, [1] * 4),
        ([3, 3, 4, 4], 5, [2, 2, 1, 1]),
        # Where every group is large, the smaller one is held out.
        ([500] * 13 + [600] * 12, 5, [1] * 13 + [2] * 12),
        ([500] * 24 + [900], 5, [1] * 24 + [2]),
    ],
)
def test_groups_are_split_whole(groups, per_mille, expected):
    codes = split_all(np.array(groups, dtype=np.uint64), per_mille)
    assert codes.tolist() == expected


def test_large_group_is_trained_on():
    groups = [3] * 900 + list(range(1_000, 1_100))  # the large one is in the bucket of held-out documents
    codes = split_all(np.array(groups, dtype=np.uint64), 5)
    assert (codes[:900] == 1).all()
    assert (codes[900:] == 2).sum() == 5


def test_trained_group_is_held_out_last():
    ids = np.array([3, 3, 4, 900], dtype=np.uint64)
    assert split_all(ids, 5, trained=[1]).tolist() == [1, 1, 2, 1]
    assert split_all(ids, 1, trained=[1]).tolist() == [1, 1, 2, 1]
    assert split_all(ids[[0, 0, 3]], 5, trained=[1]).tolist() == [1, 1, 2]


def test_copies_are_compared_once(tmp_path):
    copies = document_table([make(index, " ".join(WORDS)) for index in range(50)])
    write_signed_texts([sign_documents(copies)], "b", tmp_path)
    bounds = np.array([0, 100])
    found = np.concatenate([find_pairs(task, ["b"], bounds, tmp_path) for task in plan_band_tasks(100)])
    assert len(found) == 2 * 49  # a document and its passage, each with the first one


def test_store_reads_are_limited_to_bands_and_candidates(store, tmp_path, monkeypatch):
    monkeypatch.setattr(near_duplicates, "_GAP_BYTES", 0)
    rng = random.Random(6)
    documents = [make(index, " ".join(some_words(rng, 40))) for index in range(500)]
    documents[7] = make(7, f"{documents[499].sentences[0]} and so on")
    batches = [[], documents, documents[:1]]  # the first one has no text
    expected = found_pairs(batches, tmp_path)
    scratch = to_path(f"{store}/scratch")
    read = 0
    cat_file = MemoryFileSystem.cat_file

    def count(self: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None) -> bytes:
        nonlocal read
        read += len(data := cat_file(self, path, start, end))
        return data

    for file in tmp_path.glob("*.npy"):
        upload(file, scratch / file.name)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", count)
    monkeypatch.setattr(MemoryFileSystem, "open", None)
    tasks = plan_band_tasks(1002)
    stems, bounds = [f"batch-{index}" for index in range(3)], np.array([0, 0, 1000, 1002])
    pairs, _ = unpack_pairs(np.concatenate([find_pairs(task, stems, bounds, scratch) for task in tasks]))
    assert expected == {(0, 500), (7, 499)}
    assert np.unique(pairs, axis=0).tolist() == [[0, 1000], [1, 1001], [14, 998], [15, 999]]
    hashes = len(tasks) * 2 * 8 * 1002  # of the band and of all values
    assert hashes < read < 1.5 * hashes  # eleven times as much are in the files


def test_packed_pairs_are_the_pairs():
    pairs = np.array([[0, 1], [5, 2**31 - 1], [2**31 - 2, 2**31 - 1]])
    are_near = np.array([True, False, True])
    unpacked, near = unpack_pairs(pack_pairs(pairs[:, 0], pairs[:, 1], are_near))
    assert unpacked.tolist() == pairs.tolist()
    assert near.tolist() == are_near.tolist()


def test_more_texts_than_packed_pairs_can_number_are_refused():
    assert plan_band_tasks(2**31)
    with pytest.raises(UsageError, match="2147483649 documents and passages to compare, expected at most 2147483648"):
        plan_band_tasks(2**31 + 1)


def test_task_does_not_grow_with_the_number_of_batches():
    def batches(number: int) -> list[PageBatch]:
        counts: dict[str, Any] = {"counts": {}, "dropped": {}, "dropped_elements": {}, "lost_templates": {}}
        rest = counts | {"number": 0, "is_last": True}
        return [
            PageBatch(split=index, stem=f"batch-{index:06d}-000000", documents=3, texts=9, **rest)
            for index in range(number)
        ]

    few, many = (plan_comparisons(batches(number)) for number in (1, 5_000))
    assert len(pickle.dumps(many)) == len(pickle.dumps(few))


def test_task_holds_about_fifty_bytes_per_text(tmp_path):
    number = 200_000
    bands = combine(np.arange(NUM_BANDS + 1)[:, None], np.arange(number)[None, :])
    texts = np.zeros(number, dtype=[("document", "<i4"), ("passage", "<i4")])
    signed = SignedTexts(texts, bands, np.zeros((number, NUM_VALUES), dtype=np.uint8), np.zeros(number, dtype=np.int64))
    stems = [f"batch-{index}" for index in range(4)]
    for stem, part in zip(stems, np.split(np.arange(number), len(stems))):
        some = SignedTexts(signed.texts[part], bands[:, part], signed.low_bytes[part], signed.num_words[part])
        write_signed_texts([some], stem, tmp_path)
    bounds = np.arange(len(stems) + 1) * (number // len(stems))
    tasks = plan_band_tasks(number)
    for task in tasks[:2]:  # the first one also pairs texts with equal values
        tracemalloc.start()
        found = find_pairs(task, stems, bounds, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(found) == 0
        assert peak / number < 64
