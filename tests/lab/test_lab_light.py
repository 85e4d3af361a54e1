"""The Jupyter server stays light: what it reads clusters and tasks with brings no heavy package along."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

HEAVY = ("matplotlib", "ipywidgets", "anywidget", "optuna", "ipyparallel", "sklearn", "IPython", "pynvml")


@pytest.mark.parametrize("module", ["clusters", "tasks"])
def test_looking_at_clusters_imports_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, nbdist.lab.readers.{module}, nbdist.lab.readers.clusters as c; c.Clusters().poll(); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
