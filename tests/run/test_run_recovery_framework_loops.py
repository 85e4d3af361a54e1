"""Loops of one's own over models of PyTorch and JAX: states, lost workers, steps that are not finite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_run_recovery import kill, restarts, until_all_reach
from tiers import matrix
from waiting import until

from nbdist.errors import WorkerError
from nbdist.run.options import Options
from nbdist.run.recovery import shutdown
from nbdist.run.start import start_run

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster
    from nbdist.run.run import Run

pytestmark = pytest.mark.engines

STEPS = 12  # of a pass: 93 examples in batches of 8
# A loop waits at step ``at`` for the file "gate", and then makes passes until the run is stopped.
TORCH = """
import os, threading
import numpy as np, torch
torch.set_num_threads(1)
torch.manual_seed(0)
folder, at = {folder!r}, {at}
x = np.random.default_rng(0).random((93, 4), np.float32)
x[:{bad}] = np.nan
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(93).batch(8)
passes = batches_seen = 0
with nb.frameworks.torch.wrap(model, optimizer, data, nan={nan!r}) as batches:
    kept = nb.train.state(passes=0)
    for epoch in range(10_000 if at else 3):
        for features, targets in batches:
            batches_seen += 1
            while batches_seen == at and not os.path.exists(folder + "/gate"):
                threading.Event().wait(0.01)
            loss = ((model(features) - targets) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            nb.log(loss=loss.item())
        passes += batches_seen > 0
        kept["passes"] += 1
weights = [one.detach().numpy().copy() for one in model.parameters()]
counted = kept["passes"]
"""
JAX = """
import os, threading
import numpy as np
import jax.numpy as jnp
folder, at = {folder!r}, {at}
x = np.random.default_rng(0).random((93, 4), np.float32)
x[:{bad}] = np.nan
params = {{"w": np.random.default_rng(1).normal(size=(4, 1)).astype(np.float32)}}

def loss(params, batch):
    features, targets = batch
    return jnp.mean((features @ params["w"] - targets) ** 2)

data = nb.data.Dataset.from_arrays(x, x[:, :1]).shuffle(93).batch(8)
batches_seen = 0
with nb.frameworks.jax.wrap(loss, params, optimizer="adam", nan={nan!r}) as training:
    for epoch in range(10_000 if at else 3):
        for batch in training.batches(data):
            batches_seen += 1
            while batches_seen == at and not os.path.exists(folder + "/gate"):
                threading.Event().wait(0.01)
            training.step(batch)
weights = [np.asarray(training.params["w"])]
"""

# Two steps for each batch; "seen" has the step, the pass, the step of the batch and the number of the batch.
TWICE = """
import threading
import numpy as np
import jax.numpy as jnp
x = np.arange(90, dtype=np.float32).reshape(90, 1)
params = {{"w": np.ones((1, 1), np.float32)}}
data = nb.data.Dataset.from_arrays(x).batch(9)
seen = []

def loss(params, batch):
    return jnp.mean(batch @ params["w"]) * 1e-6

with nb.frameworks.jax.wrap(loss, params) as training:
    for epoch in range(10_000):
        for batch in training.batches(data):
            for number in range(2):
                step = training._training.driver.steps
                training.step(batch)
                seen.append((step, epoch, number, int(np.asarray(batch)[0, 0]) // 9))
            threading.Event().wait(0.005)
"""


def body(source: str, folder: Path, at: int = 0, bad: int = 0, nan: str = "stop") -> str:
    return source.format(folder=str(folder), at=at, bad=bad, nan=nan)


@pytest.fixture(autouse=True)
def no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a long step finish on a busy machine, and the rest of the body: no stop sends a signal."""
    monkeypatch.setattr(shutdown, "SIGNAL_AFTER", 60.0)
    monkeypatch.setattr(shutdown, "REPLACE_AFTER", 120.0)


def stopped(run: Run, gate: Path) -> None:
    """Stop a run, open the gate once all workers know, and wait for the end."""
    run.stop()
    run.poll()
    for info in run.members.infos:  # a task processes messages in order
        run._followed.cluster.peer(info.rank).call("run.hello")
    gate.touch()
    run.wait()


def assert_same(found: Run, expected: Run, exact: bool = True) -> None:
    for a, b in zip(found.results["weights"], expected.results["weights"], strict=True):
        if exact:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("source", [pytest.param(TORCH, id="torch"), pytest.param(JAX, id="jax")])
@pytest.mark.parametrize("strategy", matrix(["multi_worker"], rest=["one_device", "ps --sync"]), ids=str)
def test_a_loop_continues_within_a_pass(cluster: Cluster, tmp_path: Path, source: str, strategy: str) -> None:
    options: dict[str, Any] = {"strategy": strategy.split()[0], "seed": 1, "checkpoint_every": 1}
    options |= {"synchronous": True} if "--sync" in strategy else {}
    options |= {"on": "worker:0"} if strategy == "one_device" else {}
    whole = start_run(body(source, tmp_path), Options(**options), cluster=cluster).wait()
    assert whole.global_step == 3 * STEPS
    first = start_run(body(source, tmp_path, at=STEPS + 5), Options(**options), cluster=cluster)
    until_all_reach(first, STEPS + 4)
    stopped(first, tmp_path / "gate")
    assert STEPS < first.global_step < 2 * STEPS
    more = start_run(body(source, tmp_path), Options(**options, resume=first.id), cluster=cluster).wait()
    assert more.global_step == 3 * STEPS
    assert_same(more, whole)
    if source is TORCH:
        assert more.results["counted"] == first.results["counted"] + 3


@pytest.mark.parametrize("source", [pytest.param(TORCH, id="torch"), pytest.param(JAX, id="jax")])
@pytest.mark.parametrize("strategy", matrix(["multi_worker"], rest=["ps --sync"]), ids=str)
def test_a_lost_worker_of_a_loop_is_replaced(start: Any, tmp_path: Path, source: str, strategy: str) -> None:
    cluster = start(workers=3, ps=int(strategy != "multi_worker"))
    options: dict[str, Any] = {"strategy": strategy.split()[0], "seed": 1}
    options |= {"synchronous": True} if "--sync" in strategy else {}
    (tmp_path / "gate").touch()
    run = start_run(body(source, tmp_path, at=1), Options(**options), cluster=cluster)
    until_all_reach(run, STEPS)
    kill(cluster, 1)
    until(lambda: bool(restarts(run)) and restarts(run)[0].step is not None, during=run)
    until_all_reach(run, (restarts(run)[0].step or 0) + STEPS)
    stopped(run, tmp_path / "gate")  # all end after the same step
    assert run.status == "stopped"
    trained = cluster.run("weights", on=[0, 1, 2])
    for other in trained[1:]:
        for a, b in zip(trained[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_new_process_joins_before_a_batch_and_not_between_its_steps(start: Any, tmp_path: Path) -> None:
    cluster = start(workers=3, ps=0)
    run = start_run(body(TWICE, tmp_path), Options(strategy="multi_worker", seed=1), cluster=cluster)
    until_all_reach(run, 12)
    kill(cluster, 1)
    until(lambda: bool(restarts(run)) and restarts(run)[0].step is not None, during=run)
    until_all_reach(run, (restarts(run)[0].step or 0) + 30)
    stopped(run, tmp_path / "gate")
    seen = [{step: at for step, *at in one} for one in cluster.run("seen", on=[0, 1, 2])]
    together = sorted(set.intersection(*map(set, seen)))
    assert len(together) > 10
    for step in together:
        assert seen[0][step] == seen[1][step] == seen[2][step], step


@pytest.mark.parametrize("source", [pytest.param(TORCH, id="torch"), pytest.param(JAX, id="jax")])
def test_a_step_that_is_not_finite_is_left_out_or_ends_the_loop(
    cluster: Cluster, tmp_path: Path, source: str
) -> None:
    options = Options(strategy="multi_worker", seed=1)
    run = start_run(body(source, tmp_path, bad=1, nan="skip"), options, cluster=cluster).wait()
    assert (run.skipped, run.global_step) == (3, 3 * STEPS)
    assert all(np.isfinite(one).all() for one in run.results["weights"])
    with pytest.raises(WorkerError, match=r"at step \d+; .*wrap\(nan='skip'\) leaves such steps out"):
        start_run(body(source, tmp_path, bad=1), options, cluster=cluster).wait()
