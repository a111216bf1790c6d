"""Former path of `bert_model.finetuning.task_model`, imported by the code of versions registered before the move.

See `bert_model.prediction`.
"""

from bert_model.finetuning.task_model import read_task_description

__all__ = ["read_task_description"]
