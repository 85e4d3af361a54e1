"""constraints.txt pins all packages that `make` installs, at versions that the project allows."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("lock", ROOT / "scripts" / "lock.py")
assert spec is not None
assert spec.loader is not None
lock = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = lock.requirements(PROJECT, lock.EXTRAS)


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_constraints_cover_the_extras_of_make() -> None:
    names = {Requirement(one).name for one in WANTED}
    assert {"numpy", "jupyterlab", "mpich", "optuna", "tensorboard", "pytest", "hatchling"} <= names
    assert "nbdist" not in names


@pytest.mark.parametrize("wanted", [one for one in WANTED if not one.startswith(lock.UNPINNED)])
def test_each_requirement_has_a_version_that_it_allows(wanted: str) -> None:
    requirement = Requirement(wanted)
    version = pinned().get(canonicalize_name(requirement.name))
    assert version is not None, f"{wanted} is not in constraints.txt: run python scripts/lock.py"
    assert version in requirement.specifier, f"{wanted}, and {version} is pinned: run python scripts/lock.py"


def test_lines_are_sorted_exact_versions_of_canonical_names() -> None:
    names = list(pinned())
    assert names == sorted(names)
    assert all(name == canonicalize_name(name) for name in names)
