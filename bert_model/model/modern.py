"""A modern encoder: transformers' ModernBert (Warner et al. 2024, arXiv 2412.13663), under its parameter names.

Notable:
- pre-norm blocks, of which the first has no norm in front of its attention, and a norm after the last one
- rotary positions (RoPE, arXiv 2104.09864) instead of learned ones, no segments
- gated feed-forward layers (GeGLU), no biases, vocabulary projection tied to the word embeddings
- attention to the whole text, or in some layers to a window around each token
- each class is a subclass of BERT's of the same role, whose callers need not know the shape; rows, attention and losses
  are BERT's (bert.py)

Shapes: B sequences, S positions, Q positions read after the last block, H hidden size, A heads, D = H / A, I width of
the feed-forward layer, V vocabulary. In an unpadded batch, T real tokens replace B, S; packed are R rows.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bert_model.model.bert import (
    BertForPreTraining,
    BertLMPredictionHead,
    BertModel,
    BertOutput,
    activate,
    gather_positions,
)
from bert_model.model.config import ModernConfig
from bert_model.model.cpu_kernels import Dropout, Linear, linear
from bert_model.model.heads import (
    BertForEmbedding,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTask,
    BertForTokenClassification,
)
from bert_model.model.unpadding import PackedRows, Unpadding, attend, varlen_attention


class Context(NamedTuple):
    """What a block knows of the batch beside the states (B, S, H), (T, H) if unpadded, (R, H) if packed."""

    rotation: Tensor
    """Cosines and sines of the states' positions, (2, S or T or R, 1, D / 2)."""
    mask: Tensor | None = None
    """Which keys each query may see, bool, broadcastable to (B, A, Q, S); None if all of them."""
    unpadding: Unpadding | None = None
    """How the states were unpadded, None if they were not."""
    output_positions: Tensor | None = None
    """Positions (B, Q) that are computed after attention, None for all."""
    query_rotation: Tensor | None = None
    """Of these positions, (2, B, Q, 1, D / 2)."""
    starts: Tensor | None = None
    """Of packed rows, with `max_length` and `read_rows` as in `PackedRows`."""
    max_length: int = 0
    read_rows: Tensor | None = None
    """Rows that are computed after attention, None for all."""
    reach: int | None = None
    """How many tokens on each side of one a block over packed rows sees, None for all."""


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Rotate heads (..., A, D) by the angles of their positions: numbers i and i + D / 2 are a point in a plane."""
    cos, sin = rotation.unbind(0)
    x, y = heads.float().chunk(2, dim=-1)
    return torch.cat((x * cos - y * sin, y * cos + x * sin), dim=-1).to(heads.dtype)


def layer_norm(config: ModernConfig) -> nn.LayerNorm:
    """Return a normalization, by default without a bias."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.norm_bias)


def output_linear(inputs: int, config: ModernConfig, *, bias: bool) -> Linear:
    """Return a projection back to H, whose initial weights are smaller in deeper models."""
    layer = Linear(inputs, config.hidden_size, bias=bias)
    layer.initial_deviation = config.initializer_range / (2 * config.num_hidden_layers) ** 0.5
    return layer


class ModernBertEmbeddings(nn.Module):
    """Word embeddings, normalized and dropped out."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.norm = layer_norm(config)
        self.drop = Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden: Tensor = self.drop(self.norm(self.tok_embeddings(input_ids)))
        return hidden  # (B, S, H), (T, H) or (R, H)


class ModernBertAttention(nn.Module):
    """Scaled dot-product attention with A heads and rotary positions."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.Wqkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.Wo = output_linear(config.hidden_size, config, bias=config.attention_bias)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.out_drop = Dropout(config.attention_probs_dropout_prob)

    def forward(
        self, queries: Tensor, hidden: Tensor, context: Context, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attention of queries, which are `hidden` or its states at the context's output positions."""
        if context.output_positions is None:
            projected = self.Wqkv(hidden).unflatten(-1, (3, self.num_heads, -1))
            query, key, value = projected.unbind(-3)  # (B, S, A, D), (T, A, D) or (R, A, D)
            query = rotate(query, context.rotation)
        else:
            assert context.query_rotation is not None
            width, weight, bias = self.Wo.in_features, self.Wqkv.weight, self.Wqkv.bias
            first, others = (None, None) if bias is None else (bias[:width], bias[width:])
            query = linear(queries, weight[:width], first).unflatten(-1, (self.num_heads, -1))  # (B, Q, A, D)
            query = rotate(query, context.query_rotation)
            key, value = linear(hidden, weight[width:], others).unflatten(-1, (2, self.num_heads, -1)).unbind(-3)
        key = rotate(key, context.rotation)
        if context.starts is not None:
            attended = varlen_attention(query, key, value, context.starts, context.max_length, context.reach)
            if context.read_rows is not None:
                attended = attended.index_select(0, context.read_rows)
            return self.out_drop(self.Wo(attended.flatten(1))), None
        # Attention needs rectangular sequences: pad the heads of an unpadded batch.
        unpadding = context.unpadding
        pads = [unpadding if context.output_positions is None else None, unpadding, unpadding]
        heads = [
            item.transpose(-3, -2) if pad is None else pad.pad_heads(item.flatten(1))
            for item, pad in zip((query, key, value), pads)
        ]  # (B, A, Q, D), (B, A, S, D), (B, A, S, D)
        dropout = self.dropout_prob if self.training else 0.0
        attended, probabilities = attend(heads[0], heads[1], heads[2], context.mask, dropout, output_attentions)
        joined = attended.transpose(1, 2).flatten(2) if pads[0] is None else pads[0].unpad_heads(attended)
        return self.out_drop(self.Wo(joined)), probabilities


class ModernBertMLP(nn.Module):
    """Gated feed-forward layer."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.Wi = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.Wo = output_linear(config.intermediate_size, config, bias=config.mlp_bias)
        self.drop = Dropout(config.hidden_dropout_prob)
        self.hidden_act = config.hidden_act

    def forward(self, hidden: Tensor) -> Tensor:
        inner, gate = self.Wi(hidden).chunk(2, dim=-1)  # (..., I) each
        projected: Tensor = self.Wo(self.drop(activate(inner, self.hidden_act) * gate))
        return projected


class ModernBertLayer(nn.Module):
    """One block."""

    def __init__(self, config: ModernConfig, index: int) -> None:
        super().__init__()
        # The embeddings are normalized already.
        self.attn_norm = nn.Identity() if index == 0 else layer_norm(config)
        self.attn = ModernBertAttention(config)
        self.mlp_norm = layer_norm(config)
        self.mlp = ModernBertMLP(config)

    def forward(self, hidden: Tensor, context: Context, output_attentions: bool) -> tuple[Tensor, Tensor | None]:
        queries, positions = hidden, context.output_positions
        if positions is not None:
            # Nothing reads the other positions: they are still keys and values, but no longer queries.
            queries = gather_positions(hidden, positions, context.unpadding)  # (B, Q, H)
        attended, probabilities = self.attn(self.attn_norm(queries), self.attn_norm(hidden), context, output_attentions)
        if context.read_rows is not None:
            queries = queries.index_select(0, context.read_rows)
        hidden = queries + attended
        return hidden + self.mlp(self.mlp_norm(hidden)), probabilities


class ModernBertModel(BertModel):
    """The encoder."""

    published_as = "BertModel"
    rotations: Tensor
    """Cosines and sines of every position in global and in local layers, (2, 2, positions, 1, D / 2)."""

    def __init__(self, config: ModernConfig, *, add_pooling_layer: bool = False) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.embeddings = ModernBertEmbeddings(config)  # type: ignore[assignment]
        self.layers = nn.ModuleList(ModernBertLayer(config, index) for index in range(config.num_hidden_layers))
        self.final_norm = layer_norm(config)
        self.pooler = None
        self.recomputes_blocks = False
        self.kinds = [0 if config.is_global(index) else 1 for index in range(config.num_hidden_layers)]
        self.reaches = (None, config.local_attention // 2)
        """How far a token sees on each side, by the layer's kind: global or local."""
        size = config.hidden_size // config.num_attention_heads
        bases = (config.global_rope_theta, config.local_rope_theta)
        frequencies = [1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32) / size) for base in bases]
        angles = torch.arange(config.max_position_embeddings)[:, None, None] * torch.stack(frequencies)[:, None, None]
        self.register_buffer("rotations", torch.stack([angles.cos(), angles.sin()], 1), persistent=False)

    @property
    def blocks(self) -> nn.ModuleList:
        return self.layers

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        token_indices: Tensor | None = None,
        output_positions: Tensor | None = None,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> BertOutput:
        """Encode (B, S) ids, as `BertModel` does; segments are not read, and the last state is normalized."""
        (batch_size, length), heads = input_ids.shape, self.config.num_attention_heads
        unpadding = None if token_indices is None else Unpadding(token_indices, batch_size, length, heads)
        places = torch.arange(length, device=input_ids.device)  # (S,)
        if unpadding is None or token_indices is None:
            hidden, positions = self.embeddings(input_ids), places
        else:  # only real tokens are computed
            hidden, positions = self.embeddings(input_ids.flatten()[token_indices]), token_indices % length  # (T,)
        contexts = {
            kind: Context(
                self.rotations[kind][:, positions], self._mask(kind, attention_mask, places, length), unpadding
            )
            for kind in set(self.kinds)
        }
        hidden_states, attentions = [hidden], []
        for index, (layer, kind) in enumerate(zip(self.layers, self.kinds)):
            context = contexts[kind]
            if index == len(self.layers) - 1 and output_positions is not None:
                context = context._replace(
                    mask=self._mask(kind, attention_mask, output_positions, length),
                    output_positions=output_positions,
                    query_rotation=self.rotations[kind][:, output_positions],
                )
            hidden, probabilities = self._block(layer, hidden, context, output_attentions)
            hidden_states.append(hidden)
            attentions.append(probabilities)
        hidden_states[-1] = self.final_norm(hidden)
        if unpadding is not None:  # callers see (B, S, H); the last state is (B, Q, H) already at selected positions
            hidden_states = [unpadding.pad_input(states) if states.dim() == 2 else states for states in hidden_states]
        return BertOutput(
            sequence_output=hidden_states[-1],
            pooled_output=None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=tuple(item for item in attentions if item is not None) if output_attentions else None,
        )

    def read_packed(self, rows: PackedRows) -> Tensor:
        """Encode packed sequences; return the normalized output (Q, H) at the rows that are read."""
        hidden = self.embeddings(rows.input_ids)  # (R, H)
        contexts = {
            kind: Context(
                self.rotations[kind][:, rows.position_ids],
                starts=rows.starts,
                max_length=rows.max_length,
                reach=self.reaches[kind],
            )
            for kind in set(self.kinds)
        }
        for layer, kind in zip(self.layers[:-1], self.kinds):
            hidden, _ = self._block(layer, hidden, contexts[kind])
        last = contexts[self.kinds[-1]]._replace(read_rows=rows.read_rows)
        hidden, _ = self._block(self.layers[-1], hidden, last)
        normalized: Tensor = self.final_norm(hidden)
        return normalized

    def _mask(self, kind: int, attention_mask: Tensor | None, queries: Tensor, length: int) -> Tensor | None:
        """Return which keys the queries at positions (S,) or (B, Q) may see in layers of a kind; None if all."""
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]  # (B, 1, 1, S)
        reach = self.reaches[kind]
        if reach is None or (not torch.compiler.is_compiling() and length <= reach + 1):
            return mask
        distance = queries.unsqueeze(-1) - torch.arange(length, device=queries.device)  # ([B,] Q, S)
        distance = distance.abs() if distance.dim() == 2 else distance.abs().unsqueeze(1)
        # Padding far from all tokens sees itself: a softmax over nothing is not a number.
        return distance <= reach if mask is None else (distance <= reach) & mask | (distance == 0)


class ModernBertPredictionHead(nn.Module):
    """Dense layer, activation and normalization, in front of the vocabulary projection and of a task's classifier."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.dense = output_linear(config.hidden_size, config, bias=config.classifier_bias)
        self.norm = layer_norm(config)
        self.activation = config.classifier_activation

    def forward(self, hidden: Tensor) -> Tensor:
        normalized: Tensor = self.norm(activate(self.dense(hidden), self.activation))
        return normalized


class ModernBertDecoder(BertLMPredictionHead):
    """Projection onto the vocabulary by the tied word embeddings, plus a bias; the head is in front of it."""

    def __init__(self, config: ModernConfig) -> None:
        nn.Module.__init__(self)
        self.transform = nn.Identity()  # type: ignore[assignment]
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.num_tokens = config.vocab_size


class ModernBertForMaskedLM(BertForPreTraining):
    """The encoder with the head of pre-training: masked words, and no next sentences."""

    published_as = "BertForMaskedLM"
    """The role that its architecture's name in transformers ends with."""
    has_trained_next_sentence = False

    def __init__(self, config: ModernConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.model = ModernBertModel(config)
        self.head = ModernBertPredictionHead(config)
        self.decoder = ModernBertDecoder(config)

    @property
    def base_model(self) -> ModernBertModel:
        return self.model

    @property
    def predictions(self) -> Any:
        return self.decoder

    def predict(self, hidden: Tensor, *, aligned: bool = False) -> Tensor:
        embeddings: Any = self.model.embeddings
        logits: Tensor = self.decoder(self.head(hidden), embeddings.tok_embeddings.weight, aligned=aligned)
        return logits


class ModernBertForTask(BertForTask):
    """Base of the task models: the encoder, and the head of pre-training in front of a classifier."""

    config: ModernConfig

    def __init__(self, config: ModernConfig, *, add_pooling_layer: bool) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.model = ModernBertModel(config)
        # A mean of states needs no head, and is published without one.
        self.head = nn.Identity() if isinstance(self, BertForEmbedding) else ModernBertPredictionHead(config)

    @property
    def base_model(self) -> ModernBertModel:
        return self.model

    def sequence_output(self, input_ids: Tensor, attention_mask: Tensor | None, types: Tensor | None) -> Tensor:
        hidden: Tensor = self.head(self.model(input_ids, attention_mask).sequence_output)  # (B, S, H)
        return hidden

    def pooled_output(self, input_ids: Tensor, attention_mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the first position, computed only there, or the mean of all, through the head: (B, H)."""
        if self.config.classifier_pooling == "cls":
            first = torch.zeros(input_ids.shape[0], 1, dtype=torch.long, device=input_ids.device)
            pooled = self.model(input_ids, attention_mask, output_positions=first).sequence_output[:, 0]
        else:
            hidden = self.model(input_ids, attention_mask).sequence_output
            weights = torch.ones_like(input_ids) if attention_mask is None else attention_mask  # (B, S)
            pooled = (hidden * weights.unsqueeze(-1)).sum(dim=1) / weights.sum(dim=1, keepdim=True)
        output: Tensor = self.head(pooled)
        return output


class ModernBertForSequenceClassification(BertForSequenceClassification, ModernBertForTask):
    """Classification, or with one label regression, of a sentence or a pair."""


class ModernBertForMultipleChoice(BertForMultipleChoice, ModernBertForTask):
    """A score for each of C continuations."""


class ModernBertForTokenClassification(BertForTokenClassification, ModernBertForTask):
    """A label for every token."""


class ModernBertForQuestionAnswering(BertForTokenClassification, ModernBertForTask):
    """Start and end logits of an answer span: two outputs of a classifier of tokens."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return start and end logits, each (B, S), of ids (B, S)."""
        return super().forward(input_ids, attention_mask).unbind(-1)


class ModernBertForEmbedding(BertForEmbedding, ModernBertForTask):
    """The mean vector of a text's tokens."""


IN_SHAPE: dict[type[nn.Module], type[nn.Module]] = {
    BertModel: ModernBertModel,
    BertForPreTraining: ModernBertForMaskedLM,
    BertForSequenceClassification: ModernBertForSequenceClassification,
    BertForMultipleChoice: ModernBertForMultipleChoice,
    BertForTokenClassification: ModernBertForTokenClassification,
    BertForQuestionAnswering: ModernBertForQuestionAnswering,
    BertForEmbedding: ModernBertForEmbedding,
}
"""The class of a role, which BERT's class names."""
