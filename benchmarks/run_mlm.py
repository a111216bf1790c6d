"""The peer of the duel: the recipe of transformers' run_mlm.py, one slice of it or a measurement of its speed.

As `examples/pytorch/language-modeling/run_mlm.py` does by default, lines are tokenized, joined and cut into rows of one
length, which need no padding; its collator masks tokens anew in every epoch, and its Trainer trains a BertForMaskedLM
with scaled-dot-product attention and fused AdamW. The initial weights, the share of masked tokens, the lengths and the
learning rate's course (transformers' `warmup_stable_decay`) are ours: rows are cut into shorter ones while our phases
are short. Two things differ, both in the peer's favor: the course follows the clock instead of a guessed number of
steps, so that it ends with the budget, and threads, processes, precision and compilation are those that were measured
to be fastest.

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
from typing import Any

import numpy as np
import torch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import transformers
from transformers.trainer_callback import ExportableState

from bert_model.training.distributed import keep_freed_memory
from bert_pipeline.atomic import atomic_write
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.manifest import Manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

STATE_NAME = "trainer_state.json"
"""Written last in a checkpoint of the Trainer."""
WARMUP_STEPS_OF_MEASUREMENT = 3
LINES_PER_CALL = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunMlmCase:
    """What a slice of the peer's training depends on; paths as text, for JSON."""

    rows: str
    """File of `write_rows`."""
    model: str
    """Directory with the initial weights and the vocabulary."""
    output: str
    global_batch_size: int
    learning_rate: float
    budget: float
    """Seconds."""
    warmup: float
    """Seconds of them in which the learning rate rises."""
    decay: float
    """Seconds of them, the last, in which it falls to 0."""
    save_steps: int
    cuts: Sequence[tuple[float, int]] = ()
    """(second, length): until that second each row is cut into rows of this length, which divides its own."""
    mlm_probability: float = 0.15
    """Share of the tokens that are masked."""
    seed: int = 1
    bf16: bool = False
    compile: bool = False
    processes: int = 1
    measure: float = 0.0
    """Train for so many seconds, print the tokens per second, and save nothing."""

    def to_json(self, **changes: Any) -> str:
        """Return the case for another process."""
        return json.dumps(dataclasses.asdict(self) | changes)

    @property
    def finished(self) -> Path:
        """The directory of the trained model."""
        return Path(self.output) / "model"


def write_rows(corpus: Manifest, tokenizer: Tokenizer, length: int, path: Path) -> None:
    """Write the training text of a corpus as rows of token ids (N, length): run_mlm's `group_texts`.

    A line is a passage; the lines are joined, [CLS] and [SEP] included, and the rest that fills no row is left out.
    """
    rows, rest = [], np.zeros(0, dtype=np.int32)
    for lines in _lines(corpus):
        ids = [[tokenizer.cls_id, *line, tokenizer.sep_id] for line in tokenizer.encode_batch(lines)]
        joined = np.concatenate([rest, *(np.array(line, dtype=np.int32) for line in ids)])
        end = len(joined) // length * length
        rows.append(joined[:end].reshape(-1, length).astype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32))
        rest = joined[end:]
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        np.save(file, np.concatenate(rows))


def _lines(corpus: Manifest) -> Iterator[list[str]]:
    lines: list[str] = []
    for shard in corpus.file_paths("documents-"):
        for document in read_documents(shard):
            if document.split == "train":
                lines += [" ".join(passage) for passage in document.passages]
            if len(lines) >= LINES_PER_CALL:
                yield lines
                lines = []
    yield lines


class _Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows as the collator expects them. Their special tokens are given, which it would look for one by one."""

    def __init__(self, path: str, special_ids: list[int]) -> None:
        self.rows = np.load(path, mmap_mode="r")
        self.special_ids = special_ids

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = np.asarray(self.rows[index], dtype=np.int64)
        return {"input_ids": row.tolist(), "special_tokens_mask": np.isin(row, self.special_ids).astype(int).tolist()}


class _Clock(transformers.TrainerCallback, ExportableState):
    """Counts the seconds of training, which a checkpoint keeps, and ends the training with its budget."""

    def __init__(self, case: RunMlmCase, seconds: float) -> None:
        self.case = case
        self.agreed = seconds
        """Seconds of rank 0 after the last step: all ranks take the same learning rate and the same end."""
        self._began = time.monotonic() - seconds
        self._is_stopped = False
        self._measured: list[float] = []  # times after each step
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

    def cut(self, rows: list[Any]) -> list[Any]:
        """Cut the rows of a batch into those of the present length: the batch keeps its tokens."""
        length = next((length for until, length in self.case.cuts if self.agreed < until), len(rows[0]["input_ids"]))
        return [
            {name: values[start : start + length] for name, values in row.items()}
            for row in rows
            for start in range(0, len(row["input_ids"]), length)
        ]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"args": {}, "attributes": {"seconds": time.monotonic() - self._began}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock when data and model are there."""
        self._began = time.monotonic() - self.agreed

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Agree on the time with the other ranks; end with the budget, or save and end when told to."""
        if self.case.compile and not self._measured:  # each process compiles in its first step, which is not counted
            self._began = time.monotonic() - self.agreed
        is_main = args.process_index == 0
        self._measured.append(time.monotonic())
        is_measured = bool(self.case.measure) and self._seconds_measured() >= self.case.measure
        # Rank 0 tells the time; any rank may have been told to stop.
        stops = self._is_stopped or (is_main and is_measured)
        numbers = torch.tensor([(time.monotonic() - self._began) * is_main, float(stops)])
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(numbers)
        self.agreed, num_stopped = numbers.tolist()
        if num_stopped or (not self.case.measure and self.is_over):
            control.should_training_stop = True
            control.should_save = not self.case.measure

    def _seconds_measured(self) -> float:
        times = self._measured[WARMUP_STEPS_OF_MEASUREMENT - 1 :]
        return times[-1] - times[0] if times else 0.0

    def steps_per_second(self) -> float:
        """Return the speed after the first steps; 0 if there are no others."""
        return max(0, len(self._measured) - WARMUP_STEPS_OF_MEASUREMENT) / max(self._seconds_measured(), 1e-9)


class _CuttingCollator(transformers.DataCollatorForLanguageModeling):
    clock: _Clock

    def torch_call(self, examples: list[Any]) -> dict[str, Any]:
        """Mask rows of the present length."""
        masked: dict[str, Any] = super().torch_call(self.clock.cut(examples))
        return masked


class _ClockedTrainer(transformers.Trainer):
    clock: _Clock

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Follow the clock."""
        assert self.optimizer is not None
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.clock.learning_rate_share)
        return self.lr_scheduler


def newest_checkpoint(output: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the newest complete checkpoint and its state."""
    found = sorted(output.glob(f"checkpoint-*/{STATE_NAME}"), key=lambda path: int(path.parent.name.split("-")[1]))
    if not found:
        return None
    state: dict[str, Any] = json.loads(found[-1].read_text(encoding="utf-8"))
    return found[-1].parent, state


def seconds_of(state: dict[str, Any]) -> float:
    """Return the seconds of training up to a checkpoint."""
    return float(state["stateful_callbacks"]["_Clock"]["attributes"]["seconds"])


def run(case: RunMlmCase) -> None:
    """Train until the budget ends or SIGTERM arrives."""
    keep_freed_memory()
    transformers.utils.logging.set_verbosity_error()
    output = Path(case.output)
    found = None if case.measure else newest_checkpoint(output)
    clock = _Clock(case, seconds_of(found[1]) if found else 0.0)

    torch.manual_seed(case.seed)
    model = transformers.BertForMaskedLM.from_pretrained(case.model, attn_implementation="sdpa")
    tokenizer = transformers.AutoTokenizer.from_pretrained(case.model)
    ours = Tokenizer.from_directory(case.model)
    arguments = transformers.TrainingArguments(
        output_dir=case.output,
        max_steps=10**9,  # the clock ends it
        dataloader_drop_last=True,  # one shape, one compilation
        remove_unused_columns=False,  # the collator reads the special tokens
        per_device_train_batch_size=case.global_batch_size // case.processes,
        learning_rate=case.learning_rate,
        weight_decay=0.01,
        optim="adamw_torch_fused",
        bf16=case.bf16,
        torch_compile=case.compile,
        use_cpu=True,
        ddp_backend="gloo" if case.processes > 1 else None,
        ddp_find_unused_parameters=False,
        save_strategy="no" if case.measure else "steps",
        save_steps=case.save_steps,
        save_total_limit=2,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=case.seed,
    )
    rows = _Rows(case.rows, [ours.cls_id, ours.sep_id])
    collator = _CuttingCollator(tokenizer, mlm_probability=case.mlm_probability)
    collator.clock = clock
    trainer = _ClockedTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        processing_class=tokenizer,
        data_collator=collator,
        callbacks=[clock],
    )
    trainer.clock = clock
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=str(found[0]) if found else None)

    if trainer.is_world_process_zero():
        if case.measure:
            tokens = case.global_batch_size * rows.rows.shape[1]
            print(json.dumps({"tokens_per_second": tokens * clock.steps_per_second()}), flush=True)
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
    run(RunMlmCase(**json.loads(sys.argv[1])))
