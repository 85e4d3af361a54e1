"""Custom loops on one replica: tracing, retracing and refused code."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nbdist.data import Dataset
from nbdist.distribute import (
    CentralStorageStrategy,
    MirroredStrategy,
    PerReplica,
    ReduceOp,
    get_replica_context,
    local_results,
)
from nbdist.distribute.in_graph.strategy import InGraphStrategy
from nbdist.errors import AbortedError, FailedPreconditionError, InvalidArgumentError, NanLossError
from nbdist.graph.gradients import gradients
from nbdist.graph.replicated import VariableAggregation, VariableSynchronization
from nbdist.graph.scopes import control_dependencies
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder
from nbdist.graph.variables import get_or_create_global_step, get_variable
from nbdist.nn import compute_average_loss, functional
from nbdist.optim import SGD, Adam
from nbdist.train.context import Context, use, use_here
from nbdist.train.custom.trace import MOST_FORMS, MOST_FUNCTIONS, MOST_SIZES
from nbdist.train.one_device import OneDeviceReplica, OneDeviceStrategy
from nbdist.train.options import TrainingOptions
from nbdist.train.replica import RetryStep
from nbdist.train.strategy import Strategy

Array = np.ndarray[Any, Any]


@pytest.fixture
def strategy() -> Iterator[Strategy]:
    context = Context(seed=3, quiet=True)
    with use(context):
        yield context.strategy


def variable(strategy: Strategy, value: Any, **options: Any) -> Variable:
    with strategy.scope():
        return Variable(value, **options)


def traces(strategy: Strategy, function: Any) -> int:
    found: int = len(strategy._runner._traces.get(function, ()))  # type: ignore[attr-defined]  # nothing public says so
    return found


def test_a_number_of_epochs_for_a_run_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    context = Context(quiet=True, is_chief=True, options=TrainingOptions(epochs=7))
    with use(context):
        w = variable(context.strategy, np.ones(2))

        def step(x: Any) -> Any:
            loss = np.sum(w * x)
            SGD(0.1).apply_gradients(zip(gradients(loss, [w]), [w], strict=True))
            return loss

        context.strategy.run(step, (np.ones(2),))
    assert "--epochs is for fit" in capsys.readouterr().out


def test_a_function_runs_as_numpy_would(strategy: Strategy) -> None:
    def pair(x: Any, more: Any, scale: float) -> Any:
        return {"sum": (x + more["y"]) * scale, "nothing": None, "list": [np.max(x, axis=0), x]}

    x, y = np.arange(6.0).reshape(2, 3), np.ones(3)
    found = strategy.run(pair, (x, {"y": y}, 2.0))
    np.testing.assert_array_equal(found["sum"], (x + y) * 2)
    assert found["nothing"] is None
    np.testing.assert_array_equal(found["list"][0], x.max(axis=0))
    np.testing.assert_array_equal(found["list"][1], x)


def test_a_returned_value_survives_the_next_step(strategy: Strategy) -> None:
    def double(x: Any) -> Any:
        return x * 2

    first = strategy.run(double, (np.ones(3),))
    strategy.run(double, (np.zeros(3),))
    np.testing.assert_array_equal(first, 2)


def test_one_trace_for_arguments_of_one_form(strategy: Strategy) -> None:
    seen: list[Any] = []

    def step(x: Any, training: bool) -> Any:
        seen.append(x)
        return x * (2 if training else 1)

    for _ in range(3):
        strategy.run(step, (np.ones(3), True))
    assert len(seen) == 1
    assert isinstance(seen[0], Tensor)
    assert seen[0].shape == (3,)
    assert strategy.run(step, (np.ones(3), False)).tolist() == [1, 1, 1]
    strategy.run(step, (np.ones(3, np.float32), True))
    strategy.run(step, (np.ones(4), True))
    assert len(seen) == traces(strategy, step) == 4


def test_after_some_sizes_one_trace_serves_all(
    strategy: Strategy, capsys: pytest.CaptureFixture[str]
) -> None:
    def mean(x: Any) -> Any:
        return np.mean(x, axis=0)

    for n in range(1, 40):
        np.testing.assert_allclose(strategy.run(mean, (np.arange(2.0 * n).reshape(n, 2),)), [n - 1, n])
    assert traces(strategy, mean) == MOST_SIZES + 1
    assert (
        capsys.readouterr().out
        == "mean was traced for 8 sets of sizes; from here on one trace serves (?, 2)\n"
    )
    assert strategy.run(lambda x: np.sum(x), (np.zeros((0, 2)),)) == 0


def test_a_stale_size_is_refused(strategy: Strategy) -> None:
    def step(x: Any) -> Any:
        return x / len(x)

    for n in range(MOST_SIZES):
        strategy.run(step, (np.ones(n + 1),))
    with pytest.raises(TypeError, match="no length") as caught:
        strategy.run(step, (np.ones(20),))
    assert "different sets of sizes" in "".join(caught.value.__notes__)


def test_too_many_forms_and_functions(strategy: Strategy) -> None:
    for n in range(MOST_FORMS):
        strategy.run(_scaled, (np.ones(2), n))
    with pytest.raises(InvalidArgumentError, match=r"different forms.*such as np\.float32"):
        strategy.run(_scaled, (np.ones(2), -1))
    for _ in range(MOST_FUNCTIONS - 1):
        strategy.run(lambda x: x, (np.ones(2),))
    with pytest.raises(InvalidArgumentError, match="define the step once, before the loop"):
        strategy.run(lambda x: x, (np.ones(2),))


def _scaled(x: Any, by: Any) -> Any:
    return x * by


def test_numbers_that_change_are_arrays(strategy: Strategy) -> None:
    for n in range(40):
        assert strategy.run(_scaled, (np.ones(2), np.float32(n))).tolist() == [n, n]
    assert traces(strategy, _scaled) == 1


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda x: float(np.sum(x)), TypeError, "float"),
        (lambda x: x if np.sum(x) > 0 else -x, TypeError, "no truth value"),
        (lambda x: np.asarray(x), TypeError, "no value until the graph runs"),
        (lambda x: 3.0, InvalidArgumentError, "returns 3.0, which is not a tensor"),
        (lambda x: (x, np.ones(2)), InvalidArgumentError, "which is not a tensor"),
        (
            lambda x: x[x > 0],
            NotImplementedError,
            "the shape of the result depends on its values; use np.where",
        ),
        (lambda x: np.unique(x), NotImplementedError, "unique does not record"),
        (
            lambda x: Variable(1.0) * x,
            InvalidArgumentError,
            r"makes variable .*before, in `with strategy.scope",
        ),
    ],
)
def test_what_cannot_be_traced(strategy: Strategy, function: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match) as caught:
        strategy.run(function, (np.ones(3),))
    assert "was being traced" in "".join(getattr(caught.value, "__notes__", []))
    assert strategy.run(lambda x: x + 1, (np.ones(3),)).tolist() == [2, 2, 2]  # the strategy is as before


def test_arguments_that_are_none(strategy: Strategy) -> None:
    with pytest.raises(InvalidArgumentError, match=r"args is a tuple of arguments.*write \(x,\)"):
        strategy.run(_scaled, np.ones(3))
    with pytest.raises(InvalidArgumentError, match="arrays of numbers"):
        strategy.run(lambda x: x, (np.array(["a"]),))


def test_variables_from_outside_the_scope(strategy: Strategy) -> None:
    with Graph().as_default():
        w = Variable(1.0, name="w")
    for function in (lambda x: x * w, lambda x: w, lambda x: w * x):
        with pytest.raises(InvalidArgumentError, match=r"inside `with strategy\.scope\(\):`"):
            strategy.run(function, (np.ones(3),))
    with pytest.raises(InvalidArgumentError, match="is not a variable of this strategy"):
        strategy.read(w)


def test_optimizers_outside_of_a_step(strategy: Strategy) -> None:
    w = variable(strategy, 1.0)
    with pytest.raises(InvalidArgumentError, match="in a function that"):
        SGD(0.1).minimize(w * w)


def test_reads_return_the_newest_values(strategy: Strategy) -> None:
    w, optimizer = variable(strategy, np.float32(1), name="w"), SGD(0.25)

    def step() -> Any:
        loss = w * w
        optimizer.minimize(loss)
        return loss

    assert [float(strategy.run(step)) for _ in range(3)] == [1, 0.25, 0.0625]
    assert w.eval() == strategy.read(w) == 0.125
    assert (w * 2).eval() == 0.25
    assert strategy.read({"w": w}) == {"w": 0.125}
    w.assign(2.0).eval()  # starts a new training
    assert strategy.run(step) == 4
    assert w.eval() == 1
    w.initializer.eval()
    assert w.eval() == 1


def test_adam_continues_from_its_state(strategy: Strategy) -> None:
    w, optimizer = variable(strategy, np.float32(1)), Adam(0.1)
    plain, rule = np.ones(1, np.float32), Adam(0.1)
    slots = rule.new_slots(plain)
    for step in range(1, 4):
        rule.apply(plain, 2 * plain, slots, step)
    function = lambda: optimizer.minimize(w * w)
    for _ in range(3):
        assert strategy.run(function) is None
    np.testing.assert_allclose(w.eval(), plain[0], rtol=1e-6)


def test_the_global_step_counts(strategy: Strategy) -> None:
    w = variable(strategy, np.float32(1))
    with strategy.scope():
        counter = get_or_create_global_step()
    optimizer = SGD(0.1)

    def step() -> Any:
        optimizer.minimize(w * w, global_step=counter)
        return counter + 0

    assert [int(strategy.run(step)) for _ in range(3)] == [0, 1, 2]
    assert strategy.read(counter) == 3
    strategy.finish()
    assert strategy.run(step) == 3
    assert counter.eval() == 4


def test_a_read_has_the_value_at_its_line(strategy: Strategy) -> None:
    """Also by gradients that are recorded later."""
    v = variable(strategy, np.float32(3), name="v", trainable=False)
    u = variable(strategy, np.float32(3), name="u")

    def step(x: Any) -> Any:
        before, square = v + 0, u * u * x
        after = v.assign_add(1.0)
        u.assign(10.0)
        slope = gradients(square, [x])[0]
        v.assign_add(1.0)
        return before, after, v + 0, square, slope, u

    found = strategy.run(step, (np.float32(2),))
    assert [float(one) for one in found] == [3, 4, 5, 18, 9, 10]
    assert v.eval() == 5
    assert u.eval() == 10


def test_what_comes_after_an_update(strategy: Strategy) -> None:
    w, optimizer = variable(strategy, np.float32(1)), SGD(0.1)

    def step() -> Any:
        with control_dependencies([optimizer.minimize(w * w)]):
            return w * 1

    with pytest.raises(InvalidArgumentError, match=r"after 'step/SGD'.*strategy\.read"):
        strategy.run(step)


def test_a_variable_is_trained_once_and_by_one_optimizer(strategy: Strategy) -> None:
    w, first, second = variable(strategy, np.float32(1), name="w"), SGD(0.1), SGD(0.1)
    u = variable(strategy, np.float32(1), name="u")

    def twice() -> None:
        first.minimize(w * w, var_list=[w])
        second.minimize(w * u, var_list=[w])

    with pytest.raises(InvalidArgumentError, match="'w' is trained twice in twice"):
        strategy.run(twice)
    strategy.run(lambda: first.minimize(w * w))
    with pytest.raises(InvalidArgumentError, match="make an optimizer once"):
        strategy.run(lambda: second.minimize(w * w))
    with pytest.raises(InvalidArgumentError, match="trained and assigned"):
        strategy.run(lambda: (first.minimize(w * w), w.assign(1.0))[0])
    with pytest.raises(InvalidArgumentError, match="depends on none of the variables"):
        strategy.run(lambda x: first.minimize(np.sum(x)), (np.ones(2),))


def test_gradients_of_rows_are_applied(strategy: Strategy) -> None:
    with strategy.scope():
        table = get_variable("table", (5, 2), initializer="ones")
    optimizer = SGD(0.5)

    def step(rows: Any) -> None:
        optimizer.minimize(np.sum(functional.embedding_lookup(table, rows)))

    strategy.run(step, (np.array([1, 3, 3]),))
    np.testing.assert_array_equal(strategy.read(table), [[1, 1], [0.5, 0.5], [1, 1], [0, 0], [1, 1]])


def test_a_nan_gradient_is_not_applied(strategy: Strategy) -> None:
    w, optimizer = variable(strategy, np.float32(0)), SGD(0.1)
    function = lambda: optimizer.apply_gradients([(1 / w, w)])
    with pytest.raises(NanLossError, match="a gradient is infinite at step 1"):
        strategy.run(function)
    assert w.eval() == 0


@pytest.mark.parametrize("kind", [MirroredStrategy, CentralStorageStrategy])
def test_replicas_of_a_process_continue_after_an_error(kind: Any) -> None:
    strategy = kind(["CPU:0"] * 2)
    w, optimizer = variable(strategy, np.float32(1)), SGD(0.1)

    def step(x: Any) -> Any:
        replica = get_replica_context()
        assert replica is not None
        loss = np.sum(np.sqrt(x) * w)
        optimizer.minimize(loss)
        return replica.all_reduce("sum", loss)

    good, bad = PerReplica((np.ones(1), np.ones(1))), PerReplica((np.ones(1), -np.ones(1)))
    for _ in range(2):
        strategy.run(step, (good,))
        before = w.eval()
        with pytest.raises(NanLossError):
            strategy.run(step, (bad,))
        assert w.eval() == before
        assert strategy.reduce("sum", 1) == 2


def test_a_stop_ends_the_loop_and_keeps_the_weights(strategy: Strategy) -> None:
    context = Context(strategy=strategy, quiet=True)
    w, optimizer = variable(strategy, np.float32(1)), SGD(0.1)
    strategy._runner = None
    with use_here(context):
        w = variable(strategy, np.float32(1))

        def step(x: Any) -> None:
            optimizer.minimize(w * np.sum(x))

        steps = 0
        for x in strategy.distribute_dataset(Dataset.range(8).batch(2).repeat()):
            strategy.run(step, (x,))
            steps += 1
            context.control.stop_requested = steps == 3
        assert steps == context.progress.step == context.progress.global_step == 3
        value = strategy.read(w)
        with pytest.raises(AbortedError, match="the training has ended"):
            strategy.run(step, (np.zeros(2, np.int64),))
        assert strategy.read(w) == value
        assert not list(strategy.distribute_dataset(Dataset.range(8).batch(2)))


def test_a_rate_reaches_strategies_that_train_in_turn() -> None:
    context = Context(quiet=True)
    with use_here(context):
        optimizers = []
        steps = []
        for _ in range(2):
            one, optimizer = OneDeviceStrategy(), SGD(0.1)
            w = variable(one, np.float32(1))

            def step(w: Variable = w, optimizer: SGD = optimizer) -> None:
                optimizer.minimize(w * 1.0)

            optimizers.append(optimizer)
            steps.append((one, step))
        for turn in range(3):
            for one, step in steps:
                one.run(step)
            if turn == 0:
                context.control.set_rate(0.5)
        assert [one.learning_rate for one in optimizers] == [0.5, 0.5]


def test_a_repeated_step_assigns_once() -> None:
    class Once(OneDeviceReplica):
        failed = False

        def push(self) -> None:
            if not self.failed:
                self.failed = True
                raise RetryStep
            super().push()

    class Two(OneDeviceStrategy):
        num_replicas_in_sync = 2

        def replica(self, variables: Any, optimizer: Any) -> Once:
            return Once(variables, optimizer)

    strategy, optimizer = Two(), SGD(0.1)
    w = variable(strategy, np.float32(1))
    seen = variable(strategy, np.float32(0), aggregation="sum", synchronization="on_read")

    def step() -> Any:
        optimizer.minimize(w * w)
        return seen.assign_add(1.0)

    assert strategy.run(step) == 1
    assert strategy.run(step) == 2
    np.testing.assert_allclose(w.eval(), 0.64, rtol=1e-6)


def test_datasets_of_any_structure(strategy: Strategy) -> None:
    data = Dataset.range(4).map(lambda n: {"n": n, "pair": (n, n * 2)}).batch(2)
    batches = list(strategy.distribute_dataset(data))
    assert [b["n"].tolist() for b in batches] == [[0, 1], [2, 3]]
    assert batches[1]["pair"][1].tolist() == [4, 6]
    found = strategy.run(lambda b: b["pair"][0] + b["n"], (batches[1],))
    assert found.tolist() == [4, 6]
    assert len(strategy.distribute_dataset(data)) == 2
    with pytest.raises(InvalidArgumentError, match=r"add \.batch"):
        next(iter(strategy.distribute_dataset(Dataset.range(4))))


def test_reductions(strategy: Strategy) -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(strategy.reduce(ReduceOp.SUM, x), x)
    np.testing.assert_array_equal(strategy.reduce("mean", x, axis=1), [1, 4])
    assert strategy.reduce("mean", x, axis=(0, 1)) == 2.5
    assert strategy.reduce("mean", x, axis=0).dtype == np.float32
    assert strategy.reduce("mean", np.array([1, 2]), axis=0) == 1.5
    assert strategy.reduce("sum", {"a": 1, "b": None}) == {"a": 1, "b": None}
    with pytest.raises(InvalidArgumentError, match="choose from sum, mean"):
        strategy.reduce("max", x)
    with pytest.raises(InvalidArgumentError, match=r"axis 2 is out of bounds.*\(2, 3\)"):
        strategy.reduce("mean", x, axis=2)
    with pytest.raises(InvalidArgumentError, match="nothing to take the mean of"):
        strategy.reduce("mean", x[:0], axis=0)
    with pytest.raises(InvalidArgumentError, match="takes numbers"):
        strategy.reduce("sum", "text")


def test_several_replicas_of_a_process() -> None:
    strategy = MirroredStrategy(["CPU:0"] * 2)
    (batch,) = strategy.distribute_dataset(Dataset.range(3).batch(4))
    assert isinstance(batch, PerReplica)
    assert [part.tolist() for part in local_results(batch)] == [[0, 1], [2]]
    found = strategy.run(lambda x: (np.sum(x), x * 2), (batch,))
    assert [int(one) for one in found[0].values] == [1, 2]
    assert local_results(found)[1][1].tolist() == [4]
    assert strategy.reduce("sum", found[0]) == 3
    with pytest.raises(InvalidArgumentError, match="of 1 replicas, and this process has 2"):
        strategy.run(lambda x: x, (PerReplica((np.ones(1),)),))


def test_the_replica_context(strategy: Strategy) -> None:
    assert get_replica_context() is None

    def step() -> Any:
        replica = get_replica_context()
        assert replica is not None
        assert replica.num_replicas_in_sync == 1
        assert replica.strategy is strategy
        with pytest.raises(TypeError, match="no truth value"):
            bool(replica.replica_id_in_sync_group == 0)
        both = replica.all_reduce("mean", {"a": np.array([1, 2]), "b": np.float32(3)})
        return replica.replica_id_in_sync_group, both

    number, both = strategy.run(step)
    assert number == 0
    assert both["a"].dtype == np.float64
    assert both["b"] == 3
    with pytest.raises(InvalidArgumentError, match="no way to reduce 'max'"):
        strategy.run(lambda x: get_replica_context().all_reduce("max", x), (np.ones(1),))  # type: ignore[union-attr]


def test_variables_say_what_replicas_make_of_them() -> None:
    with Graph().as_default():
        v = Variable(0.0, aggregation="MEAN", synchronization=VariableSynchronization.ON_READ)
        assert v.aggregation is VariableAggregation.MEAN
        assert not v.trainable
        assert Variable(0.0).aggregation == "none"
        assert get_variable("w", (2,), aggregation="sum").aggregation == "sum"
        with pytest.raises(InvalidArgumentError, match="no aggregation 'max'; choose from none, sum, mean"):
            Variable(0.0, aggregation="max")
        with pytest.raises(InvalidArgumentError, match="no synchronization 'later'"):
            Variable(0.0, synchronization="later")


def test_a_value_on_each_replica_needs_a_rule_to_be_read() -> None:
    strategy = MirroredStrategy(["CPU:0"] * 2)
    v = variable(strategy, np.float32(0), name="v", synchronization="on_read")
    total = variable(strategy, np.int64(0), name="total", synchronization="on_read", aggregation="sum")

    def step() -> None:
        v.assign_add(1.0)
        total.assign_add(1)

    strategy.run(step)
    with pytest.raises(InvalidArgumentError, match=r"'v' has a value on each of 2 replicas.*aggregation="):
        strategy.read(v)
    assert total.eval() == 2
    total.assign(7).eval()  # the first replica holds the sum
    assert total.eval() == 7
    strategy.run(step)
    assert total.eval() == 9


def test_values_read_too_early(strategy: Strategy) -> None:
    w = variable(strategy, np.float32(1))
    with pytest.raises(FailedPreconditionError, match="has no value yet: the step is being traced"):
        strategy.run(lambda: w.eval())


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_gradient_descent_by_hand(replicas: int) -> None:
    """Assignments of replicas are summed: gradient descent without an optimizer."""
    strategy = MirroredStrategy(["CPU:0"] * replicas)
    w = variable(strategy, np.float32(1), aggregation="sum")
    x = np.arange(6, dtype=np.float32)

    def step(x: Any) -> Any:
        loss = compute_average_loss(np.square(x * w - 1), 6)
        (slope,) = gradients(loss, [w])
        return w.assign_sub(0.01 * slope)

    expected = 1.0
    for batch in strategy.distribute_dataset(Dataset.from_arrays(np.tile(x, 3)).batch(6)):
        found = strategy.run(step, (batch,))
        expected -= 0.01 * float(np.mean(2 * x * (x * expected - 1)))
        np.testing.assert_allclose(local_results(found), expected, rtol=1e-5)
    np.testing.assert_allclose(w.eval(), expected, rtol=1e-5)


def test_the_threads_of_replicas_end_with_their_strategy() -> None:
    def named() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("nbdist device")]

    strategy = MirroredStrategy(["CPU:0"] * 3)
    strategy.run(_nothing)
    assert len(named()) >= 2
    before = named()
    strategy.finish()
    deadline = time.monotonic() + 10
    while len(named()) > len(before) - 2:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def _nothing() -> None:
    return None


def test_a_scope_is_the_current_strategy() -> None:
    from nbdist.train.context import get_strategy

    strategy = OneDeviceStrategy()
    with strategy.scope() as found:
        assert found is get_strategy() is strategy
        with OneDeviceStrategy().scope() as inner:
            assert get_strategy() is inner
    assert get_strategy() is not strategy


def test_towers_run_no_loops() -> None:
    strategy = InGraphStrategy("nbdist://nowhere", ["/job:worker/task:0/device:CPU:0"])
    for call in (strategy.scope, lambda: strategy.run(_nothing), lambda: strategy.reduce("sum", 1)):
        with pytest.raises(InvalidArgumentError, match=r"in_graph runs no loops.*use Model\.fit"), call():
            pass


def test_graphs_without_a_strategy_are_as_before() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (2,), name="x")
        with pytest.raises(FailedPreconditionError, match="needs a session"):
            (x * 2).eval()
        w = Variable(np.ones(2, np.float32))
        assert SGD(0.1).minimize(np.sum(w * x)).name == "SGD"
        assert compute_average_loss(x, 2).shape == ()


def test_a_nan_step_can_be_skipped(strategy: Strategy, capsys: pytest.CaptureFixture[str]) -> None:
    w, seen = variable(strategy, np.ones(3)), variable(strategy, np.zeros(3), trainable=False)
    optimizer = SGD(0.5)

    def step(x: Any) -> Any:
        seen.assign(x)
        loss = np.sum(w * x)
        optimizer.minimize(loss)
        return loss

    good, bad = np.ones(3), np.array([1, np.nan, 1])
    strategy.run(step, (good,), nan="skip")
    assert np.isnan(strategy.run(step, (bad,), nan="skip"))
    np.testing.assert_array_equal(strategy.read(w), 0.5)
    np.testing.assert_array_equal(strategy.read(seen), good)
    assert "step 2: the loss is NaN: this replica's gradient is left out" in capsys.readouterr().out
    strategy.run(step, (good,), nan="skip")
    np.testing.assert_array_equal(strategy.read(w), 0)
    with pytest.raises(NanLossError, match="nan='skip'"):
        strategy.run(step, (bad,))
    with pytest.raises(InvalidArgumentError, match="no nan='keep'; choose from stop, skip"):
        strategy.run(step, (good,), nan="keep")
