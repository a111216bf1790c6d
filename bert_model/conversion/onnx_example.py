"""Answer with an exported model, by onnxruntime and tokenizers alone: python model.example.py model.onnx TEXT ...

The texts are one input: a text, or both of a pair; a question and its context; a context and its endings. Printed is
the prediction of `bert predict`, but that of the beginning where a text is longer than the model reads.
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer, pre_tokenizers

FIELDS = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


def main(file: str, *texts: str) -> Any:
    """Return a label, labels, a number, an ending's index, an answer, a tag for each word, or a token for each mask."""
    session = onnxruntime.InferenceSession(file)
    about = session.get_modelmeta().custom_metadata_map
    kind, labels = about["kind"], json.loads(about["labels"])
    tokenizer = Tokenizer.from_file(__file__.replace(".example.py", ".tokenizer.json"))
    tokenizer.enable_padding()
    tokenizer.enable_truncation(
        int(about["max_seq_length"]), strategy="only_second" if kind == "span" else "longest_first"
    )

    if kind == "tagging":  # the words that are tagged, with a blank between them
        texts = (" ".join(word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(texts[0])),)
    # Each ending is a row with its context, and each text to be compared one of its own.
    by_kind: dict[str, list[Any]] = {"choice": [(texts[0], ending) for ending in texts[1:]], "embedding": [*texts]}
    rows = tokenizer.encode_batch(by_kind.get(kind, [texts if len(texts) > 1 else texts[0]]))
    inputs = {item.name: np.array([getattr(row, FIELDS[item.name]) for row in rows]) for item in session.get_inputs()}
    outputs = session.run(None, {name: array[None] if kind == "choice" else array for name, array in inputs.items()})

    row, logits = rows[0], outputs[0][0]
    if kind in ("classification", "choice"):
        return labels[logits.argmax()] if kind == "classification" and labels else int(logits.argmax())
    if kind == "multilabel":
        thresholds = np.broadcast_to(json.loads(about.get("thresholds", "0.5")), len(labels))
        return [label for label, logit, limit in zip(labels, logits, thresholds) if 1 / (1 + np.exp(-logit)) > limit]
    if kind in ("regression", "embedding"):
        vectors = outputs[0] / np.linalg.norm(outputs[0], axis=-1, keepdims=True)
        return float(logits[0] if kind == "regression" else vectors[0] @ vectors[1])
    if kind == "tagging":  # at the first token of each word
        words = [texts[0].count(" ", 0, max(start + 1, end)) for start, end in row.offsets]
        tokens = [*zip(words, logits, row.special_tokens_mask)]
        tags = {word: tag.argmax() for word, tag, is_special in reversed(tokens) if not is_special}
        return [labels[tags[word]] for word in sorted(tags)]
    if kind == "span":
        scores = logits[:, None] + outputs[1][0]  # of each first and last token
        inside, places = np.array(row.sequence_ids) == 1, np.arange(len(scores))
        possible = np.outer(inside, inside) & (places >= places[:, None])
        possible &= places - places[:, None] < int(about.get("max_answer_length", 30))
        first, last = divmod(int(np.where(possible, scores, -np.inf).argmax()), len(scores))
        has_answer = scores[0, 0] - scores[first, last] <= float(about.get("null_threshold", "inf"))
        return texts[1][row.offsets[first][0] : row.offsets[last][1]] if has_answer else ""
    filled = [scores for scores, token in zip(logits, row.tokens) if token in ("[MASK]", "<mask>")]
    return [tokenizer.id_to_token(int(scores.argmax())) for scores in filled]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:]), ensure_ascii=False))
