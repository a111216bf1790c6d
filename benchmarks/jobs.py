"""The data jobs as commands to be timed: `python -m benchmarks.jobs JOB INPUT OUTPUT …`.

Each prints, as JSON, the number of items that it made and the peak memory of this process and of its largest worker.
"""

import argparse
import json
import resource
from multiprocessing import forkserver
from pathlib import Path

from bert_pipeline.corpus.duplicates import compare, plan_comparisons, write_batch_list
from bert_pipeline.corpus.shards import plan_shards, write_shard
from bert_pipeline.corpus.splits import CorpusConfig, plan_splits, read_batches


def extract_dump(dump: Path, output: Path) -> int:
    """Write the corpus shards of a dump in this process, without Beam; return the number of documents."""
    config = CorpusConfig()
    scratch = output / "scratch"
    scratch.mkdir(parents=True)
    batches = [batch for split in plan_splits([str(dump)], config) for batch in read_batches(split, config, scratch)]
    write_batch_list(batches, scratch)
    found = [compare(task, scratch) for task in plan_comparisons(batches) if isinstance(task.by, str)]
    shards, *_ = plan_shards(batches, found, config, scratch)
    return sum(write_shard(shard, scratch, output)["rows"] for shard in shards)


def run_job(args: argparse.Namespace) -> int:
    """Run the job that the arguments name; return the number of documents, instances or words."""
    # Beam and its jobs are imported here: `extract` is timed from the start of the interpreter and does not need them.
    options = ["--workers", args.workers] if args.workers else []
    if args.job == "extract":
        return extract_dump(args.input, args.output)
    if args.job == "corpus":
        from bert_pipeline.corpus.job import build_corpus

        made = build_corpus([str(args.input)], args.output, beam_options=options).counts["documents"]
    elif args.job == "instances":
        from bert_pipeline.instances.job import build_instances
        from bert_pipeline.instances.pairs import InstancesConfig

        config = InstancesConfig(format=args.format, masking="static", dupe_factor=args.dupe_factor)
        made = build_instances(args.input, args.vocab, args.output, config, options).counts["instances"]
    else:
        from bert_pipeline.vocabulary.job import build_vocabulary
        from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

        # The size does not affect counting; this one is small enough for any corpus.
        vocabulary = VocabularyConfig(vocab_size=8_000, pad_with_unused=True)
        made = build_vocabulary(args.input, args.output, vocabulary, options).counts["words"]
    return int(made)


def main() -> None:
    """Run a job and print its result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("job", choices=("extract", "corpus", "instances", "vocabulary"))
    parser.add_argument("input", type=Path, help="extract, corpus: a dump; otherwise a corpus directory")
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", help="worker processes (default: one per core); extract: always this process")
    parser.add_argument("--vocab", type=Path, help="instances: a vocabulary directory")
    parser.add_argument("--format", default="parquet", help="instances: parquet, tfrecord or both, with static masks")
    parser.add_argument("--dupe-factor", type=int, default=10, help="instances: passes over each document")
    made = run_job(parser.parse_args())
    _wait_for_workers()
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"made": made, "parent_bytes": _peak_bytes(), "worker_bytes": workers}))


def _wait_for_workers() -> None:
    """Stop the server from which worker processes are forked, so that their time and memory count for this process.

    Resource usage of descendants is only added up along processes that were waited for, and Python does not wait for
    its fork server. There is no public function for it: where this one is missing, workers do not count.
    """
    if stop := getattr(forkserver._forkserver, "_stop", None):
        stop()


def _peak_bytes() -> int:
    """Return the peak resident memory of this program; unlike ru_maxrss without that of the process that forked it."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
