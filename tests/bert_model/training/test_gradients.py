"""Two gloo ranks: gradients of the flat buffer, of DDP and of FSDP equal those of transformers on the whole batch."""

import functools
from typing import Literal

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from two_ranks import run_ranks

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import write_weights
from bert_model.training.distributed import Group, process_group
from bert_model.training.gradients import (
    GradientBuffer,
    ReplicatedGradients,
    build_gradient_sum,
    compile_layers,
    full_tensor,
    resolve_data_parallel,
    shard_like,
    shard_parameters,
    unsharded,
)
from bert_model.training.optimizer import build_optimizer, clip_gradients, load_optimizer_tensors, optimizer_tensors
from bert_model.training.schedule import OptimizerConfig
from bert_pipeline.errors import ConfigurationError, TrainingError

Kind = Literal["buffer", "ddp", "fsdp"]
KINDS: tuple[Kind, ...] = ("buffer", "ddp", "fsdp")

CONFIG = BertConfig.from_preset(
    "tiny",
    vocab_size=61,
    hidden_size=32,
    intermediate_size=64,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def batch(index, length=9):
    """Two padded sequences with two predictions each."""
    generator = torch.Generator().manual_seed(index)
    mask = torch.arange(length) < torch.tensor([[length], [6]])
    return {
        "input_ids": torch.randint(5, 61, (2, length), generator=generator) * mask,
        "attention_mask": mask,
        "token_type_ids": torch.zeros(2, length, dtype=torch.int64),
        "token_indices": mask.flatten().nonzero().squeeze(1),
        "masked_lm_positions": torch.tensor([[1, 2], [3, 4]]),
        "prediction_indices": torch.arange(4),
        "labels": torch.randint(5, 61, (2, 2), generator=generator),
        "next_sentence_label": torch.tensor([0, 1]),
    }


def build(kind, group, config=CONFIG):
    model = new_model(BertForPreTraining, config, seed=1)
    if kind == "fsdp":
        shard_parameters(model, group)
    return model, build_gradient_sum(kind, model, group, num_numbers=1)


def accumulate(gradients, index, length=9):
    masked_lm, next_sentence = gradients.loss_sums(**batch(index, length))
    gradients.numbers += masked_lm.detach()
    (masked_lm + next_sentence).backward()


def step(gradients, group, number):
    """Sum the gradients of two micro-batches of each rank; the batches are numbered through ranks and steps."""
    gradients.zero()
    for micro_batch in range(2):
        with gradients.accumulating(is_last=micro_batch == 1):
            accumulate(gradients, 10 * number + 2 * group.rank + micro_batch)
    gradients.all_reduce()


def store_gradients(output):
    """Store the gradients of two steps without updates, as each rank has them, of every kind."""
    with process_group(60, "cpu") as group:
        for kind in KINDS:
            model, gradients = build(kind, group)
            gradients.prepare(functools.partial(accumulate, gradients, 100))
            for number in range(2):
                step(gradients, group, number)
                found = {name: full_tensor(parameter.grad) for name, parameter in model.named_parameters()}  # type: ignore[arg-type]
                torch.save((gradients.numbers, found), output / f"{kind}-{number}-{group.rank}.pt")


def test_gradients_equal_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    assert run_ranks(2, store_gradients, tmp_path) == [0, 0]
    (tmp_path / "model").mkdir()
    model = new_model(BertForPreTraining, CONFIG, seed=1)
    write_weights(dict(model.named_parameters()), CONFIG, "BertForPreTraining", tmp_path / "model")
    for number in range(2):
        theirs = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "model").train()
        masked_lm_loss = 0.0
        for index in range(10 * number, 10 * number + 4):
            given = batch(index)
            output = theirs(given["input_ids"], given["attention_mask"], given["token_type_ids"])
            logits = output.prediction_logits.gather(
                1, given["masked_lm_positions"].unsqueeze(-1).expand(-1, -1, CONFIG.vocab_size)
            )
            masked_lm = nn.functional.cross_entropy(logits.flatten(0, 1), given["labels"].flatten(), reduction="sum")
            following = nn.functional.cross_entropy(
                output.seq_relationship_logits, given["next_sentence_label"], reduction="sum"
            )
            (masked_lm + following).backward()
            masked_lm_loss += masked_lm.item()
        expected: dict[str, Tensor] = {name: parameter.grad for name, parameter in theirs.named_parameters()}
        for kind in KINDS:
            numbers, found = torch.load(tmp_path / f"{kind}-{number}-0.pt")
            assert numbers.item() == pytest.approx(masked_lm_loss, rel=1e-5)
            for name, gradient in found.items():
                torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-5)
            # All ranks have the same bits, and two ranks leave no choice of the order.
            assert all(
                torch.equal(found[name], other)
                for name, other in torch.load(tmp_path / f"{kind}-{number}-1.pt")[1].items()
            )


def store_updates(name, output):
    """Store weights and optimizer state after three clipped updates, the last after a restart; sharded and not."""
    with process_group(60, "cpu") as group:
        for kind in ("buffer", "fsdp"):
            model, gradients = build(kind, group)
            optimizer = build_optimizer(model, OptimizerConfig(name=name), 0.01)
            for number in range(3):
                if number == 2:  # continue in a new model from the whole tensors
                    weights = {key: full_tensor(value.detach()).clone() for key, value in model.named_parameters()}
                    state = {
                        key: full_tensor(value).clone() for key, value in optimizer_tensors(model, optimizer).items()
                    }
                    model, gradients = build(kind, group)
                    optimizer = build_optimizer(model, OptimizerConfig(name=name), 0.01)
                    with torch.no_grad():
                        for key, parameter in model.named_parameters():
                            parameter.copy_(shard_like(weights[key], parameter))
                    load_optimizer_tensors(model, optimizer, state)
                step(gradients, group, number)
                norm = clip_gradients(model.parameters(), 1.0)
                optimizer.step()
            tensors = {key: full_tensor(value) for key, value in optimizer_tensors(model, optimizer).items()}
            with unsharded(model):
                tensors |= {key: value.detach().clone() for key, value in model.named_parameters()}
            torch.save(tensors | {"norm": norm}, output / f"{name}-{kind}-{group.rank}.pt")


@pytest.mark.parametrize("name", ["bert_adam", "adamw"])
def test_optimizers_update_sharded_parameters_as_whole_ones(tmp_path, name):
    assert run_ranks(2, store_updates, name, tmp_path) == [0, 0]
    for rank in (0, 1):
        found, expected = (torch.load(tmp_path / f"{name}-{kind}-{rank}.pt") for kind in ("fsdp", "buffer"))
        assert found.keys() == expected.keys()
        assert found["norm"] > 1.0
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], atol=1e-5, rtol=1e-4)


class PartlyUsed(nn.Module):
    """A model with a parameter that the loss does not depend on."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = (nn.Linear(4, 4, bias=False) for _ in range(2))

    def loss_sums(self, inputs):
        return self.used(inputs).sum(), inputs.sum()


def sum_missing_gradient():
    with process_group(60, "cpu") as group:
        for kind in ("buffer", "ddp"):
            model = PartlyUsed()
            model.register_buffer("constant", torch.tensor(group.rank))
            gradients = build_gradient_sum(kind, model, group, num_numbers=1)

            def backward(gradients=gradients):
                gradients.loss_sums(torch.ones(4))[0].backward()

            if kind == "ddp":
                with pytest.raises(TrainingError, match="summed 0 of 2 gradients, because the loss does not depend on"):
                    gradients.prepare(backward)
                assert model.constant == group.rank  # buffers are not sent
                continue
            backward()
            gradients.all_reduce()
            assert model.used.weight.grad.unique().tolist() == [2.0]  # type: ignore[union-attr]
            assert model.unused.weight.grad.unique().tolist() == [0.0]  # type: ignore[union-attr]

        # FSDP sums the others, and the optimizer leaves that parameter unchanged.
        sharded, gradients = build("fsdp", group)
        gradients.loss_sums(**batch(0))[0].backward()
        gradients.all_reduce()
        without = {name for name, parameter in sharded.named_parameters() if parameter.grad is None}
        assert {name.rpartition(".")[0] for name in without} == {"bert.pooler.dense", "cls.seq_relationship"}


def test_parameter_without_a_gradient_is_summed_as_0_left_out_or_reported():
    assert run_ranks(2, sum_missing_gradient) == [0, 0]


def sum_compiled(kind):
    """Compile layer by layer: the gradients are the same, and batches of other sizes take no other graphs."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1024
    nn.parallel.DistributedDataParallel = functools.partial(nn.parallel.DistributedDataParallel, bucket_cap_mb=0.02)  # type: ignore[assignment, misc]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = Group(rank=0, world_size=1, device=torch.device("cpu"))
    model, plain = build("buffer", group)
    step(plain, group, 0)
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}

    model, gradients = build(kind, group)
    events: list[str] = []
    if isinstance(gradients, ReplicatedGradients):
        sum_bucket = gradients._sum_bucket
        gradients._sum_bucket = lambda bucket: (events.append("bucket"), sum_bucket(bucket))[1]  # type: ignore[method-assign]
    hook = model.bert.embeddings.register_forward_hook(
        lambda module, given, output: output.register_hook(lambda gradient: events.append("embeddings")) and None
    )
    gradients.prepare(lambda: accumulate(gradients, 100))
    # Compiling backward passes takes longest: it is left out for the kind that sends nothing during them.
    compile_layers(model, backend="eager" if kind == "buffer" else "aot_eager")
    events.clear()
    step(gradients, group, 0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(full_tensor(parameter.grad), expected[name], atol=1e-5, rtol=1e-5)  # type: ignore[arg-type]
    if kind == "ddp":  # buckets are sent before the backward pass reaches the embeddings
        assert events.count("bucket") > 3
        last = len(events) - 1 - events[::-1].index("embeddings")  # of the last micro-batch
        assert events[:last].count("bucket") > 2

    # One graph for the last layer and one for the others.
    hook.remove()
    for length in (8, 7):
        with gradients.accumulating(is_last=True):
            accumulate(gradients, 200, length)
    with torch.no_grad(), unsharded(model):
        model.eval().loss_sums(**batch(201))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_layers_compiled_alone_sum_the_same_gradients_from_two_graphs(kind):
    assert run_ranks(1, sum_compiled, kind) == [0]


def test_one_process_sums_nothing_and_gpus_never_use_the_buffer():
    def resolved(kind, world_size, device):
        return resolve_data_parallel(kind, Group(rank=0, world_size=world_size, device=torch.device(device)))

    assert [resolved(kind, 1, "cuda") for kind in ("auto", "buffer", "ddp", "fsdp")] == ["buffer"] * 4
    assert [resolved("auto", 2, device) for device in ("cpu", "cuda")] == ["buffer", "ddp"]
    assert resolved("fsdp", 2, "cpu") == "fsdp"
    with pytest.raises(ConfigurationError, match="found 'buffer' on GPUs, expected 'auto', 'ddp' or 'fsdp'"):
        resolved("buffer", 2, "cuda")


def test_gradients_lie_in_one_buffer_behind_the_numbers():
    model = new_model(BertForPreTraining, CONFIG, seed=1)
    buffer = GradientBuffer(model, Group(rank=0, world_size=1, device=torch.device("cpu")), 1)
    accumulate(buffer, 0)
    sizes = [(parameter.grad.data_ptr() - buffer.flat.data_ptr()) % 64 for parameter in model.parameters()]  # type: ignore[union-attr]
    assert set(sizes) == {0}
    assert buffer.flat[1:].count_nonzero() == sum(parameter.grad.count_nonzero() for parameter in model.parameters())  # type: ignore[union-attr, misc]
