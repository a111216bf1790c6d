"""The peer: Hugging Face transformers, with the best settings that its documentation names.

Pre-training: scaled-dot-product attention, fused AdamW, padding to the longest of a batch, and batches in reading order
or of like lengths (`group_by_length`). The data, masks, batch sizes, precision, dropout and clipping are those of our
side: our reader and collator feed it, and only the labels are rearranged for its loss.

Fine-tuning: its Trainer on a sequence classification or regression, with its own padding, sampler, optimizer and loop.
"""

import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import transformers

from benchmarks.finetuning import Finetuning, FinetuningCase
from benchmarks.training import Meter, TrainingCase
from bert_model.kinds.encoded import EncodedSet
from bert_model.model.config import IGNORED_LABEL
from bert_model.pretraining.batch import Batch, make_batch, split_micro_batches
from bert_model.training.schedule import learning_rate_at
from bert_pipeline.vocabulary.tokenizer import Tokenizer


class TransformersTraining:
    """A pre-training that continues from round to round."""

    def __init__(self, case: TrainingCase, *, grouped: bool, compiled: bool = False) -> None:
        self.case = case
        self.grouped = grouped
        self.meter = Meter(case.device)
        self.config = case.pretraining_config(compiled=False)
        self.masking = self.config.masking_of(self.config.phases[0])
        self.tokenizer = Tokenizer.from_directory(case.instances.path)
        self.reader = case.reader()
        shape = case.model_config()
        settings = transformers.BertConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.num_hidden_layers,
            num_attention_heads=shape.num_attention_heads,
            intermediate_size=shape.intermediate_size,
            hidden_dropout_prob=case.dropout,
            attention_probs_dropout_prob=case.dropout,
        )
        model: torch.nn.Module = transformers.BertForPreTraining._from_config(settings, attn_implementation="sdpa")
        self.model = model.to(case.device).train()
        self.forward: Any = torch.compile(self.model) if compiled else self.model
        self.optimizer = torch.optim.AdamW(_parameter_groups(self.model), lr=1e-4, eps=1e-6, fused=True)
        self._position = 0

    def run(self, seconds: float) -> float:
        """Train for at least `seconds`; return real tokens per second."""
        self.meter.restart(seconds)
        while not self.meter.is_over:
            self.meter.step(self._train_step())
        return self.meter.tokens_per_second

    def _train_step(self) -> int:
        num_tokens = 0
        batches = self._batches()
        for batch in batches:
            batch = batch.to(self.case.device)
            labels = torch.full_like(batch.input_ids, IGNORED_LABEL)
            rows, slots = (batch.labels != IGNORED_LABEL).nonzero(as_tuple=True)
            labels[rows, batch.masked_lm_positions[rows, slots]] = batch.labels[rows, slots]
            mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask.long()
            with torch.autocast(self.case.device.type, dtype=torch.bfloat16, enabled=self.case.precision == "bfloat16"):
                output = self.forward(
                    input_ids=batch.input_ids,
                    attention_mask=mask,
                    token_type_ids=batch.token_type_ids,
                    labels=labels,
                    next_sentence_label=batch.next_sentence_label,
                )
            (output.loss / len(batches)).backward()
            num_tokens += int(batch.counts.tokens)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return num_tokens

    def _batches(self) -> list[Batch]:
        samples = self.reader.take(self._position, self.case.global_batch_size)
        self._position += self.case.global_batch_size
        if self.grouped:
            parts = split_micro_batches(samples, self.case.micro_batch_size)
        else:
            count = -(-samples.num_instances // self.case.micro_batch_size)
            parts = [samples.select(rows) for rows in np.array_split(np.arange(samples.num_instances), count)]
        options: dict[str, Any] = {"seed": self.config.seed, "device": self.case.device}
        return [make_batch(part, self.masking, self.tokenizer, **options) for part in parts]


def _parameter_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Apply weight decay to all parameters but biases and normalization, as transformers' own Trainer does."""
    named = list(model.named_parameters())
    plain = [parameter for name, parameter in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [parameter for name, parameter in named if not (name.endswith("bias") or "LayerNorm" in name)]
    return [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]


def encoded_rows(encoded: EncodedSet) -> Any:
    """Return a list of encoded rows as the Trainer requires them: ids, which its collator pads."""
    rows = []
    for row, (start, stop) in enumerate(itertools.pairwise(encoded.offsets.tolist())):
        first_b = int(encoded.segment_b_start[row])
        rows.append(
            {
                "input_ids": encoded.input_ids[start:stop].tolist(),
                "token_type_ids": [0] * first_b + [1] * (stop - start - first_b),
                "attention_mask": [1] * (stop - start),
                "labels": encoded.row_columns["labels"][row].item(),
            }
        )
    return rows


class _Trainer(transformers.Trainer):
    """The Trainer with google's schedule, as ours: its own decays to 0 from a peak that is 11 % higher."""

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return google's schedule."""
        warmup_steps = int(num_training_steps * self.args.warmup_steps)

        def share(step: int) -> float:
            return learning_rate_at(step, peak=1.0, total_steps=num_training_steps, warmup_steps=warmup_steps)

        optimizer = optimizer or self.optimizer
        assert optimizer is not None  # the Trainer builds it first
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
        return self.lr_scheduler


class TransformersFinetuning(Finetuning):
    """The Trainer's side."""

    def __init__(self, case: FinetuningCase, *, grouped: bool) -> None:
        super().__init__(case)
        self.rows, self.dev_rows = encoded_rows(case.train), encoded_rows(case.dev)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(case.model)
        self.settings: dict[str, Any] = {
            "output_dir": str(Path(tempfile.gettempdir()) / "transformers-finetuning"),
            "per_device_train_batch_size": case.batch_size,
            "per_device_eval_batch_size": case.batch_size,
            "num_train_epochs": case.epochs,
            "learning_rate": case.learning_rate,
            "weight_decay": 0.01,
            "adam_epsilon": 1e-6,  # google's, as ours
            "warmup_steps": 0.1,  # a share, where it is below 1
            "bf16": case.precision == "bfloat16",
            "use_cpu": case.device == "cpu",
            "train_sampling_strategy": "group_by_length" if grouped else "random",
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
        }
        self.trainer: Any = None

    def train_from(self, seed: int) -> float:
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.manual_seed(seed)
        labels = len(self.case.task.labels) or 1
        model = transformers.BertForSequenceClassification.from_pretrained(self.case.model, num_labels=labels)
        with torch.no_grad():
            model.classifier.bias.fill_(self.case.label_mean)
        self.trainer = _Trainer(
            model=model,
            args=transformers.TrainingArguments(**self.settings, seed=seed),
            train_dataset=self.rows,
            processing_class=self.tokenizer,  # makes padding to the longest of a batch its collator
        )
        self.trainer.remove_callback(transformers.PrinterCallback)
        return float(self.trainer.train().metrics["train_runtime"])

    def predict_dev(self) -> None:
        self.trainer.predict(self.dev_rows)

    def logits(self) -> np.ndarray:
        strategy = self.trainer.args.train_sampling_strategy
        # Grouping by length would permute the rows.
        self.trainer.args.train_sampling_strategy = "random"  # predicts in order
        try:
            return np.asarray(self.trainer.predict(self.dev_rows).predictions)
        finally:
            self.trainer.args.train_sampling_strategy = strategy
