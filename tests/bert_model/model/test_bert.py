"""The model equals Hugging Face transformers in values and gradients, and computes only what is read."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import fast_dropout
from bert_model.model.initialization import new_model
from bert_model.training.gradients import compile_layers

transformers = pytest.importorskip("transformers")

TOLERANCE = 1e-5
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu", "silu")


def small_config(**changes):
    return BertConfig.from_preset("tiny", vocab_size=90, max_position_embeddings=40, **changes)


def pair(config):
    """The same weights in this model and in transformers'; larger than initial ones, so that differences would show."""
    ours = new_model(BertForPreTraining, config, seed=3)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    names = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"]
    settings: dict[str, Any] = {name: getattr(config, name) for name in (*names, "max_position_embeddings")}
    theirs = transformers.BertForPreTraining(
        transformers.BertConfig(**settings, attn_implementation="eager", tie_word_embeddings=True)
    )
    weights = {name: parameter.detach().clone() for name, parameter in ours.named_parameters()}
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}  # tied ones
    assert not unexpected
    assert {name for name, _ in theirs.named_parameters()} == set(weights)
    return ours.eval(), theirs.eval()


def batch(padded):
    generator = torch.Generator().manual_seed(1)
    input_ids = torch.randint(5, 90, (4, 24), generator=generator)
    token_type_ids = (torch.arange(24) >= torch.tensor([[9], [12], [3], [20]])).long()
    attention_mask = torch.ones_like(input_ids)
    if padded:
        attention_mask = (torch.arange(24) < torch.tensor([[24], [17], [8], [21]])).long()
    return {
        "input_ids": input_ids * attention_mask,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids * attention_mask,
    }


@pytest.mark.parametrize("hidden_act", ACTIVATIONS)
@pytest.mark.parametrize("padded", [False, True])
def test_hidden_states_attentions_and_logits_equal_transformers(hidden_act, padded):
    ours, theirs = pair(small_config(hidden_act=hidden_act))
    inputs = batch(padded)
    with torch.no_grad():
        found = ours.bert(**inputs, output_hidden_states=True, output_attentions=True)
        plain = ours(**inputs)
        following = ours.cls.seq_relationship(found.pooled_output)
        expected = theirs(**inputs, output_hidden_states=True, output_attentions=True)
    assert found.hidden_states is not None
    assert found.attentions is not None
    assert len(found.hidden_states) == len(expected.hidden_states) == 3
    tokens = inputs["attention_mask"].bool()
    for one, other in zip(found.hidden_states, expected.hidden_states):
        torch.testing.assert_close(one[tokens], other[tokens], atol=TOLERANCE, rtol=TOLERANCE)
    for one, other in zip(found.attentions, expected.attentions):
        torch.testing.assert_close(one.transpose(1, 2)[tokens], other.transpose(1, 2)[tokens], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        plain.prediction_logits[tokens], expected.prediction_logits[tokens], atol=TOLERANCE, rtol=TOLERANCE
    )
    for output in (following, plain.seq_relationship_logits):
        torch.testing.assert_close(output, expected.seq_relationship_logits, atol=TOLERANCE, rtol=TOLERANCE)


def token_indices(inputs):
    """The indices of the real tokens of an unpadded batch."""
    return inputs["attention_mask"].flatten().nonzero().squeeze(1)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
@pytest.mark.parametrize(("padded", "unpadded"), [(False, False), (True, False), (True, True)])
def test_gradients_at_masked_positions_equal_transformers(padded, unpadded, hidden_act):
    ours, theirs = pair(small_config(hidden_act=hidden_act))
    inputs = batch(padded)
    positions = torch.tensor([[1, 5, 7], [2, 3, 16], [1, 2, 0], [4, 9, 20]])
    targets = torch.tensor([[11, 12, 13], [14, 15, 16], [17, 18, -100], [19, 20, 21]])
    next_sentence = torch.tensor([0, 1, 1, 0])
    labels = torch.full((4, 24), -100)
    for row in range(4):
        for position, target in zip(positions[row].tolist(), targets[row].tolist()):
            if target != -100:
                labels[row, position] = target
    expected = theirs(**inputs, labels=labels, next_sentence_label=next_sentence)
    expected.loss.backward()
    indices = token_indices(inputs) if unpadded else None
    found = ours(**inputs, token_indices=indices, masked_lm_positions=positions)
    loss = functional.cross_entropy(found.prediction_logits.flatten(0, 1), targets.flatten())
    loss = loss + functional.cross_entropy(found.seq_relationship_logits, next_sentence)
    loss.backward()
    torch.testing.assert_close(loss, expected.loss, atol=TOLERANCE, rtol=TOLERANCE)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=TOLERANCE, rtol=1e-4, msg=name)
        parameter.grad = None
    counts = (targets != -100).sum(), len(next_sentence)  # training's own way: sums, without logits in between
    sums = ours.loss_sums(
        **inputs,
        token_indices=indices,
        masked_lm_positions=positions,
        prediction_indices=(targets.flatten() != -100).nonzero().squeeze(1),
        labels=targets,
        next_sentence_label=next_sentence,
    )
    torch.testing.assert_close(sums[0] / counts[0] + sums[1] / counts[1], loss, atol=TOLERANCE, rtol=TOLERANCE)
    (sums[0] / counts[0] + sums[1] / counts[1]).backward()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=TOLERANCE, rtol=1e-4, msg=name)


@pytest.mark.parametrize("hidden_act", ACTIVATIONS)
def test_onednn_computes_every_activation_and_its_gradient(hidden_act, monkeypatch):
    ours, theirs = pair(small_config(hidden_act=hidden_act))
    inputs = batch(False)
    monkeypatch.setattr("bert_model.model.cpu_kernels.onednn_width", lambda: 64)
    found = ours(**inputs).prediction_logits
    found.square().sum().backward()
    expected = theirs(**inputs).prediction_logits
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-3, rtol=1e-3, msg=name)


@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_unpadded_batch_equals_padded_with_zeros_in_padding(attention):
    model, _ = pair(small_config(attention=attention))
    inputs = batch(True)
    tokens = inputs["attention_mask"].bool()
    with torch.no_grad():
        asked = {"output_hidden_states": True, "output_attentions": True}
        padded = model.bert(**inputs, **asked)
        unpadded = model.bert(**inputs, **asked, token_indices=token_indices(inputs))
    for one, other in zip(unpadded.hidden_states, padded.hidden_states, strict=True):
        torch.testing.assert_close(one[tokens], other[tokens], atol=TOLERANCE, rtol=TOLERANCE)
        assert one[~tokens].eq(0).all()
    for one, other in zip(unpadded.attentions, padded.attentions, strict=True):
        torch.testing.assert_close(one.transpose(1, 2)[tokens], other.transpose(1, 2)[tokens], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(unpadded.pooled_output, padded.pooled_output, atol=1e-5, rtol=1e-5)


def test_model_with_one_segment_reads_pairs_as_one_text():
    model = new_model(BertForPreTraining, small_config(type_vocab_size=1), seed=3).eval()
    inputs = batch(False)
    with torch.no_grad():
        pairs, texts = (model(**inputs | {"token_type_ids": types}) for types in (inputs["token_type_ids"], None))
    assert torch.equal(pairs.prediction_logits, texts.prediction_logits)


def test_unpadded_batch_runs_dense_layers_on_real_tokens_only():
    model = new_model(BertForPreTraining, small_config(), seed=1)
    inputs = batch(True)
    seen = set()
    for block in model.bert.encoder.layer:
        for layer in (block.attention.self.key, block.attention.output.dense, block.intermediate.dense):
            layer.register_forward_pre_hook(lambda _, given: seen.add(given[0].shape[:-1].numel()))
    model(**inputs, token_indices=token_indices(inputs))
    assert seen == {24 + 17 + 8 + 21}


@pytest.mark.parametrize("unpadded", [False, True])
def test_compiled_layer_is_one_graph_with_equal_gradients(unpadded):
    model, _ = pair(small_config())
    inputs = batch(True)
    inputs["token_indices"] = token_indices(inputs) if unpadded else None  # type: ignore[assignment]
    inputs["prediction_indices"] = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11])
    inputs["masked_lm_positions"] = torch.tensor([[1, 5, 7], [2, 3, 16], [1, 2, 0], [4, 9, 20]])
    inputs["labels"] = torch.tensor([[11, 12, 13], [14, 15, 16], [17, 18, -100], [19, 20, 21]])
    inputs["next_sentence_label"] = torch.tensor([0, 1, 1, 0])
    results = []
    for compiled in (False, True):
        if compiled:
            compile_layers(model, backend="eager", fullgraph=True)
        losses = model.loss_sums(**inputs)
        sum(losses).backward()
        results.append([*losses, *(parameter.grad for parameter in model.parameters())])
        model.zero_grad()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("masked_positions", [False, True])
def test_causal_attention_ignores_later_tokens(masked_positions):
    model = pair(small_config(attention="causal"))[0]
    inputs = batch(True)
    changed = dict(inputs, input_ids=inputs["input_ids"].clone())
    changed["input_ids"][0, 10:] = 7
    positions = torch.tensor([[4, 9, 10]] * 4) if masked_positions else None
    with torch.no_grad():
        one = model(**inputs, masked_lm_positions=positions).prediction_logits[0]
        other = model(**changed, masked_lm_positions=positions).prediction_logits[0]
    before = 2 if masked_positions else 10
    torch.testing.assert_close(one[:before], other[:before])
    assert not torch.allclose(one[before], other[before], atol=1e-3)


def test_dropout_acts_in_training_only_and_follows_the_generator():
    model = new_model(BertForPreTraining, small_config(), seed=1)
    inputs = batch(True)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(model.train()(**inputs).prediction_logits)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert torch.equal(model.eval()(**inputs).prediction_logits, model(**inputs).prediction_logits)


@pytest.mark.parametrize("unpadded", [False, True])
def test_attention_has_its_own_dropout(unpadded):
    model = new_model(BertForPreTraining, small_config(hidden_dropout_prob=0.0), seed=1).train()
    inputs = batch(True)
    indices = token_indices(inputs) if unpadded else None
    torch.manual_seed(1)
    one, other = (model(**inputs, token_indices=indices).prediction_logits for _ in range(2))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("training", [False, True])
def test_fused_attention_is_called_only_where_it_supports_dropout(monkeypatch, training):
    """The CPU's fused kernel has no dropout, so there it is called only if nothing is dropped."""
    asked: list[float] = []
    fused = functional.scaled_dot_product_attention

    def recorded(*given, dropout_p, **named):
        asked.append(dropout_p)
        return fused(*given, dropout_p=dropout_p, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded)
    model = new_model(BertForPreTraining, small_config(attention_probs_dropout_prob=0.2), seed=1).train(training)
    model(**batch(True))
    assert asked == ([] if training else [0.0, 0.0])
    asked.clear()
    model.to("meta")(**{name: item.to("meta") for name, item in batch(True).items()})
    assert asked == ([0.2, 0.2] if training else [0.0, 0.0])


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_keeps_the_stated_share_and_the_mean(probability):
    torch.manual_seed(0)
    dropped = fast_dropout(torch.ones(400_003), probability, True)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (1 - probability)])
    assert (dropped == 0).double().mean().item() == pytest.approx(probability, abs=0.003)
    neighbors = (dropped[1:] == 0) & (dropped[:-1] == 0)
    assert neighbors.double().mean().item() == pytest.approx(probability**2, abs=0.003)


def test_new_weights_depend_on_the_seed_only():
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    one, same, other = (
        dict(new_model(BertForPreTraining, small_config(), seed=s).named_parameters()) for s in (1, 1, 2)
    )
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(one[name], same[name]) for name in one)
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    assert not torch.equal(one[name], other[name])
    assert one[name].abs().max() <= 0.04
    assert one[name].std().item() == pytest.approx(0.02 * 0.88, rel=0.02)  # of a normal cut off at two deviations
    assert one["bert.encoder.layer.0.intermediate.dense.bias"].abs().max() == 0
    assert one["bert.embeddings.LayerNorm.weight"].eq(1).all()
