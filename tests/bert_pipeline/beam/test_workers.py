"""Local worker processes: calm logs, work as it comes, errors that keep their type, and deaths that are reported."""

import contextlib
import errno
import functools
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import apache_beam as beam
import pytest

from bert_pipeline.beam.options import pipeline_options
from bert_pipeline.beam.results import WriteResults, load_results
from bert_pipeline.beam.workers import ParallelFlatMap, run_pipeline
from bert_pipeline.errors import ArtifactError, UnavailableError, WorkerDiedError

pytestmark = pytest.mark.slow

TWO = ["--workers", "2"]


def run(function, elements, beam_options=TWO, *, then=None, results=None, progress=None):
    options = pipeline_options(beam_options)
    with run_pipeline(options, preload="bert_pipeline.beam", progress=progress) as pipeline:
        step = ParallelFlatMap(function, lambda result: 1)
        found = pipeline | beam.Create(elements) | beam.Reshuffle() | beam.ParDo(step)
        if then is not None:
            found = found | beam.combiners.ToList() | "Then" >> beam.ParDo(ParallelFlatMap(then))
        if results is not None:
            _ = found | WriteResults(results)


def log_messages(number):
    for name in ("bert_pipeline.somewhere", "apache_beam.somewhere"):
        log = logging.getLogger(name)
        log.info("information of %s", name)
        log.warning("warning of %s", name)
        log.error("error of %s", name)
    return ()


def wait_for_five_others(number, directory):
    """Finish element 0 after five others, which are more than another worker's share of eight."""
    deadline = time.monotonic() + 120
    while number == 0 and len(list(Path(directory).iterdir())) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    Path(directory, str(number)).write_text(str(len(list(Path(directory).iterdir()))))
    return ()


def fail_on_odd_numbers(number, directory):
    Path(directory, str(number)).touch()
    time.sleep(0.01)  # the parent has time to see a failure
    if number % 2:
        raise ArtifactError(f"shard {number} is damaged")
    return ({"name": str(number)},)


class ClientError(Exception):
    """What the client of a store raises."""

    __module__ = "botocore.exceptions"


def find_store_silent(number):
    raise ClientError("no answer")


def interrupt(number):
    raise KeyboardInterrupt


def terminate(number):
    raise SystemExit(143)


def exit_at_once(number):
    os._exit(9)


def find_no_memory(number):
    raise MemoryError("Unable to allocate 3.00 GiB")


def fill_the_disk(number):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"/data/{number}" if number else None)


def fail_beside_long_elements(number, directory):
    """Fail as the second one that begins; all others take long."""
    for name in ("first", "second"):
        with contextlib.suppress(FileExistsError):
            Path(directory, name).touch(exist_ok=False)
            break
    else:
        name = "later"
    if name == "second":
        while not Path(directory, "scratch").exists():
            time.sleep(0.05)
        raise ArtifactError("a shard is damaged")
    if name == "first":
        Path(directory, "scratch").write_text(tempfile.mkdtemp())
    time.sleep(20)
    Path(directory, "ended").touch()


def plan(results):
    raise AssertionError("there is nothing to plan")


def test_workers_print_warnings_and_errors_only():
    # In a process of its own: the server that workers are forked from keeps the standard error it was started with.
    # The program has INFO for its own messages.
    program = (
        "import bert_pipeline.beam, logging, test_workers; logging.basicConfig(level=logging.INFO); "
        "test_workers.run(test_workers.log_messages, [1])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert printed.stdout == ""
    assert printed.stderr.splitlines() == [
        f"{level} of {name}.somewhere" for name in ("bert_pipeline", "apache_beam") for level in ("warning", "error")
    ]


def test_idle_worker_takes_next_element(tmp_path):
    run(functools.partial(wait_for_five_others, directory=str(tmp_path)), range(8))
    assert int((tmp_path / "0").read_text()) >= 5
    assert len(list(tmp_path.iterdir())) == 8


@pytest.mark.parametrize("workers", ["1", "2"])
def test_failed_shard_is_raised_with_its_type_and_ends_the_work(tmp_path, workers):
    started = tmp_path / "started"
    started.mkdir()
    run(
        functools.partial(fail_on_odd_numbers, directory=str(started)),
        [1, *range(100, 500, 2)],
        ["--workers", workers],
        results=tmp_path / "results.json",
    )
    with pytest.raises(ArtifactError, match=r"^shard 1 is damaged$"):
        load_results(tmp_path / "results.json")
    assert len(list(started.iterdir())) < 200


def test_failure_ends_the_work_of_the_other_workers(tmp_path):
    function = functools.partial(fail_beside_long_elements, directory=str(tmp_path))
    run(function, range(8), then=plan, results=tmp_path / "results.json")
    with pytest.raises(ArtifactError, match=r"^a shard is damaged$"):
        load_results(tmp_path / "results.json")
    assert not (tmp_path / "ended").exists()
    assert not Path((tmp_path / "scratch").read_text()).exists()  # the copies of files that a stopped worker held


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("number", "filename"), [(0, None), (1, "/data/1")])
def test_error_of_the_system_keeps_its_reason_and_file(workers, number, filename):
    with pytest.raises(OSError, match="No space left on device") as raised:
        run(fill_the_disk, [number], ["--workers", workers])
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, filename)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_store_that_does_not_answer_is_raised_where_a_runner_can_repeat(tmp_path, workers):
    with pytest.raises(UnavailableError, match=r"^the store does not answer or refuses \(no answer\); run .* again$"):
        run(find_store_silent, [1], ["--workers", workers], results=tmp_path / "results.json")
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_progress_counts_the_results(tmp_path, workers):
    reported = []
    function = functools.partial(fail_on_odd_numbers, directory=str(tmp_path))
    run(function, range(0, 20, 2), ["--workers", workers], progress=reported.append)
    assert reported[-1] == 10


@pytest.mark.parametrize(("function", "workers"), [(exit_at_once, 2), (find_no_memory, 1), (find_no_memory, 2)])
def test_worker_without_memory_fails_job_with_a_sentence(function, workers):
    with pytest.raises(
        WorkerDiedError, match="worker process of the job exited unexpectedly, most likely out of memory"
    ):
        run(function, range(4), ["--workers", str(workers)])


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("function", "kind"), [(interrupt, KeyboardInterrupt), (terminate, SystemExit)])
def test_interrupted_step_raises_what_a_signal_has_raised(workers, function, kind):
    with pytest.raises(kind):
        run(function, range(4), ["--workers", workers])
