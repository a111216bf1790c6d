"""Checkpoints that TensorFlow writes under google's variable names become directories with the same numbers."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from instances_fixture import make_tokenizer

from bert_model.cli import main
from bert_model.model.bert import BertForPreTraining
from bert_model.model.weights import load_model
from bert_pipeline.vocabulary.files import model_max_length
from bert_pipeline.vocabulary.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

GOOGLE_CONFIG = json.loads((Path(__file__).parents[2] / "data" / "bert_config.json").read_text())
"""The keys of google's bert_config.json."""


def google_variables(theirs):
    """The weights of a BertForPreTraining as google's modeling.py and optimization.py name and shape them."""
    variables = {"global_step": np.array(1_000_000, dtype=np.int64)}
    for name, parameter in theirs.named_parameters():
        values = parameter.detach().numpy()
        if name.endswith(".weight") and not re.search(r"embeddings\.|LayerNorm|seq_relationship", name):
            name, values = name.removesuffix("weight") + "kernel", values.T  # TensorFlow's dense layers
        name = re.sub(r"LayerNorm\.weight", "LayerNorm.gamma", name).replace("LayerNorm.bias", "LayerNorm.beta")
        name = name.replace("_embeddings.weight", "_embeddings")
        name = name.replace("seq_relationship.weight", "seq_relationship.output_weights")
        name = re.sub(r"(cls\.predictions|seq_relationship)\.bias", r"\1.output_bias", name)
        name = re.sub(r"layer\.(\d+)", r"layer_\1", name).replace(".", "/")
        variables |= {name: values, f"{name}/adam_m": values * 0, f"{name}/adam_v": values * 0 + 1}
    return variables


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(3)
    return transformers.BertForPreTraining(transformers.BertConfig(**GOOGLE_CONFIG)).eval()


def write_checkpoint(directory, variables):
    """Write what a download of google's has: bert_model.ckpt.*, bert_config.json and vocab.txt; return the prefix."""
    tensorflow = pytest.importorskip("tensorflow")
    directory.mkdir()
    tokenizer = make_tokenizer(60)
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in tokenizer.tokens))
    (directory / "bert_config.json").write_text(json.dumps(GOOGLE_CONFIG))
    v1 = tensorflow.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        for name, values in variables.items():
            v1.get_variable(name, initializer=tensorflow.constant(values))
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(directory / "bert_model.ckpt"))
    return directory / "bert_model.ckpt"


@pytest.mark.parametrize(
    ("name", "do_lower_case"), [("uncased_L-2_H-32_A-2", True), ("multi_cased_L-2_H-32_A-2", False)]
)
def test_converted_checkpoint_has_the_logits_of_transformers(name, do_lower_case, theirs, tmp_path, capsys):
    variables = google_variables(theirs)
    assert variables["bert/encoder/layer_1/intermediate/dense/kernel"].shape == (32, 64)
    assert variables["cls/seq_relationship/output_weights"].shape == (2, 32)
    checkpoint = write_checkpoint(tmp_path / name, variables)
    output = tmp_path / "converted"
    assert main(["convert", str(checkpoint), "--output", str(output)]) == 0
    assert "0 ignored, 0 newly initialized" in capsys.readouterr().out
    assert Tokenizer.from_directory(output).do_lower_case is do_lower_case

    assert model_max_length(output) == theirs.config.max_position_embeddings  # where transformers truncates
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    ours, report = load_model(BertForPreTraining, output)
    assert (report.created, report.dropped) == ((), ())
    with torch.no_grad():
        expected = theirs(ids)
        for model in (ours.eval(), transformers.AutoModelForPreTraining.from_pretrained(output).eval()):
            found = model(ids)
            torch.testing.assert_close(found.prediction_logits, expected.prediction_logits, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                found.seq_relationship_logits, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5
            )


def test_checkpoint_of_the_encoder_alone_is_converted_as_such(theirs, tmp_path):
    variables = {name: values for name, values in google_variables(theirs).items() if not name.startswith("cls/")}
    checkpoint = write_checkpoint(tmp_path / "mine", variables)
    assert main(["convert", f"{checkpoint}.index", "--cased", "--output", str(tmp_path / "converted")]) == 0
    assert json.loads((tmp_path / "converted" / "config.json").read_text())["architectures"] == ["BertModel"]
    assert load_model(BertForPreTraining, tmp_path / "converted")[1].source_architecture == "BertModel"


def test_case_that_nothing_states_is_asked_for(theirs, tmp_path, capsys):
    checkpoint = write_checkpoint(tmp_path / "mine", google_variables(theirs))
    assert main(["convert", str(checkpoint), "--output", str(tmp_path / "converted")]) == 2
    assert "add --cased or --no-cased" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "mine"), "--no-cased", "--output", str(tmp_path / "converted")]) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda variables: variables.pop("bert/pooler/dense/bias"), "missing bert.pooler.dense.bias"),
        (lambda variables: variables.update({"cls/squad/output_bias": np.zeros(2, np.float32)}), "cls.squad.bias"),
        (
            lambda variables: variables["cls/predictions/output_bias"].fill(np.nan),
            "not finite: cls.predictions.bias",
        ),
    ],
)
def test_variable_that_does_not_fit_is_named(change, message, theirs, tmp_path, capsys):
    variables = {name: values.copy() for name, values in google_variables(theirs).items()}
    change(variables)
    checkpoint = write_checkpoint(tmp_path / "uncased", variables)
    assert main(["convert", str(checkpoint), "--output", str(tmp_path / "converted")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "converted").exists()


def test_damaged_checkpoint_is_one_sentence(theirs, tmp_path, capsys):
    checkpoint = write_checkpoint(tmp_path / "uncased", google_variables(theirs))
    data = checkpoint.with_name("bert_model.ckpt.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:1000])
    assert main(["convert", str(checkpoint), "--output", str(tmp_path / "converted")]) == 1
    assert "TensorFlow cannot read this checkpoint" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "absent.ckpt"), "--output", str(tmp_path / "converted")]) == 1
    assert "absent.ckpt.index: does not exist" in capsys.readouterr().err


def test_missing_tensorflow_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # an import of it raises ImportError
    (tmp_path / "bert_config.json").write_text(json.dumps(GOOGLE_CONFIG))
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in make_tokenizer(60).tokens))
    (tmp_path / "bert_model.ckpt.index").touch()
    assert main(["convert", str(tmp_path), "--cased", "--output", str(tmp_path / "converted")]) == 2
    assert ".venv/bin/pip install -e '.[tensorflow]'" in capsys.readouterr().err
