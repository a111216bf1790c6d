"""A modern encoder in every task, and in what reads models: predictions, features, attention, exams, ONNX, registry."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentence_transformers
import tiny_tasks
import torch
import transformers

from bert_model.cli import main
from bert_model.finetuning.search import Initialization, Setting, Trial
from bert_model.finetuning.task_model import load_task_model
from bert_model.finetuning.trial import TrialJob, initial_model
from bert_model.inference.attention import attention_weights
from bert_model.inference.features import write_features
from bert_model.inference.predict import load_predictor
from bert_model.kinds import kind_of
from bert_model.kinds.base import fitted_of
from bert_model.model.bert import BertForPreTraining, BertModel
from bert_model.model.config import BertConfig, ModernConfig
from bert_model.model.weights import load_model
from bert_model.registry.artifacts import _pretrained_logits
from bert_model.registry.model_card import write_readme
from bert_model.registry.operations import default_name
from bert_model.zero_shot.exam import take_exam
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import UsageError
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import TextExample
from bert_pipeline.tasks.task import TaskData

TASKS = ("sst2", "mrpc", "stsb", "squad2", "swag", "ner", "ner_features")
WINDOWS = {"num_hidden_layers": 3, "global_attn_every_n_layers": 2, "local_attention": 6, "initializer_range": 0.1}
LEARNED = {"sst2": 90.0, "mrpc": 50.0, "stsb": 70.0, "squad2": 50.0, "swag": 30.0, "ner": 90.0, "ner_features": 50.0}


def alike():
    """Data of sentence embeddings."""
    columns = {"columns": {"text_a": "a", "text_b": "b"}, "label_range": [1, 5], "folder": "x", "title": "alike"}
    metrics = {"metrics": ["spearman"], "main_metric": "spearman"}
    task = from_mapping(Task, {"name": "alike", "kind": "embedding", "pair": True, **columns, **metrics})
    examples = [
        TextExample(str(index), f"{name} lives in rome .", f"rome , {tiny_tasks.NAMES[index % 3]}", 1.0 + index % 5)
        for index, name in enumerate(tiny_tasks.NAMES * 6)
    ]
    return TaskData(task=task, train=examples, dev={"dev": examples})


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A pre-trained model with windows, a fine-tuned one for each kind of task, and one of a preset's size."""
    root = tmp_path_factory.mktemp("modern")
    base = tiny_tasks.make_model(root / "base", ModernConfig, **WINDOWS)
    size = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2}
    sized = tiny_tasks.make_model(root / "sized", ModernConfig, **size)
    for name in TASKS:
        tiny_tasks.tune(name, base, root / name)
    tiny_tasks.tune("sst2", sized, root / "tiny", epochs=[1.0])
    tiny_tasks.tune(alike(), base, root / "alike", epochs=[1.0])
    return root


@pytest.mark.parametrize("task", TASKS)
def test_every_kind_of_task_learns_and_answers_as_it_was_scored(task, models):
    model = load_task_model(models / task)
    data = tiny_tasks.task_data(task)
    examples = data.dev["dev"]
    kind = kind_of(model.task)
    encoded = kind.encode(examples, model.tokenizer, model.config)
    fitted = fitted_of(model.description) or None
    evaluation = kind.evaluate(examples, encoded, model.logits(encoded), model.config, fitted=fitted)
    assert evaluation.scores[model.task.main_metric] >= LEARNED[task]
    assert model.description["scores"][f"{task}/dev/{model.task.main_metric}"] == pytest.approx(
        evaluation.scores[model.task.main_metric]
    )
    name = BertConfig.from_directory(models / task).to_json(kind.architecture)
    assert f'"Modern{kind.architecture}"' in name


def test_fine_tuning_starts_from_the_head_of_the_masked_lm(models):
    base, _ = load_model(BertForPreTraining, models / "base")
    data, config = tiny_tasks.task_data("sst2"), tiny_tasks.configuration()
    job = TrialJob(
        trial=Trial(Initialization("pretrained", "pretrained"), Setting(1e-3, 8, 1.0), seed=1),
        task=data.task,
        config=config,
        model=models / "base",
        model_config=BertConfig.from_directory(models / "base", labels=data.task.labels),
    )
    model = initial_model(job, kind_of(data.task).encode(data.train, tiny_tasks.tokenizer(), config))
    assert torch.equal(model.head.dense.weight, base.head.dense.weight)
    assert torch.equal(model.model.layers[2].mlp.Wi.weight, base.model.layers[2].mlp.Wi.weight)


@pytest.mark.parametrize("task", ["base", "sst2", "mrpc", "squad2", "swag", "ner"])
def test_onnx_has_no_segments_and_answers_alike(task, models, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(models / task), "--output", str(tmp_path / "model.onnx")]) == 0
    assert "logits equal within" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [item.name for item in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert "seq_relationship_logits" not in [item.name for item in session.get_outputs()]
    if task == "mrpc":  # longer than the example of the export, and than the window
        model = load_task_model(models / task)
        encoded = kind_of(model.task).encode(tiny_tasks.task_data(task).dev["dev"], model.tokenizer, model.config)
        padded = encoded.padded(np.arange(encoded.num_units))
        inputs = {name: padded[name].astype(np.int64) for name in ("input_ids", "attention_mask")}
        np.testing.assert_allclose(session.run(None, inputs)[0], model.logits(encoded), atol=1e-4)


def test_features_and_attention_are_those_of_transformers(models, tmp_path):
    (tmp_path / "in.txt").write_text("the film was fine .\na song\tthe meal was sour .\n")
    assert write_features(models / "base", str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-1, 0, 2)) == 2
    theirs = transformers.AutoModel.from_pretrained(models / "base", attn_implementation="eager").eval()
    tokens = tiny_tasks.tokenizer().tokens
    for row in pq.read_table(tmp_path / "out.parquet").to_pylist():
        ids = torch.tensor([[tokens.index(token) for token in row["tokens"]]])
        with torch.no_grad():
            states = theirs(ids, output_hidden_states=True).hidden_states
        for layer in (3, 0, 2):
            np.testing.assert_allclose(np.array(row[f"layer_{layer}"]), states[layer][0].numpy(), atol=1e-5)
    encoder, _ = load_model(BertModel, models / "base")
    _, start, weights = attention_weights(encoder, tiny_tasks.tokenizer(), "a song", "the meal was sour .")
    with torch.no_grad():
        attentions = theirs(ids, output_attentions=True).attentions
    np.testing.assert_allclose(weights, np.stack([layer[0].numpy() for layer in attentions]), atol=1e-5)
    assert start == 4
    assert weights[1, 0, 0, 4] == 0.0  # outside of the window


def test_words_are_filled_in_and_next_sentences_refused(models):
    (answer,) = load_predictor("mlm", [models / "base"]).answer([{"text": "the [MASK] was fine ."}])
    assert len(answer["masks"]) == 1
    with pytest.raises(UsageError, match="its next-sentence head was never trained"):
        load_predictor("nsp", [models / "base"])
    with pytest.raises(UsageError, match="has no head for mlm; give a pre-trained model"):
        load_predictor("mlm", [models / "sst2"])


def test_exam_scores_single_texts_and_leaves_pairs_of_sentences_out(models):
    pairs = [
        Pair(pair_id=str(number), kind=kind, good=good, bad=("the the was .",), source=str(number))
        for number, (kind, good) in enumerate([("word", ("the film was fine .",)), ("next", ("a film .", "a song ."))])
    ]
    result = take_exam(models / "base", pairs)
    assert set(result.kinds) == {"word"}


def test_sentence_transformers_computes_the_same_vectors(models):
    texts = ["the film was fine .", "a song"]
    theirs = sentence_transformers.SentenceTransformer(str(models / "alike"), device="cpu").encode(texts)
    predictor = load_predictor("alike", [models / "alike"])
    model = predictor.models[0]
    ids = [[2, *model.tokenizer.encode(text), 3] for text in texts]
    for row, vector in zip(ids, theirs):
        with torch.no_grad():
            np.testing.assert_allclose(model.model(torch.tensor([row]))[0].numpy(), vector, atol=1e-5)


def test_names_and_cards_tell_the_architecture(models):
    assert default_name(models / "tiny") == "bert-modern-tiny-sst2"
    write_readme(models / "tiny")
    card = (models / "tiny" / "README.md").read_text()
    assert "library_name: transformers\npipeline_tag: text-classification\ntags:\n- modernbert\n" in card


def test_reference_outputs_of_a_pretrained_model_are_finite(models):
    assert np.isfinite(_pretrained_logits(models / "base")).all()
