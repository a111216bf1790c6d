"""Training into a store: bit-exact continuation elsewhere, faults of the store, and runs that meet in one place."""

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from small_training import at, configuration, read_events, stop_after, train, train_events
from two_ranks import run_pretraining, run_ranks

from bert_model.pretraining.__main__ import main
from bert_model.pretraining.run_store import OWNER_NAME, RunStore
from bert_pipeline import storage
from bert_pipeline.errors import ArtifactError, BertError, ConfigurationError, TrainingError, UsageError
from bert_pipeline.manifest import load_manifest

URL = "memory://bucket/run"


class Bucket:
    """A store in memory, and the host that this process is on."""

    def __init__(self, data, folder, monkeypatch):
        self.data, self.folder, self.monkeypatch = data, folder, monkeypatch
        self.objects: dict[str, Any] = fsspec.filesystem("memory").store
        self.move_to(1)

    def move_to(self, host):
        """Go on in this process as on a host of its own disk."""
        self.monkeypatch.setenv("BERT_HOME", str(self.folder / f"host-{host}"))

    def train(self, resume=True, after_step=None, vanish=None, **changes):
        config = configuration(self.data, **changes)
        return train(config, URL, resume=resume, after_step=after_step, vanish=vanish)

    def steps(self):
        """The steps of the store's checkpoints that have a manifest."""
        names = [name.split("/") for name in list(self.objects)]  # a thread may be writing
        return sorted(int(name[4][5:]) for name in names if name[3] == "checkpoints" and name[5:] == ["manifest.json"])

    def copy(self):
        """Copy the run out of the store; return its directory."""
        copy = self.folder / f"copy-{len(list(self.folder.glob('copy-*')))}"
        fsspec.filesystem("memory").get("/bucket/run/", f"{copy}/", recursive=True)
        return copy


@pytest.fixture
def bucket(data, tmp_path, monkeypatch):
    """An empty store; this process is on a host with an empty disk."""
    found = Bucket(data, tmp_path, monkeypatch)
    found.objects.clear()
    yield found
    found.objects.clear()


@pytest.fixture(scope="session")
def alone(data, tmp_path_factory):
    """The directory of a finished run of one process."""
    output = tmp_path_factory.mktemp("alone") / "training"
    train(configuration(data), output)
    return output


def assert_same(output, expected):
    """The log has every step once in its last values, and the weights are the same bits."""
    assert train_events(output) == train_events(expected)
    assert load_manifest(output / "model", verify="sha256").sha256 == load_manifest(expected / "model").sha256


@pytest.mark.parametrize("step", [2, 7, 10])
def test_another_host_resumes_bit_for_bit(bucket, alone, tmp_path, step):
    bucket.train(vanish=step)
    bucket.move_to(2)
    shutil.rmtree(tmp_path / "host-1")
    resumed: list[int] = []
    result = bucket.train(after_step=resumed.append)
    assert result.status == "finished"
    assert resumed[0] == {2: 1, 7: 7, 10: 10}[step]  # after the checkpoints of steps 0, 6 and 9
    copy = bucket.copy()
    assert_same(copy, alone)
    assert bucket.steps() == [9, 12, 14]
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == sorted(
        path.name for path in (alone / "checkpoints").iterdir()
    )


def test_run_moves_between_disk_and_store_by_copying(bucket, data, alone, tmp_path):
    output = tmp_path / "disk"
    train(configuration(data), output, vanish=4)
    fsspec.filesystem("memory").put(f"{output}/", "/bucket/run/", recursive=True)
    bucket.train(vanish=7)
    back = bucket.copy()
    result = train(configuration(data), back, resume=True)
    assert result.status == "finished"
    assert [event["step"] for event in read_events(back) if event["event"] == "resume"] == [3, 6]
    assert_same(back, alone)


def test_kept_checkpoints_stay_in_the_store_and_reach_the_next_host(bucket):
    changes: dict[str, Any] = {"keep_last": 1, "keep_every_steps": 6, "choose": "loss"}
    bucket.train(vanish=13, **changes)
    assert bucket.steps()[-1] == 12
    state = json.loads(bucket.objects["/bucket/run/checkpoints/step-00000012/training_state/state.json"].getvalue())
    kept = state["best"]["step"]
    bucket.move_to(2)
    bucket.train(**changes)
    assert set(bucket.steps()) >= {6, 12, 14, kept} - ({kept} if kept not in (9, 12, 14) else set())
    assert 8 not in bucket.steps()
    copied = {path.name for path in (RunStore(storage.to_path(URL)).directory / "checkpoints").iterdir()}
    assert "step-00000006" not in copied  # no part of the continuation


@contextlib.contextmanager
def failing_uploads(error, when):
    """Let uploads fail of files whose name meets a condition; yield the names refused so far."""
    refused: list[str] = []
    original = MemoryFileSystem.put_file

    def put_file(self, local, name, **options):
        if when(name):
            refused.append(name)
            raise error
        original(self, local, name, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", put_file)
        yield refused


class ClientError(Exception):
    __module__ = "botocore.exceptions"


FAULTS = {
    "full": OSError("QuotaExceeded"),
    "refuses": PermissionError("Access Denied"),
    "expired": PermissionError("The provided token has expired"),
    "silent": ClientError("Connect timeout on endpoint URL"),
}
for fault in FAULTS.values():
    fault.__cause__ = ClientError()


@pytest.mark.parametrize("fault", FAULTS)
def test_training_goes_on_while_the_store_fails(bucket, alone, caplog, fault):
    failing = threading.Event()

    def after_step(step):
        if step == 5:
            failing.set()
        if step == 13:
            failing.clear()

    with failing_uploads(FAULTS[fault], lambda _: failing.is_set()) as refused:
        assert bucket.train(after_step=after_step).status == "finished"
    assert refused
    warnings = {record.getMessage() for record in caplog.records if "the training goes on" in record.getMessage()}
    assert warnings
    for warning in warnings:
        assert warning.startswith(URL)
        assert str(FAULTS[fault]) in warning
        assert "\n" not in warning
    assert_same(bucket.copy(), alone)


def test_checkpoint_that_is_removed_while_it_is_copied_is_no_failure(bucket, monkeypatch, caplog):
    original = MemoryFileSystem.put_file
    removed = []

    def put_file(self, local, name, **options):
        original(self, local, name, **options)
        if "step-00000003" in name and not removed:
            # A removal that another thread has begun: the manifest is gone and the directory is not yet.
            removed.extend(path for path in sorted(Path(local).parent.iterdir()) if path.is_file())
            for path in removed:
                path.unlink()

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_file)
    assert bucket.train().status == "finished"
    assert removed
    assert "the training goes on" not in caplog.text
    assert 3 not in bucket.steps()


def test_newest_checkpoint_is_copied_first(bucket):
    bucket.train()
    for name in [name for name in bucket.objects if "/checkpoints/" in name]:
        del bucket.objects[name]
    with (
        failing_uploads(FAULTS["silent"], lambda name: "/checkpoints/" in name) as refused,
        pytest.raises(BertError),
    ):
        bucket.train()
    assert "step-00000014" in refused[0]


def test_store_that_fails_at_the_end_loses_nothing_on_this_host(bucket, alone):
    with failing_uploads(FAULTS["full"], lambda name: "/model/" in name), pytest.raises(TrainingError) as ended:
        bucket.train()
    assert "the store lacks its last files" in str(ended.value)
    directory = RunStore(storage.to_path(URL)).directory
    assert str(directory) in str(ended.value)
    assert (directory / "model" / "manifest.json").is_file()
    assert "/bucket/run/model/manifest.json" not in bucket.objects
    assert bucket.train().status == "already_finished"
    assert_same(bucket.copy(), alone)


def test_store_that_cannot_be_written_is_an_error_before_the_first_step(bucket, monkeypatch):
    seen: list[int] = []

    def refuse(*_, **__):
        raise FAULTS["refuses"]

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(ArtifactError, match=f"^{URL}/.*: the store refuses access"):
        bucket.train(after_step=seen.append)
    assert not seen


@pytest.mark.parametrize("part", ["manifest.json", "model.safetensors", "state.json"])
def test_half_a_checkpoint_is_never_resumed(bucket, alone, part):
    def after_step(step):
        # The first checkpoint is copied before there is another one.
        until = time.monotonic() + 30
        while step == 5 and bucket.steps() != [3] and time.monotonic() < until:
            time.sleep(0.01)

    with failing_uploads(FAULTS["silent"], lambda name: "step-00000006" in name and name.endswith(part)):
        bucket.train(after_step=after_step, vanish=8)
    assert bucket.steps() == [3]
    bucket.move_to(2)
    resumed: list[int] = []
    bucket.train(after_step=resumed.append)
    assert resumed[0] == 4
    assert_same(bucket.copy(), alone)


def test_damaged_checkpoint_of_the_store_is_skipped(bucket, alone, caplog):
    bucket.train(vanish=10)
    name = f"/bucket/run/checkpoints/step-{bucket.steps()[-1]:08d}/model.safetensors"
    content = bucket.objects[name].getvalue()
    fsspec.filesystem("memory").pipe_file(name, content[:-1] + bytes([content[-1] ^ 1]))
    bucket.move_to(2)
    assert bucket.train().status == "finished"
    assert "checkpoints/step-00000009 is skipped" in caplog.text
    assert_same(bucket.copy(), alone)

    # With none that is intact it is no new training: the store's checkpoints would be removed in its course.
    for step in bucket.steps():
        del bucket.objects[f"/bucket/run/checkpoints/step-{step:08d}/config.json"]
    del bucket.objects["/bucket/run/model/manifest.json"]
    bucket.move_to(3)
    with pytest.raises(ArtifactError, match="none of its 3 checkpoints is intact"):
        bucket.train()


def test_damaged_checkpoint_of_this_host_is_fetched_again(bucket, alone, tmp_path):
    assert bucket.train(after_step=stop_after(7)).status == "preempted"
    (checkpoints,) = (tmp_path / "host-1").glob("trainings/*/checkpoints")
    for checkpoint in checkpoints.glob("step-*"):
        (checkpoint / "model.safetensors").write_bytes(b"")
    resumed: list[int] = []
    assert bucket.train(after_step=resumed.append).status == "finished"
    assert resumed[0] == 8
    assert_same(bucket.copy(), alone)


def test_store_that_refuses_reading_is_no_new_training(bucket, monkeypatch):
    bucket.train(vanish=7)
    before = dict(bucket.objects)

    def refuse(*_, **__):
        raise FAULTS["refuses"]

    bucket.move_to(2)
    monkeypatch.setattr(MemoryFileSystem, "get_file", refuse)
    with pytest.raises(BertError, match="the store refuses access"):
        bucket.train()
    assert bucket.objects == before


def test_second_run_takes_over_and_the_first_says_so(bucket, alone):
    ended: list[int] = []

    def other_host():
        bucket.move_to(2)
        assert bucket.train().status == "finished"
        bucket.move_to(1)

    def after_step(step):
        ended.append(step)
        at(7, other_host)(step)

    with pytest.raises(TrainingError) as first:
        bucket.train(after_step=after_step)
    assert str(first.value).startswith(f"{URL}: another run (process {os.getpid()} on ")
    assert "has taken over this output, so this run ends" in str(first.value)
    assert_same(bucket.copy(), alone)
    assert RunStore(storage.to_path(URL)).directory.is_dir()


def test_of_two_runs_that_start_at_once_one_wins(bucket, monkeypatch):
    original = RunStore.take_over

    def late(self):
        monkeypatch.setattr(RunStore, "take_over", original)
        bucket.move_to(2)
        assert bucket.train(resume=False).status == "finished"
        bucket.move_to(1)
        original(self)

    monkeypatch.setattr(RunStore, "take_over", late)
    with pytest.raises(TrainingError, match=f"^{URL}: another run .* has started at this moment"):
        bucket.train(resume=False)


def test_refused_start_stops_no_other_run(bucket):
    bucket.train(vanish=7)
    before = bucket.objects[f"/bucket/run/{OWNER_NAME}"].getvalue()
    with pytest.raises(UsageError, match=f"^{URL}: holds a run already; add --resume"):
        bucket.train(resume=False)
    with pytest.raises(ConfigurationError, match="seed: was 12345, is 1"):
        bucket.train(seed=1)
    assert bucket.objects[f"/bucket/run/{OWNER_NAME}"].getvalue() == before


def test_foreign_files_and_a_missing_client_are_refused(bucket, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fsspec.filesystem("memory").pipe_file("/bucket/run/notes.txt", b"mine")
    with pytest.raises(ArtifactError, match=r"holds 'notes\.txt' but no configuration\.json"):
        bucket.train()
    with pytest.raises(UsageError, match="no kind of storage is called"):
        train(configuration(data), "s33://bucket/run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host-1"]


def test_newer_checkpoints_of_a_replaced_host_are_moved_aside(bucket, alone, tmp_path, caplog):
    # Host 1 gets to step 9, of which the store has 3; host 2 goes on from there to 6.
    with failing_uploads(FAULTS["silent"], lambda name: "step-0000000" in name and "step-00000003" not in name):
        bucket.train(vanish=10)
    bucket.move_to(2)
    bucket.train(vanish=7)
    bucket.move_to(1)
    resumed: list[int] = []
    bucket.train(after_step=resumed.append)
    assert resumed[0] == 7
    (aside,) = (tmp_path / "host-1" / "trainings").glob("*-superseded-*")
    assert (aside / "checkpoints" / "step-00000009" / "manifest.json").is_file()
    assert str(aside) in caplog.text
    assert_same(bucket.copy(), alone)


def test_checkpoints_that_the_store_lacks_are_continued_and_copied(bucket, alone):
    with failing_uploads(FAULTS["silent"], lambda name: "step-0000000" in name):
        bucket.train(vanish=10)
    assert bucket.steps() == []
    resumed: list[int] = []
    bucket.train(after_step=resumed.append)
    assert resumed[0] == 10
    assert_same(bucket.copy(), alone)


def test_other_ranks_read_the_checkpoint_of_the_store(bucket, tmp_path):
    bucket.train(vanish=7)
    main_rank = RunStore(storage.to_path(URL))
    path = main_rank.directory / "checkpoints" / "step-00000006"
    sha256 = load_manifest(path).sha256
    assert main_rank.checkpoint_here(path, sha256) == path
    shutil.rmtree(tmp_path / "host-1")
    bucket.move_to(2)
    found = RunStore(storage.to_path(URL)).checkpoint_here(path, sha256)
    assert found.is_relative_to(tmp_path / "host-2")
    assert load_manifest(found, verify="sha256").sha256 == sha256
    with pytest.raises(TrainingError, match="is not the one that rank 0 resumes from"):
        main_rank.checkpoint_here(path, "0" * 64)


def test_command_writes_the_model_with_its_readme_to_the_store(bucket, data, tmp_path, monkeypatch, capsys):
    (tmp_path / "config.yaml").write_text(json.dumps(configuration(data)))
    monkeypatch.chdir(tmp_path)
    arguments = ["--config", "config.yaml", "--output", URL, "--experiment", "", "--device", "cpu"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["model"] == f"{URL}/model"
    assert b"# " in bucket.objects["/bucket/run/model/README.md"].getvalue()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.yaml", "host-1"]
    assert main(arguments) == 2
    expected = f"error: {URL}: holds a run already; add --resume to continue it, or give another URL\n"
    assert capsys.readouterr().err == expected


class Shared(LocalFileSystem):
    """A store that several processes reach: a directory."""

    protocol = "shared"

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return super()._strip_protocol(str(path).removeprefix("shared://"))

    def put_file(self, path1, path2, callback=None, **kwargs):
        """An object appears at once, as in a bucket: of an upload that is killed nothing is seen."""
        target = Path(self._strip_protocol(path2))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(delete=False) as file:
            shutil.copyfile(path1, file.name)
        os.replace(file.name, target)


def train_on_a_host(configuration, url, host, stop):
    """Run one rank on a host of its own; the other's has neither the exam nor the checkpoints of rank 0's disk."""
    fsspec.register_implementation("shared", Shared, clobber=True)
    rank = int(os.environ["RANK"])
    home = Path(f"{host}-{rank}")
    home.mkdir()
    os.environ["BERT_HOME"] = str(home)
    os.chdir(home if rank else home.parent)
    checkpoint_here = RunStore.checkpoint_here
    if rank:
        RunStore.checkpoint_here = lambda self, path, sha256: checkpoint_here(self, home / path.name, sha256)  # type: ignore[method-assign]
    try:
        kill = at(stop, lambda: os.kill(os.getpid(), 9 if rank == 0 else 0))
        train(configuration, url, resume=True, after_step=kill)
    except BertError as error:
        (home / "error").write_text(str(error))
        raise SystemExit(error.exit_code) from None


def test_hosts_that_share_a_model_but_no_disk_resume_from_a_store(data, tmp_path):
    lines = [f"w{one} w{two}\tw{two} w{one}\ta" for one in range(12) for two in range(4) if one != two]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    shared = {name: f"shared://{directory}" for name, directory in data.items()}
    settings: dict[str, Any] = {"data_parallel": "fsdp", "choose": "loss", "exam_pairs": 4, "timeout_seconds": 60}
    whole = tmp_path / "whole"
    codes, reports, _ = run_pretraining(configuration(data, exam=str(tmp_path / "pairs.tsv"), **settings), whole)
    assert codes == [0, 0], reports

    config, url = configuration(shared, exam="pairs.tsv", **settings), f"shared://{tmp_path}/store"
    assert run_ranks(2, train_on_a_host, config, url, f"{tmp_path}/first", 10) == [-9, 1]
    assert f"the checkpoints are in {url}; start again with --resume" in (tmp_path / "first-1" / "error").read_text()
    codes = run_ranks(2, train_on_a_host, config, url, f"{tmp_path}/second", 0)
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("second-*/error")]
    resumed = [event["step"] for event in read_events(tmp_path / "store") if event["event"] == "resume"]
    assert resumed in ([6], [8], [9])
    assert_same(tmp_path / "store", whole)
    assert (tmp_path / "store" / "model" / "exam.json").is_file()
    assert list((tmp_path / "second-1").rglob("optimizer.safetensors"))  # read from the store
