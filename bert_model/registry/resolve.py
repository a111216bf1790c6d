"""Model references: a directory or its URL, a `models:/` URI or a hub id, each resolved to a local directory.

Commands and workflows resolve the references of their users; library functions take directories, and so need neither
registry nor hub.
"""

import json
import re
from pathlib import Path
from typing import Any

from bert_model.training.home import artifact_cache
from bert_pipeline.atomic import atomic_directory, cached
from bert_pipeline.errors import UsageError
from bert_pipeline.hashes import content_sha256
from bert_pipeline.manifest import MANIFEST_NAME, files_of, load_manifest, local_artifact
from bert_pipeline.storage import scheme_of
from bert_pipeline.vocabulary.files import CONFIGURATION_NAME, read_json, read_stated
from bert_pipeline.vocabulary.tokenizer import Tokenizer


def resolve_model(reference: str, *, cased: bool | None = None, vocabulary: Path | None = None) -> Path:
    """Return the local directory of a model, downloaded if the reference is a `models:/` URI, a hub id or a URL.

    A hub id may name a branch, a tag or a commit: "name/model@v1.0". `cased` is for a model whose files do not state
    whether text is lower-cased; UsageError if they state the other case, unless the files of a `vocabulary` that the
    model is to get state none.
    """
    directory = _find_model(reference)
    if cased is None:
        return directory
    if vocabulary is None or not read_stated(files_of(vocabulary)).refusal:
        Tokenizer.from_directory(directory, cased=cased).check_case(cased, directory)
    return _stating_case(directory.resolve(), cased) if read_stated(directory).refusal else directory


def _stating_case(directory: Path, cased: bool) -> Path:
    """Return a directory in the cache that states the case, with links to the files of another one."""
    files = sorted(str(path) for path in directory.iterdir() if path.name != CONFIGURATION_NAME)
    text = json.dumps(read_json(directory / CONFIGURATION_NAME) | {"do_lower_case": not cased})

    def link(target: Path) -> None:
        with atomic_directory(target) as view:
            for file in files:
                (view / Path(file).name).symlink_to(file)
            (view / CONFIGURATION_NAME).write_text(text, encoding="utf-8")

    return cached(artifact_cache() / content_sha256({"files": files, "configuration": text}) / directory.name, link)


def _find_model(reference: str) -> Path:
    if reference.startswith("models:/"):
        from bert_model.registry import operations  # imports torch and the models, which a directory does not need

        return operations.download(reference)
    if scheme_of(reference):
        return local_artifact(reference, artifact_cache())
    # The reference is a directory with a TensorFlow checkpoint, or a checkpoint as `bert convert` takes it.
    directory = Path(reference)
    checkpoints = [file for file in (*directory.glob("*.index"), Path(f"{directory}.index")) if file.is_file()]
    if checkpoints and not (directory / "config.json").is_file():
        prefix = checkpoints[0].with_suffix("")
        raise UsageError(
            f"{reference}: holds a TensorFlow checkpoint; convert it first: bert convert {prefix} --output DIR"
        )
    if directory.is_dir():
        if (directory / MANIFEST_NAME).is_file():
            load_manifest(directory, verify="sha256")  # torch would load a flipped bit without a word
        return directory

    # Only what has the form of a hub id, and is no file here, is looked up on the network.
    name, _, revision = reference.partition("@")
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(@[\w./-]+)?", reference) or Path(reference).exists():
        raise UsageError(f"{reference}: no such model directory; give a directory, a models:/ URI or a hub id")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    # Configuration, vocabulary and one set of weights; many repositories hold the same weights in several forms.
    patterns = ["*.json", "vocab.txt", "*.safetensors"]
    options: dict[str, Any] = {"revision": revision} if revision else {}
    try:
        directory = Path(snapshot_download(name, allow_patterns=patterns, **options))
        if not any(directory.glob("*.safetensors")):
            directory = Path(snapshot_download(name, allow_patterns=[*patterns, "pytorch_model*.bin"], **options))
        return directory
    except Exception as error:
        # The hub's library lets errors of its HTTP client pass, which is another one from version to version.
        is_http = any(kind.__module__.partition(".")[0] in ("httpx", "httpx2") for kind in type(error).__mro__)
        if not is_http and not isinstance(error, (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError)):
            raise
        raise UsageError(
            f"{reference}: no such directory, and the Hugging Face hub did not return it "
            f"({type(error).__name__}: {' '.join(str(error).split())[:300]}); check the name, the network and the "
            "disk; a gated model needs HF_TOKEN"
        ) from error
