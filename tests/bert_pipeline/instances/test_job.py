"""The vocabulary and instance jobs: equal content for any number of workers, and errors of one sentence."""

import collections
import dataclasses
import gzip
import json
import re
import shutil

import numpy as np
import pytest
from small_corpus import make_corpus, make_documents, make_tokenizer, make_vocabulary, write_documents

from bert_pipeline.errors import ArtifactError, BertError, UsageError
from bert_pipeline.instances import job as jobs_instances
from bert_pipeline.instances.job import build_instances, show_instances, tokenize_shard
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.instances.parquet import ParquetInstances
from bert_pipeline.instances.tfrecord import TfrecordInstances, TfrecordWriter, read_widths
from bert_pipeline.manifest import load_manifest, publishing
from bert_pipeline.randomness import key_of_text
from bert_pipeline.vocabulary import job as jobs_vocabulary
from bert_pipeline.vocabulary.encoder import SentenceEncoder
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig, WordCounter

ONE_WORKER = ["--workers", "1"]
SMALL = VocabularyConfig(vocab_size=120, num_unused=5)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    first, second = make_documents(60, held_out=[4, 9, 30]), make_documents(60, seed=1, held_out=[7])
    second = [dataclasses.replace(document, document_id=f"b{document.document_id}") for document in second]
    return make_corpus(tmp_path_factory.mktemp("corpus") / "corpus", [first, second])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("vocabulary") / "vocabulary")


@pytest.fixture(scope="module")
def static_both(corpus, vocabulary, tmp_path_factory):
    output = tmp_path_factory.mktemp("instances") / "instances"
    config = InstancesConfig(max_seq_length=32, dupe_factor=3, format="both", max_predictions_per_seq=4)
    return build_instances(corpus, vocabulary, output, config, ONE_WORKER)


@pytest.fixture
def builds(vocabulary, tmp_path):
    """Both jobs from a corpus to `out`: each is called with the corpus."""
    return (
        lambda corpus: build_instances(corpus, vocabulary, tmp_path / "out", InstancesConfig(), ONE_WORKER),
        lambda corpus: build_vocabulary(corpus, tmp_path / "out", SMALL, ONE_WORKER),
    )


def leftovers(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        (
            make_documents(20, held_out=[4]),
            ["pairs of the held_out split has a random next sentence", "--held-out-per-mille"],
        ),
        (
            [
                dataclasses.replace(document, sentences=document.sentences[:1], passage_starts=(0,))
                for document in make_documents(20)
            ],
            ["pairs of the train split have a random next sentence, because each document is a single"],
        ),
        (make_documents(20), []),
    ],
    ids=["one held out", "single sentences", "fine"],
)
def test_split_without_or_of_random_pairs_alone_is_a_warning(vocabulary, tmp_path, caplog, documents, expected):
    config = InstancesConfig(max_seq_length=32, dupe_factor=1)
    build_instances(make_corpus(tmp_path / "corpus", [documents]), vocabulary, tmp_path / "made", config, ONE_WORKER)
    assert len(caplog.messages) == bool(expected)
    assert all(part in caplog.text for part in expected)


@pytest.mark.slow
def test_content_does_not_depend_on_number_of_workers(vocabulary, tmp_path):
    parts = [make_documents(25, seed=seed, held_out=[seed]) for seed in range(5)]
    named = [
        [dataclasses.replace(d, document_id=f"{seed}:{d.document_id}") for d in part] for seed, part in enumerate(parts)
    ]
    corpus = make_corpus(tmp_path / "corpus", named)
    config = InstancesConfig(max_seq_length=32, dupe_factor=3, format="both", max_predictions_per_seq=4)
    rows = dataclasses.replace(config, pairs="none")
    builds = {
        "vocabulary": lambda output, options: build_vocabulary(corpus, output, SMALL, options),
        "instances": lambda output, options: build_instances(corpus, vocabulary, output, config, options),
        "rows": lambda output, options: build_instances(corpus, vocabulary, output, rows, options),
    }
    for name, build in builds.items():
        one, four = (build(tmp_path / f"{name}-{n}", ["--workers", str(n)]) for n in (1, 4))
        assert four.content == one.content
        assert (one.provenance["workers"], four.provenance["workers"]) == (1, 4)


make_shard, attempts = jobs_instances._make_shard, []


def make_shard_again(index, shard, *, output, **settings):
    """Make a shard twice after an attempt that fails."""
    attempts.append(index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TfrecordWriter, "write", lambda *_: (_ for _ in ()).throw(OSError("worker lost")))
        with pytest.raises(OSError, match="worker lost"):
            make_shard(index, shard, output=output, **settings)
    (output / "train" / f"instances-{index:05d}.parquet.torn").write_bytes(b"PAR1")
    first = make_shard(index, shard, output=output, **settings)
    again = make_shard(index, shard, output=output, **settings)
    assert again == first
    return again


def test_repeated_shard_has_equal_bytes(corpus, static_both, vocabulary, tmp_path, monkeypatch):
    """A runner may run failed work again, and start slow work a second time."""
    monkeypatch.setattr(jobs_instances, "_make_shard", make_shard_again)
    manifest = build_instances(
        corpus, vocabulary, tmp_path / "again", InstancesConfig(**static_both.configuration), ONE_WORKER
    )
    assert sorted(attempts) == [0, 1]
    assert manifest.content == static_both.content
    found = {path.relative_to(manifest.path).as_posix() for path in manifest.path.rglob("*") if path.is_file()}
    assert found == {*manifest.files, "manifest.json"}


def test_vocabulary_does_not_depend_on_partitions_and_repetitions(corpus, tmp_path, monkeypatch):
    whole = build_vocabulary(corpus, tmp_path / "whole", SMALL, ONE_WORKER)

    def twice(work):
        return lambda *element, **settings: (work(*element, **settings), work(*element, **settings))[1]

    for step in ("_count_shard", "_merge_partition"):
        monkeypatch.setattr(jobs_vocabulary, step, twice(getattr(jobs_vocabulary, step)))
    monkeypatch.setattr(jobs_vocabulary, "_BYTES_PER_PARTITION", 1000)
    assert build_vocabulary(corpus, tmp_path / "twice", SMALL, ONE_WORKER).content == whole.content


@pytest.mark.parametrize(
    ("module", "function", "message"),
    [
        (jobs_instances, "_make_shard", r"no result for documents-00001\.parquet \(60 rows\); found 1 of 2 shards"),
        (jobs_vocabulary, "_count_shard", r"no result for documents-00001\.parquet \(60 rows\); found 1 of 2"),
        (jobs_vocabulary, "_merge_partition", r"no result for merged-00001\.parquet; found \d+ of \d+ shards"),
    ],
)
def test_lost_shard_keeps_the_earlier_artifact(corpus, vocabulary, tmp_path, monkeypatch, module, function, message):
    def build():
        if module is jobs_vocabulary:
            return build_vocabulary(corpus, tmp_path / "made", SMALL, ONE_WORKER)
        config = InstancesConfig(max_seq_length=32, dupe_factor=1)
        return build_instances(corpus, vocabulary, tmp_path / "made", config, ONE_WORKER)

    earlier, work = build(), getattr(module, function)
    monkeypatch.setattr(jobs_vocabulary, "_BYTES_PER_PARTITION", 1000)

    def without_second(item, *path, **given):  # a shard's number and path, or a partition with its number
        return () if item == 1 or item != 0 and item[0] == 1 else work(item, *path, **given)

    monkeypatch.setattr(module, function, without_second)
    with pytest.raises(ArtifactError, match=message):
        build()
    assert load_manifest(tmp_path / "made", verify="sha256").sha256 == earlier.sha256
    assert leftovers(tmp_path) == ["made"]


def test_corpus_shard_with_other_rows_than_its_manifest_raises(builds, tmp_path):
    with publishing(tmp_path / "corpus", kind="corpus", configuration={}, inputs={}) as draft:
        write_documents(draft.path / "documents-00000.parquet", make_documents(30))
        draft.rows["documents-00000.parquet"] = 40
    for build in builds:
        with pytest.raises(ArtifactError, match=r"documents-00000\.parquet: found 30 rows, expected 40"):
            build(tmp_path / "corpus")
    assert leftovers(tmp_path) == ["corpus"]


def test_marks_that_lower_casing_would_remove_are_a_warning(corpus, tmp_path, caplog):
    # The second shard repeats the Thai word for "here", four of whose six characters are marks.
    documents = make_documents(60, held_out=[4])
    thai = [
        dataclasses.replace(
            item, document_id=f"th{item.document_id}", sentences=(" ".join(["ที่นี่"] * 5),) * len(item.sentences)
        )
        for item in documents
    ]
    marked = make_corpus(tmp_path / "corpus", [documents, thai])
    build_vocabulary(marked, tmp_path / "vocabulary", SMALL, ONE_WORKER)
    (message,) = [message for message in caplog.messages if "lower-casing" in message]
    assert re.match(
        r"\d+\.\d% of the characters are accents or vowel signs, which lower-casing removes; --cased", message
    )
    caplog.clear()
    build_vocabulary(corpus, tmp_path / "plain", SMALL, ONE_WORKER)
    build_vocabulary(marked, tmp_path / "cased", dataclasses.replace(SMALL, do_lower_case=False), ONE_WORKER)
    assert not [message for message in caplog.messages if "lower-casing" in message]


def test_vocabulary_uses_training_documents_only(corpus, tmp_path):
    manifest = build_vocabulary(corpus, tmp_path / "vocabulary", SMALL, ONE_WORKER)
    tokenizer = Tokenizer.from_directory(tmp_path / "vocabulary")
    assert tokenizer.vocab_size == manifest.counts["vocab_size"] == 120
    assert tokenizer.do_lower_case is True
    counters = {"train": WordCounter(True), "held_out": WordCounter(True)}
    for documents in (make_documents(60, held_out=[4, 9, 30]), make_documents(60, seed=1, held_out=[7])):
        for document in documents:
            counters[document.split].add(document.sentences)
    assert manifest.counts["words"] == counters["train"].counts().total()
    assert manifest.counts["distinct_words"] == len(counters["train"].counts())
    assert manifest.counts["quality_on"] == "held_out"
    assert manifest.counts["quality"]["words"] == counters["held_out"].counts().total()
    assert manifest.counts["quality"]["unk_share"] == 0
    assert sorted(manifest.files) == ["tokenizer_config.json", "vocab.txt"]


def test_vocabulary_is_compared_and_extended(corpus, vocabulary, tmp_path):
    base = make_tokenizer()
    (tmp_path / "base").mkdir()
    tokens = [*base.tokens[:1], "[unused0]", "[unused1]", *base.tokens[1:]]
    Tokenizer.from_tokens(tokens, do_lower_case=True).save(tmp_path / "base")
    path = tmp_path / "base" / "vocab.txt"
    manifest = build_vocabulary(
        corpus,
        tmp_path / "extended",
        VocabularyConfig(),
        ONE_WORKER,
        extend_vocabulary=path,
        compare_vocabulary=vocabulary / "vocab.txt",
    )
    extended = Tokenizer.from_directory(tmp_path / "extended")
    assert manifest.counts["added_words"] == 2
    assert extended.vocab_size == len(tokens)
    assert {*extended.tokens[1:3]}.isdisjoint(tokens)
    assert extended.tokens[3:] == tuple(tokens[3:])
    quality, reference = manifest.counts["quality"], manifest.counts["reference_quality"]
    assert quality["tokens_per_word"] < reference["tokens_per_word"]
    with pytest.raises(UsageError, match=r"vocab_size=500: extending keeps"):
        build_vocabulary(corpus, tmp_path / "x", VocabularyConfig(vocab_size=500), extend_vocabulary=path)
    with pytest.raises(UsageError, match="states True"):
        build_vocabulary(corpus, tmp_path / "x", VocabularyConfig(do_lower_case=False), extend_vocabulary=path)
    assert leftovers(tmp_path) == ["base", "extended"]


def test_documents_are_tokenized_by_split_without_empty_ones(tmp_path):
    documents = make_documents(5, held_out=[1])
    emptied = [
        dataclasses.replace(documents[2], sentences=("", "\u200b", "kaka.", " ")),
        dataclasses.replace(documents[3], sentences=("", "\u200b")),
    ]
    corpus = make_corpus(tmp_path / "corpus", [[*documents[:2], *emptied, documents[4]]])
    tokenizer = make_tokenizer()
    found, num_read = tokenize_shard(corpus / "documents-00000.parquet", SentenceEncoder(tokenizer))
    assert num_read == 5
    for split, expected in (("train", [documents[0], emptied[0], documents[4]]), ("held_out", [documents[1]])):
        sentences = [[ids for ids in tokenizer.encode_batch(d.sentences) if ids] for d in expected]
        tokens = found[split]
        assert tokens.tokens.tolist() == [index for document in sentences for ids in document for index in ids]
        assert np.diff(tokens.sentence_offsets).tolist() == [len(ids) for document in sentences for ids in document]
        assert np.diff(tokens.document_offsets).tolist() == [len(document) for document in sentences]
        assert tokens.keys.tolist() == [key_of_text(document.document_id) for document in expected]


def test_one_instance_shard_per_corpus_shard_and_split(static_both, vocabulary):
    assert sorted(static_both.files) == sorted(
        ["tokenizer_config.json", "vocab.txt"]
        + [
            f"{split}/instances-0000{shard}.{suffix}"
            for split in ("held_out", "train")
            for shard in (0, 1)
            for suffix in ("parquet", "tfrecord")
        ]
    )
    assert load_manifest(static_both.path, kind="instances", verify="sha256").sha256 == static_both.sha256
    assert "workers" not in json.dumps(static_both.content)
    copied = Tokenizer.from_directory(static_both.path)
    assert copied.sha256 == Tokenizer.from_directory(vocabulary).sha256 == static_both.inputs["vocabulary"]["sha256"]


def test_parquet_and_tfrecord_of_one_run_hold_the_same_instances(static_both):
    for name, entry in static_both.files.items():
        if not name.endswith(".parquet"):
            continue
        path = static_both.path / name
        with ParquetInstances(path) as left, TfrecordInstances(path.with_suffix(".tfrecord")) as right:
            assert left.num_instances == right.num_instances == entry["rows"]
            for group in range(left.num_row_groups):
                a, b = left.read_row_group(group), right.read_row_group(group)
                for field in a.__dataclass_fields__:
                    assert np.array_equal(getattr(a, field), getattr(b, field)), (name, field)


def test_instances_contain_text_of_their_split_only(static_both, corpus):
    """The runs of tokens between [CLS] and [SEP], unmasked, occur in documents of that split."""
    encoder = SentenceEncoder(Tokenizer.from_directory(static_both.path))
    for shard in (0, 1):
        documents, _ = tokenize_shard(corpus / f"documents-{shard:05d}.parquet", encoder)
        for split in ("train", "held_out"):
            text = " " + " ".join(map(str, documents[split].tokens.tolist())) + " "
            with ParquetInstances(static_both.path / split / f"instances-{shard:05d}.parquet") as reader:
                columns = reader.read_row_group(0)
            for row in range(columns.num_instances):
                ids = columns.input_ids[columns.offsets[row] : columns.offsets[row + 1]].copy()
                masked = slice(columns.masked_offsets[row], columns.masked_offsets[row + 1])
                ids[columns.masked_lm_positions[masked]] = columns.masked_lm_ids[masked]
                start = columns.segment_b_start[row]
                for part in (ids[1 : start - 1], ids[start:-1]):
                    assert f" {' '.join(map(str, part.tolist()))} " in text


def test_manifest_counts_equal_shards(static_both):
    tokenizer = Tokenizer.from_directory(static_both.path)
    for split in ("train", "held_out"):
        counts = static_both.counts[split]
        total = collections.Counter()
        seen, lengths = collections.Counter(), []
        for path in static_both.file_paths(f"{split}/"):
            if path.suffix != ".parquet":
                continue
            with ParquetInstances(path) as reader:
                for group in range(reader.num_row_groups):
                    columns = reader.read_row_group(group)
                    at = np.repeat(columns.offsets[:-1], np.diff(columns.masked_offsets)) + columns.masked_lm_positions
                    shown = columns.input_ids[at]
                    total.update(
                        instances=columns.num_instances,
                        tokens=len(columns.input_ids),
                        random_next=int(columns.is_random_next.sum()),
                        masked=len(at),
                    )
                    seen.update(mask=int((shown == tokenizer.mask_id).sum()))
                    seen.update(same=int((shown == columns.masked_lm_ids).sum()))
                    lengths += np.diff(columns.offsets).tolist()
        assert {name: counts[name] for name in ("instances", "tokens", "random_next")} == {
            name: total[name] for name in ("instances", "tokens", "random_next")
        }
        assert counts["padding_share"] == pytest.approx(1 - total["tokens"] / (32 * total["instances"]), abs=1e-6)
        assert counts["masked_share"] == pytest.approx(total["masked"] / total["tokens"], abs=1e-6)
        assert counts["masked_as_mask_share"] == pytest.approx(seen["mask"] / total["masked"], abs=1e-6)
        assert counts["masked_as_same_share"] == pytest.approx(seen["same"] / total["masked"], abs=1e-6)
        assert sum(counts["lengths"].values()) == total["instances"] == len(lengths)
        assert counts["unk_share"] == 0
    assert static_both.counts["train"]["documents"] == 116
    assert static_both.counts["held_out"]["documents"] == 4
    # One held-out document alone in its shard: no random next sentence is possible there.
    assert 0 < static_both.counts["held_out"]["random_next_share"] < 1


@pytest.mark.parametrize(
    ("values", "slots", "message"),
    [
        ({"max_seq_length": 128}, 20, ""),
        ({"max_seq_length": 512}, 77, ""),
        ({"max_seq_length": 400, "masked_lm_prob": 0.3}, 120, ""),
        ({"max_seq_length": 512, "max_predictions_per_seq": 76}, 76, ""),
        (
            {"max_seq_length": 512, "max_predictions_per_seq": 20},
            20,
            r"20 is too small for [45]\d % of the train instances: 9\.\d % of the tokens are predicted, not 15 %",
        ),
    ],
)
def test_static_masks_have_their_share_at_every_length(vocabulary, tmp_path, caplog, values, slots, message):
    corpus = make_corpus(tmp_path / "corpus", [make_documents(60, held_out=[1, 7])])
    config = InstancesConfig(format="tfrecord", dupe_factor=2, short_seq_prob=0.0, **values)
    counts = build_instances(corpus, vocabulary, tmp_path / "made", config, ONE_WORKER).counts["train"]
    assert read_widths(tmp_path / "made/train/instances-00000.tfrecord") == (values["max_seq_length"], slots)
    assert bool(message) == (counts["masked_share"] < 0.9 * config.masked_lm_prob)
    assert re.search(message, caplog.text) if message else "predicted" not in caplog.text


def test_tfrecord_is_compressed_on_request(corpus, vocabulary, tmp_path):
    built = [
        build_instances(
            corpus,
            vocabulary,
            tmp_path / compression,
            InstancesConfig(max_seq_length=32, dupe_factor=1, format="tfrecord", tfrecord_compression=compression),
            ONE_WORKER,
        )
        for compression in ("none", "gzip")
    ]
    plain, packed = ([path.read_bytes() for path in manifest.file_paths("train/")] for manifest in built)
    assert [gzip.decompress(content) for content in packed] == plain


def test_dynamic_and_static_masks_have_equal_pairs(static_both, corpus, vocabulary, tmp_path):
    config = InstancesConfig(max_seq_length=32, dupe_factor=3)
    dynamic = build_instances(corpus, vocabulary, tmp_path / "dynamic", config, ONE_WORKER)
    name = "train/instances-00001.parquet"
    with ParquetInstances(dynamic.path / name) as left, ParquetInstances(static_both.path / name) as right:
        plain, masked = left.read_row_group(0), right.read_row_group(0)
    assert not plain.is_masked
    at = np.repeat(masked.offsets[:-1], np.diff(masked.masked_offsets)) + masked.masked_lm_positions
    restored = masked.input_ids.copy()
    restored[at] = masked.masked_lm_ids
    assert np.array_equal(restored, plain.input_ids)
    assert np.array_equal(masked.segment_b_start, plain.segment_b_start)
    assert "masked_share" not in dynamic.counts["train"]


def test_no_held_out_documents_give_no_held_out_directory(vocabulary, tmp_path):
    corpus = make_corpus(tmp_path / "corpus", [make_documents(3)])
    manifest = build_instances(corpus, vocabulary, tmp_path / "out", InstancesConfig(dupe_factor=1), ONE_WORKER)
    assert manifest.counts["held_out"]["instances"] == 0
    assert not (tmp_path / "out/held_out").exists()


def test_instances_are_shown_as_text(static_both):
    tokenizer = Tokenizer.from_directory(static_both.path)
    with ParquetInstances(static_both.path / "train/instances-00000.parquet") as shard:
        columns = shard.read_row_group(0)
    shown = list(show_instances(static_both.path, 7))
    assert len(shown) == 7
    for row, text in enumerate(shown):
        first, second, facts = (line[3:] for line in text.splitlines())
        start, length = int(columns.segment_b_start[row]), int(np.diff(columns.offsets)[row])
        assert (len(first.split()), len(second.split())) == (start, length - start)
        assert facts == f"{length} tokens, {'a random' if columns.is_random_next[row] else 'the next'} passage follows"
        predicted = [word.partition("→")[2] for word in f"{first} {second}".split() if "→" in word]
        masked = slice(columns.masked_offsets[row], columns.masked_offsets[row + 1])
        assert predicted == [tokenizer.tokens[index] for index in columns.masked_lm_ids[masked]]
    assert {text.endswith("a random passage follows") for text in shown} == {True, False}


def test_rows_of_contiguous_text_are_equal_in_both_formats(corpus, vocabulary, tmp_path, caplog):
    config = InstancesConfig(max_seq_length=32, dupe_factor=2, format="both", pairs="none")
    built = build_instances(corpus, vocabulary, tmp_path / "rows", config, ONE_WORKER)
    assert caplog.messages == []  # all labels are equal, which is as it should be
    for split in ("train", "held_out"):
        for path in built.file_paths(f"{split}/"):
            if path.suffix == ".parquet":
                with ParquetInstances(path) as left, TfrecordInstances(path.with_suffix(".tfrecord")) as right:
                    ours, theirs = left.read_row_group(0), right.read_row_group(0)
                for field in dataclasses.fields(ours):
                    assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name)), field.name
                assert np.array_equal(ours.segment_b_start, ours.lengths)
    assert built.counts["random_next"] == 0
    lines = next(iter(show_instances(built.path, 1))).splitlines()
    assert (len(lines), lines[0].count("[SEP]"), lines[1].strip()) == (2, 1, f"{len(lines[0].split()) - 1} tokens")


def test_damaged_corpus_shard_raises_and_leaves_nothing(corpus, builds, tmp_path):
    damaged = tmp_path / "corpus"
    shutil.copytree(corpus, damaged)
    path = damaged / "documents-00001.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for build in builds:
        with pytest.raises(ArtifactError, match=r"documents-00001\.parquet: sha256 is") as caught:
            build(damaged)
        assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == ["corpus"]


def test_shards_are_those_of_the_manifest(corpus, vocabulary, static_both, builds, tmp_path):
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    shutil.copy(copy / "documents-00001.parquet", copy / "documents-00002.parquet")  # left by something else
    config = InstancesConfig(**static_both.configuration)
    assert build_instances(copy, vocabulary, tmp_path / "out", config, ONE_WORKER).content == static_both.content
    (copy / "documents-00000.parquet").unlink()
    for build in builds:
        with pytest.raises(ArtifactError, match=r"documents-00000\.parquet: is missing"):
            build(copy)


def test_directory_that_is_not_a_corpus_raises(builds, tmp_path):
    with publishing(tmp_path / "other", kind="vocabulary", configuration={}, inputs={}):
        pass
    (tmp_path / "foreign").mkdir()
    for name, message in (("other", "found a vocabulary, expected a corpus"), ("foreign", r"no manifest\.json")):
        for build in builds:
            with pytest.raises(ArtifactError, match=message):
                build(tmp_path / name)
    assert leftovers(tmp_path) == ["foreign", "other"]


def test_corpus_of_one_sentence_raises(vocabulary, tmp_path):
    (document,) = make_documents(1)
    lonely = dataclasses.replace(document, sentences=document.sentences[:1])
    corpus = make_corpus(tmp_path / "corpus", [[lonely]])
    with pytest.raises(BertError, match="no pair of sentences"):
        build_instances(corpus, vocabulary, tmp_path / "out", InstancesConfig(), ONE_WORKER)
    assert leftovers(tmp_path) == ["corpus"]
