"""Saved notebooks with the outputs of runs and sweeps that never were: nothing is trained to show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from runs_to_show import add_points, summary

from nbdist.metrics.store import RunStore
from nbdist.ui.frozen import frozen


def run_bundle(title: str = "digits", *, replicas: int = 2, steps: int = 400) -> dict[str, Any]:
    """What a run leaves in a notebook."""
    store = RunStore()
    add_points(store, replicas, 0, steps, steps)
    return frozen(store, summary(title, replicas, steps))


def write_saved(path: Path, bundles: Sequence[Mapping[str, Any]]) -> None:
    """Write a notebook with an output for each bundle; it has no kernel, and nobody has signed it."""
    cells = []
    for bundle in bundles:
        output = nbformat.v4.new_output("display_data", data=dict(bundle))  # type: ignore[no-untyped-call]
        cells.append(nbformat.v4.new_code_cell("...", outputs=[output]))  # type: ignore[no-untyped-call]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)  # type: ignore[no-untyped-call]
