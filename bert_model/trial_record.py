"""A finished trial on disk, so that a search that was interrupted goes on where it stood."""

import dataclasses
import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bert_model.trial import TrialOutput

FACTS = "facts"


def write_output(path: Path, output: "TrialOutput") -> None:
    """Write a trial's outputs to one file, which appears whole or not at all."""
    facts = {field.name: getattr(output, field.name) for field in dataclasses.fields(output) if field.name != "logits"}
    arrays = {f"logits/{split}": logits for split, logits in output.logits.items()}
    arrays[FACTS] = np.frombuffer(json.dumps(facts).encode("utf-8"), dtype=np.uint8)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with open(temporary, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_output(path: Path) -> "TrialOutput | None":
    """Read what `write_output` wrote; None where it is not there, or is torn after a power cut: it is made again."""
    from bert_model.trial import TrialOutput

    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            facts = json.loads(stored[FACTS].tobytes())
            logits = {name.partition("/")[2]: stored[name] for name in stored.files if name != FACTS}
    except (FileNotFoundError, zipfile.BadZipFile, EOFError, ValueError, KeyError):
        return None
    return TrialOutput(**{**facts, "losses": tuple(facts["losses"])}, logits=logits)
