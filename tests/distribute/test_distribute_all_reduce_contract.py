"""Synchronous strategies, each tested with the contract."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiers import matrix
from town_world import served_world

from nbdist.distribute import all_reduce
from nbdist.distribute.central import CentralStorageStrategy
from nbdist.distribute.mirrored import MirroredStrategy
from nbdist.distribute.multi_worker import MultiWorkerMirroredStrategy
from nbdist.distribute.sharded import ShardedStrategy
from nbdist.errors import InvalidArgumentError, UnavailableError
from nbdist.optim import SGD
from nbdist.runtime import groups
from nbdist.testing.strategy import (
    BATCHES,
    SEED,
    StrategyContract,
    World,
    alone,
    assert_alike,
    everywhere,
    overflowing,
    thread_world,
)
from nbdist.train.context import Context
from nbdist.train.one_device import OneDeviceStrategy
from nbdist.wire.collective.buckets import plan_buckets


def context(strategy: Any, world: groups.World | None = None, **options: Any) -> Context:
    return Context(strategy=strategy, seed=SEED, quiet=True, world=world or groups.World(), **options)


class Batches:
    """Before the contract: which of its batches are in which tier."""

    @pytest.fixture(params=matrix(map(pytest.param, BATCHES[:2]), rest=map(pytest.param, BATCHES[2:])))
    def batch(self, request: pytest.FixtureRequest) -> Any:
        return request.param


class TestOneDevice(Batches, StrategyContract):
    @pytest.fixture
    def world(self) -> World:
        strategy = OneDeviceStrategy()
        return [(context(strategy), strategy)]


class TestMirroredDevices(Batches, StrategyContract):
    """Several replicas of one process."""

    @pytest.fixture(params=matrix([2], rest=[3]))
    def world(self, request: pytest.FixtureRequest) -> World:
        strategy = MirroredStrategy(["CPU:0"] * request.param)
        return [(context(strategy), strategy)]


class TestCentralDevices(Batches, StrategyContract):
    @pytest.fixture
    def world(self) -> World:
        strategy = CentralStorageStrategy(["CPU:0"] * 2)
        return [(context(strategy), strategy)]


class TestMultiWorker(Batches, StrategyContract):
    """One replica in each of several processes; tests/first/test_first_contract.py has two."""

    @pytest.fixture
    def world(self) -> World:
        return multi_worker(3)


def multi_worker(size: int) -> World:
    return thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), size)


class TestSharded(Batches, StrategyContract):
    """Parts of the optimizer's state, and of gradients; 3 replicas have parts of different variables."""

    @pytest.fixture(params=matrix([pytest.param((2, 1)), pytest.param((3, 2))], rest=[pytest.param((3, 1))]))
    def world(self, request: pytest.FixtureRequest) -> World:
        return sharded(*request.param)


class TestShardedParameters(Batches):
    """Stage 3, which trains by fit: each variable is a unit, and most parts are of 64 bytes."""

    @pytest.fixture(params=matrix([3], rest=[2]))
    def world(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
        monkeypatch.setattr(all_reduce, "plan_buckets", small_units)
        return sharded(request.param, stage=3)

    exact = True
    assert_as_alone = StrategyContract.assert_as_alone
    test_fit_is_that_of_one_device = StrategyContract.test_fit_is_that_of_one_device
    test_fit_with_adam_and_dropout = StrategyContract.test_fit_with_adam_and_dropout
    test_callbacks_find_the_newest_weights_in_the_model = (
        StrategyContract.test_callbacks_find_the_newest_weights_in_the_model
    )
    test_fit_stops_everywhere = StrategyContract.test_fit_stops_everywhere
    test_a_rate_changes_between_the_same_two_steps = (
        StrategyContract.test_a_rate_changes_between_the_same_two_steps
    )
    test_a_checkpoint_is_of_its_step = StrategyContract.test_a_checkpoint_is_of_its_step
    test_a_paused_training_writes_checkpoints = StrategyContract.test_a_paused_training_writes_checkpoints

    def test_a_gradient_that_overflows_on_one_replica_is_left_out_on_all(self, world: World) -> None:
        (weights, scale), *others = everywhere(world, lambda strategy, _: overflowing(strategy, loop=False))
        expected, alike = alone(lambda strategy, _: overflowing(strategy, loop=False))
        assert scale == alike == 2048
        assert_alike(weights, expected, rtol=1e-3)
        for theirs, also in others:
            assert also == scale
            assert_alike(theirs, weights, rtol=0, atol=0)


small_units = partial(plan_buckets, limit=64, first=64)
"""Units of one variable each, of which small models have several."""


def sharded(size: int, stage: int = 1) -> World:
    return thread_world(lambda place: ShardedStrategy(stage=stage, world=place), size)


class TestSynchronousParameterServers(Batches, StrategyContract):
    """The run's collective reduces values other than gradients."""

    @pytest.fixture
    def world(self) -> Iterator[World]:
        with served_world(ps=2, replicas=2) as found:
            yield found


def test_no_gradient_leaves_a_replica_that_may_skip_before_its_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where buckets are reduced during the backward pass, others would have had the NaN already."""
    monkeypatch.setattr(all_reduce, "count_cores", lambda: 999)
    marked: dict[int, list[list[str]]] = {0: [], 1: []}

    def body(strategy: Any, here: Context) -> Any:
        variables = [("v", np.zeros(1 << 18, np.float32)), ("w", np.zeros(3, np.float32))]
        replica = strategy.replica(variables, SGD(1.0))
        names, mark = list[str](), replica._buckets.mark
        replica._buckets.mark = lambda name, **how: (names.append(name), mark(name, **how))
        for withholds in (False, True):
            replica.hooks.withholds = withholds
            names.clear()
            for number, gradient in reversed([*enumerate(replica.gradients())]):
                gradient[...] = np.nan if withholds and not here.is_chief else 1
                replica._ready(number)
            marked[strategy.replica_index].append(list(names))
            replica.skip() if withholds and not here.is_chief else replica.push()
        found = [value.max() for value in replica.values]
        replica.close()
        return found

    assert everywhere(multi_worker(2), body) == [[-3, -3], [-3, -3]]
    assert marked == {0: [["1", "0"], []], 1: [["1", "0"], []]}


def test_central_storage_is_of_one_host() -> None:
    on_two_hosts = SimpleNamespace(size=2, index=0, hosts=("left", "right"))
    with pytest.raises(InvalidArgumentError, match=r"the run's workers are on 2; use --strategy ps"):
        CentralStorageStrategy(world=on_two_hosts)  # type: ignore[arg-type]  # what it reads first


def test_a_step_that_some_have_left_out_is_not_repeated_after_a_death() -> None:
    """A death interrupts the exchange of a left-out step, and only the first replica has completed it."""

    def body(strategy: Any, here: Context) -> tuple[bool, int, int]:
        replica = strategy.replica([("w", np.zeros(3, np.float32))], SGD(0.1))
        replica.report.global_step, replica.report.overflows = 3, int(here.is_chief)
        replica.form_again = lambda error: replica.take_newest()
        repeats = replica._recover(UnavailableError("a worker is lost"))
        replica.close()
        return repeats, replica.report.global_step, replica.report.overflows

    assert everywhere(multi_worker(2), body) == [(True, 3, 1), (False, 3, 1)]


def test_the_end_of_an_epoch_that_some_have_agreed_on_is_not_repeated_after_a_reset() -> None:
    """Nor are measures lost with a step that only the first replica has completed."""

    def body(strategy: Any, here: Context) -> tuple[bool, int, bool, Any]:
        replica = strategy.replica([("w", np.zeros(3, np.float32))], SGD(0.1))
        replica.form_again = lambda error: replica.take_newest()
        if here.is_chief:
            replica._ends, replica._ended = 1, True
            replica._agreed[all_reduce.MEASURES :] = 6, 4, 0, 4
        repeats = replica._recover(UnavailableError("a connection is lost"))
        replica._take_measures()
        replica.close()
        return repeats, replica._ends, replica._ended, replica.report.measured

    assert everywhere(multi_worker(2), body) == [(True, 1, True, (1.5,)), (False, 1, True, (1.5,))]
