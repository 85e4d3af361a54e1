"""Real runs on real engines, read from their folders only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import until

from nbdist.cluster.cluster import Cluster
from nbdist.lab.readers.run_detail import run_bundle, run_details
from nbdist.lab.readers.runs import Runs
from nbdist.run.options import Options
from nbdist.run.run import Run
from nbdist.run.start import start_run

pytestmark = pytest.mark.engines

TRAIN = """
import time
import numpy as np
x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(0.1), "sparse_categorical_crossentropy")
slow = lambda x, y: time.sleep(0.002) or (x, y)
history = model.fit(nb.data.Dataset.from_arrays(x, np.arange(60) % 3).batch(20).map(slow), epochs={epochs})
"""
FOR_EVER = 1_000_000


@pytest.fixture
def start_endless(cluster: Cluster) -> Iterator[Callable[..., Run]]:
    """Start runs that last until they are stopped, at the latest at the end of the test."""
    begun: list[Run] = []

    def begin(**options: Any) -> Run:
        begun.append(start_run(TRAIN.format(epochs=FOR_EVER), Options(**options), cluster=cluster))
        return begun[-1]

    yield begin
    for run in begun:
        run.stop()
        run.wait()


def item_of(runs: Runs, run: Run) -> dict[str, Any]:
    return next(item for item in runs.poll() if item["id"] == run.id)


@pytest.mark.parametrize(
    "options",
    [{"strategy": "multi_worker"}, {"strategy": "ps"}, {"replication": "in-graph"}],
    ids=["multi_worker", "ps", "in-graph"],
)
def test_a_run_is_listed_from_start_to_end(
    start_endless: Callable[..., Run], cluster: Cluster, options: dict[str, Any]
) -> None:
    runs, run = Runs(), start_endless(name="look", **options)

    def all_train() -> bool:
        item_of(runs, run)
        tasks = runs.tasks_of(run.id)
        return tasks.keys() == {0, 1, 2} and {one["state"] for one in tasks.values()} == {"running"}

    until(all_train, during=run)
    until(
        lambda: item_of(runs, run)["steps_per_second"] and item_of(runs, run)["value"] is not None, during=run
    )
    item = item_of(runs, run)
    assert (item["status"], item["replicas"], item["cluster"]) == ("running", 3, cluster.id)
    assert item["total"] > item["step"] > 0
    assert item["can"]["stop"] == ("replication" not in options)
    run.stop()
    run.wait()
    item = item_of(runs, run)
    assert (item["status"], item["step"]) == ("stopped", run.standing().step)
    assert item["metric"] == "loss"
    assert item["curve"]["x"][-1] == min(int(run.store.points(i, "loss")[0][-1]) for i in range(3))
    assert run_bundle(run.id, runs)["step"] == item["step"]
    names = {one["path"] for one in run_details(run.id, runs)["files"]}
    assert names >= {"run.json", "metrics-0000.log", "progress-0000.json", "progress-0002.json"}


def test_a_pause_is_listed(start_endless: Callable[..., Run]) -> None:
    runs, run = Runs(), start_endless(strategy="multi_worker")
    until(lambda: item_of(runs, run)["steps_per_second"], during=run)
    run.pause()
    until(lambda: item_of(runs, run)["status"] == "paused", during=run)
    run.resume()
    until(lambda: item_of(runs, run)["status"] == "running", during=run)
    run.stop()
    run.wait()
    assert item_of(runs, run)["status"] == "stopped"
