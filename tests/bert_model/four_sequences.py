"""Four sequences as a padded and as a packed batch, and what a model computes from them."""

import torch

from bert_model.model.unpadding import PackedRows

LENGTHS = torch.tensor([24, 17, 8, 21])


def padded(num_padding=0):
    """Four sequences, with `num_padding` rows of padding behind all tokens."""
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(24) < LENGTHS.unsqueeze(1)
    padding = (~mask).flatten().nonzero().squeeze(1)[:num_padding]
    return {
        "input_ids": torch.randint(5, 90, (4, 24), generator=generator) * mask,
        "attention_mask": mask,
        "token_type_ids": (torch.arange(24) >= 9).long().expand(4, 24) * mask,
        "token_indices": torch.cat([mask.flatten().nonzero().squeeze(1), padding]),
        "masked_lm_positions": torch.tensor([[1, 5, 7], [2, 3, 16], [1, 2, 0], [4, 9, 20]]),
        "prediction_indices": torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11]),
        "labels": torch.tensor([[11, 12, 13], [14, 15, 16], [17, 18, -100], [19, 20, 21]]),
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
    }


def packed(device="cpu"):
    """The same sequences in 96 rows: three dummies, of which one is empty, and five places without a prediction."""
    whole = padded()
    lengths = torch.cat([LENGTHS, torch.tensor([24, 2, 0])])
    starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    tokens = {name: whole[name].flatten()[whole["token_indices"]] for name in ("input_ids", "token_type_ids")}
    predicted = (starts[:4, None] + whole["masked_lm_positions"]).flatten()[whole["prediction_indices"]]
    rows = PackedRows(
        **{name: torch.nn.functional.pad(item, (0, 26)).to(device) for name, item in tokens.items()},
        position_ids=torch.cat([torch.arange(int(length)) for length in lengths]).to(device),
        starts=starts.int().to(device),
        read_rows=torch.cat([starts[:-1].clamp(max=95), predicted, torch.arange(5)]).to(device),
        max_length=24,
    )
    labels = torch.cat([whole["labels"].flatten()[whole["prediction_indices"]], torch.full((5,), -100)])
    following = torch.cat([whole["next_sentence_label"], torch.full((3,), -100)])
    return {"packed": rows, "labels": labels.to(device), "next_sentence_label": following.to(device)}


def losses_and_gradients(model, inputs):
    losses = model.loss_sums(**inputs)
    model.zero_grad()
    sum(losses).backward()
    return [*losses, *(parameter.grad.clone() for parameter in model.parameters())]  # type: ignore[union-attr]
