"""BERT as in the paper (sections 3 and 3.1) and google's modeling.py, under Hugging Face's parameter names.

Notable:
- post-LayerNorm blocks, learned position embeddings, vocabulary projection tied to the word embeddings
- padding is skipped: with `token_indices` every layer but attention runs on real tokens only (unpadding.py), and rows
  that are packed on a GPU need none
- the last block is computed only at the positions that a head reads
- matrix products, dropout and loss go through cpu_kernels.py, which falls back to torch's own

Shapes: B sequences, S positions, Q positions read after the last block, H hidden size, A heads, D = H / A,
V vocabulary, M masked positions of each sequence, P predictions of the batch. In an unpadded batch, T real tokens
replace B, S; packed are R rows, of which Q are read.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from bert_model.model.config import BertConfig
from bert_model.model.cpu_kernels import Dropout, Linear, linear, summed_cross_entropy
from bert_model.model.unpadding import KeyValueInput, PackedRows, Unpadding, attend, varlen_attention

ALIGNED_COLUMNS = 64
"""A GPU multiplies matrices whose widths are multiples of this at its full rate."""


class BertOutput(NamedTuple):
    """Output of `BertModel`."""

    sequence_output: Tensor
    """(B, S, H), or (B, Q, H) when `output_positions` was given."""
    pooled_output: Tensor | None
    """(B, H), or None without a pooler."""
    hidden_states: tuple[Tensor, ...] | None = None
    """The embeddings and every block's output, each (B, S, H), if requested."""
    attentions: tuple[Tensor, ...] | None = None
    """Every block's attention probabilities before dropout, each (B, A, S, S), if requested."""


class PreTrainingOutput(NamedTuple):
    """Output of `BertForPreTraining`."""

    prediction_logits: Tensor
    """(B, M, V) at the masked positions, or (B, S, V) at every position if none were given."""
    seq_relationship_logits: Tensor
    """(B, 2); class 1 is "B is a random next sentence". Zeros of a shape without this head."""


def activate(hidden: Tensor, name: str) -> Tensor:
    """Apply an activation by its name in transformers, which has three names for the tanh form of GELU."""
    if name in ("relu", "silu"):
        return functional.relu(hidden) if name == "relu" else functional.silu(hidden)
    return functional.gelu(hidden, approximate="none" if name == "gelu" else "tanh")


def aligned_linear(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `functional.linear`, computed with further columns that are cut off again.

    A GPU multiplies matrices of 30,522 columns at a third of the rate of 30,528. In a compiled graph the padded copy is
    that of autocast, and the cut is in the kernel that reads it.
    """
    extra = -len(weight) % ALIGNED_COLUMNS
    padded = functional.linear(hidden, functional.pad(weight, (0, 0, 0, extra)), functional.pad(bias, (0, extra)))
    return padded[..., : len(weight)]


class BertEmbeddings(nn.Module):
    """Word, position and segment embeddings, summed, normalized and dropped out."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor | None,
        unpadding: Unpadding | None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        hidden: Tensor = self.word_embeddings(input_ids)  # (B, S, H), or packed (R, H)
        if token_type_ids is None or self.token_type_embeddings.num_embeddings == 1:
            hidden = hidden + self.token_type_embeddings.weight[0]  # all in segment A
        else:
            hidden = hidden + self.token_type_embeddings(token_type_ids)
        if position_ids is None:
            hidden = hidden + self.position_embeddings.weight[: input_ids.shape[1]]
        else:
            hidden = hidden + self.position_embeddings(position_ids)
        # Position embeddings need the layout (B, S); from here on only real tokens are computed.
        if unpadding is not None:
            hidden = unpadding.unpad_input(hidden)  # (T, H)
        return self.dropout(self.LayerNorm(hidden))  # (B, S, H), (T, H) or (R, H)


class BertSelfAttention(nn.Module):
    """Scaled dot-product attention with A heads."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key = Linear(config.hidden_size, config.hidden_size)
        self.value = Linear(config.hidden_size, config.hidden_size)
        self.dropout_prob = config.attention_probs_dropout_prob

    def forward(self, queries: Tensor, source: KeyValueInput) -> Tensor:
        if source.starts is not None:  # every query is a row of `hidden`
            # One product of three times the width is faster on a GPU.
            layers = (self.query, self.key, self.value)
            weight, bias = torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])
            projected = functional.linear(source.hidden, weight, bias).unflatten(-1, (3, self.num_heads, -1))
            query, key, value = projected.unbind(1)  # (R, A, D)
            return varlen_attention(query, key, value, source.starts, source.max_length).flatten(1)
        query, key, value = self.query(queries), self.key(source.hidden), self.value(source.hidden)
        dropout = self.dropout_prob if self.training else 0.0
        return attend(query, key, value, source, self.num_heads, dropout)


class BertSelfOutput(nn.Module):
    """Projection, dropout, residual, normalization (post-LayerNorm)."""

    def __init__(self, input_size: int, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, inner: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(inner)) + residual)


class BertAttention(nn.Module):
    """Self-attention and its output projection; the attribute `self` is part of the parameter names."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = BertSelfAttention(config)
        self.output = BertSelfOutput(config.hidden_size, config)

    def forward(self, queries: Tensor, source: KeyValueInput) -> Tensor:
        context = self.self(queries, source)
        if source.read_rows is not None:
            context, queries = context.index_select(0, source.read_rows), queries.index_select(0, source.read_rows)
        return self.output(context, queries)


class BertIntermediate(nn.Module):
    """First half of the feed-forward layer: H to 4H, and the activation."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.hidden_act = config.hidden_act

    def forward(self, hidden: Tensor) -> Tensor:
        return activate(self.dense(hidden), self.hidden_act)  # (B, S, 4H)


class BertLayer(nn.Module):
    """One Transformer block; `queries` may be a subset of the positions that it attends to."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = BertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertSelfOutput(config.intermediate_size, config)

    def forward(self, queries: Tensor, source: KeyValueInput) -> Tensor:
        context = self.attention(queries, source)
        return self.output(self.intermediate(context), context)  # (B, Q, H) or (T, H)


class BertEncoder(nn.Module):
    """The stack of L blocks."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))


class BertPooler(nn.Module):
    """The first position's vector through a dense layer and tanh."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, sequence_output: Tensor) -> Tensor:
        return torch.tanh(self.dense(sequence_output[:, 0]))  # (B, H)


class BertModel(nn.Module):
    """The encoder, with the pooler where a head needs it."""

    def __init__(self, config: BertConfig, *, add_pooling_layer: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.final_norm: nn.Module = nn.Identity()  # the blocks end with one
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.kinds = [0] * config.num_hidden_layers
        """Of each block: those of a kind see the same positions."""
        self.recomputes_blocks = False
        """Whether the backward pass computes each block again instead of keeping its activations, to save memory."""

    @property
    def blocks(self) -> nn.ModuleList:
        """The Transformer blocks, in order."""
        return self.encoder.layer

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
        """Encode (B, S) ids; `attention_mask` (B, S) is 1 at tokens and 0 at padding, None if nothing is padded.

        With `token_indices` (T,), the indices of the real tokens among all B * S positions, every layer but attention
        runs on these only, and hidden states of padding are zeros. Indices of padding may follow them, whose states
        have no meaning.

        With `output_positions` (B, Q) the last block is computed at these positions only, which is all that a loss
        over some positions needs; the pooler then reads the first of them.
        """
        (batch_size, length), heads = input_ids.shape, self.config.num_attention_heads
        unpadding = None if token_indices is None else Unpadding(token_indices, batch_size, length, heads)
        hidden = self.embeddings(input_ids, token_type_ids, unpadding)  # (B, S, H) or (T, H)
        places = torch.arange(length, device=input_ids.device)
        views = {kind: self._view(kind, attention_mask, places, token_indices, None) for kind in set(self.kinds)}
        # As in Hugging Face's output, the embeddings count as the first hidden state.
        hidden_states: list[Tensor] = [hidden]
        attentions: list[Tensor] | None = [] if output_attentions else None
        for index, (layer, kind) in enumerate(zip(self.blocks, self.kinds)):
            queries, view = hidden, views[kind]
            if index == len(self.kinds) - 1 and output_positions is not None:
                # Nothing reads the other positions: they are still keys and values, but no longer queries.
                if unpadding is None:
                    queries = hidden[torch.arange(batch_size, device=hidden.device).unsqueeze(1), output_positions]
                else:
                    queries = unpadding.gather_positions(hidden, output_positions)  # (B, Q, H)
                view = self._view(kind, attention_mask, places, token_indices, output_positions)
            source = KeyValueInput(hidden, unpadding=unpadding, attentions=attentions, **view)
            hidden = self._block(layer, queries, source)
            if output_hidden_states:
                hidden_states.append(hidden)
        hidden = self.final_norm(hidden)
        if output_hidden_states:
            hidden_states[-1] = hidden
        if unpadding is not None:  # callers see (B, S, H); the last state is (B, Q, H) already at selected positions
            hidden_states = [unpadding.pad_input(states) if states.dim() == 2 else states for states in hidden_states]
            hidden = unpadding.pad_input(hidden) if hidden.dim() == 2 else hidden
        return BertOutput(
            sequence_output=hidden,
            pooled_output=self.pooler(hidden) if self.pooler is not None else None,
            hidden_states=tuple(hidden_states) if output_hidden_states else None,
            attentions=None if attentions is None else tuple(attentions),
        )

    def read_packed(self, rows: PackedRows) -> Tensor:
        """Encode packed sequences; return the last block's output (Q, H) at the rows that are read."""
        hidden = self.embeddings(rows.input_ids, rows.token_type_ids, None, rows.position_ids)  # (R, H)
        views = {kind: self._packed_view(kind, rows) for kind in set(self.kinds)}
        for index, (layer, kind) in enumerate(zip(self.blocks, self.kinds)):
            read_rows = rows.read_rows if index == len(self.kinds) - 1 else None
            source = KeyValueInput(
                hidden, starts=rows.starts, max_length=rows.max_length, read_rows=read_rows, **views[kind]
            )
            hidden = self._block(layer, hidden, source)
        return self.final_norm(hidden)

    def _block(self, layer: nn.Module, queries: Tensor, source: KeyValueInput) -> Tensor:
        if self.recomputes_blocks and torch.is_grad_enabled():
            # Dropout is drawn again from the generator's state of the first time, so gradients are the same.
            return checkpoint(layer, queries, source, use_reentrant=False)
        return layer(queries, source)

    def _view(
        self,
        kind: int,
        attention_mask: Tensor | None,
        places: Tensor,
        token_indices: Tensor | None,
        output_positions: Tensor | None,
    ) -> dict[str, Any]:
        """Return the fields of `KeyValueInput` by which blocks of a kind see positions; `places` (S,) count from 0."""
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]  # (B, 1, 1, S)
        if self.config.attention == "bidirectional":
            return {"mask": mask}
        # A selected query sees the keys up to its position in the sequence, not in the selection.
        queries = places.unsqueeze(0) if output_positions is None else output_positions  # (1 or B, Q)
        causal = (places <= queries.unsqueeze(-1)).unsqueeze(1)  # (1 or B, 1, Q, S)
        return {"mask": causal if mask is None else mask & causal}

    def _packed_view(self, kind: int, rows: PackedRows) -> dict[str, Any]:
        """Return these fields for packed rows."""
        return {}


class BertPredictionHeadTransform(nn.Module):
    """Dense layer, activation and normalization in front of the vocabulary projection."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.hidden_act = config.hidden_act

    def forward(self, hidden: Tensor) -> Tensor:
        return self.LayerNorm(activate(self.dense(hidden), self.hidden_act))


class BertLMPredictionHead(nn.Module):
    """Projection onto the vocabulary by the tied word embeddings, plus a bias."""

    def __init__(self, config: BertConfig, transform: nn.Module) -> None:
        super().__init__()
        self.transform = transform
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.num_tokens = config.vocab_size
        """Tokens of the vocabulary. Embeddings may have further rows, to a multiple of 8: these get no logit."""

    def forward(self, hidden: Tensor, word_embeddings: Tensor, *, aligned: bool = False) -> Tensor:
        product = aligned_linear if aligned else linear
        logits = product(self.transform(hidden), word_embeddings, self.bias)  # (..., V)
        # Cut after the product, which is faster on padded rows.
        return logits if self.num_tokens == logits.shape[-1] else logits[..., : self.num_tokens]


class BertPreTrainingHeads(nn.Module):
    """The masked-LM head and the next-sentence head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.predictions = BertLMPredictionHead(config, BertPredictionHeadTransform(config))
        self.seq_relationship = Linear(config.hidden_size, 2)


class BertForPreTraining(nn.Module):
    """BERT with the two heads of pre-training (paper section 3.1)."""

    graphs = "4 graphs"
    """What compiled layers are over packed rows: embeddings, layers, the last layer and the loss."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.bert = BertModel(config)
        self.cls = BertPreTrainingHeads(config)

    @property
    def predictions(self) -> Any:
        """The projection onto the vocabulary, whose `num_tokens` get a logit."""
        return self.cls.predictions

    @property
    def has_trained_next_sentence(self) -> bool:
        """Whether the next-sentence head was trained: a bias that is still zero has had no gradient."""
        return bool(self.cls.seq_relationship.bias.any())

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        token_indices: Tensor | None = None,
        masked_lm_positions: Tensor | None = None,
    ) -> PreTrainingOutput:
        """Return the logits of both heads; with `masked_lm_positions` (B, M) only those positions are computed.

        `token_indices` is as in `BertModel`.
        """
        positions = None if masked_lm_positions is None else _with_first(masked_lm_positions)  # (B, 1 + M)
        output = self.bert(
            input_ids, attention_mask, token_type_ids, token_indices=token_indices, output_positions=positions
        )

        # The first of the selected positions was for the pooler only.
        predicted = output.sequence_output if positions is None else output.sequence_output[:, 1:]
        return PreTrainingOutput(
            prediction_logits=self.predict(predicted),
            seq_relationship_logits=predicted.new_zeros(len(input_ids), 2)
            if output.pooled_output is None
            else self.cls.seq_relationship(output.pooled_output),
        )

    def predict(self, hidden: Tensor, *, aligned: bool = False) -> Tensor:
        """Return the logits (..., V) of states (..., H)."""
        return self.cls.predictions(hidden, self.bert.embeddings.word_embeddings.weight, aligned=aligned)

    def loss_sums(
        self,
        *,
        labels: Tensor,
        next_sentence_label: Tensor,
        packed: PackedRows | None = None,
        masked_lm_positions: Tensor | None = None,
        prediction_indices: Tensor | None = None,
        **padded: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the summed cross-entropies of masked tokens and of next sentences, each a scalar in float32.

        A padded batch has the arguments of `forward`; `masked_lm_positions` and `labels` are (B, M), and
        `prediction_indices` (P,) are the indices of the predictions among these B * M: nothing is computed for the
        others. Of packed sequences the first row of each and then P predictions are read; `labels` are (P,), and those
        that are -100 count for nothing, as do next sentences.
        """
        if packed is not None:
            first, predicted = self.bert.read_packed(packed).split([len(next_sentence_label), len(labels)])
            pooler = self.bert.pooler
            pooled = None if pooler is None else pooler(first.unsqueeze(1))
        else:
            assert masked_lm_positions is not None
            output = self.bert(**padded, output_positions=_with_first(masked_lm_positions))
            # Leave out the zero-padded predictions: the vocabulary projection is the widest product of the model.
            predicted = output.sequence_output[:, 1:].flatten(0, 1)[prediction_indices]  # (P, H)
            labels, pooled = labels.flatten()[prediction_indices], output.pooled_output
        return self.losses(pooled, predicted, labels, next_sentence_label, packed is not None)

    def losses(
        self, pooled: Tensor | None, predicted: Tensor, labels: Tensor, next_sentence_label: Tensor, aligned: bool
    ) -> tuple[Tensor, Tensor]:
        """Return `loss_sums` of pooled states (N, H) and of states (P, H) with their labels."""
        logits = self.predict(predicted, aligned=aligned)  # (P, V)
        masked_lm = summed_cross_entropy(logits, labels)
        if pooled is None:
            return masked_lm, masked_lm.new_zeros(())
        following = self.cls.seq_relationship
        scores = aligned_linear(pooled, following.weight, following.bias) if aligned else following(pooled)  # (N, 2)
        return masked_lm, functional.cross_entropy(scores.float(), next_sentence_label, reduction="sum")


def _with_first(positions: Tensor) -> Tensor:
    """Prepend position 0, which the pooler reads, to positions (B, M): (B, 1 + M)."""
    return functional.pad(positions, (1, 0))
