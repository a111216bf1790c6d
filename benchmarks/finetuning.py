"""Fine-tuning in examples a second, training and predicting, beside transformers' Trainer; SQuAD windows a second.

Both sides train the same model from the same weights on the same encoded rows, batch size, precision, dropout,
schedule and clipping, and then predict the same rows. The Trainer runs with what it does by
default (batches in random order, padded to their longest) and with batches of like lengths. It needs `accelerate`.
"""

import argparse
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.sample_instances import sample_instances
from benchmarks.table import Contestant, Row, medians, render
from benchmarks.working_directory import working_directory
from bert_model.config import BertConfig
from bert_model.distributed import keep_freed_memory
from bert_model.encoding import EncodedSet
from bert_model.featurization import EncodingConfig, encode_examples
from bert_model.finetuning_config import FinetuningConfig, task_configuration
from bert_model.modeling import BertForPreTraining, new_model
from bert_model.trial import Trial, predict_logits, starting_model, train_model
from bert_model.weights import save_model
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.sample import generate_sample
from bert_pipeline.tasks.task import get_task, read_examples
from bert_pipeline.tokenization import Tokenizer

PEER = "transformers' Trainer"
UNIT = "examples/s"
LEARNING_RATE = 5e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningCase:
    """What both sides train and predict."""

    title: str
    model: Path
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    train: EncodedSet
    dev: EncodedSet
    batch_size: int
    epochs: float
    precision: str
    device: str

    def accuracy(self, logits: np.ndarray) -> float:
        """Percentage of the dev rows that the largest logit names rightly."""
        return 100.0 * float((logits.argmax(axis=-1) == self.dev.row_columns["labels"]).mean())


class OurFinetuning:
    """The loop that `bert finetune` runs."""

    def __init__(self, case: FinetuningCase) -> None:
        self.case = case
        self.trial = Trial(
            kind="classification",
            labels=case.labels,
            data="",
            dev_splits=(),
            model=str(case.model),
            start="pretrained",
            learning_rate=LEARNING_RATE,
            batch_size=case.batch_size,
            epochs=case.epochs,
            seed=1,
            config=FinetuningConfig(precision=case.precision),  # type: ignore[arg-type]
            pad_id=case.tokenizer.pad_id,
        )
        self.model = starting_model(self.trial).to(case.device)
        self.accuracy = 0.0

    def train(self) -> float:
        """Train from the first weights; returns examples a second."""
        self.model = starting_model(self.trial).to(self.case.device)
        _, _, seconds = train_model(self.model, self.trial, self.case.train, None)
        return self.case.epochs * self.case.train.num_examples / seconds

    def predict(self) -> float:
        """Predict the dev rows; returns examples a second."""
        started = time.perf_counter()
        pad_id = self.case.tokenizer.pad_id
        logits = predict_logits(self.model, self.case.dev, pad_id=pad_id, precision=self.case.precision)
        seconds = time.perf_counter() - started
        self.accuracy = self.case.accuracy(logits)
        return self.case.dev.num_examples / seconds


def measure(case: FinetuningCase, rounds: int) -> list[Row]:
    """Train and predict with every contestant, in alternating rounds."""
    ours = OurFinetuning(case)
    train: dict[str, Contestant] = {"ours": ours.train}
    predict: dict[str, Contestant] = {"ours": ours.predict}
    accuracies: dict[str, float] = {}
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        for name, grouped in (("random order", False), ("like lengths", True)):
            _add_peer(case, f"{PEER}, {name}", grouped, train, predict, accuracies)
    rows = []
    for what, contestants in (("training", train), ("predicting", predict)):
        rates = medians(contestants, rounds, what)
        peers = [name for name in rates if name != "ours"]
        for name in peers or [PEER]:
            note = f"accuracy {ours.accuracy:.1f}" if what == "predicting" else ""
            if note and name in accuracies:
                note += f", the peer's {accuracies[name]:.1f}"
            row = Row(what=f"{what}, {case.title}", unit=UNIT, ours=rates["ours"], peer=name, theirs=rates.get(name))
            rows.append(dataclasses.replace(row, note=note))
    return rows


def _add_peer(
    case: FinetuningCase,
    name: str,
    grouped: bool,
    train: dict[str, Contestant],
    predict: dict[str, Contestant],
    accuracies: dict[str, float],
) -> None:
    from benchmarks.transformers_finetuning import EncodedDataset, TransformersFinetuning

    peer = TransformersFinetuning(
        case.model,
        num_labels=len(case.labels),
        batch_size=case.batch_size,
        learning_rate=LEARNING_RATE,
        epochs=case.epochs,
        precision=case.precision,
        device=case.device,
        grouped=grouped,
    )
    data, dev = EncodedDataset(case.train), EncodedDataset(case.dev)

    def predict_dev() -> float:
        logits, seconds = peer.predict(dev)
        accuracies[name] = case.accuracy(logits)
        return len(dev) / seconds

    train[name] = lambda: case.epochs * len(data) / peer.train(data)
    predict[name] = predict_dev


def featurization_rate(examples: Sequence[Any], tokenizer: Tokenizer, task_name: str) -> float:
    """Encode questions with their windows, once, in this thread; returns windows a second."""
    started = time.perf_counter()
    encoded = encode_examples(
        get_task(task_name), examples, tokenizer, EncodingConfig(max_seq_length=384, doc_stride=128)
    )
    return encoded.num_rows / (time.perf_counter() - started)


def _case(args: argparse.Namespace, device: str) -> FinetuningCase:
    root = _task_files(args)
    model = args.model or _fresh_model(args.size)
    tokenizer = Tokenizer.from_directory(model)
    task = get_task(args.task)
    if task.kind != "classification":
        raise UsageError(f"--task {args.task}: found {task.kind}, expected a classification")
    config = task_configuration(args.task)
    folder = next(
        (f for f in (root / "glue" / task.folder, root / task.folder, root) if (f / "dev.tsv").is_file()), root
    )
    rng = np.random.default_rng(1)
    sets = []
    for name, count in ((task.train_file, args.examples), (next(iter(task.dev_files.values())), args.examples)):
        examples = read_examples(task, folder / name)
        chosen = rng.permutation(len(examples))[:count]
        sets.append(encode_examples(task, [examples[index] for index in chosen], tokenizer, config.encoding))
    shape = BertConfig.from_directory(model)
    size = f"{shape.num_hidden_layers} layers of {shape.hidden_size}"
    return FinetuningCase(
        title=f"{task.title}, {size}, {args.precision}",
        model=model,
        tokenizer=tokenizer,
        labels=task.labels,
        train=sets[0],
        dev=sets[1],
        batch_size=args.batch_size,
        epochs=args.epochs,
        precision=args.precision,
        device=device,
    )


def _task_files(args: argparse.Namespace) -> Path:
    if args.data:
        return args.data
    directory = working_directory("finetuning") / "sample"
    if not (directory / "manifest.json").is_file():
        generate_sample(directory, num_articles=1200)
    return directory


def _fresh_model(size: str) -> Path:
    """A model of random weights with a vocabulary of the generated encyclopaedia: speed does not depend on weights."""
    directory = working_directory("finetuning") / f"model-{size}"
    if not (directory / "config.json").is_file():
        instances = sample_instances(working_directory("finetuning"), vocab_size=8000, max_seq_length=128)
        tokenizer = Tokenizer.from_directory(instances.path)
        config = BertConfig.from_preset(size, vocab_size=8000)
        directory.mkdir()
        save_model(new_model(BertForPreTraining, config, seed=1), directory, tokenizer)
    return directory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetuning", description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder of task files (default: generated ones)")
    parser.add_argument("--task", default="qnli", help="a classification task (default: %(default)s)")
    parser.add_argument("--squad", type=Path, help="a SQuAD 1.1 file (default: a generated one)")
    parser.add_argument("--model", type=Path, help="a model directory (default: random weights of --size)")
    parser.add_argument("--size", default="base" if device == "cuda" else "mini")
    parser.add_argument("--examples", type=int, default=512, help="examples trained on and predicted in a round")
    parser.add_argument("--epochs", type=float, default=1.0, help="epochs of a round (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--precision", default="bfloat16" if device == "cuda" else "float32", choices=["float32", "bfloat16"]
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are printed")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it runs")
    args = parser.parse_args(arguments)
    if args.quick:
        args.rounds, args.examples = 1, 64
    keep_freed_memory()  # as the workers of `bert finetune` do; in one process it serves both sides
    try:
        case = _case(args, device)
        squad = read_examples(get_task("squad1"), args.squad or _task_files(args) / "squad" / "dev-v1.1.json")
        head = describe(
            ("torch", "transformers", "accelerate"), torch.cuda.get_device_name() if device == "cuda" else ""
        )
        rows = measure(case, args.rounds)
        encode: Callable[[], float] = lambda: featurization_rate(squad, case.tokenizer, "squad1")  # noqa: E731
        rate = medians({"ours": encode}, args.rounds, "SQuAD windows")["ours"]
        rows.append(Row(what="SQuAD questions to windows of 384", unit="windows/s", ours=rate))
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    lengths = case.train.lengths()
    print(f"{head}; {torch.get_num_threads()} threads")
    print(f"{case.title}: batch {case.batch_size}, {lengths.mean():.1f} tokens an example, the longest {lengths.max()}")
    print(f"medians of {args.rounds} rounds of {case.train.num_examples} examples\n\n{render(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
