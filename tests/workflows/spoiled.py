"""Ways to damage a copy of a run (changed content with a fresh manifest, a flipped byte), and the expected verdict."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_pipeline.manifest import load_manifest, publishing
from bert_pipeline.parquet_io import footer_sha256
from workflows.lib.checks import Verdict


def republish(directory: Path, change: Callable[[Path], None]) -> None:
    """Publish a directory again with a change in it, so that its manifest is valid and only its content is wrong."""
    old = load_manifest(directory)
    saved = directory.parent / f"{directory.name}-old"
    shutil.copytree(directory, saved)
    with publishing(directory, kind=old.kind, configuration=old.configuration, inputs=old.inputs) as draft:
        for name in old.files:
            (draft.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(saved / name, draft.path / name)
        change(draft.path)
        for name in [name for name, entry in old.files.items() if "footer_sha256" in entry]:
            draft.footer_sha256[name] = footer_sha256(draft.path / name)
        draft.counts = old.counts
    shutil.rmtree(saved)


def change_tensors(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Publish a model again with a change in its tensors."""
    from safetensors.torch import load_file, save_file

    def apply(path: Path) -> None:
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})

    republish(directory, apply)


def flip_byte(path: Path, offset: int = -100) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(bytes(data))


def refused(verdict: Verdict, words: str) -> None:
    assert not verdict.passed
    assert words in verdict.description


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
