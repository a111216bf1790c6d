"""The modern encoder equals transformers' ModernBert in values and gradients, and computes only what is read."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from four_sequences import LENGTHS, losses_and_gradients, packed, padded
from instances_fixture import make_tokenizer
from safetensors.torch import load_file, save_file
from torch.nn import functional
from varlen_on_cpu import varlen_on_cpu

from bert_model.model import modern, unpadding
from bert_model.model.bert import BertForPreTraining, BertModel
from bert_model.model.config import BertConfig, ModernConfig
from bert_model.model.heads import (
    BertForEmbedding,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model, write_weights
from bert_model.pretraining import packing
from bert_model.training.gradients import compile_layers
from bert_model.training.optimizer import is_decayed
from bert_model.training.throughput import StepCounts, training_flops
from bert_pipeline.errors import ConfigurationError, InputError

transformers = pytest.importorskip("transformers")

TOLERANCE = 2e-5
SHAPES: dict[str, dict[str, Any]] = {
    "all global": {},
    "local": {"num_hidden_layers": 4, "global_attn_every_n_layers": 3, "local_attention": 8, "local_rope_theta": 500.0},
    "biases": {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True},
    "narrow": {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 40, "global_rope_theta": 160_000.0},
    "relu": {"hidden_act": "relu", "classifier_activation": "silu", "layer_norm_eps": 1e-3},
}
IDS = torch.randint(5, 90, (4, 24), generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(24) < LENGTHS[:, None]).long()


def small_config(**changes):
    return ModernConfig.from_preset("tiny", **{"vocab_size": 90, "max_position_embeddings": 40, **changes})


def changed(model):
    """Larger weights than initial ones, so that differences would show."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def pair(config, directory):
    """The same weights in this model and in transformers', read from its directory."""
    ours = changed(new_model(BertForPreTraining, config, seed=3))
    write_weights(dict(ours.named_parameters()), config, "BertForMaskedLM", directory)
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert type(theirs).__name__ == "ModernBertForMaskedLM"
    assert not any(report.values())
    return ours.eval(), theirs.eval()


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_hidden_states_attentions_and_logits_equal_transformers(shape, has_mask, tmp_path):
    ours, theirs = pair(small_config(**SHAPES[shape]), tmp_path)
    inputs = {"input_ids": IDS, "attention_mask": MASK} if has_mask else {"input_ids": IDS}
    with torch.no_grad():
        found = ours.bert(**inputs, output_hidden_states=True, output_attentions=True)
        logits = ours(**inputs).prediction_logits
        expected = theirs(**inputs, output_hidden_states=True, output_attentions=True)
    assert len(found.hidden_states) == len(expected.hidden_states)
    assert len(found.attentions) == len(expected.attentions)
    tokens = MASK.bool()
    for one, other in zip(found.hidden_states, expected.hidden_states):
        torch.testing.assert_close(one[tokens], other[tokens], atol=TOLERANCE, rtol=TOLERANCE)
    for one, other in zip(found.attentions, expected.attentions):
        torch.testing.assert_close(one.transpose(1, 2)[tokens], other.transpose(1, 2)[tokens], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits[tokens], expected.logits[tokens], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_at_masked_positions_equal_transformers(shape, unpadded, tmp_path):
    ours, theirs = pair(small_config(**SHAPES[shape]), tmp_path)
    inputs = padded()
    if not unpadded:
        inputs["token_indices"] = None
    losses = losses_and_gradients(ours, inputs)
    labels = torch.full((4, 24), -100).scatter(1, inputs["masked_lm_positions"], inputs["labels"])
    labels[2, 0] = -100  # where the padding of the positions is
    logits = theirs(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    loss.backward()
    torch.testing.assert_close(losses[0], loss, atol=1e-4, rtol=1e-5)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    names = [name for name, _ in ours.named_parameters()]
    assert set(names) == set(gradients)
    for name, gradient in zip(names, losses[2:]):
        scale = float(gradients[name].abs().max())
        torch.testing.assert_close(gradient / scale, gradients[name] / scale, atol=1e-5, rtol=0.0)


def test_padding_that_sees_no_token_leaves_no_trace(tmp_path):
    ours, _ = pair(small_config(**SHAPES["local"]), tmp_path)
    ids, mask = torch.cat([IDS[2:3]] * 2, 1)[:, :40], (torch.arange(40) < 8)[None]
    found = ours(ids, mask).prediction_logits
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found[:, :8], ours(ids[:, :8]).prediction_logits, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("shape", ["all global", "local"])
def test_packed_sequences_have_the_losses_and_gradients_of_padded_ones(shape, compiled):
    model = changed(new_model(BertForPreTraining, small_config(**SHAPES[shape]), seed=3)).train()
    expected = losses_and_gradients(model, padded())
    assert expected[1] == 0.0
    if compiled:
        compile_layers(model, packed=True, backend="aot_eager", fullgraph=True)
    with varlen_on_cpu() as calls:
        results = losses_and_gradients(model, packed())
    assert calls == [(96, 2, 64)] * model.config.num_hidden_layers
    for one, other in zip(results, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one / scale, other / scale, atol=1e-5, rtol=0.0)


def test_windows_are_packed_only_where_the_kernel_has_them(monkeypatch):
    config = small_config(**SHAPES["local"])
    monkeypatch.setattr(packing, "supports_varlen", lambda device: True)
    assert packing.can_pack(config, torch.device("cuda"), "bfloat16")
    monkeypatch.setattr(packing, "supports_windows", lambda: False)
    assert not packing.can_pack(config, torch.device("cuda"), "bfloat16")
    assert packing.can_pack(small_config(), torch.device("cuda"), "bfloat16")
    assert unpadding.supports_windows()


@pytest.mark.parametrize("shape", ["all global", "local"])
def test_recomputed_blocks_have_equal_gradients(shape):
    settings = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = new_model(BertForPreTraining, small_config(**SHAPES[shape] | settings), seed=3).train()
    results = []
    for recomputes in (False, True):
        model.bert.recomputes_blocks = recomputes
        torch.manual_seed(1)
        results.append(losses_and_gradients(model, padded()))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    torch.manual_seed(2)
    assert not torch.equal(losses_and_gradients(model, padded())[0], results[0][0])


def test_new_weights_have_the_deviations_of_transformers():
    config = small_config(hidden_size=256, num_attention_heads=4, num_hidden_layers=8)
    model = new_model(BertForPreTraining, config, seed=0)
    for name, parameter in model.state_dict().items():
        if parameter.dim() == 2:
            expected = 0.02 / 4 if name.endswith(("Wo.weight", "head.dense.weight")) else 0.02
            assert float(parameter.std()) == pytest.approx(0.88 * expected, rel=0.05), name  # cut at two deviations
            assert float(parameter.abs().max()) <= 2 * expected
    again = new_model(BertForPreTraining, config, seed=0)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters()))


def test_normalizations_and_biases_are_not_decayed():
    model = new_model(BertForPreTraining, small_config(norm_bias=True, attention_bias=True), seed=0)
    decayed = {name for name, _ in model.named_parameters() if is_decayed(name)}
    assert decayed == {name for name, parameter in model.named_parameters() if parameter.dim() == 2}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny", (2, 128, 2, 384)),
        ("mini", (4, 256, 4, 704)),
        ("small", (4, 512, 8, 1408)),
        ("base", (12, 768, 12, 2048)),
    ],
)
def test_own_sizes_see_the_whole_text(name, expected):
    config = ModernConfig.from_preset(name, vocab_size=90)
    assert (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
    ) == expected
    assert (config.global_attn_every_n_layers, config.global_rope_theta, config.max_position_embeddings) == (
        1,
        10_000.0,
        512,
    )
    assert config.preset_size == f"modern-{name}"


def test_longer_texts_take_windows_and_a_larger_base():
    config = ModernConfig.from_preset("tiny", max_position_embeddings=1024)
    assert (config.global_attn_every_n_layers, config.local_attention, config.global_rope_theta) == (3, 128, 160_000.0)
    other = ModernConfig.from_preset("tiny", max_position_embeddings=1024, global_attn_every_n_layers=1)
    assert other.global_attn_every_n_layers == 1


def test_operations_of_a_step_are_those_of_its_products():
    config = small_config()
    assert config.intermediate_size == 384
    plain = BertConfig.from_preset("tiny", vocab_size=90, intermediate_size=576)  # as many numbers
    counts = StepCounts(instances=4, tokens=70, squared_lengths=1500, predictions=11)
    assert training_flops(config, counts) == training_flops(plain, counts)


# --- heads ---

HEADS = [
    BertForSequenceClassification,
    BertForTokenClassification,
    BertForQuestionAnswering,
    BertForMultipleChoice,
]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("shape", ["all global", "local", "biases"])
@pytest.mark.parametrize("role", HEADS)
def test_task_heads_equal_transformers_in_logits_and_gradients(role, shape, pooling, tmp_path):
    labels = () if role in (BertForQuestionAnswering, BertForMultipleChoice) else ("a", "b", "c")
    config = small_config(**SHAPES[shape], labels=labels, classifier_pooling=pooling, max_position_embeddings=64)
    ours = changed(new_model(role, config, seed=1)).eval()
    save_model(ours, tmp_path, make_tokenizer(90))
    auto = getattr(transformers, f"AutoModel{role.__name__.removeprefix('Bert')}")
    theirs, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs).__name__ == f"Modern{role.__name__}"
    assert not any(report.values())
    ids = torch.randint(5, 90, (4, 3, 40), generator=torch.Generator().manual_seed(0))  # longer than the window
    mask = (torch.arange(40) < torch.tensor([[40], [33], [12], [25]])).long()[:, None].repeat(1, 3, 1)
    if role is not BertForMultipleChoice:
        ids, mask = ids[:, 0], mask[:, 0]
    found, expected = ours(ids, mask), theirs.eval()(ids, attention_mask=mask)
    if role is BertForQuestionAnswering:
        found, expected = torch.stack(found), torch.stack([expected.start_logits, expected.end_logits])
        found, expected = (item[:, mask.bool()] for item in (found, expected))
    else:
        expected = expected.logits
        if role is BertForTokenClassification:
            found, expected = found[mask.bool()], expected[mask.bool()]
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    for logits in (found, expected):
        logits.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        scale = float(gradients[name].abs().max())
        torch.testing.assert_close(parameter.grad / scale, gradients[name] / scale, atol=1e-5, rtol=0.0)

    # What transformers writes is read, with the same logits.
    theirs.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "vocab.txt").write_bytes((tmp_path / "vocab.txt").read_bytes())
    again, loading = load_model(role, tmp_path / "theirs")
    assert (loading.created, loading.dropped) == ((), ())
    assert all(torch.equal(one, other) for one, other in zip(again.parameters(), ours.parameters(), strict=True))


@pytest.mark.parametrize("role", [*HEADS, BertForEmbedding])
def test_task_models_take_the_head_of_the_masked_lm(role, tmp_path):
    ours, _ = pair(small_config(), tmp_path)
    loaded, report = load_model(role, tmp_path, seed=1)
    classifier = set() if role is BertForEmbedding else {"classifier.weight", "classifier.bias"}
    assert set(report.created) == classifier
    if role is BertForEmbedding:
        hidden = ours.bert(IDS, MASK).sequence_output * MASK[:, :, None]
        mean = hidden.sum(1) / MASK.sum(1, keepdim=True)
        torch.testing.assert_close(loaded.eval()(IDS, MASK), mean, atol=1e-5, rtol=1e-5)
        assert all(name.startswith("head.") or name == "decoder.bias" for name in report.dropped)
    else:
        assert torch.equal(loaded.head.dense.weight, ours.head.dense.weight)
        assert report.dropped == ("decoder.bias",)


def test_published_tokenizer_gives_our_ids(tmp_path):
    save_model(new_model(BertForPreTraining, small_config(), seed=1), tmp_path, tokenizer := make_tokenizer(90))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encoded = theirs("w3 w4 unknown", "w5")
    ids = tokenizer.encode_batch(["w3 w4 unknown", "w5"])
    expected = [tokenizer.cls_id, *ids[0], tokenizer.sep_id, *ids[1], tokenizer.sep_id]
    assert encoded["input_ids"] == expected
    transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)(**theirs("w3 w4", return_tensors="pt"))


# --- config.json ---

OLD = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
NEW = {
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 160000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
DOCUMENT = {"model_type": "modernbert", "num_hidden_layers": 4, "hidden_activation": "gelu", "norm_eps": 1e-5}


@pytest.mark.parametrize("generation", [OLD, NEW, {}], ids=["4.57", "5", "defaults"])
def test_both_generations_are_read_and_written(generation, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DOCUMENT | generation))
    config = BertConfig.from_directory(tmp_path)
    assert isinstance(config, ModernConfig)
    assert (config.global_attn_every_n_layers, config.global_rope_theta, config.local_rope_theta) == (3, 160000, 10000)
    assert (config.vocab_size, config.intermediate_size, config.max_position_embeddings) == (50368, 1152, 8192)
    written = json.loads(config.to_json("BertForMaskedLM"))
    assert OLD.items() <= written.items()
    assert NEW.items() <= written.items()
    assert written["architectures"] == ["ModernBertForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert BertConfig.from_directory(tmp_path) == config
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (theirs.layer_types, theirs.sliding_window) == (NEW["layer_types"], 64)
    assert theirs.rope_parameters["full_attention"]["rope_theta"] == 160_000
    assert not hasattr(theirs, "token_type_ids")


def test_a_small_vocabulary_without_a_padding_id_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DOCUMENT | {"vocab_size": 1000, "pad_token_id": None}))
    assert BertConfig.from_directory(tmp_path).pad_token_id == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 2}, "expected a full_attention in every n-th layer"),
        ({"decoder_bias": False}, "decoder_bias is False, expected True"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "the rope_type of full_attention is 'yarn'"),
    ],
)
def test_what_is_not_computed_is_refused(changes, message, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DOCUMENT | changes))
    with pytest.raises(InputError, match=message):
        BertConfig.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "causal"}, "attention: found 'causal', expected 'bidirectional' with architecture=modern"),
        ({"head": "bilstm"}, "head: found 'bilstm', expected 'linear'"),
        ({"num_attention_heads": 128}, "leaves heads of 1 numbers"),
        ({"local_atention": 4}, "local_attention"),
    ],
)
def test_settings_that_a_modern_encoder_lacks_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        small_config(**changes)


# --- weights ---


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "shards", "bare encoder"])
def test_directories_of_transformers_are_read(kind, tmp_path):
    ours, theirs = pair(small_config(**SHAPES["local"]), tmp_path)
    model_class = BertModel if kind == "bare encoder" else BertForPreTraining
    if kind == "bfloat16":
        theirs = theirs.bfloat16()
    source = theirs.model if kind == "bare encoder" else theirs
    source.save_pretrained(tmp_path / "theirs", max_shard_size="200KB" if kind == "shards" else "1GB")
    assert (len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1) == (kind == "shards")
    loaded, report = load_model(model_class, tmp_path / "theirs")
    assert report.created == report.dropped == ()
    expected = ours.bert if kind == "bare encoder" else ours
    for (name, one), (other, two) in zip(loaded.named_parameters(), expected.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(one, two.bfloat16().float() if kind == "bfloat16" else two)


def test_untied_decoder_is_refused(tmp_path):
    ours, _ = pair(small_config(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    words = tensors["model.embeddings.tok_embeddings.weight"]
    save_file(tensors | {"decoder.weight": words.clone()}, tmp_path / "model.safetensors")
    loaded, _ = load_model(BertForPreTraining, tmp_path)
    assert all(torch.equal(one, two) for one, two in zip(loaded.parameters(), ours.parameters()))
    save_file(tensors | {"decoder.weight": words + 1}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"decoder.weight differs from model.embeddings.tok_embeddings.weight"):
        load_model(BertForPreTraining, tmp_path)


def test_weights_of_the_other_shape_are_refused_by_name(tmp_path):
    bert = BertConfig.from_preset("tiny", vocab_size=90, max_position_embeddings=40)
    model = new_model(BertForPreTraining, bert, seed=0)
    write_weights(dict(model.named_parameters()), small_config(), "BertForMaskedLM", tmp_path)
    with pytest.raises(InputError, match="missing model.embeddings.norm.weight"):
        load_model(BertForPreTraining, tmp_path)


def test_logits_of_padded_rows_are_left_out():
    model = new_model(BertForPreTraining, dataclasses.replace(small_config(), vocab_size=96), seed=0)
    model.predictions.num_tokens = 90
    output = model(IDS)
    assert output.prediction_logits.shape == (4, 24, 90)
    assert not output.seq_relationship_logits.any()
    assert not model.has_trained_next_sentence
    assert isinstance(model, modern.ModernBertForMaskedLM)
