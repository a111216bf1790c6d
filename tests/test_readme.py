"""The README and the docs are short, their commands, calls, paths and links valid, the map of the code complete."""

import ast
import importlib
import inspect
import itertools
import operator
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from bert_model.cli import build_parser, parse, split_beam_options
from workflows import run

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PACKAGES = ("bert_pipeline", "bert_model", "workflows")

MAX_README_LINES = 120
MAX_WORDS = 20_000
"""Words of all pages below docs/, but not of the decisions; the marks of tables and lists are none."""


def test_readme_and_docs_are_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) < MAX_README_LINES
    words = {page.name: len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))) for page in DOCS}
    assert sum(words.values()) < MAX_WORDS, words


def commands(program: str) -> list[tuple[str, str]]:
    """Return (page, command) for every command of a code block that starts with `program`, joined at backslashes."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```(?:sh|bash|console)?\n(.*?)```", text, flags=re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                for command in line.removeprefix("$ ").partition("  #")[0].split(" && "):
                    command = command.strip().removeprefix(".venv/bin/")
                    if f"{command} ".startswith(f"{program} "):
                        found.append((page.relative_to(ROOT).as_posix(), command))
    return found


def test_readme_has_demo_and_test_commands():
    readme = [command for page, command in commands("make") if page == "README.md"]
    assert "make demo" in readme
    assert "make test" in readme


@pytest.mark.parametrize(("page", "command"), commands("make"))
def test_make_targets_exist(page, command):
    words = ["DUMP=dump.xml" if "…" in word else word for word in shlex.split(command)]
    result = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"{page}: {command}: {result.stderr}"


@pytest.mark.parametrize(("page", "command"), commands("bert"))
def test_bert_commands_parse(page, command):
    words, _ = split_beam_options(shlex.split(command)[1:])
    arguments = parse(build_parser(), words)
    assert callable(arguments.run), f"{page}: {command}"


@pytest.mark.parametrize(("page", "command"), commands("python -m workflows.run"))
def test_run_commands_parse(page, command):
    words = shlex.split(command)[3:]
    if words != ["--settings"]:
        assert run.build_parser().parse_args(words).dump, f"{page}: {command}"


def python_calls() -> list[tuple[str, str]]:
    """Return (imports, call) for every call of an imported function in the Python blocks of the page of the API."""
    found = []
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        nodes = list(ast.walk(ast.parse(block)))
        imports = {name.name: node.module for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imports:
                found.append((f"{imports[node.func.id]}:{node.func.id}", ast.unparse(node)))
    return found


def test_functions_listed_on_the_api_page_exist():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- `([\w.]+)\(.*?\)` in `([\w/]+)\.py`", page, flags=re.MULTILINE)
    assert len(listed) == page.count("\n- ")
    for name, path in listed:
        assert operator.attrgetter(name)(importlib.import_module(path.replace("/", ".")))


@pytest.mark.parametrize(("function", "call"), python_calls())
def test_calls_of_the_api_page_fit_the_signatures(function, call):
    module, _, name = function.partition(":")
    node = ast.parse(call, mode="eval").body
    keywords = {keyword.arg: None for keyword in node.keywords}
    inspect.signature(getattr(importlib.import_module(module), name)).bind(*[None for _ in node.args], **keywords)


def test_source_paths_in_the_docs_exist():
    """Paths of modules may be given below a package, as in `finetuning/trial.py`."""
    folders = [ROOT, *(ROOT / package for package in PACKAGES)]
    missing = []
    for page in PAGES:
        for path in re.findall(r"`([\w./-]+)`", page.read_text(encoding="utf-8")):
            is_source = "/" in path and (
                path.endswith(".py") or path.split("/")[0] in (*PACKAGES, "benchmarks", "tests")
            )
            if is_source and not any((folder / path).exists() for folder in folders):
                missing.append(f"{page.relative_to(ROOT)}: {path}")
    assert not missing


def test_links_of_the_docs_resolve():
    broken = []
    for page in [*PAGES, ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, heading = target.partition("#")
            if target.startswith("http"):
                continue
            linked = page.parent / path if path else page
            if not linked.exists() or (heading and heading not in headings(linked)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_map_of_the_code_lists_every_file():
    tree = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Files")[2].split("```")[1]
    listed: set[str] = set()
    folders: list[str] = []
    for line in filter(None, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        names = list(itertools.takewhile(lambda word: word.endswith((".py", "/")), line.split()))
        listed |= {"/".join([*folders[:depth], name.rstrip("/")]) for name in names}
        folders[depth:] = [names[0].rstrip("/")]
    expected = {*PACKAGES, "benchmarks"}
    for package in [*expected]:
        for path in (ROOT / package).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            is_listed = path.suffix == ".py" and path.name != "__init__.py" or (path / "__init__.py").exists()
            # A folder without lines of its own (sample/, wikipedia/templates/) stands for all of its files.
            parent = path.parent.relative_to(ROOT).as_posix()
            if is_listed and any(other.startswith(f"{parent}/") for other in listed):
                expected.add(name)
    assert listed == expected
