"""Skip materialization when code, settings and inputs are unchanged.

The code version of an asset is a hash over the import closure of the functions that build it, so no list of source
files is kept by hand.
"""

import ast
import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bert_pipeline.atomic import replace_text
from bert_pipeline.errors import BertError, UnavailableError
from bert_pipeline.manifest import Manifest, content_sha256, load_manifest
from bert_pipeline.storage import store_errors

# --- code versions ---

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("bert_pipeline", "bert_model", "workflows")
"""The packages whose modules and data files count."""
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
    """Return the modules that functions reach by imports, and the data files that these modules name."""
    files = [file for floor in FLOORS for file in _files(root / floor)]
    code = {file: ".".join(file.relative_to(root).with_suffix("").parts) for file in files if file.suffix == ".py"}
    modules = {name.removesuffix(".__init__"): file for file, name in code.items()}
    data = [file for file in files if file not in code]
    waiting = []
    # Start from the modules that define the functions.
    for entry in entries:
        module, _, function = entry.rpartition(".")
        if module not in modules or function not in _functions(modules[module].read_text(encoding="utf-8")):
            raise ValueError(f"{entry}: {root} has no such function; name it by the module that defines it")
        waiting.append(module)
    reached: dict[str, Path] = {}
    read: set[Path] = set()
    # Follow imports, and collect the data files next to each module that its strings name.
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        path = reached[module] = modules[module]
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        names = _names(path.read_text(encoding="utf-8"), package)
        ours = (name for name in (module, *names) if name.startswith(FLOORS))
        waiting += [part for name in ours for part in _parts(name) if part in modules]
        nearby = (file for file in data if file.is_relative_to(path.parent))
        read |= {file for file in nearby if file.relative_to(path.parent).parts[0] in names}
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
            # The string may name a data file, or a folder of data files, next to the module.
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


# --- reuse ---


def build_or_reuse(
    directory: Path,
    kind: str,
    build: Callable[[], Manifest],
    *,
    code_version: str | None = None,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any] = MappingProxyType({}),
    log: Callable[[str], object],
) -> Manifest:
    """Return the artifact in `directory` if it is intact and code, settings and inputs are the same; else build it.

    `inputs` maps names to content hashes. There is no `code_version` where the result does not depend on our code.
    """
    key = {"code_version": code_version, "settings": dict(settings), "inputs": dict(inputs)}
    key_sha256 = content_sha256(key)
    found = _reusable(directory, kind, key_sha256)
    if found is not None:
        log(f"unchanged since {found.provenance.get('created', 'it was made')}: {directory} is reused")
        return found

    # The key is written after the artifact: an interrupted build is not reused.
    manifest = build()
    document = {"key_sha256": key_sha256, "content_sha256": manifest.sha256, "key": key}
    replace_text(key_path(directory), json.dumps(document, indent=1) + "\n")
    return manifest


def key_path(directory: Path) -> Path:
    """Return the file with the key of an artifact: outside its directory, whose content it must not change."""
    return directory.parent / f".{directory.name}.key.json"


def _reusable(directory: Path, kind: str, key_sha256: str) -> Manifest | None:
    try:
        with store_errors(directory):
            stored = json.loads(key_path(directory).read_text(encoding="utf-8"))
        if stored["key_sha256"] != key_sha256:
            return None
        # By hashes, as in the blocking checks, which would refuse damage of unchanged size after every reuse.
        manifest = load_manifest(directory, kind=kind, verify="sha256")
        return manifest if manifest.sha256 == stored["content_sha256"] else None
    except UnavailableError:  # building again would take hours, and end at the same store
        raise
    except (BertError, OSError, ValueError, KeyError, TypeError):
        return None
