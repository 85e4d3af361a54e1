"""Learning rates that follow the number of updates, under every strategy: those of one device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from parameter_town import Town
from tiers import matrix
from town_world import served_world

from nbdist.data import Dataset
from nbdist.distribute.central import CentralStorageStrategy
from nbdist.distribute.mirrored import MirroredStrategy
from nbdist.distribute.multi_worker import MultiWorkerMirroredStrategy
from nbdist.distribute.sharded import ShardedStrategy
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD, Adam
from nbdist.optim.schedules import CosineDecay
from nbdist.testing.strategy import (
    SEED,
    AtFirstEpoch,
    World,
    alone_once,
    assert_alike,
    everywhere,
    fitted,
    looped,
    thread_world,
)
from nbdist.train.context import Context, current

RATE = CosineDecay(0.0, 6, alpha=0.1, warmup_target=0.3, warmup_steps=3)
"""Nine updates of 60 rows in batches of 20: up, and down."""


def one(strategy: Any) -> World:
    return [(Context(strategy=strategy, seed=SEED, quiet=True), strategy)]


WORLDS = {
    "mirrored": lambda: one(MirroredStrategy(["CPU:0"] * 2)),
    "central": lambda: one(CentralStorageStrategy(["CPU:0"] * 2)),
    "multi_worker": lambda: thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), 2),
    "sharded 1": lambda: thread_world(lambda place: ShardedStrategy(stage=1, world=place), 2),
    "sharded 2": lambda: thread_world(lambda place: ShardedStrategy(stage=2, world=place), 2),
}


@pytest.fixture(params=matrix(["mirrored", "multi_worker", "ps"], rest=["central", "sharded 1", "sharded 2"]))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "ps":
        with served_world(ps=2, replicas=2) as found:
            yield found
    else:
        yield WORLDS[request.param]()


def test_fit_follows_a_schedule(world: World) -> None:
    train = lambda strategy, _: fitted(strategy, Adam(RATE), 60, 20, epochs=3)[0]
    expected = alone_once(train, "schedule")
    results = everywhere(world, train)
    for weights in results:
        assert_alike(weights, expected, rtol=1e-3, atol=1e-4)
        assert_alike(weights, results[0], rtol=0, atol=0)
    assert world[0][0].progress.learning_rate == pytest.approx(RATE(8))
    constant = alone_once(
        lambda strategy, _: fitted(strategy, Adam(RATE(0)), 60, 20, epochs=3)[0], "constant"
    )
    assert not np.allclose(constant[0], expected[0], atol=1e-3)


def test_a_rate_of_the_user_multiplies_the_rest(world: World) -> None:
    def body(world: World, strategy: Any, context: Context) -> Any:
        ask = AtFirstEpoch(world, context, lambda control: control.set_rate(2 * RATE(3)))
        return fitted(strategy, SGD(RATE), 60, 20, epochs=3, callbacks=[ask])[0]

    expected = alone_once(lambda s, c: body([(c, s)], s, c), "asked")
    results = everywhere(world, lambda strategy, context: body(world, strategy, context))
    for weights in results:
        assert_alike(weights, expected, rtol=1e-3, atol=1e-4)
        assert_alike(weights, results[0], rtol=0, atol=0)
    assert world[0][0].progress.learning_rate == pytest.approx(2 * RATE(8))


def test_a_loop_of_ones_own_follows_a_schedule(world: World) -> None:
    train = lambda strategy, _: looped(strategy, SGD(RATE), 60, 20)[0]
    expected = alone_once(train, "loop")
    for weights in everywhere(world, train):
        assert_alike(weights, expected, rtol=1e-4, atol=1e-5)
    fit = alone_once(lambda strategy, _: fitted(strategy, SGD(RATE), 60, 20, epochs=2)[0], "as fit")
    assert_alike(expected, fit, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ps", [1, 2])
def test_servers_count_the_updates_of_replicas_that_step_by_themselves(ps: int) -> None:
    """Each gradient is 1, whoever makes it: the sum of the rates is that of as many updates."""
    town = Town(ps=ps, replicas=2)
    try:

        def body(replica: int) -> float:
            model = Sequential([Dense(1, kernel_initializer="zeros", use_bias=False)])
            model.compile(SGD(RATE), "mae")
            x = np.ones((40, 1), np.float32)
            model.fit(Dataset.from_arrays(x, np.full((40, 1), 99, np.float32)).batch(10))
            assert current().progress.learning_rate is None if replica else True
            return float(model.get_weights()[0][0, 0])

        found = town.train(body, synchronous=False)
    finally:
        town.close()
    assert found == [pytest.approx(sum(RATE(k) for k in range(8)), rel=1e-5)] * 2
