"""Variables by name: initial values, shards, places, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.graph.initial import KINDS
from nbdist.graph.partitioned import PartitionedVariable, parts_of
from nbdist.graph.partitioners import fixed_size_partitioner
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import container, control_dependencies, device, name_scope
from nbdist.graph.tensor import Graph, ShardSlice, Variable, constant, placeholder
from nbdist.graph.variables import (
    get_or_create_global_step,
    get_variable,
    global_variables,
    global_variables_initializer,
    set_random_seed,
    trainable_variables,
)
from nbdist.runtime.session.session import Session

Array = np.ndarray[Any, Any]


def initialised(*variables: Any) -> list[Array]:
    """Return the initial values of variables of the default graph."""
    with Session(graph=variables[0].graph) as session:
        session.run(global_variables_initializer(variables[0].graph))
        found: list[Array] = session.run(list(variables))
        return found


# Names


def test_a_name_is_exactly_what_is_asked_for() -> None:
    with Graph().as_default():
        with name_scope("hidden"):
            w = get_variable("w", (2, 3))
        assert (w.name, w.shape, w.dtype, w.trainable) == ("hidden/w", (2, 3), np.float32, True)
        assert get_variable("w", (2,)).name == "w"
        with name_scope("hidden"):
            assert get_variable("w", (2,)).name == "hidden_1/w"  # another scope of that name, so no clash


@pytest.mark.parametrize("partitioner", [None, fixed_size_partitioner(2)])
def test_a_second_variable_of_one_name_is_an_error(partitioner: Any) -> None:
    with Graph().as_default():
        get_variable("w", (4,), partitioner=partitioner)
        for again in (None, fixed_size_partitioner(2)):
            with pytest.raises(InvalidArgumentError, match="'w' exists already in this graph"):
                get_variable("w", (4,), partitioner=again)
    with Graph().as_default():
        get_variable("w", (4,))  # another graph has names of its own


# Initial values


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_is_drawn_where_the_variable_lives(name: str) -> None:
    with Graph().as_default(), device("/cpu:0"):
        w = get_variable("w", (40, 30), initializer=name)
        assert w.initial_value.type == "initial_value"
        assert w.initial_value.device == w.device == "/device:CPU:0"
        (value,) = initialised(w)
    kind = KINDS[name]
    scale = kind.scale_for((40, 30))
    spread = {"uniform": scale / np.sqrt(3), "constant": 0.0}.get(kind.draw, scale)
    assert value.std() == pytest.approx(spread, rel=0.1, abs=1e-6)
    assert value.mean() == pytest.approx(scale if kind.draw == "constant" else 0, abs=4 * scale / 30)


def test_what_an_initializer_may_be() -> None:
    with Graph().as_default():
        values = np.arange(6.0).reshape(2, 3)
        made = [
            get_variable("a", (2, 3)),
            get_variable("b", (2, 3), initializer=KINDS["glorot_uniform"]),
            get_variable("c", (2, 3), initializer=0.5),
            get_variable("d", (2, 3), np.int64),
            get_variable("e", (2, 3), initializer=values),
            get_variable("f", initializer=values.astype(np.int32)),
            get_variable("g", (2, 3), initializer=lambda shape, rng: np.full(shape, rng.integers(5, 6))),
            get_variable("h", (), np.int64, initializer=7),
            get_variable("i", 3, np.float64, initializer=np.float32(0.5)),
        ]
        made.append(get_variable("j", initializer=made[4].initial_value * constant(2.0, np.float32)))
        found = initialised(*made)
    assert np.ptp(found[0]) > 0
    assert (found[0] != found[1]).all()  # another name, other values
    dtypes = ["float32", "int64", "float64", "int32", "float32", "int64", "float64", "float64"]
    assert [f.dtype.name for f in found[2:]] == dtypes
    for value, expected in zip(found[2:], [0.5, 0, values, values, 5, 7, [0.5] * 3, values * 2], strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": ""}, "a variable has a name, got ''"),
        ({"name": 3}, "a variable has a name, got 3"),
        ({"shape": None}, "'w' needs a shape; give shape="),
        ({"shape": (2, None)}, r"the shape of 'w' has known sizes, got \(2, None\)"),
        ({"shape": (2, -1)}, "known sizes"),
        ({"shape": (2.5,)}, "known sizes"),
        ({"initializer": "gauss"}, "no initializer 'gauss'; choose from glorot_normal"),
        ({"initializer": "he_normal", "dtype": np.int64}, "'w' is of int64, and 'he_normal' draws floating"),
        (
            {"initializer": 0.5, "dtype": np.int64},
            "'w' is of int64, and 0.5 is one of floating point numbers",
        ),
        ({"initializer": np.ones(3)}, r"'w' has the shape \(2, 3\), its initial value \(3,\)"),
        (
            {"initializer": np.ones((2, 3)), "dtype": np.int64},
            "'w' of int64 takes no initial value of float64",
        ),
        ({"initializer": lambda shape, rng: 1.0}, r"its initial value \(\)"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], words: str) -> None:
    with Graph().as_default(), pytest.raises(InvalidArgumentError, match=words):
        get_variable(**{"name": "w", "shape": (2, 3), **arguments})


@pytest.mark.slow
def test_values_follow_from_seed_and_name_in_every_process() -> None:
    def value(seed: int | None, name: str = "w") -> Array:
        with Graph().as_default():
            if seed is not None:
                set_random_seed(seed)
            return initialised(get_variable(name, (3,)))[0]

    np.testing.assert_array_equal(value(3), value(3))
    np.testing.assert_array_equal(value(None), value(0))
    assert (value(3) != value(4)).all()
    assert (value(3) != value(3, "v")).all()
    code = (
        "import numpy as np, nbdist as nb; nb.set_random_seed(3); w = nb.get_variable('w', (3,))\n"
        "s = nb.Session(); s.run(nb.global_variables_initializer()); print(s.run(w).tobytes().hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other.strip() == value(3).tobytes().hex()
    with Graph().as_default(), pytest.raises(InvalidArgumentError, match=r"a whole number, got 1\.5"):
        set_random_seed(1.5)  # type: ignore[arg-type]


def test_a_table_is_drawn_into_its_own_memory() -> None:
    with Graph().as_default():
        table = get_variable("table", (500_000, 20))  # 40 MB
        init = global_variables_initializer()
        with Session() as session:
            tracemalloc.start()
            session.run(init)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert np.ptp(session.run(table[::1000])) > 0
    assert peak < 45e6


# Shards


@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
    shards=st.integers(1, 5),
    data=st.data(),
    source=st.sampled_from(["drawn", "array", "tensor", "function"]),
)
@settings(deadline=None, max_examples=examples(80))
def test_shards_hold_what_the_whole_would(
    shape: tuple[int, ...], shards: int, data: st.DataObject, source: str
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def value(partitioner: Any) -> tuple[Any, Array]:
        with Graph().as_default():
            initializer: Any = {
                "drawn": "he_normal",
                "array": values,
                "tensor": constant(values) * constant(2.0, np.float32),
                "function": lambda shape, rng: rng.normal(size=shape).astype(np.float32),
            }[source]
            made = get_variable("w", shape, initializer=initializer, partitioner=partitioner)
            return made, initialised(made)[0]

    whole, expected = value(None)
    made, found = value(fixed_size_partitioner(shards, axis))
    assert isinstance(made, PartitionedVariable)
    assert (made.name, made.shape, made.dtype, made.trainable) == ("w", shape, np.float32, True)
    assert len(made.shards) == min(shards, shape[axis])
    np.testing.assert_array_equal(found, expected)
    assert isinstance(whole, Variable)
    for shard, part in zip(made.shards, np.array_split(expected, len(made.shards), axis=axis), strict=True):
        assert shard.shape == part.shape
        assert shard.part is not None
        inside = tuple(slice(s, s + n) for s, n in zip(shard.part.start, part.shape, strict=True))
        np.testing.assert_array_equal(expected[inside], part)


def test_shards_are_variables_of_the_graph_each_in_its_place() -> None:
    with Graph().as_default():
        setter = replica_device_setter(ps_tasks=2)
        with device(setter), container("mine"), name_scope("model"):
            table = get_variable("table", (10, 4), trainable=False, partitioner=fixed_size_partitioner(3))
        assert table.name == "model/table"
        assert [v.name for v in global_variables()] == [f"model/table/part_{i}" for i in range(3)]
        assert trainable_variables() == []
        assert [v.device for v in table.shards] == [f"/job:ps/task:{i}" for i in (0, 1, 0)]
        assert [v.initial_value.device for v in table.shards] == [v.device for v in table.shards]
        assert {v.container for v in table.shards} == {"mine"}
        assert table.offsets == (0, 4, 7)
        assert [v.part for v in table.shards] == [
            ShardSlice("model/table", (10, 4), (first, 0)) for first in (0, 4, 7)
        ]
        assert get_variable("w", (2,)).part is None
        assert repr(table) == "<PartitionedVariable 'model/table' (10, 4) float32 in 3 shards>"


def test_a_partitioned_variable_is_an_array_to_numpy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 3)), rng.normal(size=(3, 2))
    with Graph().as_default():
        w = get_variable("w", initializer=a, partitioner=fixed_size_partitioner(2))
        assert isinstance(w, PartitionedVariable)
        x = constant(b)
        results = [
            w @ x, constant(a) + w, w * 2, 2 - w, -w, np.sum(w, axis=0), np.concatenate([w, constant(a)]),
            w[1], w[:, 1:], w.T, w.sum(), np.tanh(w), w.astype(np.float32), np.maximum(w, 0.0), w,
        ]  # fmt: skip
        found = initialised(w, *results)[1:]
        with pytest.raises(TypeError, match="no value until the graph runs"):
            np.asarray(w)
        with pytest.raises(TypeError, match="truth value"):
            bool(w)
        with pytest.raises(TypeError):
            iter(w)
    expected = [
        a @ b, a + a, a * 2, 2 - a, -a, a.sum(axis=0), np.concatenate([a, a]), a[1], a[:, 1:], a.T, a.sum(),
        np.tanh(a), a.astype(np.float32), np.maximum(a, 0), a,
    ]  # fmt: skip
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_partitioned_variable_is_assigned_part_by_part(axis: int) -> None:
    new = np.arange(20.0).reshape(5, 4)
    with Graph().as_default():
        w = get_variable("w", (5, 4), np.float64, "zeros", partitioner=fixed_size_partitioner(3, axis))
        fed = placeholder(np.float64, (5, 4))
        with Session() as session:
            session.run(w.initializer)
            assert session.run(w.assign(new)) is None
            np.testing.assert_array_equal(session.run(w), new)
            session.run(w.assign_add(fed), {fed: new})
            np.testing.assert_array_equal(session.run(w), 2 * new)
            session.run(w.assign_sub(w))
            assert not session.run(w).any()
        with pytest.raises(
            InvalidArgumentError, match=r"'w' has the shape \(5, 4\) and takes no value of \(4,\)"
        ):
            w.assign(new[0])


def test_a_read_under_control_dependencies_sees_what_was_assigned() -> None:
    with Graph().as_default():
        w = get_variable("w", (4,), initializer=1.0, partitioner=fixed_size_partitioner(2))
        with control_dependencies([w.assign(np.full(4, 5, np.float32))]):
            total = np.sum(w)
        with Session() as session:
            session.run(w.initializer)
            assert session.run(total) == 20


@pytest.mark.parametrize("counts", [[2, 2], [0, 1], [2], [1, 1, 1]])
def test_partitioners_that_cannot_be_meant(counts: list[int]) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"the partitioner of 'v' returned .* for the shape \(4, 4\)"
    ):
        parts_of("v", (4, 4), counts)


def test_a_number_has_one_part() -> None:
    with Graph().as_default():
        w = get_variable("w", (), initializer=3.0, partitioner=lambda shape, dtype: [])
        assert [v.name for v in w.shards] == ["w/part_0"]
        assert initialised(w)[0] == 3


# The global step


def test_there_is_one_global_step() -> None:
    with Graph().as_default():
        with device(replica_device_setter(ps_tasks=2)), name_scope("tower"):
            step = get_or_create_global_step()
        assert (step.name, step.dtype, step.shape, step.trainable) == ("global_step", np.int64, (), False)
        assert step.device == "/job:ps/task:0"
        assert get_or_create_global_step() is step
    with Graph().as_default():
        assert initialised(get_or_create_global_step()) == [0]
    with Graph().as_default():
        get_variable("global_step", (3,))
        with pytest.raises(InvalidArgumentError, match="the global step is a variable that holds one whole"):
            get_or_create_global_step()


def test_a_part_travels() -> None:
    part = ShardSlice("w", (4, 2), (2, 0))
    assert pickle.loads(pickle.dumps(part)) == part
