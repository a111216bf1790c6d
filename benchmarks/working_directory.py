"""Where benchmarks keep what they make: `benchmarks/` under BERT_HOME (default `./.bert`)."""

import os
from pathlib import Path


def working_directory(name: str = "") -> Path:
    """Return (and make) a benchmark's own directory; what lies there may be removed at any time."""
    path = Path(os.environ.get("BERT_HOME", ".bert")).resolve() / "benchmarks" / name
    path.mkdir(parents=True, exist_ok=True)
    return path
