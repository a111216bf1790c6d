"""MLflow model code ("models from code"): a copy of this file is stored with every registered version.

Loading a version runs its copy with the installed `bert_model` and reads safetensors, JSON and text below the
version's `artifacts/`; nothing is unpickled. A version can be loaded as long as the paths that its copy imports exist.
"""

from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.pyfunc.model import PythonModel

ARTIFACT = "model"
"""Name of the artifact: a model directory with its manifest."""


class ServedModel(PythonModel):
    """MLflow pyfunc wrapper; same answers as `bert predict`."""

    def load_context(self, context: Any) -> None:
        """Load the predictor of the model's task, or of "mlm" for a pre-trained model."""
        from bert_model.finetuning.task_model import read_task_description
        from bert_model.inference.predict import load_predictor

        directory = Path(context.artifacts[ARTIFACT])
        description = read_task_description(directory)
        self.predictor = load_predictor(description["task"] if description else "mlm", [directory])

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Answer the rows of a table whose columns MLflow has checked against the signature."""
        from bert_model.inference.predict import answer_inputs

        rows = model_input.to_dict("records")
        return answer_inputs(self.predictor, [{str(key): _plain(value) for key, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    """Turn the array that MLflow makes of a list column back into a list."""
    return list(value) if hasattr(value, "tolist") else value


mlflow.models.set_model(ServedModel())
