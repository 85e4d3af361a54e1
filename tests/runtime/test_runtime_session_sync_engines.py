"""Synchronous replicas on engines: bodies that each drive one, and what becomes of them when one dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE, limit, until

from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines
Start = Callable[..., Cluster]


def shipped(function: Any) -> Any:
    """Let a function travel by its code, as one from a notebook does, not by the name of this module."""
    function.__module__ = "__main__"
    return function


@shipped
def train(last: int, timeout: float | None = None) -> dict[str, Any]:
    """Train one replica until the global step; return what came of it."""
    import threading
    import time

    import numpy as np

    import nbdist as nb

    task = nb.task
    workers = task.cluster.num_tasks("worker")
    setter = nb.train.replica_device_setter(
        cluster=task.cluster, worker_device=f"/job:worker/task:{task.index}"
    )
    rng = np.random.default_rng(0)
    x_all, true = rng.normal(size=(last, 8 * workers, 3)), np.array([1.0, -2.0, 0.5])
    with nb.Graph().as_default(), nb.device(setter):
        x, at = nb.placeholder(np.float64, (None, 3)), nb.train.get_or_create_global_step()
        w = nb.Variable(np.zeros(3), name="w")
        optimizer = nb.train.SyncReplicasOptimizer(nb.optim.SGD(0.1), workers)
        loss = np.mean(np.square(x @ w - x @ true))
        step = optimizer.minimize(loss, at)
        hook = optimizer.make_session_run_hook(task.is_chief, num_tokens=0)
        found: dict[str, Any] = {"error": ""}
        with nb.Session(task.target, operation_timeout=timeout) as session:
            begun = time.monotonic()
            try:
                if task.is_chief:  # an interrupt may come before it has learned that the step is there
                    session.run(nb.global_variables_initializer())
                with hook.training(session):
                    for n in range(last):
                        if last > 100:  # until it is interrupted
                            threading.Event().wait(0.002)
                        mine = slice(8 * task.index, 8 * (task.index + 1))
                        begun = time.monotonic()
                        session.run(step, {x: x_all[n, mine]})
                    found["w"], found["step"] = session.run([w, at])
                    found["dropped"] = int(session.run(optimizer.dropped))
            except (nb.errors.NbdistError, KeyboardInterrupt) as error:
                found["error"] = f"{type(error).__name__}: {error}"
                found["seconds"] = time.monotonic() - begun
        return found


@shipped
def steps_made() -> int:
    """Return the global step that a parameter server has."""
    from nbdist.runtime.task import current

    store = current().server.sessions.store
    cells = [cell for cell in store._cells.values() if cell.name == "global_step" and cell.ready]
    return int(cells[0].array) if cells else -1


def of(cluster: Cluster, name: str) -> Any:
    return next(info for info in cluster.tasks if info.name == name)


def test_bodies_train_synchronously(start: Start) -> None:
    """Three replicas make the steps of one on the same global batches."""
    cluster = start(workers=3, ps=1)
    workers = [info.rank for info in cluster.tasks if info.job == "worker"]
    found = cluster.submit(train, 20, on=workers).results(60)
    x_all, true, w = (
        np.random.default_rng(0).normal(size=(20, 24, 3)),
        np.array([1.0, -2.0, 0.5]),
        np.zeros(3),
    )
    for x in x_all:
        w -= 0.1 * 2 * x.T @ (x @ w - x @ true) / len(x)
    for one in found:
        assert one["error"] == ""
        assert (one["step"], one["dropped"]) == (20, 0)
        np.testing.assert_allclose(one["w"], w, rtol=1e-9)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_worker_is_killed_while_the_others_wait_for_it(start: Start, killed: int) -> None:
    cluster = start(workers=2, ps=1)
    ranks = [of(cluster, f"/job:worker/task:{n}").rank for n in range(2)]
    calls = [cluster.submit(train, 100_000, 3.0, on=rank) for rank in ranks]
    ps = of(cluster, "/job:ps/task:0").rank
    until(lambda: cluster.submit(steps_made, on=ps).results(10 + PATIENCE)[0] > 10, 40)
    os.kill(of(cluster, f"/job:worker/task:{killed}").pid, signal.SIGKILL)
    begun = time.monotonic()
    (found,) = calls[1 - killed].results(20 + PATIENCE)
    if killed == 0:  # the chief, whose end is reported at once
        assert "AbortedError: the chief, which serves 'sync_token_q', was aborted: " in found["error"]
        assert time.monotonic() - begun < limit(4)
        assert found["seconds"] < limit(5)
    else:
        assert "DeadlineExceededError" in found["error"]
        assert "not waiting for one: /job:worker/task:1 (took token " in found["error"]
        assert 2.5 < found["seconds"] < limit(7)


def test_a_body_is_interrupted_while_it_waits_for_a_token(start: Start) -> None:
    cluster = start(workers=2, ps=1)
    ranks = [of(cluster, f"/job:worker/task:{n}").rank for n in range(2)]
    call = cluster.submit(train, 100_000, on=ranks[0])  # the other one never comes
    ps = of(cluster, "/job:ps/task:0").rank
    until(lambda: cluster.submit(steps_made, on=ps).results(10 + PATIENCE)[0] == 0, 40)
    cluster.signal(ranks[0], signal.SIGINT)
    begun = time.monotonic()
    (found,) = call.results(20 + PATIENCE)
    assert time.monotonic() - begun < limit(3)
    assert found["error"].startswith("KeyboardInterrupt")
    found = cluster.submit(train, 5, on=ranks).results(60)  # nothing of it is left
    assert [one["error"] for one in found] == ["", ""]
    assert [one["step"] for one in found] == [5, 5]
