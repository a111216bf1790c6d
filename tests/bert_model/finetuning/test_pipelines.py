"""Model directories behave in transformers' pipelines as they do here, with long, empty and many inputs."""

import dataclasses
import json

import numpy as np
import pytest
import tiny_tasks
import torch
from huggingface_hub import ModelCard

from bert_model.finetuning import task_model
from bert_model.inference.predict import PretrainingPredictor, load_predictor
from bert_model.kinds import kind_of
from bert_model.model.config import BertConfig
from bert_model.model.heads import BertForSequenceClassification
from bert_model.model.weights import load_model
from bert_model.registry import artifacts
from bert_model.registry.model_card import write_readme
from bert_pipeline.manifest import load_manifest
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import SpanExample, TextExample
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.vocabulary.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

LONG = "the film was lovely . " * 150
TEXTS = ["the film was lovely .", LONG, "", "a story was dull ."]
MODELS = {
    **{name: (name, {}) for name in ("sst2", "rte", "stsb", "squad1", "swag", "ner", "ner_features")},
    "bilstm": ("sst2", {"head": "bilstm"}),
    "bfloat16": ("sst2", {"precision": "bfloat16"}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder with a pre-trained model and fine-tuned ones of every kind."""
    root = tmp_path_factory.mktemp("models")
    base = tiny_tasks.make_model(root / "pretrained")
    for name, (task, changes) in MODELS.items():
        data = dataclasses.replace(tiny_tasks.task_data(task), downloaded=True)  # as the published files
        tiny_tasks.tune(data, base, root / name, **{"epochs": [3.0], **changes})
    return root


def test_fill_mask_has_our_candidates(models):
    fill = transformers.pipeline("fill-mask", model=str(models / "pretrained"))
    texts = ["the film was [MASK] .", "[MASK] lives in rome ."]
    (first, *_), (second, *_) = fill(texts, batch_size=2)
    ours = PretrainingPredictor(models / "pretrained", "mlm").answer([{"text": text} for text in texts])
    for found, answer in zip((first, second), ours, strict=True):
        assert found["token_str"] == answer["masks"][0][0]["token"]
        assert found["score"] == pytest.approx(answer["masks"][0][0]["probability"], abs=1e-5)
    assert fill("[MASK] " + LONG, tokenizer_kwargs={"truncation": True})


def assert_our_probabilities(task, model, texts, second=None):
    """Compare the probabilities of texts, or of pairs with the same second text."""
    classify = transformers.pipeline("text-classification", model=str(model))
    given = [{"text": text, "text_pair": second} for text in texts] if second else texts
    found = classify(given, truncation=True, batch_size=2, top_k=None)
    inputs = [{"text": text} | ({"text_b": second} if second else {}) for text in texts]
    for scores, answer in zip(found, load_predictor(task, [model]).answer(inputs), strict=True):
        assert {item["label"]: item["score"] for item in scores} == pytest.approx(answer["probabilities"], abs=1e-5)


def test_text_classification_has_our_probabilities(models):
    assert_our_probabilities("sst2", models / "sst2", TEXTS)
    assert_our_probabilities("rte", models / "rte", ["the film was lovely .", LONG, ""], "a film .")


def test_regression_has_our_scores_without_a_sigmoid(models):
    measure = transformers.pipeline("text-classification", model=str(models / "stsb"))
    inputs = [{"text": text, "text_pair": "a film ."} for text in TEXTS]
    found = [item["score"] for item in measure(inputs, truncation=True, batch_size=3)]
    ours = load_predictor("stsb", [models / "stsb"]).answer([{"text": text, "text_b": "a film ."} for text in TEXTS])
    assert found == pytest.approx([answer["score"] for answer in ours], abs=1e-4)
    assert max(found) > 1  # what no sigmoid returns


def test_multilabel_has_our_probabilities_of_each_label(models, tmp_path):
    task = Task(
        name="topics",
        title="Topics",
        kind="multilabel",
        labels=("film", "fine"),
        metrics=("micro_f1",),
        main_metric="micro_f1",
        folder="topics",
    )
    texts = [f"the {noun} was {word} ." for noun in tiny_tasks.NOUNS for word in ("fine", "dull")]
    examples = [
        TextExample(str(index), text, None, tuple(label for label in task.labels if label in text))
        for index, text in enumerate(texts)
    ]
    data = TaskData(task=task, train=examples * 3, dev={"dev": examples})
    tiny_tasks.tune(data, models / "pretrained", tmp_path / "out")
    assert_our_probabilities("topics", tmp_path / "out", TEXTS)
    write_readme(tmp_path / "out")
    assert ModelCard.load(tmp_path / "out" / "README.md").data.metrics == ["f1"]


def test_question_answering_model_has_our_logits(models):  # transformers 5 has no pipeline for it
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "squad1")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(models / "squad1").eval()
    question = "where does anna live ?"
    contexts = ["Boris was in Oslo. Anna lives in Rome.", LONG, "."]
    rows = tokenizer([question] * 3, contexts, truncation="only_second", padding=True, return_tensors="pt")
    assert rows["input_ids"].shape == (3, 48)
    with torch.no_grad():
        theirs = model(**rows)
    ours = task_model.load_task_model(models / "squad1")
    examples = [SpanExample("0", "", contexts[0], question, ()), SpanExample("1", "", contexts[2], question, ())]
    logits = ours.logits(kind_of(ours.task).encode(examples, ours.tokenizer, ours.config))
    lengths = rows["attention_mask"][[0, 2]].sum(1).tolist()
    for found, column in ((theirs.start_logits, 0), (theirs.end_logits, 1)):
        expected = np.concatenate([found[0, : lengths[0]], found[2, : lengths[1]]])
        assert logits[:, column] == pytest.approx(expected, abs=1e-5)


def test_token_classification_truncates_long_sentences(models):
    tag = transformers.pipeline("token-classification", model=str(models / "ner"), ignore_labels=[])
    sentences = ["Anna lives in Rome .", LONG]
    short, long = tag(sentences, batch_size=2)
    (ours,) = load_predictor("ner", [models / "ner"]).answer([{"text": "Anna lives in Rome ."}])
    assert [item["entity"] for item in short] == ours["tags"]
    assert [item["score"] for item in short] == pytest.approx(ours["probabilities"], abs=1e-5)
    assert len(long) == 46  # max_seq_length of 48 without [CLS] and [SEP]
    assert tag([""]) == [[]]


def test_multiple_choice_model_has_our_probabilities(models):
    tokenizer = transformers.AutoTokenizer.from_pretrained(models / "swag")
    model = transformers.AutoModelForMultipleChoice.from_pretrained(models / "swag").eval()
    contexts = ["anna lives .", LONG, ""]
    endings = ["the film was great .", "the story was dull ."]
    pairs = [(context, ending) for context in contexts for ending in endings]
    rows = tokenizer(*map(list, zip(*pairs, strict=True)), truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**{name: tensor.view(3, 2, -1) for name, tensor in rows.items()}).logits
    ours = load_predictor("swag", [models / "swag"]).answer([{"context": c, "endings": endings} for c in contexts])
    assert logits.softmax(-1).numpy() == pytest.approx(np.array([a["probabilities"] for a in ours]), abs=1e-5)


def test_encoder_of_a_feature_based_tagger_opens_as_one(models):
    features = transformers.pipeline("feature-extraction", model=str(models / "ner_features"))
    assert np.shape(features(LONG, truncation=True)) == (1, 48, 32)


def test_transformers_refuses_a_bilstm_that_it_would_drop(models):
    with pytest.raises(ValueError, match="bert_bilstm"):
        transformers.pipeline("text-classification", model=str(models / "bilstm"))
    document = json.loads((models / "bilstm" / "config.json").read_text())
    assert document["architectures"] == ["BertBiLSTMForSequenceClassification"]


def test_bilstm_directory_of_an_earlier_revision_still_loads(models, tmp_path):
    model, _ = load_model(BertForSequenceClassification, models / "bilstm")
    for path in (models / "bilstm").iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    document = json.loads((tmp_path / "config.json").read_text())
    document |= {"architectures": ["BertForSequenceClassification"], "model_type": "bert"}
    (tmp_path / "config.json").write_text(json.dumps(document))
    earlier, report = load_model(BertForSequenceClassification, tmp_path)
    assert not report.created
    for one, other in zip(model.parameters(), earlier.parameters(), strict=True):
        assert torch.equal(one, other)


def test_tokenizer_truncates_to_the_length_of_the_training_and_of_the_positions(models):
    for name, expected in (("sst2", 48), ("pretrained", BertConfig.from_directory(models / "pretrained"))):
        length = json.loads((models / name / "tokenizer_config.json").read_text())["model_max_length"]
        assert length == (expected if isinstance(expected, int) else expected.max_position_embeddings)
    tokenizer = Tokenizer.from_directory(models / "sst2")
    assert tokenizer.sha256 == tiny_tasks.tokenizer().sha256


def test_vocabulary_directory_states_no_length(tmp_path):
    tiny_tasks.tokenizer().save(tmp_path)
    assert "model_max_length" not in json.loads((tmp_path / "tokenizer_config.json").read_text())


@pytest.mark.parametrize(("has_instructions", "expected"), [(False, torch.float32), (True, torch.bfloat16)])
def test_bfloat16_model_predicts_in_what_the_processor_computes(models, monkeypatch, has_instructions, expected):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": has_instructions})
    seen = []
    model = task_model.load_task_model(models / "bfloat16")
    layer = model.model.bert.encoder.layer[0].intermediate.dense
    layer.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    predictor = load_predictor("sst2", [models / "bfloat16"])
    predictor.models = [model]
    predictor.answer([{"text": "the film was lovely ."}])
    assert set(seen) == {expected}
    # Reference outputs are compared between machines: they stay in the precision of the training.
    seen.clear()
    monkeypatch.setattr(artifacts, "load_task_model", lambda directory, **_: model)
    artifacts.reference_logits(models / "bfloat16")
    assert set(seen) == {torch.bfloat16}


CARDS = {
    "pretrained": None,
    "sst2": ("text-classification", ["nyu-mll/glue"], ["accuracy"]),
    "stsb": ("text-classification", ["nyu-mll/glue"], ["spearmanr", "pearsonr"]),
    "squad1": ("question-answering", ["rajpurkar/squad"], ["exact_match", "f1"]),
    "swag": ("multiple-choice", ["allenai/swag"], ["accuracy"]),
    "ner": ("token-classification", ["eriktks/conll2003"], ["f1", "precision", "recall", "accuracy"]),
    "bilstm": (None, ["nyu-mll/glue"], ["accuracy"]),
}


@pytest.mark.parametrize("name", [name for name in CARDS if name != "pretrained"])
def test_readme_has_the_header_of_the_hub(models, name):
    manifest = load_manifest(models / name, verify="sha256")
    write_readme(models / name, {"license": "Apache-2.0"})
    assert load_manifest(models / name, verify="sha256").sha256 == manifest.sha256  # the README may be edited
    card = ModelCard.load(models / name / "README.md")
    pipeline, datasets, metrics = CARDS[name]
    assert card.data.language == "en"
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == ("transformers" if pipeline else None)
    assert card.data.pipeline_tag == pipeline
    assert card.data.datasets == datasets
    assert sorted(card.data.metrics) == sorted(metrics)
    results = json.loads((models / name / "results.json").read_text())
    measured = {result.metric_type: result.metric_value for result in card.data.eval_results}
    main = metrics[0] if name != "squad1" else "f1"
    assert measured[main] == pytest.approx(results["metrics"][results["main_key"]]["mean"], abs=0.01)
    assert "## Scores" in card.text
    if pipeline is None:
        assert "transformers" not in card.text
    elif pipeline in ("question-answering", "multiple-choice"):
        assert f'AutoModelFor{pipeline.title().replace("-", "")}.from_pretrained("{name}")' in card.text
    else:
        assert f'pipeline("{pipeline}", model="{name}")' in card.text


def test_readme_without_a_license_says_so(models):
    write_readme(models / "sst2")
    assert ModelCard.load(models / "sst2" / "README.md").data.license == "unknown"
