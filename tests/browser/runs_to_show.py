"""What a notebook's cell imports to show a run that never trained: invented curves, fed as a driver feeds."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from nbdist.metrics.store import RunStore
from nbdist.ui.display.run import LiveDisplay
from nbdist.ui.frozen.summary import Summary
from nbdist.ui.widgets.run import LiveView

HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"


def workers(count: int) -> list[str]:
    return [f"/job:worker/task:{index}" for index in range(count)]


def add_points(
    store: RunStore, replicas: int, start: int, count: int, of: int, metric: str = "accuracy"
) -> None:
    """Add what ``replicas`` training loops would have measured at ``count`` steps."""
    rng = np.random.default_rng(start)
    steps = np.arange(start, start + count)
    now = np.full(count, time.time())
    for replica in range(replicas):
        noise = rng.standard_normal((2, count)) * [[0.06], [0.012]]
        loss = 2.2 * np.exp(-5 * steps / of) + 0.12 + 0.02 * replica / replicas
        store.extend(replica, "loss", steps, loss * (1 + noise[0]), now)
        store.extend(replica, metric, steps, 0.97 - 0.85 * np.exp(-6 * steps / of) + noise[1], now)
        store.extend(replica, "staleness", steps, rng.integers(0, 4, count), now)
    at = steps[steps % max(1, of // 12) == 0]
    if len(at):
        store.extend(0, "val_loss", at, 2.2 * np.exp(-4.6 * at / of) + 0.21, np.full(len(at), time.time()))
        store.extend(
            0, f"val_{metric}", at, 0.94 - 0.85 * np.exp(-6 * at / of), np.full(len(at), time.time())
        )


def status(replicas: int, step: int, of: int, elapsed: float) -> dict[str, Any]:
    speed = step / max(elapsed, 1e-3)
    return {
        "state": "running", "step": step, "total": of, "elapsed": elapsed, "steps_per_second": speed,
        "examples_per_second": 100 * speed, "seconds_left": (of - step) / max(speed, 1e-3),
        "per_replica": {
            replica: {
                "state": "straggler" if replica == 2 else "running", "step": step // replicas,
                "steps_per_second": speed / replicas, "staleness": replica % 4,
                "spent": {"data": 0.1, "compute": 1.0, "exchange": 0.3, "wait": 0.2 + 0.1 * (replica % 3)},
            }
            for replica in range(replicas)
        },
    }  # fmt: skip


async def feed(
    shown: LiveView | LiveDisplay | Both,
    store: RunStore,
    replicas: int,
    of: int,
    *,
    seconds: float = 2.0,
    metric: str = "accuracy",
    until: Callable[[], bool] = lambda: True,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Feed ``of`` steps over about ``seconds``, then tick until a condition holds."""
    began, chunk = time.monotonic(), max(1, of // 40)
    for step in range(0, of, chunk):
        add_points(store, replicas, step, min(chunk, of - step), of, metric)
        shown.progress(status(replicas, min(step + chunk, of), of, time.monotonic() - began))
        if step % (chunk * 8) == 0:
            shown.output(workers(1)[0], f"step {step}: all is well\n")
        shown.tick(time.monotonic())
        await pause(seconds / 40)
    while not until():
        shown.tick(time.monotonic())
        await pause(0.02)


def summary(title: str, replicas: int, of: int, state: str = "finished") -> Summary:
    return Summary(
        "run-1", title, state, workers(replicas), step=of, seconds=12.3, steps_per_second=of / 12.3,
        metrics={"loss": 0.1312, "accuracy": 0.9698, "val_loss": 0.2174, "val_accuracy": 0.9379},
        rows=[{"task": f"worker {r}", "steps": of // replicas, "steps/s": 41.27} for r in range(replicas)],
    )  # fmt: skip


class LossyView(LiveView):
    """A live view whose connection loses 30% of its frames, except the last one."""

    lost = 0
    rng = random.Random(0)

    def send(self, content: Any, buffers: Any = None) -> None:
        if not self.finished and self.rng.random() < 0.3:
            LossyView.lost += 1
        else:
            super().send(content, buffers)


def settled(view: LiveView) -> bool:
    """Whether a page has drawn all that there is."""
    feed = view.feed
    unread = feed.store.entries_since(feed.cursor)[0] != feed.cursor  # points came while no page looked
    to_send = view.snapshot_wanted or view.new or feed.waiting or feed.changed or unread
    return bool(view.flow.visible_views) and not (to_send or view.flow.in_flight)


def drawn(shown: LiveDisplay) -> bool:
    """Whether a page has drawn all that there is; where there is no page, there is nothing to wait for."""
    return shown.view is None or settled(shown.view)


async def looked_at(shown: LiveDisplay) -> None:
    """Wait for a page to look, however long it takes to load what it shows: it sees a run from its start."""
    while shown.view is not None and not shown.view.flow.visible_views:
        shown.tick(time.monotonic())
        await asyncio.sleep(0.02)


async def shown_whole(view: LiveView, state: str = "running") -> None:
    """Tick until a page has drawn all that there is."""
    view.progress({"state": state})
    while not settled(view):
        view.tick(time.monotonic())
        await asyncio.sleep(0.02)


class Both:
    """Several views of one run, fed alike."""

    def __init__(self, *views: LiveView) -> None:
        self.views = views

    def progress(self, status: dict[str, Any]) -> None:
        for view in self.views:
            view.progress(status)

    def output(self, task: str, text: str) -> None:
        for view in self.views:
            view.output(task, text)

    def tick(self, now: float) -> None:
        for view in self.views:
            view.tick(now)
