"""In-graph runs with data read by the workers; only an option differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from nbdist.errors import InvalidArgumentError, WorkerError
from nbdist.metrics.run_folder import read_run
from nbdist.ui.api import launch

if TYPE_CHECKING:
    from nbdist.cluster.cluster import Cluster

pytestmark = pytest.mark.engines

TRAIN = """
import numpy as np
rng = np.random.default_rng(0)
y = np.arange(64) % 3
x = (rng.normal(size=(64, 4)) * 0.3 + np.eye(3, 4)[y] * 2).astype(np.float32)
model = nb.nn.Sequential([nb.nn.Dense(8, "tanh"), nb.nn.Dropout(0.1), nb.nn.Dense(3, "softmax")])
model.compile(nb.optim.SGD(0.3), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(nb.data.Dataset.from_arrays(x, y).shuffle(64).batch(20), epochs=4, validation_data=(x, y))
"""


def test_reading_on_workers_gives_the_same_weights(cluster: Cluster) -> None:
    runs = [
        launch(TRAIN, replication="in-graph", sync=True, data=data, seed=3, live=False, cluster=cluster)
        for data in ("client", "workers")
    ]
    for fed, read in zip(*(run.model.get_weights() for run in runs), strict=True):  # type: ignore[union-attr]
        np.testing.assert_array_equal(fed, read)
    assert runs[0].history.history == runs[1].history.history  # type: ignore[union-attr]
    assert [read_run(run.id).options["data"] for run in runs] == ["client", "workers"]
    assert runs[1].timeline().totals()


def test_asynchronous_towers_read(cluster: Cluster) -> None:
    run = launch(TRAIN, replication="in-graph", data="workers", live=False, cluster=cluster)
    assert run.global_step == 3 * 4 * 4
    assert run.model.evaluate(run.results["x"], run.results["y"])["accuracy"] > 0.8  # type: ignore[union-attr]


def test_a_dataset_that_cannot_be_sent_is_an_error(cluster: Cluster) -> None:
    body = TRAIN.replace(".batch(20)", ".map(lambda x, y: (x, y)).batch(20)")
    with pytest.raises(WorkerError, match=r"map\(\) in a dataset holds a function.*data='client'"):
        launch(body, replication="in-graph", data="workers", live=False, cluster=cluster)
    with pytest.raises(InvalidArgumentError, match="drop --data"):
        launch(TRAIN, data="workers", live=False, cluster=cluster)


def test_a_worker_that_finds_a_wrong_label_is_named(cluster: Cluster) -> None:
    body = TRAIN.replace("model.compile", "y[7] = 5\nmodel.compile").replace(", validation_data=(x, y)", "")
    with pytest.raises(
        WorkerError, match=r"outputs \(classes 0 to 2\), at 'replica_\w+/check_classes.* on /job:worker"
    ):
        launch(body, replication="in-graph", sync=True, data="workers", live=False, cluster=cluster)
