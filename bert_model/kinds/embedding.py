"""Sentence embeddings: the mean vectors of two texts, whose cosine tells how alike they are.

Pairs have a similarity, or none: then the texts of a pair belong together, those of different pairs do not.

Shapes: B pairs of a batch, H hidden size, N examples.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_model.kinds.base import (
    Answers,
    Decision,
    Decisions,
    EncodingConfig,
    Evaluation,
    Fitted,
    Outputs,
    Units,
    rounded,
)
from bert_model.kinds.encoded import EncodedSet
from bert_model.kinds.text import Classification, Regression, Texts, encode_texts
from bert_model.model.config import read_document
from bert_pipeline.errors import UsageError
from bert_pipeline.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor, nn

POOLING, MEAN = "1_Pooling", "pooling_mode_mean_tokens"
SCALE = 20.0
"""Factor on cosines before the softmax, that of sentence-transformers' MultipleNegativesRankingLoss."""
BLOCK = 512
"""Consecutive pairs whose second texts are ranked together."""
TOLERANCE = 1e-6
"""Cosines closer than this are equal."""


class Embedding(Regression):
    """The cosine of a pair; without similarities the rank of its second text among those of `BLOCK` pairs."""

    name = "embedding"
    architecture = "BertForEmbedding"
    problem_type = ""
    pipeline = "sentence-similarity"
    library = "sentence-transformers"
    onnx_outputs = ("sentence_embedding",)
    reads_pairs = False  # each text is a row of its own
    reads_first_token = False
    baseline_name = "a constant similarity, or for pairs without one a random rank"

    def encode_rows(self, examples: Texts, tokenizer: Tokenizer, config: EncodingConfig) -> EncodedSet:
        texts: list[tuple[str, str | None]] = [(text, None) for example in examples for text in example.texts]
        return encode_texts(texts, tokenizer, config.max_seq_length, rows_per_example=2)

    def targets(self, examples: Texts) -> np.ndarray:
        """Return the similarities scaled to 0 to 1."""
        low, high = (0.0, 1.0) if self.task.is_ranking else self.task.label_range
        return (super().targets(examples) - np.float32(low)) / np.float32(high - low)

    def head_labels(self) -> tuple[str, ...]:
        return ()

    def prepare(self, model: "nn.Module", train: EncodedSet) -> None:
        """There is no head."""

    def problem(self, config: Any) -> str:
        if config.head != "linear":
            return f"head: found {config.head}, expected linear, as sentence vectors have no head"
        if self.task.is_ranking and (config.gradient_accumulation > 1 or min(config.batch_sizes) < 2):
            return (
                f"found gradient_accumulation {config.gradient_accumulation} of batches of {min(config.batch_sizes)}, "
                "expected 1 of 2 or more: the pairs of a batch are each other's negatives"
            )
        return ""

    def model_files(self, hidden_size: int) -> dict[str, str]:
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
            for index, (path, name) in enumerate({"": "Transformer", POOLING: "Pooling"}.items())
        ]
        pooling = {"word_embedding_dimension": hidden_size, MEAN: True, "pooling_mode_cls_token": False}
        return {"modules.json": json.dumps(modules), f"{POOLING}/config.json": json.dumps(pooling)}

    def check_directory(self, directory: Path) -> None:
        path = directory / POOLING / "config.json"
        pooling = read_document(path) if path.is_file() else {MEAN: True}
        modes = {name for name in pooling if name.startswith("pooling_mode_") and pooling[name]}
        if modes != {MEAN} and pooling.get("pooling_mode") != "mean":
            raise UsageError(f"{path}: found {pooling}, expected the mean of all tokens; give another model")

    def loss(self, outputs: "Tensor", tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> "Tensor":
        """Sum the squared error of the cosines, or the cross-entropy of the right one among all second texts."""
        import torch
        from torch.nn import functional

        a, b = functional.normalize(outputs.unflatten(-1, (2, -1)), dim=-1).unbind(1)  # (B, H) each
        if self.task.is_ranking:
            # Equal texts are no negatives of each other, and neither are the second texts of one first text.
            first, second = (torch.unique(ids, dim=0, return_inverse=True)[1] for ids in tensors["input_ids"].unbind(1))
            belong = (first[:, None] == first) | (second[:, None] == second)
            scores = (SCALE * a @ b.T).masked_fill(belong.fill_diagonal_(False), -torch.inf)
            return functional.cross_entropy(scores, torch.arange(len(a), device=a.device), reduction="sum")
        return functional.mse_loss((a * b).sum(dim=-1), tensors["labels"], reduction="sum")

    # --- from vectors to scores ---

    def similarities(self, examples: Texts, outputs: Outputs) -> tuple[list[Any], list[float]]:
        """Return the predictions and the cosines of pairs; an ensemble has the mean cosines."""
        cosines: list[float] = []
        ranks: list[int] = []
        for start in range(0, len(examples), BLOCK):
            block = slice(start, start + BLOCK)
            sides = [_normalized(vectors[block]) for _, vectors in outputs]  # (2, BLOCK, H)
            cosines += np.mean([(a * b).sum(axis=-1) for a, b in sides], axis=0).tolist()
            if self.task.is_ranking:
                matrix = np.mean([a @ b.T for a, b in sides], axis=0)  # (BLOCK, BLOCK)
                # Equal texts do not compete; equal cosines of others count against a pair.
                numbers = {example.text_b: number for number, example in enumerate(examples[block])}
                texts = np.asarray([numbers[example.text_b] for example in examples[block]])
                nearer = (matrix >= matrix.diagonal()[:, None] - TOLERANCE) & (texts[:, None] != texts)
                ranks += (1 + nearer.sum(axis=1)).tolist()
        return ranks if self.task.is_ranking else cosines, cosines

    def evaluate(
        self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, config: EncodingConfig, **options: Any
    ) -> Evaluation:
        evaluation = super().evaluate(examples, encoded, logits, config, **options)
        # Equal ranks are those of a good model.
        spread = np.ptp(_normalized(logits), axis=(0, 1)).max()
        collapsed = len(examples) >= 3 and bool(spread < 1e-3) if self.task.is_ranking else evaluation.collapsed
        return dataclasses.replace(evaluation, collapsed=collapsed)

    def decode(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, fitted: Fitted) -> dict[str, Any]:
        return dict(zip((e.example_id for e in examples), self.similarities(examples, [(encoded, logits)])[0]))

    def trivial_predictions(self, train: Texts, dev: Texts) -> dict[str, Any]:
        if self.task.is_ranking:  # by chance every rank is as frequent
            return {example.example_id: 1 + index % BLOCK for index, example in enumerate(dev)}
        return super().trivial_predictions(train, dev)

    def units(self, examples: Texts, ids: Sequence[str], predicted: Sequence[Any]) -> Units:
        return (Classification if self.task.is_ranking else Regression).units(self, examples, ids, predicted)

    def decisions(self, examples: Texts, encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation) -> Decisions:
        """Return the predictions with the distances of the cosines from the scaled similarities."""
        rows = zip(examples, *self.similarities(examples, [(encoded, logits)]), self.targets(examples))
        return [
            Decision(e, f"{e.label:g}", f"{own:.3g}", abs(float(target) - cosine), self.task.is_ranking and own == 1)
            for e, own, cosine, target in rows
        ]

    def answer(self, examples: Texts, outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        return [
            {"prediction": value if self.task.is_ranking else rounded(value), "cosine": rounded(cosine)}
            for value, cosine in zip(*self.similarities(examples, outputs))
        ]


def _normalized(vectors: np.ndarray) -> np.ndarray:
    """Return the first and the second vectors of pairs with a length of 1, (2, N, H) of (N, 2 * H)."""
    pairs = vectors.reshape(len(vectors), 2, -1).swapaxes(0, 1)
    return np.asarray(pairs / np.linalg.norm(pairs, axis=-1, keepdims=True).clip(min=1e-12))
