"""Floors: a module imports only from lower floors or its own folder, and never the bare facade."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "nbdist"

FLOORS = {
    "errors": 0, "numbers": 0, "stubs": 0, "json_values": 0.1, "text": 0, "record_frame": 0, "interrupts": 0,
    "terminal": 0.2,
    "home": 0.5, "machine": 0.5, "draft": 0.5, "keras_arguments": 0.5,
    "graph": 1, "wire": 1, "data": 1, "metrics": 1,
    "optim": 1.5, "checkpoint": 1.5, "summary": 1.5,
    "runtime": 2,
    "cluster": 3, "train": 3,
    "sessions": 3.5,
    "nn": 4, "distribute": 4, "collective": 4, "frameworks": 4, "horovod": 4.5, "estimator": 4.5,
    "run": 5, "sweep": 5,
    "trials": 5.5,
    "ui": 6,
    "lab": 6.5, "cli": 6.6, "__main__": 6.7,
    "testing": 7,
}  # fmt: skip


Import = ast.Import | ast.ImportFrom


class Read(NamedTuple):
    """A module's imports: at its top, when it runs (within functions, too), and all, with those for types.

    ``named`` are the modules of nbdist that it imports by a string: with ``import_module``, or from a table.
    """

    top: list[Import]
    running: list[Import]
    every: list[Import]
    named: set[str]


@cache
def read(path: Path) -> Read:
    """Return a module's imports.

    The rest of the tree is let go: with the trees of all modules in memory each garbage collection is long.
    """
    text = path.read_text()
    gc.disable()  # else it looks at each node again and again: four fifths of the time
    try:
        tree = ast.parse(text)
        named = strings(tree) if '"nbdist.' in text else set()
        found = [
            [node for node in nodes if isinstance(node, Import)]
            for nodes in (tree.body, statements(tree, types=False), statements(tree))
        ]
    finally:
        gc.enable()
    return Read(*found, named)


def statements(root: ast.AST, types: bool = True) -> Iterator[ast.AST]:
    """Yield all statements, those for type checkers too if ``types``.

    Expressions, which are nine tenths of the nodes, have no import in them.
    """
    left = [root]
    while left:
        node = left.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            if types or name != "body" or getattr(getattr(node, "test", None), "id", "") != "TYPE_CHECKING":
                left += getattr(node, name, ())


def strings(tree: ast.AST) -> set[str]:
    """Return the texts that begin with ``nbdist.`` and are imported, or stand in a table of what may be."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            values = node.args[:1]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            values = node.elts
        else:
            values = node.values if isinstance(node, ast.Dict) else []
        found |= {str(one.value) for one in values if isinstance(one, ast.Constant)}
    return {text for text in found if text.startswith("nbdist.")}


def imported(path: Path) -> set[str]:
    """Return the nbdist modules that a module imports, at any place in its code."""
    package = ("nbdist", *path.relative_to(PACKAGE).parent.parts)
    names: set[str] = set()
    for node in read(path).every:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module or ""]))
            names |= {module} if module != "nbdist" else {f"nbdist.{a.name}" for a in node.names}
    return {name for name in names if name == "nbdist" or name.startswith("nbdist.")}


def part(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def test_imports_go_down() -> None:
    wrong = []
    for path in MODULES:
        own = part(path)
        assert own in FLOORS, f"{own} has no floor: add it to FLOORS and to docs/architecture.md"
        for name in imported(path):
            other = name.partition(".")[2].partition(".")[0]
            if name == "nbdist":
                wrong.append(f"{path} imports the bare facade")
            elif other not in FLOORS:
                wrong.append(f"{path} imports {name}, which has no floor")
            elif other != own and FLOORS[other] >= FLOORS[own]:
                wrong.append(f"{path} (floor {FLOORS[own]}) imports {name} (floor {FLOORS[other]})")
    assert not wrong, "\n".join(wrong)


def test_cupy_is_imported_in_two_places_only() -> None:
    allowed = {"graph/backend.py", "wire/collective/nccl.py"}
    for path in MODULES:
        names = {
            alias.name.split(".")[0]
            for node in read(path).every
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        if "cupy" in names:
            assert str(path.relative_to(PACKAGE)) in allowed, f"{path} imports cupy"


def module_name(path: Path) -> str:
    return ".".join(("nbdist", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


NAMES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


STRING_IMPORTS = {
    "nbdist": "the facade loads a part of the package when its name is first used",
    "nbdist.train.strategy": "a strategy's methods open loops of one's own, which import this module",
    "nbdist.cluster.supervisor.__main__": "the tasks' parent loads what they need, before they fork",
}
"""Modules that import by a string what is not on a lower floor, each with its reason."""


def needed(name: str, path: Path) -> set[str]:
    """Return the nbdist modules that a module imports when it runs: at its top, in functions, by strings."""
    later = name not in STRING_IMPORTS
    found = set(read(path).named) if later else set()
    for node in read(path).running if later else read(path).top:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in NAMES else node.module for name in names}
    return found & NAMES.keys()


def test_no_module_imports_itself_in_a_circle() -> None:
    """Kahn's algorithm: remove modules whose imports are all removed; the rest are parts of circles."""
    left = {name: needed(name, path) - {name} for name, path in NAMES.items()}
    while ready := {name for name, needs in left.items() if not needs}:
        left = {name: needs - ready for name, needs in left.items() if name not in ready}
    # What only imports a circle is in none: remove it, too.
    while outside := left.keys() - set().union(*left.values()):
        left = {name: needs for name, needs in left.items() if name not in outside}
    assert not left, f"modules import each other in a circle: {', '.join(left)}"


def test_every_floor_exists() -> None:
    parts = {part(path) for path in MODULES}
    assert parts == set(FLOORS), f"FLOORS and the folders differ: {', '.join(parts ^ set(FLOORS))}"


def test_imports_by_name_go_down_or_are_listed() -> None:
    """``import_module("nbdist.a.b")``, ``"-m", "nbdist.a.b"`` and tables name modules on a lower floor."""
    for name, path in NAMES.items():
        if name in STRING_IMPORTS:
            continue
        for text in read(path).named:
            module = text if text in NAMES else text.rpartition(".")[0]  # a class, else
            other = module.partition(".")[2].partition(".")[0]
            if other not in FLOORS or text == "nbdist.cluster.local.LocalTaskLauncher":
                continue  # a key of files such as "nbdist.torch", and a name in those of earlier versions
            assert module in NAMES, f"{path} names {text}, which does not exist"
            assert other == part(path) or FLOORS[other] < FLOORS[part(path)], f"{path} names {text}"


def test_no_module_hides_a_public_name_of_its_package() -> None:
    """``from nbdist.sweep import log`` would give the module, were there one, and not the function."""
    allowed = {
        "data.digits",
        "data.mnist",
    }  # the functions replace their modules when the package is imported
    for path in sorted(PACKAGE.rglob("__init__.py")):
        names: set[str] = set()
        for node in read(path).top:
            if isinstance(node, ast.ImportFrom) and node.module not in (
                None,
                "__future__",
                module_name(path),
            ):
                names |= {alias.asname or alias.name for alias in node.names}
        own = {child.stem for child in path.parent.iterdir() if child.suffix in ("", ".py")}
        hidden = {f"{path.parent.name}.{name}" for name in names & own} - allowed
        assert not hidden, f"modules hide public names: {', '.join(sorted(hidden))}"


FRAMEWORKS = {"torch", "jax", "keras", "jaxlib", "optax", "flax"}
NAMED = re.compile(r"(nbdist\.frameworks\.)?(torch|jax|keras)(\.\w+)*\.?")
"""A text that is a framework's name, or begins with it: a key, a module, a type."""
MAY_NAME = {
    "graph/backend.py": "jax.numpy is the array module of a TPU, as cupy is that of a GPU",
    "graph/xla/": "graphs run on a TPU as functions of JAX",
    "distribute/tpu/": "the strategy tpu computes with JAX",
    "optim/ops.py": "an optimizer's update as a function of JAX, for the strategy tpu",
    "data/random_state.py": "reseeds the generators of torch that users' functions draw from",
}
"""Code outside frameworks/ that names one, each with its reason. JAX is the backend of TPUs there."""


def framework_names(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of code that name a framework. Docstrings, comments and sentences for users may."""
    prose = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = {part for alias in names for part in alias.name.split(".")}
            case ast.ImportFrom(module=module, names=names):
                found = {*(module or "").split("."), *(alias.name for alias in names)}
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found = {name}
            case ast.Constant(value=str(text)) if id(node) not in prose and NAMED.fullmatch(text):
                found = {"torch"}
            case _:
                continue
        if found & FRAMEWORKS:
            yield node.lineno


def test_frameworks_are_named_in_their_folder_only() -> None:
    """What others need of one is in its `FrameworkSpec`: a new framework is a folder and a row."""
    named = {}
    for path in MODULES:
        relative, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if not relative.startswith("frameworks/") and re.search("torch|jax|keras|optax|flax", text):
            lines = sorted(set(framework_names(ast.parse(text))))
            named |= {relative: lines} if lines else {}
    wrong = {name: lines for name, lines in named.items() if not name.startswith(tuple(MAY_NAME))}
    assert not wrong, f"name a framework outside of frameworks/: {wrong}"
    unused = [one for one in MAY_NAME if not any(name.startswith(one) for name in named)]
    assert not unused, f"name no framework: {unused}"


TESTS = Path(__file__).parent
OTHER_TESTS = {"", "bench", "browser", "first", "hosts", "kube", "mac", "slurm"}
"""Folders of tests that are not about the modules of one folder of the package."""


def test_test_files_have_the_names_of_modules() -> None:
    """``tests/run/test_run_options_more.py`` tests ``nbdist/run/options.py``."""
    wrong = []

    @cache
    def modules_of(folder: str) -> set[str]:
        return {one.stem for one in (PACKAGE / folder).rglob("*") if one.is_dir() or one.suffix == ".py"}

    for path in TESTS.rglob("test_*.py"):
        folder = path.parent.relative_to(TESTS).as_posix().removeprefix(".")
        if folder in OTHER_TESTS:
            continue
        prefix = f"test_{path.parent.name}_"
        rest = path.stem.removeprefix(prefix)
        if rest == path.stem or not any(
            rest == name or rest.startswith(f"{name}_") for name in modules_of(folder)
        ):
            wrong.append(f"{path.relative_to(TESTS)}: no module of nbdist/{folder} has this name")
    assert not wrong, "\n".join(wrong)
