"""Training through parameter servers: N synchronous replicas compute what one device would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from parameter_town import SEED, Town
from tiers import matrix

from nbdist.data import Dataset
from nbdist.distribute import OneDeviceStrategy, ParameterServerStrategy, Strategy, get_strategy
from nbdist.errors import AbortedError, InvalidArgumentError, NanLossError
from nbdist.nn import BatchNorm, Dense, Dropout, Sequential
from nbdist.optim import SGD, Adam, Optimizer
from nbdist.runtime.task import Task
from nbdist.train import Callback, EarlyStopping
from nbdist.train.callbacks import History
from nbdist.train.context import Context, use_here

Array = np.ndarray[Any, Any]


@pytest.fixture
def town() -> Iterator[Callable[[int, int], Town]]:
    towns: list[Town] = []

    def make(ps: int, replicas: int) -> Town:
        towns.append(Town(ps, replicas))
        return towns[-1]

    yield make
    for one in towns:
        one.close()


def points(rows: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 3
    return (rng.normal(size=(rows, 4)) * 0.5 + np.eye(3, 4)[y]).astype(np.float32), y


def model(optimizer: Optimizer, seed: int | None = 5) -> Sequential:
    made = Sequential([Dense(6, activation="tanh"), Dense(3, activation="softmax")], seed=seed)
    made.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"])
    return made


def fit(
    optimizer: Optimizer, rows: int, size: int, epochs: int = 3, **options: Any
) -> tuple[list[Array], History]:
    made = model(optimizer)
    history = made.fit(Dataset.from_arrays(*points(rows)).shuffle(rows).batch(size), epochs=epochs, **options)
    return made.get_weights(), history


def one_device(*arguments: Any, **options: Any) -> tuple[list[Array], History]:
    """Train on one device, as the comparison."""
    with use_here(Context(seed=SEED, quiet=True)):
        return fit(*arguments, **options)


def raised(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


EVEN, THIRD, LAST_OF_1, LAST_OF_2, ODD, TINY = (60, 20), (60, 12), (61, 20), (62, 20), (30, 7), (5, 2)
"""Rows of a dataset, and those of a batch."""
FIRST = [
    (EVEN, 2, 1, "auto"),
    (EVEN, 3, 2, "socket"),
    (THIRD, 3, 1, "socket"),
    (LAST_OF_1, 3, 2, "auto"),
    (LAST_OF_1, 2, 2, "socket"),
    (LAST_OF_2, 3, 1, "auto"),
    (ODD, 2, 2, "auto"),
    (ODD, 3, 1, "socket"),
    (TINY, 3, 2, "auto"),
    (TINY, 2, 1, "socket"),
]
"""Each pair of values occurs."""
CASES = itertools.product([EVEN, THIRD, LAST_OF_1, LAST_OF_2, ODD, TINY], [2, 3], [1, 2], ["auto", "socket"])


@pytest.mark.parametrize(
    ("batches", "replicas", "ps", "transport"), matrix(FIRST, rest=[c for c in CASES if c not in FIRST])
)
def test_synchronous_replicas_compute_what_one_device_would(
    town: Callable[[int, int], Town], batches: tuple[int, int], replicas: int, ps: int, transport: str
) -> None:
    rows, size = batches
    expected, history = one_device(SGD(0.3, momentum=0.5), rows, size)
    results = raised(
        town(ps, replicas).train(
            lambda i: fit(SGD(0.3, momentum=0.5), rows, size), synchronous=True, transport=transport
        )
    )
    for weights, own in results:
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
        assert own.global_step == history.global_step == 3 * -(-rows // size)
    for weights, _ in results[1:]:
        for ours, theirs in zip(weights, results[0][0], strict=True):
            np.testing.assert_array_equal(ours, theirs)  # all end with equal values


@pytest.mark.parametrize("optimizer", [Adam(0.01), Adam(0.01, amsgrad=True), SGD(0.1, 0.9, True)], ids=str)
def test_the_same_with_every_optimizer(town: Callable[[int, int], Town], optimizer: Optimizer) -> None:
    expected, _ = one_device(optimizer, 60, 20)
    for weights, _ in raised(town(2, 2).train(lambda i: fit(optimizer, 60, 20), synchronous=True)):
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_the_loss_of_all_replicas_is_that_of_one_device(town: Callable[[int, int], Town]) -> None:
    _, history = one_device(SGD(0.3), 60, 20)
    results = raised(town(1, 2).train(lambda i: fit(SGD(0.3), 60, 20), synchronous=True))
    means = np.mean([own["loss"] for _, own in results], axis=0)  # equal shares here
    np.testing.assert_allclose(means, history["loss"], rtol=1e-5)


def test_the_chiefs_initial_values_are_everyones(town: Callable[[int, int], Town]) -> None:
    def body(i: int) -> list[Array]:
        made = model(SGD(0.0), seed=i)
        made.fit(Dataset.from_arrays(*points(6)).batch(6))
        return made.get_weights()

    results = raised(town(1, 3).train(body, synchronous=True))
    expected = model(SGD(0.0), seed=0).build((4,)).get_weights()
    for weights in results:
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_two_trainings_in_one_body(town: Callable[[int, int], Town]) -> None:
    def body(i: int) -> tuple[int, int, list[Array]]:
        made = model(SGD(0.3))
        data = Dataset.from_arrays(*points(60)).shuffle(60).batch(20)
        first, second = made.fit(data), made.fit(data, epochs=2)
        return first.global_step, second.global_step, made.get_weights()

    with use_here(Context(seed=SEED, quiet=True)):
        expected = body(0)
    for first, second, weights in raised(town(1, 2).train(body, synchronous=True)):
        assert (first, second) == (3, 6)
        for ours, theirs in zip(weights, expected[2], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("replicas", "ps", "transport"),
    matrix(
        [(1, 1, "socket"), (1, 3, "auto"), (3, 1, "auto"), (3, 2, "socket")],
        rest=[
            (1, 1, "auto"), (1, 2, "auto"), (1, 2, "socket"), (1, 3, "socket"),
            (3, 1, "socket"), (3, 2, "auto"), (3, 3, "auto"), (3, 3, "socket"),
        ],
    ),
)  # fmt: skip
def test_asynchronous_replicas_count_every_update(
    town: Callable[[int, int], Town], replicas: int, ps: int, transport: str
) -> None:
    """With N workers doing E epochs each, global_step ends at N*E*steps."""
    place = town(ps, replicas)
    results = raised(place.train(lambda i: fit(SGD(0.1), 50, 8, epochs=2), transport=transport))
    for weights, history in results:
        assert history.global_step == replicas * 2 * 7
        for ours, theirs in zip(weights, results[0][0], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for context in place.contexts:
        assert context.progress.step == 14
        assert context.strategy.num_replicas_in_sync == 1


def test_one_asynchronous_replica_is_one_device_two_steps_late(town: Callable[[int, int], Town]) -> None:
    """Two gradients may be in flight: the first two are computed from the initial values."""
    ((weights, history),) = raised(town(1, 1).train(lambda i: fit(SGD(0.3), 40, 40, epochs=1)))
    expected, _ = one_device(SGD(0.3), 40, 40, epochs=1)
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert history.global_step == 1


def test_asynchronous_replicas_each_train_on_all_the_data(
    town: Callable[[int, int], Town],
) -> None:
    def body(i: int) -> list[int]:
        seen: list[int] = []

        def note(x: Array, y: Array) -> tuple[Array, Array]:
            seen.extend(x[:, 0].astype(int).tolist())
            return x / 100, y

        x = np.repeat(np.arange(12, dtype=np.float32)[:, None], 4, axis=1)
        model(SGD(0.1)).fit(Dataset.from_arrays(x, np.zeros(12, int)).shuffle(12).batch(4).map(note))
        return seen[-12:]

    first, second = raised(town(1, 2).train(body))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second


def test_early_stopping_on_the_chief_ends_synchronous_training_for_all(
    town: Callable[[int, int], Town],
) -> None:
    def body(i: int) -> tuple[list[int], list[Array]]:
        made = model(SGD(0.0))
        history = made.fit(
            Dataset.from_arrays(*points(12)).batch(6),
            epochs=50,
            validation_data=points(6),
            callbacks=[EarlyStopping()],
        )
        return history.epoch, made.get_weights()

    chief, other = raised(town(2, 2).train(body, synchronous=True))
    assert chief[0] == [0, 1]
    assert other[0][:2] == [0, 1]
    np.testing.assert_array_equal(chief[1][0], other[1][0])


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("ps", [1, 2])
def test_a_stopped_training_keeps_the_weights(
    town: Callable[[int, int], Town], synchronous: bool, ps: int
) -> None:
    """All receive the stop, each at another step; all end with equal values."""
    place = town(ps, 3)

    class StopAll(Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            if epoch == 2:
                for control in place.controls:
                    control.stop_requested = True

    def body(i: int) -> tuple[int, list[Array]]:
        made = model(SGD(0.05))
        data = Dataset.from_arrays(*points(60)).shuffle(60).batch(10)
        history = made.fit(data, epochs=10_000, validation_data=points(9), callbacks=[StopAll()])
        return history.global_step, made.get_weights()

    results = raised(place.train(body, synchronous=synchronous))
    # Replicas that stop while another's gradient of the last step waits for theirs drop that step.
    least = 17 if synchronous else 18
    for global_step, weights in results:
        assert global_step == results[0][0] >= least
        for ours, theirs in zip(weights, results[0][1], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("synchronous", [False, True])
def test_nan_on_one_replica_is_raised_there_and_not_applied(
    town: Callable[[int, int], Town], synchronous: bool
) -> None:
    place = town(1, 2)

    def body(i: int) -> list[Array]:
        x, y = points(20)
        if i == 1:
            x = x * np.nan
        made = model(SGD(0.1))
        try:
            made.fit(Dataset.from_arrays(x, y).batch(10))
        except NanLossError:
            place.controls[0].aborted = "run r was aborted: /job:worker/task:1 failed"  # as a run would
            raise
        finally:
            for weight in made.weights:
                assert np.isfinite(weight).all()
        return made.get_weights()

    chief, other = place.train(body, synchronous=synchronous)
    assert isinstance(chief, AbortedError)
    assert isinstance(other, NanLossError)


def test_an_error_before_the_first_step_keeps_the_initial_weights(
    town: Callable[[int, int], Town],
) -> None:
    place = town(1, 1)

    def body(i: int) -> list[Array]:
        made = model(SGD(0.1))

        def broken(x: Array, y: Array) -> tuple[Array, Array]:
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            made.build((4,)).fit(Dataset.from_arrays(*points(6)).batch(6).map(broken))
        return made.get_weights()

    (weights,) = raised(place.train(body))
    for ours, theirs in zip(weights, model(SGD(0.1)).build((4,)).get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_different_models_are_an_error_where_they_differ(town: Callable[[int, int], Town]) -> None:
    place = town(1, 2)

    def body(i: int) -> None:
        made = Sequential([Dense(3 + i, activation="softmax")], seed=1)
        made.compile("sgd", "sparse_categorical_crossentropy")
        try:
            made.fit(Dataset.from_arrays(*points(6)).batch(6))
        except InvalidArgumentError:
            for control in place.controls:
                control.aborted = "run r was aborted"
            raise

    results = place.train(body, synchronous=True)
    wrong = [r for r in results if isinstance(r, InvalidArgumentError)]
    assert len(wrong) == 1
    assert "the replicas built different models: variable 0 is dense/kernel (4, " in str(wrong[0])
    assert sum(isinstance(r, AbortedError) for r in results) == 1


def test_requirements_of_a_strategy(town: Callable[[int, int], Town]) -> None:
    one = town(1, 1)
    task = Task(one.workers[0], tuple(one.workers), one.servers[0], one.keys, "town")
    with pytest.raises(InvalidArgumentError, match="needs a parameter server and the cluster has none"):
        ParameterServerStrategy(task, ranks=[0], run="r", prefix="p", check=lambda: None)
    with pytest.raises(InvalidArgumentError, match="no transport 'pigeon'; choose from auto, socket"):
        one.strategy(0, transport="pigeon")


def test_the_strategy_in_use() -> None:
    assert isinstance(get_strategy(), OneDeviceStrategy)
    assert issubclass(ParameterServerStrategy, Strategy)
    assert ParameterServerStrategy.name == "ps"


# An example's dropout depends on its place in the global batch, not on its replica.


def fit_with_dropout(rows: int = 62, size: int = 20) -> list[Array]:
    made = Sequential([Dense(16, activation="tanh"), Dropout(0.4), Dense(3, activation="softmax")])
    made.compile(SGD(0.3))
    for _ in range(2):  # each training draws new numbers, equal on every replica
        made.fit(Dataset.from_arrays(*points(rows)).shuffle(rows).batch(size), epochs=2)
    return made.get_weights()


@pytest.mark.parametrize("replicas", [2, 3])
def test_synchronous_replicas_drop_what_one_device_would(
    town: Callable[[int, int], Town], replicas: int
) -> None:
    with use_here(Context(seed=SEED, quiet=True)):
        expected = fit_with_dropout()
    for weights in raised(town(1, replicas).train(lambda i: fit_with_dropout(), synchronous=True)):
        for ours, theirs in zip(weights, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_asynchronous_replicas_draw_apart(town: Callable[[int, int], Town]) -> None:
    here = town(1, 2)
    places = [here.strategy(i, synchronous=False).first_example(20) for i in range(2)]
    assert places[0] == 0
    assert places[1] > 1 << 31
    assert [here.strategy(i, synchronous=True).first_example(20) for i in range(2)] == [0, 10]
    assert len(raised(here.train(lambda i: fit_with_dropout(), synchronous=False))) == 2


def test_batch_norm_keeps_the_moving_averages_of_each_replica(town: Callable[[int, int], Town]) -> None:
    x, y = points(40)

    def body(i: int) -> list[Array]:
        made = Sequential([BatchNorm(0.0), Dense(3, activation="softmax")], seed=5)
        made.compile(SGD(0.1))
        made.fit(Dataset.from_arrays(x, y).batch(40))
        return made.get_weights()

    first, second = raised(town(1, 2).train(body, synchronous=True))
    for weights, part in ((first, x[:20]), (second, x[20:])):  # not shuffled: each has its half
        np.testing.assert_allclose(weights[2], part.mean(axis=0), rtol=1e-4, atol=1e-5)
    for i in (0, 1, 4, 5):  # what is trained is shared
        np.testing.assert_array_equal(first[i], second[i])
