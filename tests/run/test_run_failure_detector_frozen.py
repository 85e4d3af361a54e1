"""Frozen tasks of a run (SIGSTOP), with every kind of parameter server, and tasks that only seem frozen."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from freezing import freeze
from recording_view import RecordingView
from tiers import matrix
from waiting import PATIENCE, limit, until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, TaskDiedError, UnavailableError
from nbdist.run.options import Options
from nbdist.run.recovery import failure_detector, shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.runtime.task import TaskInfo

pytestmark = pytest.mark.engines

FIT = """
import threading
import numpy as np
def slow(*batch):  # while a test waits for something else, the engines need the processor little
    threading.Event().wait(0.005)
    return batch
x, y = np.eye(16, 4, dtype=np.float32), np.arange(16) % 3
model = nb.nn.Sequential([nb.nn.Dense(3, activation="softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
model.fit(nb.data.Dataset.from_arrays(x, y).batch(8).map(slow), epochs={epochs})
"""
ENDLESS = FIT.format(epochs=10_000_000)
BOUND = 10.0  # within which a frozen task is noticed


def trains(run: Run) -> Callable[[], bool]:
    # A backup that is always late has no point of its own yet.
    return lambda: len(run.store.replicas) >= len(run.tasks) - (run.options.backups or 0)


def continue_and_wait_until_free(cluster: Cluster, info: TaskInfo) -> None:
    """Continue a frozen process, and wait until its task has left the earlier run and accepts a new one."""
    os.kill(info.pid, signal.SIGCONT)
    deadline, pause = time.monotonic() + 10 + PATIENCE, threading.Event()
    while True:
        try:
            start_run("1", Options(on=f"worker:{info.index}"), cluster=cluster).wait()
            return
        except (FailedPreconditionError, UnavailableError):
            assert time.monotonic() < deadline, f"{info.name} is still in its old run"
            pause.wait(0.1)


@pytest.fixture(scope="module")
def quick_cluster(own_home: Any) -> Iterator[Cluster]:
    """A cluster with a parameter server that considers a process frozen after half a second."""
    from nbdist.cluster.launch import start_cluster

    cluster = start_cluster(workers=4, ps=1, report=None)
    rank = next(info.rank for info in cluster.tasks if info.job == "ps")
    hurry = "import nbdist.runtime.ps.service as p; p.RANK_FROZEN_SECONDS, p.LOOK_SECONDS = 0.5, 0.1"
    cluster.run(hurry, on=rank)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize(
    "options",
    matrix(
        [{}, {"synchronous": True, "backups": 1, "transport": "socket"}],
        rest=[{"transport": "socket"}, {"staleness": 1}, {"synchronous": True, "backups": 1}],
    ),
    ids=str,
)
def test_training_continues_without_a_frozen_worker(quick_cluster: Cluster, options: dict[str, Any]) -> None:
    view = RecordingView()
    run = start_run(
        ENDLESS,
        Options(strategy="ps", max_restarts=0, **options),
        cluster=quick_cluster,
        make_view=lambda run: view,
    )
    until(trains(run), during=run)
    info = next(info for info in quick_cluster.tasks if info.name == "/job:worker/task:1")
    freeze(info.pid)
    try:
        until(lambda: "training continues on 3 workers" in view.text.get(info.name, ""), during=run)
        assert f"{info.name} (pid {info.pid}) is frozen" in view.text[info.name]
        steps = run.standing().step
        until(lambda: run.standing().step > steps, during=run)
        run.stop()
        run.wait()
    finally:
        os.kill(info.pid, signal.SIGCONT)
    assert run.error is None
    continue_and_wait_until_free(quick_cluster, info)
    again = start_run(FIT.format(epochs=1), Options(strategy="ps", **options), cluster=quick_cluster).wait()
    assert all(outcome["trainings"] == 1 for outcome in again.outcomes.values())


def test_a_worker_that_continues_later_is_refused(quick_cluster: Cluster) -> None:
    view = RecordingView()
    options = Options(strategy="ps", max_restarts=0)
    run = start_run(ENDLESS, options, cluster=quick_cluster, make_view=lambda run: view)
    until(trains(run), during=run)
    info = next(info for info in quick_cluster.tasks if info.name == "/job:worker/task:1")
    freeze(info.pid)
    until(lambda: "training continues on 3 workers" in view.text.get(info.name, ""), during=run)
    continue_and_wait_until_free(quick_cluster, info)
    steps = run.standing().replicas[0].step
    until(lambda: run.standing().replicas[0].step > steps, during=run)
    run.stop()
    run.wait()
    assert run.error is None


def test_a_synchronous_run_that_needs_a_frozen_worker_ends_and_names_it(
    quick_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 1.0)
    options = Options(strategy="ps", synchronous=True, max_restarts=0)
    run = start_run(ENDLESS, options, cluster=quick_cluster)
    until(trains(run), during=run)
    info = next(info for info in quick_cluster.tasks if info.name == "/job:worker/task:1")
    freeze(info.pid)
    with pytest.raises(TaskDiedError, match=rf"{info.name} \(pid {info.pid}\) is frozen"):
        run.wait()
    # It does not stop, because it is frozen, and is replaced.
    assert next(one.pid for one in quick_cluster.tasks if one.name == info.name) != info.pid
    again = start_run(
        FIT.format(epochs=1), Options(strategy="ps", synchronous=True), cluster=quick_cluster
    ).wait()
    assert all(outcome["trainings"] == 1 for outcome in again.outcomes.values())


def test_a_frozen_and_a_killed_worker_are_noticed_in_ten_seconds(
    start: Callable[..., Cluster], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, view = start(workers=3, ps=1), RecordingView()
    options = Options(strategy="ps", max_restarts=0)  # a new process would change the number that is left
    run = start_run(ENDLESS, options, cluster=cluster, make_view=lambda run: view)
    until(trains(run), during=run)
    frozen, killed = (next(i for i in cluster.tasks if i.name == f"/job:worker/task:{n}") for n in (1, 2))
    freeze(frozen.pid)
    begun = time.monotonic()
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: "training continues on 2 workers" in view.text.get(killed.name, ""), during=run)
    until(lambda: "training continues on 1 worker" in view.text.get(frozen.name, ""), during=run)
    assert time.monotonic() - begun < limit(BOUND)
    run.stop()
    run.wait()
    assert run.error is None
    died, stood = run.notes
    assert died.startswith(f"{killed.name} (pid {killed.pid}) died: ")
    assert died.endswith("training continued on 2 workers; it is not replaced, as --max-restarts 0 asks")
    assert stood.startswith(f"{frozen.name} (pid {frozen.pid}) is frozen")
    assert stood.endswith("training continued on 1 worker; it is not replaced, as --max-restarts 0 asks")
    assert capsys.readouterr().out.splitlines() == run.notes
    os.kill(frozen.pid, signal.SIGCONT)


def test_a_run_whose_only_worker_is_frozen_ends(
    start: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "MEMBER_FROZEN_SECONDS", 0.5)
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 1.0)
    cluster = start(workers=1, ps=1)
    run = start_run(ENDLESS, Options(strategy="ps"), cluster=cluster)
    until(trains(run), during=run)
    info = next(info for info in cluster.tasks if info.job == "worker")
    freeze(info.pid)
    with pytest.raises(
        TaskDiedError, match=rf"{info.name} \(pid {info.pid}\) is frozen: its process has been"
    ):
        run.wait()
    assert start_run("1", Options(), cluster=cluster).wait().error is None


def test_a_worker_that_holds_the_interpreter_is_not_frozen(
    quick_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "MEMBER_FROZEN_SECONDS", 0.5)
    hold = """
import ctypes
def hold(x, y):  # a native call that keeps the GIL, for far longer than a frozen process is waited for
    if nb.task.index == 1:
        ctypes.PyDLL(None).usleep(900_000)
    return x, y
model.fit(nb.data.Dataset.from_arrays(x, y).batch(8).map(hold), epochs=1)
"""
    run = start_run(
        FIT.format(epochs=1) + hold, Options(strategy="ps", synchronous=True), cluster=quick_cluster
    ).wait()
    assert run.error is None
    assert all(outcome["trainings"] == 2 for outcome in run.outcomes.values())
