"""The default names of runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbdist.metrics.run_folder import slug
from nbdist.ui.api import name_of, run_name


def train() -> None:
    """A user's function."""


@pytest.mark.parametrize(
    ("body", "session", "cell", "strategy", "name"),
    [
        ("x = 1", "work/mnist.ipynb", 12, "ps async", "mnist [12] ps async"),
        ("\n  # Digits, two layers\nx = 1", "mnist.ipynb", 3, "elastic", "Digits, two layers [3] elastic"),
        ("#!/bin/sh\nx = 1", "mnist.ipynb", 3, "", "mnist [3]"),
        (f"# {'x' * 99}\n", "mnist.ipynb", 3, "", "mnist [3]"),
        ("#\nx = 1", "mnist.ipynb", 3, "", "mnist [3]"),
        ("x = 1", "", 3, "ps", "cell [3] ps"),
        ("x = 1", "/home/a/train.py", None, "ps sync", "train ps sync"),
        (train, "mnist.ipynb", 4, "", "train [4]"),
        (lambda: None, "mnist.ipynb", 4, "", "mnist [4]"),
        ("x = 1", "/lib/pytest/__main__.py", None, "", "run"),
    ],
)
def test_the_name_of_a_run(
    body: str | Callable[[], None], session: str, cell: int | None, strategy: str, name: str
) -> None:
    assert name_of(body, session, cell, strategy) == name
    assert slug(name)


def test_the_flags_are_in_the_name() -> None:
    assert run_name("# Digits", {"strategy": "ps", "synchronous": False}) == "Digits ps async"
    assert run_name("# Digits", {"synchronous": True, "replication": "in-graph"}) == "Digits sync in-graph"


def test_the_number_is_that_of_the_cell_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = InteractiveShell()
    monkeypatch.setattr("nbdist.ui.api.get_ipython", lambda: shell)
    monkeypatch.setenv("JPY_SESSION_NAME", "mnist.ipynb")
    shell.user_ns["run_name"] = run_name
    shell.run_cell("1", store_history=True)
    second = shell.run_cell("name = run_name('x = 1', {})", store_history=True)
    assert shell.user_ns["name"] == f"mnist [{second.execution_count}]" == "mnist [2]"
