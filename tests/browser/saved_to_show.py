"""Saved notebooks with the outputs of runs and sweeps that never were: nothing is trained to show them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import nbformat
from browser_server import ROOT
from runs_to_show import HOSTILE, add_points, summary

from nbdist.metrics.store import RunStore
from nbdist.sweep.space import Space, log, uniform, when
from nbdist.ui.frozen.run import frozen
from nbdist.ui.frozen.sweep import frozen_sweep

sys.path.append(str(ROOT / "tests" / "ui"))

from sweep_shown import ShownSweep

SPACE = Space(
    {
        "lr": log(1e-4, 1e-1),
        "hidden": [32, 64, 128],
        "opt": ["sgd", "adam"],
        "momentum": when(uniform(0, 0.99), opt="sgd"),
    }
)

HOSTILE_RUN: dict[str, Any] = {
    "application/vnd.nbdist.run+json": {
        "version": 1, "run": HOSTILE, "title": HOSTILE, "state": HOSTILE, "tasks": [HOSTILE, HOSTILE],
        "unit": HOSTILE, "remarks": [HOSTILE], "metrics": {HOSTILE: 1},
        "charts": [{"title": HOSTILE, "train": HOSTILE, "validation": None}],
        "series": [{"name": HOSTILE, "replica": "mean", "kind": "trend", "steps": "0 1", "values": "1 0.5"}],
    },
    "text/html": f"<p>{HOSTILE}</p><p>{HOSTILE}<a href='javascript:alert(1)'>x</a></p>"
    "<script>alert(1)</script>"
    f"<iframe src='javascript:alert(1)'></iframe><details ontoggle=alert(1) open>{HOSTILE}</details>",
    "text/plain": HOSTILE,
}  # fmt: skip


def run_bundle(title: str = "digits", *, replicas: int = 2, steps: int = 400) -> dict[str, Any]:
    """What a run leaves in a notebook."""
    store = RunStore()
    add_points(store, replicas, 0, steps, steps)
    return frozen(store, summary(title, replicas, steps))


def sweep_bundle(trials: int = 60) -> dict[str, Any]:
    """The output of a sweep with trials in all final states, as saved in a notebook."""
    dice, sweep = Random(3), ShownSweep(SPACE, trials)
    for number in range(trials):
        parameters = SPACE.fill(lambda _, one: one.draw(dice.random()))
        state = dice.choice(["finished", "finished", "finished", "pruned", "failed"])
        last = 0.9 - (math.log10(float(str(parameters["lr"]))) + 2) ** 2 / 20 + dice.gauss(0, 0.01)
        curve = [last * (1 - math.exp(-step / 3)) for step in range(1, 4 if state == "pruned" else 13)]
        error = "ValueError: 7" if state == "failed" else ""
        sweep.run(number, parameters, curve, state=state, error=error, values={"loss": 1 - last})
    return frozen_sweep(sweep.end())


def write_saved(path: Path, bundles: Sequence[Mapping[str, Any]]) -> None:
    """Write a notebook with an output for each bundle; it is not signed."""
    cells = []
    for bundle in bundles:
        output = nbformat.v4.new_output("display_data", data=dict(bundle))  # type: ignore[no-untyped-call]
        cells.append(nbformat.v4.new_code_cell("...", outputs=[output]))  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
