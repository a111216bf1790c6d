"""The environment itself: hosts that share nothing, a store with faults, a Beam that notices lost workers."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apache_beam as beam
import fsspec
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from cluster import Cluster, harnesses, wait_until

from bert_pipeline import storage
from bert_pipeline.errors import BertError

PLAIN = "--experiments=disable_logging_submission_environment"
"""The product's jobs have it too: Beam would stage a list of packages, which the workers' pool does not fetch."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, method="signal")]


def test_worker_sees_no_disk_of_ours(cluster, network, tmp_path, folder):
    local = tmp_path / "local.txt"
    local.write_text("here")

    def look(number: int) -> tuple[int, bool, bool]:
        with contextlib.suppress(OSError):
            Path(__file__).with_name("left-over").touch()
        return number, os.path.exists(local), os.path.exists(Path(__file__).with_name("left-over"))

    def write(row: tuple[int, bool, bool]) -> None:
        with fsspec.open(f"{folder}/{row[0]}", "w") as file:
            file.write(f"{row[1]} {row[2]}")

    with beam.Pipeline(options=PipelineOptions([*cluster.options(), PLAIN])) as pipeline:
        _ = pipeline | beam.Create(range(8)) | beam.Reshuffle() | beam.Map(look) | beam.Map(write)

    expected = "False False" if network.separate else "True True"
    store = fsspec.filesystem("s3", use_listings_cache=False)
    assert [store.cat_file(path).decode() for path in results(folder)] == [expected] * 8


@contextlib.contextmanager
def running(cluster: Cluster, folder: str, elements: int = 24) -> Iterator[None]:
    """Run a job of some seconds during the block; its results are in `folder` afterwards."""

    def write(number: int) -> None:
        time.sleep(0.3)
        with fsspec.open(f"{folder}/{number}", "w") as file:
            file.write(str(number * number))

    failures = []

    def run() -> None:
        try:
            with beam.Pipeline(options=PipelineOptions([*cluster.options(), PLAIN])) as pipeline:
                _ = pipeline | beam.Create(range(elements)) | beam.Reshuffle() | beam.Map(write)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(120)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def results(folder: str) -> list[str]:
    return fsspec.filesystem("s3", use_listings_cache=False).find(folder)


def check_results(folder: str, elements: int = 24) -> None:
    store = fsspec.filesystem("s3")
    found = {path.rpartition("/")[2]: store.cat_file(path) for path in results(folder)}
    assert found == {str(number): str(number * number).encode() for number in range(elements)}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_job_starts_again_without_the_worker_that_is_lost(cluster, folder, number):
    host = cluster.workers[0]
    with running(cluster, folder):
        wait_until(lambda: results(folder) and harnesses(host))
        assert cluster.signal_worker(host, number) == 1
    cluster.signal_worker(host, signal.SIGKILL)
    check_results(folder)


def test_job_starts_again_without_a_host_that_is_cut_off(cluster, folder, network):
    if not network.separate:
        pytest.skip("hosts without network namespaces cannot be cut off")
    host = cluster.workers[0]
    with running(cluster, folder):
        wait_until(lambda: results(folder))
        host.cut()
    host.reconnect()
    check_results(folder)


@pytest.mark.parametrize("old", [None, b"old"], ids=["new", "replaced"])
def test_one_of_several_writers_of_an_object_wins(folder, old):
    claim = storage.to_path(f"{folder}/claim")
    if old is not None:
        assert storage.replace_object(claim, old, old=None)
    barrier = threading.Barrier(4)
    won: list[int] = []

    def write(number: int) -> None:
        barrier.wait()
        if storage.replace_object(claim, b"%d" % number, old=old):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert claim.read_bytes() == b"%d" % won[0]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("refused", "does not answer or refuses"),
        ("full", "InsufficientStorage"),
        ("quota", "QuotaExceeded"),
        ("expired", "credentials"),
        ("denied", "credentials"),
    ],
)
def test_fault_of_the_store_is_one_sentence(folder, proxy, fault, sentence):
    target = storage.to_path(f"{folder}/file")
    with proxy.fault(fault), pytest.raises(BertError, match=sentence) as caught:
        storage.replace_object(target, b"new", old=None)
    assert "\n" not in str(caught.value)
    assert storage.replace_object(target, b"new", old=None)
    assert target.read_bytes() == b"new"


def test_revoked_credentials_are_one_sentence(folder, object_store, monkeypatch):
    key, secret = object_store.new_credentials()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    fsspec.filesystem("s3").clear_instance_cache()
    try:
        assert storage.replace_object(f"{folder}/file", b"before", old=None)
        object_store.revoke(key)
        with pytest.raises(BertError, match="credentials"):
            storage.replace_object(f"{folder}/other", b"after", old=None)
    finally:
        fsspec.filesystem("s3").clear_instance_cache()
