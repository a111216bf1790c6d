"""The attention of every layer and head between the tokens of one or two texts, as one HTML page without a network.

Shapes: L layers, A heads, S tokens.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_model.finetuning.encode import encode_texts
from bert_model.inference.inputs import writing
from bert_model.model.bert import BertModel
from bert_model.model.weights import load_model
from bert_pipeline.errors import InputError
from bert_pipeline.vocabulary.tokenizer import Tokenizer

TEMPLATE = Path(__file__).with_name("attention.html")
PLACE_OF_DATA = "/*DATA*/null"
MAX_TOKENS = 192
"""More tokens can't be told apart on a page, and BERT-large's 384 heads would make it larger than 20 MB."""
LEVELS = 255


def write_attention(
    directory: Path, text_a: str, text_b: str | None, output: Path | str, *, model_name: str = ""
) -> int:
    """Write the page for a text or a pair, and return how many tokens it shows.

    The model in `directory` is pre-trained or fine-tuned; the page calls it `model_name`, or by its directory.
    InputError when a text has no token or both together have more than the page (or the model) takes.
    """
    tokenizer = Tokenizer.from_directory(directory)
    encoder, _ = load_model(BertModel, directory)
    tokens, segment_b_start, weights = attention_weights(encoder, tokenizer, text_a, text_b)
    data = page_data(model_name or str(directory), tokens, segment_b_start, weights)
    data["causal"] = encoder.config.attention == "causal"
    with writing(str(output)) as stream:
        stream.write(render(data))
    return len(tokens)


def attention_weights(
    encoder: BertModel, tokenizer: Tokenizer, text_a: str, text_b: str | None
) -> tuple[list[str], int, np.ndarray]:
    """Return the tokens, the index of B's first token (S without B) and the weights (L, A, S, S) float32.

    weights[l, a, i, j] is how much of what position i reads comes from position j: each row sums to 1.
    """
    limit = min(MAX_TOKENS, encoder.config.max_position_embeddings)
    for name, text in (("TEXT_A", text_a), ("TEXT_B", text_b)):
        if text is not None and not tokenizer.encode(text):
            raise InputError(f"{name}: {text[:60]!r} has no token, expected a text")
    encoded = encode_texts([(text_a, text_b)], tokenizer, 1 << 20)
    if (count := len(encoded.input_ids)) > limit:
        raise InputError(f"the texts have {count} tokens with [CLS] and [SEP], expected at most {limit}; shorten them")
    batch = {
        name: torch.from_numpy(array)
        for name, array in encoded.padded(np.arange(1), pad_id=tokenizer.pad_id).items()
        if name != "attention_mask"
    }
    with torch.inference_mode():
        attentions = encoder.eval()(**batch, output_attentions=True).attentions
    assert attentions is not None, "they were asked for"
    weights = torch.stack([layer[0] for layer in attentions]).float().numpy()  # (L, A, S, S)
    tokens = [tokenizer.tokens[index] for index in encoded.input_ids]
    return tokens, int(encoded.segment_b_start[0]), weights


def page_data(model: str, tokens: list[str], segment_b_start: int, weights: np.ndarray) -> dict[str, Any]:
    """Return what the page shows, as JSON.

    The weights are written as the square root in 255 levels, a byte each: to within 0.002 at 0.5, finer where small.
    """
    levels = np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * LEVELS).astype(np.uint8)
    return {
        "model": model,
        "tokens": tokens,
        "segmentBStart": segment_b_start,
        "layers": int(weights.shape[0]),
        "heads": int(weights.shape[1]),
        "weights": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


def render(data: dict[str, Any]) -> str:
    """Return the page. The data stand in a script, so what could end that script is escaped."""
    text = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    template = TEMPLATE.read_text(encoding="utf-8")
    assert template.count(PLACE_OF_DATA) == 1, f"{TEMPLATE}: the data have one place"
    return template.replace(PLACE_OF_DATA, text)
