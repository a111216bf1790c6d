"""Exported models answer in onnxruntime as they do here, for any number of texts and any length."""

import json
import re
import subprocess
import sys

import numpy as np
import other_tokenizers
import pytest
import tiny_tasks
import tokenizers
import torch

from bert_model.cli import main
from bert_model.finetuning.task_model import load_task_model
from bert_model.inference.predict import load_predictor
from bert_model.kinds import kind_of
from bert_model.model.config import BertConfig
from bert_model.model.heads import BertForTokenClassification
from bert_model.model.initialization import new_model
from bert_model.model.weights import save_model
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.vocabulary.tokenizer import Tokenizer

TASKS = ("sst2", "stsb", "squad1", "swag", "ner")
INPUTS = {
    "sst2": {"text": "the film was lovely ."},
    "stsb": {"text": "the meal was sour .", "text_b": "a song ."},
    "squad1": {"question": "where does anna live ?", "context": "Boris was in Oslo. Anna lives in Rome."},
    "swag": {"context": "anna lives .", "endings": ["the film was dull .", "the film was great ."]},
    "ner": {"text": "Anna lives in Oslo."},
}
WITHOUT_TORCH = """
import runpy, sys
sys.modules.update(dict.fromkeys(["torch", "transformers", "bert_model"]))  # None: cannot be imported
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder with a pre-trained model and a fine-tuned one for each form of input and head."""
    root = tmp_path_factory.mktemp("models")
    base = tiny_tasks.make_model(root / "pretrained")
    for name, task, changes in [
        *((task, task, {}) for task in TASKS),
        ("bilstm", "sst2", {"head": "bilstm"}),
        ("features", "ner_features", {}),
    ]:
        tiny_tasks.tune(task, base, root / name, epochs=[1.0], **changes)
    return root


@pytest.mark.parametrize("task", TASKS)
def test_onnx_answers_dev_examples_as_the_model_does(models, task, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(models / task), "--output", str(tmp_path / "model.onnx")]) == 0
    assert "logits equal within" in capsys.readouterr().out
    model = load_task_model(models / task)
    examples = tiny_tasks.task_data(task).dev["dev"]
    encoded = kind_of(model.task).encode(examples, model.tokenizer, model.config)
    padded = encoded.padded(np.arange(encoded.num_units))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    inputs = {item.name: padded[item.name].astype(np.int64) for item in session.get_inputs()}
    outputs = session.run(None, inputs)
    if model.task.kind == "span":
        outputs = [np.stack(outputs, axis=-1)]
    if model.task.kind in ("span", "tagging"):
        inside, tokens = encoded.token_indices(np.arange(encoded.num_units))
        found = np.zeros((len(encoded.input_ids), outputs[0].shape[-1]), dtype=np.float32)
        found[tokens] = outputs[0][inside]
    else:
        (found,) = outputs
    np.testing.assert_allclose(found, model.logits(encoded), atol=1e-4)
    assert b"/bert_model/" not in (tmp_path / "model.onnx").read_bytes()  # stack traces
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata["task"] == task
    assert json.loads(metadata["labels"]) == list(model.task.labels)


def test_onnx_file_and_its_tokenizer_answer_texts_as_the_model_does(models, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(models / "stsb"), "--output", str(tmp_path / "stsb.onnx")]) == 0
    model, example = load_task_model(models / "stsb"), tiny_tasks.task_data("stsb").dev["dev"][0]
    engine = tokenizers.Tokenizer.from_file(str(tmp_path / "stsb.tokenizer.json"))
    row = engine.encode(example.text_a, example.text_b)
    arrays = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
    session = onnxruntime.InferenceSession(tmp_path / "stsb.onnx")
    (found,) = session.run(None, {name: np.array([values]) for name, values in arrays.items()})
    expected = model.logits(kind_of(model.task).encode([example], model.tokenizer, model.config))
    np.testing.assert_allclose(found.reshape(-1), expected.reshape(-1), atol=1e-4)


def answer_of_example(file, *texts):
    """What the program beside an ONNX file prints."""
    program = file.with_name(f"{file.name.partition('.')[0]}.example.py")
    command = [sys.executable, "-I", "-c", WITHOUT_TORCH, str(program), str(file), *texts]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("task", TASKS)
def test_example_beside_the_file_answers_as_bert_predict_does(models, task, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    assert main(["export", str(models / task), "--output", str(tmp_path / "model.onnx")]) == 0
    (tmp_path / "input.jsonl").write_text(json.dumps(INPUTS[task]) + "\n")
    capsys.readouterr()
    assert main(["predict", task, "--model", str(models / task), "--input", str(tmp_path / "input.jsonl")]) == 0
    expected = json.loads(capsys.readouterr().out)["prediction"]
    texts = [text for value in INPUTS[task].values() for text in ([value] if isinstance(value, str) else value)]
    found = answer_of_example(tmp_path / "model.onnx", *texts)
    assert found == (pytest.approx(expected, abs=1e-4) if task == "stsb" else expected)


@pytest.mark.parametrize("kind", ["roberta", "unigram"])
def test_example_tags_the_words_of_a_text_with_any_tokenizer(kind, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    model, text = other_tokenizers.make(kind, tmp_path / "model"), "Anna didn't reply, (north of the river)."
    tokenizer, task = Tokenizer.from_directory(model), get_task("ner")
    shape = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "initializer_range": 0.3}
    config = BertConfig.from_preset("tiny", **shape, vocab_size=tokenizer.vocab_size, labels=task.labels)
    save_model(new_model(BertForTokenClassification, config, seed=0), model, tokenizer)
    assert main(["export", str(model), "--output", str(tmp_path / "model.onnx")]) == 0
    (expected,) = load_predictor("ner", [model]).answer([{"text": text}])
    assert len({*expected["tags"]}) > 1
    assert answer_of_example(tmp_path / "model.onnx", text) == expected["tags"]


def test_int8_file_is_written_with_the_score_before_and_after(models, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    examples, model = tiny_tasks.task_data("sst2").dev["dev"], load_task_model(models / "sst2")
    lines = ["sentence\tlabel", *(f"{example.text_a}\t{example.label}" for example in examples)]
    (tmp_path / "dev.tsv").write_text("\n".join(lines) + "\n")
    file, quantized = tmp_path / "model.onnx", tmp_path / "model.int8.onnx"
    options = ["--quantize", "int8", "--data", str(tmp_path / "dev.tsv")]
    assert main(["export", str(models / "sst2"), "--output", str(file), *options]) == 0
    after, before = map(
        float, re.findall(r"accuracy ([\d.]+), before ([\d.]+), on 24 examples", capsys.readouterr().out)[0]
    )
    kind = kind_of(model.task)
    encoded = kind.encode(examples, model.tokenizer, model.config)
    logits = model.logits(encoded)
    assert before == pytest.approx(kind.evaluate(examples, encoded, logits, model.config).scores["accuracy"], abs=0.01)
    padded = encoded.padded(np.arange(encoded.num_units))
    session = onnxruntime.InferenceSession(quantized)
    (found,) = session.run(None, {item.name: padded[item.name] for item in session.get_inputs()})
    assert (found.argmax(axis=-1) == logits.argmax(axis=-1)).mean() > 0.9
    assert abs(after - before) <= 10.0
    assert not np.allclose(found, logits, atol=1e-5)
    assert quantized.stat().st_size < file.stat().st_size
    assert answer_of_example(quantized, *INPUTS["sst2"].values()) == answer_of_example(file, *INPUTS["sst2"].values())


@pytest.mark.parametrize("task", ["squad1", "pretrained"])
def test_int8_without_data_tells_how_the_logits_differ(models, task, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    export = ["export", str(models / task), "--output", str(tmp_path / "model.onnx")]
    assert main([*export, "--quantize", "int8"]) == 0
    assert re.search(r"model.int8.onnx: [\d,]+ bytes, logits differ by up to [\de.-]+", capsys.readouterr().out)
    assert main([*export, "--data", str(tmp_path / "dev.tsv")]) == 2
    assert "--data: needs --quantize" in capsys.readouterr().err


def test_onnx_of_a_pretrained_model_has_both_heads(models, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    assert main(["export", str(models / "pretrained"), "--output", str(tmp_path / "model.onnx")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    ids = np.full((3, 64), 7)  # the greatest length
    outputs = session.run(None, {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0})
    assert [output.shape for output in outputs] == [(3, 64, len(tiny_tasks.TOKENS)), (3, 2)]


def test_model_with_one_segment_is_exported(tmp_path):
    pytest.importorskip("onnxruntime")
    model = tiny_tasks.make_model(tmp_path / "model", type_vocab_size=1)
    assert main(["export", str(model), "--output", str(tmp_path / "model.onnx")]) == 0


def test_models_of_other_authors_are_exported_with_the_heads_they_have(models, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 44, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.BertConfig(**shape, intermediate_size=64, max_position_embeddings=64, num_labels=3)
    ids = np.arange(5, 35).reshape(3, 10)
    inputs = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
    for model_class in (transformers.BertForMaskedLM, transformers.BertForSequenceClassification):
        theirs = model_class(config).eval()
        theirs.save_pretrained(tmp_path / model_class.__name__)
        tiny_tasks.tokenizer().save(tmp_path / model_class.__name__)
        file = tmp_path / f"{model_class.__name__}.onnx"
        assert main(["export", str(tmp_path / model_class.__name__), "--output", str(file)]) == 0
        (found,) = onnxruntime.InferenceSession(file).run(None, inputs)
        with torch.no_grad():
            logits = theirs(**tensors).logits.numpy()
        # Rows of the embeddings without a token have no logit.
        num_tokens = len(tiny_tasks.TOKENS) if model_class is transformers.BertForMaskedLM else config.num_labels
        assert found.shape[-1] == num_tokens
        np.testing.assert_allclose(found, logits[..., :num_tokens], atol=1e-4)
    transformers.BertModel(config).save_pretrained(tmp_path / "encoder")
    assert main(["export", str(tmp_path / "encoder"), "--output", str(tmp_path / "encoder.onnx")]) == 2
    assert "an encoder without a head" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "reason"), [("bilstm", "head=bilstm"), ("features", "feature-based tagger")])
def test_models_that_onnx_does_not_hold_are_refused_by_name(models, name, reason, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    assert main(["export", str(models / name), "--output", str(tmp_path / "model.onnx")]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_export_that_computes_something_else_is_not_written(models, tmp_path, capsys, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("bert_model.conversion.onnx.TOLERANCE", -1.0)
    assert main(["export", str(models / "sst2"), "--output", str(tmp_path / "model.onnx")]) == 1
    assert "its logits in ONNX differ by" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_missing_package_is_named_with_its_extra(models, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(models / "sst2"), "--output", str(tmp_path / "model.onnx")]) == 2
    assert "package onnx: .venv/bin/pip install -e '.[onnx]'" in capsys.readouterr().err
