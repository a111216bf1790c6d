"""How a step's cost grows with batch, length and size."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from benchmarks.our_training import OurTraining
from benchmarks.training_case import TrainingCase
from bert_pipeline.manifest import Manifest

SIZES = ("tiny", "mini", "small", "medium", "base", "large")
HEADER = ("what", "ms a step", "times", "operations", "real tokens/s", "utilization", "waiting for data")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Growth:
    """A step of one case, beside the first of its series."""

    what: str
    milliseconds: float
    times: float
    """Step time over that of the series' first case."""
    operations: float
    """Operations of a step over those of the series' first case: what the step time would be at equal efficiency."""
    tokens_per_second: float
    utilization: float
    waiting: float


def series(
    case: TrainingCase, instances_of: Callable[[int], Manifest | None], lengths: Sequence[int]
) -> Iterator[list[tuple[str, TrainingCase]]]:
    """Yield cases that differ from `case` in one thing: the batch, the length, the size.

    `instances_of(length)` returns instances of a length, None where there are none.
    """
    batches = [case.micro_batch_size * factor for factor in (1, 2, 4, 8)]
    yield [(f"batch {batch}", dataclasses.replace(case, global_batch_size=batch)) for batch in batches]
    found = [(length, instances_of(length)) for length in lengths]
    yield [
        (f"length {length}", dataclasses.replace(case, max_seq_length=length, instances=instances))
        for length, instances in found
        if instances is not None
    ]
    first = SIZES.index(case.size)
    yield [(size, dataclasses.replace(case, size=size)) for size in SIZES[first : first + 3]]


def measure_growth(cases: Sequence[tuple[str, TrainingCase]], seconds: float, rate: float) -> list[Growth]:
    """Measure a series, each case for at least `seconds`; `rate` is the device's matrix-product rate."""
    found: list[Growth] = []
    first_flops = 0.0
    for what, case in cases:
        training = OurTraining(case)
        training.run(0.0)  # warm-up
        tokens_per_second = training.run(seconds)
        milliseconds = 1000.0 * training.meter.elapsed / training.meter.num_steps
        flops = training.flops_per_token() * training.meter.num_tokens / training.meter.num_steps
        first_flops = first_flops or flops
        found.append(
            Growth(
                what=what,
                milliseconds=milliseconds,
                times=milliseconds / found[0].milliseconds if found else 1.0,
                operations=flops / first_flops,
                tokens_per_second=tokens_per_second,
                utilization=tokens_per_second * training.flops_per_token() / rate,
                waiting=training.waiting_share,
            )
        )
    return found


def render_growth(rows: Sequence[Growth]) -> str:
    """Lay the rows out as a Markdown table."""
    lines = [HEADER, tuple("-" * len(name) for name in HEADER)]
    lines += [
        (
            row.what,
            f"{row.milliseconds:,.1f}",
            f"{row.times:.2f}",
            f"{row.operations:.2f}",
            f"{row.tokens_per_second:,.0f}",
            f"{row.utilization:.0%}",
            f"{row.waiting:.2%}",
        )
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
