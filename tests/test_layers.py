"""Floors: a module imports only from lower floors or its own folder, and never the bare facade."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "nbdist"

FLOORS = {
    "errors": 0, "home": 0.5,
    "graph": 1, "wire": 1, "data": 1, "metrics": 1, "checkpoint": 1,
    "optim": 1.5,
    "runtime": 2,
    "cluster": 3, "train": 3,
    "nn": 4, "distribute": 4, "collective": 4, "horovod": 4.5,
    "runs": 5, "frameworks": 5, "sweep": 5,
    "trials": 5.5,
    "ui": 6, "testing": 6,
    "lab": 6.5,
}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Names of nbdist's own parts that a module imports, wherever the import stands."""
    package = ("nbdist", *path.relative_to(PACKAGE).parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    own = part(path)
    assert own in FLOORS, f"{own} has no floor: add it to FLOORS and to docs/architecture.md"
    for name in imported(path):
        assert name != "nbdist", f"{path} imports the bare facade"
        other = name.split(".")[1]
        if other == own:
            continue
        assert other in FLOORS, f"{path} imports {name}, which has no floor"
        assert FLOORS[other] < FLOORS[own], (
            f"{path} (floor {FLOORS[own]}) imports {name} (floor {FLOORS[other]})"
        )


def test_cupy_is_imported_in_two_places_only() -> None:
    allowed = {"graph/backend.py", "wire/collective/nccl.py"}
    for path in MODULES:
        names = {
            alias.name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        if "cupy" in names:
            assert str(path.relative_to(PACKAGE)) in allowed, f"{path} imports cupy"
