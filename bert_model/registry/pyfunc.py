"""MLflow model code ("models from code"): a copy of this file is stored with every registered version.

Loading a version runs its copy with the `bert_model` that is stored beside it in `code/`, so that it needs no
installation of this project, and reads safetensors, JSON and text below `artifacts/`; nothing is unpickled. Versions of
earlier revisions have no `code/`: they are loaded as long as the paths that their copies import exist.
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
        from bert_pipeline.errors import InputError

        try:
            return answer_inputs(self.predictor, [_input(row) for row in model_input.to_dict("records")])
        except InputError as error:  # MLflow's server tells the text of its own exceptions only
            raise mlflow.MlflowException.invalid_parameter_value(str(error)) from error


def _input(row: dict[Any, Any]) -> dict[str, Any]:
    """Return the fields of a row; MLflow and pandas make arrays of lists, NaN of null, floats of the ids beside one."""
    fields = {str(key): list(value) if hasattr(value, "tolist") else value for key, value in row.items()}
    if isinstance(number := fields.get("id"), float) and number.is_integer():
        fields["id"] = int(number)
    return {key: value for key, value in fields.items() if isinstance(value, list) or pd.notna(value)}


mlflow.models.set_model(ServedModel())
