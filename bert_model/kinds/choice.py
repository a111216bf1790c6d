"""Multiple choice: a context with each of its endings is a row, and the rows of an example are read together.

Shapes: N examples, C endings.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_model.kinds.base import Answers, Decision, EncodingConfig, Fitted, Kind, Outputs, mean_softmax, rounded
from bert_model.kinds.encoded import EncodedSet
from bert_model.kinds.text import encode_texts
from bert_pipeline.errors import InputError
from bert_pipeline.tasks.example import ChoiceExample
from bert_pipeline.vocabulary.tokenizer import Tokenizer

Choices = Sequence[ChoiceExample]


class Choice(Kind):
    """The index of an ending."""

    name = form = "choice"
    architecture = "BertForMultipleChoice"
    pipeline = "multiple-choice"
    rows_shape = (3,)
    reads_pairs = True
    baseline_name = "most frequent position"

    def parse(self, key: str, fields: Mapping[str, Any]) -> ChoiceExample:
        return ChoiceExample(key, fields["context"], fields["endings"])

    def fields(self, example: ChoiceExample) -> dict[str, Any]:
        return {"context": example.context, "endings": example.endings}

    def encode_rows(self, examples: Choices, tokenizer: Tokenizer, config: EncodingConfig) -> EncodedSet:
        count = len(examples[0].endings)
        for example in examples:
            if len(example.endings) != count:
                raise InputError(
                    f"{self.task.name}: example {example.example_id} has {len(example.endings)} endings, expected "
                    f"{count} as the first example has"
                )

        # The rows of an example follow one another, which `rows_per_example` relies on.
        pairs: list[tuple[str, str | None]] = [(e.context, ending) for e in examples for ending in e.endings]
        return encode_texts(pairs, tokenizer, config.max_seq_length, rows_per_example=count)

    def targets(self, examples: Choices) -> np.ndarray:
        return np.asarray([example.label for example in examples], dtype=np.int64)

    def decode(self, examples: Choices, encoded: EncodedSet, logits: np.ndarray, fitted: Fitted) -> dict[str, Any]:
        return {example.example_id: int(index) for example, index in zip(examples, logits.argmax(axis=-1))}

    def check_prediction(self, example: ChoiceExample, value: Any) -> None:
        if not 0 <= value < len(example.endings):
            raise InputError(
                f"{self.task.name}: example {example.example_id!r} has the prediction {value}, expected the index of "
                f"an ending, 0 to {len(example.endings) - 1}"
            )

    def checked(self, where: str, value: Any) -> Any:
        if not str(value).isdecimal():
            raise InputError(f"{where}: prediction {value!r}, expected the index of an ending, from 0")
        return int(value)

    def page_text(self, decision: Decision) -> str:
        lines = [html.escape(decision.example.context)]
        # The page lists wrong predictions, so the marked ending is a wrong one.
        for number, ending in enumerate(decision.example.endings):
            text = f"{number}: {html.escape(ending)}"
            lines.append(f"<mark>{text}</mark>" if str(number) == decision.predicted else text)
        return "\n".join(lines)

    def answer(self, examples: Choices, outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        return [
            {
                "prediction": int(row.argmax()),
                "ending": int(row.argmax()),
                "text": example.endings[int(row.argmax())],
                "probabilities": [rounded(value) for value in row],
            }
            for example, row in zip(examples, mean_softmax(outputs))
        ]
