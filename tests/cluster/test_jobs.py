"""The data jobs from a bucket to a bucket: the hashes of the local run, and faults that lose nothing."""

import contextlib
import signal
import time

import data_jobs
import pytest
from cluster import Cluster, harnesses, once
from data_jobs import LOCAL, STAGES
from fault_proxy import FaultProxy

from bert_pipeline.errors import BertError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.storage import upload

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, method="signal")]


@pytest.fixture(scope="session")
def dump(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A dump on the local disk, and its copy in the bucket."""
    local = data_jobs.write_dump(tmp_path_factory.mktemp("dump") / "wiki.xml.bz2")
    upload(local, f"{bucket}/dumps/{local.name}")
    return str(local), f"{bucket}/dumps/{local.name}"


@pytest.fixture(scope="session")
def local_hashes(dump: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return data_jobs.build_all(dump[0], str(tmp_path_factory.mktemp("local")), LOCAL)


@pytest.fixture(scope="session")
def home(dump: tuple[str, str], bucket: str) -> str:
    """A place in the bucket with the results of all jobs, made by one process."""
    data_jobs.build_all(dump[1], f"{bucket}/home", LOCAL)
    return f"{bucket}/home"


def test_from_bucket_to_bucket_one_process_makes_what_it_makes_on_disk(home: str, local_hashes: dict[str, str]) -> None:
    for stage in STAGES:
        assert load_manifest(f"{home}/{stage}", verify="sha256").sha256 == local_hashes[stage]
        assert data_jobs.left_over(f"{home}/{stage}") == []


@pytest.mark.parametrize("fault", ["full", "quota", "expired", "refused"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_store_that_fails_in_the_middle_of_a_job_is_one_sentence_and_loses_nothing(
    stage: str, fault: str, home: str, dump: tuple[str, str], proxy: FaultProxy, local_hashes: dict[str, str]
) -> None:
    began = time.monotonic()
    with proxy.fault(fault, after=6), pytest.raises(BertError) as caught:
        data_jobs.build(stage, dump[1], home, LOCAL)
    assert time.monotonic() - began < 60
    assert "\n" not in str(caught.value)
    assert load_manifest(f"{home}/{stage}", verify="sha256").sha256 == local_hashes[stage]  # the one before
    # The attempt could not be removed from a store that refuses: what remains is found by its age.
    data_jobs.build(stage, dump[1], home, LOCAL)
    assert load_manifest(f"{home}/{stage}", verify="sha256").sha256 == local_hashes[stage]


def test_a_slow_store_is_waited_for(home: str, dump: tuple[str, str], proxy: FaultProxy, local_hashes) -> None:
    with proxy.fault("slow", delay=0.3):
        assert data_jobs.build("vocabulary", dump[1], home, LOCAL).sha256 == local_hashes["vocabulary"]


@pytest.fixture(scope="session")
def made_by_cluster(running_cluster: Cluster, dump: tuple[str, str], bucket: str) -> str:
    """A place in the bucket with the results of all jobs, made by the cluster."""
    running_cluster.start()
    data_jobs.build_all(dump[1], f"{bucket}/made-by-cluster", running_cluster.options())
    return f"{bucket}/made-by-cluster"


def test_workers_that_share_nothing_make_what_one_process_makes(
    made_by_cluster: str, local_hashes: dict[str, str]
) -> None:
    for stage in STAGES:
        assert load_manifest(f"{made_by_cluster}/{stage}", verify="sha256").sha256 == local_hashes[stage]
        assert data_jobs.left_over(f"{made_by_cluster}/{stage}") == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_killed_in_a_stage_loses_nothing(
    stage: str, made_by_cluster: str, cluster: Cluster, dump: tuple[str, str], local_hashes: dict[str, str]
) -> None:
    host = cluster.workers[0]
    with once(lambda: harnesses(host), lambda: cluster.signal_worker(host, signal.SIGKILL)):
        made = data_jobs.build(stage, dump[1], made_by_cluster, cluster.options())
    assert made.sha256 == local_hashes[stage]
    load_manifest(f"{made_by_cluster}/{stage}", verify="sha256")


def test_a_job_server_that_goes_away_is_one_sentence_and_loses_nothing(
    made_by_cluster: str, cluster: Cluster, dump: tuple[str, str], local_hashes: dict[str, str]
) -> None:
    began = time.monotonic()
    kill = once(lambda: harnesses(cluster.workers[0]), cluster.job_server.kill)
    with pytest.raises(BertError) as caught, kill:
        data_jobs.build("vocabulary", dump[1], made_by_cluster, cluster.options())
    assert time.monotonic() - began < 120
    assert "\n" not in str(caught.value)
    assert load_manifest(f"{made_by_cluster}/vocabulary", verify="sha256").sha256 == local_hashes["vocabulary"]


@pytest.mark.parametrize("fault", ["full", "denied", "refused"])
def test_a_store_that_fails_the_workers_is_one_sentence_and_loses_nothing(
    fault: str, made_by_cluster: str, cluster: Cluster, proxy: FaultProxy, dump: tuple[str, str], local_hashes
) -> None:
    with contextlib.ExitStack() as until_the_end:

        def fail() -> bool:
            until_the_end.enter_context(proxy.fault(fault))
            return True

        with (
            pytest.raises(BertError, match="the store") as caught,
            once(lambda: harnesses(cluster.workers[0]), fail),
        ):
            data_jobs.build("vocabulary", dump[1], made_by_cluster, cluster.options())
    assert "\n" not in str(caught.value)
    assert load_manifest(f"{made_by_cluster}/vocabulary", verify="sha256").sha256 == local_hashes["vocabulary"]
    made = data_jobs.build("vocabulary", dump[1], made_by_cluster, cluster.options())
    assert made.sha256 == local_hashes["vocabulary"]
