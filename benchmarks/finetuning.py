"""Fine-tuning in examples per second, training and predicting, compared with transformers' Trainer; SQuAD windows.

Both sides train the same model from the same weights on the same encoded rows, batch size, precision, dropout,
schedule and clipping, and then predict the same rows. The Trainer runs with its defaults (batches in random order,
padded to their longest) and with batches of like lengths. It needs `accelerate`.
The seed is the number of the round: on a whole task, the scores of both sides are comparable, with their deviation.
"""

import abc
import argparse
import copy
import dataclasses
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import torch

from benchmarks.harness import (
    Contestant,
    Row,
    describe_machine,
    errors_as_exit_codes,
    medians,
    program,
    render,
    working_directory,
)
from benchmarks.inputs import sample_dump, sample_instances
from bert_model.finetuning.config import FinetuningConfig, task_configuration
from bert_model.finetuning.forward_passes import predict_logits
from bert_model.finetuning.search import Initialization, Setting, Trial
from bert_model.finetuning.trial import TrialJob, initial_model, task_model_config, train_model
from bert_model.kinds import kind_of
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import save_model
from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.errors import UsageError
from bert_pipeline.tasks.catalogue import Task, get_task
from bert_pipeline.tasks.task import load_task_data, read_examples
from bert_pipeline.vocabulary.tokenizer import Tokenizer

PEER = "transformers' Trainer"
UNIT = "examples/s"
TARGETS = {("training", "random order"): 1.8, ("training", "like lengths"): 1.1, ("predicting", "random order"): 1.5}
"""Minimum ratio to the peer's rate on a CPU."""
WINDOWS_TARGET = 1500.0
"""Question windows per second and core."""


class FinetuningCase:
    """The model, rows and settings that both sides train and predict with."""

    def __init__(
        self,
        task: Task,
        train: Sequence[Any],
        dev: Sequence[Any],
        args: argparse.Namespace,
        *,
        device: str,
        learning_rate: float,
        optimizer: str = "bert_adam",
    ) -> None:
        """Encode the examples of a task for the model that the arguments name."""
        self.task, self.dev_examples, self.device = task, dev, device
        self.model: Path = args.model or fresh_model(args.size)
        self.tokenizer = Tokenizer.from_directory(self.model)
        shape, config = BertConfig.from_directory(self.model), task_configuration(task.name)
        self.title = f"{task.title}, {shape.num_hidden_layers} layers of {shape.hidden_size}, {args.precision}"
        self.train, self.dev = (kind_of(task).encode(part, self.tokenizer, config) for part in (train, dev))
        self.batch_size: int = args.batch_size
        self.epochs: float = args.epochs
        self.precision: str = args.precision
        self.learning_rate = learning_rate
        self.optimizer = optimizer  # ours; the Trainer's is AdamW

    def replace(self, **values: Any) -> Self:
        """Return the case with other values of some attributes."""
        case = copy.copy(self)
        vars(case).update(values)
        return case

    @property
    def label_mean(self) -> float:
        """What a regression predicts before training, on both sides; 0 for a classification."""
        return float(self.train.row_columns["labels"].mean()) if self.task.kind == "regression" else 0.0

    def score(self, logits: np.ndarray) -> float:
        """Return the task's main metric for logits of the dev rows."""
        config = FinetuningConfig(precision=self.precision)  # type: ignore[arg-type]
        return kind_of(self.task).evaluate(self.dev_examples, self.dev, logits, config).scores[self.task.main_metric]


class Finetuning(abc.ABC):
    """Fine-tunings by one side, each from the same weights, and predictions."""

    def __init__(self, case: FinetuningCase) -> None:
        self.case = case
        self.scores: list[float] = []

    def train(self) -> float:
        """Train from the initial weights with the next seed, and score; return examples per second of the training."""
        seconds = self.train_from(1 + len(self.scores))
        self.scores.append(self.case.score(self.logits()))
        return self.case.epochs * self.case.train.num_examples / seconds

    def predict(self) -> float:
        """Predict the dev rows; return examples per second."""
        started = time.perf_counter()
        self.predict_dev()
        return self.case.dev.num_examples / (time.perf_counter() - started)

    @abc.abstractmethod
    def train_from(self, seed: int) -> float:
        """Train from the initial weights; return the seconds of the loop."""

    @abc.abstractmethod
    def logits(self) -> np.ndarray:
        """Return the outputs for the dev rows."""

    def predict_dev(self) -> None:
        """Predict the dev rows, in any order."""
        self.logits()


class OurFinetuning(Finetuning):
    """The training loop of `bert finetune`."""

    def __init__(self, case: FinetuningCase, *, weights: Literal["pretrained", "random"] = "pretrained") -> None:
        super().__init__(case)
        config = FinetuningConfig(precision=case.precision, optimizer=case.optimizer)  # type: ignore[arg-type]
        setting = Setting(case.learning_rate, case.batch_size, case.epochs)
        self.job = TrialJob(
            trial=Trial(Initialization(weights, weights), setting, seed=1),
            task=case.task,
            config=config,
            model=case.model,
            model_config=task_model_config(BertConfig.from_directory(case.model), config, case.task),
        )
        self.model = initial_model(self.job, case.train).to(case.device)

    def train_from(self, seed: int) -> float:
        job = dataclasses.replace(self.job, trial=dataclasses.replace(self.job.trial, seed=seed))
        torch.manual_seed(seed)
        self.model = initial_model(job, self.case.train).to(self.case.device)
        return train_model(self.model, job, self.case.train)[2]

    def logits(self) -> np.ndarray:
        return predict_logits(self.model, self.case.dev, precision=self.case.precision)


Side: TypeAlias = Callable[[FinetuningCase], Finetuning]


def peer_finetuning(case: FinetuningCase, *, grouped: bool = False) -> Finetuning:
    """Return the Trainer, with batches in random order or of like lengths."""
    from benchmarks.transformers_peers import TransformersFinetuning

    return TransformersFinetuning(case, grouped=grouped)


def measure(case: FinetuningCase, rounds: int) -> list[Row]:
    """Train and predict with every contestant, in alternating rounds."""
    ours = OurFinetuning(case)
    peers: dict[str, Finetuning] = {}
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        names = ("random order", "like lengths")
        peers = {name: peer_finetuning(case, grouped=name == "like lengths") for name in names}
    train: dict[str, Contestant] = {"ours": ours.train, **{name: peer.train for name, peer in peers.items()}}
    predict: dict[str, Contestant] = {"ours": ours.predict, **{name: peer.predict for name, peer in peers.items()}}
    rows = []
    for what, contestants in (("training", train), ("predicting", predict)):
        rates = medians(contestants, rounds, what)
        for name in peers or ("",):
            note = ""
            if what == "training":
                note = f"{case.task.main_metric} {mean_and_deviation(ours.scores)}"
                note += f", the peer's {mean_and_deviation(peers[name].scores)}" if peers else ""
            target = TARGETS.get((what, name)) if case.device == "cpu" else None
            peer = f"{PEER}, {name}" if name else PEER
            rows.append(
                Row(what=f"{what}, {case.title}", unit=UNIT, ours=rates["ours"], peer=peer, theirs=rates.get(name),
                    note=note, target_ratio=target)
            )  # fmt: skip
    return rows


def mean_and_deviation(scores: Sequence[float]) -> str:
    """Return "mean ± standard deviation", or the only score."""
    deviation = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.fmean(scores):.1f}{deviation}"


def encoding_rate(examples: Sequence[Any], tokenizer: Tokenizer, task_name: str) -> float:
    """Encode questions once in this thread; return windows per second."""
    config = FinetuningConfig(max_seq_length=384, doc_stride=128)
    started = time.perf_counter()
    encoded = kind_of(get_task(task_name)).encode(examples, tokenizer, config)
    return encoded.num_rows / (time.perf_counter() - started)


def case_of(args: argparse.Namespace, device: str) -> FinetuningCase:
    """Read, sample and encode the examples that the arguments ask for."""
    task = get_task(args.task)
    if task.kind != "classification":
        raise UsageError(f"--task {args.task}: found {task.kind}, expected a classification")
    data = load_task_data(task, args.data or generated_tasks())
    rng = np.random.default_rng(1)
    train, dev = (
        [examples[index] for index in rng.permutation(len(examples))[: args.examples]]
        for examples in (data.train, next(iter(data.dev.values())))
    )
    return FinetuningCase(task, train, dev, args, device=device, learning_rate=args.learning_rate)


def generated_tasks() -> Path:
    """Return the directory of generated task files, which is created if it is missing."""
    return sample_dump(working_directory("finetuning")).parent


def fresh_model(size: str) -> Path:
    """Return a model of random weights (speed does not depend on them) with the vocabulary of the generated text."""
    directory = working_directory("finetuning") / f"model-{size}"
    if not (directory / "config.json").is_file():
        instances = sample_instances(working_directory("finetuning"), vocab_size=8000, max_seq_length=128)
        tokenizer = Tokenizer.from_directory(instances.path)
        config = BertConfig.from_preset(size, vocab_size=8000)
        directory.mkdir()
        save_model(new_model(BertForPreTraining, config, seed=1), directory, tokenizer)
    return directory


def argument_parser(device: str) -> argparse.ArgumentParser:
    """Return the program's parser."""
    parser = program("finetuning", __doc__, rounds=5, quick="one short round: shows that it runs")
    parser.add_argument("--data", type=Path, help="a folder of task files (default: generated ones)")
    parser.add_argument("--task", default="qnli", help="a classification task (default: %(default)s)")
    parser.add_argument("--squad", type=Path, help="a SQuAD 1.1 file (default: a generated one)")
    parser.add_argument("--model", type=Path, help="a model directory (default: random weights of --size)")
    parser.add_argument("--size", default="base" if device == "cuda" else "mini")
    parser.add_argument("--examples", type=int, default=512, help="examples trained on and predicted in a round")
    parser.add_argument("--epochs", type=float, default=1.0, help="epochs of a round (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument(
        "--precision", default="bfloat16" if device == "cuda" else "float32", choices=["float32", "bfloat16"]
    )
    return parser


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    args = argument_parser(device).parse_args(arguments)
    if args.quick:
        args.rounds, args.examples = 1, 64
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # windows are counted for one core
    keep_freed_memory()  # as the workers of `bert finetune` do; in one process it serves both sides
    case = case_of(args, device)
    squad = read_examples(
        get_task("squad1"), args.squad or (args.data or generated_tasks()) / "squad" / "dev-v1.1.json"
    )
    gpu = torch.cuda.get_device_name() if device == "cuda" else ""
    head = describe_machine(("torch", "transformers", "accelerate"), gpu)
    rows = measure(case, args.rounds)
    windows = medians({"ours": lambda: encoding_rate(squad, case.tokenizer, "squad1")}, args.rounds, "SQuAD windows")
    what = "SQuAD questions to windows of 384"
    rows.append(Row(what=what, unit="windows/s", ours=windows["ours"], target=WINDOWS_TARGET))
    lengths = case.train.lengths()
    print(f"{head}; {torch.get_num_threads()} threads")
    print(f"{case.title}: batch {case.batch_size}, {lengths.mean():.1f} tokens an example, the longest {lengths.max()}")
    print(f"medians of {args.rounds} rounds (seeds 1 to {args.rounds}) of {case.train.num_examples} examples\n")
    print(render(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
