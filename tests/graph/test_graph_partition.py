"""Cutting a graph: what crosses crosses once, what is not needed is left out, and no piece waits in vain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from examples import examples
from graph_steps import DEVICES, EXCHANGE, Pieces, Step, cut, steps
from hypothesis import given, settings

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.partition import Piece, Plan, partition
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph, control_dependencies, device
from nbdist.graph.serialize.encode import decode, encode
from nbdist.graph.tensor import Tensor, Variable, constant, placeholder, record

A, B, C = DEVICES


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as graph:
        yield graph


def plan_of(*fetches: Tensor, feeds: dict[Tensor, Any] | None = None, **options: Any) -> Plan:
    feeds = feeds or {}
    shapes = [np.shape(value) for value in feeds.values()]
    options = {"devices": DEVICES, "default": A, **options}
    return partition(list(fetches), feeds=list(feeds), shapes=shapes, **options)


def pieces_of(plan: Plan) -> dict[str, list[str]]:
    """Return what each device does, by the letter of its job."""
    return {piece.device[5]: [t.type for t in piece.order] for piece in plan.pieces}


def piece_on(plan: Plan, wanted: str) -> Piece:
    return next(piece for piece in plan.pieces if piece.device == wanted)


def test_a_value_crosses_once_for_all_its_users_on_a_device() -> None:
    with device(A):
        x = constant(np.ones(3)) * 2
    with device(B):
        y = np.tanh(x) + np.sqrt(x)
    with device(C):
        z = x * y
    plan = plan_of(z)
    assert pieces_of(plan) == {
        "a": ["Constant", "Constant", "multiply", "send", "send"],
        "b": ["receive", "tanh", "sqrt", "add", "send"],
        "c": ["receive", "receive", "multiply"],
    }
    crossing = [(edge.name, edge.source[5], edge.target[5], edge.bytes) for edge in plan.edges]
    assert sorted(crossing) == [("add", "b", "c", 24), ("multiply", "a", "b", 24), ("multiply", "a", "c", 24)]
    assert [edge.number for edge in plan.edges] == [0, 1, 2]


def test_a_control_edge_that_crosses_is_a_signal_without_a_value() -> None:
    with device(A):
        done = group(Variable(0.0).assign(1.0), Variable(0.0).assign(2.0))
    with device(B), control_dependencies([done]):
        first, second = constant(1.0) * 2, constant(1.0) * 3
    plan = plan_of(first, second)
    assert [(edge.spec, edge.bytes) for edge in plan.edges] == [(None, 0), (None, 0)]
    assert pieces_of(plan)["b"].index("await") < pieces_of(plan)["b"].index("multiply")
    assert pieces_of(plan)["b"].count("await") == 2  # one for each assignment, for both that wait
    assert pieces_of(plan)["a"].count("signal") == 2


def test_only_what_a_fetch_needs_is_in_a_piece() -> None:
    w = Variable(np.zeros(3))
    with device(B):
        y = w * 2
        w.assign(y)
        np.exp(y)
    assert pieces_of(plan_of(y)) == {"a": ["Variable", "send"], "b": ["Constant", "receive", "multiply"]}
    assert plan_of().pieces == []


def test_constants_and_feeds_go_to_each_device_that_needs_them() -> None:
    with device(A):
        x, c = placeholder(np.float64, (None,), name="x"), constant(np.ones(3), name="c")
    with device(B):
        y = x + c
    with device(C):
        z = x * c
    plan = plan_of(y, z, x, feeds={x: np.zeros(3)})
    assert plan.edges == []
    assert pieces_of(plan) == {
        "b": ["Placeholder", "Constant", "add"],
        "c": ["Placeholder", "Constant", "multiply"],
    }
    assert [piece.feeds[0][0] for piece in plan.pieces] == [0, 0]
    assert [[n for n, _ in piece.fetches] for piece in plan.pieces] == [[0, 2], [1]]
    assert pieces_of(plan_of(x, feeds={x: np.zeros(3)})) == {"a": ["Placeholder"]}


def test_a_constant_that_waits_for_something_is_still_everywhere() -> None:
    with device(A):
        w = Variable(0.0)
        with control_dependencies([w.assign(1.0)]):
            c = constant(5.0)
    with device(B):
        y = c * 2
    assert plan_of(y).edges == []  # a constant is the same, whatever has run


def test_a_fed_value_needs_nothing_of_what_it_is_computed_from() -> None:
    x = placeholder(np.float64, (3,), name="never fed")
    with device(B):
        y = np.tanh(x)
    with device(C):
        z = y * 2
    plan = plan_of(z, feeds={y: np.zeros(3)})
    assert pieces_of(plan) == {"c": ["Placeholder", "Constant", "multiply"]}
    with pytest.raises(InvalidArgumentError, match=r"'never fed'.*of shape \(3,\) and float64 has to be fed"):
        plan_of(z)


def test_a_feed_has_to_fit() -> None:
    x = placeholder(np.float64, (None, 3), name="x")
    with pytest.raises(
        InvalidArgumentError, match=r"'x' was declared with shape \(\?, 3\) and is fed \(2, 4\)"
    ):
        plan_of(x * 2, feeds={x: np.zeros((2, 4))})


def test_of_what_is_used_for_its_shape_nothing_crosses() -> None:
    with device(A):
        x = constant(np.ones((2, 3))) * 2
    with device(B):
        y = np.ones_like(x) + 1
    plan = plan_of(y)
    assert plan.edges == []
    (value,) = Pieces.of(plan, {}).run([])
    np.testing.assert_array_equal(value, np.full((2, 3), 2.0))


def test_what_is_made_of_constants_and_shapes_is_made_where_it_is_needed() -> None:
    small, large = placeholder(np.float64, (2, 3), name="small"), placeholder(np.float64, (200, 300))
    with device(A):
        ones, many = np.ones_like(small), np.ones_like(large)
        w = Variable(0.0)
        with control_dependencies([w.assign(1.0)]):
            late = np.ones_like(small)
    with device(B):
        y, z, after = ones + 1, np.sum(many), late + 1
    feeds = {small: np.zeros((2, 3)), large: np.zeros((200, 300))}
    plan = plan_of(y, z, after, feeds=feeds)
    assert [(edge.name, edge.bytes) for edge in plan.edges] == [(many.name, 480_000), (late.name, 48)]
    np.testing.assert_array_equal(
        Pieces.of(plan, {w.name: np.zeros(())}).run(list(feeds.values()))[0], np.full((2, 3), 2.0)
    )


def test_a_device_does_what_it_can_before_it_waits(graph: Graph) -> None:
    with device(A):
        far = np.exp(Variable(np.zeros(3), name="v"))
    with device(B):
        w = Variable(np.zeros(3), name="w")
        waiting = np.tanh(far)
        ready = np.sin(w)
        both = waiting + ready
    assert pieces_of(plan_of(both))["b"] == ["Variable", "sin", "receive", "tanh", "add"]
    graph.in_order = True  # unless the order of creation is asked for
    assert pieces_of(plan_of(both))["b"] == ["Variable", "receive", "tanh", "sin", "add"]


def test_values_of_unknown_size_cross() -> None:
    x = placeholder(np.int64, (None,), name="x")
    with device(A):
        distinct = record("distinct_rows", x, rows=10)
    with device(B):
        y = distinct * 10
    plan = plan_of(y, distinct, feeds={x: np.zeros(4)})
    (edge,) = plan.edges
    assert edge.bytes is None
    pieces = Pieces.of(plan, {})
    for fed, expected in (([1, 4, 4, 2], [1, 2, 4]), ([5, 5, 5, 5], [5])):
        tenfold, found = pieces.run([np.array(fed)])
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(tenfold, np.array(expected) * 10)


def test_variables_are_assigned_and_read_where_they_are() -> None:
    with device(B):
        w = Variable(np.zeros(3), name="w")
    with device(C):
        changed = w.assign(np.ones(3))
        with control_dependencies([changed]):
            read = w.read_value()
            y = w * 2
    read.device = C  # a device function may say anything
    plan = plan_of(y, read)
    assert {plan.placement[t.name] for t in (w, changed, read)} == {B}
    assert plan.placement[y.name] == C
    assert [(edge.name, edge.bytes) for edge in plan.edges] == [("w/read_1", 24), ("w/assign", 0)]


def test_an_op_changes_variables_of_one_device() -> None:
    with device(A):
        v = Variable(np.zeros(3), name="v")
    with device(B):
        w = Variable(np.zeros(3), name="w")
    both = Tensor(EXCHANGE, (v, w), {}, v.spec, "both")
    with pytest.raises(InvalidArgumentError, match=r"'both' \(exchange.*'v' on .*'w' on .*colocate_with"):
        plan_of(both)


def test_what_names_no_device_runs_on_the_default() -> None:
    y = constant(1.0) * 2
    assert set(pieces_of(plan_of(y, default=B))) == {"b"}
    with device("/job:c"):
        z = y + 1
    assert set(pieces_of(plan_of(z, default=B))) == {"b", "c"}


def test_a_device_that_is_not_there_is_an_error_with_the_users_line_and_what_there_is() -> None:
    with device("/job:ps/task:1"):
        y = constant(1.0) * 2
    with pytest.raises(InvalidArgumentError) as caught:
        plan_of(y)
    for words in ("'multiply' (multiply", f"{__file__}:", "/job:ps/task:1", *DEVICES):
        assert words in str(caught.value)


def test_soft_placement_takes_a_cpu_for_a_type_that_is_not_there() -> None:
    with device("/job:b/device:GPU:3"):
        y = constant(1.0) * 2
    with pytest.raises(InvalidArgumentError, match="allow_soft_placement=True"):
        plan_of(y)
    assert plan_of(y, soft=True).placement[y.name] == B
    with device("/job:d"):
        z = y + 1
    with pytest.raises(InvalidArgumentError, match="no device '/job:d'"):
        plan_of(z, soft=True)  # the job and the task never change


def test_a_cycle_is_an_error() -> None:
    a = constant(1.0) * 2
    b = a + 1
    a.control_inputs = (b,)
    with pytest.raises(InvalidArgumentError, match=r"a cycle through '(add|multiply)'"):
        plan_of(b)


def test_an_op_without_a_value_gives_none_wherever_it_runs() -> None:
    with device(B):
        done = group(Variable(0.0, name="w").assign(1.0))
    plan = plan_of(done)
    assert plan.fetches == 1
    assert [piece.fetches for piece in plan.pieces] == [[]]
    assert Pieces.of(plan, {"w": np.zeros(())}).run([]) == [None]


def test_deep_graphs_are_cut() -> None:
    y: Tensor = placeholder(np.float64, (), name="x")
    x = y
    for n in range(1500):
        with device(DEVICES[n // 500]):
            y = y + 1
    plan = plan_of(y, feeds={x: 0.0})
    assert len(plan.edges) == 2
    assert Pieces.of(plan, {}).run([np.zeros(())]) == [1500]


@settings(max_examples=examples(50))
@given(steps())
def test_cutting_is_pure_and_pieces_travel(step: Step) -> None:
    before = [(str(t), t.inputs, t.control_inputs, t.device) for t in step.graph.tensors]
    first, second = cut(step), cut(step)
    for one, other in zip(first.pieces, second.pieces, strict=True):
        assert (one.device, str(one.order)) == (other.device, str(other.order))
        if EXCHANGE not in {t.op for t in one.order}:  # which is in no table
            assert str(decode(*encode(one.graph.tensors)).tensors) == str(one.graph.tensors)
    assert first.edges == second.edges
    assert before == [(str(t), t.inputs, t.control_inputs, t.device) for t in step.graph.tensors]


@settings(max_examples=examples(200))
@given(steps(most=25))
def test_no_piece_waits_for_what_is_never_sent(step: Step) -> None:
    """Give the pieces turns; each runs until it waits for what was not sent yet. All of them end."""
    plan = cut(step)
    sent: set[int] = set()
    places = [0] * len(plan.pieces)
    while True:
        moved = False
        for n, piece in enumerate(plan.pieces):
            for t in piece.order[places[n] :]:
                if t.type in ("receive", "await") and t.attrs["edge"] not in sent:
                    break
                if t.type in ("send", "signal"):
                    sent.add(t.attrs["edge"])
                places[n] += 1
                moved = True
        if not moved:
            break
    assert places == [len(piece.order) for piece in plan.pieces]
    assert sent == {edge.number for edge in plan.edges}


@settings(max_examples=examples(200))
@given(steps(most=25))
def test_each_value_crosses_at_most_once_to_each_device(step: Step) -> None:
    plan = cut(step)
    crossing = [(edge.name, edge.target, edge.spec is None) for edge in plan.edges]
    assert len(set(crossing)) == len(crossing)
    for edge in plan.edges:
        assert edge.source != edge.target
        ends = [piece_on(plan, edge.source), piece_on(plan, edge.target)]
        for piece, types in zip(ends, (("send", "signal"), ("receive", "await")), strict=True):
            assert sum(t.type in types and t.attrs["edge"] == edge.number for t in piece.order) == 1
