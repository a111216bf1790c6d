"""Processes end with the one that started them, and only those that this project starts."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from training_processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
SLEEP = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"


@pytest.fixture
def killed(tmp_path):
    """Run a program, kill it when its descendants have written their ids to files, and return these."""
    found: list[psutil.Process] = []

    def run_and_kill(program: str, *names: str) -> list[psutil.Process]:
        words = [sys.executable, "-c", textwrap.dedent(program), *(str(tmp_path / name) for name in names)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(words, env=environment, cwd=tmp_path)
        try:
            for name in names:
                wait_until(lambda name=name: (tmp_path / name).exists() and (tmp_path / name).read_text())
                found.append(psutil.Process(int((tmp_path / name).read_text())))
        finally:
            process.kill()
            process.wait()
        return found

    yield run_and_kill
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()


def has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("ignores", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
def test_program_ends_with_the_process_that_started_it(killed, ignores):
    # It is killed if it ignores TERM, and so is what it has started in its group.
    program = f"""
        import sys, time
        from bert_pipeline.parent import start
        inner = "import signal; {ignores}{SLEEP}"
        code = "import signal, subprocess, sys; {ignores}sys.modules['__main__'].GRACE_SECONDS = 0.5; "
        code += "subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[3]]); {SLEEP}"
        start([sys.executable, "-c", code, sys.argv[1], inner, sys.argv[2]])
        time.sleep(600)
    """
    processes = killed(program, "program", "of the program")
    wait_until(lambda: all(has_ended(process) for process in processes))


def test_descendants_end_with_a_watching_process(killed, tmp_path):
    (tmp_path / "spawned.py").write_text(
        "import os, pathlib, time\n"
        "from bert_pipeline.parent import end_with_parent\n"
        "def run(name):\n"
        "    end_with_parent()\n"
        "    pathlib.Path(name).write_text(str(os.getpid()))\n"
        "    time.sleep(600)\n"
    )
    started = f"from bert_pipeline.parent import end_with_parent; end_with_parent(); {SLEEP}"
    # Both are in sessions of their own, like a rank: no signal to a group reaches them.
    program = f"""
        import sys, time
        from bert_pipeline.parent import start
        code = "import multiprocessing, subprocess, sys; sys.path.insert(0, ''); import spawned; "
        code += "multiprocessing.get_context('spawn').Process(target=spawned.run, args=sys.argv[2:3]).start(); "
        code += "subprocess.Popen([sys.executable, '-c', sys.argv[4], sys.argv[3]], start_new_session=True); {SLEEP}"
        start([sys.executable, "-c", code, *sys.argv[1:4], {started!r}])
        time.sleep(600)
    """
    processes = killed(program, "middle", "spawned", "started")
    wait_until(lambda: all(has_ended(process) for process in processes))


def test_program_that_a_user_starts_outlives_its_parent(killed):
    code = f"from bert_pipeline.parent import end_with_parent; end_with_parent(); {SLEEP}"
    program = f"""
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", {code!r}, sys.argv[1]])
        time.sleep(600)
    """
    (process,) = killed(program, "program")
    time.sleep(2)  # several looks at the parent
    assert not has_ended(process)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: has_ended(process))
