"""Lookups fetch rows, and their gradients hold rows: values, shapes, places, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.partition import Edge, partition
from nbdist.graph.gradients import gradients
from nbdist.graph.ops.rows import summed_rows
from nbdist.graph.partitioners import fixed_size_partitioner
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import control_dependencies, device
from nbdist.graph.sparse import IndexedSlices
from nbdist.graph.tensor import Graph, Tensor, Variable, constant, placeholder
from nbdist.graph.variables import get_variable, global_variables_initializer
from nbdist.nn.functional import embedding_lookup
from nbdist.runtime.session.session import Session

Array = np.ndarray[Any, Any]
ROWS, WIDTH = 7, 3
TABLE = np.random.default_rng(5).normal(size=(ROWS, WIDTH))
DEVICES = ("/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0",
           "/job:worker/replica:0/task:0/device:CPU:0")  # fmt: skip


def table(shards: int | None) -> Any:
    return get_variable(
        "t", initializer=TABLE, partitioner=None if shards is None else fixed_size_partitioner(shards)
    )


def run(fetches: Any, feeds: dict[Tensor, Any] | None = None) -> Any:
    """Run what belongs to the default graph, with variables freshly initialised."""
    with Session() as session:
        session.run(global_variables_initializer())
        return session.run(fetches, feeds)


def whole(found: list[Any]) -> Array:
    """Return gradients that a session gave, one per shard, as one array."""
    parts = []
    for one in found:
        if isinstance(one, IndexedSlices):
            dense = np.zeros(one.dense_shape, one.dtype)
            np.add.at(dense, one.indices, one.values)
            one = dense
        parts.append(one)
    return np.concatenate(parts)


ids_of_any_shape = arrays(np.int64, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
                          elements=st.integers(0, ROWS - 1))  # fmt: skip


# Lookups


@given(ids=ids_of_any_shape, shards=st.sampled_from([None, 1, 2, 3, 7]), dtype=st.sampled_from("bBhHiIlLq"))
@settings(deadline=None, max_examples=examples(120))
def test_rows_and_gradients_of_any_ids(ids: Array, shards: int | None, dtype: str) -> None:
    weights = np.random.default_rng(1).normal(size=(*ids.shape, WIDTH))
    with Graph().as_default():
        t = table(shards)
        fed = placeholder(np.dtype(dtype), (None,) * ids.ndim)
        rows = embedding_lookup(t, fed)
        assert rows.shape == (*fed.shape, WIDTH)
        found = gradients(np.sum(rows * rows * weights), t)
        assert all(isinstance(g, IndexedSlices) for g in found)
        values, slices = run([rows, found], {fed: ids.astype(dtype)})
    np.testing.assert_array_equal(values, TABLE[ids])
    expected = np.zeros_like(TABLE)
    np.add.at(expected, ids, 2 * TABLE[ids] * weights)
    np.testing.assert_allclose(whole(slices), expected, rtol=1e-9, atol=1e-12)
    assert sum(len(one.values) for one in slices) <= ids.size


@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("given_ids", [[[2, 6], [0, 2]], np.array(3), (1, 5), np.zeros((0, 2), np.int32)])
def test_ids_may_be_given(shards: int | None, given_ids: Any) -> None:
    with Graph().as_default():
        values = run(embedding_lookup(table(shards), given_ids))
    np.testing.assert_array_equal(values, TABLE[np.asarray(given_ids, int)])


def test_a_table_may_be_any_tensor_or_array_of_any_rows() -> None:
    numbers = np.array([2, 2, 0])
    with Graph().as_default():
        deep = get_variable("deep", initializer=TABLE.reshape(7, 3, 1), partitioner=fixed_size_partitioner(2))
        flat = get_variable("flat", initializer=TABLE[:, 0], partitioner=fixed_size_partitioner(2))
        found = run([embedding_lookup(x, numbers) for x in (TABLE, np.tanh(constant(TABLE)), deep, flat)])
    for value, expected in zip(
        found, [TABLE, np.tanh(TABLE), TABLE.reshape(7, 3, 1), TABLE[:, 0]], strict=True
    ):
        np.testing.assert_allclose(value, expected[numbers], rtol=1e-12)


@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize(("wrong", "named"), [(7, "id 7"), (-1, "id -1"), (10**12, "id 1000000000000")])
def test_an_id_outside_is_named_with_the_range(shards: int | None, wrong: int, named: str) -> None:
    with Graph().as_default():
        t, fed = table(shards), placeholder(np.int64, (None,))
        with pytest.raises(
            InvalidArgumentError, match=f"{named} is outside the table, which has rows 0 to 6$"
        ):
            embedding_lookup(t, [0, wrong, 1])
        rows = embedding_lookup(t, fed)
        with pytest.raises(
            InvalidArgumentError, match=f"{named} is outside the table, which has rows 0 to 6,"
        ):
            run(rows, {fed: [0, wrong, 1]})
        with pytest.raises(InvalidArgumentError, match=r"\(2 of 3 ids are outside\)"):
            run(rows, {fed: [wrong, 0, wrong]})


def test_what_is_no_lookup() -> None:
    with Graph().as_default():
        with pytest.raises(InvalidArgumentError, match="ids are whole numbers, got float64"):
            embedding_lookup(table(None), [0.5])
        with pytest.raises(InvalidArgumentError, match="ids are whole numbers"):
            embedding_lookup(get_variable("u", (3,), partitioner=fixed_size_partitioner(2)), [0.5])
        with pytest.raises(InvalidArgumentError, match="a table has rows"):
            embedding_lookup(3.0, [0])
        across = get_variable("v", (3, 4), partitioner=fixed_size_partitioner(2, axis=1))
        with pytest.raises(InvalidArgumentError, match="'v' is cut along axis 1"):
            embedding_lookup(across, [0])


def test_only_rows_travel_and_each_once() -> None:
    with Graph().as_default():
        with device(replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:0")):
            t = get_variable("t", (1_000_000, 20), partitioner=fixed_size_partitioner(2))
            ids = placeholder(np.int64, (None,))
            rows = embedding_lookup(t, ids)
            found = gradients(np.sum(rows * rows), t)
            fetched = [rows, *(part for g in found for part in (g.values, g.indices))]
        assert [g.values.device for g in found] == ["/job:worker/task:0"] * 2
        plan = partition(fetched, feeds=[ids], shapes=[(6,)], devices=DEVICES, default=DEVICES[2])

    def sizes(edge: Edge) -> tuple[Any, str]:
        return (edge.spec.shape if edge.spec else None), edge.source[:7] + edge.target[:7]

    assert sorted(map(sizes, plan.edges), key=repr) == [
        ((None, 20), "/job:ps/job:wo"), ((None, 20), "/job:ps/job:wo"),
        ((None,), "/job:wo/job:ps"), ((None,), "/job:wo/job:ps"),
    ]  # fmt: skip


@given(
    positions=arrays(np.int64, st.integers(0, 12), elements=st.integers(0, 5)),
    width=st.integers(1, 3),
)
def test_rows_of_one_position_are_summed(positions: Array, width: int) -> None:
    rows = np.random.default_rng(0).normal(size=(len(positions), width))
    at, total = summed_rows(np, rows, positions)
    assert (np.diff(at) > 0).all()
    expected = np.zeros((6, width))
    np.add.at(expected, positions, rows)
    np.testing.assert_array_equal(at, np.unique(positions))
    np.testing.assert_allclose(total, expected[at], rtol=1e-12)


# Gradients


def check_against_differences(total: Tensor, found: Array, variable: Any, values: Array) -> None:
    with Session(graph=total.graph) as session:
        session.run(global_variables_initializer(total.graph))
        fed = placeholder(np.float64, values.shape)
        setter = variable.assign(fed)
        h = 1e-6
        for index in np.ndindex(values.shape):
            ends = []
            for step in (h, -h):
                moved = values.copy()
                moved[index] += step
                session.run(setter, {fed: moved})
                ends.append(float(session.run(total)))
            assert found[index] == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("shards", [None, 3])
@pytest.mark.parametrize("case", ["one", "two", "mixed", "nested", "computed", "read"])
def test_gradients_against_finite_differences(shards: int | None, case: str) -> None:
    with Graph().as_default():
        t = table(shards)
        first = np.tanh(embedding_lookup(t, [1, 6, 1]))
        total = {
            "one": lambda: np.sum(first**2),
            "two": lambda: np.sum(first * embedding_lookup(t, [[2], [6], [0]])[:, 0]),
            "mixed": lambda: np.sum(first) + np.sum(t * t * t),
            "nested": lambda: np.sum(embedding_lookup(embedding_lookup(t, [5, 5, 2]), [2, 0, 0]) ** 3),
            "computed": lambda: np.sum(embedding_lookup(np.tanh(t), [4, 4, 1]) ** 2),
            "read": lambda: _read_later(t),
        }[case]()
        found = gradients(total, t)
        rows_only = case in ("one", "two", "nested", "read")
        assert {type(g) for g in found} == {IndexedSlices if rows_only else Tensor}
        check_against_differences(total, whole(run(found)), t, TABLE)


def _read_later(t: Any) -> Any:
    with control_dependencies([constant(1.0) * 2]):
        return np.sum(embedding_lookup(t, [3, 0]) ** 2)


def test_several_lookups_are_put_one_after_the_other() -> None:
    with Graph().as_default():
        t = table(None)
        a, b = embedding_lookup(t, [1, 2]), embedding_lookup(t, [[2, 3]])
        (g,) = gradients(np.sum(a) + 2 * np.sum(b), [t])
        assert isinstance(g, IndexedSlices)
        found = run(g)
    assert found.indices.tolist() == [1, 2, 2, 3]
    np.testing.assert_array_equal(found.values, np.repeat([1.0, 2.0], 2)[:, None] * np.ones((4, 3)))
    assert found.dense_shape == (ROWS, WIDTH)


@pytest.mark.parametrize("shards", [None, 2])
def test_gradients_of_gradients(shards: int | None) -> None:
    with Graph().as_default():
        t = table(shards)
        rows = embedding_lookup(t, [1, 4, 1])
        first = gradients(np.sum(rows**3), t)
        total = sum((np.sum(np.square(g)) for g in first), start=constant(0.0))  # dense, by NumPy
        second = gradients(total, t)
        found = whole(run(second))
        check_against_differences(total, found, t, TABLE)
        rows_of = [g.values for g in first]
        third = gradients([np.sum(v * v) for v in rows_of], t)
        values = np.sum([float(np.sum(v * v)) for v in run(rows_of)])
        assert np.isfinite(values)
        assert all(g is not None for g in third)


def test_where_to_begin_may_be_given() -> None:
    with Graph().as_default():
        x = Variable(np.array([1.0, 2.0]), name="x")
        y, z = x * x, 3 * x
        begin = np.array([10.0, 100.0])
        found = run(
            [
                gradients(y, x, begin),
                gradients([y, z], [x], [begin, None]),
                gradients([y, z], x),
                gradients(y, [x, y], [z]),
            ]
        )
        np.testing.assert_array_equal(found[0], [[20, 400]])
        np.testing.assert_array_equal(found[1], [[23, 403]])
        np.testing.assert_array_equal(found[2], [[5, 7]])
        np.testing.assert_array_equal(found[3], [[6, 24], [3, 6]])
        assert gradients(z, [constant(1.0)]) == [None]
        t = table(2)
        rows = embedding_lookup(t, [0, 6])
        pair = gradients(rows, t, run(rows))
        np.testing.assert_array_equal(whole(run(pair))[[0, 6]], TABLE[[0, 6]])
        (again,) = gradients(gradients(rows * rows, t)[0], [t.shards[0]])
        assert isinstance(again, IndexedSlices)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda x, o: (3.0, [x]), "y is a tensor, got 3.0"),
        (lambda x, o: ([], [x]), "ys is empty"),
        (lambda x, o: (x * 2, ["x"]), "x is a tensor, got 'x'"),
        (lambda x, o: (x * 2, [o]), "'o'.* belongs to another graph than"),
        (lambda x, o: (x > 0, [x]), "is not a floating point tensor"),
        (lambda x, o: (x * 2, [x], [np.ones(3), None]), "1 ys have 2 grad_ys"),
        (lambda x, o: (x * 2, [x], np.ones(2)), r"has a gradient of the same shape, got \(2,\)"),
        (lambda x, o: (x * 2, [x], 1.0), r"got \(\)"),
    ],
)
def test_what_has_no_gradient(arguments: Any, words: str) -> None:
    with Graph().as_default():
        other = Variable(np.ones(3), name="o")
    with Graph().as_default():
        x = Variable(np.ones(3), name="x")
        with pytest.raises(InvalidArgumentError, match=words):
            gradients(*arguments(x, other))


# Places and names


def test_a_gradient_is_computed_where_its_op_is() -> None:
    with Graph().as_default() as graph:
        with device("/job:ps/task:1"):
            w, t = Variable(np.ones((3, 3)), name="w"), table(None)
        with device("/job:worker/task:0"):
            x = placeholder(np.float64, (None, 3), name="x")
            hidden = np.tanh(x @ w)
        with device("/job:worker/task:1"):
            loss = np.sum(hidden * embedding_lookup(t, [1, 1]))
        before = len(graph.tensors)
        with device("/job:worker/task:7"):
            found = gradients(loss, [w, t])
            assert gradients(constant(1.0) * np.sum(Variable(1.0)), Variable(2.0)) == [None]
        made = graph.tensors[before:]
        places = {one.name.split("/")[1]: one.device for one in made if one.name.startswith("gradients/")}
    assert found[0].device == "/job:worker/task:0"
    assert found[1].values.device == "/job:worker/task:1"
    assert places == {
        "sum": "/job:worker/task:1", "multiply": "/job:worker/task:1", "tanh": "/job:worker/task:0",
        "matmul": "/job:worker/task:0",
    }  # fmt: skip


def test_what_has_no_place_is_where_gradients_is_called() -> None:
    with Graph().as_default():
        x = Variable(1.0)
        y = x * x
        with device("/job:worker"):
            (g,) = gradients(y, x)
        assert g.device == "/job:worker"
        assert gradients(y, x)[0].name.startswith("gradients_1/multiply/")


def test_a_gradient_uses_the_values_that_the_forward_pass_read() -> None:
    with Graph().as_default():
        w = Variable(np.array(3.0), name="w")
        y = w * w
        with control_dependencies([w.assign(np.array(100.0))]):
            (g,) = gradients(y, w)
        assert run(g) == 6


# IndexedSlices


def test_rows_times_a_number_are_rows() -> None:
    with Graph().as_default():
        t = table(None)
        (g,) = gradients(np.sum(embedding_lookup(t, [3, 3, 1])), t)
        assert {type(x) for x in (g * 2, 2 * g, g / 4, g * constant(2.0))} == {IndexedSlices}
        dense = {"sum": g + g, "of": g * TABLE, "abs": np.abs(g), "by": g / TABLE, "row": g[3]}
        assert {type(x) for x in dense.values()} == {Tensor}
        found = run({"twice": g * 2, "quarter": g / 4, "full": g.to_tensor(), **dense})
    expected = np.zeros((ROWS, WIDTH))
    expected[3], expected[1] = 2, 1
    np.testing.assert_array_equal(whole([found["twice"]]), 2 * expected)
    np.testing.assert_array_equal(whole([found["quarter"]]), expected / 4)
    np.testing.assert_array_equal(found["full"], expected)
    np.testing.assert_array_equal(found["sum"], 2 * expected)
    np.testing.assert_array_equal(found["of"], TABLE * expected)
    np.testing.assert_array_equal(found["row"], expected[3])
    assert repr(found["twice"]) == "<IndexedSlices of (3, 3) rows in (7, 3) float64>"


def test_slices_of_arrays_become_dense_in_a_graph() -> None:
    slices = IndexedSlices(np.ones((2, 3)), np.array([1, 1]), (4, 3))
    with Graph().as_default():
        assert run(slices.to_tensor())[1].tolist() == [2, 2, 2]
        bad = IndexedSlices(np.ones((2, 3)), np.array([1, 4]), (4, 3)).to_tensor()
        with pytest.raises(InvalidArgumentError, match="id 4 is outside the table, which has rows 0 to 3"):
            run(bad)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            (np.ones((2, 3)), np.array([1]), (4, 3)),
            r"values \(2, 3\) at indices \(1,\) are not rows of \(4, 3\)",
        ),
        ((np.ones((2, 3)), np.array([[1, 2]]), (4, 3)), "are not rows"),
        ((np.ones((2, 3)), np.array([1, 2]), (4, 2)), "are not rows"),
        (([1.0], np.array([1]), (4,)), r"holds tensors or arrays, got \[1.0\]"),
    ],
)
def test_what_is_no_rows(parts: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        IndexedSlices(*parts)
