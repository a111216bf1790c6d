"""Failures of a Beam job's workers: elements that later steps hand on, raised in the parent with their type.

An exception would make a runner repeat the bundle, and return as text in the middle of the runner's own message. That
is right for a store that does not answer, and for nothing else that the user can act on.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bert_pipeline.errors import BertError, UnavailableError
from bert_pipeline.storage import failure_of


@dataclasses.dataclass(frozen=True, order=True)
class Failure:
    """A `BertError` of a worker, as an element."""

    message: str
    kind: str


def guarded(function: Callable[..., Iterable[Any]], element: Any, *side_inputs: Any) -> Iterator[Any]:
    """Yield the results of `function`, and a `Failure` for the `BertError` that it raises; other exceptions propagate.

    An UnavailableError propagates too: it may pass when the runner repeats the bundle. What the client of a store
    raises counts as a `BertError`. If `element` or a side input is a `Failure` or a list with some, they are yielded
    in place of results.
    """
    if failures := [failure for value in (element, *side_inputs) for failure in failures_in(value)]:
        yield from failures
        return
    try:
        yield from function(element, *side_inputs)
    except UnavailableError:
        raise
    except Exception as raised:
        if (error := raised if isinstance(raised, BertError) else failure_of(raised)) is None:
            raise
        if isinstance(error, UnavailableError):
            raise error from raised
        yield Failure(str(error), type(error).__name__)


def failures_in(value: Any) -> Sequence[Failure]:
    """Return the failures that an element, or a list that is one, consists of."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, Failure)]
