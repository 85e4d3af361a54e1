"""What the tasks of P12 do: light steps that record ten points each, or do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

SERIES = 10
STEP = 0.01  # seconds, of which COMPUTE are spent computing
COMPUTE = 0.001
NAMES = [f"s{number}" for number in range(SERIES)]


def record(steps: int) -> None:
    """Make steps at 100 a second and record ten points in each."""
    log = recorder()
    due = time.perf_counter()
    for number in range(steps):
        due += STEP
        step(due)
        log(number)


def step(until: float) -> None:
    """Compute for a millisecond, and wait until a time (of perf_counter)."""
    end = time.perf_counter() + COMPUTE
    x = np.ones((64, 64), np.float32)
    while time.perf_counter() < end:
        x = np.tanh(x @ x)
    time.sleep(max(0.0, until - time.perf_counter()))


def compare(seconds: int, folder: str) -> None:
    """Record in every other second of the day, all tasks in the same; keep how long each step took."""
    import nbdist as nb

    log = recorder()
    taken: dict[bool, list[float]] = {True: [], False: []}
    number, end = 0, time.time() + seconds
    while (now := time.time()) < end:
        on = int(now) % 2 == 0
        begin = time.perf_counter()
        step(begin + STEP)
        if on:
            log(number)
        if int(time.time()) == int(now):  # else it was one of both kinds
            taken[on].append(time.perf_counter() - begin)
        number += 1
    np.savez(Path(folder) / f"{nb.task.rank}.npz", recorded=taken[True], plain=taken[False])


def recorder() -> Callable[[int], None]:
    """Return what records the ten points of a step."""
    import nbdist as nb

    def log(number: int) -> None:
        nb.log({name: number * 1000.0 + index for index, name in enumerate(NAMES)}, step=number)

    return log
