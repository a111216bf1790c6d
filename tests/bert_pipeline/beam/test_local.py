"""The local runner: worker processes that say what is worth saying and nothing else, and share the work as it comes."""

import logging
import time
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import WorkerOptions

from bert_pipeline.beam.options import pipeline_options


@pytest.mark.slow
def test_workers_show_warnings_and_errors_as_sentences_and_nothing_else(capfd):
    def speak(number):
        for name in ("bert_pipeline.somewhere", "apache_beam.somewhere"):
            log = logging.getLogger(name)
            log.info("information of %s", name)
            log.warning("warning of %s", name)
            log.error("error of %s", name)
        return number

    before = logging.getLogger().level
    logging.getLogger().setLevel(logging.INFO)  # as a program may have it for messages of its own
    try:
        with beam.Pipeline(options=pipeline_options(["--workers", "2"])) as pipeline:
            _ = pipeline | beam.Create([1]) | beam.Reshuffle() | beam.Map(speak)
    finally:
        logging.getLogger().setLevel(before)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        f"{level} of {name}.somewhere" for name in ("bert_pipeline", "apache_beam") for level in ("warning", "error")
    ]


@pytest.mark.slow
def test_a_worker_that_is_done_takes_what_would_wait_for_another_one(tmp_path: Path):
    directory = str(tmp_path)

    def work(number):
        """The first element is done after five others, more than another worker's share of eight."""
        patience = time.monotonic() + 120
        while number == 0 and len(list(Path(directory).iterdir())) < 5 and time.monotonic() < patience:
            time.sleep(0.05)
        Path(directory, str(number)).write_text(str(len(list(Path(directory).iterdir()))))

    with beam.Pipeline(options=pipeline_options(["--workers", "2"])) as pipeline:
        _ = pipeline | beam.Create(range(8)) | beam.Reshuffle() | beam.Map(work)
    assert int((tmp_path / "0").read_text()) >= 5
    assert len(list(tmp_path.iterdir())) == 8


def test_the_log_level_of_workers_can_be_asked_for():
    def level(*options):
        return pipeline_options(options).view_as(WorkerOptions).default_sdk_harness_log_level

    assert level() == "WARNING"
    assert level("--default_sdk_harness_log_level=DEBUG") == "DEBUG"
