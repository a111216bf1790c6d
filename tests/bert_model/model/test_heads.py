"""Every head equals its Hugging Face counterpart, and is read and written as that architecture."""

from typing import Any

import pytest
import torch
from instances_fixture import make_tokenizer

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.heads import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    Tagger,
    has_bfloat16_lstm,
)
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model
from bert_model.training.optimizer import is_decayed

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    "model_class",
    [BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering, BertForMultipleChoice],
)
def test_transformers_loads_saved_model_with_equal_logits(model_class, tmp_path):
    labels = () if model_class is BertForQuestionAnswering else ("a", "b", "c")
    config = BertConfig.from_preset("tiny", vocab_size=60, max_position_embeddings=32, labels=labels)
    ours = new_model(model_class, config, seed=1).eval()
    save_model(ours, tmp_path, make_tokenizer(60))
    theirs, report = getattr(transformers, model_class.__name__).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    shape = (2, 3, 12) if model_class is BertForMultipleChoice else (4, 12)
    input_ids = torch.randint(5, 60, shape, generator=torch.Generator().manual_seed(0))
    attention_mask = torch.ones(shape, dtype=torch.long)
    attention_mask[..., 1, 8:] = 0
    token_type_ids = (torch.arange(12) > 5).long().expand(shape)
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
    with torch.no_grad():
        found, expected = ours(**inputs), theirs.eval()(**inputs)
    if model_class is BertForQuestionAnswering:
        pairs = [(found[0], expected.start_logits), (found[1], expected.end_logits)]
    else:
        pairs = [(found, expected.logits)]
    for one, other in pairs:
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "model_class",
    [BertForSequenceClassification, BertForTokenClassification, BertForQuestionAnswering, BertForMultipleChoice],
)
def test_bilstm_gives_a_causal_model_both_contexts(model_class, tmp_path):
    config = BertConfig.from_preset("tiny", vocab_size=60, max_position_embeddings=32, attention="causal")
    (tmp_path / "pretrained").mkdir()
    save_model(new_model(BertForPreTraining, config, seed=1), tmp_path / "pretrained", make_tokenizer(60))
    plain, _ = load_model(model_class, tmp_path / "pretrained")
    config = BertConfig.from_directory(tmp_path / "pretrained", head="bilstm")
    model, report = load_model(model_class, tmp_path / "pretrained", config=config, seed=3)
    assert {name for name in report.created if name.startswith("bilstm.lstm.")} == {
        f"bilstm.lstm.{kind}_l0{end}"
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        for end in ("", "_reverse")
    }
    again, _ = load_model(model_class, tmp_path / "pretrained", config=config, seed=3)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))
    assert not is_decayed("bilstm.lstm.bias_ih_l0_reverse")
    assert is_decayed("bilstm.lstm.weight_hh_l0")

    ids = torch.randint(5, 60, (2, 1, 12), generator=torch.Generator().manual_seed(0))
    ids = ids if model_class is BertForMultipleChoice else ids[:, 0]
    changed = ids.clone()
    changed[0, ..., 7] = 9

    def first(network, inputs, **more):
        with torch.no_grad():
            output = network.eval()(inputs, **more)
        return (torch.stack(output, -1) if isinstance(output, tuple) else output)[0].flatten()[:2]

    assert torch.equal(first(plain, ids), first(plain, changed))  # the first position sees itself alone
    assert not torch.allclose(first(model, ids), first(model, changed), atol=1e-7)

    (tmp_path / "tuned").mkdir()
    save_model(model, tmp_path / "tuned", make_tokenizer(60))
    tuned, report = load_model(model_class, tmp_path / "tuned")
    assert not report.created
    assert torch.equal(first(tuned, ids), first(model, ids))
    mask = (torch.arange(12) < 9).long().expand(ids.shape)
    padded = ids * mask
    torch.testing.assert_close(first(tuned, padded, attention_mask=mask), first(tuned, ids[..., :9]))


def test_classifier_has_one_output_per_label_and_own_dropout():
    config = BertConfig.from_preset("tiny", vocab_size=60, labels=("only",), classifier_dropout=0.3)
    model = new_model(BertForSequenceClassification, config, seed=0)
    assert model.classifier.weight.shape == (1, 128)
    assert model.dropout.probability == 0.3


def test_lstm_without_bfloat16_support_computes_in_float32(monkeypatch):
    model = Tagger((2, 16), 3, feature_input="last", hidden_size=8, dropout=0.0).draw_weights(1).eval()
    inputs = (torch.randn(4, 12, 2, 16, generator=torch.Generator().manual_seed(0)), torch.ones(4, 12))
    monkeypatch.setattr("bert_model.model.heads.has_bfloat16_lstm", lambda: False)
    with torch.no_grad():
        expected = model(*inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(model(*inputs), expected)


def test_lstm_probe_leaves_the_generator_unchanged():
    state = torch.get_rng_state()
    has_bfloat16_lstm.cache_clear()
    assert isinstance(has_bfloat16_lstm(), bool)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "model_class",
    [
        BertForSequenceClassification,
        BertForTokenClassification,
        BertForQuestionAnswering,
        BertForMultipleChoice,
        Tagger,
    ],
)
def test_logits_are_computed_in_float32_under_bfloat16(model_class):
    generator = torch.Generator().manual_seed(0)
    inputs: tuple[torch.Tensor, ...]
    if model_class is Tagger:
        model: Any = Tagger((2, 16), 3, feature_input="last", hidden_size=8, dropout=0.0).draw_weights(1)
        inputs = (torch.randn(4, 12, 2, 16, generator=generator), torch.ones(4, 12))
    else:
        config = BertConfig.from_preset("tiny", vocab_size=60, max_position_embeddings=32, labels=("a", "b", "c"))
        model = new_model(model_class, config, seed=1)
        inputs = (torch.randint(5, 60, (2, 3, 12)[model_class is not BertForMultipleChoice :], generator=generator),)
    last = model.qa_outputs if model_class is BertForQuestionAnswering else model.classifier
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    last.register_forward_hook(lambda _, given, output: seen.append((given[0], output)))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        output = model.eval()(*inputs)
    ((hidden, logits),) = seen
    assert (output[0] if isinstance(output, tuple) else output).dtype == logits.dtype == torch.float32
    exact = hidden.double() @ last.weight.double().T + last.bias.double()
    torch.testing.assert_close(logits.double(), exact, atol=1e-6, rtol=1e-6)
    assert not torch.equal(logits, logits.to(torch.bfloat16).float())
