"""Kernels and servers of the environment with Google Colab's versions (scripts/colab_environment.py)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager, KernelManager

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-colab" / "bin" / "python"
SPEC = KernelSpec(
    argv=[str(PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    display_name="Colab's versions",
    language="python",
)


def require_environment() -> None:
    """Fail if the environment is not there: a test run without it must not pass."""
    if not PYTHON.exists():
        pytest.fail("there is no .venv-colab: run .venv/bin/python scripts/colab_environment.py")


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process of that environment, with an nbdist home of its own."""
    return {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        "NBDIST_HOME": str(home),
        "IPYTHONDIR": str(home.parent / "ipython"),
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


class ColabKernel(AsyncKernelManager):  # type: ignore[misc]  # jupyter_client has no types here
    """The manager of one kernel there, for nbclient."""

    @property
    def kernel_spec(self) -> Any:
        return SPEC


class BlockingColabKernel(KernelManager):  # type: ignore[misc]
    """The same, for a test that sends messages itself."""

    @property
    def kernel_spec(self) -> Any:
        return SPEC
