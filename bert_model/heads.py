"""One head per task kind, under Hugging Face's parameter names (paper section 4).

Shapes: B examples, C choices, S positions, N labels.
"""

import torch
from torch import Tensor, nn

from bert_model.config import BertConfig
from bert_model.modeling import BertModel, Dropout


def _classifier_dropout(config: BertConfig) -> Dropout:
    given = config.classifier_dropout
    return Dropout(config.hidden_dropout_prob if given is None else given)


def _pooled_output(bert: BertModel, input_ids: Tensor, attention_mask: Tensor | None, types: Tensor | None) -> Tensor:
    """Encode, computing the last block at the first position only: nothing else is read."""
    first = torch.zeros(input_ids.shape[0], 1, dtype=torch.long, device=input_ids.device)
    pooled = bert(input_ids, attention_mask, types, output_positions=first).pooled_output  # (B, H)
    assert pooled is not None
    return pooled


class BertForSequenceClassification(nn.Module):
    """A class, or with one label a number, for a sentence or a pair."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, N) of ids (B, S)."""
        return self.classifier(self.dropout(_pooled_output(self.bert, input_ids, attention_mask, token_type_ids)))


class BertForMultipleChoice(nn.Module):
    """A score for each of C continuations (SWAG): one vector, dotted with each pooled output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, C) of ids (B, C, S)."""
        flat = [None if item is None else item.flatten(0, 1) for item in (input_ids, attention_mask, token_type_ids)]
        assert flat[0] is not None
        pooled = _pooled_output(self.bert, flat[0], flat[1], flat[2])  # (B * C, H)
        return self.classifier(self.dropout(pooled)).view(input_ids.shape[:2])  # (B, C)


class BertForQuestionAnswering(nn.Module):
    """Start and end logits of an answer span."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return start and end logits, each (B, S), of ids (B, S)."""
        logits = self.qa_outputs(self.bert(input_ids, attention_mask, token_type_ids).sequence_output)  # (B, S, 2)
        start, end = logits.unbind(-1)
        return start, end


class BertForTokenClassification(nn.Module):
    """A label for every token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config, add_pooling_layer=False)
        self.dropout = _classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, S, N) of ids (B, S)."""
        hidden = self.bert(input_ids, attention_mask, token_type_ids).sequence_output  # (B, S, H)
        return self.classifier(self.dropout(hidden))  # (B, S, N)
