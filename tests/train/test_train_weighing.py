"""What a share of a batch counts, and the history of the whole batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.distribute import MultiWorkerMirroredStrategy, ShardedStrategy, Strategy
from nbdist.errors import InvalidArgumentError
from nbdist.optim import SGD
from nbdist.testing import thread_world
from nbdist.testing.strategy import alone, everywhere, model, points
from nbdist.train.context import Context
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.weighing import counted_in


@pytest.mark.parametrize("make", [MultiWorkerMirroredStrategy, partial(ShardedStrategy, stage=2)])
def test_history_is_that_of_whole_batches_on_every_replica(make: Any) -> None:
    """Of 22 rows by 5 the last batch has fewer examples than there are replicas."""

    def history(strategy: Strategy, _: Context) -> dict[str, list[float]]:
        with strategy.scope():
            made = model()
            made.compile(SGD(0.3), metrics=["accuracy"])
        data = Dataset.from_arrays(*points(22)).shuffle(22).batch(5)
        return dict(made.fit(data, epochs=3).history)

    expected = alone(history)
    for found in everywhere(thread_world(lambda place: make(world=place), 3), history):
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


def test_a_loss_that_does_not_count_examples_is_refused_where_shares_do() -> None:
    strategy = OneDeviceStrategy()
    replica = OneDeviceReplica([("w", np.zeros(1, np.float32))], SGD(0.1))
    assert counted_in(3.0, replica, strategy, 4) is None  # there are no shares
    strategy.num_replicas_in_sync = 2
    assert counted_in(None, replica, strategy, 4) is None
    with pytest.raises(InvalidArgumentError, match=r"counts 3 where there are 4 examples.*multi_worker"):
        counted_in(3.0, replica, strategy, 4)
