"""A small untrained model, its fine-tunings, and a pool that runs the trials of a test in its own process."""

import functools

import pytest
import tiny_tasks

from bert_model.finetuning.worker_pool import WorkerPool


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return tiny_tasks.make_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def pool():
    with WorkerPool(num_workers=0) as pool:
        yield pool


@pytest.fixture(scope="session")
def tuned(model, tmp_path_factory):
    """Return a function from the name of a task to its fine-tuning with quick settings, made once."""
    return functools.cache(lambda name: tiny_tasks.tune(name, model, tmp_path_factory.mktemp("tuned") / name))
