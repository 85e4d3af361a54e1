"""Schedules, clipping, accumulation, decay and callbacks under every strategy: those of one device."""

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
from nbdist.errors import InvalidArgumentError
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD, Adam, AdamW
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
    model,
    points,
    thread_world,
)
from nbdist.train import LearningRateScheduler, ReduceLROnPlateau, TerminateOnNaN
from nbdist.train.context import Context, current
from nbdist.train.one_device import OneDeviceStrategy

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
            made = Sequential([Dense(1, kernel_initializer="zeros", use_bias=False)])
            made.compile(SGD(RATE), "mae")
            x = np.ones((40, 1), np.float32)
            made.fit(Dataset.from_arrays(x, np.full((40, 1), 99, np.float32)).batch(10))
            assert current().progress.learning_rate is None if replica else True
            return float(made.get_weights()[0][0, 0])

        found = town.train(body, synchronous=False)
    finally:
        town.close()
    assert found == [pytest.approx(sum(RATE(k) for k in range(8)), rel=1e-5)] * 2


def excluding(optimizer: Any, *names: str) -> Any:
    optimizer.exclude_from_weight_decay(var_names=names)
    return optimizer


SETTINGS = {
    "clipnorm": lambda: SGD(0.5, momentum=0.5, clipnorm=0.05),
    "clipvalue": lambda: SGD(0.5, clipvalue=0.01),
    "global_clipnorm": lambda: Adam(0.05, global_clipnorm=0.1),
    "accumulation": lambda: SGD(0.5, momentum=0.5, gradient_accumulation_steps=2),
    "accumulation and clipping": lambda: Adam(0.05, gradient_accumulation_steps=3, clipvalue=0.02),
    "weight decay": lambda: excluding(SGD(RATE, weight_decay=0.5), "bias"),
    "AdamW": lambda: excluding(AdamW(0.05, weight_decay=0.5), "^dense/", "bias$"),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_fit_updates_as_one_device(world: World, setting: str) -> None:
    """It also is what the formulas say: tests/test_optim_update.py."""
    train = lambda strategy, _: fitted(strategy, SETTINGS[setting](), 60, 20, epochs=3)
    if setting == "global_clipnorm" and world[0][1].name == "ps":
        with pytest.raises(InvalidArgumentError, match=r"2 parameter servers, .* take one server \(--ps 1\)"):
            everywhere(world, train)
        return
    expected, steps = alone_once(train, setting)
    results = everywhere(world, train)
    for weights, made in results:
        assert_alike(weights, expected, rtol=1e-3, atol=1e-4)
        assert_alike(weights, results[0][0], rtol=0, atol=0)
        assert made == steps == 9


@pytest.mark.parametrize("setting", ["clipnorm", "accumulation"])
def test_a_loop_updates_as_one_device(world: World, setting: str) -> None:
    train = lambda strategy, _: looped(strategy, SETTINGS[setting](), 60, 20)[0]
    expected = alone_once(train, "loop", setting)
    for weights in everywhere(world, train):
        assert_alike(weights, expected, rtol=1e-3, atol=1e-4)
    plain = alone_once(lambda strategy, _: looped(strategy, SGD(0.5, momentum=0.5), 60, 20)[0], "plain loop")
    assert not np.allclose(plain[0], expected[0], atol=1e-3)


def test_one_server_knows_the_norm_of_all_gradients() -> None:
    train = lambda strategy, _: fitted(strategy, SETTINGS["global_clipnorm"](), 60, 20, epochs=3)[0]
    with served_world(ps=1, replicas=2) as world:
        for weights in everywhere(world, train):
            assert_alike(weights, alone_once(train, "one server"), rtol=1e-3, atol=1e-4)


def test_a_strategy_of_ones_own_that_only_applies_is_given_nothing_else() -> None:
    class Own(OneDeviceStrategy):
        name = "own"
        calls_update = False

    with pytest.raises(
        InvalidArgumentError, match=r"SGD\(clipnorm=1.0\): strategy own only applies the optimizer"
    ):
        everywhere(one(Own()), lambda strategy, _: fitted(strategy, SGD(0.1, clipnorm=1.0), 60, 20))


@pytest.mark.parametrize("setting", ["clipnorm", "global_clipnorm", "weight decay"])
def test_towers_of_one_graph_update_as_one_device(town: Any, setting: str) -> None:
    expected = alone_once(lambda *_: in_graph(SETTINGS[setting]()), "in graph", setting)
    (weights,) = everywhere(one(town(workers=2, ps=2)), lambda *_: in_graph(SETTINGS[setting]()))
    assert_alike(weights, expected, rtol=1e-3, atol=1e-4)


def test_a_graph_does_not_accumulate(town: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="gradient_accumulation_steps=2 is for fit"):
        everywhere(one(town(workers=2)), lambda *_: in_graph(SETTINGS["accumulation"]()))


def in_graph(optimizer: Any) -> Any:
    """Train by fit, without a scope, which is for loops of one's own."""
    made = model()
    made.compile(optimizer)
    made.fit(Dataset.from_arrays(*points(60)).shuffle(60).batch(20), epochs=3)
    return made.get_weights()


def test_callbacks_set_one_rate_for_all(world: World) -> None:
    """Each replica watches what it knows, under ps its own share's loss; the first one's rate is all's."""

    def train(strategy: Any, _: Context) -> Any:
        callbacks = [
            LearningRateScheduler(lambda epoch, rate: 0.3 / (epoch + 1)),
            ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=9),
        ]
        return fitted(strategy, SGD(0.1), 60, 20, epochs=4, callbacks=callbacks)[0]

    expected = alone_once(train, "callbacks")
    results = everywhere(world, train)
    for weights in results:
        assert_alike(weights, expected, rtol=1e-4, atol=1e-5)
        assert_alike(weights, results[0], rtol=0, atol=0)


def test_a_step_that_is_not_finite_ends_the_training_of_all(world: World) -> None:
    """The last example of the second batch is that of one replica."""
    x, y = points(60)
    x[39] = np.nan

    def train(strategy: Any, context: Context) -> Any:
        with strategy.scope():
            made = model()
            made.compile(SGD(0.1))
        made.fit(Dataset.from_arrays(x, y).batch(20), epochs=50, callbacks=[TerminateOnNaN()])
        return made.get_weights(), context.progress.step

    results = everywhere(world, train)
    for weights, steps in results:
        assert 2 <= steps <= 4  # servers and all-reduce tell the others with the next step
        assert all(np.isfinite(one).all() for one in weights)
        assert_alike(weights, results[0][0], rtol=0, atol=0)
