"""The peer: Hugging Face transformers' BertForPreTraining, at the best settings that its documentation names.

Scaled-dot-product attention, fused AdamW, padding to the longest of a batch, and batches either as they are read or of
like lengths (`group_by_length`). The data, masks, batch sizes, precision, dropout and clipping are those of our side;
our reader and collator feed it, and only the labels are laid out as its loss wants them.
"""

from typing import Any

import torch
import transformers

from benchmarks.training_case import Meter, TrainingCase
from bert_model.model.config import IGNORED_LABEL
from bert_model.pretraining.data import (
    ALIGNED_LENGTH,
    Batch,
    InstanceReader,
    InstanceSplit,
    collate,
    rank_slice,
    split_micro_batches,
)
from bert_pipeline.vocabulary.tokenizer import Tokenizer


class TransformersTraining:
    """A training that goes on from round to round."""

    def __init__(self, case: TrainingCase, *, grouped: bool, compiled: bool = False) -> None:
        self.case = case
        self.grouped = grouped
        self.meter = Meter(device=case.device)
        self.config = case.pretraining_config(compiled=False)
        self.masking = self.config.masking_of(self.config.phases[0])
        self.tokenizer = Tokenizer.from_directory(case.instances.path)
        split = InstanceSplit(case.instances.path, "train")
        self.reader = InstanceReader(split, seed=self.config.seed, groups_per_window=self.config.shuffle_row_groups)
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
        self.optimizer = torch.optim.AdamW(_groups(self.model), lr=1e-4, eps=1e-6, fused=True)
        self._position = 0

    def run(self, seconds: float) -> float:
        """Train for at least so long; returns real tokens a second."""
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
            num_tokens += batch.num_tokens
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return num_tokens

    def _batches(self) -> list[Batch]:
        samples = self.reader.take(self._position, self.case.global_batch_size)
        self._position += self.case.global_batch_size
        if self.grouped:
            samples = rank_slice(samples, rank=0, world_size=1)
        return [
            collate(
                part,
                vocabulary=self.tokenizer,
                masking=self.masking,
                seed=self.config.seed,
                pad_to_multiple=1 if self.case.device.type == "cpu" else ALIGNED_LENGTH,
            )
            for part in split_micro_batches(samples, self.case.micro_batch_size)
        ]


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Weight decay on all but biases and normalization, as transformers' own Trainer does."""
    named = list(model.named_parameters())
    plain = [parameter for name, parameter in named if name.endswith("bias") or "LayerNorm" in name]
    decayed = [parameter for name, parameter in named if not (name.endswith("bias") or "LayerNorm" in name)]
    return [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
