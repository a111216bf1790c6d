"""The instance job on its own: `python -m benchmarks.instance_job CORPUS VOCABULARY OUTPUT FORMAT WORKERS`."""

import sys
from pathlib import Path

from bert_pipeline.instances import InstancesConfig
from bert_pipeline.jobs.instances import build_instances


def main(corpus: str, vocabulary: str, output: str, file_format: str, workers: str) -> None:
    """Make instances with static masks and the script's defaults; print how many."""
    config = InstancesConfig(format=file_format, masking="static")  # type: ignore[arg-type]
    manifest = build_instances(Path(corpus), Path(vocabulary), Path(output), config, ["--workers", workers])
    print(manifest.counts["instances"])


if __name__ == "__main__":
    main(*sys.argv[1:])
