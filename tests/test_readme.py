"""The commands in the README and the docs exist: every `make` target, and every `bert` line parses as it stands."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bert_model.cli import build_parser, parse, split_beam_options

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(program: str) -> list[tuple[str, str]]:
    """(page, command) for every line of a code block that starts with `program`; a backslash continues a line."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:sh|console)?\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                line = line.removeprefix("$ ").partition("  #")[0].strip()
                if line.split(" ")[0] == program:
                    found.append((page.relative_to(ROOT).as_posix(), line))
    return found


def test_the_readme_gives_the_two_commands():
    readme = [command for page, command in commands("make") if page == "README.md"]
    assert "make demo" in readme
    assert "make test" in readme


@pytest.mark.parametrize(("page", "command"), commands("make"))
def test_make_targets_exist(page, command):
    words = ["DUMP=dump.xml" if "…" in word else word for word in shlex.split(command)]
    result = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"{page}: {command}: {result.stderr}"


@pytest.mark.parametrize(("page", "command"), commands("bert"))
def test_bert_commands_parse_as_they_stand(page, command):
    words, _ = split_beam_options(shlex.split(command)[1:])
    arguments = parse(build_parser(), words)
    assert callable(arguments.run), f"{page}: {command}"


def test_every_command_has_help(capsys):
    parser = build_parser()
    (subparsers,) = (action for action in parser._actions if hasattr(action, "choices") and action.choices)
    for name, subparser in subparsers.choices.items():
        text = subparser.format_help()
        assert subparser.description, f"bert {name} has no description"
        assert "--help" in text
