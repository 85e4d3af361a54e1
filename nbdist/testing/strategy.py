"""The contract of synchronous strategies: N replicas compute what one device would.

    class TestMine(StrategyContract):
        @pytest.fixture
        def world(self):
            return thread_world(lambda place: MyStrategy(world=place), size=2)

A `World` has a context and a strategy for each process of a run; here each process is a thread. A strategy
with several replicas in one process has one entry. All entries together have
``strategy.num_replicas_in_sync`` replicas.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.data.shares import share_of
from nbdist.distribute import Strategy
from nbdist.errors import AbortedError, InvalidArgumentError, NanLossError, UnavailableError
from nbdist.graph.tensor import Variable
from nbdist.nn import BatchNorm, Dense, Dropout, Sequential, compute_average_loss, load, losses
from nbdist.optim import SGD, Adam, LossScaleOptimizer, Optimizer
from nbdist.runtime import groups
from nbdist.testing.waiting import together, until
from nbdist.testing.worlds import worlds
from nbdist.train.callbacks import Callback
from nbdist.train.context import Checkpoints, Context, Control, use_here
from nbdist.train.custom.api import local_results
from nbdist.train.custom.dataset import InputContext
from nbdist.train.custom.reduce import get_replica_context

Array: TypeAlias = np.ndarray[Any, Any]
World: TypeAlias = Sequence[tuple[Context, Strategy]]
"""The processes of a run. ``context.strategy`` is the strategy, ``context.seed`` is `SEED`."""

SEED = 11
"""The seed of every context, so that all replicas and the single device see one order of the data."""
PATIENCE = 30.0
"""Seconds until a replica counts as hanging."""
BATCHES = [(61, 20), (5, 2), (60, 20), (30, 7)]
"""Rows and batch size: a short last batch, shares without examples, equal batches, unequal shares."""


def thread_world(make: Callable[[groups.World], Strategy], size: int = 1) -> World:
    """Return the processes of a run, each a thread of this process.

    - ``make``: returns the strategy of a process, given its place among the others (`nbdist.testing.worlds`)
    - ``size``: the number of processes, 1 or more

    >>> from nbdist.distribute import MultiWorkerMirroredStrategy
    >>> world = thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), size=2)
    >>> [strategy.replica_index for _, strategy in world]
    [0, 1]
    """
    found = []
    for index, place in enumerate(worlds(size)):
        strategy = make(place)
        context = Context(strategy=strategy, seed=SEED, quiet=True, world=place, is_chief=index == 0)
        found.append((context, strategy))
    return found


def everywhere(world: World, body: Callable[[Strategy, Context], Any]) -> list[Any]:
    """Run a body as each process of a run; return the results, or raise the cause."""
    errors: list[BaseException] = []

    def run(index: int) -> Any:
        context, strategy = world[index]
        try:
            with use_here(context):
                return body(strategy, context)
        except BaseException as error:
            errors.append(error)
            for other, _ in world:  # like a run
                other.control.aborted = other.control.aborted or f"another failed: {error}"

    results = together(len(world), run)
    if errors:  # others fail because one has, and may be first
        causes = [error for error in errors if not isinstance(error, (AbortedError, UnavailableError))]
        raise (causes or errors)[0]
    return results


def alone(body: Callable[[Strategy, Context], Any]) -> Any:
    """Run a body on one device, as the comparison."""
    context = Context(seed=SEED, quiet=True)
    return everywhere([(context, context.strategy)], body)[0]


def alone_once(body: Callable[[Strategy, Context], Any], *key: object) -> Any:
    """Return what `alone` does, computed once for each key; callers do not change it."""
    if key not in _computed:
        _computed[key] = alone(body)
    return _computed[key]


_computed: dict[tuple[object, ...], Any] = {}


def points(rows: int) -> tuple[Array, Array]:
    """Return examples of 4 numbers around three points, and the number of each one's point."""
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 3
    return (rng.normal(size=(rows, 4)) * 0.5 + np.eye(3, 4)[y]).astype(np.float32), y


def model(*between: Any) -> Sequential:
    """Return a small classifier of `points`, with these layers in the middle."""
    layers = [Dense(6, activation="tanh"), *between, Dense(3, activation="softmax")]
    return Sequential(layers, seed=5)


def fitted(
    strategy: Strategy,
    optimizer: Optimizer,
    rows: int,
    size: int,
    between: Sequence[Any] = (),
    **options: Any,
) -> tuple[list[Array], int]:
    """Train by fit; return the weights and the number of updates."""
    with strategy.scope():
        made = model(*between)
        made.compile(optimizer, metrics=["accuracy"])
    history = made.fit(
        Dataset.from_arrays(*points(rows)).shuffle(rows).batch(size), **{"epochs": 2, **options}
    )
    return made.get_weights(), history.global_step


def looped(
    strategy: Strategy, optimizer: Optimizer, rows: int, size: int, between: Sequence[Any] = ()
) -> tuple[list[Array], list[float]]:
    """Train by a custom loop; return the weights and the losses of all replicas."""
    with strategy.scope():
        made = model(*between)

    def step(x: Any, y: Any) -> Any:
        replica = get_replica_context()
        assert replica is not None
        each = losses.sparse_categorical_crossentropy(y, made(x, training=True))
        loss = compute_average_loss(each, replica.all_reduce("sum", np.float32(x.shape[0])))
        optimizer.minimize(loss)
        return loss

    data = strategy.distribute_dataset(Dataset.from_arrays(*points(rows)).shuffle(rows).batch(size))
    found = [float(strategy.reduce("sum", strategy.run(step, batch))) for _ in range(2) for batch in data]
    strategy.finish()
    return made.get_weights(), found


def overflowing(strategy: Strategy, loop: bool) -> tuple[list[Array], float]:
    """Train in mixed precision by two steps; in the first one the last example's gradient overflows.

    Return the weights and the loss scale after that.
    """
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    x[19], y = 1000, x[:, :1].copy()
    y[19] = 0.5
    optimizer = LossScaleOptimizer(Adam(0.1), initial_scale=4096)
    with strategy.scope():
        made = Sequential([Dense(1, kernel_initializer="zeros")], seed=1)
        made.compile(optimizer, "mse", precision="mixed_float16")
    data = Dataset.from_arrays(x, y).batch(20)
    if not loop:
        made.fit(data)
        assert made.loss_scale is not None
        return made.get_weights(), made.loss_scale

    def step(x: Any, y: Any) -> None:
        optimizer.minimize(compute_average_loss(losses.mean_squared_error(y, made(x, training=True)), 20))

    for batch in strategy.distribute_dataset(data):
        strategy.run(step, batch)
    ((scale, _),) = variables_of(strategy).scales
    strategy.finish()
    return made.get_weights(), scale


def variables_of(strategy: Strategy) -> Any:
    """Return the variables of a strategy's custom loops; nothing public has all of their state."""
    assert strategy._runner is not None, "this strategy has run no step"
    return strategy._runner.variables


def assert_alike(ours: Any, theirs: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    """Check that two lists of arrays are equal, up to rounding."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


class AtFirstEpoch(Callback):
    """After the first epoch of the first process, call a function for every process, like a run's command."""

    def __init__(self, world: World, context: Context, tell: Callable[[Control], object]) -> None:
        self._controls = [one.control for one, _ in world] if context is world[0][0] else []
        self._tell = tell

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Call the function for every process."""
        for control in self._controls if epoch == 0 else ():
            self._tell(control)


class StrategyContract:
    """What a synchronous strategy promises: N replicas compute what one device would.

    That holds for ``fit`` and for custom loops, with batches that do not divide equally, random layers and
    mixed precision. Moving averages are equal on all replicas, and are not those of one device. All replicas
    end with equal values. Values are reduced over all replicas. A stop, a pause, a learning rate and a
    checkpoint take effect between the same two steps on every replica. A loss that is NaN changes nothing.

    The inheriting class gives the fixture ``world``, which returns a `World`; `thread_world` makes one. It
    may give the fixture ``batch``, to train with other batches. With ``exact = False`` it has a strategy that
    computes something else on purpose, such as one whose replicas average their parameters now and then: all
    but the results of one device is asked of it.
    """

    exact = True
    """Whether N replicas compute what one device would, in each step."""

    def assert_as_alone(self, ours: Any, theirs: Any, rtol: float = 2e-5, atol: float = 2e-6) -> None:
        """Check arrays against one device's: that they are equal up to rounding, or at least finite."""
        if self.exact:
            assert_alike(ours, theirs, rtol, atol)
        for one, other in zip(ours, theirs, strict=True):
            assert np.shape(one) == np.shape(other)
            assert np.isfinite(one).all()

    @pytest.fixture
    def world(self) -> World:
        """Return the processes of a run, each with its context and its strategy."""
        raise NotImplementedError(f"{type(self).__name__} has no fixture world")

    @pytest.fixture(params=BATCHES, ids=lambda batch: f"{batch[0]}-{batch[1]}")
    def batch(self, request: pytest.FixtureRequest) -> tuple[int, int]:
        """Return the number of rows of the data and the batch size, both 1 or more."""
        rows, size = request.param
        return rows, size

    def test_fit_is_that_of_one_device(self, world: World, batch: tuple[int, int]) -> None:
        rows, size = batch
        body = lambda strategy, _: fitted(strategy, SGD(0.3, momentum=0.5), rows, size)
        expected, steps = alone_once(body, "fit", rows, size)
        results = everywhere(world, body)
        for weights, global_step in results:
            self.assert_as_alone(weights, expected)
            assert global_step == steps
        for weights, _ in results[1:]:
            for a, b in zip(weights, results[0][0], strict=True):
                np.testing.assert_array_equal(a, b)  # all end with equal values

    def test_all_begin_with_the_chiefs_values(self, world: World) -> None:
        def body(strategy: Strategy, context: Context) -> list[Array]:
            with strategy.scope():
                made = Sequential(model().layers, seed=5 + strategy.replica_index)
                made.compile(SGD(0.0))
            made.fit(Dataset.from_arrays(*points(24)).batch(8))
            return made.get_weights()

        chiefs = alone(body)
        for weights in everywhere(world, body):
            assert_alike(weights, chiefs)

    def test_fit_with_adam_and_dropout(self, world: World) -> None:
        body = lambda strategy, _: fitted(strategy, Adam(0.01), 61, 20, [Dropout(0.4)])[0]
        expected = alone_once(body, "fit with dropout")
        for weights in everywhere(world, body):
            self.assert_as_alone(weights, expected, rtol=1e-3, atol=1e-4)

    def test_a_loop_of_ones_own_is_that_of_one_device(self, world: World, batch: tuple[int, int]) -> None:
        rows, size = batch
        body = lambda strategy, _: looped(strategy, SGD(0.3, momentum=0.5), rows, size)
        expected, of_all = alone_once(body, "loop", rows, size)
        results = everywhere(world, body)
        for weights, found in results:
            self.assert_as_alone(weights, expected)
            self.assert_as_alone([np.array(found)], [np.array(of_all)], rtol=1e-4)

    def test_a_loop_of_ones_own_is_fit(self, world: World) -> None:
        expected = alone_once(
            lambda strategy, _: fitted(strategy, Adam(0.01), 61, 20, [Dropout(0.4)])[0], "fit with dropout"
        )
        for weights, _ in everywhere(
            world, lambda strategy, _: looped(strategy, Adam(0.01), 61, 20, [Dropout(0.4)])
        ):
            self.assert_as_alone(weights, expected, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("loop", [False, True], ids=["fit", "loop"])
    def test_a_gradient_that_overflows_on_one_replica_is_left_out_on_all(
        self, world: World, loop: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        body = lambda strategy, context: (*overflowing(strategy, loop), context.progress.skipped)
        expected, scale, _ = alone_once(body, "overflow", loop)
        assert scale == 2048
        capsys.readouterr()
        results = everywhere(world, body)
        for weights, scale, skipped in results:
            self.assert_as_alone(weights, expected, rtol=2e-3, atol=1e-5)
            assert_alike(weights, results[0][0], rtol=0, atol=0)
            assert not self.exact or (scale, skipped) == (2048, 1)
        text = "step 1: a gradient overflowed: no update is made; the loss scale is now 2048"
        assert capsys.readouterr().out.count(text) == 1 or not self.exact

    def test_shares_of_a_batch_may_be_empty(self, world: World) -> None:
        def body(strategy: Strategy, _: Context) -> list[list[list[int]]]:
            data = strategy.distribute_dataset(Dataset.range(9).batch(4))
            return [[part.tolist() for part in local_results(batch)] for batch in data]

        shares = [list(zip(*parts, strict=True)) for parts in everywhere(world, body)]
        of_replicas = [list(ones) for process in shares for ones in process]
        assert len(of_replicas) == world[0][1].num_replicas_in_sync
        for number, rows in enumerate(zip(*of_replicas, strict=True)):
            assert [row for part in rows for row in part] == list(range(9))[4 * number : 4 * number + 4]
            assert max(map(len, rows)) - min(map(len, rows)) <= 1
        if len(of_replicas) == 2:  # as in TensorFlow
            assert of_replicas == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], []]]

    def test_batches_for_single_replicas_end_together(self, world: World) -> None:
        """Each process has its own; TensorFlow's testUnevenDatasetBatches has two replicas in one."""

        def body(strategy: Strategy, _: Context) -> tuple[InputContext, list[Any]]:
            seen: list[InputContext] = []

            def make(where: InputContext) -> Dataset:
                seen.append(where)
                return Dataset.range(9 - 4 * where.input_pipeline_id).batch(2)

            batches = list(strategy.distribute_datasets_from_function(make))
            return seen[0], [[part.tolist() for part in local_results(batch)] for batch in batches]

        results = everywhere(world, body)
        replicas = world[0][1].num_replicas_in_sync
        for number, (where, batches) in enumerate(results):
            assert where == InputContext(len(world), number, replicas)
            assert len(batches) == len(results[0][1])
            rows = [row for parts in batches for part in parts for row in part]
            assert rows == list(range(9 - 4 * number))
        if len(world) == 1 and replicas == 2:
            assert results[0][1] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]

    def test_values_are_reduced(self, world: World) -> None:
        """Over replicas, and over an axis: a mean is then that of all elements."""
        values = np.arange(7.0)

        def body(strategy: Strategy, _: Context) -> list[Any]:
            (batch,) = strategy.distribute_dataset(Dataset.from_arrays(values).batch(7))
            squares, total = strategy.run(lambda x: (np.square(x), np.sum(x)), (batch,))
            return [
                strategy.reduce("sum", total),
                strategy.reduce("MEAN", total),
                strategy.reduce("sum", squares, axis=0),
                strategy.reduce("mean", squares, axis=0),
                strategy.reduce("sum", {"one": 1})["one"],
            ]

        replicas = world[0][1].num_replicas_in_sync
        for found in everywhere(world, body):
            np.testing.assert_allclose(found, [21, 21 / replicas, 91, 13, replicas])

    def test_what_replicas_assign_follows_the_variable(self, world: World) -> None:
        replicas = world[0][1].num_replicas_in_sync
        numbers = np.arange(replicas)

        def body(strategy: Strategy, _: Context) -> list[Any]:
            with strategy.scope():
                made = {
                    how: Variable(np.float32(10), trainable=False, name=how, aggregation=how)
                    for how in ("sum", "mean", "only_first_replica")
                }
                own = {
                    how: Variable(np.float32(0), aggregation=how, synchronization="on_read")
                    for how in ("sum", "mean", "only_first_replica")
                }

            def step() -> Any:
                replica = get_replica_context()
                assert replica is not None
                number = replica.replica_id_in_sync_group.astype(np.float32)
                for v in own.values():
                    v.assign_add(number + 1)
                first = made["sum"].assign(number + 1)
                made["sum"].assign_add(number)
                made["mean"].assign_sub(number)
                return first, made["only_first_replica"].assign(number + 5), made["mean"] + 0

            returned = [strategy.run(step) for _ in range(2)]
            values = [[float(v) for v in ones] for ones in local_results(returned[-1])]
            kept = [float(strategy.read(v)) for v in [*made.values(), *own.values()]]
            return [values, kept]

        for values, kept in everywhere(world, body):
            total, mean = float(sum(numbers + 1)), 10 - 2 * float(np.mean(numbers))
            for ones in values:
                np.testing.assert_allclose(ones, [total, 5, mean])
            np.testing.assert_allclose(
                kept, [total + sum(numbers), mean, 5, 2 * total, 2 * float(np.mean(numbers + 1)), 2]
            )

    def test_assigning_needs_an_aggregation(self, world: World) -> None:
        def body(strategy: Strategy, _: Context) -> None:
            with strategy.scope():
                v = Variable(np.float32(0), name="v")
            strategy.run(lambda: v.assign(1.0))

        if world[0][1].num_replicas_in_sync == 1:
            everywhere(world, body)
        else:
            with pytest.raises(InvalidArgumentError, match=r"variable 'v' is assigned.*aggregation='sum'"):
                everywhere(world, body)

    def test_all_reduce_inside_a_step(self, world: World) -> None:
        """The gradient of a sum over replicas reaches each of them."""
        x = np.arange(8, dtype=np.float32)

        def body(strategy: Strategy, _: Context) -> tuple[list[Array], Array]:
            with strategy.scope():
                w = Variable(np.float32(2), name="w")
                optimizer = SGD(0.1)

            def step(x: Any) -> Any:
                replica = get_replica_context()
                assert replica is not None
                mean = replica.all_reduce("mean", np.mean(x * w))
                loss = np.square(mean) / replica.num_replicas_in_sync
                optimizer.minimize(loss)
                return mean

            (batch,) = strategy.distribute_dataset(Dataset.from_arrays(x).batch(8))
            return list(local_results(strategy.run(step, (batch,)))), strategy.read(w)

        replicas = world[0][1].num_replicas_in_sync
        means = np.mean([np.mean(x[share_of(8, replicas, index)]) for index in range(replicas)])
        for found, w in everywhere(world, body):  # d (w m)^2 / dw = 2 w m^2
            np.testing.assert_allclose(found, 2 * means, rtol=1e-6)
            self.assert_as_alone([w], [2 - 0.1 * 2 * 2 * means**2], rtol=1e-5)

    def test_two_optimizers_and_a_step_without_any(self, world: World) -> None:
        def body(strategy: Strategy, _: Context) -> list[Any]:
            with strategy.scope():
                a, b = Variable(np.float32(1), name="a"), Variable(np.float32(1), name="b")
                first, second = SGD(0.1), SGD(0.01)

            def step(x: Any) -> None:
                loss = compute_average_loss(x * a + x * b, 8)
                first.minimize(loss, var_list=[a])
                pairs = second.compute_gradients(loss, [b])
                second.apply_gradients([(np.clip(g, -1, 1), v) for g, v in pairs])

            (ones,) = strategy.distribute_dataset(Dataset.from_arrays(np.ones(8, np.float32)).batch(8))
            sums: list[float] = []
            for _number in range(2):
                strategy.run(step, (ones,))
                looked = strategy.run(lambda x: np.sum(x) * 0 + a + b, (ones,))
                sums += [float(v) for v in local_results(looked)]
            return [sums, float(strategy.read(a)), float(a.eval()), float(strategy.read(b))]

        for sums, a, same, b in everywhere(world, body):
            assert a == same
            if self.exact:
                np.testing.assert_allclose(sorted(set(np.round(sums, 5))), [1.78, 1.89])
                np.testing.assert_allclose([a, b], [0.8, 0.98], rtol=1e-6)

    def test_the_model_has_the_trained_values(self, world: World) -> None:
        """Weights, predictions and BatchNorm's averages are in the model; fit continues from them."""

        def body(strategy: Strategy, context: Context) -> list[Any]:
            with strategy.scope():
                made = model(BatchNorm(momentum=0.5))
                made.compile(SGD(0.1))
                optimizer = SGD(0.1)

            def step(x: Any, y: Any) -> None:
                each = losses.sparse_categorical_crossentropy(y, made(x, training=True))
                optimizer.minimize(compute_average_loss(each, 30))

            x, y = points(30)
            before = made.build((4,)).get_weights()
            for batch in strategy.distribute_dataset(Dataset.from_arrays(x, y).batch(30)):
                strategy.run(step, batch)
            after = made.get_weights()
            assert all((a != b).any() for a, b in zip(before, after, strict=True))
            np.testing.assert_array_equal(made.predict(x), made(x))
            evaluated = made.evaluate(x, y)["loss"]
            made.fit(Dataset.from_arrays(x, y).batch(30))
            assert made.evaluate(x, y)["loss"] != evaluated
            return after

        results = everywhere(world, body)
        trained = [0, 1, 2, 3, 6, 7]  # weights, without the moving averages
        for weights in results if self.exact else ():
            for i in trained:
                np.testing.assert_array_equal(weights[i], results[0][i])

    def test_a_stop_of_one_replica_stops_all(self, world: World) -> None:
        def body(strategy: Strategy, context: Context) -> tuple[int, list[Array]]:
            with strategy.scope():
                w = Variable(np.float32(0), name="w")
                optimizer = SGD(0.1)

            def step(x: Any) -> None:
                optimizer.minimize(compute_average_loss(np.square(x * w - 1), 4))

            steps = 0
            for _ in range(10_000):
                for x in strategy.distribute_dataset(Dataset.from_arrays(np.ones(4, np.float32)).batch(4)):
                    strategy.run(step, (x,))
                    steps += 1
                    if steps == 5 and context is world[-1][0]:
                        context.control.stop_requested = True
                if context.control.stop_requested or variables_of(strategy).ended:
                    break
            return steps, strategy.read(w)

        results = everywhere(world, body)
        assert all(4 <= steps <= 7 for steps, _ in results)
        for _, w in results:
            np.testing.assert_array_equal(w, results[0][1])

    def test_callbacks_find_the_newest_weights_in_the_model(self, world: World) -> None:
        def body(strategy: Strategy, _: Context) -> list[list[Array]]:
            with strategy.scope():
                made = model()
                made.compile(SGD(0.1))
            seen = []

            class Look(Callback):
                def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
                    seen.append([array.copy() for array in made.get_weights()])

            made.fit(Dataset.from_arrays(*points(60)).batch(20), epochs=3, callbacks=[Look()])
            assert len(seen) == 3
            return [*seen, made.get_weights()]

        for first, _, last, final in everywhere(world, body):
            self.assert_as_alone(last, final, rtol=0, atol=0)
            assert any((a != b).any() for a, b in zip(first, final, strict=True))

    def test_fit_stops_everywhere(self, world: World) -> None:
        class StopAll(Callback):
            def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
                if epoch == 2:
                    for context, _ in world:
                        context.control.stop_requested = True

        results = everywhere(
            world, lambda s, _: fitted(s, SGD(0.1), 60, 20, epochs=10_000, callbacks=[StopAll()])
        )
        assert all(8 <= steps <= 12 for _, steps in results)
        for weights, _ in results[1:]:
            assert_alike(weights, results[0][0], rtol=0, atol=0)

    @pytest.mark.parametrize("optimizer", [lambda: SGD(0.3, momentum=0.5), lambda: Adam(0.01)])
    def test_a_rate_changes_between_the_same_two_steps(
        self, world: World, optimizer: Callable[[], Optimizer]
    ) -> None:
        """All replicas receive the command after the third of nine steps."""
        rate = 0.1 * optimizer().learning_rate / 3  # not what fits in a float32

        def body(world: World, strategy: Strategy, context: Context) -> tuple[list[Array], float | None]:
            own = optimizer()
            ask = AtFirstEpoch(world, context, lambda control: control.set_rate(rate))
            return fitted(strategy, own, 60, 20, epochs=3, callbacks=[ask])[0], context.progress.learning_rate

        own = lambda strategy, c: body([(c, strategy)], strategy, c)
        expected, shown = alone_once(own, "rate", optimizer)
        results = everywhere(world, lambda strategy, context: body(world, strategy, context))
        for weights, _ in results:
            self.assert_as_alone(weights, expected, rtol=1e-3, atol=1e-4)
            assert_alike(weights, results[0][0], rtol=0, atol=0)
        assert shown == results[0][1] == rate
        constant = alone_once(
            lambda strategy, _: fitted(strategy, optimizer(), 60, 20, epochs=3)[0], "constant rate", optimizer
        )
        assert not np.allclose(constant[0], expected[0], rtol=1e-3, atol=1e-3)

    def test_a_rate_changes_in_a_loop_of_ones_own(self, world: World) -> None:
        def body(world: World, strategy: Strategy, context: Context) -> list[Array]:
            with strategy.scope():
                made, optimizer = model(), SGD(0.3)

            def step(x: Any, y: Any) -> None:
                each = losses.sparse_categorical_crossentropy(y, made(x, training=True))
                optimizer.minimize(compute_average_loss(each, 20))

            data = strategy.distribute_dataset(Dataset.from_arrays(*points(60)).batch(20))
            for number, batch in enumerate((batch for _ in range(2) for batch in data), 1):
                strategy.run(step, batch)
                if number == 3 and context is world[0][0]:
                    for one, _ in world:
                        one.control.set_rate(0.05)
            strategy.finish()
            return made.get_weights()

        own = lambda strategy, c: body([(c, strategy)], strategy, c)
        expected = alone_once(own, "rate in a loop")
        results = everywhere(world, lambda strategy, context: body(world, strategy, context))
        for weights in results:
            self.assert_as_alone(weights, expected)
            assert_alike(weights, results[0], rtol=0, atol=0)

    def test_a_checkpoint_is_of_its_step(self, world: World, tmp_path: Path) -> None:
        first, control = world[0][0], world[0][0].control
        tmp_path.chmod(0o700)
        first.checkpoints = Checkpoints(tmp_path / "checkpoints")
        ask = AtFirstEpoch(world, first, lambda one: one.ask_checkpoint(1))
        results = everywhere(
            world,
            lambda strategy, context: fitted(
                strategy, SGD(0.3, momentum=0.5), 60, 20, callbacks=[ask] if context is first else []
            ),
        )
        found = first.progress.checkpoint
        assert found is not None
        assert (found["number"], found["error"]) == (1, None)
        assert found["step"] in (2, 3)  # parameter servers may not have completed the third step
        made = {"epochs": 1, "steps_per_epoch": found["step"]}
        expected, _ = alone_once(
            lambda strategy, _: fitted(strategy, SGD(0.3, momentum=0.5), 60, 20, **made),
            "steps",
            found["step"],
        )
        self.assert_as_alone(load(found["path"]).get_weights(), expected)
        assert [steps for _, steps in results] == [6] * len(world)
        assert control.messages == 1

    def test_a_paused_training_writes_checkpoints(self, world: World, tmp_path: Path) -> None:
        """The chief pauses between two steps without waiting for paused replicas; then training continues."""
        first, contexts = world[0][0], [one for one, _ in world]
        tmp_path.chmod(0o700)
        first.checkpoints = Checkpoints(tmp_path / "checkpoints")
        seen: list[int] = []

        def rest_everywhere(number: int) -> None:
            for one in contexts[1:]:
                one.control.rest(number)

        first.rest_everywhere = rest_everywhere

        def look() -> None:
            until(lambda: first.progress.state == "paused")
            for number in (1, 2):
                for one in contexts:
                    one.control.ask_checkpoint(number)
                until(lambda: (first.progress.checkpoint or {}).get("number") == len(seen) + 1)
                seen.append(first.progress.step)
            for one in contexts:
                one.control.resume()

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        body = lambda strategy, context: fitted(
            strategy,
            SGD(0.3, momentum=0.5),
            60,
            20,
            epochs=4,
            callbacks=[AtFirstEpoch(world, context, lambda control: control.pause(5))],
        )
        results = everywhere(world, body)
        watcher.join(PATIENCE)
        expected, steps = alone_once(
            lambda s, _: fitted(s, SGD(0.3, momentum=0.5), 60, 20, epochs=4), "four epochs"
        )
        assert seen == [3, 3]
        for weights, made in results:
            self.assert_as_alone(weights, expected)
            assert made == steps

    def test_a_loss_that_is_no_number_is_not_applied(self, world: World) -> None:
        kept: list[Array] = []

        def body(strategy: Strategy, _: Context) -> None:
            with strategy.scope():
                w = Variable(np.float32(3), name="w")
                optimizer = SGD(0.1)

            def step(x: Any) -> None:
                optimizer.minimize(compute_average_loss(np.log(x * w), 4))

            (x,) = strategy.distribute_dataset(
                Dataset.from_arrays(np.array([1, 1, 1, -1], np.float32)).batch(4)
            )
            try:
                strategy.run(step, (x,))
            finally:
                kept.append(variables_of(strategy).host_values[w])

        with pytest.raises(NanLossError, match="the loss is NaN at step 1; that gradient was not applied"):
            everywhere(world, body)
        assert (all if self.exact else any)(w == 3 for w in kept)
