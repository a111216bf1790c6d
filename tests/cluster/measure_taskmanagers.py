"""Print how much faster two TaskManagers of one slot read a corpus than one, both on this machine's disk and cores.

    BEAM_ENGINES=DIR FLINK_LIB=DIR PYTHONPATH=.:tests/services \
        python tests/cluster/measure_taskmanagers.py 'parquet:TEXTS-*.parquet'

The time is Flink's own of the step "Read batches"; the settings take turns for three rounds.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from engines import Flink
from network import running_network

from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.splits import CorpusConfig

SETTINGS = (1, 2)


def seconds(flink: Flink, sources: list[str], output: Path, parallelism: int) -> float:
    """Build a corpus; return how long Flink worked on its step "Read batches"."""
    build_corpus(sources, output, CorpusConfig(), flink.options(parallelism))
    job = next(job["jid"] for job in flink.ask("/jobs/overview")["jobs"] if job["name"].endswith(output.name))
    steps = [step for step in flink.ask(f"/jobs/{job}")["vertices"] if "Read_batches" in step["name"].replace(" ", "_")]
    return max(step["duration"] for step in steps) / 1000


def main(sources: list[str]) -> None:
    times: dict[int, list[float]] = {parallelism: [] for parallelism in SETTINGS}
    with tempfile.TemporaryDirectory() as scratch, running_network(Path(scratch)) as network:
        flink = Flink(network, {})
        flink.pools = [flink.server(host, "workers") for host in flink.hosts]  # with this machine's disk
        flink.start()
        for number in range(3):
            for parallelism in SETTINGS:
                output = Path(scratch) / f"round-{number}-{parallelism}"
                times[parallelism].append(seconds(flink, sources, output, parallelism))
                print(f"{parallelism} TaskManagers: {times[parallelism][-1]:.1f} s", flush=True)
        flink.stop()
    one, two = (statistics.median(times[parallelism]) for parallelism in SETTINGS)
    print(f"two are {one / two:.2f} times as fast as one (median of {len(times[1])} rounds)")


if __name__ == "__main__":
    main(sys.argv[1:])
