"""With ``--ps-replicas 1`` nothing that was acknowledged is lost when a parameter server dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiers import exhaustive, matrix
from waiting import limit, until

from nbdist.errors import NotFoundError, UnavailableError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines

STEPS, EPOCHS, RATE = 8, 50, 2.0**-12
# Each gradient is 1 for the kernel, on server 0, and for the bias, on server 1: with SGD at a rate of a power
# of two, the parameters say exactly how many gradients were applied.
# Until the gate is open, each batch takes 36 ms, and later ones more: the run does not end before all servers
# have died, however long a busy machine takes to restore them.
BODY = f"""
import os, threading
import numpy as np
passed = 0
def slow(*batch):
    global passed
    passed += 1
    if not os.path.exists({{gate!r}}):
        threading.Event().wait(0.036 if passed < 200 else 0.3)
    return batch
x = np.ones((8 * {STEPS}, 1), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(1, kernel_initializer="zeros")])
model.compile(nb.optim.SGD({RATE}), "mae")
data = nb.data.Dataset.from_arrays(x, -1000 * x).batch(8).map(slow)
history = model.fit(data, epochs={EPOCHS})
weights = [float(array.ravel()[0]) for array in model.get_weights()]
"""

# The same by a loop of one's own.
LOOP = f"""
import os, threading
import numpy as np
passed = 0
def slow(*batch):
    global passed
    passed += 1
    if not os.path.exists({{gate!r}}):
        threading.Event().wait(0.036 if passed < 200 else 0.3)
    return batch
x = np.ones((8 * {STEPS}, 1), np.float32)
data = nb.data.Dataset.from_arrays(x).batch(8).map(slow)
strategy = nb.get_strategy()
with strategy.scope():
    model = nb.nn.Sequential([nb.nn.Dense(1, kernel_initializer="zeros")])
    optimizer = nb.optim.SGD({RATE})
def step(x):
    loss = np.mean(model(x))
    optimizer.minimize(loss)
    return loss
for epoch in range({EPOCHS}):
    for batch in strategy.distribute_dataset(data):
        strategy.run(step, batch)
strategy.finish()
weights = [float(array.ravel()[0]) for array in model.get_weights()]
"""


def kill(cluster: Cluster, name: str, signum: int = signal.SIGKILL) -> int:
    pid = next(info.pid for info in cluster.tasks if info.name == name)
    os.kill(pid, signum)
    return pid


def begun(cluster: Cluster, gate: Path, body: str = BODY, **options: Any) -> Run:
    """Start the body, and return its run when each worker has made some steps, and servers have replicas."""
    options = {"strategy": "ps", "ps_replicas": 1, "seed": 3, "fetch": ("weights",), **options}
    run = start_run(body.format(gate=str(gate)), Options(**options), cluster=cluster)
    until(lambda: all(one.step >= 20 for one in run.standing().replicas), during=run)
    if options["ps_replicas"]:  # on a busy machine they may be filled late
        until(lambda: replicated(run, cluster), during=run)
    return run


def restored(run: Run, number: int) -> bool:
    """Whether so many servers were lost and have their parameters again; their standbys may die then."""
    found = [one["lost_updates"] for one in read_run(run.id).restarts]
    return len(found) == number and None not in found


def replicated(run: Run, cluster: Cluster) -> bool:
    """Whether each server has a complete replica of the other's shard."""
    ranks = [info.rank for info in cluster.tasks if info.job == "ps"]
    try:
        found = [cluster.peer(rank).call("ps.hello").meta["standbys"] for rank in ranks]
    except (NotFoundError, UnavailableError):
        return False
    return found == [[f"{run.id}/0/{rank}"] for rank in reversed(ranks)]


@pytest.mark.parametrize(
    "options", matrix([{}, {"synchronous": True}], rest=[{"transport": "socket"}, {"staleness": 0}])
)
def test_a_dead_server_continues_with_its_replica_and_nothing_is_lost(
    start: Start, tmp_path: Path, options: dict[str, Any]
) -> None:
    cluster, workers, gate = start(workers=2, ps=2), 2, tmp_path / "gate"
    run = begun(cluster, gate, **options)
    pid, killed = kill(cluster, "/job:ps/task:0"), time.monotonic()
    until(lambda: restored(run, 1) and replicated(run, cluster), during=run)
    assert time.monotonic() - killed < limit(3)
    step = run.standing().step
    kill(cluster, "/job:ps/task:1")  # its replica is that of the new process
    until(lambda: len(read_run(run.id).restarts) == 2, during=run)
    gate.touch()
    run.wait()
    assert run.status == "finished"
    updates = STEPS * EPOCHS * (1 if options.get("synchronous") else workers)
    assert 0 < step < updates
    assert run.results["weights"] == [-RATE * updates] * 2
    assert run.global_step == updates
    restarts = read_run(run.id).restarts
    assert [(one["task"], one["lost_updates"]) for one in restarts] == [
        ("/job:ps/task:0", 0), ("/job:ps/task:1", 0)
    ]  # fmt: skip
    notes = [note for note in run.notes if "restored from its replica" in note]
    assert len(notes) == 2
    assert notes[0].startswith(f"/job:ps/task:0 (pid {pid}) died: killed by SIGKILL; replaced after ")
    assert notes[0].endswith("; 0 updates lost; restored from its replica on /job:ps/task:1")
    assert np.isfinite(run.results["weights"]).all()


@exhaustive  # the same in test_run_server_recovery.py, without replicas
def test_a_server_and_a_worker_die_together(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=2), tmp_path / "gate"
    run = begun(cluster, gate)
    kill(cluster, "/job:worker/task:1")
    kill(cluster, "/job:ps/task:0")
    until(lambda: len(read_run(run.id).restarts) == 2, during=run)
    gate.touch()
    run.wait()
    (server,) = [one for one in read_run(run.id).restarts if one["task"] == "/job:ps/task:0"]
    assert server["lost_updates"] == 0
    # A worker may die after it has sent a gradient to one server, and before the other has it.
    updates = 2 * STEPS * EPOCHS
    assert all(updates - 2 <= round(-weight / RATE) <= updates for weight in run.results["weights"])


@pytest.mark.parametrize("ps_replicas", matrix([0], rest=[1]))
def test_a_loop_of_ones_own_survives_the_death_of_a_server(
    start: Start, tmp_path: Path, ps_replicas: int
) -> None:
    cluster, gate = start(workers=2, ps=2), tmp_path / "gate"
    run = begun(cluster, gate, LOOP, ps_replicas=ps_replicas)
    kill(cluster, "/job:ps/task:0")
    until(lambda: len(read_run(run.id).restarts) == 1, during=run)
    gate.touch()
    run.wait()
    (restart,) = read_run(run.id).restarts
    updates, lost = 2 * STEPS * EPOCHS, restart["lost_updates"]
    kernel, bias = (round(-weight / RATE) for weight in run.results["weights"])
    assert bias == updates
    assert updates - lost - (0 if ps_replicas else 4) <= kernel <= updates
    assert lost == 0 or not ps_replicas
