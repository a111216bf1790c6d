"""Sentence embeddings: losses, ranks and vectors are those of sentence-transformers."""

import dataclasses
import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentence_transformers
import tiny_tasks
import torch
import yaml
from sentence_transformers.sentence_transformer import losses
from torch.nn import functional

from bert_model.cli import main
from bert_model.finetuning.task_model import load_task_model
from bert_model.inference.predict import CHUNK, load_predictor
from bert_model.kinds import kind_of
from bert_model.kinds.embedding import BLOCK
from bert_model.registry.model_card import write_readme
from bert_pipeline.configuration import from_mapping, to_mapping
from bert_pipeline.errors import ConfigurationError, UsageError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import TextExample
from bert_pipeline.tasks.task import TaskData, load_task_data

COMMON = {"kind": "embedding", "pair": True, "folder": "x"}
ALIKE = {"metrics": ["spearman", "pearson"], "main_metric": "spearman", "label_range": [1, 5]}
RANKED = {"metrics": ["accuracy"], "main_metric": "accuracy"}
LONG = "the film was fine . " * 20


def task_of(name, **changes):
    columns = {"text_a": "a", "text_b": "b", **({} if name == "alike" else {"label": ""})}
    fields = ALIKE if name == "alike" else RANKED
    return from_mapping(Task, {"name": name, "title": name, **COMMON, "columns": columns, **fields, **changes})


def pairs(count):
    """Texts and the same words in another order, alike where nothing is replaced."""
    found = []
    for index in range(count):
        name, place = tiny_tasks.NAMES[index % 4], tiny_tasks.PLACES[index // 4 % 4]
        other = place if index % 3 else tiny_tasks.PLACES[(index // 4 + 1) % 4]
        found.append(
            TextExample(str(index), f"{name} lives in {place} .", f"{other} , {name}", 5.0 if index % 3 else 1.0)
        )
    return found


def data_of(name):
    train, dev = pairs(48), pairs(24)
    if name == "ranked":
        train, dev = ([dataclasses.replace(e, label=1.0) for e in split if e.label == 5.0] for split in (train, dev))
    return TaskData(task=task_of(name), train=train, dev={"dev": dev})


@pytest.fixture(scope="module")
def models(model, tmp_path_factory):
    """A model of each loss, searched over two seeds, with texts cut to 16 tokens."""
    root = tmp_path_factory.mktemp("embeddings")
    for name in ("alike", "ranked"):
        settings = {"max_seq_length": 16, "seeds": [1, 2], "epochs": [3.0], "keep": "all"}
        tiny_tasks.tune(data_of(name), model, root / name, **settings)
        write_readme(root / name)
    return root


def vectors_of(directory, texts, tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    output = tmp_path / "out.parquet"
    arguments = ["features", "--model", str(directory), "--input", str(tmp_path / "in.txt"), "--output", str(output)]
    assert main([*arguments, "--pool", "mean"]) == 0
    table = pq.read_table(output)
    assert table.column_names == ["id", "text", "text_b", "tokens", "layer_1"]
    return np.asarray(table["layer_1"].to_pylist(), dtype=np.float32)


@pytest.mark.parametrize("name", ["alike", "ranked"])
def test_sentence_transformers_computes_our_vectors(models, name, tmp_path):
    texts = ["the film was lovely .", LONG, "anna", *(text for example in pairs(9) for text in example.texts)]
    for directory in (models / name, models / name / "seeds" / "2"):
        theirs = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
        assert theirs.max_seq_length == 16
        expected = theirs.encode(texts)
        assert expected.dtype == np.float32
        assert np.abs(vectors_of(directory, texts, tmp_path) - expected).max() <= 1e-5
        ours = load_task_model(directory)
        examples = [TextExample("0", a, b) for a, b in zip(texts, texts[1:])]
        outputs = ours.logits(kind_of(ours.task).encode(examples, ours.tokenizer, ours.config))
        assert np.abs(outputs.reshape(-1, 2, 32) - np.stack([expected[:-1], expected[1:]], axis=1)).max() <= 1e-5
        answers = load_predictor(name, [directory]).answer([{"text": a, "text_b": b} for a, b in zip(texts, texts[1:])])
        cosines = theirs.similarity_pairwise(expected[:-1], expected[1:])
        assert [answer["cosine"] for answer in answers] == pytest.approx(cosines.tolist(), abs=1e-5)
        assert [answer.get("truncated", False) for answer in answers[:3]] == [True, True, False]
    assert "sentence_transformers" in (models / name / "README.md").read_text()


@pytest.mark.parametrize("name", ["alike", "ranked"])
def test_losses_are_those_of_sentence_transformers(models, name):
    kind, outputs = kind_of(task_of(name)), torch.randn(6, 16, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor(kind.targets(pairs(6)))
    assert labels.tolist() == [float(bool(index % 3)) for index in range(6)] or name == "ranked"
    theirs = sentence_transformers.SentenceTransformer(str(models / name), device="cpu")
    loss = losses.CosineSimilarityLoss if name == "alike" else losses.MultipleNegativesRankingLoss
    expected = loss(theirs).compute_loss_from_embeddings(list(outputs.unflatten(1, (2, 8)).unbind(1)), labels)
    tensors = {"input_ids": torch.arange(24).reshape(6, 2, 2), "labels": labels}
    found = kind.loss(outputs, tensors, None) / kind.num_terms(tensors, None)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_texts_that_belong_together_are_no_negatives():
    """As if their pairs were in different batches."""
    kind, outputs = kind_of(task_of("ranked")), torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    texts = {"other": [[1, 2], [3, 4], [5, 6], [7, 8]], "second": [[1, 2], [3, 2], [5, 6], [7, 8]]}
    texts["first"] = [[1, 2], [1, 4], [5, 6], [7, 8]]
    loss = {name: kind.loss(outputs, {"input_ids": torch.tensor(ids)[..., None]}, None) for name, ids in texts.items()}
    a, b = functional.normalize(outputs.reshape(4, 2, 8), dim=-1).unbind(1)
    apart = [functional.cross_entropy(20 * a[[own]] @ b[[own, 2, 3]].T, torch.tensor([0])) for own in (0, 1)]
    among = functional.cross_entropy(20 * a @ b.T, torch.arange(4), reduction="none")
    assert float(loss["other"]) == pytest.approx(float(among.sum()), rel=1e-5)
    expected = pytest.approx(float(sum(apart) + among[2:].sum()), rel=1e-5)
    assert (float(loss["second"]), float(loss["first"])) == (expected, expected)


def test_rank_is_that_among_the_other_texts_of_a_block():
    kind = kind_of(task_of("ranked"))
    examples = [TextExample(str(n), "a", text, 1.0) for n, text in enumerate("xyzx")]
    angles = np.array([[0.0, 0.1], [0.0, 0.2], [0.5, 0.5], [0.0, 0.4]])  # x is nearer to the last one's first text
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(4, 4).astype(np.float32)
    ranks = kind.decode(examples, None, vectors, {})
    assert ranks == {"0": 1, "1": 2, "2": 1, "3": 2}
    assert kind.score(examples, ranks) == {"accuracy": 50.0}
    # Equal vectors tell nothing: every other text counts as nearer.
    same = np.ones((4, 4), dtype=np.float32)
    assert kind.decode(examples, None, same, {}) == {"0": 3, "1": 4, "2": 4, "3": 3}
    assert kind.evaluate(examples, None, same, None).collapsed
    assert not kind.evaluate(examples, None, vectors, None).collapsed
    answers = kind.answer(examples, [(None, vectors), (None, same)], None, None)
    assert answers[2] == {"prediction": 1, "cosine": 1.0}
    assert CHUNK == BLOCK  # so that `bert predict` ranks as dev was ranked


def test_collapsed_similarities_are_noticed():
    kind, same = kind_of(task_of("alike")), np.ones((3, 4), dtype=np.float32)
    evaluation = kind.evaluate(pairs(3), None, same, None)
    assert (evaluation.collapsed, evaluation.scores) == (True, {"spearman": 0.0, "pearson": 0.0})


def test_good_ranks_are_not_taken_for_a_collapse():
    kind, rng = kind_of(task_of("ranked")), np.random.default_rng(1)
    examples = [TextExample(str(n), f"a{n}", f"b{n}", 1.0) for n in range(BLOCK + 10)]
    one = rng.normal(size=(len(examples), 8)).astype(np.float32)
    evaluation = kind.evaluate(examples, None, np.concatenate([one, one], axis=1), None)
    assert (evaluation.scores, evaluation.collapsed) == ({"accuracy": 100.0}, False)
    assert kind.baseline(examples, examples) == {"accuracy": pytest.approx(100 * 2 / len(examples))}
    chance = kind.evaluate(examples, None, rng.normal(size=(len(examples), 16)).astype(np.float32), None)
    assert chance.scores["accuracy"] < 3
    assert kind.statistics(examples, chance.predictions).mean() == pytest.approx(chance.scores["accuracy"])


def test_scores_are_above_the_baseline_and_stated_with_every_seed(models):
    for name, baseline in (("alike", 0.0), ("ranked", 100 / 16)):
        (entry, *_) = json.loads((models / name / "results.json").read_text())["metrics"].values()
        assert entry["majority"] == baseline
        assert (len(entry["values"]), entry["mean"] > entry["majority"]) == (2, True)
        assert {"modules.json", "1_Pooling/config.json"} <= load_manifest(models / name, verify="sha256").files.keys()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ranked", {"gradient_accumulation": 2}, "^ranked: found gradient_accumulation 2 of batches of 8, expected 1 "),
        ("ranked", {"batch_sizes": [1]}, "^ranked: .* of batches of 1, expected 1 of 2 or more: the pairs of a batch"),
        ("alike", {"head": "bilstm"}, "^alike: head: found bilstm, expected linear"),
    ],
)
def test_setting_that_cannot_be_trained_with_is_refused(model, tmp_path, name, settings, message):
    with pytest.raises(UsageError, match=message):
        tiny_tasks.tune(data_of(name), model, tmp_path / "out", **settings)
    assert not list(tmp_path.iterdir())


def test_similarities_accept_gradient_accumulation(model, tmp_path):
    rows = {}
    for parts in (1, 4):
        settings = {"gradient_accumulation": parts, "epochs": [1.0], "hidden_dropout": 0.0}
        tiny_tasks.tune(data_of("alike"), model, tmp_path / str(parts), **settings)
        rows[parts] = vectors_of(tmp_path / str(parts), ["the film was fine ."], tmp_path)
    assert rows[1] == pytest.approx(rows[4], abs=1e-4)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("alike", {"label_range": [0, 0]}, "label_range: found"),
        ("alike", {"metrics": ["accuracy"], "main_metric": "accuracy"}, "'accuracy' is no metric of embedding"),
        ("ranked", {**ALIKE}, "'spearman' is no metric of embedding without columns.label"),
        ("ranked", {"pair": False}, "pair: found false for embedding"),
        ("ranked", {"kind": "regression", **ALIKE}, "columns.label: found none for regression"),
    ],
)
def test_description_that_does_not_fit_is_refused(name, changes, message):
    with pytest.raises(ConfigurationError, match=message):
        task_of(name, **changes)


def test_file_of_two_columns_is_read_without_labels(tmp_path):
    for file in ("train.tsv", "dev.tsv"):
        (tmp_path / file).write_text("a\tb\nanna lives .\twho lives ?\nthe film\ta song\n")
    data = load_task_data(task_of("ranked", folder="."), tmp_path)
    assert data.train == [
        TextExample("0", "anna lives .", "who lives ?", 1.0),
        TextExample("1", "the film", "a song", 1.0),
    ]


def test_onnx_file_has_the_vectors(models, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(models / "alike"), "--output", str(tmp_path / "model.onnx")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    texts = ["the film was lovely .", "anna"]
    rows = sentence_transformers.SentenceTransformer(str(models / "alike"), device="cpu").tokenizer(
        texts, padding=True, return_tensors="np"
    )
    names = {item.name for item in session.get_inputs()}
    (found,) = session.run(["sentence_embedding"], {key: rows[key].astype(np.int64) for key in names})
    np.testing.assert_allclose(found, vectors_of(models / "alike", texts, tmp_path), atol=1e-5)


def test_model_of_sentence_transformers_answers_without_fine_tuning(model, tmp_path):
    """Its own limit of tokens applies, and a pooling that is no mean is refused."""
    theirs = sentence_transformers.SentenceTransformer(str(shutil.copytree(model, tmp_path / "base")), device="cpu")
    theirs.max_seq_length = 9
    theirs.save(str(tmp_path / "theirs"))
    shutil.copy(model / "vocab.txt", tmp_path / "theirs")
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(to_mapping(task_of("alike"))))
    predictor = load_predictor(str(tmp_path / "task.yaml"), [tmp_path / "theirs"])
    (answer,) = predictor.answer([{"text": LONG, "text_b": "the film ."}])
    expected = theirs.similarity_pairwise(theirs.encode([LONG]), theirs.encode(["the film ."]))
    assert (answer["cosine"], answer["truncated"]) == (pytest.approx(expected.item(), abs=1e-5), True)
    vectors = vectors_of(tmp_path / "theirs", [LONG], tmp_path)
    assert np.abs(vectors - theirs.encode([LONG])).max() <= 1e-5
    for pooling in ({"pooling_mode": "cls"}, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}):
        (tmp_path / "theirs" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        with pytest.raises(UsageError, match="1_Pooling/config.json: found .*, expected the mean of all tokens"):
            load_predictor(str(tmp_path / "task.yaml"), [tmp_path / "theirs"])
