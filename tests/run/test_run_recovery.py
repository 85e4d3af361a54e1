"""Workers that die during a run are replaced, and join the run, which continues."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from recording_view import RecordingView
from tiers import matrix
from waiting import limit, until

from nbdist.errors import TaskDiedError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run
from nbdist.run.values.delivery import Given

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.recovery.replacement import Restart

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines

STEPS, EPOCHS = 8, 12
HELD = 3 * STEPS - 4  # steps that workers make without the gate, at least: their input is ahead of them
LEAST = HELD - 1  # steps that servers have of a worker that has made HELD: the last one may be on its way
# From about its fourth epoch on, a worker waits before each batch until the gate is open.
BODY = """
import os, threading
import numpy as np
random = np.random.default_rng(0)
x = random.random((96, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, activation="tanh"), nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.01), "mse")
passed = 0
def gated(*batch):
    global passed
    passed += 1
    while passed > 3 * {steps} and nb.task.index in {held} and not os.path.exists({gate!r}):
        threading.Event().wait(0.005)
    return batch
data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(96).batch(12).map(gated)
history = model.fit(data, epochs={epochs})
"""


def body(gate: Path, held: tuple[int, ...] = (0, 1, 2), more: str = "") -> str:
    return more + BODY.format(gate=str(gate), held=held, steps=STEPS, epochs=EPOCHS)


def kill(cluster: Cluster, index: int) -> int:
    """Kill a worker with SIGKILL; return its pid."""
    pid = next(info.pid for info in cluster.tasks if (info.job, info.index) == ("worker", index))
    os.kill(pid, signal.SIGKILL)
    return pid


def restarts(run: Run) -> list[Restart]:
    recovery = run._recovery
    assert recovery is not None
    return recovery.restarts


def until_all_reach(run: Run, step: int) -> None:
    until(lambda: all(one.step >= step for one in run.standing().replicas), during=run)


def test_a_dead_worker_of_asynchronous_servers_is_replaced_and_joins(start: Start, tmp_path: Path) -> None:
    cluster, view, gate = start(workers=3, ps=1), RecordingView(), tmp_path / "gate"
    run = start_run(body(gate), Options(seed=3), cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, HELD)
    began = time.monotonic()
    pid = kill(cluster, 1)
    until(lambda: run.members.away == {1}, during=run)
    assert time.monotonic() - began < limit(2)
    until(lambda: restarts(run)[0].step is not None, during=run)
    assert time.monotonic() - began < limit(30)
    gate.touch()
    run.wait()
    (restart,) = restarts(run)
    assert restart.old.pid == pid
    assert restart.step in range(LEAST, 3 * STEPS + 1)
    assert run.status == "finished"
    assert run.global_step == 3 * STEPS * EPOCHS  # as if no worker had died
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * EPOCHS] * 3
    name = "/job:worker/task:1"
    text = f"{name} (pid {pid} -> {cluster.tasks[1].pid}): it was {restart.text} (restart 1 of 3)"
    assert text in view.text[name]
    assert text in run.notes
    card = run.standing().replicas[1]
    assert (card.state, card.restart, card.restarts) == ("finished", restart.text, 1)
    happened = [(one.kind, one.rank, one.text) for one in run.events if one.kind in ("lost", "replaced")]
    assert happened == [("lost", 1, restart.how), ("replaced", 1, f"{name} was {restart.text}")]
    (recorded,) = read_run(run.id).restarts
    assert (recorded["task"], recorded["step"], recorded["problem"]) == (name, restart.step, "")
    assert cluster.run("'model' in globals()") == [True, True, True, False]


def test_a_worker_that_dies_again_and_again_spends_the_restart_budget(start: Start, tmp_path: Path) -> None:
    cluster, view, gate = start(workers=2, ps=1), RecordingView(), tmp_path / "gate"
    options = Options(seed=3, max_restarts=2)
    run = start_run(body(gate), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, HELD)
    for number in range(3):
        kill(cluster, 1)
        until(lambda: 1 in run.members.away, during=run)
        if number < 2:
            until(lambda n=number: restarts(run)[n].step is not None, during=run)  # type: ignore[misc]
    gate.touch()
    run.wait()
    assert run.status == "finished"
    assert len(restarts(run)) == 2
    assert run.standing().replicas[1].state == "lost"
    assert run.outcomes[0]["step"] == STEPS * EPOCHS
    spent = "the run's restart budget is spent (--max-restarts 2)"
    assert spent in view.text["/job:worker/task:1"]
    assert any(spent in note for note in run.notes)


def test_a_body_that_needs_an_earlier_cell_leaves_the_run_going(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    cluster.run("width = 8")
    needs = body(gate).replace("Dense(8", "Dense(width")
    run = start_run(needs, Options(seed=3), cluster=cluster)
    until_all_reach(run, HELD)
    kill(cluster, 1)
    until(lambda: restarts(run) and restarts(run)[0].problem, during=run)
    gate.touch()
    run.wait()
    assert (run.status, run.outcomes[0]["step"]) == ("finished", STEPS * EPOCHS)
    assert run.standing().replicas[1].state == "lost"
    lacks = "not replaced: its new process has no 'width', which an earlier cell has defined: push it"
    assert any(lacks in note for note in run.notes)
    assert read_run(run.id).restarts[0]["problem"].startswith("its new process has no 'width'")


@pytest.mark.parametrize("servers", matrix([1], rest=[2]))
def test_a_backup_worker_is_replaced_and_joins_at_the_step_of_the_others(
    start: Start, tmp_path: Path, servers: int
) -> None:
    cluster, gate = start(workers=3, ps=servers), tmp_path / "gate"
    options = Options(seed=3, synchronous=True, backups=1)
    run = start_run(body(gate, held=(0, 1)), options, cluster=cluster)
    until(lambda: run.standing().step >= STEPS, during=run)
    for number, index in enumerate((1, 2, 0)):
        before = run.standing().replicas[index].step
        kill(cluster, index)
        until(lambda n=number: len(restarts(run)) > n and restarts(run)[n].step is not None, during=run)  # type: ignore[misc]
        assert restarts(run)[number].step in range(before - 1, STEPS * EPOCHS + 1)
    gate.touch()
    run.wait()
    assert run.status == "finished"
    # As without deaths, the last one may be left without a second gradient.
    assert max(outcome["step"] for outcome in run.outcomes.values()) == STEPS * EPOCHS
    assert STEPS < run.global_step <= 3 * STEPS * EPOCHS // 2  # two gradients each
    for weights in cluster.run("model.weights", on=[1, 2]):
        assert run.model is not None
        for ours, theirs in zip(run.model.weights, weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("servers", matrix([1], rest=[2]))
def test_a_dead_chief_is_replaced_and_has_its_duties_again(
    start: Start, tmp_path: Path, servers: int
) -> None:
    cluster, gate = start(workers=3, ps=servers), tmp_path / "gate"
    run = start_run(body(gate), Options(seed=3), cluster=cluster)
    until_all_reach(run, HELD)
    pid = kill(cluster, 0)
    until(lambda: restarts(run) and restarts(run)[0].step is not None, during=run)
    gate.touch()
    run.wait()
    (restart,) = restarts(run)
    assert (run.status, restart.old.pid) == ("finished", pid)
    assert restart.step in range(LEAST, 3 * STEPS + 1)
    assert run.global_step == 3 * STEPS * EPOCHS  # as if no worker had died
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * EPOCHS] * 3
    assert run.history is not None
    assert run.history.epoch[-1] == EPOCHS - 1
    (weights,) = cluster.run("model.weights", on=[1])
    assert run.model is not None
    for ours, theirs in zip(run.model.weights, weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_chiefs_new_process_dies_before_it_has_joined(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    run = start_run(body(gate), Options(seed=3), cluster=cluster)
    until_all_reach(run, HELD)
    kill(cluster, 0)
    until(lambda: restarts(run) and restarts(run)[0].calls, during=run)  # its body is sent
    kill(cluster, 0)
    until(lambda: len(restarts(run)) > 1 and restarts(run)[1].step is not None, during=run)
    gate.touch()
    run.wait()
    assert run.status == "finished"
    assert run.global_step == 2 * STEPS * EPOCHS


def test_a_run_ends_if_its_chief_is_not_replaced(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    run = start_run(body(gate), Options(seed=3, max_restarts=0), cluster=cluster)
    until_all_reach(run, HELD)
    kill(cluster, 0)
    with pytest.raises(TaskDiedError, match=r"/job:worker/task:0 .* it is not replaced, as --max-restarts 0"):
        run.wait()
    assert any("it is not replaced, as --max-restarts 0 asks" in note for note in run.notes)


def test_pushed_values_are_on_the_new_process(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    needs = body(gate).replace("x = random.random((96, 5), np.float32)", "")
    given = Given(names={"x": np.ones((96, 5), np.float32)})
    run = start_run(needs, Options(seed=3, push=("x",)), cluster=cluster, given=given)
    until_all_reach(run, HELD)
    kill(cluster, 1)
    until(lambda: restarts(run) and restarts(run)[0].step is not None, during=run)
    gate.touch()
    assert run.wait().global_step == 2 * STEPS * EPOCHS


def test_a_new_process_joins_the_training_that_the_others_are_at(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=2), tmp_path / "gate"
    twice = body(gate).replace("history = ", "model.fit(data, epochs=1)\npassed = 0\nhistory = ")
    run = start_run(twice, Options(seed=3), cluster=cluster)
    until_all_reach(run, STEPS + HELD)
    kill(cluster, 1)
    until(lambda: restarts(run) and restarts(run)[0].step is not None, during=run)
    gate.touch()
    run.wait()
    assert restarts(run)[0].step in range(STEPS + LEAST, 4 * STEPS + 1)
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * (EPOCHS + 1)] * 2
    assert run.global_step == 2 * STEPS * (EPOCHS + 1)


def test_without_a_budget_a_dead_worker_is_not_replaced(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    run = start_run(body(gate), Options(max_restarts=0), cluster=cluster)
    until_all_reach(run, HELD)
    kill(cluster, 1)
    until(lambda: 1 in run.members.away, during=run)
    gate.touch()
    run.wait()
    assert any("it is not replaced, as --max-restarts 0 asks" in note for note in run.notes)
    assert [info.rank for info in cluster.dead()] == [1]
