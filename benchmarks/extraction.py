"""A dump to corpus shards: `python -m benchmarks.extraction DUMP OUTPUT [--beam]`.

In this process alone, by the plain functions, or as the Beam job on all cores.
"""

import sys
from pathlib import Path

from bert_pipeline.corpus.build import CorpusConfig, plan_shards, plan_splits, read_batches, write_shard


def extract_dump(dump: Path, output: Path) -> int:
    """Write the documents of a dump, in sentences, as corpus shards; returns how many documents there are."""
    config = CorpusConfig()
    units_directory = output / "units"
    units_directory.mkdir(parents=True)
    units = [
        unit for split in plan_splits([str(dump)], config) for unit in read_batches(split, config, units_directory)
    ]
    shards, _ = plan_shards(units, config, units_directory)
    return sum(write_shard(shard, units_directory, output).rows for shard in shards)


def main(dump: str, output: str, *options: str) -> None:
    """Print the number of documents."""
    if "--beam" in options:
        from bert_pipeline.corpus.job import build_corpus

        print(build_corpus([dump], output).counts["documents"])
    else:
        print(extract_dump(Path(dump), Path(output)))


if __name__ == "__main__":
    main(*sys.argv[1:])
