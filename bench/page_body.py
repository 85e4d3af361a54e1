"""What P13's kernel does: tells a live view of 64 replicas what they would have measured, as it comes."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from nbdist.metrics.store import RunStore
from nbdist.ui.display.run import LiveDisplay

SERIES = ("loss", "accuracy")
EVERY = 0.1  # seconds between news, as they come from tasks


async def feed(seconds: float, replicas: int, rate: int) -> None:
    """Add ``rate`` points a second for each replica, half of them losses; print the frames sent a second."""
    store = RunStore()
    tasks = [f"/job:worker/task:{number}" for number in range(replicas)]
    shown = LiveDisplay(store, tasks, "many replicas", total_steps=int(seconds * rate / len(SERIES)))
    shown.show()
    assert shown.view is not None
    random = np.random.default_rng(0)
    begin = time.monotonic()
    step, news = 0, 0
    while (now := time.monotonic()) < begin + seconds:
        due = int((now - begin) * rate / len(SERIES))
        add(store, random, replicas, np.arange(step, due), seconds * rate)
        step, news = due, news + 1
        shown.progress(status(replicas, step, now - begin))
        if news % 10 == 0:
            shown.output(tasks[news // 10 % replicas], f"step {step}: all is well\n")
        shown.tick(now)
        await asyncio.sleep(max(0.0, begin + news * EVERY - time.monotonic()))
    print(f"frames a second: {shown.view.flow.sequence / seconds:.2f}")
    shown.view.finish("finished")


def add(store: RunStore, random: np.random.Generator, replicas: int, steps: np.ndarray, of: float) -> None:
    """Add noisy curves' next points."""
    times = np.full(len(steps), time.time())
    for replica in range(replicas):
        noise = random.standard_normal((2, len(steps))) * [[0.06], [0.012]]
        course = np.exp(-10 * steps / of)
        store.extend(replica, SERIES[0], steps, (0.1 + 2.2 * course) * (1 + noise[0]), times)
        store.extend(replica, SERIES[1], steps, 0.97 - 0.85 * course + noise[1], times)


def status(replicas: int, step: int, elapsed: float) -> dict[str, object]:
    """Return what a run's standing would be."""
    speed = step / max(elapsed, 1e-3)
    spent = {"data": 0.1, "compute": 1.0, "exchange": 0.3, "wait": 0.2}
    each = {"state": "running", "step": step, "steps_per_second": speed, "staleness": 1, "spent": spent}
    return {
        "state": "running",
        "step": step,
        "elapsed": elapsed,
        "steps_per_second": speed,
        "per_replica": dict.fromkeys(range(replicas), each),
    }
