"""Runs whose bodies drive monitored sessions: a killed parameter server is replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, TaskDiedError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.train import checkpoint_state, load_variable
from nbdist.train.saver import latest_checkpoint

pytestmark = pytest.mark.engines

BODY = """
import numpy as np
with nb.Graph().as_default():
    with nb.device(nb.train.replica_device_setter(cluster=nb.task.cluster, worker_device=nb.task.name)):
        step = nb.train.get_or_create_global_step()
        w = nb.Variable(np.zeros(10), name="w")
        target = nb.placeholder(np.float64, (10,), name="target")
        train = nb.optim.SGD(0.01).minimize(np.sum((w - target) ** 2), step)
    hooks = [nb.train.StopAtStepHook(last_step={steps})]
    with nb.train.MonitoredTrainingSession(
        nb.task.target, nb.task.is_chief, {folder!r}, hooks=hooks, save_checkpoint_steps=50
    ) as session:
        while not session.should_stop():
            reached = int(session.run([train, step], {{target: np.ones(10)}})[1])
    recoveries = session.recoveries
"""


def monitored(cluster: Cluster, folder: Path, steps: int, max_restarts: int | None = None) -> Run:
    return start_run(
        BODY.format(steps=steps, folder=str(folder)),
        Options(fetch=("recoveries", "reached"), max_restarts=max_restarts),
        cluster=cluster,
    )


def kill(cluster: Cluster, name: str) -> int:
    pid = next(info.pid for info in cluster.tasks if info.name == name)
    os.kill(pid, signal.SIGKILL)
    return pid


def until_saved(run: Run, folder: Path, step: int) -> None:
    def saved() -> bool:
        latest = latest_checkpoint(folder)
        return latest is not None and int(latest.rpartition("-")[2]) >= step

    until(saved, during=run)


def test_a_killed_parameter_server_is_replaced_and_training_continues(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(workers=2, ps=2)
    run = monitored(cluster, tmp_path, 3000)
    until_saved(run, tmp_path, 50)
    first = kill(cluster, "/job:ps/task:1")  # it has w, and the first one the global step
    run.wait()
    assert run.status == "finished"
    assert run.results["recoveries"] == 1
    assert run.results["reached"] >= 2990
    assert load_variable(tmp_path, "w") == pytest.approx(1.0)
    state = checkpoint_state(tmp_path)
    assert state is not None
    assert int(state.model_checkpoint_path.rpartition("-")[2]) >= 3000
    (note,) = [note for note in run.notes if "replaced after" in note]
    assert note.startswith(f"/job:ps/task:1 (pid {first}) died: ")
    # The same cluster serves the next run, which begins with its own values.
    run = monitored(cluster, tmp_path / "next", 20)
    run.wait()
    assert load_variable(tmp_path / "next", "w")[0] < 0.5


def test_a_session_is_paused_between_two_runs(start: Callable[..., Cluster], tmp_path: Path) -> None:
    run = monitored(start(workers=1, ps=1), tmp_path, 1_000_000)
    run.wait_until(step=20).pause()
    until(lambda: run.standing().state == "paused", during=run)
    with pytest.raises(FailedPreconditionError, match="hooks of the session save its checkpoints"):
        run.set(learning_rate=0.1)
    reached = run.standing().step
    run.resume()
    run.wait_until(step=reached + 20).stop()
    run.wait()
    assert run.status == "stopped"


def test_a_parameter_server_dies_as_a_session_begins(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(workers=1, ps=1)
    server = next(info for info in cluster.tasks if info.job == "ps")
    body = BODY.format(steps=200, folder=str(tmp_path))
    loop, silent = "        while not", "ctypes.PyDLL(None).usleep(400_000)  # keeps the interpreter's lock"
    body = body.replace(loop, f"        os.kill({server.pid}, 9)\n        {silent}\n{loop}")
    body = f"import ctypes, os\n{body}"
    run = start_run(body, Options(fetch=("recoveries", "reached")), cluster=cluster)
    run.wait()
    assert (run.status, run.results["recoveries"]) == ("finished", 1)
    assert any("replaced after" in note for note in run.notes)


def test_the_restart_budget_ends(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(workers=1, ps=1)
    run = monitored(cluster, tmp_path, 1_000_000, max_restarts=1)
    until_saved(run, tmp_path, 50)
    first = kill(cluster, "/job:ps/task:0")
    until(lambda: any(info.pid not in (first,) and info.job == "ps" for info in cluster.tasks), during=run)
    until(lambda: any("replaced after" in note for note in run.notes), during=run)
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    until_saved(run, tmp_path, int(latest.rpartition("-")[2]) + 50)
    kill(cluster, "/job:ps/task:0")
    with pytest.raises(TaskDiedError, match="/job:ps/task:0"):
        run.wait()
    assert any("restart budget is spent" in note for note in run.notes)


def test_a_body_without_a_monitored_session_ends_as_before(start: Callable[..., Cluster]) -> None:
    cluster = start(workers=1, ps=1)
    run = start_run("import time\nwhile True: time.sleep(0.01)", Options(), cluster=cluster)
    until(lambda: bool(run._monitor._positions), during=run)
    kill(cluster, "/job:ps/task:0")
    with pytest.raises(TaskDiedError, match="The parameters are lost"):
        run.wait()


def test_killed_workers_are_replaced_the_chief_too(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(workers=3, ps=1)
    run = monitored(cluster, tmp_path, 1_000_000, max_restarts=4)

    def replaced() -> list[str]:
        return [note.partition(" (")[0] for note in run.notes if "joined at step" in note]

    until(lambda: run._monitor.sessions == {0, 1, 2}, during=run)
    until_saved(run, tmp_path, 50)
    kill(cluster, "/job:worker/task:2")
    until(lambda: replaced() == ["/job:worker/task:2"], during=run)
    kill(cluster, "/job:worker/task:0")  # the chief
    until(lambda: replaced() == ["/job:worker/task:2", "/job:worker/task:0"], during=run)
    first, second = (one["step"] for one in read_run(run.id).restarts)
    assert 0 < first < second  # nothing on the server was rolled back
    until_saved(run, tmp_path, second + 50)  # by the new chief
    kill(cluster, "/job:ps/task:0")
    kill(cluster, "/job:worker/task:1")
    until(lambda: "/job:worker/task:1" in replaced(), during=run)
    assert any("replaced after" in note for note in run.notes if note.startswith("/job:ps/task:0"))
    run.stop()
    run.wait()
    assert run.status == "stopped"
