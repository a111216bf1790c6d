"""The feature-based tagger: frozen activations into a two-layer BiLSTM and a classifier (paper, 5.3 and Table 7).

Shapes: B rows, S positions, K chosen hidden states, H hidden size, D width of the BiLSTM's input.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bert_model.heads import LSTM, OutputLayer


class Tagger(nn.Module):
    """A BiLSTM of two layers over one of the six inputs of Table 7, and a classifier for every token."""

    def __init__(
        self, shape: tuple[int, int], num_labels: int, *, feature_input: str, hidden_size: int, dropout: float
    ) -> None:
        super().__init__()
        states, width = shape
        weighted = feature_input.startswith("weighted")
        self.mixture = nn.Parameter(torch.zeros(states)) if weighted else None
        self.lstm = LSTM(
            width if weighted else states * width, hidden_size, num_layers=2, batch_first=True, bidirectional=True
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = OutputLayer(2 * hidden_size, num_labels)

    @classmethod
    def fresh(
        cls,
        shape: tuple[int, int],
        num_labels: int,
        *,
        feature_input: str,
        hidden_size: int,
        dropout: float,
        seed: int,
    ) -> "Tagger":
        """Make a tagger whose weights are a function of the seed: uniform within 1/√width, as torch's LSTM has them."""
        model = cls(shape, num_labels, feature_input=feature_input, hidden_size=hidden_size, dropout=dropout)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for module in (model.lstm, model.classifier):
                for parameter in module.parameters():
                    bound = 1 / math.sqrt(hidden_size if module is model.lstm else 2 * hidden_size)
                    parameter.uniform_(-bound, bound, generator=generator)
        return model

    def forward(self, features: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (B, S, labels) of chosen hidden states (B, S, K, H)."""
        if self.mixture is not None:
            inputs = (features * self.mixture.softmax(0)[:, None]).sum(dim=2)  # (B, S, H)
        else:
            inputs = features.flatten(2)  # (B, S, D)
        lengths = attention_mask.sum(dim=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(self.dropout(inputs), lengths, True, enforce_sorted=False)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], True, total_length=inputs.shape[1])
        return self.classifier(self.dropout(hidden))  # (B, S, labels)


def chosen_states(feature_input: str, num_states: int) -> list[int]:
    """Return which hidden states an input is made of: 0 is the embeddings, the last one the top block.

    A model of fewer than four blocks gives all that it has for "last four".
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


def states_of(feature_inputs: Iterable[str], num_states: int) -> list[int]:
    """Return every hidden state that any of the inputs reads, in order."""
    return sorted({state for name in feature_inputs for state in chosen_states(name, num_states)})
