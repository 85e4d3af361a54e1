"""P12: 8 tasks record 1,000 points a second each: the cost, and whether all points arrive.

A step computes for a millisecond and waits for nine, as one that waits for an accelerator does: 8 tasks of
100 steps a second fit on two cores. A stand-in for a page (see notebook.py) displays the live view.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import psutil

from bench.notebook import Notebook

TASKS, SERIES, STEPS_A_SECOND = 8, 10, 100
SECONDS = 25  # of recording; the figures are of the last SECONDS - WARM_UP of them
WARM_UP = 4
PATIENCE = 5.0  # times as long a busy machine may take
RECORD = """
from bench import points_body
points_body.record({steps})
"""
COMPARE = """
from bench import points_body
points_body.compare({seconds}, {folder!r})
"""


@dataclass(frozen=True)
class Sample:
    """The totals at a time: CPU seconds of the kernel, messages to the page."""

    time: float
    cpu: float
    messages: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps(measure(options.tasks, options.seconds, Path(home))))


def measure(tasks: int, seconds: int, home: Path) -> dict[str, float]:
    """Return the figures of P12."""
    own = {"NBDIST_HOME": str(home / "nbdist"), "IPYTHONDIR": str(home / "ipython")}
    times = home / "times"
    times.mkdir()
    with Notebook(own) as notebook:
        notebook.run("%load_ext nbdist")
        notebook.run(f"%cluster start --workers {tasks} --threads 1")
        try:
            body = RECORD.format(steps=seconds * STEPS_A_SECOND)
            samples, folder = followed(notebook, f"%%distribute\n{body}", PATIENCE * seconds + 30)
            compared = COMPARE.format(seconds=seconds, folder=str(times))
            notebook.run(f"%%distribute\n{compared}", PATIENCE * seconds + 30)
        finally:
            notebook.run("%cluster stop")
    begin, end = steady(samples, seconds)
    lasted = end.time - begin.time
    made = tasks * seconds * STEPS_A_SECOND * SERIES
    return {
        "points lost on disk": made - arrived(folder, seconds * STEPS_A_SECOND),
        "step time, recorded against not": 100 * step_ratio(times, middle),
        "the same, medians": 100 * step_ratio(times, lambda ordered: float(np.median(ordered))),
        "messages to the browser": (end.messages - begin.messages) / lasted,
        "CPU of the kernel": 100 * (end.cpu - begin.cpu) / lasted,
        "points recorded": recorded(folder, tasks),
    }


def followed(notebook: Notebook, cell: str, patience: float) -> tuple[list[Sample], Path]:
    """Run a cell; return what kernel and page did from its first frame on, and the folder of its run."""
    kernel = psutil.Process(notebook.pid)
    samples: list[Sample] = []

    def sample() -> None:
        if notebook.page.frames and (not samples or time.monotonic() - samples[-1].time > 0.25):
            spent = kernel.cpu_times()
            messages = sum(notebook.counts.values())
            samples.append(Sample(time.monotonic(), spent.user + spent.system, messages))

    notebook.run(cell, patience, while_running=sample)
    return samples, Path(notebook.run("print(run.folder)")[1].strip())


def steady(samples: list[Sample], seconds: float) -> tuple[Sample, Sample]:
    """Return the first and the last sample of the steady state.

    Recording takes ``seconds`` or more. The final figure, drawn at the end, is not counted.
    """
    begin = samples[0].time
    there = [sample for sample in samples if begin + WARM_UP <= sample.time <= begin + seconds - 1]
    return there[0], there[-1]


def arrived(folder: Path, steps: int) -> int:
    """Return how many of the recorded points are in the logs with their values, without duplicates."""
    from nbdist.metrics.log import logs_in, read_log

    right = 0
    for path in logs_in(folder):
        log = read_log(path)
        for series, name in log.names.items():
            points = log.points[log.points["series"] == series]
            wanted = np.arange(steps) * 1000.0 + int(name.removeprefix("s"))
            found = np.unique(points[["step", "value"]])
            inside = found[found["step"] < steps]
            right += int((inside["value"] == wanted[inside["step"]]).sum())
    return right


def recorded(folder: Path, tasks: int) -> float:
    """Return the points that each task recorded in a second."""
    from nbdist.metrics.log import logs_in, read_log

    logs = [read_log(path).points["time"] for path in logs_in(folder)]
    lasted = max(times.max() for times in logs) - min(times.min() for times in logs)
    return float(sum(len(times) for times in logs) / tasks / lasted)


def step_ratio(times: Path, of: Callable[[Any], float]) -> float:
    """Return how long steps took that recorded, in those that did not; each task did both in turn."""
    ratios: list[float] = []
    for path in sorted(times.iterdir()):
        with_, without = (np.sort(one) for one in np.load(path).values())
        ratios.append(of(with_) / of(without))
    return mean(ratios)


def middle(ordered: Any) -> float:
    """Return the mean without the lowest and highest twentieth."""
    cut = len(ordered) // 20
    return float(np.mean(ordered[cut : len(ordered) - cut]))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    main()
