"""Runs whose bodies drive monitored sessions: killed parameter servers and workers are replaced."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiers import exhaustive, matrix
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, TaskDiedError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.progress_file import progress_path
from nbdist.run.recovery import policy
from nbdist.run.recovery.replacement import Restart
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.sessions.saver import latest_checkpoint
from nbdist.train import checkpoint_state, load_variable

pytestmark = pytest.mark.engines

# A step that takes a millisecond more leaves the processor to the others: nothing depends on the speed.
BODY = """
import threading
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
            threading.Event().wait(0.001)
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
    run = monitored(cluster, tmp_path, 900)
    until_saved(run, tmp_path, 50)
    first = kill(cluster, "/job:ps/task:1")  # it has w, and the first one the global step
    run.wait()
    assert run.status == "finished"
    assert run.results["recoveries"] == 1
    assert run.results["reached"] >= 890
    # Steps since the last save are lost to w; on a busy machine a save takes many of them.
    assert load_variable(tmp_path, "w") == pytest.approx(1.0, abs=0.01)
    state = checkpoint_state(tmp_path)
    assert state is not None
    assert int(state.model_checkpoint_path.rpartition("-")[2]) >= 900
    (note,) = [note for note in run.notes if "replaced after" in note]
    assert note.startswith(f"/job:ps/task:1 (pid {first}) died: ")
    # The same cluster serves the next run, which begins with its own values.
    run = monitored(cluster, tmp_path / "next", 20)
    run.wait()
    assert load_variable(tmp_path / "next", "w")[0] < 0.5


COUNTING = """
import os, threading
import numpy as np
with nb.Graph().as_default():
    with nb.device(nb.train.replica_device_setter(cluster=nb.task.cluster, worker_device=nb.task.name)):
        step = nb.train.get_or_create_global_step()
        w = nb.Variable(np.zeros(1), name="w")
        {optimizer}
        train = optimizer.minimize(np.sum(w), step)
    with nb.train.MonitoredTrainingSession(
        nb.task.target, nb.task.is_chief, {folder!r}, hooks={hooks}, save_checkpoint_steps=200
    ) as session:
        gate = {gate!r} + ("-chief" if nb.task.is_chief else "")
        while not (session.should_stop() or os.path.exists(gate)):
            session.run(train)
            threading.Event().wait(0.001)
"""
PLAIN = "optimizer = nb.optim.SGD(1.0)"


def counting(cluster: Cluster, folder: Path, max_restarts: int | None = None) -> Run:
    """Start a run in which each update subtracts 1 from w, until `end`."""
    body = COUNTING.format(folder=str(folder), gate=str(folder / "gate"), hooks="[]", optimizer=PLAIN)
    return start_run(body, Options(max_restarts=max_restarts), cluster=cluster)


def end(run: Run, folder: Path) -> None:
    """End the bodies, the chief's after the others: the checkpoint at its end has all updates."""
    (folder / "gate").touch()
    others = {one.rank for one in run.members.workers[1:]}
    until(lambda: run.outcomes.keys() >= others, during=run)
    (folder / "gate-chief").touch()
    run.wait()


def reached(run: Run) -> int:
    """Return the newest global step that the client knows of."""
    return max((int(one["global_step"]) for one in progress_of(run)), default=0)


def progress_of(run: Run) -> list[Mapping[str, Any]]:
    """Return what the workers' sessions have said last."""
    return [one.body.session for one in run.members.workers if one.body.session is not None]


def until_past_checkpoint(run: Run, folder: Path, steps: int) -> int:
    """Wait until training is so many steps past the newest checkpoint; return the global step."""

    def past() -> int:
        latest = latest_checkpoint(folder)
        since = -1 if latest is None else reached(run) - int(latest.rpartition("-")[2])
        return reached(run) if since >= steps else 0

    return until(past, during=run)


def until_joined(run: Run, number: int) -> Restart:
    recovery = run._recovery
    assert recovery is not None
    until(lambda: len(recovery.restarts) >= number and recovery.restarts[number - 1].step, during=run)
    return recovery.restarts[number - 1]


def test_killed_workers_are_replaced_and_join_the_live_model(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(workers=2, ps=2)
    run = counting(cluster, tmp_path)
    until(lambda: len(progress_of(run)) == 2 and reached(run) > 100, during=run)
    for number, name in enumerate(("/job:worker/task:1", "/job:worker/task:0"), 1):
        before = until_past_checkpoint(run, tmp_path, 50)
        old = kill(cluster, name)
        restart = until_joined(run, number)
        assert (restart.old.name, restart.old.pid) == (name, old)
        assert restart.step is not None
        assert restart.step >= before  # neither initialised nor restored
        (note,) = [note for note in run.notes if f"(restart {number} of 3)" in note]
        assert note.startswith(f"{name} (pid {old} -> ")
        assert f"joined at step {restart.step:,}" in note
    until_saved(run, tmp_path, reached(run) + 200)  # the new chief saves
    end(run, tmp_path)
    assert run.status == "finished"
    first, second = read_run(run.id).restarts
    assert (first["task"], second["task"]) == ("/job:worker/task:1", "/job:worker/task:0")
    assert second["step"] == restart.step
    assert [json.loads(progress_path(run.folder, n).read_bytes())["sessions"] for n in range(2)] == [1, 1]
    assert read_run(run.id).trained
    assert [one.restarts for one in run.standing().replicas] == [1, 1]
    # A killed worker may have changed w without counting the step, which another server holds.
    updates, counted = -load_variable(tmp_path, "w")[0], load_variable(tmp_path, "global_step")
    assert 0 <= abs(updates - counted) <= 2
    assert counted >= reached(run)


def test_the_only_worker_is_replaced_until_the_budget_ends(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(workers=1, ps=1)
    run = counting(cluster, tmp_path, max_restarts=1)
    before = until_past_checkpoint(run, tmp_path, 50)
    kill(cluster, "/job:worker/task:0")
    restart = until_joined(run, 1)
    assert restart.step is not None
    assert restart.step >= before
    until_past_checkpoint(run, tmp_path, 50)
    kill(cluster, "/job:worker/task:0")
    with pytest.raises(TaskDiedError, match="/job:worker/task:0"):
        run.wait()
    assert any("restart budget is spent" in note for note in run.notes)


def test_a_chief_without_names_of_earlier_cells_ends_the_run(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(workers=2, ps=2)
    start_run("width = 1", Options(), cluster=cluster).wait()
    body = COUNTING.format(folder=str(tmp_path), gate=str(tmp_path / "gate"), hooks="[]", optimizer=PLAIN)
    run = start_run(body.replace("np.zeros(1)", "np.zeros(width)"), Options(), cluster=cluster)
    until(lambda: len(progress_of(run)) == 2 and reached(run) > 100, during=run)
    kill(cluster, "/job:worker/task:0")
    with pytest.raises(TaskDiedError, match="It was not replaced: its new process has no 'width'"):
        run.wait()


SYNC_STEPS = """
import threading
import numpy as np
with nb.Graph().as_default():
    with nb.device(nb.train.replica_device_setter(cluster=nb.task.cluster, worker_device=nb.task.name)):
        step = nb.train.get_or_create_global_step()
        a, b = nb.Variable(np.zeros(1), name="a"), nb.Variable(np.zeros(1), name="b")
        optimizer = nb.train.SyncReplicasOptimizer(nb.optim.SGD(1.0), {needed}, {total})
        train = optimizer.minimize(np.sum(a) + np.sum(b), step)
    hooks = [optimizer.make_session_run_hook(nb.task.is_chief), nb.train.StopAtStepHook(last_step={last})]
    with nb.train.MonitoredTrainingSession(
        nb.task.target, nb.task.is_chief, {folder!r}, hooks=hooks, save_checkpoint_steps={every}
    ) as session:
        while not session.should_stop():
            session.run(train)
            threading.Event().wait(0.001)
"""


def synchronous(
    cluster: Cluster,
    folder: Path,
    last: int,
    needed: int = 2,
    total: int = 2,
    max_restarts: int | None = None,
    every: int = 10_000,
) -> Run:
    """Start a run whose steps each subtract 1 from a and from b, which are on different servers."""
    body = SYNC_STEPS.format(folder=str(folder), last=last, needed=needed, total=total, every=every)
    return start_run(body, Options(max_restarts=max_restarts), cluster=cluster)


@pytest.mark.parametrize(("needed", "total", "seed"), matrix([(2, 2, 1)], rest=[(2, 3, 2), (4, 2, 3)]))
def test_a_synchronous_session_survives_deaths_of_its_workers_and_its_chief(
    start: Callable[..., Cluster], tmp_path: Path, needed: int, total: int, seed: int
) -> None:
    """At random moments of a step; each step is made once, whatever was killed."""
    cluster, rng, last, kills = start(workers=total, ps=2), random.Random(seed), 1_000_000, 6
    run = synchronous(cluster, tmp_path, last, needed, total, max_restarts=kills)
    victims = [n % total for n in range(kills)]
    rng.shuffle(victims)
    for number, victim in enumerate(victims, 1):
        before = reached(run)
        until(lambda before=before: reached(run) > before + 20, during=run)  # type: ignore[misc]
        moment = time.monotonic() + rng.random() * 0.02
        until(lambda moment=moment: time.monotonic() > moment)  # type: ignore[misc]
        kill(cluster, f"/job:worker/task:{victim}")
        restart = until_joined(run, number)
        assert restart.step is not None
        assert restart.step >= before
    before = reached(run)
    until(lambda: reached(run) > before + 20, during=run)
    run.stop()
    run.wait()
    updates = [-load_variable(tmp_path, name)[0] for name in ("a", "b")]
    counted = load_variable(tmp_path, "global_step")
    # A chief that dies between two servers' updates leaves a step half made; it is made again.
    assert all(0 <= made - counted <= victims.count(0) for made in updates)


def test_a_synchronous_session_survives_deaths_of_its_parameter_servers(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    """The first one has the global step, the tokens, a and its accumulator, the other one b and its own."""
    cluster, last = start(workers=2, ps=2), 1000
    run = synchronous(cluster, tmp_path, last, every=50)
    for number, name in enumerate(("/job:ps/task:1", "/job:ps/task:0", "/job:worker/task:0"), 1):
        before = until_past_checkpoint(run, tmp_path, 10)
        kill(cluster, name)
        until(lambda number=number: len(run.notes) >= number, during=run)  # type: ignore[misc]
        until(lambda before=before: reached(run) > before + 20, during=run)  # type: ignore[misc]
    run.wait()
    assert run.status == "finished"
    assert [note.partition(" (")[0] for note in run.notes if "replaced after" in note] == [
        "/job:ps/task:1", "/job:ps/task:0", "/job:worker/task:0",
    ]  # fmt: skip
    assert load_variable(tmp_path, "global_step") == last


def test_a_synchronous_session_without_restarts_ends_with_its_worker(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(workers=2, ps=2)
    run = synchronous(cluster, tmp_path, 1_000_000, max_restarts=0)
    until(lambda: len(progress_of(run)) == 2 and reached(run) > 20, during=run)
    kill(cluster, "/job:worker/task:1")
    with pytest.raises(TaskDiedError, match="/job:worker/task:1"):
        run.wait()
    assert any("it is not replaced, as --max-restarts 0 asks" in note for note in run.notes)


def test_a_body_of_several_sessions_is_not_begun_again(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(workers=1, ps=1)
    first = BODY.format(steps=5, folder=str(tmp_path / "first"))
    second = COUNTING.format(folder=str(tmp_path), gate=str(tmp_path / "gate"), hooks="[]", optimizer=PLAIN)
    run = start_run(first + second.replace("zeros(1)", "zeros(10)"), Options(), cluster=cluster)
    until(
        lambda: any(one["sessions"] == 2 and one["global_step"] > 20 for one in progress_of(run)),
        during=run,
    )
    kill(cluster, "/job:worker/task:0")
    with pytest.raises(TaskDiedError, match="/job:worker/task:0"):
        run.wait()
    assert any("its body has made several monitored sessions" in note for note in run.notes)


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


def test_a_parameter_server_dies_as_a_session_begins(
    start: Callable[..., Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "SESSION_SECONDS", 10.0)  # for the first message of a worker that is busy
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
    run = start_run("import threading\nthreading.Event().wait()", Options(), cluster=cluster)
    run.poll()
    kill(cluster, "/job:ps/task:0")
    with pytest.raises(TaskDiedError, match="The parameters are lost"):
        run.wait()


@exhaustive  # the next test, and test_killed_workers_are_replaced_and_join_the_live_model
def test_killed_workers_are_replaced_the_chief_too(start: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = start(workers=3, ps=1)
    run = monitored(cluster, tmp_path, 1_000_000, max_restarts=4)

    def replaced() -> list[str]:
        return [note.partition(" (")[0] for note in run.notes if "joined at step" in note]

    until(lambda: len(progress_of(run)) == 3, during=run)
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


def test_all_workers_and_a_parameter_server_die_together(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = start(workers=2, ps=2)
    run = counting(cluster, tmp_path, max_restarts=5)
    until(lambda: len(progress_of(run)) == 2, during=run)
    until_saved(run, tmp_path, 200)
    supervisor = psutil.Process(cluster.tasks[0].pid).parent()
    assert supervisor is not None
    supervisor.suspend()  # it tells of both deaths at once, before one of the two is replaced
    for name in ("/job:worker/task:0", "/job:worker/task:1"):
        kill(cluster, name)
    supervisor.resume()
    until(lambda: run.members.away == {0, 1}, during=run)
    kill(cluster, "/job:ps/task:1")  # while no body is there to recover from it
    until(lambda: len([one for one in read_run(run.id).restarts if one["pid"]]) == 3, during=run)
    before = reached(run)
    until_saved(run, tmp_path, before + 200)
    end(run, tmp_path)
    assert run.status == "finished"
    assert load_variable(tmp_path, "global_step") >= before + 200
