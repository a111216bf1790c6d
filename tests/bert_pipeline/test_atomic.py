"""Locks between processes."""

import signal
import subprocess
import sys

import pytest

from bert_pipeline.atomic import locked
from bert_pipeline.errors import ArtifactError, UnavailableError

HOLD = """
import sys, time
from pathlib import Path
from bert_pipeline.atomic import locked
with locked(Path(sys.argv[1])):
    print(flush=True)
    time.sleep(600)
"""


def test_lock_names_its_holder_and_ends_with_it(tmp_path):
    path = tmp_path / "locks" / "one.lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        in_use = rf"one.lock: in use .*\(held by process {holder.pid} on "
        with pytest.raises(UnavailableError, match=in_use), locked(path, wait=0):
            pass
        busy = ArtifactError("wait for it")
        with pytest.raises(ArtifactError, match=f"wait .*process {holder.pid}"), locked(path, wait=0.2, busy=busy):
            pass
        holder.send_signal(signal.SIGKILL)
    with locked(path, wait=0) as is_held:
        assert is_held


def test_lock_whose_file_its_holder_removes_is_taken_anew(tmp_path):
    path = tmp_path / "lock"
    with locked(path):
        path.unlink()
        with locked(path, wait=0), pytest.raises(UnavailableError), locked(path, wait=0):
            pass


def test_lock_in_place_of_a_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="not a directory"), locked(tmp_path / "file" / "lock"):
        pass
