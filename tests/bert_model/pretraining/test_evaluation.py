"""Held-out evaluation: one function measures a model in training and its published copy."""

import json
import math

import numpy as np
import pytest
import torch
from small_training import configuration

from bert_model.model.bert import BertForPreTraining
from bert_model.model.initialization import new_model
from bert_model.pretraining import evaluation
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import InstanceSplit
from bert_model.pretraining.evaluation import evaluate, measure_held_out
from bert_model.pretraining.phases import load_phases
from bert_model.training.distributed import Group
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ArtifactError
from bert_pipeline.manifest import load_manifest


def metrics_of(data, prepare=lambda model: None, **changes):
    """The metrics of a new model, prepared by a function, on the first phase, and the number of micro-batches."""
    config = from_mapping(PretrainingConfig, configuration(data, **changes))
    phases, tokenizer = load_phases(config)
    model = new_model(BertForPreTraining, config.model.resolve(vocab_size=tokenizer.vocab_size), seed=1)
    prepare(model)
    group = Group(rank=0, world_size=1, device=torch.device("cpu"))
    modes: list[bool] = []
    metrics = evaluate(model, phases[0], config, tokenizer, group, after_batch=lambda: modes.append(model.training))
    assert not any(modes)
    assert model.training  # as before: what follows is measured and computed with dropout
    return metrics, len(modes)


def test_evaluation_does_not_depend_on_micro_batches(data):
    one, num_batches = metrics_of(data, micro_batch_size=3)
    other, num_other_batches = metrics_of(data, micro_batch_size=32)
    assert num_batches > num_other_batches > 0
    assert one == pytest.approx(other, rel=1e-5)
    assert one["held_out/instances"] == 21


def test_micro_batches_of_long_texts_have_fewer_instances(data, monkeypatch):
    expected, num_batches = metrics_of(data, micro_batch_size=32)
    monkeypatch.setattr(evaluation, "MAX_TOKENS", 2 * 16)
    metrics, num_small_batches = metrics_of(data, micro_batch_size=32)
    assert (num_batches, num_small_batches) == (2, 8 + 3)  # of row groups of 16 and 5 instances
    assert metrics == pytest.approx(expected, rel=1e-5)


def test_masks_depend_on_the_configuration_but_not_on_its_seed(data):
    metrics, _ = metrics_of(data)
    assert metrics_of(data, seed=7)[0] == metrics
    masking = {"mask_share": 0.0, "same_share": 0.0, "random_share": 1.0}
    assert metrics_of(data, masking=masking)[0]["held_out/mlm_loss"] != metrics["held_out/mlm_loss"]


@pytest.mark.parametrize("answer", [0, 1])
def test_metrics_of_next_sentences_are_those_of_a_constant_answer(data, answer):
    def answer_always(model):
        with torch.no_grad():
            model.cls.seq_relationship.weight.zero_()
            model.cls.seq_relationship.bias.copy_(torch.tensor([9.0 * (1 - answer), 9.0 * answer]))

    metrics, _ = metrics_of(data, answer_always)
    held_out = InstanceSplit(data["short"], "held_out")
    is_random = np.concatenate([held_out.read(group).is_random_next for group in held_out.groups])
    right = np.mean(is_random == answer)
    assert 0 < right < 1
    assert metrics["held_out/nsp_accuracy"] == pytest.approx(100 * right)
    assert metrics["held_out/nsp_majority"] == pytest.approx(100 * max(right, 1 - right))
    assert metrics["held_out/nsp_loss"] == pytest.approx(math.log1p(math.exp(-9)) + 9 * (1 - right), rel=1e-4)
    assert metrics["held_out/perplexity"] == pytest.approx(math.exp(metrics["held_out/mlm_loss"]), rel=1e-5)


def test_evaluation_takes_at_most_max_instances(data):
    assert metrics_of(data, evaluation_max_instances=4)[0]["held_out/instances"] == 4


def test_objective_without_nsp_has_no_nsp_metrics(data):
    metrics, _ = metrics_of(data, objective="mlm")
    assert set(metrics) == {f"held_out/{name}" for name in ("mlm_loss", "mlm_accuracy", "perplexity", "instances")}


def test_published_model_has_the_metrics_of_its_run(undisturbed):
    recorded = load_manifest(undisturbed / "model").counts
    found = measure_held_out(undisturbed / "model")
    assert found.keys() == {key for key in recorded if key.startswith("held_out/")}
    assert found == pytest.approx({key: recorded[key] for key in found}, rel=1e-5)


def test_published_model_is_evaluated_on_the_instances_that_are_named(undisturbed):
    asked: list[int] = []
    with pytest.raises(ArtifactError, match="elsewhere"):
        measure_held_out(undisturbed / "model", instances=lambda length: (asked.append(length), "elsewhere")[1])
    assert len(asked) == 1


def test_model_without_its_run_directory_is_refused(undisturbed, tmp_path):
    (tmp_path / "model").symlink_to(undisturbed / "model")
    with pytest.raises(ArtifactError, match="configuration cannot be read"):
        measure_held_out(tmp_path / "model")
    (tmp_path / "configuration.json").write_text(json.dumps([]))
    with pytest.raises(ArtifactError, match="configuration cannot be read"):
        measure_held_out(tmp_path / "model")
