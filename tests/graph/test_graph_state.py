"""Variables in a graph: assigning, reading, initial values, and the blocks around what is made."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graph_steps import DEVICES, Pieces, cut_for

from nbdist.errors import InvalidArgumentError
from nbdist.graph.gradients import gradients
from nbdist.graph.ops.state import group
from nbdist.graph.placement import replica_device_setter
from nbdist.graph.scopes import (
    Graph,
    colocate_with,
    container,
    control_dependencies,
    device,
    name_scope,
    reset_default_graph,
)
from nbdist.graph.tensor import Tensor, Variable, constant, placeholder, record
from nbdist.graph.variables import global_variables_initializer

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


def run(*fetches: Tensor, feeds: dict[Tensor, Any] | None = None, **values: Any) -> list[Any]:
    """Run on one device, on the variables' arrays; those that are given by name are changed in place."""
    plan = cut_for(list(fetches), feeds or {})
    variables = {v.name: np.full(v.shape, 77, v.dtype) for v in fetches[0].graph.variables()} | values
    return Pieces.of(plan, variables).run([np.asarray(a, t.dtype) for t, a in (feeds or {}).items()])


# Assigning and reading


def test_assigning_sets_adds_and_subtracts_in_place() -> None:
    w = Variable(np.zeros(2), name="w")
    array = np.array([1.0, 2.0])
    (value,) = run(w.assign([5.0, 6.0]), w=array)
    np.testing.assert_array_equal(value, [5, 6])
    np.testing.assert_array_equal(array, [5, 6])
    run(w.assign_add(np.ones(2)), w=array)
    run(w.assign_sub([0.5, 0.5]), w=array)
    np.testing.assert_array_equal(array, [5.5, 6.5])
    (value,) = run(w.read_value(), w=array)
    np.testing.assert_array_equal(value, array)
    assert not np.shares_memory(value, array)


@pytest.mark.parametrize("change", ["assign", "assign_add", "assign_sub"])
def test_what_is_assigned_fits_in_kind_and_shape(change: str) -> None:
    w = Variable(np.zeros((2, 3), np.float32), name="w")
    assign = getattr(w, change)
    assert assign(np.zeros((2, 3), np.float64)).dtype == np.float32  # fewer digits
    assert assign(np.zeros((2, 3), np.int64)).dtype == np.float32
    with pytest.raises(InvalidArgumentError, match="complex128 is complex, and tensors hold real numbers"):
        assign(np.zeros((2, 3), complex))
    for shape in ((3, 2), (2,), (), (1, 3)):
        with pytest.raises(InvalidArgumentError, match=r"shape \(2, 3\) takes no value of"):
            assign(np.zeros(shape, np.float32))
    counter = Variable(0, name="counter")
    with pytest.raises(InvalidArgumentError, match="int64 takes no float64 value"):
        getattr(counter, change)(0.5)
    assert getattr(counter, change)(2).dtype == np.int64


@pytest.mark.parametrize("change", ["assign", "assign_add", "assign_sub"])
def test_a_value_of_unknown_size_has_to_fit_when_it_is_there(change: str) -> None:
    w, x = Variable(np.zeros(3, np.int64), name="w"), placeholder(np.int64, (3,), name="x")
    changed = getattr(w, change)(record("distinct_rows", x, rows=10))
    assert changed.shape == (3,)
    run(changed, feeds={x: [1, 2, 3]})
    with pytest.raises(InvalidArgumentError, match=r"variable of shape \(3,\) takes no value of \(1,\)"):
        run(changed, feeds={x: [1, 1, 1]})  # NumPy would spread it over the variable


def test_numbers_become_the_variables_dtype() -> None:
    for dtype in (np.float32, np.int8, np.float16):
        w = Variable(np.ones((), dtype), name="w")
        (value,) = run(w.assign_add(2), **{w.name: np.ones((), dtype)})
        assert (value.dtype, value) == (dtype, 3)


def test_values_are_not_copied_through_another_dtype() -> None:
    w = Variable(np.zeros(2, np.float32), name="w")
    (value,) = run(w.assign(np.array([1.1, 2.2])))
    np.testing.assert_array_equal(value, np.array([1.1, 2.2], np.float32))


def test_a_gradient_flows_through_a_read() -> None:
    w = Variable(np.array([1.0, 2.0]), name="w")
    (g,) = gradients(np.sum(w.read_value() * w.read_value()[::-1]), [w])
    assert g is not None
    np.testing.assert_array_equal(run(g, w=np.array([1.0, 2.0]))[0], [4, 2])


def test_a_group_is_ops_of_one_graph() -> None:
    a = Variable(0.0, name="a")
    with name_scope("train"):
        done = group(a.assign(1.0), constant(2.0), name="all")
    assert (done.name, done.type, done.shape) == ("train/all", "group", ())
    assert [c.name for c in done.control_inputs] == ["a/assign", "train/constant"]
    array = np.array(0.0)
    assert run(done, group(), a=array) == [None, None]
    assert array == 1
    with pytest.raises(InvalidArgumentError, match="group takes ops and tensors, got 3"):
        group(a, 3)  # type: ignore[arg-type]
    with Graph().as_default() as other:
        assert group(a).graph is a.graph
        assert other.tensors == []


# Initial values


def test_initializers_give_initial_values() -> None:
    w = Variable(np.arange(3), name="w")
    n = Variable(7, name="n", trainable=False)
    lazy = Variable(lambda: np.full(2, 0.5), dtype=np.float32, name="lazy")
    arrays = {v.name: np.full(v.shape, 99, v.dtype) for v in (w, n, lazy)}
    run(global_variables_initializer(), **arrays)
    np.testing.assert_array_equal(arrays["w"], [0, 1, 2])
    np.testing.assert_array_equal(arrays["lazy"], np.full(2, 0.5, np.float32))
    assert arrays["n"] == 7
    assert w.initializer is w.initializer


def test_the_initial_value_is_a_copy() -> None:
    array = np.ones(2)
    w = Variable(array, name="w")
    array[:] = 5
    np.testing.assert_array_equal(run(w.initializer)[0], [1, 1])


def test_a_tensor_as_initial_value_is_computed_where_the_variable_lives() -> None:
    with device(DEVICES[1]):
        start = np.sqrt(np.full(3, 4.0)) + constant(1.0)
        w = Variable(start, name="w")
    with device(DEVICES[2]):
        initializer = w.initializer  # the block around it says nothing
    assert initializer.device == w.device
    (piece,) = cut_for([initializer], {}).pieces
    assert piece.device == DEVICES[1]
    np.testing.assert_array_equal(run(initializer)[0], [3, 3, 3])


def test_a_tensor_of_another_kind_is_no_initial_value() -> None:
    with pytest.raises(InvalidArgumentError, match="one shape and the variable's dtype"):
        Variable(placeholder(np.float32, (None,)))
    with pytest.raises(InvalidArgumentError, match="one shape and the variable's dtype"):
        Variable(constant(1.0), dtype=np.float32)
    with pytest.raises(InvalidArgumentError, match="a variable's initial value: expected"):
        Variable("text")


def drawn(shape: tuple[int, ...] = (64, 64)) -> Tensor:
    return record(
        "initial_value", draw="normal", scale=0.1, dtype=np.dtype(np.float32), seed=3, shape=shape,
        whole=shape, start=(0, 0),
    )  # fmt: skip


def test_an_initial_value_is_computed_straight_into_the_variable() -> None:
    w = Variable(drawn(), name="w")
    pieces = Pieces.of(cut_for([group(w.initializer)], {}), {"w": np.empty((64, 64), np.float32)})
    (program,) = pieces.programs
    assert program.buffer_bytes == 0
    assert "copyto" not in program.source
    array = np.zeros((64, 64), np.float32)
    run(w.initializer, w=array)
    np.testing.assert_array_equal(array, run(drawn())[0])


def test_an_initial_value_that_others_use_has_a_place_of_its_own() -> None:
    value = drawn()
    w, twice = Variable(value, name="w"), Variable(value, name="twice")
    arrays = {name: np.zeros((64, 64), np.float32) for name in ("w", "twice")}
    fetched = run(value, group(w.initializer, twice.initializer), **arrays)[0]
    assert fetched.any()
    np.testing.assert_array_equal(arrays["w"], fetched)
    np.testing.assert_array_equal(arrays["twice"], fetched)


# Blocks


def test_control_dependencies_nest_and_are_forgotten() -> None:
    a, b = Variable(0.0).assign(1.0), Variable(0.0).assign(2.0)
    with control_dependencies([a]):
        one = constant(1.0) * 2
        with control_dependencies([b]):
            two = constant(1.0) * 3
            with control_dependencies(None):
                none = constant(1.0) * 4
        leaf = constant(5.0)
    assert (one.control_inputs, two.control_inputs, none.control_inputs) == ((a,), (a, b), ())
    assert leaf.control_inputs == ()
    assert (constant(1.0) * 2).control_inputs == ()


def test_a_variable_used_under_control_dependencies_is_read_there() -> None:
    w = Variable(np.zeros(2), name="w")
    with control_dependencies([w.assign(np.ones(2))]):
        y = w * 2
        updated = w.assign_add(w)
    assert [i.type for i in y.inputs] == ["read", "Constant"]
    assert y.inputs[0].control_inputs == y.control_inputs
    assert [i.type for i in updated.inputs] == ["Variable", "read"]
    assert [i.type for i in (w * 2).inputs] == ["Variable", "Constant"]


def test_what_control_dependencies_takes() -> None:
    a = constant(1.0)
    with Graph().as_default():
        with pytest.raises(InvalidArgumentError, match="ops of the default graph, got <Constant"):
            control_dependencies([a]).__enter__()
        for wrong in ([3], a, a * 2, 3):
            with pytest.raises(InvalidArgumentError, match="control_dependencies takes"):
                control_dependencies(wrong).__enter__()  # type: ignore[arg-type]


def test_colocate_with_puts_ops_on_the_device_of_another() -> None:
    with device("/job:ps/task:1"):
        w = Variable(0.0, name="w")
    with device("/job:worker"):
        with colocate_with(w):
            beside = constant(1.0) * 2
            with device("/job:other"):
                still = constant(1.0) * 2
        changed = w.assign(1.0)
        away = constant(1.0) * 2
    assert {t.device for t in (beside, still, changed, w.read_value())} == {"/job:ps/task:1"}
    assert away.device == "/job:worker"


def test_devices_nest_on_real_tensors() -> None:
    def gpu_for_products(op: Any) -> str:
        return "/device:GPU:1" if op.type == "multiply" else op.device

    with device("/job:ps"), device("/task:1/cpu:0"):
        inner = Variable(0.0)
        with device("/task:2"):
            innermost = Variable(0.0)
        with device(None):
            cut_off = Variable(0.0)
        with device(""):
            same = Variable(0.0)
        with device(gpu_for_products):
            product, total = inner * 2, inner + 2
    assert inner.device == same.device == "/job:ps/task:1/device:CPU:0"
    assert innermost.device == "/job:ps/task:2/device:CPU:0"
    assert cut_off.device == ""
    assert product.device == "/job:ps/task:1/device:GPU:1"
    assert total.device == "/job:ps/task:1/device:CPU:0"


def test_a_replica_device_setter_spreads_variables_and_what_changes_them() -> None:
    with device(replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:3")):
        a, b, c = (Variable(0.0, name=name) for name in "abc")
        y = a * b
        changed = b.assign_add(y)
    assert [v.device for v in (a, b, c)] == [f"/job:ps/task:{n}" for n in (0, 1, 0)]
    assert y.device == "/job:worker/task:3"
    assert changed.device == b.initializer.device == "/job:ps/task:1"


def test_containers_are_of_variables_inside() -> None:
    with container("experiment"):
        a = Variable(0.0)
        with container("inner"):
            b = Variable(0.0)
        with container(""):
            c = Variable(0.0)
    assert [v.container for v in (a, b, c, Variable(0.0))] == ["experiment", "inner", "", ""]
    with pytest.raises(InvalidArgumentError, match="a container has a name, got 3"):
        container(3).__enter__()  # type: ignore[arg-type]


def test_name_scopes_nest_and_are_unique() -> None:
    with name_scope("a") as full:
        first = Variable(0.0, name="w")
        with name_scope("b"):
            second = first.assign(1.0)
            product = first * 2
        with name_scope(""):
            top = constant(1.0, name="top")
    with name_scope("a") as again:
        third = Variable(0.0, name="w")
    assert (full, again) == ("a/", "a_1/")
    names = [t.name for t in (first, second, product, top, third, first.initializer)]
    assert names == ["a/w", "a/w/assign", "a/b/multiply", "top", "a_1/w", "a/w/initializer"]


def test_blocks_end_with_an_error_too(graph: Graph) -> None:
    before = graph.scope
    with pytest.raises(ZeroDivisionError), device("/job:ps"), name_scope("a"), container("c"):
        1 / 0  # noqa: B018
    assert graph.scope == before
    with pytest.raises(InvalidArgumentError, match="leave it first"):
        reset_default_graph()


def test_the_users_line_is_recorded() -> None:
    frame = inspect.currentframe()
    assert frame is not None
    first = frame.f_lineno
    x = placeholder(np.float32, (3,))
    y = np.tanh(x)
    w = Variable(np.zeros(3, np.float32))
    changed = w.assign_add(y)
    initializer = w.initializer
    mean = np.mean(x)
    for number, t in enumerate((x, y, w, changed, initializer, mean), first + 1):
        assert t.line == (__file__, number, "test_the_users_line_is_recorded")
