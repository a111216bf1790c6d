"""Task heads on BERT, one per kind of task, and the feature-based BiLSTM tagger (paper sections 4 and 5.3).

Parameter names are Hugging Face's.

Shapes: B examples, C choices, S positions, N labels, H hidden size, K selected hidden states, D the tagger's input
width: H for a weighted sum, K * H for a concatenation.
"""

import functools
import logging
import math
from typing import Any

import torch
from torch import Tensor, nn

from bert_model.model.bert import BertModel
from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import Dropout

logger = logging.getLogger(__name__)


class OutputLayer(nn.Linear):
    """The last layer of a head, always in float32.

    bfloat16 keeps 8 bits of a logit: scores within 0.4 % of each other would tie, and gradients would be rounded as
    coarsely.
    """

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.to(self.weight.dtype))


@functools.cache
def has_bfloat16_lstm() -> bool:
    """Tell whether this processor computes LSTMs in bfloat16, by trying: torch reports no such capability.

    Without bfloat16 instructions autocast emulates matrix products, but LSTMs raise.
    """
    # The probe's weights are random: fork the generator, which keys dropout and must not move.
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
        except RuntimeError:
            logger.warning("this processor has no bfloat16 LSTM: LSTMs compute in float32, everything else in bfloat16")
            return False
    return True


class LSTM(nn.LSTM):
    """`nn.LSTM`, in float32 if autocast asks for bfloat16 and the processor does not support it."""

    def forward(self, inputs: Any, states: Any = None) -> Any:
        on_cpu = self.weight_ih_l0.device.type == "cpu"
        if on_cpu and torch.is_autocast_enabled("cpu") and not has_bfloat16_lstm():
            with torch.autocast("cpu", enabled=False):
                return super().forward(inputs.to(self.weight_ih_l0.dtype), states)
        return super().forward(inputs, states)

    def read(self, inputs: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the outputs (B, S, …) of inputs (B, S, …); padding is not read, and its outputs are 0."""
        # Packed, so that the backward direction starts at the last real token; packing refuses a length of 0.
        lengths = attention_mask.sum(dim=1).clamp(min=1).cpu()  # (B,)
        packed = nn.utils.rnn.pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self(packed)[0], True, total_length=inputs.shape[1])[0]


class BiLSTM(nn.Module):
    """A bidirectional LSTM of width H over the encoder's output, which gives each position both contexts.

    The paper puts it on top of a left-to-right encoder at fine-tuning (section 5.1, Table 5), with random weights.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.lstm = LSTM(config.hidden_size, config.hidden_size // 2, batch_first=True, bidirectional=True)

    def forward(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Map (B, S, H) to (B, S, H); padding is not read, and its outputs are 0."""
        return self.lstm(hidden)[0] if attention_mask is None else self.lstm.read(hidden, attention_mask)


class BertForTask(nn.Module):
    """Base of the task models: the encoder, and a BiLSTM on top if the configuration has one."""

    def __init__(self, config: BertConfig, *, add_pooling_layer: bool) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooling_layer=add_pooling_layer)
        self.bilstm = BiLSTM(config) if config.head == "bilstm" else None

    def sequence_output(self, input_ids: Tensor, attention_mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the vector of every position, (B, S, H)."""
        hidden: Tensor = self.bert(input_ids, attention_mask, types).sequence_output
        return hidden if self.bilstm is None else self.bilstm(hidden, attention_mask)

    def pooled_output(self, input_ids: Tensor, attention_mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the pooled first position, (B, H); without a BiLSTM the last block is computed only there."""
        if self.bilstm is not None:
            assert self.bert.pooler is not None
            return self.bert.pooler(self.sequence_output(input_ids, attention_mask, types))
        first = torch.zeros(input_ids.shape[0], 1, dtype=torch.long, device=input_ids.device)
        return self.bert(input_ids, attention_mask, types, output_positions=first).pooled_output


class BertForClassification(BertForTask):
    """Base of the task models whose head is dropout and a classifier, by default with an output for each label."""

    def __init__(self, config: BertConfig, *, num_outputs: int = 0, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer=add_pooling_layer)
        probability = config.classifier_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if probability is None else probability)
        self.classifier = OutputLayer(config.hidden_size, num_outputs or config.num_labels)


class BertForSequenceClassification(BertForClassification):
    """Classification, or with one label regression, of a sentence or a pair."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, N) of ids (B, S)."""
        pooled = self.pooled_output(input_ids, attention_mask, token_type_ids)  # (B, H)
        return self.classifier(self.dropout(pooled))  # (B, N)


class BertForMultipleChoice(BertForClassification):
    """A score for each of C continuations (SWAG): the dot product of one vector with each pooled output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, num_outputs=1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, C) of ids (B, C, S)."""
        mask, types = (None if item is None else item.flatten(0, 1) for item in (attention_mask, token_type_ids))
        pooled = self.pooled_output(input_ids.flatten(0, 1), mask, types)  # (B * C, H)
        return self.classifier(self.dropout(pooled)).view(input_ids.shape[:2])  # (B, C)


class BertForQuestionAnswering(BertForTask):
    """Start and end logits of an answer span."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)
        self.qa_outputs = OutputLayer(config.hidden_size, 2)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return start and end logits, each (B, S), of ids (B, S)."""
        return self.qa_outputs(self.sequence_output(input_ids, attention_mask, token_type_ids)).unbind(-1)


class BertForTokenClassification(BertForClassification):
    """A label for every token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, S, N) of ids (B, S)."""
        hidden = self.sequence_output(input_ids, attention_mask, token_type_ids)  # (B, S, H)
        return self.classifier(self.dropout(hidden))  # (B, S, N)


class BertForEmbedding(BertForTask):
    """The mean vector of a text's tokens (Reimers and Gurevych 2019, arXiv 1908.10084)."""

    published_as = "BertModel"
    """The architecture that it has in other programs: there is no head, and the pooler is kept as it was."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, add_pooling_layer=True)
        if self.bert.pooler is not None:
            self.bert.pooler.requires_grad_(False)  # which nothing reads

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return vectors (B, H) of ids (B, S), or (B, C * H) of C texts side by side, (B, C, S)."""
        ids = input_ids.flatten(0, -2)  # (B * C, S)
        mask, types = (None if item is None else item.flatten(0, -2) for item in (attention_mask, token_type_ids))
        hidden = self.sequence_output(ids, mask, types).float()  # (B * C, S, H)
        weights = torch.ones_like(ids) if mask is None else mask  # (B * C, S)
        sums = (hidden * weights[:, :, None]).sum(dim=1)  # (B * C, H)
        return (sums / weights.sum(dim=1, keepdim=True)).view(len(input_ids), -1)


class Tagger(nn.Module):
    """Two BiLSTM layers over one of the six feature inputs of Table 7, and a classifier of every token."""

    def __init__(
        self, shape: tuple[int, int], num_labels: int, *, feature_input: str, hidden_size: int, dropout: float
    ) -> None:
        super().__init__()
        states, width = shape
        weighted = feature_input.startswith("weighted")

        # Equal weights at first: a softmax over zeros is the plain mean of the states.
        self.mixture = nn.Parameter(torch.zeros(states)) if weighted else None
        self.lstm = LSTM(
            width if weighted else states * width, hidden_size, num_layers=2, batch_first=True, bidirectional=True
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = OutputLayer(2 * hidden_size, num_labels)

    def draw_weights(self, seed: int) -> "Tagger":
        """Draw weights uniform within 1/√width (torch's LSTM default), by the seed only, and return this tagger."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for module, width in ((self.lstm, self.lstm.hidden_size), (self.classifier, self.classifier.in_features)):
                for parameter in module.parameters():
                    bound = 1 / math.sqrt(width)
                    parameter.uniform_(-bound, bound, generator=generator)
        return self

    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (B, S, N) of selected hidden states (B, S, K, H)."""
        if self.mixture is not None:
            inputs = (features * self.mixture.softmax(0)[:, None]).sum(dim=2)  # (B, S, H)
        else:
            inputs = features.flatten(2)  # (B, S, D)
        hidden = self.lstm.read(self.dropout(inputs), attention_mask)
        return self.classifier(self.dropout(hidden))  # (B, S, N)


def chosen_states(feature_input: str, num_states: int) -> list[int]:
    """Return the hidden states that an input consists of: 0 is the embeddings, the last one the top block.

    In a model of fewer than four blocks, "last four" are all of them.
    """
    last_four = list(range(max(1, num_states - 4), num_states))
    return {
        "embeddings": [0],
        "second_to_last": [max(0, num_states - 2)],
        "last": [num_states - 1],
        "weighted_sum_last_four": last_four,
        "concat_last_four": last_four,
        "weighted_sum_all": list(range(1, num_states)),
    }[feature_input]


HEAD_CLASSES: dict[str, type[BertForTask]] = {
    head.__name__: head
    for head in (
        BertForSequenceClassification,
        BertForMultipleChoice,
        BertForQuestionAnswering,
        BertForTokenClassification,
        BertForEmbedding,
    )
}
"""Name of an architecture, as config.json has it, and its class."""
