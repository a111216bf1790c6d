"""What a finished trial leaves on disk, so that an interrupted search resumes without repeating it."""

import dataclasses
import json
import zipfile
from pathlib import Path

import numpy as np

from bert_pipeline.atomic import atomic_write

OUTPUT_SUFFIX = ".npz"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How a training went."""

    steps: int
    """Number of optimizer steps."""
    losses: tuple[float, ...] = ()
    """Mean training loss of at most 20 equal stretches of the training."""
    diverged: bool
    """True if the loss stopped being finite."""
    epoch: float = 0.0
    """The epoch whose weights and outputs are kept, if each was scored."""
    epoch_scores: tuple[tuple[float, float], ...] = ()
    """Epoch and main dev score, if each was scored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialOutput(Training):
    """Predictions and costs of a finished training, before scoring."""

    logits: dict[str, np.ndarray]
    """Split -> outputs as the kind of task decodes them; empty if the training diverged."""
    training_seconds: float
    training_tokens: int
    """Number of tokens trained on, without padding."""


FIELDS = "fields"


def write_output(path: Path, output: TrialOutput) -> None:
    """Write a trial's output to one file, atomically."""
    fields = {field.name: getattr(output, field.name) for field in dataclasses.fields(output) if field.name != "logits"}
    arrays = {f"logits/{split}": logits for split, logits in output.logits.items()}
    # All in one file, so that one rename makes it complete; JSON keeps its bytes as an array.
    arrays[FIELDS] = np.frombuffer(json.dumps(fields).encode("utf-8"), dtype=np.uint8)
    with atomic_write(path) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def read_output(path: Path) -> TrialOutput | None:
    """Read what `write_output` wrote; None if the file is missing or was torn by a power cut: the trial is repeated."""
    try:
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as stored:
            fields = json.loads(stored[FIELDS].tobytes())
            logits = {name.partition("/")[2]: stored[name] for name in stored.files if name != FIELDS}
    except (FileNotFoundError, zipfile.BadZipFile, EOFError, ValueError, KeyError):
        return None
    fields |= {"losses": tuple(fields["losses"]), "epoch_scores": tuple(map(tuple, fields["epoch_scores"]))}
    return TrialOutput(**fields, logits=logits)
