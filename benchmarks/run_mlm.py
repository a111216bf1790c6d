"""The peer of the duel: the recipe of transformers' run_mlm.py, one slice of it or a measurement of its speed.

As with `examples/pytorch/language-modeling/run_mlm.py --line_by_line`, a line of text is one sequence; a line here has
the sentences of one document, as far as they fit. Batches have lines in random order or of like lengths
(`group_by_length`), padded to the longest, its collator masks tokens anew in every epoch, and its Trainer trains a
BertForMaskedLM or ModernBertForMaskedLM with scaled-dot-product attention and fused AdamW. The initial weights, the
share of masked tokens, lengths, batches, AdamW's epsilon and the learning rate's course (transformers'
`warmup_stable_decay`) are ours. Two things differ, both in the peer's favor: the course follows the clock instead of a
guessed number of steps, so that it ends with the budget, and threads, processes, precision and compilation are those
that were measured to be fastest, rate and order those of the lowest loss.

`python -m benchmarks.run_mlm CASE` runs one rank of the case given as JSON. It ends with the budget, or saves and ends
when it is told to by SIGTERM.
"""

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import transformers
from transformers.trainer_callback import ExportableState

from benchmarks.inputs import documents_of
from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.atomic import atomic_write
from bert_pipeline.corpus.parquet import Document
from bert_pipeline.manifest import Manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

STATE_NAME = "trainer_state.json"
"""Written last in a checkpoint of the Trainer."""
WARMUP_STEPS_OF_MEASUREMENT = 3
LINES_SEED = 17
GROUPED_BATCHES = 50
"""Batches whose lines `group_by_length` sorts by length, the longest first."""


class Lines(NamedTuple):
    """Lines of one length that are trained on until a time."""

    until: float
    """Seconds of training."""
    file: str
    """Of `write_lines`."""
    batch: int
    """Lines of an update."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunMlmCase:
    """What a slice of the peer's training depends on; paths as text, for JSON."""

    lines: Sequence[Lines]
    """Of each phase. The last has the smallest batch, which the others are multiples of."""
    model: str
    """Directory with the initial weights and the vocabulary."""
    output: str
    learning_rate: float
    budget: float
    """Seconds."""
    warmup: float
    """Seconds of them in which the learning rate rises."""
    decay: float
    """Seconds of them, the last, in which it falls to 0."""
    save_steps: int
    epsilon: float = 1e-6
    """Of AdamW."""
    mlm_probability: float = 0.15
    """Share of the tokens that are masked."""
    seed: int = 1
    like_lengths: bool = False
    """Batches of like lengths instead of random order."""
    bf16: bool = False
    compile: bool = False
    processes: int = 1
    measure: float = 0.0
    """Train for so many seconds, print the tokens per second, and save nothing."""

    def to_json(self) -> str:
        """Return the case for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the case that `to_json` wrote."""
        fields = json.loads(text)
        return cls(**fields | {"lines": [Lines(*lines) for lines in fields["lines"]]})

    @property
    def finished(self) -> Path:
        """The directory of the trained model."""
        return Path(self.output) / "model"


def write_lines(corpus: Manifest, tokenizer: Tokenizer, length: int, path: Path) -> None:
    """Write the training text of a corpus as lines of token ids (N, length), padded, in random order.

    They are for run_mlm's `--line_by_line`, which has `length` as `--max_seq_length`.
    """
    lines = [line for document in documents_of(corpus, "train") for line in lines_of(document, tokenizer, length)]
    padded = np.full((len(lines), length), tokenizer.pad_id, np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32)
    for row, place in enumerate(np.random.default_rng(LINES_SEED).permutation(len(lines))):
        padded[row, : len(lines[place])] = lines[place]
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.save(file, padded)


def lines_of(document: Document, tokenizer: Tokenizer, length: int) -> Iterator[np.ndarray]:
    """Yield [CLS], sentences as far as they fit into `length` tokens, [SEP]; a longer sentence is cut."""
    line: list[int] = []
    for sentence in tokenizer.encode_batch(document.sentences):
        if line and len(line) + len(sentence) > length - 2:
            yield np.array([tokenizer.cls_id, *line, tokenizer.sep_id], dtype=np.int32)
            line = []
        line += sentence[: length - 2 - len(line)]
    if line:
        yield np.array([tokenizer.cls_id, *line, tokenizer.sep_id], dtype=np.int32)


class _Clock(transformers.TrainerCallback, ExportableState):
    """Counts the seconds and tokens of training, which a checkpoint keeps, and ends the training with its budget."""

    def __init__(self, case: RunMlmCase, seconds: float = 0.0, tokens: int = 0) -> None:
        self.case = case
        self.agreed = seconds
        """Seconds of rank 0 after the last step: all ranks take the same learning rate and the same end."""
        self.tokens = tokens
        """Of all ranks, without padding."""
        self.tokens_of_step = 0
        """Of this rank."""
        self._began = time.monotonic() - seconds
        self._is_stopped = False
        self._measured: list[tuple[float, int]] = []  # time and tokens after each step
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: Any) -> None:
        self._is_stopped = True

    @property
    def is_over(self) -> bool:
        """Whether the budget has been used."""
        return self.agreed >= self.case.budget

    def learning_rate_share(self, _: int) -> float:
        """Return the share of the learning rate: linear warm-up, 1, and linear decay to the end of the budget."""
        return max(0.0, min(self.agreed / self.case.warmup, 1.0, (self.case.budget - self.agreed) / self.case.decay))

    @property
    def lines(self) -> Lines:
        """The lines of the present phase."""
        return next((lines for lines in self.case.lines if self.agreed < lines.until), self.case.lines[-1])

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"args": {}, "attributes": {"seconds": time.monotonic() - self._began, "tokens": self.tokens}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock when data and model are there."""
        self._began = time.monotonic() - self.agreed

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Agree on the time with the other ranks; end with the budget, or save and end when told to."""
        if self.case.compile and not self._measured:  # each process compiles in its first step, which is not counted
            self._began = time.monotonic() - self.agreed
        is_main = args.process_index == 0
        is_measured = bool(self.case.measure) and self._seconds_measured() >= self.case.measure
        # Rank 0 tells the time; any rank may have been told to stop.
        stops = self._is_stopped or (is_main and is_measured)
        seconds = (time.monotonic() - self._began) * is_main
        numbers = torch.tensor([seconds, float(stops), self.tokens_of_step], dtype=torch.float64)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(numbers)
        self.agreed, num_stopped, tokens = numbers.tolist()
        self.tokens, self.tokens_of_step = self.tokens + int(tokens), 0
        self._measured.append((time.monotonic(), self.tokens))
        if num_stopped or (not self.case.measure and self.is_over):
            control.should_training_stop = True
            control.should_save = not self.case.measure

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print the mean training loss since the last one."""
        if "loss" in (logs or {}) and args.process_index == 0:
            # transformers 5.23 counts the loss of BertForMaskedLM once for each process.
            print(json.dumps({"step": state.global_step, "loss": logs["loss"] / self.case.processes}), flush=True)

    def _seconds_measured(self) -> float:
        times = [time for time, _ in self._measured[WARMUP_STEPS_OF_MEASUREMENT - 1 :]]
        return times[-1] - times[0] if times else 0.0

    def tokens_per_second(self) -> float:
        """Return the speed after the first steps; 0 if there are no others."""
        tokens = [tokens for _, tokens in self._measured[WARMUP_STEPS_OF_MEASUREMENT - 1 :]] or [0]
        return (tokens[-1] - tokens[0]) / max(self._seconds_measured(), 1e-9)


class _LineCollator(transformers.DataCollatorForLanguageModeling):
    """Masks the lines that are due at the present time, padded to the longest."""

    clock: _Clock
    special_ids: list[int]

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        """Return the batch of consecutive places; a place has several lines while they are short."""
        lines = self.clock.lines
        file = np.load(lines.file, mmap_mode="r")
        file = file[: len(file) // lines.batch * lines.batch]  # whole batches only
        num = lines.batch // self.clock.case.lines[-1].batch
        first = examples[0] * num % len(file)
        rows = file[first : first + len(examples) * num]
        if self.clock.case.like_lengths:
            start = first - first % (GROUPED_BATCHES * lines.batch)
            group = file[start : start + GROUPED_BATCHES * lines.batch]
            by_length = np.argsort(-np.count_nonzero(group != self.tokenizer.pad_token_id, axis=1), kind="stable")
            rows = group[by_length[first - start :][: len(rows)]]
        padded = torch.from_numpy(rows.astype(np.int64))

        # In random order compiled for one shape, as with run_mlm's --pad_to_max_length; else no longer than needed.
        mask = padded != self.tokenizer.pad_token_id
        if self.clock.case.like_lengths or not self.clock.case.compile:
            longest = int(mask.sum(1).max())
            padded, mask = padded[:, :longest], mask[:, :longest]
        special = torch.isin(padded, torch.tensor(self.special_ids))
        masked, labels = self.torch_mask_tokens(padded, special_tokens_mask=special)
        return {"input_ids": masked, "attention_mask": mask.long(), "labels": labels}


class _ClockedTrainer(transformers.Trainer):
    clock: _Clock

    def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any) -> torch.Tensor:
        """Count the tokens here: the collator is a batch ahead."""
        self.clock.tokens_of_step += int(inputs["attention_mask"].sum())
        loss: torch.Tensor = super().training_step(model, inputs, *rest)
        return loss

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Follow the clock."""
        assert self.optimizer is not None
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.clock.learning_rate_share)
        return self.lr_scheduler


class Checkpoint(NamedTuple):
    """A state of the training."""

    path: Path
    updates: int
    seconds: float
    tokens: int
    """Of all ranks, without padding."""


def newest_checkpoint(output: Path) -> Checkpoint | None:
    """Return the newest complete checkpoint."""
    found = sorted(output.glob(f"checkpoint-*/{STATE_NAME}"), key=lambda path: int(path.parent.name.split("-")[1]))
    if not found:
        return None
    state = json.loads(found[-1].read_text(encoding="utf-8"))
    return Checkpoint(found[-1].parent, state["global_step"], **state["stateful_callbacks"]["_Clock"]["attributes"])


def run(case: RunMlmCase) -> None:
    """Train until the budget ends or SIGTERM arrives."""
    keep_freed_memory()
    transformers.utils.logging.set_verbosity_error()
    output = Path(case.output)
    found = None if case.measure else newest_checkpoint(output)
    clock = _Clock(case, found.seconds, found.tokens) if found else _Clock(case)

    torch.manual_seed(case.seed)
    if case.like_lengths:  # one compilation for batches of all lengths
        os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = "true"
    model = transformers.AutoModelForMaskedLM.from_pretrained(case.model, attn_implementation="sdpa")
    tokenizer = transformers.AutoTokenizer.from_pretrained(case.model)
    ours = Tokenizer.from_directory(case.model)
    arguments = transformers.TrainingArguments(
        output_dir=case.output,
        max_steps=10**9,  # the clock ends it
        train_sampling_strategy="sequential",  # the files are in random order
        remove_unused_columns=False,  # there are none
        per_device_train_batch_size=case.lines[-1].batch // case.processes,
        learning_rate=case.learning_rate,
        weight_decay=0.01,
        adam_epsilon=case.epsilon,
        optim="adamw_torch_fused",
        bf16=case.bf16,
        torch_compile=case.compile,
        use_cpu=True,
        ddp_backend="gloo" if case.processes > 1 else None,
        ddp_find_unused_parameters=False,
        save_strategy="no" if case.measure else "steps",
        save_steps=case.save_steps,
        save_total_limit=2,
        logging_steps=50,
        report_to="none",
        disable_tqdm=True,
        seed=case.seed,
    )
    # The places of lines in the order of the training: the collator, which knows the time, reads the lines.
    places: Any = range(10**12)
    collator = _LineCollator(tokenizer, mlm_probability=case.mlm_probability)
    collator.clock, collator.special_ids = clock, [ours.pad_id, ours.cls_id, ours.sep_id]
    trainer = _ClockedTrainer(
        model=model,
        args=arguments,
        train_dataset=places,
        processing_class=tokenizer,
        data_collator=collator,
        callbacks=[clock],
    )
    trainer.clock = clock
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=str(found.path) if found else None)

    if trainer.is_world_process_zero():
        if case.measure:
            print(json.dumps({"tokens_per_second": clock.tokens_per_second()}), flush=True)
        elif clock.is_over:
            draft = case.finished.with_name("model.partial")
            trainer.save_model(str(draft))
            ours.save(draft)
            draft.rename(case.finished)
    # Rank 0 has written everything. The end of a gloo group may wait for a rank that is gone.
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    run(RunMlmCase.from_json(sys.argv[1]))
