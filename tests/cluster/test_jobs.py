"""The data jobs from a bucket to a bucket: the hashes of the local run, and faults that lose nothing."""

import contextlib
import signal
import time

import data_jobs
import pytest
from cluster import harnesses, once
from data_jobs import LOCAL, STAGES

from bert_pipeline.errors import BertError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.storage import upload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, method="signal")]


@pytest.fixture(scope="session")
def dump(bucket, tmp_path_factory):
    """A dump on the local disk, and its copy in the bucket."""
    local = data_jobs.write_dump(tmp_path_factory.mktemp("dump") / "wiki.xml.bz2")
    upload(local, f"{bucket}/dumps/{local.name}")
    return str(local), f"{bucket}/dumps/{local.name}"


@pytest.fixture(scope="session")
def local_hashes(dump, tmp_path_factory):
    return data_jobs.build_all(dump[0], str(tmp_path_factory.mktemp("local")), LOCAL)


@pytest.fixture(scope="session")
def home(dump, bucket):
    """A place in the bucket with the results of all jobs, made by one process."""
    data_jobs.build_all(dump[1], f"{bucket}/home", LOCAL)
    return f"{bucket}/home"


def test_artifacts_in_a_bucket_equal_those_on_disk(home, local_hashes):
    for stage in STAGES:
        assert load_manifest(f"{home}/{stage}", verify="sha256").sha256 == local_hashes[stage]
        assert data_jobs.left_over(f"{home}/{stage}") == []


@pytest.mark.parametrize("fault", ["full", "quota", "expired", "refused"])
@pytest.mark.parametrize("stage", STAGES)
def test_store_failure_during_a_job_keeps_the_artifact(stage, fault, home, dump, proxy, local_hashes):
    began = time.monotonic()
    with proxy.fault(fault, after=6), pytest.raises(BertError) as caught:
        data_jobs.build(stage, dump[1], home, LOCAL)
    assert time.monotonic() - began < 60
    assert "\n" not in str(caught.value)
    assert load_manifest(f"{home}/{stage}", verify="sha256").sha256 == local_hashes[stage]  # the one before
    # The attempt could not be removed from a store that refuses: what remains is found by its age.
    data_jobs.build(stage, dump[1], home, LOCAL)
    assert load_manifest(f"{home}/{stage}", verify="sha256").sha256 == local_hashes[stage]


def test_slow_store_is_waited_for(home, dump, proxy, local_hashes):
    with proxy.fault("slow", delay=0.1):
        assert data_jobs.build("vocabulary", dump[1], home, LOCAL).sha256 == local_hashes["vocabulary"]


@pytest.fixture(scope="session")
def made_by_cluster(running_cluster, dump, bucket):
    """A place in the bucket with the results of all jobs, made by the cluster."""
    running_cluster.start()
    data_jobs.build_all(dump[1], f"{bucket}/made-by-cluster", running_cluster.options())
    return f"{bucket}/made-by-cluster"


def test_workers_that_share_nothing_make_what_one_process_makes(made_by_cluster, local_hashes):
    for stage in STAGES:
        assert load_manifest(f"{made_by_cluster}/{stage}", verify="sha256").sha256 == local_hashes[stage]
        assert data_jobs.left_over(f"{made_by_cluster}/{stage}") == []


@pytest.mark.parametrize("stage", STAGES)
def test_killed_worker_loses_nothing(stage, made_by_cluster, cluster, dump, local_hashes):
    host = cluster.workers[0]
    with once(lambda: harnesses(host), lambda: cluster.signal_worker(host, signal.SIGKILL)):
        made = data_jobs.build(stage, dump[1], made_by_cluster, cluster.options())
    assert made.sha256 == local_hashes[stage]
    load_manifest(f"{made_by_cluster}/{stage}", verify="sha256")


def test_lost_job_server_keeps_the_artifact(made_by_cluster, cluster, dump, local_hashes):
    began = time.monotonic()
    kill = once(lambda: harnesses(cluster.workers[0]), cluster.job_server.kill)
    with pytest.raises(BertError) as caught, kill:
        data_jobs.build("vocabulary", dump[1], made_by_cluster, cluster.options())
    assert time.monotonic() - began < 120
    assert "\n" not in str(caught.value)
    assert load_manifest(f"{made_by_cluster}/vocabulary", verify="sha256").sha256 == local_hashes["vocabulary"]


@pytest.mark.parametrize("fault", ["full", "denied", "refused"])
def test_store_failure_of_workers_keeps_the_artifact(fault, made_by_cluster, cluster, proxy, dump, local_hashes):
    with contextlib.ExitStack() as until_the_end:

        def fail() -> bool:
            until_the_end.enter_context(proxy.fault(fault))
            return True

        with pytest.raises(BertError, match="the store") as caught, once(lambda: harnesses(cluster.workers[0]), fail):
            data_jobs.build("vocabulary", dump[1], made_by_cluster, cluster.options())
    assert "\n" not in str(caught.value)
    assert load_manifest(f"{made_by_cluster}/vocabulary", verify="sha256").sha256 == local_hashes["vocabulary"]
    made = data_jobs.build("vocabulary", dump[1], made_by_cluster, cluster.options())
    assert made.sha256 == local_hashes["vocabulary"]
