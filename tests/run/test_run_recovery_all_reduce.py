"""Workers that die while replicas make steps together are replaced, and join the run between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from recording_view import RecordingView
from test_run_recovery import kill, restarts, until_all_reach
from tiers import matrix
from waiting import limit, until

from nbdist.errors import TaskDiedError
from nbdist.metrics.run_folder import read_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines

STEPS = 8  # of an epoch
# Two trainings: the second one ends with the epoch in which the file "over" appears.
BODY = """
import os, threading
import numpy as np

class End(nb.train.Callback):
    def on_epoch_end(self, epoch, logs):
        self.stop_training = os.path.exists({over!r})

def slow(*batch):
    threading.Event().wait({pause})
    while os.path.exists({hold!r}):
        threading.Event().wait(0.004)
    return batch

random = np.random.default_rng(0)
x = random.random((93, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(1)])
model.compile(nb.optim.Adam(0.005), "mse")
data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(93).batch(12).map(slow)
model.fit(data, epochs=1)
history = model.fit(data, epochs={epochs}, callbacks=[End()])
"""


def body(over: Path, epochs: int = 100_000, pause: float = 0.004) -> str:
    return BODY.format(over=str(over), hold=str(over.with_name("hold")), epochs=epochs, pause=pause)


def until_joined(run: Run, number: int = 0) -> None:
    until(lambda: len(restarts(run)) > number and restarts(run)[number].step is not None, during=run)


def train(run: Run) -> bool:
    """Return whether all replicas train; on a busy machine one may be slower than the others."""
    return {one.state for one in run.standing().replicas} <= {"running", "straggler"}


def weights(cluster: Cluster, workers: Sequence[int]) -> list[list[np.ndarray]]:
    return cluster.run("model.weights", on=list(workers))  # type: ignore[return-value]


def assert_as_one_device(cluster: Cluster, run: Run, over: Path, workers: Sequence[int] = (0, 1, 2)) -> None:
    """Check that the workers have the weights that one device computes on the same global batches."""
    trained = weights(cluster, workers)
    for other in trained[1:]:
        for a, b in zip(trained[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert run.model is not None
    for a, b in zip(trained[0], run.model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    steps = {run.outcomes[worker]["step"] for worker in workers}
    assert len(steps) == 1
    epochs, rest = divmod(steps.pop(), STEPS)
    assert rest == 0
    assert run.global_step == epochs * STEPS
    over.unlink()
    one = Options(strategy="one_device", on="worker:1", seed=run.seed)
    start_run(body(over, epochs - 1, pause=0.0), one, cluster=cluster).wait()
    for a, b in zip(trained[0], weights(cluster, [1])[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_a_dead_worker_is_replaced_and_joins_between_two_steps(start: Start, tmp_path: Path) -> None:
    cluster, view, over = start(workers=3), RecordingView(), tmp_path / "over"
    options = Options(strategy="multi_worker", seed=3)
    run = start_run(body(over), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, 3 * STEPS)
    began = time.monotonic()
    pid = kill(cluster, 1)
    until_joined(run)
    assert time.monotonic() - began < limit(30)
    (restart,) = restarts(run)
    assert restart.step is not None
    until_all_reach(run, restart.step + 2 * STEPS)
    over.touch()
    run.wait()
    assert run.status == "finished"
    name = "/job:worker/task:1"
    text = f"{name} (pid {pid} -> {cluster.tasks[1].pid}): it was {restart.text} (restart 1 of 3)"
    assert text in view.text[name]
    assert "training continues on 3 replicas with smaller shares" in view.text["/job:worker/task:0"]
    assert [one.state for one in run.standing().replicas] == ["finished"] * 3
    assert read_run(run.id).restarts[0]["step"] == restart.step
    assert_as_one_device(cluster, run, over)


def test_the_chief_and_another_join_again_and_the_last_has_the_duties_until_then(
    start: Start, tmp_path: Path
) -> None:
    cluster, view, over = start(workers=3), RecordingView(), tmp_path / "over"
    options = Options(strategy="mirrored", seed=3, max_restarts=2)
    run = start_run(body(over), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, 3 * STEPS)
    for index in (0, 2):
        kill(cluster, index)
    for number in range(2):
        until_joined(run, number)
    joined = max(restart.step or 0 for restart in restarts(run))
    until(lambda: train(run), during=run)
    until_all_reach(run, joined + 2 * STEPS)
    kill(cluster, 0)
    until(lambda: run.members.away == {0}, during=run)
    step = run.standing().replicas[1].step
    until(lambda: run.standing().replicas[1].step >= step + 2 * STEPS, during=run)
    over.touch()
    run.wait()
    assert run.status == "finished"
    assert "the run's restart budget is spent (--max-restarts 2)" in view.text["/job:worker/task:0"]
    assert "training continues on 2 replicas with larger shares" in view.text["/job:worker/task:1"]
    assert run.history is not None
    assert len(run.history.history["loss"]) == run.outcomes[1]["step"] // STEPS - 1
    assert_as_one_device(cluster, run, over, (1, 2))


def test_a_replaced_worker_of_elastic_averaging_joins_at_the_center(start: Start, tmp_path: Path) -> None:
    cluster, view, over = start(workers=3), RecordingView(), tmp_path / "over"
    options = Options(strategy="elastic", seed=3, every=3)
    run = start_run(body(over), options, cluster=cluster, make_view=lambda run: view)
    until_all_reach(run, 3 * STEPS)
    kill(cluster, 0)
    until_joined(run)
    (restart,) = restarts(run)
    assert restart.step is not None
    until_all_reach(run, restart.step + 2 * STEPS)
    over.touch()
    run.wait()
    assert run.status == "finished"
    assert "is lost: training continues on 2 replicas" in view.text["/job:worker/task:1"]
    trained = weights(cluster, (0, 1, 2))
    for other in trained[1:]:
        for a, b in zip(trained[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert {outcome["step"] % STEPS for outcome in run.outcomes.values()} == {0}
    assert run.history is not None
    assert len(run.history.history["loss"]) == run.outcomes[0]["step"] // STEPS - 1
    assert run.history.history["loss"][-1] < 0.5 * run.history.history["loss"][0]


@pytest.mark.parametrize("strategy", matrix(["multi_worker"], rest=["elastic"]))
def test_a_run_ends_if_only_workers_that_have_not_joined_are_left(
    start: Start, tmp_path: Path, strategy: str
) -> None:
    cluster, over = start(workers=3), tmp_path / "over"
    run = start_run(body(over), Options(strategy=strategy, seed=3), cluster=cluster)
    until_all_reach(run, 3 * STEPS)
    (tmp_path / "hold").touch()  # no step begins, so that no process joins
    for index in (1, 0):
        kill(cluster, index)
        until(lambda rank=index: run.members.worker(rank).is_new, during=run)  # type: ignore[misc]
    pid = kill(cluster, 2)
    (tmp_path / "hold").unlink()
    began = time.monotonic()
    with pytest.raises(TaskDiedError, match="No other worker has the parameters") as caught:
        run.wait()
    assert time.monotonic() - began < limit(6)
    assert f"/job:worker/task:2 (pid {pid}) died: killed by SIGKILL" in str(caught.value)
    assert "/job:worker/task:0, /job:worker/task:1 had not joined" in str(caught.value)
    assert start_run("n = 3", Options(on="worker:0-1"), cluster=cluster).wait().results == {"n": 3}
