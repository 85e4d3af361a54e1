"""Stragglers: found in simulated progress reports with noise, and on real engines that are slowed."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording_view import RecordingView
from tiers import matrix
from waiting import until

from nbdist.metrics.store import RunStore
from nbdist.run.options import Options
from nbdist.run.progress import ProgressTracker, Standing, Stragglers
from nbdist.run.recovery import failure_detector
from nbdist.run.recovery.member import Members, State
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.run.values import backfill
from nbdist.runtime.task import TaskInfo

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

STEP = 0.05


class SimulatedReplicas:
    """Replicas that step in simulated time and report ten times a second, each at its own phase."""

    def __init__(self, seed: int, count: int, noise: float) -> None:
        self.random = random.Random(seed)
        self.noise = noise
        self.stragglers = Stragglers(count)
        self.factor = [1.0] * count
        self.step, self.busy, self.end = [0] * count, [0.0] * count, [0.0] * count
        self.phase = [self.random.uniform(0, 0.1) for _ in range(count)]
        self.now = 0.0

    def until(self, seconds: float) -> Iterator[int]:
        """Advance the time, and yield the replica after each of its reports."""
        while self.now < seconds:
            self.now += 0.1
            for i, phase in enumerate(self.phase):
                while self.end[i] <= self.now + phase:
                    took = STEP * self.factor[i] * math.exp(self.random.gauss(0, self.noise))
                    self.end[i] += took
                    self.busy[i] += took
                    self.step[i] += 1
                self.stragglers.update(
                    i, self.step[i], {"compute": self.busy[i], "wait": 9.0 * self.now}, self.now
                )
                yield i


@given(st.integers(0, 10**6), st.integers(2, 16), st.floats(0, 0.05), st.floats(1.3, 4), st.booleans())
def test_a_slow_replica_is_found_within_20_of_its_steps(
    seed: int, count: int, noise: float, factor: float, from_start: bool
) -> None:
    world = SimulatedReplicas(seed, count, noise)
    if not from_start:
        for _ in world.until(3.0):
            pass
    began = world.step[1]
    world.factor[1] = factor
    for _ in world.until(world.now + 20 * STEP * factor):
        if world.stragglers.slowness(1) is not None:
            break
    assert world.stragglers.slowness(1) is not None
    assert world.step[1] - began <= 20
    for _ in world.until(world.now + 2.0):
        assert all(world.stragglers.slowness(i) is None for i in range(count) if i != 1)
    times = world.stragglers.slowness(1)
    assert times is not None
    assert times == pytest.approx(factor, rel=0.15)
    world.factor[1] = 1.0
    for _ in world.until(world.now + 3.0):
        pass
    assert world.stragglers.slowness(1) is None


@given(st.integers(0, 10**6), st.integers(2, 16), st.floats(0, 0.1))
def test_equal_replicas_have_no_straggler(seed: int, count: int, noise: float) -> None:
    world = SimulatedReplicas(seed, count, noise)
    for _ in world.until(10.0):
        assert all(world.stragglers.slowness(i) is None for i in range(count))


@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.05, 5.0), st.floats(0, 0.05))
def test_a_single_pause_is_no_straggler(seed: int, count: int, pause: float, noise: float) -> None:
    """Garbage collection, validation or a checkpoint makes one step long."""
    world = SimulatedReplicas(seed, count, noise)
    for _ in world.until(2.5):
        pass
    world.end[0] += pause
    world.busy[0] += pause
    for _ in world.until(world.now + 6.0):
        assert all(world.stragglers.slowness(i) is None for i in range(count))


@pytest.mark.parametrize(("busy", "times"), [(0.03, 1.67), (0.012, None)], ids=["long", "short"])
def test_what_a_framework_transfers_counts_in_every_step(busy: float, times: float | None) -> None:
    """Replicas wait 20 ms for a transfer, and for the last one, which computes for ``busy`` and not 10 ms."""
    stragglers = Stragglers(3)
    for step in range(100):
        now = step * (busy + 0.02)
        for i, mine in enumerate((0.01, busy, 0.01)):
            spent = {"compute": step * mine, "wait": step * (0.02 + busy - mine)}
            stragglers.update(i, step, spent, now, transfers_in_waits=True)
    assert [stragglers.slowness(i) for i in range(3)] == [None, times, None]


def test_a_single_replica_is_not_slow() -> None:
    world = SimulatedReplicas(0, 1, 0.5)
    for _ in world.until(5.0):
        assert world.stragglers.slowness(0) is None


def test_replicas_in_different_trainings_are_not_compared() -> None:
    stragglers = Stragglers(2)
    for tenth in range(50):
        stragglers.update(0, tenth, {"compute": 0.1 * tenth}, 0.1 * tenth, training=1)
        stragglers.update(1, tenth, {"compute": 0.9 * tenth}, 0.1 * tenth, training=2)
    assert stragglers.slowness(1) is None


def test_long_steps_need_at_most_13_steps() -> None:
    stragglers = Stragglers(3)
    for tenth in range(3_000):
        now = tenth / 10
        for i, step in enumerate((5.0, 5.0, 6.5)):
            made = int(now / step)
            stragglers.update(i, made, {"data": made * step}, now)
        if stragglers.slowness(2):
            break
    assert 10 <= int(now / 6.5) <= 13


def report(step: int, busy: float, state: str = "running") -> dict[str, Any]:
    return {
        "step": step, "total": 100, "examples": step, "state": state, "trainings": 1, "dropped": 0,
        "skipped": 0, "spent": {"data": busy / 2, "compute": busy / 2, "exchange": 0.0, "wait": 5.0},
    }  # fmt: skip


def standing(tally: ProgressTracker, now: float) -> Standing:
    return tally.standing(now, RunStore())


def test_a_straggler_is_reported_while_it_trains() -> None:
    members = Members([TaskInfo("worker", i, i, "here", 7, "", "", 1) for i in range(3)])
    tally = ProgressTracker(3, synchronous=False, members=members.workers)
    for tenth in range(30):
        for i, step in enumerate((0.05, 0.05, 0.1)):
            tally.update(i, report(int(tenth / 10 / step), tenth / 10), tenth / 10)
    replicas = standing(tally, 3.0).replicas
    assert [replica.state for replica in replicas] == ["running", "running", "straggler"]
    assert [replica.slowness for replica in replicas] == [None, None, 2.0]
    assert standing(tally, 3.0).state == "running"
    tally.update(2, report(30, 3.0, "waiting for the others"), 3.1)
    assert standing(tally, 3.1).replicas[2].state == "waiting for the others"
    assert standing(tally, 3.1).replicas[2].slowness is None
    tally.update(2, report(31, 3.1), 3.2)
    assert standing(tally, 3.2).replicas[2].state == "straggler"
    members.workers[2].move(State.LOST)
    tally.lose(2, 3.3)
    assert standing(tally, 3.3).replicas[2].state == "lost"


def test_a_replica_without_reports_is_silent() -> None:
    tally = ProgressTracker(3, synchronous=True)
    tally.update(0, report(1, 0.1), 0.0)
    tally.update(1, report(1, 0.1), 0.0)
    tally.update(0, report(20, 1.9), 1.9)
    assert [r.state for r in standing(tally, 1.9).replicas] == ["running", "running", "starting"]
    tally.update(0, report(22, 2.2), 2.1)
    assert [r.state for r in standing(tally, 2.1).replicas] == ["running", "silent", "starting"]
    tally.update(1, report(2, 0.2), 2.2)
    assert standing(tally, 2.2).replicas[1].state == "running"
    assert standing(tally, 60.0).replicas[1].state == "running"  # no reports at all: the notebook was busy
    tally.update(1, report(3, 0.3, "finished"), 2.3)
    tally.update(0, report(99, 9.0), 9.0)
    assert standing(tally, 9.0).replicas[1].state == "finished"


# A factor of 3, because other load on the cores makes all steps longer and would hide a factor of 1.4.
LOOP = """
import time
import numpy as np
strategy = nb.get_strategy()
with strategy.scope():
    w = nb.Variable(np.zeros(3, np.float32), name="w")
    optimizer = nb.optim.SGD(0.1)
def step(x):
    loss = np.mean((x @ w - 1.0) ** 2)
    optimizer.minimize(loss)
    return loss
data = nb.data.Dataset.from_arrays(np.ones((12, 3), np.float32)).repeat().batch(3)
for x in strategy.distribute_dataset(data):
    time.sleep(0.05 * (3.0 if nb.task.index == 1 else 1.0))
    strategy.run(step, (x,))
"""
FIT = """
import time
import numpy as np
def work(x, y):
    time.sleep(0.05 * (3.0 if nb.task.index == 1 else 1.0))
    return x, y
x, y = np.ones((60, 3), np.float32), np.ones((60, 2), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(2)])
model.compile(nb.optim.SGD(0.01), "mse")
model.fit(nb.data.Dataset.from_arrays(x, y).repeat().batch(3).map(work), steps_per_epoch=400, epochs=1)
"""


@pytest.fixture
def begin(cluster: Cluster) -> Iterator[Callable[..., Run]]:
    begun: list[Run] = []

    def begin_one(body: Any, **options: Any) -> Run:
        begun.append(
            start_run(body, Options(**options), cluster=cluster, make_view=lambda run: RecordingView())
        )
        return begun[-1]

    yield begin_one
    for run in begun:
        if not run.over:  # after a failed test, free the cluster for the next one
            run.stop()
            run.wait()


def stragglers_of(run: Run) -> dict[int, float]:
    replicas = run.tally.standing(time.monotonic(), run.store).replicas
    return {i: r.slowness for i, r in enumerate(replicas) if r.state == "straggler" and r.slowness}


@pytest.mark.engines
@pytest.mark.parametrize(
    ("body", "options"),
    matrix(
        [
            pytest.param(FIT, {"strategy": "ps"}, id="fit-ps-async"),
            pytest.param(FIT, {"strategy": "ps", "synchronous": True}, id="fit-ps-sync"),
            pytest.param(LOOP, {"strategy": "multi_worker"}, id="loop-all-reduce"),
        ],
        rest=[
            pytest.param(FIT, {"strategy": "multi_worker"}, id="fit-all-reduce"),
            pytest.param(LOOP, {"strategy": "ps"}, id="loop-ps-async"),
        ],
    ),
)
def test_a_slow_worker_is_found(begin: Callable[..., Run], body: str, options: dict[str, Any]) -> None:
    run = begin(body, **options)
    until(lambda: 1 in stragglers_of(run), during=run)
    run.stop()
    run.wait()


TOWERS = """
import numpy as np
x, y = np.ones((120, 300), np.float32), np.ones((120, 10), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(1200, "tanh"), nb.nn.Dense(1200, "tanh"), nb.nn.Dense(10)])
model.compile(nb.optim.SGD(0.01), "mse")
model.fit(nb.data.Dataset.from_arrays(x, y).repeat().batch(60), steps_per_epoch=10**6)
"""


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stop a process most of the time, several times in each step, as if it shared its core."""
    over = threading.Event()

    def halt() -> None:
        while not over.wait(0.002):
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.006)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=halt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.engines
@pytest.mark.parametrize("synchronous", matrix([True], rest=[False]))
def test_a_slow_tower_is_found(begin: Callable[..., Run], cluster: Cluster, synchronous: bool) -> None:
    run = begin(TOWERS, replication="in-graph", strategy="ps", synchronous=synchronous)
    with slowed(cluster.tasks[1].pid):
        until(lambda: 1 in stragglers_of(run), during=run)
    run.stop()
    run.wait()


@pytest.mark.engines
def test_a_frozen_worker_is_silent_until_it_reports_again(
    begin: Callable[..., Run], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(failure_detector, "MEMBER_FROZEN_SECONDS", 600.0)  # it does not count as lost before
    trains = {"running", "straggler"}
    run = begin(FIT.replace("400", "4000"), strategy="one_device")  # parameter servers would evict it

    def state(replica: int) -> str:
        return run.standing().replicas[replica].state

    until(lambda: state(1) in trains, during=run)
    pid = cluster.tasks[1].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: state(1) == "silent" and state(0) in trains, during=run)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: state(1) in trains, during=run)
    run.stop()
    run.wait()
