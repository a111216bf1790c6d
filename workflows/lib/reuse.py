"""Code versions from import closures, reuse of unchanged artefacts, and lineage."""

import ast
import functools
import hashlib
import importlib.util
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import BertError
from bert_pipeline.manifest import Manifest, content_sha256, load_manifest, write_text_durably
from workflows.lib.resources import BertHome, sample_seed

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("bert_pipeline", "bert_model", "workflows")
NEVER_RUN = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")


def code_version(*entries: str, root: Path = ROOT) -> str:
    """Hash the import closure of functions such as "bert_model.pretraining.run.pretrain".

    ValueError when a function does not exist.
    """
    return _hash(closure(*entries, root=root), root)


def packages_version(*packages: str, root: Path = ROOT) -> str:
    """Hash every file of whole packages."""
    return _hash((file for package in packages for file in _files(root / package)), root)


def closure(*entries: str, root: Path = ROOT) -> set[Path]:
    """Return the modules and data files that functions reach."""
    files = [file for floor in FLOORS for file in _files(root / floor)]
    code = {file: ".".join(file.relative_to(root).with_suffix("").parts) for file in files if file.suffix == ".py"}
    modules = {name.removesuffix(".__init__"): file for file, name in code.items()}
    data = [file for file in files if file not in code]
    waiting = []
    for entry in entries:
        module, _, function = entry.rpartition(".")
        if module not in modules or function not in _functions(modules[module].read_text(encoding="utf-8")):
            raise ValueError(f"{entry}: {root} has no such function; name it by the module that defines it")
        waiting.append(module)
    reached: dict[str, Path] = {}
    read: set[Path] = set()
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        path = reached[module] = modules[module]
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = _names(path.read_text(encoding="utf-8"), package)
        ours = (name for name in (module, *names) if name.startswith(FLOORS))
        waiting += [part for name in ours for part in _parts(name) if part in modules]
        beside = (file for file in data if file.is_relative_to(path.parent))
        read |= {file for file in beside if file.relative_to(path.parent).parts[0] in names}
    return {*reached.values(), *read}


def _files(package: Path) -> list[Path]:
    return [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]


def _hash(files: Iterable[Path], root: Path) -> str:
    contents = {file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest()[:12]


def _parts(name: str) -> list[str]:
    """Return "a", "a.b" and "a.b.c" for "a.b.c", whose last part may be no module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


@functools.cache
def _functions(text: str) -> frozenset[str]:
    return frozenset(node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))


@functools.cache
def _names(text: str, package: str) -> frozenset[str]:
    """Return what a module's source imports, by full names, and its strings up to their first slash."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                names.add(node.value.partition("/")[0])
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and ast.unparse(node.test) in NEVER_RUN:
            waiting += node.orelse
        elif not isinstance(node, (ast.Name, ast.expr_context)):  # neither has anything below it
            waiting += ast.iter_child_nodes(node)
    return frozenset(names)


def recipe(*, code_version: str | None, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> dict[str, Any]:
    """What decides an artefact's content: the code, the settings, and the identities of its inputs."""
    return {"code_version": code_version, "settings": dict(settings), "inputs": dict(inputs)}


def recipe_path(directory: Path) -> Path:
    """Where the recipe of an artefact stands: beside it, so that it never is part of it."""
    return directory.parent / f".{directory.name}.recipe.json"


def made_or_reused(
    directory: Path, kind: str, wanted: Mapping[str, Any], make: Callable[[], Manifest], say: Callable[[str], None]
) -> Manifest:
    """Return the artefact in `directory` if it was made by the same recipe and is intact; otherwise make it."""
    key = content_sha256(wanted)
    found = _reusable(directory, kind, key)
    if found is not None:
        say(f"unchanged since {found.provenance.get('created', 'it was made')}: {directory} is taken as it is")
        return found
    manifest = make()
    document = {"recipe_sha256": key, "content_sha256": manifest.sha256, "recipe": wanted}
    write_text_durably(recipe_path(directory), json.dumps(document, indent=1) + "\n")
    return manifest


def _reusable(directory: Path, kind: str, key: str) -> Manifest | None:
    try:
        stored = json.loads(recipe_path(directory).read_text(encoding="utf-8"))
        if stored["recipe_sha256"] != key:
            return None
        manifest = load_manifest(directory, kind=kind)
        return manifest if manifest.sha256 == stored["content_sha256"] else None
    except (BertError, OSError, ValueError, KeyError, TypeError):
        return None


WIKIPEDIA_LICENCE = "CC-BY-SA-4.0"
"""https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use, section 7."""
SAMPLE_LICENCE = "Apache-2.0"
"""The generated encyclopaedia is a product of this program."""


def lineage_tags(home: BertHome, dump: str, *, run_id: str) -> dict[str, str]:
    """The dump, the hashes of what was made of it, the code, and the Dagster run."""
    tags = {
        "dump": dump,
        "generated_sample": str(sample_seed(dump) is not None).lower(),
        "dagster_run_id": run_id,
        "code_version": packages_version("bert_pipeline", "bert_model"),
    }
    commit = code_commit()
    if commit:
        tags["code_commit"] = commit
    for artefact, directory in (("corpus", home.corpus(dump)), ("vocabulary", home.vocabulary(dump))):
        if (directory / "manifest.json").is_file():
            tags[f"{artefact}_sha256"] = load_manifest(directory, kind=artefact).sha256
    lengths = sorted(home.instances(dump, 0).parent.glob("*/manifest.json"), key=lambda path: path.parent.name.zfill(9))
    if lengths:
        tags["instances_sha256"] = " ".join(load_manifest(path.parent, kind="instances").sha256 for path in lengths)
    return tags


@functools.cache
def code_commit() -> str:
    """The commit of the working tree, "+changes" where files differ from it; "" outside a git checkout."""
    try:
        commit = _git("rev-parse", "HEAD")
        return f"{commit}+changes" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return ""


def text_licence(sources: Sequence[str], dump: str) -> str:
    """The licence of the text that a model was trained on, where it is known; "" for files of the user's own."""
    if sample_seed(dump) is not None:
        return SAMPLE_LICENCE
    return WIKIPEDIA_LICENCE if sources and all(source.startswith("wikipedia:") for source in sources) else ""


def _git(*words: str) -> str:
    result = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    return result.stdout.strip()
