"""Run directory of a pre-training in a store such as `s3://bucket/first`.

A store neither appends nor locks, so rank 0 works in a directory of its own disk and copies it: configuration, log,
checkpoints and model have the same names in both, and a manifest is copied after the files that it lists. So a run
moves between disk and store by copying.

`owner.json` names the run that writes. A start replaces it on the condition that nobody else did, and the run that it
replaces notices at its next checkpoint.
"""

import contextlib
import datetime
import json
import logging
import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bert_model.pretraining.checkpoint import (
    CheckpointDirectory,
    directory_name,
    is_intact,
    protected_step,
    read_state,
    step_numbers,
)
from bert_model.pretraining.run_directory import CONFIGURATION_NAME, LOCK_NAME
from bert_model.training.home import artifact_cache, bert_home
from bert_pipeline import storage
from bert_pipeline.atomic import replace_text
from bert_pipeline.errors import ArtifactError, BertError, TrainingError, UsageError
from bert_pipeline.hashes import content_sha256
from bert_pipeline.manifest import MANIFEST_NAME, load_manifest, local_artifact

logger = logging.getLogger(__name__)

OWNER_NAME = "owner.json"
"""Object that names the run which writes to the store. The local copy is that of the last run of this directory."""
CHECKPOINTS = "checkpoints"
MODEL = "model"


class RunStore:
    """A run directory in a store, and the local directory in which its training works.

    Methods are for rank 0, which holds the lock of the local directory, except `checkpoint_here`.
    """

    def __init__(self, url: Path) -> None:
        self.url = url
        self.directory = bert_home() / "trainings" / f"{url.name}-{content_sha256({'url': str(url)})[:16]}"
        self._owner: bytes | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._push: Future[None] | None = None

    def fetch(self, *, resume: bool) -> None:
        """Bring the local directory to the state of the store, unless its own run was the last and got as far.

        The newest intact checkpoint is copied, and the one that it protects. Local checkpoints that are newer than the
        store's, where another run has gone on meanwhile, are moved aside. Raise UsageError if the store holds a run and
        `resume` is not set, ArtifactError if it holds other files, or checkpoints none of which is intact.
        """
        sizes = storage.sizes_below(self.url)
        names = [name for name in sizes if name != OWNER_NAME and not name.startswith(".")]
        if names and CONFIGURATION_NAME not in names:
            raise ArtifactError(f"{self.url}: holds {names[0]!r} but no {CONFIGURATION_NAME}; give another URL")
        paths = (name.split("/") for name in names)
        steps = step_numbers(path[1] for path in paths if path[0] == CHECKPOINTS and path[2:] == [MANIFEST_NAME])
        if not resume and (steps or {OWNER_NAME, f"{MODEL}/{MANIFEST_NAME}"} & set(sizes)):
            raise UsageError(f"{self.url}: holds a run already; add --resume to continue it, or give another URL")

        self._owner = storage.read_object(self.url / OWNER_NAME)
        mark = self.directory / OWNER_NAME
        local = self.directory / CHECKPOINTS
        local_steps = reversed(step_numbers(path.name for path in local.glob("*")))
        newest = next((step for step in local_steps if is_intact(local / directory_name(step))), 0)
        ahead = newest - max(steps, default=0)
        if mark.is_file() and mark.read_bytes() == self._owner and ahead >= 0:
            return
        aside = None
        if mark.is_file() and ahead > 0:  # the only copy of these steps
            aside = Path(tempfile.mkdtemp(prefix=f"{self.directory.name}-superseded-", dir=self.directory.parent))
            logger.warning(
                f"{self.url}: another run has continued from an older checkpoint than this machine has, whose files "
                f"are now in {aside}; remove them if the other run is the one to keep"
            )
        for entry in self.directory.iterdir():
            if entry.name != LOCK_NAME:
                if aside is not None:
                    os.rename(entry, aside / entry.name)
                else:
                    storage.remove_tree(entry) if entry.is_dir() else entry.unlink()
        for name in names:
            if "/" not in name:
                storage.download(self.url / name, storage.path_below(self.directory, name))
        if f"{MODEL}/{MANIFEST_NAME}" in sizes:
            self._fetch_directory(MODEL, sizes)  # or written again from the last checkpoint
        for step in reversed(steps):
            if self._fetch_directory(_name(step), sizes):
                protected = protected_step(read_state(self.directory / _name(step)))
                if protected is not None and protected != step:
                    self._fetch_directory(_name(protected), sizes)
                return
        if steps:
            raise ArtifactError(
                f"{self.url}: none of its {len(steps)} checkpoints is intact; restore one, or give another URL"
            )

    def _fetch_directory(self, name: str, sizes: Mapping[str, int]) -> bool:
        """Copy a directory with a manifest; return whether it is intact, and keep nothing of it otherwise."""
        for file in sizes:
            if file.startswith(f"{name}/"):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile by another run
                    storage.download(self.url / file, storage.path_below(self.directory, file))
        try:
            load_manifest(self.directory / name, verify="sha256")
        except ArtifactError as error:
            logger.warning("%s/%s is skipped: %s", self.url, name, error)
            shutil.rmtree(self.directory / name, ignore_errors=True)
            return False
        return True

    def take_over(self) -> None:
        """Become the run that writes to the store; TrainingError if another one did since `fetch`."""
        storage.check_writable(self.url / ".writable")
        owner = {
            "run": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        text = json.dumps(owner, indent=1) + "\n"
        if not storage.replace_object(self.url / OWNER_NAME, text.encode(), old=self._owner):
            raise TrainingError(f"{self.url}: {self._describe_owner()} has started at this moment; wait for it")
        self._owner = text.encode()
        replace_text(self.directory / OWNER_NAME, text)

    def push(self, checkpoints: CheckpointDirectory) -> None:
        """Copy what the store lacks, then remove old checkpoints there; TrainingError if another run has taken over."""
        if storage.read_object(self.url / OWNER_NAME) != self._owner:
            raise TrainingError(
                f"{self.url}: {self._describe_owner()} has taken over this output, so this run ends; its files are in "
                f"{self.directory}"
            )
        sizes = storage.sizes_below(self.url)
        self._push_files()
        # The newest first: the training removes others while a slow store takes them.
        steps = checkpoints.steps()[::-1]
        for step in steps:
            self._push_directory(_name(step), sizes)
        if (self.directory / MODEL / MANIFEST_NAME).is_file():
            self._push_directory(MODEL, sizes)
        # Later ones are damaged, or of a run that this one has replaced.
        every = checkpoints.keep_every_steps
        for step in step_numbers({name.split("/")[1] for name in sizes if name.startswith(f"{CHECKPOINTS}/")}):
            if steps and step not in steps and (step > steps[0] or not every or step % every):
                storage.remove_tree(self.url / _name(step) / MANIFEST_NAME)
                storage.remove_tree(self.url / _name(step))

    def _push_files(self) -> None:
        """Copy configuration and log. How far MLflow has followed the log goes first: it may lag, but not lead."""
        names = [entry.name for entry in self.directory.iterdir() if entry.is_file() and not entry.name.startswith(".")]
        with tempfile.TemporaryDirectory(prefix="bert-") as scratch:
            for name in sorted(set(names) - {OWNER_NAME}, reverse=True):
                # The log grows while it is uploaded: clients rely on the size that they find first.
                copy = shutil.copyfile(self.directory / name, Path(scratch) / name)
                storage.upload(copy, self.url / name)

    def _push_directory(self, name: str, sizes: Mapping[str, int]) -> None:
        """Copy a directory with a manifest, unless the store has the same; the manifest goes last."""
        local, remote = self.directory / name, self.url / name
        try:
            manifest = (local / MANIFEST_NAME).read_bytes()
            if f"{name}/{MANIFEST_NAME}" in sizes:
                if storage.read_object(self.url / f"{name}/{MANIFEST_NAME}") == manifest:
                    return
                storage.remove_tree(remote / MANIFEST_NAME)
            files = sorted(path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file())
            for file in sorted(files, key=lambda file: file == MANIFEST_NAME):
                storage.upload(local / file, remote / file)
        except (BertError, OSError):
            if (local / MANIFEST_NAME).is_file():
                raise
            # The training has written newer checkpoints and removes this one: what was copied has no manifest.

    def push_soon(self, checkpoints: CheckpointDirectory) -> None:
        """Push in a thread, after a push that runs now. A store that fails then is warned of: the next push repeats."""
        if self._push is not None and self._push.done():
            self._push.result()
        if self._push is None or self._push.done() or self._push.running():
            self._push = self._executor.submit(self._try_to_push, checkpoints)

    def _try_to_push(self, checkpoints: CheckpointDirectory) -> None:
        try:
            self.push(checkpoints)
        except TrainingError:
            raise
        except (BertError, OSError) as error:
            logger.warning(
                f"{' '.join(str(error).split()).partition('; ')[0]}; the training goes on, its checkpoints are in "
                f"{checkpoints.path}, and the next one is copied together with those that the store lacks"
            )

    def checking(self, after_step: Callable[[int], None] | None) -> Callable[[int], None]:
        """Return an `after_step` that first raises the failure of a push: another run has taken over, or a defect."""

        def check_and_call(step: int) -> None:
            if self._push is not None and self._push.done():
                self._push.result()
            if after_step is not None:
                after_step(step)

        return check_and_call

    def wait(self) -> None:
        """Wait for the pushes in the thread."""
        self._executor.submit(lambda: None).result()

    def finish(self, checkpoints: CheckpointDirectory) -> None:
        """Push at the end of a training; TrainingError if the store lacks something then."""
        self.wait()
        try:
            self.push(checkpoints)
        except TrainingError:
            raise
        except (BertError, OSError) as error:
            raise TrainingError(
                f"{' '.join(str(error).split()).partition('; ')[0]}; the training has ended, but the store lacks its "
                f"last files, which are in {self.directory}; repeat the command with --resume on this machine"
            ) from error

    def checkpoint_here(self, path: Path, sha256: str) -> Path:
        """Return a local copy of the checkpoint that rank 0 has at `path`, on any rank of any host."""
        with contextlib.suppress(ArtifactError):
            if load_manifest(path).sha256 == sha256:
                return path
        local = local_artifact(self.url / CHECKPOINTS / path.name, artifact_cache())
        if load_manifest(local).sha256 != sha256:
            raise TrainingError(f"{self.url}: {path.name} is not the one that rank 0 resumes from; start again")
        return local

    def _describe_owner(self) -> str:
        """Return a phrase for the run that writes to the store now."""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            owner: dict[str, Any] = json.loads(storage.read_object(self.url / OWNER_NAME) or b"")
            return f"another run (process {owner['process']} on {owner['host']} since {owner['since']})"
        return "another run"


def _name(step: int) -> str:
    return f"{CHECKPOINTS}/{directory_name(step)}"
