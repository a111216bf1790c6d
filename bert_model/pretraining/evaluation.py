"""Held-out evaluation: of a model in training, and of a published model to check its recorded metrics."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from bert_model.model.bert import BertForPreTraining
from bert_model.model.weights import load_model
from bert_model.pretraining.batch import Batch, make_batch, split_micro_batches
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import held_out_samples
from bert_model.pretraining.phases import Phase, load_phases
from bert_model.pretraining.run_directory import CONFIGURATION_NAME
from bert_model.training.distributed import Group, autocast, process_group
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ArtifactError
from bert_pipeline.vocabulary.tokenizer import Tokenizer

EVALUATION_SEED = 20181011
"""Seed of the masks of held-out instances: the same for every run, so that losses are comparable."""

MAX_TOKENS = 16_384
"""Tokens of a micro-batch at most, with padding: the logits of all its predictions are in memory at once."""


@torch.no_grad()
def evaluate(
    model: BertForPreTraining,
    phase: Phase,
    config: PretrainingConfig,
    vocabulary: Tokenizer,
    group: Group,
    *,
    after_batch: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Return the "held_out/…" losses and accuracies (0-100) of a phase; {} without held-out instances.

    Every rank evaluates its share of the instances, and all ranks return the same metrics. `after_batch` is called
    after every micro-batch.
    """
    was_training = model.training
    model.eval()
    totals = torch.zeros(7, dtype=torch.float64)
    shares = held_out_samples(
        phase.held_out, limit=config.evaluation_max_instances, rank=group.rank, world_size=group.world_size
    )
    for samples in shares:
        size = min(config.micro_batch_size, max(1, MAX_TOKENS // int(samples.lengths.max())))
        for part in split_micro_batches(samples, size):
            batch = make_batch(part, phase.masking, vocabulary, seed=EVALUATION_SEED, device=group.device)
            totals += batch_totals(model, batch.to(group.device), config.precision)
            after_batch()
    model.train(was_training)

    # Sums over all ranks become means.
    sums = group.all_reduce_numbers(*totals.tolist())
    masked_lm, correct, next_sentence, next_correct, random_next, predictions, instances = sums
    if not instances:
        return {}
    loss = masked_lm / max(predictions, 1.0)
    metrics = {
        "held_out/mlm_loss": loss,
        "held_out/mlm_accuracy": 100.0 * correct / max(predictions, 1.0),
        "held_out/perplexity": math.exp(min(loss, 700.0)),  # it overflows beyond 709
    }
    # The accuracy of a constant answer is recorded too: it depends on the data, not on the model.
    if config.objective == "mlm_nsp":
        metrics |= {
            "held_out/nsp_loss": next_sentence / instances,
            "held_out/nsp_accuracy": 100.0 * next_correct / instances,
            "held_out/nsp_majority": 100.0 * max(random_next, instances - random_next) / instances,
        }
    return metrics | {"held_out/instances": instances}


def batch_totals(model: BertForPreTraining, batch: Batch, precision: str) -> Tensor:
    """Return the sums over a micro-batch that the metrics are computed from, (7,) float64, the MLM loss first."""
    with autocast(batch.input_ids.device, precision):
        output = model(
            batch.input_ids,
            batch.attention_mask,
            batch.token_type_ids,
            token_indices=batch.token_indices,
            masked_lm_positions=batch.masked_lm_positions,
        )
    logits = output.prediction_logits.flatten(0, 1).float()  # (B * M, V)
    masked_lm = functional.cross_entropy(logits, batch.labels.flatten(), reduction="sum")
    correct = (output.prediction_logits.argmax(-1) == batch.labels).sum()  # of (B, M)
    next_sentence = functional.cross_entropy(
        output.seq_relationship_logits.float(), batch.next_sentence_label, reduction="sum"
    )
    next_correct = (output.seq_relationship_logits.argmax(-1) == batch.next_sentence_label).sum()  # of (B,)
    random_next = batch.next_sentence_label.sum()
    # One transfer from a GPU; the rest is known on the host.
    sums = torch.stack([masked_lm, correct, next_sentence, next_correct, random_next]).double().cpu()  # (5,)
    return torch.cat([sums, torch.tensor([batch.counts.predictions, batch.counts.instances])])


def measure_held_out(model: Path | str, *, instances: Callable[[int], Path | str] | None = None) -> dict[str, float]:
    """Evaluate a published model again, as the last evaluation of its run did.

    The configuration is read from the run directory that holds the model, and with it the directory of the instances,
    a URL without its secrets, unless `instances` returns that of a length. Raise ArtifactError if the configuration is
    gone, ConfigurationError or InputError if model and instances do not fit.
    """
    model = Path(model)
    path = model.parent / CONFIGURATION_NAME
    try:
        config = from_mapping(PretrainingConfig, json.loads(path.read_text(encoding="utf-8"))["configuration"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: the run's configuration cannot be read ({error})") from None

    last = config.phases[-1]
    if instances is not None:
        last = dataclasses.replace(last, instances=str(instances(last.max_seq_length)))
    (phase,), _ = load_phases(dataclasses.replace(config, phases=(last,)))
    tokenizer = Tokenizer.from_directory(model)
    phase.held_out.check_vocabulary(tokenizer)
    with process_group(config.timeout_seconds) as group:
        weights, _ = load_model(BertForPreTraining, model)
        return evaluate(weights.to(group.device), phase, config, tokenizer, group)
