"""Export to ONNX, for runtimes without torch.

The graph takes what the tokenizers of transformers return, with any number of texts and any length up to the model's
positions, and returns logits in float32. It is the plain computation: no unpadding, no oneDNN, no dropout.

Shapes: B texts, C choices, S positions.
"""

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bert_model.finetuning.task_model import load_task_model, read_task_facts
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import cpu_settings
from bert_model.model.weights import load_model
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.manifest import atomic_write

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SPAN_OUTPUTS = ("start_logits", "end_logits")
PRETRAINING_OUTPUTS = ("prediction_logits", "seq_relationship_logits")
TOLERANCE = 1e-4
"""Accepted difference of a logit in onnxruntime."""
OPSET = 18
EXAMPLE_LENGTH = 8


class _Plain(nn.Module):
    """A model with the inputs of the graph, in order, and a tuple of tensors as output."""

    def __init__(self, model: nn.Module, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.outputs = outputs

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        output: Any = self.model(input_ids, attention_mask, token_type_ids)
        if self.outputs == PRETRAINING_OUTPUTS:
            return output.prediction_logits, output.seq_relationship_logits
        return output if isinstance(output, tuple) else (output,)


def export_onnx(directory: Path, output: Path) -> float:
    """Write a model directory as an ONNX file and return the largest difference of its logits in onnxruntime.

    UsageError if the packages of the extra "onnx" are missing or the model is of a kind that ONNX does not hold.
    BertError if the file does not compute what the model does; nothing is written then.
    """
    try:
        import onnx  # noqa: F401 (torch's exporter needs it)
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"ONNX needs the package {error.name}: pip install 'bert-workflow[onnx]'") from error
    model, config, facts = _load(directory)
    inputs = _example(config, facts, batch_size=2, length=EXAMPLE_LENGTH)
    with atomic_write(output) as temporary:
        with cpu_settings(onednn=()), _silence_exporter():
            program = torch.onnx.export(
                model,
                tuple(inputs.values()),
                input_names=list(INPUTS),
                output_names=list(model.outputs),
                dynamic_shapes={name: _dynamic_shape(tensor) for name, tensor in inputs.items()},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        assert program is not None, "the exporter returns a program unless it writes a file"
        program.model.metadata_props.update(_metadata(directory, facts))
        for node in program.model.graph.all_nodes():  # the exporter notes stack traces, with paths of this machine
            node.metadata_props.clear()
        program.save(temporary, external_data=False)
        difference = _difference(onnxruntime.InferenceSession(temporary), model, config, facts)
        if not difference <= TOLERANCE:
            raise BertError(f"{directory}: its logits in ONNX differ by {difference:.2g}; nothing was written")
    return difference


def _load(directory: Path) -> tuple[_Plain, BertConfig, dict[str, Any]]:
    """Load a fine-tuned or a pre-trained model; the facts of the latter are empty."""
    facts = read_task_facts(directory)
    if facts is None:
        pretrained, report = load_model(BertForPreTraining, directory)
        if report.created:
            raise UsageError(
                f"{directory}: neither fine-tuned here (no task.json) nor a model with both heads of pre-training; "
                f"{', '.join(report.created)} would be random"
            )
        return _Plain(pretrained.eval(), PRETRAINING_OUTPUTS), pretrained.config, {}
    task_model = load_task_model(directory)
    if task_model.encoder is not None:
        raise UsageError(f"{directory}: a feature-based tagger is not exported to ONNX")
    config: BertConfig = task_model.model.config  # type: ignore[assignment]
    if config.head == "bilstm":  # torch's exporter fixes the length of what an LSTM reads
        raise UsageError(f"{directory}: a model with head=bilstm is not exported to ONNX")
    outputs = SPAN_OUTPUTS if task_model.task.kind == "span" else ("logits",)
    return _Plain(task_model.model, outputs), config, facts


def _example(config: BertConfig, facts: dict[str, Any], *, batch_size: int, length: int) -> dict[str, Tensor]:
    """Return random inputs, the first text padded."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, 3, length) if facts.get("kind") == "choice" else (batch_size, length)
    mask = torch.ones(shape, dtype=torch.long)
    mask[0, ..., -length // 3 :] = 0
    segments = (torch.arange(length) >= length // 2).long().expand(shape).contiguous()
    ids = torch.randint(config.vocab_size, shape, generator=generator)
    return dict(zip(INPUTS, (ids, mask, segments), strict=True))


def _dynamic_shape(tensor: Tensor) -> dict[int, Any]:
    """Name the dimensions of (B, S) or (B, C, S), all of which may vary."""
    names = ("batch", "choices", "length") if tensor.dim() == 3 else ("batch", "length")
    return dict(enumerate(names))


def _metadata(directory: Path, facts: dict[str, Any]) -> dict[str, str]:
    """Return what a program needs to read the logits."""
    metadata = {"source": directory.name, "task": facts.get("task", "pretraining")}
    if facts:
        metadata |= {"labels": json.dumps(facts["labels"])}
        metadata |= {"max_seq_length": str(facts["configuration"]["max_seq_length"])}
    return metadata


@torch.inference_mode()
def _difference(session: Any, model: _Plain, config: BertConfig, facts: dict[str, Any]) -> float:
    """Return the largest difference of a logit, over shapes other than the one of the export."""
    gaps = []
    for batch_size, length in ((1, 5), (3, min(19, config.max_position_embeddings))):
        inputs = _example(config, facts, batch_size=batch_size, length=length)
        found = session.run(list(model.outputs), {name: tensor.numpy() for name, tensor in inputs.items()})
        with cpu_settings(onednn=()):
            expected = model(*inputs.values())
        gaps += [np.abs(one - other.numpy()).max() for one, other in zip(found, expected, strict=True)]
    return float(np.max(gaps))


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter, whose warnings and log messages are about its own internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
