"""Two gloo ranks beside one, each with one thread: what a second process adds on the same global batch.

python -m benchmarks.ranks CASE      one rank of a measurement, as torchrun would start it
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.our_training import OurTraining
from benchmarks.table import Row, medians
from benchmarks.training_case import TrainingCase
from bert_model.distributed import keep_freed_memory, process_group
from bert_pipeline.errors import BertError
from bert_pipeline.manifest import load_manifest

TIMEOUT_SECONDS = 600


def measure_ranks(case: TrainingCase, *, rounds: int, seconds: float, world_size: int = 2) -> Row:
    """Measure `world_size` ranks beside one, alternating, each time in fresh processes."""
    rates = medians(
        {
            f"{world_size} ranks": lambda: run_ranks(case, world_size, seconds),
            "1 rank": lambda: run_ranks(case, 1, seconds),
        },
        rounds,
        case.title,
    )
    return Row(
        what=f"{case.title}: {world_size} gloo ranks",
        unit="real tokens/s",
        ours=rates[f"{world_size} ranks"],
        peer="1 rank",
        theirs=rates["1 rank"],
        note="one thread each",
    )


def run_ranks(case: TrainingCase, world_size: int, seconds: float) -> float:
    """Train as several processes for at least so long; returns the real tokens a second of all of them together."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(world_size):
        environment = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world_size,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": 1,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.ranks", json.dumps(_to_document(case) | {"seconds": seconds})],
                env=os.environ | {name: str(value) for name, value in environment.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        ends = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for rank, (process, (_, errors)) in enumerate(zip(processes, ends)):
        if process.returncode:
            raise BertError(f"rank {rank} of {world_size} ended with {process.returncode}: {errors.strip()[-500:]}")
    return float(ends[0][0])


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
