"""The peer: transformers' Trainer on a sequence classification, with its own padding, sampler, optimizer and loop."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import transformers

from bert_model.finetuning.dataset import EncodedSet


class EncodedDataset(torch.utils.data.Dataset):
    """Encoded rows as the Trainer takes them: lists of ids, to be padded by its collator."""

    def __init__(self, encoded: EncodedSet) -> None:
        self.rows = []
        for row in range(encoded.num_rows):
            ids = encoded.input_ids[encoded.offsets[row] : encoded.offsets[row + 1]].tolist()
            first_b = int(encoded.segment_b_start[row])
            types = [0] * first_b + [1] * (len(ids) - first_b)
            self.rows.append(
                {
                    "input_ids": ids,
                    "token_type_ids": types,
                    "attention_mask": [1] * len(ids),
                    "labels": int(encoded.row_columns["labels"][row]),
                }
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class _Clock(transformers.TrainerCallback):
    """The time from the beginning of the loop to its end; what is set up before and written after does not count."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._started = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds = time.perf_counter() - self._started


class TransformersFinetuning:
    """Trainings of the same model from the same weights, and predictions."""

    def __init__(
        self,
        model: Path,
        *,
        num_labels: int,
        batch_size: int,
        learning_rate: float,
        precision: str,
        device: str,
        grouped: bool,
        epochs: float,
    ) -> None:
        self.directory = model
        self.num_labels = num_labels
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        self.settings: dict[str, Any] = {
            "output_dir": str(Path(tempfile.gettempdir()) / "transformers-finetuning"),
            "per_device_train_batch_size": batch_size,
            "per_device_eval_batch_size": batch_size,
            "num_train_epochs": epochs,
            "learning_rate": learning_rate,
            "weight_decay": 0.01,
            "warmup_steps": 0.1,  # a share, where it is below 1
            "bf16": precision == "bfloat16",
            "use_cpu": device == "cpu",
            "train_sampling_strategy": "group_by_length" if grouped else "random",
            "save_strategy": "no",
            "logging_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
        }
        self.trainer: Any = None

    def train(self, data: EncodedDataset, *, seed: int) -> float:
        """Train from the first weights; returns the seconds of the loop."""
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.manual_seed(seed)
        model = transformers.BertForSequenceClassification.from_pretrained(self.directory, num_labels=self.num_labels)
        clock = _Clock()
        self.trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(**self.settings, seed=seed),
            train_dataset=data,
            processing_class=self.tokenizer,  # makes padding to the longest of a batch its collator
            callbacks=[clock],
        )
        self.trainer.remove_callback(transformers.PrinterCallback)
        self.trainer.train()
        return clock.seconds

    def predict(self, data: EncodedDataset) -> float:
        """Predict a set by the model trained last; returns the seconds it took."""
        started = time.perf_counter()
        self.trainer.predict(data)
        return time.perf_counter() - started

    def logits(self, data: EncodedDataset) -> np.ndarray:
        """Return the outputs of the model trained last in the order of the set: by length it would mix them."""
        strategy = self.trainer.args.train_sampling_strategy
        self.trainer.args.train_sampling_strategy = "random"  # which predicts in order
        try:
            return np.asarray(self.trainer.predict(data).predictions)
        finally:
            self.trainer.args.train_sampling_strategy = strategy
