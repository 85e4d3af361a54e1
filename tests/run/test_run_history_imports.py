"""The names of the facade mean the same before and after the packages behind them are imported."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest
from tiers import matrix

import nbdist


@pytest.mark.parametrize("name", sorted(set(nbdist.__all__) - {"__version__", "task"}))
def test_a_public_name_is_no_module_unless_it_is_meant_to_be(name: str) -> None:
    importlib.import_module("nbdist.run.start")
    importlib.import_module("nbdist.ui.magics")
    found = getattr(nbdist, name)
    assert callable(found) if ":" in nbdist._NAMES[name] else isinstance(found, ModuleType)


@pytest.mark.processes
@pytest.mark.parametrize(
    "first",
    matrix(
        ["import nbdist.run.start", "assert isinstance(nb.runs(), list); import nbdist.run.start"],
        rest=["pass"],  # which the second one begins with
    ),
)
def test_runs_lists_runs_whatever_was_imported_before(first: str) -> None:
    code = (
        f"import nbdist as nb; {first}; assert isinstance(nb.runs(), list); import nbdist.run.values.outcome"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
