"""Code versions: a hash of the source that an asset's entry functions can reach, so that stale assets show as stale.

Nothing is imported, so definitions load without torch: imports are read off the syntax trees. What counts as reached:

- every import, those in functions too, and the `__init__.py` of the packages on the way;
- a module whose dotted name is a string: Beam's runner and its workers are chosen like that;
- a data file, or a folder of them, that a module beside it names in a string.

The asset functions in `workflows` are no part of it: they choose settings and inputs, which a recipe holds as well.
Blocks under `if TYPE_CHECKING` and `if __name__ == "__main__"` are left out: no call of a function runs them.
"""

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("bert_pipeline", "bert_model", "workflows")
NEVER_RUN = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")


def code_version(*entries: str, root: Path = ROOT) -> str:
    """Hash what functions such as "bert_model.finetuning.finetune" reach; ValueError when there is no such function."""
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
