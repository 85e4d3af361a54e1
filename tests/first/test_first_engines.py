"""A small test on real engines, and one that kills a task; docs/testing.md explains them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiers import matrix
from waiting import limit, until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import TaskDiedError
from nbdist.run.options import Options
from nbdist.run.start import start_run

pytestmark = pytest.mark.engines

BODY = """
import numpy as np
x = np.ones((8, 2), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.1), "mse")
history = model.fit(nb.data.Dataset.from_arrays(x, x[:, :1]).batch(4), epochs=EPOCHS)
"""


@pytest.mark.parametrize("strategy", matrix(["multi_worker"], rest=["mirrored", "sharded"]))
def test_a_run_trains(cluster: Cluster, strategy: str) -> None:
    run = start_run(BODY.replace("EPOCHS", "3"), Options(strategy=strategy), cluster=cluster).wait()
    assert run.global_step == 3 * 2
    assert run.history["loss"][-1] < run.history["loss"][0]


def test_a_killed_task_ends_a_run_and_is_named(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster, begun = start(workers=2), tmp_path / "begun"
    body = f"import pathlib, threading; pathlib.Path({str(begun)!r}).touch(); threading.Event().wait()"
    run = start_run(body, Options(), cluster=cluster)
    until(begun.exists, during=run)
    killed = time.monotonic()
    os.kill(cluster.tasks[1].pid, signal.SIGKILL)
    with pytest.raises(TaskDiedError, match=r"/job:worker/task:1 .*SIGKILL"):
        run.wait()
    assert time.monotonic() - killed < limit(2)
