"""Object store, network and Beam cluster, started once for all tests of this folder."""

import os

import fsspec
import pytest
from cluster import Cluster
from fault_proxy import running_proxy
from network import running_network
from object_store import BUCKET, running_store


@pytest.fixture(scope="session")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def network(logs):
    with running_network(logs) as running:
        yield running


@pytest.fixture(scope="session")
def object_store(logs):
    """The S3 server, on loopback: only this process reaches it, without faults."""
    with running_store(logs) as running:
        yield running


@pytest.fixture(scope="session")
def proxy(object_store, network):
    """What the hosts of the network take for the S3 server."""
    with running_proxy(object_store.address, network.gateway) as running:
        yield running


@pytest.fixture(scope="session")
def store_environment(object_store, proxy):
    """Variables with which the clients of S3 find the store, by way of the proxy."""
    return {
        "AWS_ACCESS_KEY_ID": object_store.key,
        "AWS_SECRET_ACCESS_KEY": object_store.secret,
        "AWS_ENDPOINT_URL_S3": proxy.address,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "3",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture(scope="session")
def bucket(store_environment, object_store):
    """The URL of an empty bucket; the environment of this process has the store's address and credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store_environment.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3").mkdir(BUCKET)
        yield f"s3://{BUCKET}"


@pytest.fixture
def folder(bucket, request):
    """A prefix of the bucket for one test."""
    return f"{bucket}/{request.node.name}"


@pytest.fixture(scope="session")
def running_cluster(network, store_environment, bucket):
    return Cluster(network, store_environment)


@pytest.fixture
def cluster(running_cluster):
    """The cluster with all its processes, whatever the last test killed."""
    running_cluster.start()
    return running_cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    """Show the end of each server's log if a test failed."""
    report = yield
    if report.failed and "logs" in getattr(item, "funcargs", {}):
        for log in sorted(item.funcargs["logs"].glob("*.log")):
            report.sections.append((f"end of {log.name}", log.read_text(encoding="utf-8", errors="replace")[-3000:]))
    return report


os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
