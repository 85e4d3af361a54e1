"""Loops of one's own survive the death of a worker, whose new process joins them between two steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from recording_view import RecordingView
from tiers import matrix
from waiting import until

from nbdist.run.options import Options
from nbdist.run.recovery import shutdown
from nbdist.run.run import Run
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

Start = Callable[..., "Cluster"]
pytestmark = pytest.mark.engines

LOOP = """
import os, threading
import numpy as np
random = np.random.default_rng(0)
x, y = random.random((60, 4), np.float32), random.integers(0, 3, 60)
strategy = nb.get_strategy()
with strategy.scope():
    model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.2), nb.nn.Dense(3, "softmax")])
    optimizer = nb.optim.Adam(0.02)

def step(x, y):
    each = nb.nn.losses.sparse_categorical_crossentropy(y, model(x, training=True))
    loss = nb.nn.compute_average_loss(each, 12)
    optimizer.minimize(loss)
    return loss

seen = nb.train.state(steps=0, epochs=[])
data = strategy.distribute_dataset(nb.data.Dataset.from_arrays(x, y).shuffle(60).batch(12))
for epoch in nb.train.epochs({epochs}):
    for batch in data:
        while seen["steps"] >= {held} and not os.path.exists({gate!r}):
            threading.Event().wait(0.005)
        joining = os.path.exists({gate!r}) and not os.path.exists({joined!r})
        pause = 0.002 if not joining else 0.05 if seen["steps"] < 50 else 1.0
        threading.Event().wait(pause)  # a process joins between two steps; on a busy machine it comes late
        loss = float(strategy.reduce("sum", strategy.run(step, batch)))
        seen["steps"] += 1
    seen["epochs"].append(epoch)
steps, epochs = seen["steps"], seen["epochs"]
"""
EPOCHS, PER_EPOCH = 20, 5


def looping(cluster: Cluster, gate: Path, held: int = 1_000_000, epochs: int = EPOCHS, **more: Any) -> Run:
    body = LOOP.format(gate=str(gate), joined=str(gate.with_name("joined")), held=held, epochs=epochs)
    options = Options(**{"strategy": "multi_worker", "seed": 3, "fetch": ("steps", "epochs"), **more})
    return start_run(body, options, cluster=cluster, make_view=lambda run: RecordingView())


def kill(cluster: Cluster, index: int) -> None:
    info = next(info for info in cluster.tasks if (info.job, info.index) == ("worker", index))
    os.kill(info.pid, signal.SIGKILL)


def until_joined(run: Run, number: int) -> None:
    recovery = run._recovery
    assert recovery is not None
    until(lambda: len(recovery.restarts) >= number and recovery.restarts[number - 1].step, during=run)


@pytest.mark.parametrize("strategy", matrix(["multi_worker"], rest=["elastic"]))
def test_a_loop_goes_on_and_the_new_process_joins_it(
    start: Start, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start(workers=2, ps=1)
    run = looping(cluster, tmp_path / "gate", epochs=100_000, strategy=strategy)
    for number, index in enumerate((1, 0, 1), 1):
        before = run.standing().step
        until(lambda before=before: run.standing().step > before + 20, during=run)  # type: ignore[misc]
        kill(cluster, index)
        until_joined(run, number)
    before = run.standing().step
    until(lambda: run.standing().step > before + 20, during=run)
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)  # a busy machine may need longer for a step
    run.stop()
    run.wait()
    assert run.status == "stopped"
    steps, epochs = run.results["steps"], run.results["epochs"]
    assert [one.step for one in run.standing().replicas] == [steps, steps]
    assert epochs == list(range(len(epochs)))
    assert len(epochs) - 1 <= steps // PER_EPOCH <= len(epochs)


def test_steps_are_those_of_a_loop_that_no_death_has_interrupted(start: Start, tmp_path: Path) -> None:
    cluster, gate, joined = start(workers=3, ps=1), tmp_path / "gate", tmp_path / "joined"
    whole = looping(cluster, gate).wait()
    run = looping(cluster, gate, held=17)
    until(lambda: all(one.step == 17 for one in run.standing().replicas), during=run)
    kill(cluster, 0)
    gate.touch()
    until_joined(run, 1)
    joined.touch()
    run.wait()
    assert run.results["steps"] == whole.results["steps"] == EPOCHS * PER_EPOCH
    assert run.results["epochs"] == list(range(EPOCHS))
    assert whole.model is not None
    assert run.model is not None
    for a, b in zip(whole.model.weights, run.model.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
