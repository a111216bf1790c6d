"""Packed micro-batches: what they hold, their size, and trainings on them, with a CPU kernel in the GPU's place."""

import functools
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from instances_fixture import write_instances
from small_training import (
    NO_DROPOUT,
    assert_same_training,
    configuration,
    read_events,
    small_model,
    train,
    train_events,
)
from torch.utils._python_dispatch import TorchDispatchMode
from two_ranks import run_ranks
from varlen_on_cpu import varlen_on_cpu

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import empty_model
from bert_model.pretraining import packing, trainer
from bert_model.pretraining.batch import NO_INSTANCES, make_batch
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import Samples
from bert_model.pretraining.packing import (
    ALIGNED_ROWS,
    TRIAL_TOKENS,
    Capacity,
    Packing,
    can_pack,
    choose_capacity,
    pack,
    packed_batches,
    share_rows,
    split,
    tokens_that_fit,
)
from bert_model.training.distributed import Group
from bert_model.training.gradients import compile_layers
from bert_model.training.throughput import StepCounts, training_flops
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError, TrainingError
from bert_pipeline.instances.columns import offsets_of
from bert_pipeline.instances.masking import MaskingConfig
from bert_pipeline.vocabulary.tokenizer import Tokenizer

MASKING = MaskingConfig(max_predictions_per_seq=10)
CPU = torch.device("cpu")
PACKED: dict[str, Any] = {"model": small_model(**NO_DROPOUT), "precision": "bfloat16", "micro_batch_tokens": 128}


def samples_of(lengths, seed=0):
    """Instances of given lengths with random tokens."""
    generator = np.random.default_rng(seed)
    lengths = np.asarray(lengths, dtype=np.int64)
    ids = generator.integers(5, 60, size=int(lengths.sum())).astype(np.int32)
    return Samples(
        input_ids=ids,
        offsets=offsets_of(lengths),
        segment_b_start=(lengths // 2).astype(np.int32),
        is_random_next=generator.random(len(lengths)) < 0.5,
        sample_indices=np.arange(len(lengths)),
        epochs=np.zeros(len(lengths), dtype=np.int64),
    )


def lengths_like_the_presets(count, longest, seed):
    """Three of four instances are as long as the phase allows or nearly so, the others of any length."""
    generator = np.random.default_rng(seed)
    short = generator.integers(8, longest, size=count)
    return np.where(generator.random(count) < 0.75, longest - generator.integers(0, 8, size=count), short)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = write_instances(tmp_path_factory.mktemp("instances"), max_seq_length=16, shards=(8,)).path
    return Tokenizer.from_directory(folder)


# --- sizes ---


@pytest.mark.parametrize("seed", range(5))
def test_split_keeps_every_instance_whole_and_in_order(seed):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(5, 64, size=200)
    predictions = generator.integers(1, 10, size=200)
    capacity = Capacity(rows=512, instances=20, predictions=64, max_length=64)
    parts = split(lengths, predictions, capacity)
    assert [row for part in parts for row in range(200)[part]] == list(range(200))
    for part, following in zip(parts, [*parts[1:], None]):
        sizes = len(lengths[part]), lengths[part].sum(), predictions[part].sum()
        assert all(size <= limit for size, limit in zip(sizes, (20, 512, 64)))
        if following is not None:  # the next one does not fit
            more = slice(part.start, part.stop + 1)
            sizes = len(lengths[more]), lengths[more].sum(), predictions[more].sum()
            assert any(size > limit for size, limit in zip(sizes, (20, 512, 64)))


@pytest.mark.parametrize("num_instances", [256, 1024, 4096])
@pytest.mark.parametrize("max_length", [128, 512])
@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize("max_tokens", [16_384, 32_768])
def test_few_rows_are_dummies_in_large_steps(num_instances, max_length, world_size, max_tokens):
    sample = samples_of(lengths_like_the_presets(4000, max_length, 1))
    capacity = choose_capacity(
        sample,
        MASKING,
        num_instances=num_instances,
        world_size=world_size,
        max_tokens=max_tokens,
        max_length=max_length,
    )
    assert capacity.rows % ALIGNED_ROWS == capacity.predictions % ALIGNED_ROWS == capacity.sequences % ALIGNED_ROWS == 0
    assert capacity.rows <= max_tokens
    computed = tokens = 0
    for step in range(50):
        lengths = lengths_like_the_presets(num_instances, max_length, 100 + step)
        predictions = np.minimum(np.maximum(np.rint(lengths * 0.15), 1), 10).astype(np.int64)
        counts = [len(split(lengths[rows], predictions[rows], capacity)) for rows in share_rows(lengths, world_size)]
        computed += max(counts) * capacity.rows * world_size
        tokens += int(lengths.sum())
    if tokens / 50 / world_size > 20_000:
        assert 1 - tokens / computed <= 0.07


def test_memory_is_extrapolated_from_two_sizes():
    small, large = TRIAL_TOKENS
    peaks = [1000 + 10 * small, 1000 + 10 * large]
    assert tokens_that_fit(peaks, int((1000 + 10 * 20_000) / 0.85)) == pytest.approx(20_000, abs=1)
    assert tokens_that_fit(peaks, 10**9) == 65_536
    assert tokens_that_fit(peaks, 0) == 0


@pytest.mark.parametrize("length", [128, 8192])
def test_chosen_size_fits_into_the_memory(data, length, monkeypatch):
    peaks: list[int] = []
    memory = 24 * 10**9

    def bytes_of(rows, predictions):
        return 10**9 + 10**6 * (rows + predictions)

    monkeypatch.setattr(packing.PackedBatch, "to", lambda batch, device: batch)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peaks[-1])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (memory, memory))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    config = from_mapping(PretrainingConfig, configuration(data, **PACKED | {"micro_batch_tokens": "auto"}))
    sizes = Packing(config, Group(rank=0, world_size=1, device=torch.device("cuda")))
    masking = MaskingConfig(max_predictions_per_seq=length * 15 // 100)
    phase: Any = SimpleNamespace(
        index=0,
        masking=masking,
        config=SimpleNamespace(max_seq_length=length, global_batch_size=1024),
        train=SimpleNamespace(sample=lambda: samples_of([length] * 50)),
    )
    sizes.choose(phase, lambda batch: peaks.append(bytes_of(len(batch.packed.input_ids), len(batch.labels))), 0)
    chosen = sizes.capacities["0"]
    assert 0.6 * memory < bytes_of(chosen.rows, chosen.predictions) <= 0.86 * memory


@pytest.mark.parametrize(
    ("changes", "precision", "expected"),
    [
        ({}, "bfloat16", True),
        ({}, "float32", False),
        ({"attention_probs_dropout_prob": 0.1}, "bfloat16", False),
        ({"attention": "causal"}, "bfloat16", False),
        ({"num_attention_heads": 32}, "bfloat16", False),  # heads of 4 values
    ],
)
def test_rows_are_packed_where_the_kernel_computes(changes, precision, expected):
    config = BertConfig.from_preset("tiny", vocab_size=60, **{"attention_probs_dropout_prob": 0.0} | changes)
    assert not can_pack(config, CPU, precision)
    with varlen_on_cpu():
        assert can_pack(config, CPU, precision) == expected


def test_sizes_of_a_checkpoint_are_kept_unless_they_were_made_for_others(data):
    def packing_for(**changes):
        values = configuration(data, **PACKED | changes)
        return packing.Packing(from_mapping(PretrainingConfig, values), group_of())

    stored = packing_for()
    stored.capacities["0"] = Capacity(128, 16, 64, 16)
    state = json.loads(json.dumps(stored.state()))
    phase, last = configuration(data)["phases"]
    for changes, are_kept in (
        ({}, True),
        ({"activation_checkpointing": True}, True),
        ({"phases": [phase | {"steps": 9}, last]}, True),
        ({"phases": [phase | {"global_batch_size": 4}, last]}, False),  # fewer rows than of one size
        ({"masking": {"masked_lm_prob": 0.3}}, False),  # more predictions than there are places for
        ({"micro_batch_tokens": 64}, False),
    ):
        resumed = packing_for(**changes)
        resumed.restore(state)
        assert (resumed.capacities == stored.capacities) == are_kept


# --- contents ---


def group_of(rank=0, world_size=1):
    return Group(rank=rank, world_size=world_size, device=CPU)


def test_packed_instances_are_those_of_a_padded_batch(tokenizer):
    samples = samples_of([16, 9, 5, 14, 12, 7])
    capacity = Capacity(rows=64, instances=4, predictions=64, max_length=16)
    batches = packed_batches(samples, capacity, MASKING, tokenizer, seed=3, group=group_of())
    whole = make_batch(samples, MASKING, tokenizer, seed=3)
    assert len(batches) == 2
    number = 0
    for batch in batches:
        rows = batch.inputs["packed"]
        starts = rows.starts.tolist()
        assert starts[-1] == 64
        assert len(starts) == capacity.sequences + 1
        assert max(np.diff(starts)) <= 16
        num_instances = int((batch.inputs["next_sentence_label"] != -100).sum())
        predicted = rows.read_rows[capacity.sequences :]
        for index, (start, end) in enumerate(zip(starts, starts[1:])):
            assert rows.position_ids[start:end].tolist() == list(range(end - start))
            if index >= num_instances:
                continue
            length = end - start
            assert torch.equal(rows.input_ids[start:end], whole.input_ids[number, :length])
            assert torch.equal(rows.token_type_ids[start:end], whole.token_type_ids[number, :length])
            assert rows.read_rows[index] == start
            labels = batch.inputs["labels"]
            mine = (labels != -100) & (predicted >= start) & (predicted < end)
            real = whole.labels[number] != -100
            assert (predicted[mine] - start).tolist() == whole.masked_lm_positions[number][real].tolist()
            assert labels[mine].tolist() == whole.labels[number][real].tolist()
            assert batch.inputs["next_sentence_label"][index] == whole.next_sentence_label[number]
            number += 1
    assert number == 6
    assert sum(batch.counts.tokens for batch in batches) == whole.counts.tokens
    assert sum(batch.counts.predictions for batch in batches) == whole.counts.predictions


def test_all_ranks_have_as_many_micro_batches_the_missing_ones_last(tokenizer):
    samples = samples_of([16, 16, 16, 16, 16, 5])  # dealt 16+16+5 and 16+16+16
    capacity = Capacity(rows=64, instances=2, predictions=64, max_length=16)
    counts = []
    for rank in range(4):
        batches = packed_batches(samples, capacity, MASKING, tokenizer, seed=3, group=group_of(rank, 4))
        counts.append([batch.counts.tokens for batch in batches])
    assert {len(tokens) for tokens in counts} == {1}
    capacity = capacity._replace(instances=1)
    counts = [
        [
            batch.counts.tokens
            for batch in packed_batches(samples, capacity, MASKING, tokenizer, seed=3, group=group_of(rank, 4))
        ]
        for rank in range(4)
    ]
    assert sorted(counts) == [[16, 0], [16, 0], [16, 5], [16, 16]]


def test_instance_longer_than_the_phase_is_an_error(tokenizer):
    capacity = Capacity(rows=64, instances=4, predictions=64, max_length=16)
    with pytest.raises(ConfigurationError, match="has 17 tokens, the phase has max_seq_length 16"):
        packed_batches(samples_of([16, 17]), capacity, MASKING, tokenizer, seed=3, group=group_of())


# --- what is computed ---


class Products(TorchDispatchMode):
    """Record the sizes of matrix products, and count their operations."""

    def __init__(self):
        super().__init__()
        self.sizes: set[tuple[int, ...]] = set()
        self.flops = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            (rows, inner), (_, columns) = args[-2].shape, args[-1].shape
            self.sizes.add((rows, inner, columns))
            self.flops += 2 * rows * inner * columns
        return function(*args, **(kwargs or {}))


def test_all_steps_have_one_set_of_aligned_products_and_few_in_vain(tokenizer):
    # Base, on a device without values: an operator that reads one raises.
    config = BertConfig.from_preset("base", vocab_size=30_522, attention_probs_dropout_prob=0.0)
    with torch.device("meta"):
        model = empty_model(BertForPreTraining, config).train()
    masking = MaskingConfig(max_predictions_per_seq=20)
    sizes = {"num_instances": 256, "world_size": 1, "max_tokens": 32_768, "max_length": 128}
    capacity = choose_capacity(samples_of(lengths_like_the_presets(4000, 128, 1)), masking, **sizes)
    found, done, useful = [], 0, 0.0
    for step in range(3):
        samples = samples_of(lengths_like_the_presets(256, 128, step), step)
        for batch in packed_batches(samples, capacity, masking, tokenizer, seed=1, group=group_of()):
            instances = int((batch.inputs["next_sentence_label"] != -100).sum())
            counts = {"tokens": batch.counts.tokens, "predictions": batch.counts.predictions, "squared_lengths": 0.0}
            useful += training_flops(config, StepCounts(instances=instances, **counts))
            with Products() as products:
                sum(model.loss_sums(**batch.to(torch.device("meta")).inputs)).backward()  # type: ignore[union-attr]
            found.append(products.sizes)
            done += products.flops
    assert len(found) == 6
    assert all(sizes == found[0] for sizes in found)
    assert {size % 64 for sizes in found[0] for size in sizes} == {0}
    assert 1.0 < done / useful <= 1.1


# --- trainings ---


def packed_train(data, output, **options):
    changes = options.pop("changes", {})
    with varlen_on_cpu():
        train(configuration(data, **PACKED | changes), output, **options)
    return train_events(output)


def test_packed_training_has_the_losses_of_a_padded_one(data, tmp_path):
    train(configuration(data, **PACKED), tmp_path / "padded")
    packed = packed_train(data, tmp_path / "packed", changes={"compile": False})
    for name in ("train/mlm_loss", "train/nsp_loss"):
        one, other = ([event[name] for event in run.values()] for run in (packed, train_events(tmp_path / "padded")))
        np.testing.assert_allclose(one, other, rtol=2e-2)


def test_resumed_packed_training_equals_an_uninterrupted_one(data, tmp_path):
    changes = {"compile": False}
    packed_train(data, tmp_path / "whole", changes=changes)
    packed_train(data, tmp_path / "resumed", changes=changes, vanish=7)
    packed_train(data, tmp_path / "resumed", changes=changes, resume=True)
    assert_same_training(tmp_path / "resumed", tmp_path / "whole")


def test_resumed_packed_training_takes_longer_instances(data, tmp_path):
    changes: dict[str, Any] = {"compile": False}
    packed_train(data, tmp_path / "training", changes=changes, vanish=4)
    phases = configuration(data)["phases"]
    changes["phases"] = [phases[0] | {"max_seq_length": 32, "instances": data["long"]}, phases[1]]
    packed_train(data, tmp_path / "training", changes=changes, resume=True, allow_changes=True)
    assert [*train_events(tmp_path / "training")] == list(range(1, 15))


def test_too_little_memory_names_the_ceiling(data, tmp_path, monkeypatch):
    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(trainer.Trainer, "_accumulate", fail)
    with pytest.raises(
        TrainingError, match=r"give a smaller micro_batch_tokens \(of evaluations, micro_batch_size\), or "
    ):
        packed_train(data, tmp_path / "training", changes={"compile": False})


def pretrain_packed(configuration, output):
    """Train on a rank, and write how many of its micro-batches each step had, and how many of them were empty."""
    steps: list[tuple[int, int]] = []

    def recorded(*arguments, **named):
        batches = packed_batches(*arguments, **named)
        steps.append((len(batches), sum(batch.counts.tokens == 0 for batch in batches)))
        return batches

    # A size at which the shares of some steps differ in the number of their micro-batches.
    packing.choose_capacity = lambda *_, max_length, **__: Capacity(40, 16, 64, max_length)
    trainer.packed_batches = recorded  # type: ignore[attr-defined]
    with varlen_on_cpu():
        train(configuration, output)
    Path(f"{output}-{os.environ['RANK']}.json").write_text(json.dumps(steps))


def test_rank_that_overflows_makes_the_other_compute_dummies(data, tmp_path):
    changes: dict[str, Any] = {"compile": False}
    packed_train(data, tmp_path / "one", changes=changes)
    config = configuration(data, **PACKED | changes | {"data_parallel": "fsdp"})
    assert run_ranks(2, pretrain_packed, config, tmp_path / "two") == [0, 0]
    first, second = (json.loads((tmp_path / f"two-{rank}.json").read_text()) for rank in range(2))
    assert [count for count, _ in first] == [count for count, _ in second]
    assert sum(empty for _, empty in first + second) > 0
    assert all(0 in (one, other) for (_, one), (_, other) in zip(first, second))
    one, two = train_events(tmp_path / "one"), train_events(tmp_path / "two")
    for step, event in one.items():
        assert two[step]["train/mlm_loss"] == pytest.approx(event["train/mlm_loss"], rel=2e-2)
    tokens = [
        [event["metrics"]["train/tokens_seen"] for event in read_events(tmp_path / name) if event["event"] == "train"]
        for name in ("one", "two")
    ]
    assert tokens[0] == tokens[1]


def test_compiled_training_of_two_phases_compiles_four_graphs_a_phase_and_no_more(data, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "bert_model.pretraining.trainer")
    monkeypatch.setattr(trainer, "compile_layers", functools.partial(compile_layers, backend="aot_eager"))
    torch._dynamo.utils.counters.clear()
    graphs: list[int] = []

    def choose(sizes, phase, compute, memory_to_come):
        for tokens in (64, 192):  # as the trials of a GPU's memory
            compute(pack(NO_INSTANCES, Capacity(tokens, 4, 64, phase.config.max_seq_length)))
        return choose_sizes(sizes, phase, compute, memory_to_come)

    choose_sizes = Packing.choose
    monkeypatch.setattr(Packing, "choose", choose)

    def after_step(step):
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        # From the second step of a phase on nothing may be compiled again.
        torch.compiler.set_stance("default" if step in (250, 500) else "fail_on_recompile")

    phases = configuration(data)["phases"]
    changes = {
        "phases": [phase | {"steps": 250} for phase in phases],
        "evaluation_interval_steps": 100,
        "checkpoint_interval_steps": 200,
        "log_interval_steps": 100,
    }
    try:
        packed_train(data, tmp_path / "training", changes=changes, after_step=after_step)
    finally:
        torch.compiler.set_stance("default")
    assert len(graphs) == 500
    assert (graphs[0], graphs[249], graphs[-1]) == (4, 4, 8)
    assert [f"phase {number}: compiling 4 graphs" in caplog.messages for number in (1, 2)] == [True, True]
