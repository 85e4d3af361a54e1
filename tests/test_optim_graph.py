"""Optimizers in a graph: the same numbers as fit, sparse rows, devices, names, refused arguments."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from examples import examples
from fake_cupy import FakeCupy, counts
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiers import matrix

from nbdist import optim
from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError
from nbdist.graph import backend
from nbdist.graph.backend import to_host
from nbdist.graph.compile.partition import partition
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.op import OPS
from nbdist.graph.partitioned import PartitionedVariable
from nbdist.graph.partitioners import fixed_size_partitioner
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import container, device, name_scope
from nbdist.graph.sparse import IndexedSlices
from nbdist.graph.tensor import Graph, ShardSlice, Tensor, Variable, constant, placeholder
from nbdist.graph.variables import (
    get_or_create_global_step,
    get_variable,
    global_variables,
    global_variables_initializer,
    trainable_variables,
)
from nbdist.nn import Dense, Sequential, compute_average_loss
from nbdist.nn.functional import embedding_lookup, sparse_softmax_cross_entropy
from nbdist.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from nbdist.optim.training import MOST_SLOTS, op_name
from nbdist.runtime.session.session import Session

Array = np.ndarray[Any, Any]

MAKERS = [
    lambda: SGD(0.1),
    lambda: SGD(0.1, momentum=0.9),
    lambda: SGD(0.1, momentum=0.9, nesterov=True),
    lambda: Adam(0.05),
    lambda: Adam(0.05, amsgrad=True),
    lambda: AdamW(0.05, weight_decay=0.1),
    lambda: RMSprop(0.05),
    lambda: RMSprop(0.05, momentum=0.5, centered=True, epsilon=1e-3),
    lambda: Adagrad(0.1),
]
every_optimizer = pytest.mark.parametrize("make", MAKERS, ids=lambda make: repr(make())[:48])


@pytest.mark.parametrize(
    ("make", "rated"),
    matrix(
        [*((make, False) for make in MAKERS), (MAKERS[1], True), (MAKERS[4], True)],
        rest=[(make, True) for at, make in enumerate(MAKERS) if at not in (1, 4)],
    ),
    ids=lambda one: str(one) if isinstance(one, bool) else repr(one())[:48],
)
def test_an_update_on_a_gpu_does_not_wait(make: Any, rated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of the step and a rate that is a tensor stay on the GPU: the program can be captured."""
    module = FakeCupy()
    monkeypatch.setattr(backend, "_cupy", lambda: module)
    optimizer = make()
    if rated:
        optimizer.learning_rate = lambda step: 0.1 * 0.5 ** (step + 1)
    with Graph().as_default():
        w = Variable(np.linspace(-1, 1, 6), name="w")
        changes = optimizer.minimize(np.sum(w * w)).control_inputs
        variables = global_variables()
        initial = {v: np.zeros(v.shape, v.dtype) for v in variables}
        compile_program([v.initializer for v in variables], values=initial)()
    results = []
    for xp in (np, module):
        held = {v: xp.asarray(array.copy()) for v, array in initial.items()}
        program = compile_program(changes, values=held, xp=xp, capture=None)
        for _ in range(4):
            program()
            counts.clear()
        program()
        waits = counts["host wait"] + counts["copy to device"]
        assert waits == 0
        results.append([to_host(array) for array in held.values()])
    for host, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, host, rtol=1e-12)


def started() -> Session:
    """Return a session of the default graph with its variables initialised."""
    session = Session()
    session.run(global_variables_initializer())
    return session


# Against the training loop


@every_optimizer
def test_a_step_equals_a_step_of_fit(make: Any) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, 5)).astype(np.float32), rng.integers(0, 3, 48)
    model = Sequential([Dense(7, "tanh"), Dense(3, "softmax")], seed=2)
    model.compile(make(), "sparse_categorical_crossentropy")
    model.build((5,))
    first = [w.copy() for w in model.weights]
    model.fit(Dataset.from_arrays(x, y).batch(16), epochs=3)
    with Graph().as_default():
        fed, labels = placeholder(np.float32, (None, 5)), placeholder(np.int64, (None,))
        held = [Variable(w, name=f"w{i}") for i, w in enumerate(first)]
        hidden = np.tanh(fed @ held[0] + held[1])
        losses = sparse_softmax_cross_entropy(labels, hidden @ held[2] + held[3])
        step = make().minimize(compute_average_loss(losses, 16))
        session = started()
        for _ in range(3):
            for at in range(0, 48, 16):
                assert session.run(step, {fed: x[at : at + 16], labels: y[at : at + 16]}) is None
        found = session.run(held)
    for value, expected, before in zip(found, model.weights, first, strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-6)
        assert not np.allclose(value, before, rtol=1e-3)


# Rows


def by_rows(make: Any, table: Array, batches: list[Array], weights: list[Array]) -> list[Array]:
    """Train a table as a reference: only looked-up rows and their slots change."""
    optimizer, table = make(), table.copy()
    kept = optimizer.new_slots(table)
    for step, (ids, weight) in enumerate(zip(batches, weights, strict=True), 1):
        total = np.zeros_like(table)
        np.add.at(total, ids, weight)
        for row in np.unique(ids):
            slots = {name: array[row] for name, array in kept.items()}
            optimizer.apply(table[row], total[row].copy(), slots, step)
    return [table, *kept.values()]


@pytest.mark.parametrize(
    ("make", "shards"),
    matrix(
        [*((make, None) for make in MAKERS), (MAKERS[1], 3), (MAKERS[4], 3)],
        rest=[(make, 3) for at, make in enumerate(MAKERS) if at not in (1, 4)],
    ),
    ids=lambda one: repr(one() if callable(one) else one)[:48],
)
@given(
    batches=st.lists(arrays(np.int64, st.integers(0, 5), elements=st.integers(0, 7)), min_size=1, max_size=4)
)
@settings(deadline=None, max_examples=examples(8))
def test_only_looked_up_rows_change(make: Any, shards: int | None, batches: list[Array]) -> None:
    rng = np.random.default_rng(len(batches))
    first = rng.normal(size=(8, 3))
    weights = [rng.normal(size=(len(ids), 3)) for ids in batches]
    expected = by_rows(make, first, batches, weights)
    with Graph().as_default():
        partitioner: Any = None if shards is None else fixed_size_partitioner(shards)
        table: Any = get_variable("t", initializer=first, partitioner=partitioner)
        ids, weight = placeholder(np.int64, (None,)), placeholder(np.float64, (None, 3))
        optimizer = make()
        step = optimizer.minimize(np.sum(embedding_lookup(table, ids) * weight), get_or_create_global_step())
        session = started()
        for one, by in zip(batches, weights, strict=True):
            session.run(step, {ids: one, weight: by})
        parts = table.shards if isinstance(table, PartitionedVariable) else [table]
        slots = [[optimizer.get_slot(v, name) for v in parts] for name in optimizer.get_slot_names()]
        found = [np.concatenate(session.run(list(one))) for one in (parts, *slots)]
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)
    untouched = sorted(set(range(8)) - {int(i) for ids in batches for i in ids})
    np.testing.assert_array_equal(found[0][untouched], first[untouched])


@pytest.mark.parametrize("make", [MAKERS[0], MAKERS[-1]])
def test_rows_change_as_the_dense_gradient_would_change_them(make: Any) -> None:
    """For rules under which a gradient of 0 changes nothing."""

    def trained(dense: bool) -> Array:
        with Graph().as_default():
            table = get_variable("t", (50, 4))
            rows = embedding_lookup(table, np.random.default_rng(0).integers(0, 50, (9, 3)))
            optimizer = make()
            ((g, v),) = optimizer.compute_gradients(np.sum(np.tanh(rows) ** 2))
            assert isinstance(g, IndexedSlices)
            step = optimizer.apply_gradients([(g.to_tensor() if dense else g, v)])
            session = started()
            for _ in range(3):
                session.run(step)
            found: Array = session.run(table)
            return found

    np.testing.assert_array_equal(trained(dense=True), trained(dense=False))


@every_optimizer
def test_shards_train_like_the_whole_table_bit_for_bit(make: Any) -> None:
    def trained(partitioner: Any) -> list[Array]:
        with Graph().as_default():
            count = get_or_create_global_step()
            table = get_variable("t", (100, 4), partitioner=partitioner)
            w = get_variable("w", (4, 4), partitioner=partitioner)
            ids = placeholder(np.int64, (None, 2))
            loss = np.mean(np.tanh(embedding_lookup(table, ids) @ w) ** 2)
            step = make().minimize(loss, count)
            session, rng = started(), np.random.default_rng(0)
            for _ in range(4):
                session.run([loss, step], {ids: rng.integers(0, 100, (30, 2))})
            found: list[Array] = session.run([table, w, count])
            return found

    for a, b in zip(trained(None), trained(fixed_size_partitioner(3)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shards", [None, 2])
def test_a_step_costs_its_rows_and_not_the_table(shards: int | None) -> None:
    with Graph().as_default():
        partitioner: Any = None if shards is None else fixed_size_partitioner(shards)
        table: Any = get_variable("t", (1_000_000, 8), initializer="zeros", partitioner=partitioner)  # 32 MB
        ids = placeholder(np.int64, (None,))
        rows = embedding_lookup(table, ids)
        step = Adam(0.1).minimize(np.sum((rows - 1) ** 2))
        numbers = np.arange(0, 1_000_000, 2_000)
        session = started()
        session.run(step, {ids: numbers})
        tracemalloc.start()
        session.run(step, {ids: numbers})
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1e6
        _, spans = session.trace(step, {ids: numbers})
        assert spans
        value = session.run(table)
    assert (value[numbers] > 0.1).all()
    value[numbers] = 0
    assert not value.any()


def test_only_rows_reach_the_parameter_server() -> None:
    devices = [f"/job:{job}/replica:0/task:0/device:CPU:0" for job in ("ps", "worker")]
    with Graph().as_default():
        with device(replica_device_setter(ps_tasks=1)):
            table = get_variable("t", (1_000_000, 8))
            ids = placeholder(np.int64, (None,))
            step = SGD(0.1).minimize(np.sum(embedding_lookup(table, ids) ** 2), get_or_create_global_step())
        plan = partition([step], feeds=[ids], shapes=[(5,)], devices=devices, default=devices[1])
    assert sorted(e.spec.shape for e in plan.edges if e.spec is not None) == [(5, 8), (5, 8)]
    assert not any("worker" in v.device for piece in plan.pieces for v in piece.variables())


# Steps


def test_the_step_is_counted_after_all_updates() -> None:
    with Graph().as_default():
        count = get_or_create_global_step()
        a, b = Variable(1.0, name="a"), Variable(2.0, name="b")
        step = SGD(0.1).minimize(a * b, count, name="train")
        assert (step.name, step.op is not None and step.op.has_value) == ("train", False)
        (counted,) = step.control_inputs
        assert [t.name for t in counted.control_inputs] == ["a/sgd/apply", "b/sgd/apply"]
        session = started()
        for expected in (1, 2, 3):
            session.run(step)
            assert session.run(count) == expected
        assert [v.name for v in global_variables()] == ["global_step", "a", "b"]  # no own step count


def test_adam_counts_steps_unless_a_count_is_given() -> None:
    rate, epsilon = 0.1, 1e-7
    with Graph().as_default():
        w = Variable(np.array(1.0), name="w")
        adam = Adam(rate, epsilon=epsilon)
        step = adam.minimize(3 * w)
        assert [v.name for v in global_variables()] == ["w", "adam/step", "w/adam/mean", "w/adam/square"]
        session = started()
        for _ in range(4):
            session.run(step)
        # With a constant gradient every step of Adam is the rate long, if the step's number is right.
        assert session.run(w) == pytest.approx(1 - 4 * rate, rel=1e-6)
        assert session.run("adam/step") == 4
    with Graph().as_default():
        w = Variable(np.array(1.0), name="w")
        count = get_or_create_global_step()
        step = Adam(rate, epsilon=epsilon).minimize(3 * w, count)
        session = started()
        session.set_value(count, 10)
        session.run(step)
        size = 0.1 * 3 / (1 - 0.9**11) / np.sqrt(0.001 * 9 / (1 - 0.999**11))
        assert session.run(w) == pytest.approx(1 - rate * size, rel=1e-5)


def test_one_optimizer_may_apply_twice_and_two_have_separate_slots() -> None:
    with Graph().as_default():
        w = Variable(np.array([1.0, 2.0]), name="w")
        adam = Adam(0.1)
        first, second = adam.minimize(np.sum(w)), adam.minimize(np.sum(w * w))
        other = Adam(0.1).minimize(np.sum(w))
        names = [v.name for v in global_variables()]
        assert names.count("w/adam/mean") == 1
        assert "w/adam/mean_1" in names
        session = started()
        session.run([first])
        session.run([second])
        session.run([other])
        assert session.run(["adam/step", "adam/step_1"]) == [2, 1]


def test_two_losses_in_one_run() -> None:
    with Graph().as_default():
        a, b = Variable(1.0, name="a"), Variable(1.0, name="b")
        steps = [SGD(0.5).minimize(a * 3, var_list=[a]), SGD(0.5).minimize(b * 4, var_list=b)]
        session = started()
        session.run(steps)
        assert session.run([a, b]) == [-0.5, -1]


# Slots


def test_slots_are_on_the_device_of_their_variable() -> None:
    with Graph().as_default():
        with device(replica_device_setter(ps_tasks=2)), container("mine"), name_scope("model"):
            table = get_variable("t", (5, 2), np.float64, partitioner=fixed_size_partitioner(2))
            ids = placeholder(np.int64, (3,))
            optimizer = Adagrad(0.1, initial_accumulator_value=0.25)
            optimizer.minimize(np.sum(embedding_lookup(table, ids)))
        slots = [optimizer.get_slot(v, "square") for v in table.shards]
        assert [s.name for s in slots] == [f"model/t/part_{i}/adagrad/square" for i in range(2)]
        for v, s in zip(table.shards, slots, strict=True):
            assert (s.device, s.container, s.shape, s.dtype) == (v.device, v.container, v.shape, v.dtype)
            assert (s.trainable, s.initial_value.type) == (False, "initial_value")
            assert s.initial_value.device == v.device
        assert [s.part for s in slots] == [
            ShardSlice("model/t/adagrad/square", (5, 2), (0, 0)),
            ShardSlice("model/t/adagrad/square", (5, 2), (3, 0)),
        ]  # fmt: skip
        assert trainable_variables() == table.shards
        with pytest.raises(InvalidArgumentError, match="Adagrad keeps square for a variable, not 'mean'"):
            optimizer.get_slot(table.shards[0], "mean")
    with Graph().as_default():
        w = Variable(np.ones(3), name="w")
        optimizer.minimize(np.sum(w))
        np.testing.assert_array_equal(started().run(optimizer.get_slot(w, "square")), [0.25] * 3)
        with pytest.raises(InvalidArgumentError, match="SGD keeps nothing for a variable"):
            SGD(0.1).get_slot(w, "velocity")


def test_equal_graphs_have_equal_slot_names() -> None:
    def build() -> list[tuple[str, str]]:
        with Graph().as_default():
            with device(replica_device_setter(ps_tasks=3)):
                count = get_or_create_global_step()
                w = get_variable("w", (4, 4), partitioner=fixed_size_partitioner(2))
                Adam(0.1).minimize(np.sum(w * w), count)
            return [(v.name, v.device) for v in global_variables()]

    assert build() == build()


def test_updates_run_where_the_variables_are() -> None:
    with Graph().as_default() as graph:
        with device(replica_device_setter(ps_tasks=2)):
            v, w = Variable(1.0, name="v"), Variable(2.0, name="w")
            count = get_or_create_global_step()
            step = Adam(0.1).minimize(v * w, count)
        assert [t.device for t in graph.tensors if t.type.startswith("apply_")] == [
            "/job:ps/task:0", "/job:ps/task:1",
        ]  # fmt: skip
        assert step.control_inputs[0].device == count.device == "/job:ps/task:0"
        assert graph.tensor("global_step/next").device == count.device


def test_graph_state_of_an_optimizer_is_not_pickled() -> None:
    adam = Adam(0.25)
    with Graph().as_default():
        adam.minimize(Variable(1.0) * 2)
        assert adam.graph_state.slots
    for other in (copy.deepcopy(adam), pickle.loads(pickle.dumps(adam)), optim.from_config(adam.to_config())):
        assert other == adam
        assert not other.graph_state.slots


# Changed gradients


def test_gradients_may_be_changed_before_apply() -> None:
    with Graph().as_default():
        a, b, c = Variable(np.ones(2), name="a"), Variable(np.ones(2, np.float32), name="b"), Variable(1.0)
        pairs = SGD(1.0).compute_gradients(np.sum(a * 10) + np.sum(b), [a, b, c])
        assert pairs[2] == (None, c)
        clipped = [(None if g is None else np.clip(g, -0.5, 0.5), v) for g, v in pairs]
        clipped[1] = (np.array([1.0, 3.0]), b)  # an array of another float is converted
        step = SGD(1.0).apply_gradients(clipped)
        session = started()
        session.run(step)
        found = session.run([a, b, c])
    np.testing.assert_array_equal(found[0], [0.5, 0.5])
    np.testing.assert_array_equal(found[1], [0, -2])
    assert found[1].dtype == np.float32
    assert found[2] == 1


def test_gradients_are_not_overwritten() -> None:
    with Graph().as_default():
        w = Variable(np.ones(3), name="w")
        g = constant(np.array([1.0, 2.0, 3.0]))
        momentum = SGD(0.1, momentum=0.9)
        step = momentum.apply_gradients([(g, w)])
        session = started()
        for _ in range(2):
            session.run(step)
        np.testing.assert_array_equal(session.run(g), [1, 2, 3])
        np.testing.assert_allclose(session.run(w), 1 - (0.1 + 0.19) * np.array([1, 2, 3]))


def test_the_initial_gradient_of_a_loss_may_be_given() -> None:
    with Graph().as_default():
        w = Variable(np.ones(2), name="w")
        step = SGD(1.0).minimize(w * w, grad_loss=np.array([0.5, 0.25]))
        session = started()
        session.run(step)
        np.testing.assert_array_equal(session.run(w), [0, 0.5])


def test_a_custom_optimizer() -> None:
    @dataclass
    class Signs(Optimizer):
        slots = ("seen",)

        def apply(self, parameters: Array, gradient: Array, slots: dict[str, Array], step: int) -> None:
            slots["seen"] += 1
            parameters -= self.learning_rate * step * np.sign(gradient)

    with Graph().as_default():
        w = Variable(np.array([1.0, -1.0]), name="w")
        with pytest.raises(InvalidArgumentError, match="no optimizer 'Signs'"):
            Signs(0.5).minimize(np.sum(w * w))
        optim.OPTIMIZERS["signs"] = Signs
        try:
            own = Signs(0.5)
            step = own.minimize(np.sum(w * w))
            session = started()
            session.run(step)
            session.run(step)
            assert session.run(own.get_slot(w, "seen")).tolist() == [2, 2]
            assert session.run(w).tolist() == [-0.5, 0.5]
        finally:
            del optim.OPTIMIZERS["signs"]


@every_optimizer
@pytest.mark.parametrize("rows", [False, True], ids=["dense", "rows"])
def test_a_rate_may_be_a_variable(make: Any, rows: bool) -> None:
    """A step at an assigned rate equals one of an optimizer with that rate."""
    found, expected = [], []
    with Graph().as_default():
        w, optimizer = Variable(np.array([[1.0, 2.0], [3.0, 4.0]]), name="w"), make()
        rate = Variable(np.float64(optimizer.learning_rate), trainable=False, name="rate")
        optimizer.graph_state.rates[w.device] = rate
        used = embedding_lookup(w, np.array([0, 0])) if rows else w
        step = optimizer.minimize(np.sum(used * used))
        session = started()
        session.run(step)
        found.append(np.array(session.run(w)))
        session.run(rate.assign(0.02))
        session.run(step)
        found.append(np.array(session.run(w)))
    p, rule = np.array([1.0, 2.0, 3.0, 4.0]), make()
    part, times = (p[:2], 4) if rows else (p, 2)
    slots = rule.new_slots(part)
    rule.apply(part, times * part, slots, 1)
    expected.append(p.reshape(2, 2).copy())
    rule.learning_rate = 0.02
    rule.apply(part, times * part, slots, 2)
    expected.append(p.reshape(2, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_rate_is_one_float64() -> None:
    with Graph().as_default():
        w, optimizer = Variable(np.ones(2), name="w"), SGD(0.1)
        optimizer.graph_state.rates[w.device] = Variable(np.float32(1), trainable=False, name="rate")
        with pytest.raises(InvalidArgumentError, match="a learning rate is one float64"):
            optimizer.minimize(np.sum(w * w))


def test_ops_with_as_many_slots_as_any_optimizer_has() -> None:
    assert {op_name(n, sparse=s) for n in range(MOST_SLOTS + 1) for s in (False, True)} <= set(OPS)
    assert OPS["apply_sparse_gradient_2"].writes == {0, 1, 2}
    with pytest.raises(InvalidArgumentError, match="at most 8 slots"):
        op_name(9, sparse=False)


# Refused arguments


def foreign() -> Variable:
    with Graph().as_default():
        return Variable(1.0, name="foreign")


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda w, o: o.apply_gradients([]), "the list of gradients is empty"),
        (lambda w, o: o.apply_gradients([(None, w)]), "there is no gradient for any of w"),
        (lambda w, o: o.apply_gradients([(w * 2, w, 1)]), r"takes \(gradient, variable\) pairs"),
        (lambda w, o: o.apply_gradients([(w, w * 2)]), "changes variables, got <Tensor 'multiply'"),
        (lambda w, o: o.apply_gradients([(3.0, w)]), "the gradient of variable 'w' is a tensor, got 3.0"),
        (lambda w, o: o.apply_gradients([(w[0], w)]), r"'w' of shape \(2,\) has a gradient of its shape"),
        (lambda w, o: o.apply_gradients([(w, w), (None, foreign())]), "'foreign' belongs to another graph"),
        (
            lambda w, o: o.apply_gradients([(w, foreign())]),
            "'foreign' belongs to another graph than its gradient",
        ),
        (lambda w, o: o.apply_gradients([(w, Variable(3, name="n"))]), "'n' of int64 cannot be trained"),
        (lambda w, o: o.apply_gradients([(w, w)], Variable(1.0)), "global_step is a variable that holds one"),
        (lambda w, o: o.apply_gradients([(w, w)], 3), "got 3; see train.get_or_create_global_step"),
        (lambda w, o: o.minimize(np.sum(w), var_list=[]), "there is no variable to train"),
        (lambda w, o: o.minimize(np.sum(w), var_list=["w"]), "an optimizer changes variables, got 'w'"),
        (
            lambda w, o: o.minimize(np.sum(w), var_list=[foreign()]),
            "'foreign' belongs to another graph than 'sum'",
        ),
        (lambda w, o: o.minimize(constant(1.0) * 2), "depends on none of the variables w; look"),
        (lambda w, o: o.minimize(1.0), "a loss is a tensor, got 1.0"),
        (lambda w, o: o.minimize(w > 0), "is not a floating point tensor"),
        (
            lambda w, o: o.apply_gradients(
                [(w, get_variable("p", (2,), partitioner=fixed_size_partitioner(2)))]
            ),
            "is trained shard by shard",
        ),
    ],
)
def test_invalid_arguments_are_refused(attempt: Any, words: str) -> None:
    with Graph().as_default():
        w = Variable(np.ones(2), name="w")
        with pytest.raises(ValueError, match=words):
            attempt(w, SGD(0.1))


def test_a_graph_without_variables_has_nothing_to_train() -> None:
    with Graph().as_default(), pytest.raises(ValueError, match="there is no variable to train"):
        SGD(0.1).minimize(constant(1.0))


def test_a_row_outside_the_table_is_named() -> None:
    with Graph().as_default():
        w = get_variable("w", (4, 2))
        ids = placeholder(np.int64, (None,))
        g = IndexedSlices(np.ones((1, 2), np.float32), ids, (4, 2))
        step = SGD(0.1).apply_gradients([(g, w)])
        with pytest.raises(InvalidArgumentError, match="id 4 is outside the table, which has rows 0 to 3"):
            started().run(step, {ids: [4]})


def test_average_losses() -> None:
    assert compute_average_loss([1, 2, 3, 4, 5], global_batch_size=10) == 1.5
    with Graph().as_default():
        losses = placeholder(np.float32, (None,))
        average = compute_average_loss(losses, 4)
        assert (average.dtype, average.shape) == (np.float32, ())
        (slope,) = gradients(average, losses)
        found = Session().run([average, slope], {losses: [1, 2]})
        assert isinstance(slope, Tensor)
    assert found[0] == 0.75
    assert found[1].tolist() == [0.25, 0.25]
    for wrong in (0, -1, 2.5, True, None):
        with pytest.raises(InvalidArgumentError, match="a global batch has 1 example or more"):
            compute_average_loss([1.0], wrong)


# Learning rates that are tensors or functions


def descents(learning_rate: Any, kind: Any = SGD, steps: int = 4, **feeds: Any) -> list[float]:
    """Return a variable's value after each step of a gradient that is 1."""
    with Graph().as_default() as graph:
        w = Variable(np.zeros(1), name="w")
        fed = {name: placeholder(np.float32, (), name=name) for name in feeds}
        rate = learning_rate(**fed) if fed else learning_rate
        train = kind(rate).minimize(np.sum(w))  # type: ignore[arg-type]
        values = []
        with Session(graph=graph) as session:
            session.run(global_variables_initializer())
            for step in range(steps):
                session.run(train, {fed[name]: numbers[step] for name, numbers in feeds.items()})
                values.append(-float(session.run(w)[0]))
    return values


def test_a_learning_rate_may_be_a_tensor() -> None:
    assert descents(lambda rate: rate, rate=[1, 2, 0, 0.5]) == [1, 3, 3, 3.5]
    assert descents(lambda rate: rate * 2, rate=[1, 2, 0, 0.5]) == [2, 6, 6, 7]


def test_a_learning_rate_may_be_a_function_of_the_step_or_of_nothing() -> None:
    assert descents(lambda: 0.5) == [0.5, 1, 1.5, 2]
    assert descents(lambda step: 1.0 * 0.5 ** (step // 2)) == [1, 2, 2.5, 3]
    assert descents(lambda step: step + 1) == [1, 3, 6, 10]


def test_a_tensor_as_rate_equals_a_number() -> None:
    for kind in (SGD, Adam, RMSprop, Adagrad):
        np.testing.assert_allclose(descents(lambda: constant(0.25), kind), descents(0.25, kind), rtol=1e-12)


def test_a_learning_rate_counts_with_the_global_step() -> None:
    with Graph().as_default() as graph:
        w = Variable(np.zeros(1), name="w")
        counter = get_or_create_global_step()
        train = SGD(lambda step: 10.0 + step).minimize(np.sum(w), counter)  # type: ignore[arg-type]
        with Session(graph=graph) as session:
            session.run(global_variables_initializer())
            session.set_value(counter, 5)
            session.run(train)
            assert session.run([w, counter]) == [-15, 6]


def test_invalid_learning_rates_are_named() -> None:
    with Graph().as_default():
        w = Variable(np.zeros(2), name="w")
        with pytest.raises(
            InvalidArgumentError, match=r"learning_rate is one number, .* got <Variable 'w' \(2,\)"
        ):
            SGD(w).minimize(np.sum(w))  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=r"works in graphs .* give a number here"):
            SGD(lambda: 0.1).to_config()
    with pytest.raises(InvalidArgumentError, match="learning_rate is a number, got 'a'"):
        SGD("a")


def test_an_optimizer_does_not_count_the_steps_of_two_models_as_one() -> None:
    """Adam's bias correction and a schedule would run at twice their pace."""
    with Graph().as_default():
        a, b = (Variable(np.ones(2, np.float32), name=name) for name in "ab")
        adam = Adam(0.1)
        adam.minimize(np.sum(a * a), var_list=[a])
        with pytest.raises(
            InvalidArgumentError, match=r"this Adam counts the steps of a, .* those of b would"
        ):
            adam.minimize(np.sum(b * b), var_list=[b])
        adam.minimize(np.sum(a * b), var_list=[a, b])  # the same model, with more of its variables
        SGD(0.1).minimize(np.sum(a * a), var_list=[a])
        plain = SGD(0.1)
        for one in (a, b):
            plain.minimize(np.sum(one * one), var_list=[one])
