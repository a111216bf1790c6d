"""Options of Beam as the jobs take them: the local runner's own, and those of others."""

import pytest

from bert_pipeline.beam.options import num_workers, pipeline_options
from bert_pipeline.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [((), None), (("--workers", "3"), 3), (("--workers=1",), 1), (("--direct_num_workers=2",), 2)],
)
def test_local_runner_takes_the_workers_asked_for(arguments: tuple[str, ...], expected: int | None) -> None:
    found = num_workers(pipeline_options(arguments))
    assert found == expected if expected else found and found >= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workers=0",), "1 or more"),
        (("--workers",), "expected a value"),
        (("--direct_num_workrs=2",), "did you mean '--direct_num_workers'"),
        (("--runner=FlinkRunner", "--workers=2"), "local runner"),
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pipeline_options(arguments)


def test_options_of_other_runners_pass_through() -> None:
    options = pipeline_options(("--runner=FlinkRunner", "--flink_master=host:8081"))
    assert options.get_all_options()["flink_master"] == "host:8081"
    assert num_workers(options) is None
