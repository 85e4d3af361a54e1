"""The Jupyter server stays light: its modules for clusters and tasks import no heavy package."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

HEAVY = ("matplotlib", "ipywidgets", "anywidget", "optuna", "ipyparallel", "sklearn", "IPython", "pynvml")


@pytest.mark.parametrize("module", ["clusters", "tasks"])
def test_listing_clusters_imports_no_heavy_package(module: str) -> None:
    code = (
        f"import sys, nbdist.lab.readers.{module}, nbdist.lab.readers.clusters as c; c.Clusters().poll(); "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
