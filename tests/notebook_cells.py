"""Runs the cells of a notebook in a kernel of their own.

cells = run_cells(read(path).cells, folder)
printed(cells)                                                   # the text that they have shown
run_cells(cells, folder, kernel="login", sockets="/tmp/kernel")  # where 127.0.0.1 is another host's
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).parent.parent / "notebooks"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def run_cells(
    cells: Iterable[Any],
    folder: Path,
    *,
    kernel: str = "python3",
    sockets: str = "",
    before: Callable[[Any], None] = lambda cell: None,
) -> list[Any]:
    """Run cells in a new kernel and return them with their outputs; an error stops it with its traceback.

    - ``folder``: the kernel's working directory
    - ``kernel``: the name of its kernelspec
    - ``sockets``: how the paths of its sockets begin; "" for sockets of TCP
    - ``before``: called with each cell before it runs; the cell's ``outputs`` grow while it does
    """
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.v4.new_notebook(cells=list(cells))
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name=kernel,
        resources={"metadata": {"path": os.fspath(folder)}},
        on_cell_execute=lambda cell, cell_index: before(cell),
        config=Config(KernelManager={"transport": "ipc", "ip": sockets}) if sockets else Config(),
    )
    client.execute()
    return list(notebook.cells)


def printed(cells: Iterable[Any]) -> str:
    """Return the text that cells have printed."""
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))
