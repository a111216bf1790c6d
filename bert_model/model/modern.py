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

from typing import Any

import torch
from torch import Tensor, nn

from bert_model.model.bert import BertForPreTraining, BertLMPredictionHead, BertModel, activate
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
from bert_model.model.unpadding import KeyValueInput, PackedRows, Unpadding, attend, varlen_attention


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

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None,
        unpadding: Unpadding | None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        hidden: Tensor = self.tok_embeddings(input_ids)
        if unpadding is not None:  # from here on only real tokens are computed
            hidden = unpadding.unpad_input(hidden)
        return self.drop(self.norm(hidden))  # (B, S, H), (T, H) or (R, H)


class ModernBertAttention(nn.Module):
    """Scaled dot-product attention with A heads and rotary positions."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.Wqkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=config.attention_bias)
        self.Wo = output_linear(config.hidden_size, config, bias=config.attention_bias)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.out_drop = Dropout(config.attention_probs_dropout_prob)

    def forward(self, queries: Tensor, source: KeyValueInput) -> Tensor:
        """Return the attention of `queries`, which are read where the source has their rotation, else its states."""
        rotation = source.rotation
        assert rotation is not None
        if source.query_rotation is None:
            heads = self.Wqkv(source.hidden).unflatten(-1, (3, self.num_heads, -1))
            query, key, value = heads.unbind(-3)  # (B, S, A, D), (T, A, D) or (R, A, D)
            query = rotate(query, rotation)
        else:
            width, weight, bias = self.Wo.in_features, self.Wqkv.weight, self.Wqkv.bias
            first, others = (None, None) if bias is None else (bias[:width], bias[width:])
            query = linear(queries, weight[:width], first).unflatten(-1, (self.num_heads, -1))  # (B, Q, A, D)
            query = rotate(query, source.query_rotation)
            heads = linear(source.hidden, weight[width:], others).unflatten(-1, (2, self.num_heads, -1))
            key, value = heads.unbind(-3)
        key = rotate(key, rotation)
        if source.starts is not None:
            attended = varlen_attention(query, key, value, source.starts, source.max_length, source.reach).flatten(1)
            read = attended if source.read_rows is None else attended.index_select(0, source.read_rows)
            return self.out_drop(self.Wo(read))
        dropout = self.dropout_prob if self.training else 0.0
        query, key, value = (heads.flatten(-2) for heads in (query, key, value))
        return self.out_drop(self.Wo(attend(query, key, value, source, self.num_heads, dropout)))


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
        return self.Wo(self.drop(activate(inner, self.hidden_act) * gate))


class ModernBertLayer(nn.Module):
    """One block."""

    def __init__(self, config: ModernConfig, index: int) -> None:
        super().__init__()
        # The embeddings are normalized already.
        self.attn_norm = nn.Identity() if index == 0 else layer_norm(config)
        self.attn = ModernBertAttention(config)
        self.mlp_norm = layer_norm(config)
        self.mlp = ModernBertMLP(config)

    def forward(self, queries: Tensor, source: KeyValueInput) -> Tensor:
        selected = queries if source.query_rotation is None else self.attn_norm(queries)
        source = source._replace(hidden=self.attn_norm(source.hidden))
        attended = self.attn(selected, source)
        if source.read_rows is not None:
            queries = queries.index_select(0, source.read_rows)
        hidden = queries + attended
        return hidden + self.mlp(self.mlp_norm(hidden))


class ModernBertModel(BertModel):
    """The encoder; its forward pass is that of `BertModel`, whose segments are not read."""

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
        self.kinds = [min(1, index % config.global_attn_every_n_layers) for index in range(config.num_hidden_layers)]
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

    def _view(
        self,
        kind: int,
        attention_mask: Tensor | None,
        places: Tensor,
        token_indices: Tensor | None,
        output_positions: Tensor | None,
    ) -> dict[str, Any]:
        rotation, length = self.rotations[kind], len(places)
        view = {
            "mask": None if attention_mask is None else attention_mask.bool()[:, None, None, :],  # (B, 1, 1, S)
            "rotation": rotation[:, places if token_indices is None else token_indices % length],
            "query_rotation": None if output_positions is None else rotation[:, output_positions],
        }
        reach = self.reaches[kind]
        if reach is not None and (torch.compiler.is_compiling() or length > reach + 1):
            queries = places.unsqueeze(0) if output_positions is None else output_positions  # (1 or B, Q)
            distance = (queries.unsqueeze(-1) - places).abs().unsqueeze(1)  # (1 or B, 1, Q, S)
            # Padding far from all tokens sees itself: a softmax over nothing is not a number.
            near = distance <= reach
            view["mask"] = near if view["mask"] is None else near & view["mask"] | (distance == 0)
        return view

    def _packed_view(self, kind: int, rows: PackedRows) -> dict[str, Any]:
        return {"rotation": self.rotations[kind][:, rows.position_ids], "reach": self.reaches[kind]}


class ModernBertPredictionHead(nn.Module):
    """Dense layer, activation and normalization, in front of the vocabulary projection and of a task's classifier."""

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        self.dense = output_linear(config.hidden_size, config, bias=config.classifier_bias)
        self.norm = layer_norm(config)
        self.activation = config.classifier_activation

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(activate(self.dense(hidden), self.activation))


class ModernBertForMaskedLM(BertForPreTraining):
    """The encoder with the head of pre-training: masked words, and no next sentences."""

    bert = property(lambda self: self.model)
    has_trained_next_sentence = False
    graphs = "at least 5 graphs"  # the first layer is another one, and so is a local one

    def __init__(self, config: ModernConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.model = ModernBertModel(config)
        self.head = ModernBertPredictionHead(config)
        self.decoder = BertLMPredictionHead(config, nn.Identity())  # the head is in front of it

    @property
    def predictions(self) -> Any:
        return self.decoder

    def predict(self, hidden: Tensor, *, aligned: bool = False) -> Tensor:
        embeddings: Any = self.model.embeddings
        return self.decoder(self.head(hidden), embeddings.tok_embeddings.weight, aligned=aligned)


class ModernBertForTask(BertForTask):
    """Base of the task models: the encoder, and the head of pre-training in front of a classifier."""

    config: ModernConfig
    bert = property(lambda self: self.model)

    def __init__(self, config: ModernConfig, *, add_pooling_layer: bool) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.model = ModernBertModel(config)
        # A mean of states needs no head, and is published without one.
        self.head = nn.Identity() if isinstance(self, BertForEmbedding) else ModernBertPredictionHead(config)

    def sequence_output(self, input_ids: Tensor, attention_mask: Tensor | None, types: Tensor | None) -> Tensor:
        return self.head(self.model(input_ids, attention_mask).sequence_output)  # (B, S, H)

    def pooled_output(self, input_ids: Tensor, attention_mask: Tensor | None, types: Tensor | None) -> Tensor:
        """Return the first position, computed only there, or the mean of all, through the head: (B, H)."""
        if self.config.classifier_pooling == "cls":
            first = torch.zeros(input_ids.shape[0], 1, dtype=torch.long, device=input_ids.device)
            pooled = self.model(input_ids, attention_mask, output_positions=first).sequence_output[:, 0]
        else:
            hidden = self.model(input_ids, attention_mask).sequence_output
            weights = torch.ones_like(input_ids) if attention_mask is None else attention_mask  # (B, S)
            pooled = (hidden * weights.unsqueeze(-1)).sum(dim=1) / weights.sum(dim=1, keepdim=True)
        return self.head(pooled)


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
