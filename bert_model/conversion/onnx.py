"""Export to ONNX, for runtimes without torch.

The graph takes what the tokenizers of transformers return, with any number of texts and any length up to the model's
positions, and returns logits in float32. It is the plain computation: no unpadding, no oneDNN, no dropout.

Shapes: B texts, C choices, S positions.
"""

import contextlib
import dataclasses
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bert_model.finetuning.task_model import TaskModel, load_task_model, read_task_description
from bert_model.kinds import KINDS, Kind, kind_of
from bert_model.kinds.base import fitted_of
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig, ModernConfig
from bert_model.model.heads import HEAD_CLASSES
from bert_model.model.weights import NEXT_SENTENCE, WORD_HEADS, load_model, read_weights
from bert_pipeline.atomic import atomic_write, replace_text
from bert_pipeline.errors import BertError, InputError, UsageError
from bert_pipeline.tasks.task import read_examples
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PRETRAINING_OUTPUTS = {"prediction_logits": WORD_HEADS, "seq_relationship_logits": (NEXT_SENTENCE,)}
"""Output of a pre-trained model -> its head, in either architecture."""
TOLERANCE = 1e-4
"""Accepted difference of a logit in onnxruntime."""
OPSET = 18
EXAMPLE_LENGTH = 8


class _Session(nn.Module):
    """An ONNX file in place of the model that it was made from."""

    def __init__(self, session: Any, model: "_Plain") -> None:
        super().__init__()
        self.session, self.model = session, model

    def forward(self, ids: Tensor, mask: Tensor | None, segments: Tensor) -> Any:
        inputs = (ids, torch.ones_like(ids) if mask is None else mask, segments)
        rank = 2 + len(self.model.kind.rows_shape if self.model.kind else ())  # the texts of a pair of vectors are rows
        arrays = {name: tensor.flatten(0, -rank).numpy() for name, tensor in zip(self.model.inputs, inputs)}
        outputs = self.session.run(list(self.model.outputs), arrays)
        found = torch.from_numpy(np.stack(outputs, axis=-1) if len(outputs) > 1 else outputs[0])
        return found.reshape(len(ids), -1) if ids.dim() > rank else found


class _Plain(nn.Module):
    """A model with the inputs of the graph, in order, and a tuple of tensors as output."""

    def __init__(self, model: nn.Module, kind: type[Kind] | None, outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model.eval()
        self.config: BertConfig = model.config  # type: ignore[assignment]
        self.kind = kind
        """The kind of task; None for a pre-trained model."""
        self.outputs = tuple(outputs)
        self.task_model: TaskModel | None = None  # of a model that was fine-tuned here

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the model reads, in order: a modern one has no segments."""
        return INPUTS[:2] if isinstance(self.config, ModernConfig) else INPUTS

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        output: Any = self.model(*inputs)
        if self.kind is None:
            return tuple(getattr(output, name) for name in self.outputs)
        return output if isinstance(output, tuple) else (output,)


def export_onnx(directory: Path, output: Path, *, int8: bool = False, data: Path | None = None) -> dict[Path, str]:
    """Write a model directory as an ONNX file, and return the files for onnxruntime with how they differ from it.

    Its tokenizer, if it is one that is read here, and a program that reads both are written beside it:
    model.tokenizer.json and model.example.py of model.onnx. With `int8`, model.int8.onnx has weights of 8 bits; how it
    differs is told by its score on `data`, a labeled file of the task, or without one by its logits. UsageError if the
    packages of the extra "onnx" are missing, the model is of a kind that is not exported, or it has no task for `data`.
    BertError if the file does not compute what the model does; nothing is written then.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UsageError(f"ONNX needs the package {error.name}: .venv/bin/pip install -e '.[onnx]'") from error

    # A model of this project tells its task; of another author's the head does.
    description = read_task_description(directory) or {}
    model = _task_model(directory, description) if description else _foreign_model(directory)
    if data and not description:
        raise UsageError(f"{directory}: was not fine-tuned here, so its task is unknown; leave out --data")
    examples = read_examples(model.task_model.task, data) if data and model.task_model else []
    inputs = _example(model, batch_size=2, length=EXAMPLE_LENGTH)
    # All dimensions may vary.
    names = ("batch", "choices", "length") if model.kind and model.kind.rows_shape else ("batch", "length")
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(output) as temporary:
        with _silence_exporter():
            program = torch.onnx.export(
                model,
                tuple(inputs.values()),
                input_names=list(model.inputs),
                output_names=list(model.outputs),
                dynamic_shapes=(tuple(dict(enumerate(names)) for _ in inputs),),
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
        assert program is not None, "the exporter returns a program unless it writes a file"
        # What a program needs to read the logits.
        metadata = {
            "source": directory.name,
            "task": description.get("task") or (model.kind.name if model.kind else "pretraining"),
            "kind": model.kind.name if model.kind else "pretraining",
            "labels": json.dumps(description.get("labels", model.config.labels)),
            "max_seq_length": str(model.config.max_position_embeddings),
        }
        if description:
            lengths = {key: description["configuration"][key] for key in ("max_seq_length", "max_answer_length")}
            metadata |= {key: json.dumps(value) for key, value in (lengths | fitted_of(description)).items()}
        program.model.metadata_props.update(metadata)
        for node in program.model.graph.all_nodes():  # the exporter notes stack traces, with paths of this machine
            node.metadata_props.clear()
        program.save(temporary, external_data=False)

        # The file is kept only if another runtime computes from it what the model does.
        difference = _difference(onnxruntime.InferenceSession(temporary), model)
        if not difference <= TOLERANCE:
            raise BertError(f"{directory}: its logits in ONNX differ by {difference:.2g}; nothing was written")
        try:
            replace_text(output.with_suffix(".tokenizer.json"), Tokenizer.from_directory(directory).to_json())
            example = Path(__file__).with_name("onnx_example.py").read_text(encoding="utf-8")
            replace_text(output.with_suffix(".example.py"), example)
        except (InputError, UsageError) as error:
            logger.warning("no tokenizer.json: %s", error)
    written = {output: f"logits equal within {difference:.1e}"}
    if int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantized = output.with_suffix(".int8.onnx")
        with atomic_write(quantized) as temporary, _silence_exporter():
            quantize_dynamic(onnx.load(output), temporary, weight_type=QuantType.QInt8)
        written[quantized] = _change(onnxruntime.InferenceSession(quantized), model, examples)
    return written


def _change(session: Any, model: _Plain, examples: Sequence[Any]) -> str:
    """Describe how a file differs from its model: by the task's metric, or without examples by its logits."""
    if not examples or (loaded := model.task_model) is None:
        return f"logits differ by up to {_difference(session, model):.2g} on random tokens"
    kind, metric, fitted = kind_of(loaded.task), loaded.task.main_metric, fitted_of(loaded.description)
    encoded = kind.encode(examples, loaded.tokenizer, loaded.config)
    models = (loaded, dataclasses.replace(loaded, model=_Session(session, model)))
    logits = [own.logits(encoded, precision="float32") for own in models]
    results = [kind.evaluate(examples, encoded, own, loaded.config, fitted=fitted) for own in logits]
    before, after = (result.scores[metric] for result in results)
    return f"{metric} {after:.2f}, before {before:.2f}, on {len(examples):,} examples"


def _task_model(directory: Path, description: Mapping[str, Any]) -> _Plain:
    """Load a model that was fine-tuned here."""
    if description.get("feature_input"):
        raise UsageError(f"{directory}: a feature-based tagger is not exported to ONNX")
    loaded = load_task_model(directory)
    kind = KINDS[loaded.task.kind]
    model = _Plain(loaded.model, kind, kind.onnx_outputs)
    if model.config.head == "bilstm":  # torch's exporter fixes the length of what an LSTM reads
        raise UsageError(f"{directory}: a model with head=bilstm is not exported to ONNX")
    model.task_model = loaded
    return model


def _foreign_model(directory: Path) -> _Plain:
    """Load a pre-trained model with the heads that it has, or a task model of another author."""
    architecture = read_weights(directory).architecture
    for kind in KINDS.values():
        if kind.architecture == architecture:
            task_model, _ = load_model(HEAD_CLASSES[architecture], directory)
            return _Plain(task_model, kind, kind.onnx_outputs)

    # No task's head: the pre-training heads that the directory has, and not those that would be random.
    pretrained, report = load_model(BertForPreTraining, directory)
    outputs = [
        name for name, heads in PRETRAINING_OUTPUTS.items() if any(loaded.startswith(heads) for loaded in report.loaded)
    ]
    if not outputs:
        raise UsageError(f"{directory}: an encoder without a head is not exported to ONNX; fine-tune it first")
    return _Plain(pretrained, None, outputs)


def _example(model: _Plain, *, batch_size: int, length: int) -> dict[str, Tensor]:
    """Return random inputs, the first text padded."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, *(model.kind.rows_shape if model.kind else ()), length)
    mask = torch.ones(shape, dtype=torch.long)
    mask[0, ..., -length // 3 :] = 0  # its last third, rounded up
    last_segment = min(1, model.config.type_vocab_size - 1)
    segments = (torch.arange(length) >= length // 2).long().clamp(max=last_segment).expand(shape).contiguous()
    ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    return dict(zip(model.inputs, (ids, mask, segments)))


@torch.inference_mode()
def _difference(session: Any, model: _Plain) -> float:
    """Return the largest difference of a logit, over shapes other than the one of the export."""
    gaps = []

    # A length that the exporter fixed by mistake would fail here.
    for batch_size, length in ((1, 5), (3, min(19, model.config.max_position_embeddings))):
        inputs = _example(model, batch_size=batch_size, length=length)
        outputs = session.run(list(model.outputs), {name: tensor.numpy() for name, tensor in inputs.items()})
        expected = model(*inputs.values())
        gaps += [np.abs(output - other.numpy()).max() for output, other in zip(outputs, expected, strict=True)]
    return float(np.max(gaps))


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter, whose warnings and log messages are about its own internals."""
    disabled_before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(disabled_before)
