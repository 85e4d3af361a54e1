"""A learning rate that changes during a training reaches all replicas and servers in the same step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from parameter_town import Town
from test_distribute_all_reduce_contract import context

from nbdist.data import Dataset
from nbdist.distribute.all_reduce import AllReduceStrategy
from nbdist.distribute.multi_worker import MultiWorkerMirroredStrategy
from nbdist.errors import FailedPreconditionError
from nbdist.nn import load
from nbdist.optim import SGD
from nbdist.testing.strategy import everywhere, model, points
from nbdist.testing.worlds import ThreadWorld, worlds
from nbdist.train.callbacks import Callback
from nbdist.train.context import Checkpoints
from nbdist.train.one_device import OneDeviceReplica
from nbdist.train.replica import RetryStep, change_rate, rate_of

Array = np.ndarray[Any, Any]
PATIENCE = 30.0
ODD = [0.0, 0.1, 1 / 3, 5e-324, 1e-45, 2.0**-1074 * 3, 6e4 + 1 / 3, 255.0, 0.30000000000000004]


def side_by_side(bodies: list[Callable[[], Any]]) -> None:
    errors: list[BaseException] = []

    def guarded(body: Callable[[], Any]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a replica hangs"
    if errors:
        raise errors[0]


def replicas_of(places: list[ThreadWorld], dtype: Any, rates: tuple[float, ...] = (0.5,) * 3) -> list[Any]:
    """Replicas with an optimizer each, and two variables; the last one's dtype carries the message."""
    made: list[Any] = [None] * len(places)

    def begin(i: int) -> None:
        variables = [("b", np.zeros(3, dtype)), ("w", np.ones((2, 5), np.float32))]
        made[i] = AllReduceStrategy(world=places[i]).replica(variables, SGD(rates[i]))

    side_by_side([lambda i=i: begin(i) for i in range(len(places))])  # type: ignore[misc]
    return made


def step(replica: Any, gradients: float = 1.0) -> None:
    replica.agree(False)
    for gradient in replica.gradients():
        gradient.fill(gradients)
    replica.push()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_rate_reaches_all_replicas_exactly_in_the_next_step(dtype: Any) -> None:
    made = replicas_of(list(worlds(3)), dtype)
    for number, rate in enumerate(ODD, 1):
        for one in reversed(made):  # all are asked, and the first one decides
            one.set_learning_rate(rate)
        assert [one.learning_rate for one in made] == [rate, None, None]
        side_by_side([lambda one=one: step(one, 0.0) for one in made])  # type: ignore[misc]
        assert [one._optimizer.learning_rate for one in made] == [rate] * 3
        side_by_side([lambda one=one: step(one, 0.0) for one in made])  # type: ignore[misc]  # a step without the message
        assert [one._optimizer.learning_rate for one in made] == [rate] * 3
        assert {one.report.global_step for one in made} == {2 * number}
    for one in made:
        one.close()


def test_replicas_whose_optimizers_differ_begin_at_the_first_ones_rate() -> None:
    made = replicas_of(list(worlds(3)), np.float32, rates=(0.25, 0.5, 1.0))
    side_by_side([lambda one=one: step(one) for one in made])  # type: ignore[misc]
    assert [one._optimizer.learning_rate for one in made] == [0.25] * 3
    for one in made:
        np.testing.assert_array_equal(one.values[1], 1 - np.float32(3 * 0.25))
        one.close()


def test_the_last_word_counts() -> None:
    made = replicas_of(list(worlds(2)), np.float32)
    for rate in (0.1, 0.2, 0.3):
        made[0].set_learning_rate(rate)
    side_by_side([lambda one=one: step(one) for one in made])  # type: ignore[misc]
    assert [one._optimizer.learning_rate for one in made] == [0.3, 0.3]
    expected = 1 - np.float32(2 * 0.3)
    np.testing.assert_allclose(made[1].values[1], expected, rtol=1e-6)


class Dying(ThreadWorld):
    """A world without its last replica from the first reform on."""

    def reform(self, admits: Any = (), leaves: bool = False) -> Any:
        lost, self.ranks = self.ranks[-1:], self.ranks[:-1]
        infos = [SimpleNamespace(name=f"replica {i}", pid=0, rank=i, incarnation=i) for i in lost]
        return SimpleNamespace(lost=infos, left=[])


def test_a_rate_survives_a_death_in_its_step(capsys: pytest.CaptureFixture[str]) -> None:
    made_groups: dict[Any, Any] = {}
    made = replicas_of([Dying(i, 3, made_groups) for i in range(3)], np.float32)
    side_by_side([lambda one=one: step(one) for one in made])  # type: ignore[misc]
    for one in made:
        one.set_learning_rate(0.125)
    made[2].close()  # it ends before it sends its gradients

    def again(one: Any) -> None:
        with pytest.raises(RetryStep):
            step(one)
        step(one)

    side_by_side([lambda one=one: again(one) for one in made[:2]])  # type: ignore[misc]
    assert [one._optimizer.learning_rate for one in made[:2]] == [0.125] * 2
    assert [one.report.global_step for one in made[:2]] == [2, 2]
    for one in made[:2]:
        np.testing.assert_allclose(one.values[1], 1 - 3 * 0.5 - 2 * 0.125)
    assert "replica 2 (pid 0) is lost" in capsys.readouterr().out


def test_a_recovering_replica_takes_the_rate_of_the_most_advanced_one() -> None:
    """A replica lost the step that changed the rate, which another one has made."""
    made_groups: dict[Any, Any] = {}
    made = replicas_of([Dying(i, 3, made_groups) for i in range(3)], np.float32)
    made[1]._optimizer.learning_rate, made[1].report.global_step = 0.75, 1
    made[0].set_learning_rate(0.75)
    made[2].close()

    def cut_off(one: Any) -> None:
        one._recover(ConnectionError())

    side_by_side([lambda one=one: cut_off(one) for one in made[:2]])  # type: ignore[misc]
    assert [(one._optimizer.learning_rate, one.report.global_step) for one in made[:2]] == [(0.75, 1)] * 2


@pytest.mark.parametrize("options", [{}, {"staleness": 2}, {"transport": "socket"}], ids=str)
def test_all_servers_change_before_the_first_replica_continues(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """With a rate of 0 no gradient changes the weights."""
    town = Town(ps=2, replicas=3)
    tmp_path.chmod(0o700)

    class Ask(Callback):
        def __init__(self, index: int) -> None:
            self.index = index

        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if self.index == 0 and epoch in (1, 2):
                for control in town.controls:
                    control.set_rate(0.0) if epoch == 1 else control.ask_checkpoint(1)

    def body(index: int) -> Any:
        one = town.contexts[index]
        if index == 0:
            one.checkpoints = Checkpoints(tmp_path / "checkpoints")
        made = model()
        made.compile(SGD(0.3))
        data = Dataset.from_arrays(*points(60)).shuffle(60).batch(20)
        made.fit(data, epochs=6, callbacks=[Ask(index)])
        return made.get_weights(), one.progress.learning_rate

    results = town.train(body, **options)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    (weights, rate), *others = results
    assert rate == 0.0
    assert [shown for _, shown in others] == [None, None]
    found = town.contexts[0].progress.checkpoint
    assert found is not None
    for a, b in zip(load(found["path"]).get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)
    town.close()


def test_a_rate_changes_before_the_first_step() -> None:
    found = []
    for i, place in enumerate(worlds(2)):
        strategy = MultiWorkerMirroredStrategy(world=place)
        found.append((context(strategy, place, is_chief=i == 0), strategy))
    for one, _ in found:
        one.control.set_rate(0.25)

    def body(strategy: Any, one: Any) -> float | None:
        made = model()
        made.compile(SGD(0.5))
        seen: list[float | None] = []

        class See(Callback):
            def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
                seen.append(made.optimizer.learning_rate)  # type: ignore[union-attr]

        made.fit(Dataset.from_arrays(*points(20)).batch(20), epochs=1, callbacks=[See()])
        return seen[0]

    assert everywhere(found, body) == [0.25, 0.25]


def test_a_replica_that_knows_no_rate_says_so() -> None:
    class Plain(OneDeviceReplica):
        rate = None

    plain = Plain([("w", np.ones(2, np.float32))], SGD(0.1))
    assert rate_of(plain) is None
    with pytest.raises(FailedPreconditionError, match="Plain cannot change its learning rate"):
        change_rate(plain, 0.2)
