"""References to models: a directory, an MLflow URI or a hub id, each turned into a local directory.

Commands and workflows resolve what their users wrote; the library takes directories, and so does without registry and
hub.
"""

import re
from pathlib import Path

from bert_pipeline.errors import UsageError


def resolve_model(reference: str) -> Path:
    """Return the local directory of a model: a directory, a `models:/` URI of MLflow, or a Hugging Face hub id."""
    if reference.startswith("models:/"):
        from bert_model.registry import registry  # imports MLflow, which a directory does without

        return registry.download(reference)
    if Path(reference).is_dir():
        return Path(reference)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", reference) or Path(reference).exists():
        raise UsageError(f"{reference}: no such model directory; give a directory, a models:/ URI or a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["config.json", "*.safetensors", "pytorch_model*.bin", "vocab.txt", "*.json"]
    try:
        return Path(snapshot_download(reference, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UsageError(
            f"{reference}: no such directory here, and the Hugging Face hub did not give it "
            f"({type(error).__name__}); check the name and the network"
        ) from error
