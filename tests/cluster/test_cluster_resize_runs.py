"""Runs on a cluster that has grown or shrunk, and changes during runs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import matrix
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.errors import FailedPreconditionError, InvalidArgumentError
from nbdist.metrics.table import as_columns, parts_from_logs
from nbdist.run.attach import attach_run
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

pytestmark = pytest.mark.engines
Start = Callable[..., Cluster]

TRAIN = """
import numpy as np
x = np.random.default_rng(0).random((96, 5), np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, activation="tanh"), nb.nn.Dense(1)])
model.compile(nb.optim.SGD(0.1), "mse")
history = model.fit(nb.data.Dataset.from_arrays(x, x[:, :1]).batch(24), epochs=3)
weights = [w for w in model.get_weights()]
"""
TOGETHER = """
import json, os, pathlib
import numpy as np
config = json.loads(os.environ["TF_CONFIG"])
total = float(nb.collective.all_reduce(np.array([2.0 ** nb.task.index]), op="sum")[0])
ranks = np.asarray(nb.collective.all_gather(np.array([nb.task.rank]))).ravel().tolist()
place = [nb.collective.rank(), nb.collective.size(), nb.task.is_chief]
seen = [config["task"]["index"], place, total, ranks, config["cluster"]]
pathlib.Path(folder, f"{nb.task.index}.json").write_text(json.dumps(seen))
"""
GATED = """
import pathlib, threading
import numpy as np
gate = pathlib.Path(folder, "open")
pathlib.Path(folder, f"begun-{nb.task.index}").touch()
while not gate.exists():
    threading.Event().wait(0.01)
total = float(nb.collective.all_reduce(np.ones(1), op="sum")[0])
"""


def ignore(line: str) -> None:
    """Ignore a report."""


def trained(cluster: Cluster, **options: Any) -> tuple[Run, list[np.ndarray]]:
    given = {"synchronous": True, "seed": 3, "fetch": ("weights",), **options}
    run = start_run(TRAIN, Options(**given), cluster=cluster).wait()
    return run, run.results["weights"]


def results_of_all(cluster: Cluster, folder: Path, **options: Any) -> list[list[Any]]:
    """Return the results of each body of TOGETHER."""
    for path in folder.glob("*.json"):
        path.unlink()
    start_run(TOGETHER, Options(**options), cluster=cluster, names={"folder": str(folder)}).wait()
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize("strategy", matrix(["ps"], rest=["multi_worker", "central"]))
def test_the_next_run_trains_on_the_new_workers(start: Start, strategy: str) -> None:
    """Synchronous training, which gives one device's result for any number of replicas."""
    cluster = start(1, 1)
    before, _ = trained(cluster, strategy=strategy)
    cluster.grow(2, report=ignore)
    after, weights = trained(cluster, strategy=strategy)
    _, alone = trained(cluster, strategy="one_device", synchronous=None, on="worker:0")
    assert before.tasks == ["/job:worker/task:0"]
    assert after.tasks == [f"/job:worker/task:{index}" for index in range(3)]
    for ours, theirs in zip(weights, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert {path.name for path in after.folder.glob("metrics-*")} == {
        f"metrics-{rank:04}.log" for rank in (0, 2, 3)
    }
    assert sorted(set(as_columns(parts_from_logs(after.folder))["replica"])) == [0, 1, 2]
    # Worker 0 has run another body since.
    again = attach_run(after.id)
    assert (again.tasks, again.status) == (after.tasks, "finished")


@pytest.mark.parametrize("collective", matrix(["auto"], rest=["ring"]))
def test_collectives_and_tf_config_have_all_workers(start: Start, tmp_path: Path, collective: str) -> None:
    """Even with unused ranks, and with bodies on some of the workers."""
    cluster = start(2, 1)
    cluster.grow(2, report=ignore)
    every = [0, 1, 3, 4]
    spec = {"worker": [cluster.tasks[rank].address for rank in every], "ps": [cluster.tasks[2].address]}
    assert results_of_all(cluster, tmp_path, collective=collective) == [
        [index, [index, 4, index == 0], 15.0, every, spec] for index in range(4)
    ]
    cluster.shrink(3, report=ignore)
    ((index, place, total, ranks, spec),) = results_of_all(cluster, tmp_path)
    assert (index, place, total, ranks) == (0, [0, 1, True], 1.0, [0])
    assert spec == cluster.spec.as_dict()
    cluster.grow(2, report=ignore)
    assert [seen[3] for seen in results_of_all(cluster, tmp_path, collective=collective)] == [[0, 1, 3]] * 3
    some = results_of_all(cluster, tmp_path, collective=collective, on="worker:1-2")
    assert [seen[:4] for seen in some] == [[index, [index - 1, 2, False], 6.0, [1, 3]] for index in (1, 2)]
    with pytest.raises(InvalidArgumentError, match=r"no task 3 in job 'worker'; it has 0 to 2"):
        start_run("1", Options(on="worker:3"), cluster=cluster)


@pytest.mark.parametrize("strategy", matrix(["ps"], rest=[None]))
def test_an_active_run_keeps_its_tasks(start: Start, tmp_path: Path, strategy: str | None) -> None:
    cluster = start(2, 1)
    options = Options(strategy=strategy, on="worker:0-1")
    names = {"folder": str(tmp_path)}
    run = start_run(GATED + TRAIN if strategy else GATED, options, cluster=cluster, names=names)
    until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
    lines: list[str] = []
    cluster.grow(2, report=lines.append)
    assert f"run {run.id} continues on its tasks; the next run uses the new ones too" in lines[0]
    with pytest.raises(FailedPreconditionError, match=rf"run {run.id} is using /job:worker/task:1: end it"):
        cluster.shrink(3)
    assert len(cluster.tasks) == 5
    other = start_run("n = nb.task.index", Options(on="worker:2"), cluster=cluster).wait()
    assert other.results["n"] == 2
    cluster.shrink(1, report=ignore)
    os.kill(cluster.tasks[3].pid, signal.SIGKILL)  # worker:2 is not in the run
    until(cluster.dead)
    (tmp_path / "open").touch()
    run.wait()
    assert (run.status, run.results["total"]) == ("finished", 2.0)
    cluster.shrink(1, report=ignore)
    assert len(cluster.tasks) == 3


def test_the_notebook_as_a_task_and_a_new_worker_may_have_one_rank(start: Start, tmp_path: Path) -> None:
    """During an in-graph run the notebook has the rank after the cluster's last."""
    cluster = start(1)
    body = TRAIN.replace("history =", "grow(pathlib.Path(folder))\nhistory =")
    new: list[int] = []

    def grow(folder: Path) -> None:
        new.extend(info.pid for info in cluster.grow(report=ignore))
        os.kill(new[0], signal.SIGKILL)
        until(cluster.dead)

    names = {"folder": str(tmp_path), "grow": grow, "pathlib": __import__("pathlib")}
    options = Options(replication="in-graph", synchronous=True, seed=3, fetch=("weights",))
    run = start_run(body, options, cluster=cluster, names=names).wait()
    assert run.status == "finished"
    assert [info.pid for info in cluster.dead()] == new
    cluster.restart(report=ignore)
    both, weights = trained(cluster, replication="in-graph")
    assert len(both.tasks) == 2
    for ours, theirs in zip(weights, run.results["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
