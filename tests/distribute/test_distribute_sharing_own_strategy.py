"""The strategy of docs/strategies.md, which users write in a cell: the contract of strategies judges it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.distribute import Strategy
from nbdist.optim import SGD
from nbdist.testing import StrategyContract, thread_world
from nbdist.testing.strategy import World, alone, assert_alike, everywhere, fitted, model, points

PAGE = Path(__file__).parent.parent.parent / "docs" / "strategies.md"


def documented() -> Any:
    """Return the class of the page's cell, without the training that follows it."""
    (cell,) = re.findall(
        r"^```python\n%%distribute[^\n]*\n(.*?class LocalSGD.*?)^x, y", PAGE.read_text(), re.M | re.S
    )
    names: dict[str, Any] = {}
    exec(compile(cell, str(PAGE), "exec"), names)
    return names["LocalSGD"]


LocalSGD = documented()


class TestLocalSGD(StrategyContract):
    exact = False

    @pytest.fixture(params=[1, 2])
    def world(self, request: pytest.FixtureRequest) -> World:
        return thread_world(lambda place: LocalSGD(every=request.param, world=place), size=3)


@pytest.mark.parametrize(("rows", "size"), [(61, 20), (5, 2)])
def test_the_mean_after_each_step_is_that_of_one_device(rows: int, size: int) -> None:
    """Updates of SGD are linear, those with momentum too: a mean of them is that of all gradients."""
    world = thread_world(lambda place: LocalSGD(every=1, world=place), size=3)
    expected, steps = alone(lambda strategy, _: fitted(strategy, SGD(0.3, momentum=0.5), rows, size))
    for weights, made in everywhere(world, lambda s, _: fitted(s, SGD(0.3, momentum=0.5), rows, size)):
        assert_alike(weights, expected)
        assert made == steps


def test_workers_differ_between_two_means() -> None:
    world = thread_world(lambda place: LocalSGD(every=3, world=place), size=2)

    def body(strategy: Any, _: Any) -> list[Any]:
        replica = strategy.replica([("w", np.zeros(2, np.float32))], SGD(1.0))
        seen = []
        for _ in range(3):
            replica.pull()
            for gradient in replica.gradients():
                gradient[...] = strategy.replica_index + 1
            replica.push()
            seen.append(float(replica.values[0][0]))
        replica.close()
        return seen

    assert everywhere(world, body) == [[-2, -4, -9], [-4, -8, -9]]


@pytest.mark.parametrize(("size", "share"), [(1, ""), (2, "replica 1's share of each batch")])
def test_losses_are_named_as_those_of_a_share(size: int, share: str) -> None:
    world = thread_world(lambda place: LocalSGD(world=place), size=size)

    def body(strategy: Any, _: Any) -> str:
        with strategy.scope():
            made = model()
            made.compile(SGD(0.1))
        return made.fit(Dataset.from_arrays(*points(8)).batch(4)).share

    assert everywhere(world, body)[-1] == share


def test_a_rate_that_a_loop_assigns_holds_from_the_next_step_on() -> None:
    world = thread_world(lambda place: LocalSGD(every=1, world=place), size=2)

    def body(strategy: Any, context: Any) -> list[float]:
        optimizer = SGD(1.0)
        replica = strategy.replica([("w", np.zeros(1, np.float32))], optimizer)
        seen = []
        for number in range(3):
            assert not replica.agreement.agree(False)
            replica.gradients()[0][...] = 0.5
            replica.push()
            seen.append(float(replica.values[0][0]))
            if number == 0 and context.is_chief:  # all take the first one's
                optimizer.learning_rate = 0.25
        replica.close()
        return seen

    assert everywhere(world, body) == [[-1, -1.25, -1.5]] * 2


def test_a_strategy_has_one_method_to_write_and_three_to_change() -> None:
    found = {name for name, one in vars(Strategy).items() if inspect.isfunction(one) and name[0] != "_"}
    assert found == {"replica", "begin", "companions", "end"}
    assert Strategy.__abstractmethods__ == {"replica"}
