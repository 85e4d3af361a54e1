"""Parameter servers that die during an asynchronous `fit` are replaced, and training continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from recording_view import RecordingView
from tiers import matrix
from waiting import until

from nbdist.checkpoint.manager import state_files
from nbdist.errors import TaskDiedError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines

STEPS, EPOCHS = 8, 40
HELD = 3 * STEPS - 4  # steps that workers make without the gate, at least: their input is ahead of them
# From about its fourth epoch on, a worker waits before each batch until the gate is open.
BODY = """
import os, threading
import numpy as np
random = np.random.default_rng(0)
x = random.random((96, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, activation="tanh"), nb.nn.Dense(1)])
model.compile({optimizer}, "mse")
passed = 0
def gated(*batch):
    global passed
    passed += 1
    while passed > 3 * {steps} and not os.path.exists({gate!r}):
        threading.Event().wait(0.005)
    return batch
data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(96).batch(12).map(gated)
history = model.fit(data, epochs={epochs})
losses = list(history["loss"])
"""


def body(gate: Path, optimizer: str = "nb.optim.SGD(0.01, momentum=0.5)") -> str:
    return BODY.format(gate=str(gate), steps=STEPS, epochs=EPOCHS, optimizer=optimizer)


LATE = """
import os, threading
while nb.task.index and not os.path.exists({gate!r}):
    threading.Event().wait(0.005)
"""


def kill(cluster: Cluster, name: str, signum: int = signal.SIGKILL) -> int:
    pid = next(info.pid for info in cluster.tasks if info.name == name)
    os.kill(pid, signum)
    return pid


def pid_of(cluster: Cluster, name: str) -> int:
    return next(info.pid for info in cluster.tasks if info.name == name)


def until_all_reach(run: Run, step: int) -> None:
    until(lambda: all(one.step >= step for one in run.standing().replicas), during=run)


@pytest.mark.parametrize(("servers", "transport"), matrix([(2, "socket")], rest=[(1, "auto")]))
def test_a_dead_parameter_server_is_replaced_and_its_parameters_restored(
    start: Start, tmp_path: Path, servers: int, transport: str
) -> None:
    cluster, view, gate = start(workers=2, ps=servers), RecordingView(), tmp_path / "gate"
    options = Options(strategy="ps", seed=3, transport=transport, fetch=("losses",))
    run = start_run(body(gate), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, HELD)
    name = "/job:ps/task:0"
    before = run.standing().step
    pid = kill(cluster, name)
    until(lambda: pid_of(cluster, name) != pid, during=run)
    gate.touch()
    run.wait()
    assert run.status == "finished"
    (note,) = [note for note in run.notes if "replaced after" in note]
    assert note.startswith(f"{name} (pid {pid}) died: killed by SIGKILL; replaced after ")
    assert f" by pid {pid_of(cluster, name)}; " in note
    assert note.endswith("its slots of the optimizer (velocity) began anew")
    (recorded,) = read_run(run.id).restarts
    lost = recorded["lost_updates"]
    assert recorded["task"] == name
    assert f"{lost} update{'s' * (lost != 1)} lost; gradients on their way to it count as dropped; " in note
    assert note in view.text[name].replace("\n", "")
    assert [(one.kind, one.rank) for one in run.events] == [("lost", 2), ("replaced", 2)]  # after two workers
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * EPOCHS] * 2
    # What was under way, two gradients of each worker at most, may be lost as well.
    whole = 2 * STEPS * EPOCHS
    assert max(before - 4, whole - lost - 4) <= run.global_step <= whole
    assert run.results["losses"][-1] < run.results["losses"][0] / 3
    assert np.isfinite(run.results["losses"]).all()
    again = start_run("n = 3", Options(on="worker:0"), cluster=cluster).wait()
    assert again.results == {"n": 3}


@pytest.mark.parametrize("worker", matrix([0], rest=[2]))
def test_a_parameter_server_and_a_worker_die_together(start: Start, tmp_path: Path, worker: int) -> None:
    cluster, gate = start(workers=3, ps=1), tmp_path / "gate"
    options = Options(strategy="ps", seed=3, checkpoint_every=4, fetch=("losses",))
    run = start_run(body(gate), options, cluster=cluster)
    until_all_reach(run, HELD)
    until(lambda: state_files(run.folder), during=run)  # a busy disk may be late
    kill(cluster, f"/job:worker/task:{worker}")
    kill(cluster, "/job:ps/task:0")
    until(lambda: len(read_run(run.id).restarts) == 2, during=run)
    gate.touch()
    run.wait()
    assert run.status == "finished"
    (note,) = [note for note in run.notes if "by pid" in note]
    assert "its slots of the optimizer (velocity) are those after update " in note
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * EPOCHS] * 3
    assert run.results["losses"][-1] < run.results["losses"][0] / 3


def test_the_restart_budget_of_servers_ends(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=2), tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="ps", max_restarts=1), cluster=cluster)
    until_all_reach(run, HELD)
    kill(cluster, "/job:ps/task:0")
    until(lambda: len(read_run(run.id).restarts) == 1, during=run)
    kill(cluster, "/job:ps/task:0")
    with pytest.raises(TaskDiedError, match="The parameters are lost"):
        run.wait()
    assert any("restart budget is spent" in note for note in run.notes)


def test_a_server_dies_before_all_workers_have_reached_fit(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=2), tmp_path / "gate"
    run = start_run(
        LATE.format(gate=str(gate)) + body(gate), Options(strategy="ps", fetch=("losses",)), cluster=cluster
    )
    until(lambda: run.standing().step >= 5, during=run)  # steps of worker 0 alone
    pid = kill(cluster, "/job:ps/task:1")
    until(lambda: pid_of(cluster, "/job:ps/task:1") != pid, during=run)
    gate.touch()
    run.wait()
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * EPOCHS] * 2
    assert read_run(run.id).restarts[0]["lost_updates"] is not None
    assert run.results["losses"][-1] < run.results["losses"][0] / 3
