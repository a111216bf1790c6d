"""What only a GPU can show: its kernels and collectives beside the CPU's, and that no update waits for it."""

import threading
from pathlib import Path

import numpy as np
import pytest
import tiny_tasks
import torch
import torch.distributed as dist
from small_training import NO_DROPOUT, configuration, small_model, train, train_events
from torch.nn import functional

from bert_model.finetuning import trial
from bert_model.finetuning.finetune import finetune
from bert_model.finetuning.worker_pool import WorkerPool
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.pretraining import trainer
from bert_model.pretraining.batch import Batch, make_batch
from bert_model.pretraining.data import InstanceReader, InstanceSplit
from bert_model.pretraining.packing import can_pack, choose_capacity, packed_batches
from bert_model.training.distributed import Group, autocast
from bert_model.training.gradients import build_gradient_sum, compile_layers, full_tensor, shard_parameters
from bert_model.zero_shot.exam import score_pairs
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.instances.masking import MaskingConfig
from bert_pipeline.manifest import load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

CPU, GPU = torch.device("cpu"), torch.device("cuda")
Tensors = dict[str, torch.Tensor]
NO_ATTENTION_DROPOUT = {"attention_probs_dropout_prob": 0.0}


def gpu_train(data, output, *, device="cuda", resume=False, after_step=None, vanish=None, **changes):
    config = configuration(data, **{"precision": "bfloat16"} | changes)
    train(config, output, device=device, resume=resume, after_step=after_step, vanish=vanish)
    return train_events(output)


def losses(events):
    return [event["train/loss"] for _, event in sorted(events.items())]


# --- kernels ---


def batch_of(data, device, first=0, *, packed=False):
    """Twelve instances of 8 to 32 tokens, as a GPU gets them."""
    manifest = load_manifest(Path(data["long"]), kind="instances")
    samples = InstanceReader(InstanceSplit(manifest.path, "train"), seed=1, groups_per_window=2).take(first, 12)
    vocabulary = Tokenizer.from_directory(manifest.path)
    if not packed:
        return make_batch(samples, MaskingConfig(), vocabulary, seed=1, device=GPU, few_sizes=True).to(device)
    sizes = {"num_instances": 12, "world_size": 1, "max_tokens": 1024, "max_length": 32}
    capacity = choose_capacity(samples, MaskingConfig(), **sizes)
    group = Group(rank=0, world_size=1, device=GPU)
    (batch,) = packed_batches(samples, capacity, MaskingConfig(), vocabulary, seed=1, group=group)
    return batch.to(device)


def model_on(device, **overrides):
    config = BertConfig.from_preset("tiny", vocab_size=60, max_position_embeddings=40, **overrides)
    return new_model(BertForPreTraining, config, seed=3).to(device).train()


def loss_sums(function, batch, precision):
    with autocast(batch.labels.device, precision):
        sums: tuple[torch.Tensor, torch.Tensor] = function(**batch.inputs)
    return sums


def loss_and_gradients(model, batch, precision):
    model.zero_grad()
    masked_lm, next_sentence = loss_sums(model.loss_sums, batch, precision)
    loss = masked_lm / batch.counts.predictions + next_sentence / 12
    loss.backward()
    return loss.item(), {name: p.grad.detach().cpu() for name, p in model.named_parameters() if p.grad is not None}


def assert_alike(found, expected, tolerance):
    """Gradients as vectors differ by at most this share of their length."""
    assert found.keys() == expected.keys()
    one, other = (torch.cat([item[name].flatten() for name in expected]) for item in (found, expected))
    assert (one - other).norm() <= tolerance * other.norm()


@pytest.mark.parametrize(
    ("precision", "packed", "tolerance"),
    [("float32", False, 1e-5), ("bfloat16", False, 2e-2), ("bfloat16", True, 2e-2)],
)
def test_loss_and_gradients_are_those_of_the_cpu(data, precision, packed, tolerance):
    expected_loss, expected = loss_and_gradients(model_on(CPU, **NO_DROPOUT), batch_of(data, CPU), "float32")
    batch = batch_of(data, GPU, packed=packed)
    loss, found = loss_and_gradients(model_on(GPU, **NO_DROPOUT), batch, precision)
    assert loss == pytest.approx(expected_loss, rel=tolerance)
    assert_alike(found, expected, tolerance)


def test_packed_attention_is_what_computes_without_its_dropout(data):
    kernels = {}
    for rate in (0.0, 0.1):
        model = model_on(GPU, attention_probs_dropout_prob=rate)
        batch = batch_of(data, GPU, packed=can_pack(model.config, GPU, "bfloat16"))
        with torch.profiler.profile() as profiler:
            loss_and_gradients(model, batch, "bfloat16")
        names = [event.key for event in profiler.key_averages()]
        kernels[rate] = {part for part in ("_varlen_attn", "scaled_dot_product") if any(part in name for name in names)}
    assert kernels == {0.0: {"_varlen_attn"}, 0.1: {"scaled_dot_product"}}


def test_attention_dropout_keeps_the_mean_of_what_is_attended():
    query, key, value = (torch.randn(2, 4, 64, 32, device=GPU, dtype=torch.bfloat16) for _ in range(3))
    mask = (torch.arange(64, device=GPU) < torch.tensor([[64], [40]], device=GPU))[:, None, None, :]
    whole_output = functional.scaled_dot_product_attention(query, key, value, mask).float()
    outputs = torch.stack(
        [functional.scaled_dot_product_attention(query, key, value, mask, dropout_p=0.1).float() for _ in range(400)]
    )
    assert outputs.std(0).min() > 0
    mean = outputs.mean(0)
    assert (mean - whole_output).norm() <= 0.05 * whole_output.norm()  # without 1 / (1 - p) it would be 0.1


def test_recomputed_blocks_have_equal_gradients_and_take_less_memory(data):
    results, peaks = [], []
    for recomputes in (False, True):
        model = model_on(GPU, num_hidden_layers=8)
        model.bert.recomputes_blocks = recomputes
        batch = batch_of(data, GPU)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.manual_seed(1)
        results.append(loss_and_gradients(model, batch, "bfloat16"))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert results[0][0] == results[1][0]
    assert_alike(results[1][1], results[0][1], 1e-3)
    assert peaks[1] < peaks[0]


# --- the host's waits ---


@pytest.fixture
def no_waits(monkeypatch):
    """Raise where the host waits for the GPU within an update; the list has the steps that were watched."""
    steps: list[int] = []
    train_step = trainer.Trainer._train_step

    def watched(self, step, *arguments):
        if step == 0:  # libraries are initialized
            return train_step(self, step, *arguments)
        steps.append(step)
        torch.cuda.set_sync_debug_mode("error")
        try:
            train_step(self, step, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(trainer.Trainer, "_train_step", watched)
    return steps


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": small_model(**NO_ATTENTION_DROPOUT), "compile": False},
        {"precision": "float32"},
        {"activation_checkpointing": True},
    ],
    ids=["padded", "packed", "float32", "recomputed"],
)
def test_update_does_not_wait_for_the_gpu(changes, data, tmp_path, no_waits):
    gpu_train(data, tmp_path / "training", **changes)
    assert no_waits == list(range(1, 14))
    torch.cuda.set_sync_debug_mode("error")  # sees waits
    try:
        with pytest.raises(RuntimeError, match="synchroniz"):
            torch.ones(1, device=GPU).item()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_batches_are_prepared_in_pinned_memory_by_another_thread(data, tmp_path, monkeypatch):
    pinned: list[bool] = []
    threads: list[bool] = []
    to, prepare = Batch.to, trainer.Trainer._prepare

    def watched(batch, device):
        pinned.append(batch.input_ids.is_pinned())
        return to(batch, device)

    def prepared(*arguments):
        threads.append(threading.current_thread() is threading.main_thread())
        return prepare(*arguments)

    monkeypatch.setattr(Batch, "to", watched)
    monkeypatch.setattr(trainer.Trainer, "_prepare", prepared)
    monkeypatch.setattr(trainer, "evaluate", lambda *given, **named: {})
    gpu_train(data, tmp_path / "training")
    assert len(pinned) >= 14 * 2
    assert all(pinned)
    assert threads.count(True) == 2  # the first batch of each phase
    assert len(threads) == 14


# --- trainings ---


@pytest.fixture(autouse=True)
def no_graphs():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def num_graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_training_has_the_losses_of_the_cpu(data, tmp_path):
    settings = {"model": small_model(**NO_DROPOUT), "precision": "float32"}
    expected = losses(gpu_train(data, tmp_path / "cpu", device="cpu", **settings))
    np.testing.assert_allclose(losses(gpu_train(data, tmp_path / "gpu", **settings)), expected, rtol=1e-4)
    in_bfloat16 = gpu_train(data, tmp_path / "bfloat16", **settings | {"precision": "auto"})
    np.testing.assert_allclose(losses(in_bfloat16), expected, rtol=1e-2)


@pytest.mark.parametrize("compiled", [False, True])
def test_resumed_training_sees_the_same_samples_with_the_same_dropout(compiled, data, tmp_path):
    whole_run = gpu_train(data, tmp_path / "whole", compile=compiled)

    gpu_train(data, tmp_path / "resumed", vanish=7, compile=compiled)
    steps: list[int] = []
    resumed = gpu_train(data, tmp_path / "resumed", resume=True, after_step=steps.append, compile=compiled)
    assert steps == list(range(steps[0], 15))
    assert steps[0] in (4, 7)  # the checkpoint of step 6 may not have been complete
    assert list(resumed) == list(whole_run)
    np.testing.assert_allclose(losses(resumed), losses(whole_run), rtol=1e-3)
    assert (num_graphs() > 0) == compiled


def test_compiled_training_has_the_losses_of_an_eager_one_and_few_graphs(data, tmp_path):
    settings = {"model": small_model(**NO_DROPOUT)}
    eager = gpu_train(data, tmp_path / "eager", compile=False, **settings)
    compiled = gpu_train(data, tmp_path / "compiled", **settings)
    np.testing.assert_allclose(losses(compiled), losses(eager), rtol=1e-2)
    assert num_graphs() == 8  # of two phases


def test_each_phase_has_a_size_of_micro_batches_that_fits_into_memory(data, tmp_path, caplog):
    caplog.set_level("INFO")
    gpu_train(data, tmp_path / "training", model=small_model(**NO_DROPOUT))
    assert caplog.text.count("micro-batches of ") == 2  # all of a step fits


# --- collectives ---


@pytest.fixture
def one_rank():
    """A process group of one rank, with NCCL for the GPU: with one GPU there can be no second."""
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield Group(rank=0, world_size=1, device=torch.device("cuda", 0))
    dist.destroy_process_group()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_gradients_of_one_rank_are_those_of_the_buffer(kind, compiled, data, one_rank):
    found: dict[str, Tensors] = {}
    numbers: dict[str, float] = {}
    batches = [batch_of(data, one_rank.device, first) for first in (0, 12)]
    for name in ("buffer", kind):
        model = model_on(one_rank.device, **NO_DROPOUT)
        if name == "fsdp":
            shard_parameters(model, one_rank)
        sums = build_gradient_sum(name, model, one_rank, num_numbers=1)

        def accumulate(batch, sums=sums):
            masked_lm, next_sentence = loss_sums(sums.loss_sums, batch, "bfloat16")
            sums.numbers += masked_lm.detach()
            (masked_lm + next_sentence).backward()

        sums.prepare(lambda: accumulate(batches[0]))
        if compiled and name == kind:
            compile_layers(model)
        for _ in range(2):
            sums.zero()
            for batch, is_last in zip(batches, (False, True)):
                with sums.accumulating(is_last=is_last):
                    accumulate(batch)
            sums.all_reduce()
        found[name] = {key: full_tensor(p.grad).cpu() for key, p in model.named_parameters()}  # type: ignore[arg-type]
        numbers[name] = sums.numbers.item()
    assert_alike(found[kind], found["buffer"], 1e-2)
    assert numbers[kind] == pytest.approx(numbers["buffer"], rel=1e-3)
    assert (num_graphs() > 0) == compiled


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_training_of_one_rank_is_that_without_a_process_group(kind, data, tmp_path, monkeypatch, one_rank):
    settings = {"model": small_model(**NO_DROPOUT)}
    alone = gpu_train(data, tmp_path / "alone", **settings)
    monkeypatch.setattr(trainer, "resolve_data_parallel", lambda *_: kind)
    monkeypatch.setattr("bert_model.pretraining.run_directory.resolve_data_parallel", lambda *_: kind)

    gpu_train(data, tmp_path / kind, vanish=7, **settings)
    steps: list[int] = []
    found = gpu_train(data, tmp_path / kind, resume=True, after_step=steps.append, **settings)
    assert steps == list(range(steps[0], 15))
    assert steps[0] in (4, 7)
    np.testing.assert_allclose(losses(found), losses(alone), rtol=1e-2)


# --- fine-tuning and exam ---


@pytest.mark.parametrize("name", ["sst2", "stsb", "squad2", "ner"])
def test_finetuning_does_not_wait_for_the_gpu(name, tmp_path, monkeypatch):
    model = tiny_tasks.make_model(tmp_path / "tiny")
    backward = trial._backward
    steps: list[int] = []

    def watched(*arguments):
        torch.cuda.set_sync_debug_mode("error" if steps else "default")  # the first step initializes libraries
        steps.append(1)
        try:
            return backward(*arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(trial, "_backward", watched)
    config = tiny_tasks.configuration(classifier_dropout=0.0)
    pool = WorkerPool(num_workers=0)
    assert pool.devices[0] == "cuda:0"
    found = finetune(tiny_tasks.task_data(name), model, tmp_path / "out", config, pool=pool, experiment="")
    assert found.results["winner"]["steps"] == len(steps)


def test_exam_scores_pairs_as_on_the_cpu(data):
    tokenizer = Tokenizer.from_directory(Path(data["long"]))
    pairs = [
        Pair(pair_id=str(n), kind="k", good=(f"w{n} w{n + 1} w{n + 2}",), bad=(f"w{n + 1} w{n}",)) for n in range(20)
    ]
    on_cpu, on_gpu = (score_pairs(model_on(device).eval(), tokenizer, pairs) for device in (CPU, GPU))
    np.testing.assert_allclose(on_gpu.good, on_cpu.good, atol=1e-4)
    np.testing.assert_allclose(on_gpu.bad, on_cpu.bad, atol=1e-4)
