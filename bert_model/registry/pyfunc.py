"""A registered model as an MLflow pyfunc: this file is the model's code ("models from code"), stored with each version.

Loading it runs this file and the installed `bert_model`, and reads safetensors, JSON and text below the version's
`artifacts/`; nothing is unpickled.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel

ARTIFACT = "model"
"""Name of the artefact: a directory of ours with its manifest."""

EXAMPLES: dict[str, dict[str, Any]] = {
    "text": {"text": "The film was a delight from beginning to end."},
    "pair": {"text": "The cat sat on the mat.", "text_b": "An animal was on the mat."},
    "span": {"question": "Where was Ada born?", "context": "Ada was born in London."},
    "choice": {"context": "She opens the door.", "endings": ["She walks in.", "The sun is blue."]},
    "tagging": {"text": "Ada Lovelace lived in London."},
    "mlm": {"text": "The capital of the country is [MASK]."},
}
"""One input of each form, stored with the version."""


class ServedModel(PythonModel):
    """Answers rows of plain text; what `bert predict` answers to the same input."""

    def load_context(self, context: Any) -> None:
        from bert_model.finetuning.task_model import read_task_facts
        from bert_model.inference.predict import load_predictor

        directory = Path(context.artifacts[ARTIFACT])
        facts = read_task_facts(directory)
        self.predictor = load_predictor(facts["task"] if facts else "mlm", [directory])

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Answer a table with the columns of the signature, which MLflow has checked before."""
        from bert_model.inference.predict import answer_inputs

        rows = model_input.to_dict("records")
        return answer_inputs(self.predictor, [{str(key): _plain(value) for key, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    return list(value) if hasattr(value, "tolist") else value


mlflow.models.set_model(ServedModel())
