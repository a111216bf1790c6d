"""Attention of every layer and head between the tokens of one or two texts, as one self-contained HTML page.

Shapes: L layers, A heads, S tokens.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_model.finetuning.forward_passes import to_tensors
from bert_model.inference.inputs import writing
from bert_model.kinds.text import encode_texts
from bert_model.model.bert import BertModel
from bert_model.model.weights import check_embeddings, load_model
from bert_pipeline.errors import InputError
from bert_pipeline.vocabulary.tokenizer import Tokenizer

TEMPLATE = Path(__file__).with_name("attention.html")
DATA_PLACEHOLDER = "/*DATA*/null"
MAX_TOKENS = 192
"""More tokens are illegible, and with BERT-large's 384 heads the page would exceed 20 MB."""
LEVELS = 255
"""A weight is stored in one byte."""


def write_attention(
    directory: Path, text_a: str, text_b: str | None, output: Path | str, *, model_name: str = ""
) -> int:
    """Write the page for a text or a pair; return the number of tokens.

    The model in `directory` is pre-trained or fine-tuned; its name on the page is `model_name` or the directory.
    InputError if a text has no token, or both together have too many for the page or the model.
    """
    tokenizer = Tokenizer.from_directory(directory)
    encoder, _ = load_model(BertModel, directory)
    check_embeddings(directory, encoder.config, tokenizer, pair_task="" if text_b is None else "bert attention")
    tokens, segment_b_start, weights = attention_weights(encoder, tokenizer, text_a, text_b)
    # A weight is stored as its square root: accurate to 0.003 at 0.5, and finer for small weights.
    levels = np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * LEVELS).astype(np.uint8)
    data = {
        "model": model_name or str(directory),
        "tokens": tokens,
        "segmentBStart": segment_b_start,
        "layers": int(weights.shape[0]),
        "heads": int(weights.shape[1]),
        "weights": base64.b64encode(levels.tobytes()).decode("ascii"),
        "causal": encoder.config.attention == "causal",
    }
    with writing(str(output)) as stream:
        stream.write(render(data))
    return len(tokens)


def attention_weights(
    encoder: BertModel, tokenizer: Tokenizer, text_a: str, text_b: str | None
) -> tuple[list[str], int, np.ndarray]:
    """Return the tokens, the index of B's first token (S without B) and the weights (L, A, S, S) float32.

    weights[l, a, i, j] is the share of position j in what position i reads: each row sums to 1.
    """
    limit = min(MAX_TOKENS, encoder.config.max_position_embeddings)
    for name, text in (("TEXT_A", text_a), ("TEXT_B", text_b)):
        if text is not None and not tokenizer.encode(text):
            raise InputError(f"{name}: {text[:60]!r} has no token, expected a text")

    # Encoded without a limit, so that too long a text is an error and never cut.
    encoded = encode_texts([(text_a, text_b)], tokenizer, 1 << 20)
    if (count := len(encoded.input_ids)) > limit:
        raise InputError(f"the texts have {count} tokens with [CLS] and [SEP], expected at most {limit}; shorten them")

    with torch.inference_mode():  # one row has no padding to mask
        attentions = encoder.eval()(**to_tensors(encoded, np.arange(1)), output_attentions=True).attentions
    assert attentions is not None, "output_attentions was set"
    weights = torch.stack([layer[0] for layer in attentions]).float().numpy()  # (L, A, S, S)
    tokens = [tokenizer.tokens[index] for index in encoded.input_ids]
    return tokens, int(encoded.segment_b_start[0]), weights


def render(data: dict[str, Any]) -> str:
    """Return the page. The data are embedded in a script, so characters that could end the script are escaped."""
    text = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    template = TEMPLATE.read_text(encoding="utf-8")
    assert template.count(DATA_PLACEHOLDER) == 1, f"{TEMPLATE}: expected one {DATA_PLACEHOLDER}"
    return template.replace(DATA_PLACEHOLDER, text)
