"""Weights are read strictly: errors name the tensors, and reports list created and dropped heads."""

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from instances_fixture import make_tokenizer
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bert_model.model import weights
from bert_model.model.bert import BertForPreTraining, BertModel
from bert_model.model.config import BertConfig
from bert_model.model.heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_model.model.initialization import new_model
from bert_model.model.weights import (
    CLASSIFIER,
    HEADS,
    MASKED_LM,
    NEXT_SENTENCE,
    POOLER,
    fill_model,
    load_model,
    read_weights,
    save_model,
)
from bert_pipeline.errors import InputError, UsageError

CONFIG = BertConfig.from_preset("tiny", vocab_size=60, max_position_embeddings=32)


def test_full_disk_leaves_no_file_and_names_what_is_needed(tmp_path, monkeypatch):
    def save(tensors, path, metadata):
        path.write_bytes(b"the beginning")
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(weights, "save_file", save)
    with pytest.raises(OSError, match=r"No space left on device\); it needs about 40 bytes, [\d,]+ are free") as raised:
        weights.save_tensors({"a": torch.zeros(10)}, tmp_path / "model.safetensors")
    assert raised.value.filename == str(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def saved(tmp_path):
    """A saved BertForPreTraining."""
    directory = tmp_path / "saved"
    directory.mkdir()
    save_model(new_model(BertForPreTraining, CONFIG, seed=1), directory, make_tokenizer(60))
    return directory


def padded(directory, num_rows):
    """Write a model for 60 tokens whose rows without a token would win every prediction."""
    model = new_model(BertForPreTraining, dataclasses.replace(CONFIG, vocab_size=num_rows), seed=1)
    with torch.no_grad():
        model.cls.predictions.bias[60:] = 100.0
    directory.mkdir()
    save_model(model, directory, make_tokenizer(60))
    return directory


def test_rows_without_a_token_are_said_at_load_and_get_no_probability(tmp_path, caplog):
    model, _ = load_model(BertForPreTraining, padded(tmp_path / "padded", 64))
    assert "padded: its embeddings have 64 rows for the 60 tokens of its vocabulary; rows without" in caplog.text
    ids = torch.arange(10)[None]
    assert model.eval()(ids).prediction_logits.shape == (1, 10, 60)

    # Nor in the loss, whose gradients leave these rows as they are.
    model(ids).prediction_logits.logsumexp(-1).sum().backward()
    gradients = model.cls.predictions.bias.grad, model.bert.embeddings.word_embeddings.weight.grad
    assert all(gradient is not None and not gradient[60:].any() for gradient in gradients)
    assert all(gradient is not None and gradient[:60].any() for gradient in gradients)

    # Another number of rows may mean that the vocabulary lost a line.
    load_model(BertModel, padded(tmp_path / "odd", 61))
    assert "61 rows for the 60 tokens of its vocabulary, which is no multiple of 8" in caplog.text


def test_vocabulary_with_more_tokens_than_rows_is_refused_at_every_load(saved):
    (saved / "tokenizer.json").unlink()
    with (saved / "vocab.txt").open("a", encoding="utf-8") as stream:
        stream.write("extra\n")
    for model_class in (BertModel, BertForPreTraining, BertForSequenceClassification):
        with pytest.raises(UsageError, match="its vocabulary has 61 tokens, its embeddings only 60 rows"):
            load_model(model_class, saved)


def rewrite(directory, change):
    """Replace tensors by those that `change` returns; None removes one."""
    tensors = load_file(directory / "model.safetensors")
    tensors |= change(tensors)
    save_file({name: item for name, item in tensors.items() if item is not None}, directory / "model.safetensors")


def same(one, other):
    ours, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_model_round_trips(saved):
    model, report = load_model(BertForPreTraining, saved)
    assert same(model, new_model(BertForPreTraining, CONFIG, seed=1))
    assert (report.created, report.dropped) == ((), ())
    assert len(report.loaded) == len(dict(model.named_parameters()))


def test_transformers_loads_saved_task_model_completely(saved):
    transformers = pytest.importorskip("transformers")
    theirs, info = transformers.AutoModelForPreTraining.from_pretrained(saved, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ours, _ = load_model(BertForPreTraining, saved)
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, expected = ours.eval()(ids), theirs.eval()(ids)
    torch.testing.assert_close(found.prediction_logits, expected.prediction_logits, atol=1e-5, rtol=1e-5)
    encoder = transformers.AutoModel.from_pretrained(saved).eval()
    with torch.no_grad():
        expected_hidden = encoder(ids).last_hidden_state
        torch.testing.assert_close(ours.bert(ids).sequence_output, expected_hidden, atol=1e-5, rtol=1e-5)


def shard(theirs, directory, as_bin):
    """Save a transformers model in shards with an index; returns their number."""
    if as_bin:
        from huggingface_hub import save_torch_state_dict

        theirs.config.architectures = [type(theirs).__name__]
        theirs.config.save_pretrained(directory)
        # the tied copy has a file's line of its own, as older releases of transformers wrote it
        save_torch_state_dict(theirs.state_dict(), directory, safe_serialization=False, max_shard_size="50kB")
        return len(list(directory.glob("pytorch_model-*.bin")))
    theirs.save_pretrained(directory, max_shard_size="50kB")
    return len(list(directory.glob("model-*.safetensors")))


@pytest.mark.parametrize("as_bin", [False, True])
def test_sharded_weights_are_read_by_their_index(tmp_path, as_bin):
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**shape, intermediate_size=64))
    assert shard(theirs, tmp_path, as_bin) > 2
    ours, report = load_model(BertForPreTraining, tmp_path)
    expected = dict(theirs.named_parameters())
    assert all(torch.equal(parameter, expected[name]) for name, parameter in ours.named_parameters())
    assert (report.created, report.dropped) == ((), ())
    lost = sorted(tmp_path.glob("*-00002-of-*"))[0]
    lost.unlink()
    index = f"{'pytorch_model.bin' if as_bin else 'model.safetensors'}.index.json"
    with pytest.raises(InputError, match=f"{index}: names the file '{lost.name}'"):
        load_model(BertForPreTraining, tmp_path)


def test_every_architecture_of_transformers_is_known():
    transformers = pytest.importorskip("transformers")
    named = {name for name in dir(transformers) if name.startswith("Bert") and name.endswith(ARCHITECTURE_ENDS)}
    assert named == set(HEADS)


ARCHITECTURE_ENDS = (
    "BertModel",
    "BertLMHeadModel",
    "PreTraining",
    "MaskedLM",
    "NextSentencePrediction",
    "Classification",
    "QuestionAnswering",
    "MultipleChoice",
)


@pytest.mark.parametrize("architecture", sorted(HEADS))
def test_every_transformers_architecture_has_equal_hidden_states(architecture, tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    theirs = getattr(transformers, architecture)(transformers.BertConfig(**shape, intermediate_size=40)).eval()
    theirs.save_pretrained(tmp_path)
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = getattr(theirs, "bert", theirs)(ids).last_hidden_state
    for model_class in (BertForPreTraining, BertForTokenClassification):
        model, report = load_model(model_class, tmp_path)
        assert report.source_architecture == architecture
        with torch.no_grad():
            found = model.eval().bert(ids).sequence_output
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_left_to_right_language_model_is_read_as_causal(tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    settings = transformers.BertConfig(**shape, intermediate_size=40, is_decoder=True)
    theirs = transformers.BertLMHeadModel(settings).eval()
    theirs.save_pretrained(tmp_path)
    ours, report = load_model(BertForPreTraining, tmp_path)
    assert ours.config.attention == "causal"
    assert all(name.startswith(("bert.pooler.", "cls.seq_relationship.")) for name in report.created)
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(ids).prediction_logits, theirs(ids).logits, atol=1e-5, rtol=1e-5)


def test_heads_are_created_and_dropped_by_architecture_pair(saved):
    config = BertConfig.from_directory(saved, labels=("a", "b", "c"))
    model, report = load_model(BertForSequenceClassification, saved, config=config, seed=4)
    assert report.created == ("classifier.bias", "classifier.weight")
    assert all(name.startswith("cls.") for name in report.dropped)
    assert "bert.pooler.dense.weight" in report.loaded
    assert model.classifier.weight.shape == (3, 128)
    again, _ = load_model(BertForSequenceClassification, saved, config=config, seed=4)
    assert torch.equal(model.classifier.weight, again.classifier.weight)
    assert 0 < model.classifier.weight.abs().max() <= 0.04
    assert model.classifier.bias.eq(0).all()


def test_classifier_of_another_task_kind_is_not_loaded(tmp_path):
    save_model(new_model(BertForTokenClassification, CONFIG, seed=1), tmp_path, make_tokenizer(60))
    _, report = load_model(BertForSequenceClassification, tmp_path)
    assert set(report.dropped) == {"classifier.bias", "classifier.weight"}
    assert {"classifier.bias", "classifier.weight", "bert.pooler.dense.bias"} <= set(report.created)


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: {QUERY: None}, f"missing {QUERY}"),
        (lambda found: {"cls.predictions.bias": None}, "missing cls.predictions.bias"),
        (lambda found: {"bert.encoder.layer.2.x": torch.zeros(1)}, "unexpected bert.encoder.layer.2.x"),
        (lambda found: {"bert.adapter.weight": torch.zeros(1)}, "unexpected bert.adapter.weight"),
        (lambda found: {QUERY: torch.zeros(3, 4)}, rf"{QUERY} has shape \(3, 4\), expected \(128, 128\)"),
        (lambda found: {QUERY: found[QUERY].to(torch.int8)}, f"{QUERY} is of type torch.int8, expected 16-bit floats"),
        (lambda found: {QUERY: found[QUERY].to(torch.float8_e4m3fn)}, f"{QUERY} is of type torch.float8_e4m3fn"),
        (lambda found: {f"module.{QUERY}": torch.zeros(128, 128)}, f"module.{QUERY} is stored twice"),
        (
            lambda found: {"classifier.weight": torch.zeros(1), "qa_outputs.bias": torch.zeros(1)},
            "holds the heads .*classifier.*qa_outputs",
        ),
        (
            lambda found: {"cls.predictions.decoder.weight": torch.zeros(60, 128)},
            r"decoder\.weight differs from bert\.embeddings\.word_embeddings\.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(saved, change, message):
    rewrite(saved, change)
    with pytest.raises(InputError, match=message):
        load_model(BertForPreTraining, saved)


def test_classifier_with_another_number_of_labels_is_refused(tmp_path):
    save_model(new_model(BertForSequenceClassification, CONFIG, seed=1), tmp_path, make_tokenizer(60))
    config = BertConfig.from_directory(tmp_path, labels=("a", "b", "c"))
    with pytest.raises(InputError, match="classifier.weight has shape"):
        load_model(BertForSequenceClassification, tmp_path, config=config)


Tensors = dict[str, torch.Tensor]


def without(tensors, *prefixes):
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(prefixes)}


def hub(tensors):
    """The tensors of google-bert/bert-base-uncased on the hub."""
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in without(tensors, "cls.predictions.decoder.bias").items()
    }
    return {"bert.embeddings.position_ids": torch.arange(32)[None], **old}


def prefixed(tensors):
    return {f"module.{name}": tensor for name, tensor in tensors.items()}


def headless(tensors):
    return {name.removeprefix("bert."): tensor for name, tensor in without(tensors, "cls.").items()}


PRETRAINING = {POOLER, MASKED_LM, NEXT_SENTENCE}
LAYOUTS: dict[str, tuple[Callable[[Tensors], Tensors], list[str] | None, set[str]]] = {
    "hub": (hub, ["BertForMaskedLM"], PRETRAINING),
    "data_parallel": (lambda tensors: prefixed(hub(tensors)), None, PRETRAINING),
    "headless": (lambda tensors: headless(hub(tensors)), ["BertForPreTraining"], {POOLER}),
    "without_pooler": (
        lambda tensors: without(tensors, "bert.pooler.", "cls.seq_relationship."),
        ["BertForPreTraining"],
        {MASKED_LM},
    ),
    "without_decoder": (lambda tensors: without(tensors, "cls.predictions.decoder."), [], PRETRAINING),
    "decoder_alone": (
        lambda tensors: without(tensors, "bert.embeddings.word_", "cls.predictions.bias"),
        None,
        PRETRAINING,
    ),
    "unknown_class": (dict, ["BertForEverything"], PRETRAINING),
}
"""A change of a BertForPreTraining's tensors, the `architectures` of config.json, and the heads that remain."""

SIX_CLASSES = (
    BertModel,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForTokenClassification,
)


@pytest.fixture(scope="module")
def theirs():
    """A BertForPreTraining of transformers, with weights large enough for differences to show."""
    transformers = pytest.importorskip("transformers")
    shape = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(1)
    return transformers.BertForPreTraining(
        transformers.BertConfig(**shape, intermediate_size=64, max_position_embeddings=32, initializer_range=0.3)
    ).eval()


def write_layout(theirs, layout, directory):
    """Write a model of transformers in a layout and return the heads that it has there."""
    change, architectures, heads = LAYOUTS[layout]
    tensors = change({name: tensor.clone() for name, tensor in theirs.state_dict().items()})
    save_file(tensors, directory / "model.safetensors")
    document = theirs.config.to_dict()
    del document["architectures"]
    document |= {} if architectures is None else {"architectures": architectures}
    (directory / "config.json").write_text(json.dumps(document))
    return heads


def heads_of(names):
    return {head for heads in HEADS.values() for head in heads if any(name.startswith(head) for name in names)}


@pytest.mark.parametrize("model_class", SIX_CLASSES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_decide_what_is_loaded(layout, model_class, theirs, tmp_path, caplog):
    held, wanted = write_layout(theirs, layout, tmp_path), set(HEADS[model_class.__name__])
    caplog.set_level("INFO")
    model, report = load_model(model_class, tmp_path)
    assert caplog.messages == [f"{tmp_path}: {report}"]
    assert (heads_of(report.created), heads_of(report.dropped)) == (wanted - held, held - wanted)
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected, hidden = theirs(ids), theirs.bert(ids).last_hidden_state
        pairs = [(getattr(model.eval(), "bert", model)(ids).sequence_output, hidden)]
        if model_class is BertForPreTraining and held >= {MASKED_LM}:
            pairs += [(model(ids).prediction_logits, expected.prediction_logits)]
        if model_class is BertForPreTraining and held >= {POOLER, NEXT_SENTENCE}:
            pairs += [(model(ids).seq_relationship_logits, expected.seq_relationship_logits)]
    for found, other in pairs:
        torch.testing.assert_close(found, other, atol=1e-5, rtol=1e-5)


def test_report_names_what_is_ignored_and_new(theirs, tmp_path):
    write_layout(theirs, "hub", tmp_path)
    _, report = load_model(BertForTokenClassification, tmp_path)
    assert str(report) == (
        "37 tensors used, 10 (bert.embeddings.position_ids, bert.pooler, cls.predictions, cls.seq_relationship) "
        "ignored, 2 (classifier) newly initialized"
    )


def test_untied_decoder_is_dropped_where_it_is_not_used(saved):
    rewrite(saved, lambda _: {"cls.predictions.decoder.weight": torch.zeros(60, 128)})
    _, report = load_model(BertForSequenceClassification, saved)
    assert "cls.predictions.decoder.weight" in report.dropped


@pytest.mark.parametrize("architectures", [None, ["BertModel"], ["BertForEverything"]])
@pytest.mark.parametrize("model_class", [BertForSequenceClassification, BertForTokenClassification])
def test_unnamed_task_head_is_told_by_its_pooler(saved, model_class, architectures):
    save_model(new_model(model_class, CONFIG, seed=1), saved, make_tokenizer(60))
    document = json.loads((saved / "config.json").read_text()) | {"architectures": architectures}
    (saved / "config.json").write_text(json.dumps(document))
    assert not load_model(model_class, saved)[1].created
    _, report = fill_model(model_class, CONFIG, read_weights(saved), new_task_head=True)
    assert heads_of(report.created) == heads_of(report.dropped) == {CLASSIFIER}


def test_non_finite_weights_are_refused_by_name(saved):
    def spoil(tensors):
        tensors["bert.embeddings.word_embeddings.weight"][59, 3] = float("nan")  # a token that the data may not have
        tensors["cls.predictions.bias"][7] = float("-inf")
        return tensors

    rewrite(saved, spoil)
    for model_class in SIX_CLASSES:
        with pytest.raises(
            InputError, match=r"not finite: bert\.embeddings\.word_embeddings\.weight, cls\.predictions"
        ):
            load_model(model_class, saved)


class Planted:
    """An object whose unpickling would write a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.write_text, (self.target, "planted")


def save_pickled(planted, directory):
    torch.save({"x": planted}, directory / "pytorch_model.bin")


def save_plain_pickle(planted, directory):
    (directory / "pytorch_model.bin").write_bytes(pickle.dumps(planted, protocol=2))


def save_shard(planted, directory):
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"x": "pytorch_model-1.bin"}}))
    torch.save({"x": planted}, directory / "pytorch_model-1.bin")


@pytest.mark.parametrize("save", [save_pickled, save_plain_pickle, save_shard])
def test_code_in_a_pickled_file_is_not_run(saved, tmp_path, save):
    (saved / "model.safetensors").unlink()
    save(Planted(tmp_path / "planted"), saved)
    with pytest.raises(InputError, match="not a file of tensors only"):
        load_model(BertForPreTraining, saved)
    assert not (tmp_path / "planted").exists()


def test_truncated_file_is_one_sentence(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="not a readable safetensors file"):
        load_model(BertForPreTraining, saved)


def test_shard_index_with_outside_path_is_refused(saved):
    (saved / "model.safetensors").rename(saved.parent / "outside.safetensors")
    index = {"weight_map": {"x": "../outside.safetensors"}}
    (saved / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="outside its own directory"):
        load_model(BertForPreTraining, saved)


def test_vocabulary_larger_than_the_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match="61 tokens"):
        save_model(new_model(BertForPreTraining, CONFIG, seed=1), tmp_path, make_tokenizer(61))
