"""How the learned positions of a longer BERT may begin: four rules, by their losses before and after more training.

A model is extended to the length of an instance directory by each rule and trained on for the same steps, with the same
samples and masks. Losses are those of held-out instances, of the first half of the positions and of the second.
"""

import dataclasses
import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program, working_directory
from bert_model.conversion.vocabulary_transfer import POSITIONS
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.weights import load_model, read_weights, write_weights
from bert_model.pretraining.batch import make_batch, split_micro_batches
from bert_model.pretraining.config import INITIAL_SIZE, ModelConfig, PhaseConfig, PretrainingConfig
from bert_model.pretraining.data import InstanceSplit, held_out_samples
from bert_model.pretraining.evaluation import EVALUATION_SEED
from bert_model.pretraining.run import pretrain
from bert_model.training.schedule import OptimizerConfig
from bert_pipeline.instances.masking import MaskingConfig
from bert_pipeline.manifest import load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

BATCH_SIZE = 32
RULES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "repeated": lambda learned, count: learned.repeat(-(-count // len(learned)), 1)[:count],
    "stretched": lambda learned, count: functional.interpolate(learned.T[None], size=count, mode="linear")[0].T,
    "mean": lambda learned, count: torch.cat([learned, learned.mean(0).expand(count - len(learned), -1)]),
    "random": lambda learned, count: torch.cat(
        [
            learned,
            0.02 * torch.randn(count - len(learned), learned.shape[1], generator=torch.Generator().manual_seed(1)),
        ]
    ),
}
"""Learned positions (n, H) and how many there shall be -> (count, H)."""


@torch.inference_mode()
def losses_of_halves(directory: Path, instances: Path, length: int, limit: int) -> list[float]:
    """Return the masked-LM loss of the first half of the positions and of the second, in nats a token."""
    model, _ = load_model(BertForPreTraining, directory, log=False)
    tokenizer = Tokenizer.from_directory(directory)
    sums, counts = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for samples in held_out_samples(InstanceSplit(instances, "held_out"), limit=limit, rank=0, world_size=1):
        for part in split_micro_batches(samples, BATCH_SIZE):
            batch = make_batch(part, MaskingConfig(), tokenizer, seed=EVALUATION_SEED)
            logits = model.eval()(
                batch.input_ids,
                batch.attention_mask,
                batch.token_type_ids,
                token_indices=batch.token_indices,
                masked_lm_positions=batch.masked_lm_positions,
            ).prediction_logits  # (B, M, V)
            losses = functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
            half = (batch.masked_lm_positions.flatten() >= length // 2).long()
            sums.index_add_(0, half, losses.double())
            counts.index_add_(0, half, (batch.labels.flatten() >= 0).double())
    return (sums / counts).tolist()


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Train every rule for each number of steps, and print the losses."""
    parser = program("positions", __doc__)
    parser.add_argument("--model", type=Path, required=True, help="a pre-trained model of BERT's architecture")
    parser.add_argument("--instances", type=Path, required=True, help="instances longer than its positions")
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 50, 400], help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="default: %(default)g")
    parser.add_argument("--held-out", type=int, default=512, help="held-out instances (default: %(default)s)")
    args = parser.parse_args(arguments)
    length = load_manifest(args.instances, kind="instances").configuration["max_seq_length"]
    weights, config = read_weights(args.model), BertConfig.from_directory(args.model)
    rows = []
    for name, rule in RULES.items():
        start, run = (working_directory("positions") / f"{name}-{part}" for part in ("start", "run"))
        start.mkdir(parents=True, exist_ok=True)
        tensors = {**weights.tensors, POSITIONS: rule(weights.tensors[POSITIONS].float(), length).contiguous()}
        longer = dataclasses.replace(config, max_position_embeddings=length)
        write_weights(tensors, longer, weights.architecture, start)
        Tokenizer.from_directory(args.model).save(start, model_max_length=length)
        cells = []
        for steps in args.steps:
            shutil.rmtree(run, ignore_errors=True)
            if steps:
                pretrain(_training(start, args.instances, length, steps, args.learning_rate), run, experiment="")
            losses = losses_of_halves(run / "model" if steps else start, args.instances, length, args.held_out)
            cells.append(", ".join(f"{loss:.2f}" for loss in losses))
        rows.append((name, *cells))
    print(describe_machine(("torch",)))
    print(f"{length} positions from {len(weights.tensors[POSITIONS])}; losses of the first half and of the second")
    print(markdown_table(("rule", *(f"{steps} steps" for steps in args.steps)), rows))
    return 0


def _training(start: Path, instances: Path, length: int, steps: int, learning_rate: float) -> PretrainingConfig:
    phase = functools.partial(
        PhaseConfig, max_seq_length=length, global_batch_size=BATCH_SIZE, instances=str(instances)
    )
    return PretrainingConfig(
        model=ModelConfig(preset=INITIAL_SIZE),
        phases=(phase(steps=steps, learning_rate=learning_rate, warmup_steps=steps // 10),),
        initial_model=str(start),
        objective="mlm",
        optimizer=OptimizerConfig(name="adamw"),
        micro_batch_size=BATCH_SIZE,
        precision="auto",
        evaluation_interval_steps=0,
        checkpoint_interval_steps=0,
    )


if __name__ == "__main__":
    raise SystemExit(main())
