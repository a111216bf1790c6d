"""An environment of its own for peers that the project itself does not need, installed by package name."""

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

INSTALL_TIMEOUT_SECONDS = 600


class PeerEnvironment:
    """Python with some packages, or the reason why it could not be made."""

    def __init__(self, directory: Path, packages: Sequence[str]) -> None:
        """Make the environment where it is not there yet. Never raises: `problem` says what went wrong."""
        self.python = directory / "bin" / "python"
        self.problem = ""
        self.versions: dict[str, str] = {}
        try:
            if not self.python.exists():
                print(f"installing {' and '.join(packages)} into {directory}", file=sys.stderr, flush=True)
                venv.create(directory, with_pip=True)
            missing = [name for name in packages if self._version(name) is None]
            if missing:
                self._run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", *missing)
            self.versions = {name: self._version(name) or "" for name in packages}
        except (OSError, subprocess.SubprocessError) as error:
            self.problem = _reason(error)

    def _version(self, package: str) -> str | None:
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        result = subprocess.run([self.python, "-c", code, package], capture_output=True, text=True)
        return result.stdout.strip() if result.returncode == 0 else None

    def _run(self, *arguments: str) -> None:
        command = [str(self.python), *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_SECONDS)


def _reason(error: Exception) -> str:
    """One line of what went wrong: the last that pip said."""
    said = str(getattr(error, "stderr", "") or "").strip().splitlines()
    return said[-1] if said else str(error)
