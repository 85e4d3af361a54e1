"""Floors: a module imports only from lower floors or its own folder, and never the bare facade."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "nbdist"

FLOORS = {
    "errors": 0, "numbers": 0, "text": 0, "record_frame": 0, "home": 0.5, "keras_arguments": 0.5,
    "graph": 1, "wire": 1, "data": 1, "metrics": 1,
    "optim": 1.5, "checkpoint": 1.5, "summary": 1.5,
    "runtime": 2,
    "cluster": 3, "train": 3,
    "nn": 4, "distribute": 4, "collective": 4, "frameworks": 4, "horovod": 4.5, "estimator": 4.5,
    "run": 5, "sweep": 5,
    "trials": 5.5,
    "ui": 6,
    "lab": 6.5,
    "testing": 7,
}  # fmt: skip


Import = ast.Import | ast.ImportFrom


@cache
def read(path: Path) -> tuple[list[Import], list[Import | ast.Call]]:
    """Return a module's imports at its top, and all; with the latter its calls, if one may be an import.

    The rest of the tree is let go: with the trees of all modules in memory each garbage collection is long.
    """
    text = path.read_text()
    gc.disable()  # else it looks at each node again and again: four fifths of the time
    try:
        tree = ast.parse(text)
        every = ast.walk(tree) if "import_module" in text else statements(tree)
        found = [node for node in every if isinstance(node, Import | ast.Call)]
    finally:
        gc.enable()
    return [node for node in tree.body if isinstance(node, Import)], found


def statements(root: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements: expressions, which are nine tenths of the nodes, have no import in them."""
    left = [root]
    while left:
        node = left.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, name, ())


def imported(path: Path) -> set[str]:
    """Return the nbdist modules that a module imports, at any place in its code."""
    package = ("nbdist", *path.relative_to(PACKAGE).parent.parts)
    names: set[str] = set()
    for node in read(path)[1]:
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
            for node in read(path)[1]
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        if "cupy" in names:
            assert str(path.relative_to(PACKAGE)) in allowed, f"{path} imports cupy"


def module_name(path: Path) -> str:
    return ".".join(("nbdist", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


NAMES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def at_import(path: Path) -> set[str]:
    """Return the nbdist modules that a module imports during its own import."""
    found: set[str] = set()
    for node in read(path)[0]:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in NAMES else node.module for name in names}
    return found & NAMES.keys()


def test_no_module_imports_itself_in_a_circle() -> None:
    """Kahn's algorithm: remove modules whose imports are all removed; the rest are parts of circles."""
    left = {name: at_import(path) - {name} for name, path in NAMES.items()}
    while ready := {name for name, needs in left.items() if not needs}:
        left = {name: needs - ready for name, needs in left.items() if name not in ready}
    assert not left, f"modules import each other in a circle: {', '.join(left)}"


def test_every_floor_exists() -> None:
    parts = {part(path) for path in MODULES}
    assert parts == set(FLOORS), f"FLOORS and the folders differ: {', '.join(parts ^ set(FLOORS))}"


STRING_IMPORTS = {
    "__init__.py": "the facade loads a part of the package when its name is first used",
    "train/strategy.py": "a strategy's methods open loops of one's own, which import this module",
}
"""Modules that import a part of nbdist by a string, each with its reason."""


def test_imports_by_name_go_down_or_are_listed() -> None:
    """``import_module("nbdist.a.b")`` and ``-m nbdist.a.b`` name modules that exist, on a lower floor."""
    for path in sorted(PACKAGE.rglob("*.py")):
        calls = [node for node in read(path)[1] if isinstance(node, ast.Call)]
        named = {
            call.args[0].value
            for call in calls
            if call.args
            and isinstance(call.args[0], ast.Constant)
            and isinstance(call.args[0].value, str)
            and (getattr(call.func, "id", None) or getattr(call.func, "attr", None)) == "import_module"
        }
        named = {name for name in named if name.split(".")[0] == "nbdist"}
        if not named or str(path.relative_to(PACKAGE)) in STRING_IMPORTS:
            continue
        for name in named - {"nbdist"}:
            assert name in NAMES, f"{path} imports {name}, which does not exist"
            assert FLOORS[name.split(".")[1]] < FLOORS[part(path)], f"{path} imports {name} by its name"


def test_no_module_hides_a_public_name_of_its_package() -> None:
    """``from nbdist.sweep import log`` would give the module, were there one, and not the function."""
    allowed = {
        "data.digits",
        "data.mnist",
    }  # the functions replace their modules when the package is imported
    for path in sorted(PACKAGE.rglob("__init__.py")):
        names: set[str] = set()
        for node in read(path)[0]:
            if isinstance(node, ast.ImportFrom) and node.module not in (
                None,
                "__future__",
                module_name(path),
            ):
                names |= {alias.asname or alias.name for alias in node.names}
        own = {child.stem for child in path.parent.iterdir() if child.suffix in ("", ".py")}
        hidden = {f"{path.parent.name}.{name}" for name in names & own} - allowed
        assert not hidden, f"modules hide public names: {', '.join(sorted(hidden))}"


TESTS = Path(__file__).parent
OTHER_TESTS = {"", "bench", "browser", "first", "hosts", "mac"}
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
