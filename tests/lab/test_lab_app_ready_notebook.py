"""The notebook that the launcher's card opens: it is valid and runs unchanged."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import nbformat
import pytest
from forked_kernels import forked_kernels
from tiers import matrix

READY = Path(__file__).parents[2] / "labextension" / "src" / "launcher" / "ready.ipynb.json"
SHORTER = {"epochs=100": "epochs=6", "SGD(0.05)": "SGD(0.05, momentum=0.9)"}
"""Texts of the notebook, and what the first tier runs instead of them, in a forked kernel."""


def read() -> Any:
    return nbformat.read(READY, as_version=4)


def test_it_is_a_notebook_without_outputs() -> None:
    notebook = read()
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.engines
@pytest.mark.timeout(400)
@pytest.mark.parametrize("short", matrix([True], rest=[False]))
def test_it_trains(short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error stops it with the traceback; the cluster ends a minute after the kernel."""
    from nbclient import NotebookClient

    monkeypatch.setenv("NBDIST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read()
    train = next(cell for cell in notebook.cells if "epochs=100" in cell.source)
    for old, new in SHORTER.items() if short else ():
        assert old in train.source, f"the notebook has no {old!r} (any more)"
        train.source = train.source.replace(old, new)
    notebook.cells.append(nbformat.v4.new_code_cell("%cluster stop"))
    folder = {"metadata": {"path": os.fspath(tmp_path)}}
    with forked_kernels() if short else nullcontext():
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("2 workers" in output.get("data", {}).get("text/plain", "") for output in outputs)
    printed = "".join(output.get("text", "") for output in outputs)
    assert "is stopped" in printed
    assert float(printed.partition("% of the test digits")[0].split()[-1]) > 90
