"""Helpers for tests of sweeps on engines: bodies with gates, waiting with a limit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from waiting import until

from nbdist.metrics.log import read_log
from nbdist.trials.sweep import Sweep

PATIENCE = 120.0

COUNTED = """
import os
def note(what, folder={folder!r}):
    os.close(os.open(os.path.join(folder, what), os.O_CREAT | os.O_EXCL))
"""
"""Creates a marker file in the folder; a second one of the same name is an error."""

GATED = (
    COUNTED
    + """
import time
note(f"began-{{number}}-{{os.getpid()}}-{{time.time_ns()}}")
while not os.path.exists(os.path.join({folder!r}, "open")) and not os.path.exists(
    os.path.join({folder!r}, f"open-{{number}}")
):
    time.sleep(0.005)
accuracy = float(number)
"""
)
"""A trial that waits for a file "open", or "open-<its number>"."""

TRAIN = """
import numpy as np
rng = np.random.default_rng(0)
y = np.arange(60) % 3
x = (rng.normal(size=(60, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.{optimizer}(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
data = nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(20)
history = model.fit(data, epochs={epochs}, validation_data=(x, y), callbacks={callbacks})
"""


def finished(sweep: Sweep, seconds: float = PATIENCE) -> Sweep:
    """Wait for a sweep's end, with a limit."""
    until(lambda: sweep.over, seconds)
    return sweep.conclude()


def began(folder: Path, number: int | None = None) -> list[str]:
    """Return the marker files of trials that have begun."""
    start = "began-" if number is None else f"began-{number}-"
    return sorted(one for one in os.listdir(folder) if one.startswith(start))


def states(sweep: Sweep) -> list[str]:
    """Return the state of each trial by number."""
    return [trial.state for trial in sweep.trials]


def losses(sweep: Sweep, number: int, series: str = "loss") -> dict[int, float]:
    """Return a trial's logged values of a series by step; the newest of several logs counts."""
    found: dict[int, float] = {}
    folder = sweep.folder / "trials" / f"{number:06d}"
    for path in sorted(folder.glob("metrics-*.log"), key=lambda path: path.stat().st_mtime_ns):
        log = read_log(path)
        for one in log.points:
            if log.names[int(one["series"])] == series:
                found[int(one["step"])] = float(one["value"])
    return found


def kill(sweep: Sweep, rank: int, signum: int = signal.SIGKILL) -> int:
    """Signal the engine of a rank; return its process id."""
    pid = next(info.pid for info in sweep.cluster.tasks if info.rank == rank)
    os.kill(pid, signum)
    return pid


ONCE = (
    COUNTED
    + """
import sys, time
attempt = sys._getframe().f_code.co_filename.rstrip(">").split(".", 1)[1]
note(f"attempt-{{attempt}}-on-{{nb.task.rank}}")
note(f"began-{{number}}-{{os.getpid()}}-{{time.time_ns()}}")
for step in range(2000):
    nb.log(accuracy=float(step), step=step)
    if os.path.exists(os.path.join({folder!r}, "open")) or number % 3 == 2 and step > 20:
        break
    time.sleep(0.01)
accuracy = float(number)
note(f"ended-{{attempt}}-on-{{nb.task.rank}}")
"""
)
"""A trial that creates a marker for each attempt and rank (a second one is an error); some end early."""
