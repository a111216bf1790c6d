"""The kinds of tasks: all that differs between them, from examples to rows, loss, predictions, scores and answers."""

from bert_model.kinds.base import Kind
from bert_model.kinds.choice import Choice
from bert_model.kinds.embedding import Embedding
from bert_model.kinds.span import Span
from bert_model.kinds.tagging import Tagging
from bert_model.kinds.text import Classification, Multilabel, Regression
from bert_pipeline.tasks.catalogue import Task, get_task

__all__ = ["KINDS", "Kind", "kind_of"]

KINDS: dict[str, type[Kind]] = {
    kind.name: kind for kind in (Classification, Multilabel, Regression, Choice, Span, Tagging, Embedding)
}
"""Name of a kind in the description of a task -> its class; `bert_pipeline.tasks.catalogue.KINDS` has its rules."""


def kind_of(task: Task | str) -> Kind:
    """Return what its kind knows of a task, given itself or by its name."""
    task = task if isinstance(task, Task) else get_task(task)
    return KINDS[task.kind](task)
