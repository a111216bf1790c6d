"""One job in a process of its own, with the memory it took: `python -m benchmarks.measured_job JOB …`."""

import argparse
import json
import resource
from pathlib import Path

from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig


def main() -> None:
    """Run the job and print, as JSON, what it made and the peak memory of this process and of its largest worker."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured_job", description=__doc__)
    parser.add_argument("job", choices=("corpus", "instances", "vocabulary"))
    parser.add_argument("corpus", type=Path, help="a corpus directory; corpus: a dump")
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", required=True)
    parser.add_argument("--vocab", type=Path, help="instances: a vocabulary directory")
    parser.add_argument("--format", default="parquet", help="instances: parquet, tfrecord or both, with static masks")
    parser.add_argument("--dupe-factor", type=int, default=10, help="instances: passes over each document")
    args = parser.parse_args()
    options = ["--workers", args.workers]
    if args.job == "corpus":
        made = build_corpus([str(args.corpus)], args.output, beam_options=options).counts["documents"]
    elif args.job == "instances":
        config = InstancesConfig(format=args.format, masking="static", dupe_factor=args.dupe_factor)
        made = build_instances(args.corpus, args.vocab, args.output, config, options).counts["instances"]
    else:
        # The size plays no part in counting; this one is small enough for any corpus.
        vocabulary = VocabularyConfig(vocab_size=8_000, pad_with_unused=True)
        made = build_vocabulary(args.corpus, args.output, vocabulary, options).counts["words"]
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"made": made, "parent_bytes": peak_bytes(), "worker_bytes": workers}))


def peak_bytes() -> int:
    """Peak resident memory of this process, without what it was before it was this program."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
