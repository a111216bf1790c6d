"""FLOPs of a step equal those that torch counts."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.training.throughput import PeakRate, StepCounts, peak_matmul_flops, peak_rate, training_flops


@pytest.mark.parametrize("layers", [1, 3])
def test_training_flops_equal_torchs_count_without_padding(layers):
    config = BertConfig.from_preset(
        "tiny", vocab_size=90, num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = new_model(BertForPreTraining, config, seed=0).double()  # products that torch's counter knows
    ids = torch.randint(5, 90, (4, 24), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(1, 6).expand(4, 5)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        losses = model.loss_sums(
            input_ids=ids,
            masked_lm_positions=positions,
            prediction_indices=torch.arange(20),
            labels=ids[:, 1:6],
            next_sentence_label=torch.zeros(4, dtype=torch.long),
        )
        sum(losses).backward()
    counts = StepCounts(instances=4, tokens=4 * 24, squared_lengths=4 * 24**2, predictions=20)
    # The next-sentence classifier, two outputs wide, is what is left out.
    assert training_flops(config, counts) == pytest.approx(counter.get_total_flops(), rel=2e-3)


def test_padding_adds_no_operations():
    config = BertConfig.from_preset("base")
    lengths = np.array([128.0, 64.0, 20.0])
    one = StepCounts(instances=3, tokens=lengths.sum(), squared_lengths=(lengths**2).sum(), predictions=30)
    parts = [StepCounts(instances=1, tokens=n, squared_lengths=n**2, predictions=30 * n / 212) for n in lengths]
    assert training_flops(config, one) == pytest.approx(sum(training_flops(config, part) for part in parts), rel=1e-3)


def test_peak_flops_probe_leaves_the_generator_unchanged():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert peak_matmul_flops(torch.device("cpu"), "float32") > 1e8
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("name", "precision", "expected"),
    [
        ("NVIDIA H200", "bfloat16", PeakRate(989e12, "nominal")),
        ("NVIDIA H100 80GB HBM3", "bfloat16", PeakRate(989e12, "nominal")),
        ("NVIDIA H200", "float32", PeakRate(5.0, "measured")),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", PeakRate(5.0, "measured")),  # a part of the module
        ("NVIDIA H100 PCIe", "bfloat16", PeakRate(5.0, "measured")),
    ],
)
def test_share_of_the_peak_is_nominal_where_the_data_sheet_is_known(monkeypatch, name, precision, expected):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr("bert_model.training.throughput.peak_matmul_flops", lambda device, precision: 5.0)
    assert peak_rate(torch.device("cuda"), precision) == expected


def test_peak_flops_of_a_device_without_memory_are_unknown(monkeypatch):
    def full(*size, **settings):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "randn", full)
    assert peak_matmul_flops(torch.device("cpu"), "bfloat16") == 0.0
