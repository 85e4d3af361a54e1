"""Folders of runs that never were, and what ``nb.compare`` leaves in a notebook of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.metrics.log import POINT, LogWriter, log_path
from nbdist.metrics.names import EPOCH
from nbdist.metrics.run_folder import RunFile
from nbdist.ui.compare.comparison import Comparison
from nbdist.ui.runs import runs

NAMES = ("baseline", "two workers, larger batches", "no decay", "<b>bold</b>")
PASS = 50  # steps


def write_compared(folder: Path, count: int = 3, steps: int = 400) -> Path:
    """Write run folders whose rates, lengths and strategies differ, and return the folder of all."""
    for at in range(count):
        run = RunFile(
            f"26112{at}-digits", name=NAMES[at % len(NAMES)], status="stopped" if at == 2 else "finished",
            created=1_764_000_000.0 + 60 * at, seed=at, code=f"lr = {0.1 / (at + 1):.3f}\nmodel.fit(data)",
            versions={"numpy": f"2.{at}.0"}, cluster={"workers": [0, 1][: at + 1]},
            options={"strategy": ("multi_worker", "ps", "one_device")[at % 3], "synchronous": at != 1},
        )  # fmt: skip
        own = folder / run.id
        own.mkdir(parents=True)
        (own / "run.json").write_text(json.dumps(vars(run)))
        write_points(own, at, steps - 60 * at)
    return folder


def write_points(folder: Path, at: int, steps: int) -> None:
    """Write a log with loss and accuracy, validation after each epoch, and where epochs begin."""
    noise = np.random.default_rng(at)
    step = np.arange(steps)
    loss = 2.2 * np.exp(-step / (60 + 40 * at)) + 0.1 + 0.03 * at
    ends = np.arange(PASS, steps + 1, PASS)
    columns = {
        "loss": (step, loss + noise.normal(0, 0.05, steps)),
        "accuracy": (step, 1 - loss / 2.6 + noise.normal(0, 0.02, steps)),
        "val_loss": (ends, loss[ends - 1] + 0.06),
        "val_accuracy": (ends, 0.97 - loss[ends - 1] / 2.6),
        EPOCH: (ends - PASS, np.arange(1, len(ends) + 1)),
    }
    points = np.zeros(sum(len(xs) for xs, _ in columns.values()), POINT)
    points["step"] = np.concatenate([xs for xs, _ in columns.values()])
    points["value"] = np.concatenate([ys for _, ys in columns.values()])
    points["series"] = np.repeat(np.arange(len(columns)), [len(xs) for xs, _ in columns.values()])
    points["time"] = 1_764_000_000.0 + points["step"] * 0.02 * (1 + at)
    writer = LogWriter(log_path(folder, 0), 0, print)
    writer.append(list(columns), points)
    writer.close()


def compared(folder: Path, count: int = 3, **options: Any) -> Comparison:
    """Return a comparison of such runs, which are written into a folder."""
    return runs(folder=write_compared(folder, count))[::-1].compare(**options)
