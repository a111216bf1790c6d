"""Two gloo ranks beside one, each with one thread: what a second process adds on the same global batch.

How much two processes can add on a machine at all is measured beside it: two such trainings that share nothing.

python -m benchmarks.ranks CASE      one rank of a measurement, as torchrun would start it
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.our_training import OurTraining
from benchmarks.table import Row, medians
from benchmarks.training_case import TrainingCase
from bert_model.training.distributed import keep_freed_memory, process_group, rank_environments
from bert_pipeline.errors import BertError
from bert_pipeline.manifest import load_manifest

TIMEOUT_SECONDS = 600
ALONE = "1 process"


def measure_ranks(case: TrainingCase, *, rounds: int, seconds: float) -> list[Row]:
    """Measure two ranks, and two processes apart, beside one process, alternating and each time in fresh processes.

    All on twice the case's batch, so that each of the ranks has as many instances as the case's one process.
    """
    case = dataclasses.replace(case, global_batch_size=2 * case.global_batch_size)
    trainings = {
        ALONE: lambda: run_trainings(case, [1], seconds),
        "2 gloo ranks": lambda: run_trainings(case, [2], seconds),
        "2 processes apart": lambda: run_trainings(case, [1, 1], seconds),
    }
    rates = medians(trainings, rounds, case.title)
    notes = {
        "2 gloo ranks": f"one thread each, batches of {case.global_batch_size}",
        "2 processes apart": "they share nothing: what the machine gives",
    }
    return [
        Row(
            what=f"{case.title}: {name}",
            unit="real tokens/s",
            ours=rates[name],
            peer=ALONE,
            theirs=rates[ALONE],
            note=note,
        )
        for name, note in notes.items()
    ]


def run_trainings(case: TrainingCase, world_sizes: Sequence[int], seconds: float) -> float:
    """Run trainings of so many ranks each at once, for at least so long; returns the real tokens a second of all."""
    document = json.dumps(_to_document(case) | {"seconds": seconds})
    environments = [environment for world_size in world_sizes for environment in rank_environments(world_size)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ranks", document],
            env=os.environ | environment | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for environment in environments
    ]
    try:
        ends = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for environment, process, (_, errors) in zip(environments, processes, ends):
        if process.returncode:
            which = f"rank {environment['RANK']} of {environment['WORLD_SIZE']}"
            raise BertError(f"{which} ended with {process.returncode}: {errors.strip()[-500:]}")
    return sum(float(said) for environment, (said, _) in zip(environments, ends) if environment["RANK"] == "0")


def _to_document(case: TrainingCase) -> dict[str, Any]:
    document = {field.name: getattr(case, field.name) for field in dataclasses.fields(case)}
    return document | {"device": "cpu", "instances": str(case.instances.path)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank and print the rate of all."""
    document = json.loads((arguments or sys.argv[1:])[0])
    seconds = document.pop("seconds")
    instances = load_manifest(Path(document.pop("instances")), kind="instances")
    case = TrainingCase(**document | {"device": torch.device("cpu")}, instances=instances)
    keep_freed_memory()
    torch.set_num_threads(1)
    with process_group(TIMEOUT_SECONDS, "cpu") as group:
        training = OurTraining(case, group=group)
        training.run(0.0)  # warm-up
        rate = training.run(seconds)
    print(rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
