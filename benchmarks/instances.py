"""Pre-training instances a second, beside the reference algorithm in plain Python; counting words; memory.

Length 128, 20 predictions, ten passes, static masks: the defaults of BERT's own script. The parts run in this process
on one core. The whole job (reading, tokenizing, pairs, masks, writing, Beam) is a command of its own, its start left
out and printed apart. The reference tokenizes with the same fast library and writes nothing, which favours it.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.instance_inputs import InstanceInputs
from benchmarks.instance_jobs import InstanceJobs
from benchmarks.instance_parts import InstanceParts
from benchmarks.machine import describe
from benchmarks.table import Row, render
from bert_pipeline.errors import BertError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instances", description=__doc__)
    parser.add_argument(
        "--dump",
        type=Path,
        nargs="+",
        default=[],
        help="dumps to take text from (default: the generated encyclopaedia)",
    )
    parser.add_argument("--vocab", type=Path, help="a vocabulary directory (default: 8,000 entries from the text)")
    parser.add_argument("--megabytes", type=float, default=128.0, help="text in the corpus (default: %(default)g)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are printed (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="2 MB and one round: shows that it runs, not how fast")
    parser.add_argument("--no-growth", action="store_true", help="leave the corpus of ten times the size out")
    parser.add_argument(
        "--cpu-time", action="store_true", help="parts: divide by processor time, on a machine that is not quiet"
    )
    parser.add_argument("--profile", action="store_true", help="print where the parts spend their time, and stop")
    args = parser.parse_args(arguments)
    if args.quick:
        args.megabytes, args.rounds = min(args.megabytes, 2.0), 1
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        inputs = InstanceInputs.make(args.dump, args.vocab, args.megabytes)
        parts = InstanceParts(inputs, args.rounds, cpu_time=args.cpu_time)
        if args.profile:
            print(parts.profile())
            return 0
        head = describe(("apache-beam", "numpy", "pyarrow", "tokenizers"))
        rows = _rows(inputs, parts, args)
    except BertError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    source = ", ".join(path.name for path in args.dump) or "the generated encyclopaedia"
    clock = "; parts by processor time" if args.cpu_time else ""
    print(
        f"{head}\n{inputs.one_copy_bytes / 1e6:.1f} MB of text from {source}, repeated under other titles; vocabulary "
        f"of {inputs.tokenizer.vocab_size:,}; medians of {args.rounds} rounds{clock}\n\n{render(rows)}"
    )
    return 0


def _rows(inputs: InstanceInputs, parts: InstanceParts, args: argparse.Namespace) -> list[Row]:
    jobs = InstanceJobs(inputs, min(args.rounds, 2), lambda: parts.reference(tokenize=True))
    rows = parts.writing_rows() + parts.text_rows() + jobs.speed_rows()
    return rows if args.no_growth else rows + jobs.memory_rows()


if __name__ == "__main__":
    sys.exit(main())
