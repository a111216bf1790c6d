"""Results and failures of the workers, returned through Beam: the results compared with the plan, a failure raised.

Beam accounts for every element; a listing of a store may lack files. Runners return no elements to the program that
starts a job, so the last step of a pipeline writes all of them to one file with a known name, which every worker and
the program can reach (docs/decisions/0022). A failure is an element too, which later steps hand on: an exception would
make a runner repeat the bundle, and return as text in the middle of the runner's own message. That is right for a store
that does not answer, and for nothing else that the user can act on.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline import errors
from bert_pipeline.atomic import replace_text
from bert_pipeline.beam import beam
from bert_pipeline.errors import ArtifactError, BertError, UnavailableError
from bert_pipeline.storage import absolute, failure_of, to_path

Result = dict[str, Any]
"""What a worker reports, in JSON; "name" and "rows" are compared with the plan."""


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


@beam.ptransform_fn  # type: ignore[untyped-decorator]
def WriteResults(results: Any, path: Path) -> Any:
    """Write all elements, which are `Result`s and `Failure`s, to one file."""
    return results | beam.combiners.ToList() | beam.Map(functools.partial(_write, path=absolute(path)))


def _write(results: list[Result | Failure], path: str) -> None:
    document = {
        "results": [result for result in results if not isinstance(result, Failure)],
        "failures": [dataclasses.asdict(result) for result in results if isinstance(result, Failure)],
    }
    replace_text(to_path(path), json.dumps(document, ensure_ascii=False))


def read_results(path: Path, plan: Mapping[str, int | None]) -> list[Result]:
    """Return one result for each planned name, in the plan's order: `load_results`, then `check_results`."""
    return check_results(load_results(path), plan)


def load_results(path: Path) -> list[Result]:
    """Return all results of a file, in no order; raise the first failure of the workers if there is one."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _mismatch(f"{path.name}: not found, expected the results of all shards") from None
    for failure in sorted(Failure(**failure) for failure in document["failures"]):
        raise getattr(errors, failure.kind)(failure.message)
    results: list[Result] = document["results"]
    return results


def check_results(results: Sequence[Result], plan: Mapping[str, int | None]) -> list[Result]:
    """Return one result for each planned name, in the plan's order.

    `plan` maps a name to its number of rows, None where that is not known. ArtifactError if a result is missing,
    repeated or not planned, or if its rows are others.
    """
    by_name = {result["name"]: result for result in results}
    if lost := [name for name in plan if name not in by_name]:
        rows = sum(plan[name] or 0 for name in lost)
        size = f" ({rows:,} rows)" if rows else ""
        raise _mismatch(f"no result for {', '.join(lost[:5])}{size}; found {len(by_name)} of {len(plan)} shards")
    if len(results) != len(plan):
        raise _mismatch(f"found {len(results)} results, expected those of {len(plan)} shards")
    for name, expected in plan.items():
        if expected is not None and by_name[name]["rows"] != expected:
            raise _mismatch(f"{name}: found {by_name[name]['rows']:,} rows, expected {expected:,}")
    return [by_name[name] for name in plan]


def check_total(what: str, found: int, expected: int) -> None:
    """Raise ArtifactError unless the sum over what was collected is that over the workers' results."""
    if found != expected:
        raise _mismatch(f"{what}: found {found:,}, expected {expected:,}")


def _mismatch(problem: str) -> ArtifactError:
    return ArtifactError(f"{problem}; nothing was published, run the command again")
