"""A task fails at each phase of a step, under each strategy that survives it: what the run guarantees holds.

All runs are on one cluster: each leaves it with new processes, and without anything that disturbs the next.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from faults import LOSE_GPU, SERVER_PHASES, WORKER_PHASES, fail_at
from tiers import matrix
from waiting import until

from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.recovery import failure_detector, policy
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

STEPS, EPOCHS, STEP = 8, 6, 13
# Replicas train until the file "over" is there, so that a slow one reaches the step at which it fails, and a
# new process finds steps to make. Asynchronous ones make a fixed number of epochs, and wait for it before the
# last two.
BODY = """
import os, threading
import numpy as np

class End(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.stop_training = {together} and os.path.exists({over!r})

passed = 0
def slow(*batch):
    global passed
    passed += 1
    threading.Event().wait(0.003)
    while not {together} and passed > 4 * {steps} and not os.path.exists({over!r}):
        threading.Event().wait(0.005)
    return batch

x = np.random.default_rng(0).random((96, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.01), "mse")
data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(96).batch(12).map(slow)
history = model.fit(data, epochs=100_000 if {together} else {epochs}, callbacks=[End()])
"""
TRAININGS: dict[str, dict[str, Any]] = {
    "async": {"strategy": "ps"},
    "backups": {"strategy": "ps", "synchronous": True, "backups": 1},
    "multi_worker": {"strategy": "multi_worker"},
    "elastic": {"strategy": "elastic", "every": 3},
}


@pytest.fixture(scope="module")
def cluster(own_home: Path) -> Iterator[Cluster]:
    """A cluster for this module, whose tasks are killed. It has no GPUs: a lost one could not be replaced."""
    from nbdist.cluster.launch import start_cluster

    cluster = start_cluster(workers=3, ps=1, gpus="none", report=None)
    yield cluster
    cluster.stop()


def started(cluster: Cluster, over: Path, training: str, ahead: str = "") -> Run:
    together = training != "async"
    body = BODY.format(over=str(over), together=together, steps=STEPS, epochs=EPOCHS)
    return start_run(ahead + body, Options(seed=3, **TRAININGS[training]), cluster=cluster)


def assert_all_counted(cluster: Cluster, run: Run, training: str) -> None:
    """Check the number of steps, and that all workers have the parameters of the run."""
    assert run.status == "finished"
    steps = [outcome["step"] for outcome in run.outcomes.values()]
    if training == "async":
        assert steps == [STEPS * EPOCHS] * 3
        assert run.global_step == 3 * STEPS * EPOCHS
    elif training == "backups":  # each update took two gradients
        assert max(steps) <= run.global_step <= sum(steps) / 2
    else:
        assert {step % STEPS for step in steps} == {0}
        assert len(set(steps)) == 1 or training == "elastic"  # a replica ends with the others' exchange
        assert run.global_step in steps
    assert run.model is not None
    for weights in cluster.run("model.weights", on=[0, 1, 2]):
        for ours, theirs in zip(run.model.weights, weights, strict=True):
            np.testing.assert_array_equal(ours, theirs)


# In the first tier, workers also die "computed" where one loses its GPU, and "starting" as the chief.
FIRST = [
    ("async", "pulled"),
    ("async", "pushing"),
    ("backups", "pushing"),
    ("multi_worker", "pushing"),
    ("elastic", "pushed"),
]
REST = [pair for pair in itertools.product(TRAININGS, WORKER_PHASES) if pair not in FIRST]


@pytest.mark.parametrize(("training", "phase"), matrix(FIRST, REST))
def test_a_worker_dies_at_a_phase_of_its_step(
    cluster: Cluster, tmp_path: Path, training: str, phase: str
) -> None:
    over, mark, worker = tmp_path / "over", tmp_path / "failed", list(WORKER_PHASES).index(phase) % 3
    run = started(cluster, over, training, fail_at(f"/job:worker/task:{worker}", STEP, phase, mark))
    until(lambda: any(one["step"] is not None for one in read_run(run.id).restarts), during=run)
    over.touch()
    run.wait()
    (restart,) = read_run(run.id).restarts
    assert (restart["task"], restart["problem"]) == (f"/job:worker/task:{worker}", "")
    assert_all_counted(cluster, run, training)


@pytest.mark.parametrize("training", matrix(["multi_worker"], rest=["async"]))
def test_a_worker_that_loses_its_gpu_is_replaced(cluster: Cluster, tmp_path: Path, training: str) -> None:
    """CUDA's error, injected into a step, ends the process: the others find a death, not a failed replica."""
    over, mark = tmp_path / "over", tmp_path / "failed"
    run = started(cluster, over, training, fail_at("/job:worker/task:1", STEP, "computed", mark, LOSE_GPU))
    until(lambda: any(one["step"] is not None for one in read_run(run.id).restarts), during=run)
    over.touch()
    run.wait()
    (restart,) = read_run(run.id).restarts
    assert restart["lost"].endswith("ended because its GPU is lost (code 75)")
    assert_all_counted(cluster, run, training)


@pytest.mark.parametrize("training", matrix(["async", "multi_worker"], rest=["backups", "elastic"]))
def test_the_chief_dies_before_its_first_message(
    cluster: Cluster, tmp_path: Path, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client learns from the others that its body was in fit."""
    monkeypatch.setattr(policy, "JOINED_SECONDS", 30.0)  # they may begin much later on a busy machine
    over, mark = tmp_path / "over", tmp_path / "failed"
    run = started(cluster, over, training, fail_at("/job:worker/task:0", 2, "starting", mark))
    until(lambda: any(one["step"] is not None for one in read_run(run.id).restarts), during=run)
    over.touch()
    run.wait()
    assert_all_counted(cluster, run, training)


@pytest.mark.parametrize("phase", SERVER_PHASES)
def test_a_parameter_server_dies_at_a_phase_of_an_update(
    cluster: Cluster, tmp_path: Path, phase: str
) -> None:
    over, mark, server = tmp_path / "over", tmp_path / "failed", "/job:ps/task:0"
    cluster.run(fail_at(server, 3 * STEP, phase, mark), on=3)
    run = started(cluster, over, "async")
    until(lambda: read_run(run.id).restarts and read_run(run.id).restarts[0]["step"] is not None, during=run)
    over.touch()
    run.wait()
    (restart,) = read_run(run.id).restarts
    assert (run.status, restart["task"]) == ("finished", server)
    assert [outcome["step"] for outcome in run.outcomes.values()] == [STEPS * EPOCHS] * 3
    whole, lost = 3 * STEPS * EPOCHS, restart["lost_updates"]
    assert whole - lost - 6 <= run.global_step <= whole  # two of each worker may have been under way


@pytest.mark.parametrize("training", matrix(["async"], rest=["multi_worker"]))
def test_a_worker_that_stops_while_it_pushes_is_replaced(
    cluster: Cluster, tmp_path: Path, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detector, "MEMBER_FROZEN_SECONDS", 0.5)
    over, mark = tmp_path / "over", tmp_path / "failed"
    ahead = fail_at("/job:worker/task:1", STEP, "pushing", mark, signal.SIGSTOP)
    run = started(cluster, over, training, ahead)
    until(lambda: any(one["step"] is not None for one in read_run(run.id).restarts), during=run)
    over.touch()
    run.wait()
    (restart,) = read_run(run.id).restarts
    assert "is frozen" in restart["lost"]
    assert_all_counted(cluster, run, training)


def test_a_server_dies_while_it_gives_its_standby_to_another(
    start: Callable[..., Cluster], tmp_path: Path
) -> None:
    """The other server asked the dead one for 30 s."""
    cluster, over = start(workers=2, ps=2), tmp_path / "over"
    body = BODY.format(over=str(over), together=True, steps=STEPS, epochs=EPOCHS)
    options = Options(strategy="ps", synchronous=True, ps_replicas=1, seed=3)
    run = start_run(body, options, cluster=cluster)
    first, second = cluster.tasks[2:]
    until(lambda: run.global_step > 2 * STEPS, during=run)
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: cluster.tasks[2].pid != first.pid, during=run)
    os.kill(second.pid, signal.SIGKILL)
    step = run.global_step
    until(lambda: run.global_step > step + 2 * STEPS, seconds=15, during=run)
    over.touch()
    assert run.wait().status == "finished"
