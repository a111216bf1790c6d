"""A code server that starts marks what its predecessor took with it; other servers' runs are left alone."""

import json

import dagster as dg

from workflows.code_server import GRPC_TAG, end_runs, runs_of_server


def run_on(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, **server: object) -> str:
    @dg.op
    def nothing() -> None: ...

    @dg.job
    def job() -> None:
        nothing()

    tags = {GRPC_TAG: json.dumps(server)} if server else {}
    return instance.create_run_for_job(job, tags=tags, status=status).run_id


def test_runs_of_the_same_address_that_had_not_ended_are_marked_as_failed(instance):
    started = run_on(instance, dg.DagsterRunStatus.STARTED, host="code", port=4000)
    others = [
        run_on(instance, dg.DagsterRunStatus.STARTED, host="elsewhere", port=4000),
        run_on(instance, dg.DagsterRunStatus.STARTED, host="code", port=4001),
        run_on(instance, dg.DagsterRunStatus.STARTED),
        run_on(instance, dg.DagsterRunStatus.NOT_STARTED, host="code", port=4000),
        run_on(instance, dg.DagsterRunStatus.SUCCESS, host="code", port=4000),
    ]
    before = [instance.get_run_by_id(run).status for run in others]
    left = runs_of_server(instance, "code", 4000)
    assert left == [started]
    assert end_runs(instance, left) == [started]
    assert instance.get_run_by_id(started).status == dg.DagsterRunStatus.FAILURE
    assert [instance.get_run_by_id(run).status for run in others] == before
    assert runs_of_server(instance, "code", 4000) == []
    assert end_runs(instance, left) == []
