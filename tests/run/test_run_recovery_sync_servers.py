"""Workers of synchronous parameter servers that die are replaced, while the others wait in their step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from freezing import freeze
from recording_view import RecordingView
from test_run_recovery import kill, restarts, until_all_reach
from tiers import matrix
from waiting import limit, until

from nbdist.errors import TaskDiedError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.recovery import failure_detector
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines

STEPS, EPOCHS = 8, 30
FREE = 20 * STEPS  # batches that a process passes before it waits for the gate: 1.5 s for a busy client
BODY = """
import os, threading
import numpy as np
while os.path.exists({gate!r} + "-hold"):
    threading.Event().wait(0.005)
passed = 0
def gated(*batch):
    global passed
    passed += 1
    if not os.path.exists({gate!r}):
        threading.Event().wait(0.008)
    while passed > {free} and not os.path.exists({gate!r}):
        threading.Event().wait(0.005)
    return batch

random = np.random.default_rng(0)
x = random.random((93, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(4), nb.nn.Dense(1)])
model.compile(nb.optim.Adam(0.005), "mse")
data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(93).batch(12).map(gated)
history = model.fit(data, epochs={epochs})
"""


def body(gate: Path) -> str:
    return BODY.format(gate=str(gate), free=FREE, epochs=EPOCHS)


def held(gate: Path) -> Path:
    """Return the file that keeps new processes from training while it is there."""
    return gate.with_name(f"{gate.name}-hold")


def states(run: Run) -> list[str]:
    return [one.state for one in run.standing().replicas]


def until_joined(run: Run, number: int = 0) -> None:
    until(lambda: len(restarts(run)) > number and restarts(run)[number].step is not None, during=run)


def assert_as_one_device(cluster: Cluster, run: Run, gate: Path, body: Callable[[Path], str] = body) -> None:
    """Check that each worker made each step, and has the weights of one device on the same batches."""
    assert run.status == "finished"
    assert run.global_step == STEPS * EPOCHS
    workers = [info.index for info in cluster.tasks if info.job == "worker"]
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * EPOCHS] * len(workers)
    trained: list[list[np.ndarray]] = cluster.run("model.weights", on=workers)  # type: ignore[assignment]
    for other in trained[1:]:
        for a, b in zip(trained[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert run.model is not None
    for a, b in zip(trained[0], run.model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    one = Options(strategy="one_device", on="worker:1", seed=run.seed)
    start_run(body(gate), one, cluster=cluster).wait()
    (alone,) = cluster.run("model.weights", on=[1])
    for a, b in zip(trained[0], alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(("servers", "transport"), matrix([(2, "auto")], rest=[(1, "auto"), (2, "socket")]))
def test_the_others_wait_for_the_new_process_and_no_step_is_lost(
    start: Start, tmp_path: Path, servers: int, transport: str
) -> None:
    cluster, view, gate = start(workers=3, ps=servers), RecordingView(), tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, seed=3, transport=transport)
    run = start_run(body(gate), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, STEPS)
    held(gate).touch()
    began = time.monotonic()
    pid = kill(cluster, 1)
    until(lambda: run.members.away == {1}, during=run)
    assert time.monotonic() - began < limit(2)
    until(lambda: states(run).count("waiting for /job:worker/task:1's new process") == 2, during=run)
    held(gate).unlink()
    until_joined(run)
    assert time.monotonic() - began < limit(15)
    (restart,) = restarts(run)
    assert restart.step is not None
    until_all_reach(run, restart.step + 2)
    assert not any("new process" in state for state in states(run))  # one may be a straggler
    kill(cluster, 0)
    kill(cluster, 2)
    for number in (1, 2):
        until_joined(run, number)
    gate.touch()
    run.wait()
    name = "/job:worker/task:1"
    assert f"(pid {pid}) died: killed by SIGKILL; training waits for its new process" in view.text[name]
    assert restart.step in range(STEPS - 1, FREE + 2 * STEPS)  # its gradient may have been on its way
    first, *others = (one["task"][-1] for one in read_run(run.id).restarts)
    assert (first, sorted(others)) == ("1", ["0", "2"])  # two that die together are found in any order
    assert_as_one_device(cluster, run, gate)


# The process of worker 1 dies at its step 30, when it has sent its gradient to the first server only.
BETWEEN = """
from nbdist.runtime.ps import client
if nb.task.index == 1 and not os.path.exists({mark!r}):
    for link in (client.SharedLink, client.SocketLink):
        def push(self, slot, push=link.push, numbers=[]):
            numbers.append(id(self))
            if len(numbers) == 60:
                open({mark!r}, "w").close()
                os.kill(os.getpid(), 9)
            push(self, slot)
        link.push = push
"""


@pytest.mark.parametrize("transport", matrix(["socket"], rest=["auto"]))
def test_a_worker_that_dies_between_two_servers_makes_its_gradient_again(
    start: Start, tmp_path: Path, transport: str
) -> None:
    cluster, gate, mark = start(workers=3, ps=2), tmp_path / "gate", tmp_path / "mark"
    options = Options(strategy="ps", synchronous=True, seed=3, transport=transport)
    gate.touch()
    dies = body(gate).replace("passed = 0", BETWEEN.format(mark=str(mark)) + "passed = 0", 1)
    run = start_run(dies, options, cluster=cluster).wait()
    (restart,) = restarts(run)
    assert restart.step == 29  # complete on both servers; the first has made the next one already
    assert_as_one_device(cluster, run, gate)


@pytest.mark.parametrize("index", matrix([0], rest=[1]))
def test_a_run_that_waits_for_a_new_process_can_be_stopped(start: Start, tmp_path: Path, index: int) -> None:
    cluster, gate = start(workers=3, ps=2), tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="ps", synchronous=True, seed=3), cluster=cluster)
    until_all_reach(run, STEPS)
    held(gate).touch()
    kill(cluster, index)
    until(lambda: sum("new process" in state for state in states(run)) == 2, during=run)
    began = time.monotonic()
    run.stop()
    run.wait()
    assert time.monotonic() - began < limit(6)  # the new process is in a step of its own
    assert run.status == "stopped"
    trained = [outcome["step"] for rank, outcome in run.outcomes.items() if rank != index]
    assert len(trained) == 2
    assert len(set(trained)) == 1
    held(gate).unlink()
    assert start_run("n = 3", Options(on="worker:2"), cluster=cluster).wait().results == {"n": 3}


def test_the_run_ends_when_its_restart_budget_is_spent(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, max_restarts=1)
    run = start_run(body(gate), options, cluster=cluster)
    until_all_reach(run, STEPS)
    kill(cluster, 1)
    until_joined(run)
    began, pid = time.monotonic(), kill(cluster, 1)
    with pytest.raises(TaskDiedError, match=rf"/job:worker/task:1 \(pid {pid}\) died: killed by SIGKILL"):
        run.wait()
    assert time.monotonic() - began < limit(2)
    assert any("the run's restart budget is spent (--max-restarts 1)" in note for note in run.notes)


def test_the_run_ends_when_the_new_process_cannot_join(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    cluster.run("width = 8")
    needs = body(gate).replace("Dense(8", "Dense(width")
    run = start_run(needs, Options(strategy="ps", synchronous=True), cluster=cluster)
    until_all_reach(run, STEPS)
    kill(cluster, 1)
    with pytest.raises(TaskDiedError, match="It was not replaced: its new process has no 'width'"):
        run.wait()
    again = start_run("n = 3", Options(on="worker:0"), cluster=cluster).wait()
    assert again.results == {"n": 3}


def test_a_frozen_worker_is_replaced_while_the_others_wait(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "MEMBER_FROZEN_SECONDS", 0.5)
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="ps", synchronous=True, seed=3), cluster=cluster)
    until_all_reach(run, STEPS)
    pid = next(info.pid for info in cluster.tasks if info.name == "/job:worker/task:1")
    freeze(pid)
    until_joined(run)
    gate.touch()
    run.wait()
    assert any(f"(pid {pid}) is frozen" in note for note in run.notes)
    assert_as_one_device(cluster, run, gate)


def test_a_new_process_has_the_frozen_weights_of_the_chief(start: Start, tmp_path: Path) -> None:
    def frozen(gate: Path) -> str:
        code = body(gate).replace("nb.nn.Dense(1)])", "nb.nn.Dense(1)], seed=os.getpid())")
        return code.replace("model.compile", "model.layers[0].trainable = False\nmodel.compile")

    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    run = start_run(frozen(gate), Options(strategy="ps", synchronous=True, seed=3), cluster=cluster)
    until_all_reach(run, STEPS)
    kill(cluster, 1)
    until_joined(run)
    gate.touch()
    run.wait()
    assert run.history is not None
    assert run.history.share == "worker 0's share of each batch"
    chief, new = cluster.run("model.weights", on=[0, 1])
    for a, b in zip(chief, new, strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_workers_die_than_there_are_backups(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=3, ps=1), tmp_path / "gate"
    options = Options(strategy="ps", synchronous=True, backups=1, seed=3)
    run = start_run(body(gate), options, cluster=cluster)
    until(lambda: run.standing().step >= STEPS, during=run)
    for index in (1, 2):
        kill(cluster, index)
    for number in (0, 1):
        until_joined(run, number)
    gate.touch()
    run.wait()
    assert run.status == "finished"
    assert max(outcome["step"] for outcome in run.outcomes.values()) == STEPS * EPOCHS


def test_a_worker_of_a_resumed_run_joins_at_its_place(start: Start, tmp_path: Path) -> None:
    cluster, gate = start(workers=2, ps=1), tmp_path / "gate"
    gate.touch()
    first = body(gate).replace(f"epochs={EPOCHS}", "epochs=5")
    options = Options(strategy="ps", synchronous=True, seed=3, checkpoint_every=1000)
    before = start_run(first, options, cluster=cluster).wait()
    gate.unlink()
    run = start_run(body(gate), replace(options, resume=before.id), cluster=cluster)
    until_all_reach(run, 6 * STEPS + 3)
    kill(cluster, 1)
    until_joined(run)
    assert restarts(run)[0].step in range(6 * STEPS + 2, FREE + 8 * STEPS)
    gate.touch()
    run.wait()
    assert_as_one_device(cluster, run, gate)


@pytest.mark.parametrize("index", [0, 1])
def test_a_death_ends_a_run_of_central_storage(start: Start, tmp_path: Path, index: int) -> None:
    """The first worker has the parameters, and the others' gradients are needed in each step."""
    cluster, gate = start(workers=3, ps=1), tmp_path / "gate"
    run = start_run(body(gate), Options(strategy="central"), cluster=cluster)
    until_all_reach(run, STEPS)
    began, pid = time.monotonic(), kill(cluster, index)
    died = rf"/job:worker/task:{index} \(pid {pid}\) died: killed by SIGKILL"
    with pytest.raises(TaskDiedError, match=died):
        run.wait()
    assert time.monotonic() - began < limit(2)
    again = start_run("n = 3", Options(on="worker:2"), cluster=cluster).wait()
    assert again.results == {"n": 3}
