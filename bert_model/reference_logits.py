"""What a model computes for one fixed input: recorded when it is registered, repeated before it is promoted.

Hashes say that the bytes are those that were trained; this says that they still compute what they did then, whatever
has become of the code that reads them.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_model.featurization import encode_examples
from bert_model.modeling import BertForPreTraining
from bert_model.prediction_input import check_record, to_examples
from bert_model.task_model import load_task_model, read_task_facts
from bert_model.weights import load_model
from bert_pipeline.tokenization import Tokenizer

MOST_LOGITS = 256
TOLERANCE = 1e-3
"""Largest difference of two logits that another library or number of threads may make, relative to the largest."""

INPUTS: dict[str, dict[str, Any]] = {
    "text": {"text": "The film was a delight from beginning to end."},
    "pair": {"text": "The cat sat on the mat.", "text_b": "An animal was on the mat."},
    "span": {"question": "Where was Ada born?", "context": "Ada was born in London."},
    "choice": {"context": "She opens the door.", "endings": ["She walks in.", "The sun is blue."]},
    "tagging": {"text": "Ada Lovelace lived in London."},
}
"""One input of each form."""


def reference_logits(directory: Path | str) -> list[float]:
    """Compute the outputs of a pre-trained or fine-tuned model of ours for the input of its form, at most 256 of them.

    Computed on the CPU in one thread. InputError or ArtefactError when the directory cannot be loaded.
    """
    directory = Path(directory)
    logits = _pretrained_logits(directory) if read_task_facts(directory) is None else _task_logits(directory)
    chosen = np.unique(np.linspace(0, logits.size - 1, min(logits.size, MOST_LOGITS)).astype(int))
    return [float(f"{value:.6g}") for value in logits[chosen]]


def difference(recorded: str, directory: Path | str) -> str | None:
    """Say how a model's outputs differ from recorded ones (a JSON list); None where they are the same."""
    if not recorded:
        return "its logits were not recorded; register it again"
    expected, found = np.asarray(json.loads(recorded)), np.asarray(reference_logits(directory))
    if expected.shape != found.shape:
        return f"{found.size} logits, {expected.size} were recorded"
    gap = np.abs(expected - found)
    if not np.isfinite(found).all() or gap.max(initial=0.0) > TOLERANCE * max(1.0, np.abs(expected).max(initial=0.0)):
        worst = int(np.nanargmax(gap)) if np.isfinite(gap).any() else 0
        return f"logit {worst} is {found[worst]:.6g}, {expected[worst]:.6g} was recorded"
    return None


def _task_logits(directory: Path) -> np.ndarray:
    model = load_task_model(directory)
    kind = model.task.kind
    form = kind if kind in INPUTS else "pair" if model.task.pair else "text"
    examples = to_examples([check_record(INPUTS[form], form, "reference input")], form)
    encoded = encode_examples(model.task, examples, model.tokenizer, model.config.encoding)
    return np.asarray(model.logits(encoded, num_threads=1), dtype=np.float64).ravel()


@torch.inference_mode()
def _pretrained_logits(directory: Path) -> np.ndarray:
    tokenizer = Tokenizer.from_directory(directory)
    model, _ = load_model(BertForPreTraining, directory)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b = tokenizer.encode_batch([INPUTS["pair"]["text"], INPUTS["pair"]["text_b"]])
        room = (model.config.max_position_embeddings - 3) // 2
        first, second = [tokenizer.cls_id, *a[:room], tokenizer.sep_id], [*b[:room], tokenizer.sep_id]
        segments = torch.tensor([[0] * len(first) + [1] * len(second)])
        output = model.eval()(torch.tensor([first + second]), torch.ones_like(segments), segments)
    finally:
        torch.set_num_threads(threads_before)
    parts = (output.seq_relationship_logits, output.prediction_logits)
    return np.concatenate([part.double().numpy().ravel() for part in parts])
