"""The order of a step: what reads a variable finds the value that it means, wherever its ops are put."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import examples
from graph_steps import DEVICES, WIDTH, Meaning, Pieces, Step, cut, steps
from hypothesis import given, settings

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.schedule import Item, schedule
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import Graph, control_dependencies
from nbdist.graph.tensor import Tensor, Variable, constant

Array = np.ndarray[Any, Any]


def check(step: Step) -> None:
    """Run a step twice, and compare what is fetched and what is left with what the step means."""
    variables = {v.name: a.copy() for v, a in step.values.items()}
    pieces = Pieces.of(cut(step), variables)
    for _ in range(2):
        meaning = Meaning(step)
        fetched = pieces.run(list(step.feeds.values()))
        for t, got, expected in zip(step.fetches, fetched, meaning.fetched(), strict=True):
            assert (got is None) == (expected is None), t
            if got is not None:
                np.testing.assert_array_equal(got, expected, err_msg=t.name)
        after = meaning.afterwards()
        for name, got in variables.items():
            np.testing.assert_array_equal(got, after[name], err_msg=name)
        step.values = {v: after[v.name] for v in step.values}


@settings(max_examples=examples(400))
@given(steps())
def test_a_step_means_the_same_on_any_devices(step: Step) -> None:
    check(step)


@settings(max_examples=examples(300))
@given(steps())
def test_a_step_means_the_same_on_one_device(step: Step) -> None:
    for t in step.graph.tensors:
        t.device = ""
    check(step)


def ran(fetches: list[Tensor], **values: float) -> tuple[list[Any], dict[str, Any]]:
    """Run a step of one device; return what was fetched, and the variables' values afterwards."""
    step = Step(fetches[0].graph, fetches, [])
    variables = {name: np.full(WIDTH, float(value)) for name, value in values.items()}
    fetched = Pieces.of(cut(step), variables).run([])
    first = [None if a is None else float(a[0]) for a in fetched]
    return first, {name: float(a[0]) for name, a in variables.items()}


def variable(name: str) -> Variable:
    return Variable(np.zeros(WIDTH), name=name)


def test_a_variable_is_its_value_from_before_the_step() -> None:
    with Graph().as_default():
        w = variable("w")
        changed = w.assign_add(np.ones(WIDTH))
        later = w * 10  # made later, and still from before
        beside = w + changed  # needs the assignment, and still takes the old one
        assert ran([changed, later, beside, w, w[::-1]], w=1) == ([2, 10, 3, 1, 1], {"w": 2})


def test_a_read_under_control_dependencies_sees_what_was_assigned() -> None:
    with Graph().as_default():
        w, other = variable("w"), variable("other")
        changed = w.assign_add(np.ones(WIDTH))
        with control_dependencies([changed]):
            read, doubled, view = w.read_value(), w * 2, w[::-1]
        with control_dependencies([other.assign(np.ones(WIDTH))]):
            unmoved = w.read_value()  # comes after another variable's assignment
        fetched, after = ran([read, doubled, view, unmoved], w=1, other=0)
        assert fetched == [2, 4, 2, 1]
        assert after == {"w": 2, "other": 1}


def test_a_group_stands_for_what_is_in_it() -> None:
    with Graph().as_default():
        a, b = variable("a"), variable("b")
        both = group(group(a.assign(np.ones(WIDTH))), b.assign_sub(np.ones(WIDTH)))
        with control_dependencies([both]):
            total = a + b
        assert ran([total, both], a=7, b=7) == ([7, None], {"a": 1, "b": 6})


def test_two_assignments_are_made_in_order_of_creation() -> None:
    with Graph().as_default():
        w = variable("w")
        first, second = w.assign_add(np.ones(WIDTH)), w.assign(np.full(WIDTH, 5.0))
        third = w.assign_add(second)
        assert ran([third, first, second], w=1) == ([10, 2, 5], {"w": 10})
        assert ran([second, first], w=1) == ([5, 2], {"w": 5})


def test_an_assignments_value_stays_what_it_was_when_another_follows() -> None:
    with Graph().as_default():
        w = variable("w")
        first = w.assign(np.ones(WIDTH))
        with control_dependencies([first]):
            read = w.read_value()
        second = w.assign(np.full(WIDTH, 2.0))
        with control_dependencies([second]):
            late, late_read = first * 10, read[::-1] * 10
        assert ran([late, late_read], w=0) == ([10, 10], {"w": 2})


def test_two_that_each_follow_the_others_assignment_are_no_circle() -> None:
    with Graph().as_default():
        a, b = variable("a"), variable("b")
        new_a, new_b = a.assign(np.ones(WIDTH)), b.assign(np.ones(WIDTH))
        old_a, old_b = a + new_b, b + new_a
        with control_dependencies([new_b]):
            read_a = a.read_value()
        with control_dependencies([new_a]):
            read_b = b.read_value()
        assert ran([old_a, old_b, read_a, read_b], a=5, b=6) == ([6, 7, 5, 6], {"a": 1, "b": 1})


def test_a_view_that_follows_an_assignment_is_of_the_old_value_too() -> None:
    with Graph().as_default():
        w = variable("w")
        view = w[::-1]
        with control_dependencies([w.assign(np.ones(WIDTH))]):
            late = view[::-1]
        assert ran([late, late * 2], w=5) == ([5, 10], {"w": 1})


def test_what_is_computed_into_the_variable_is_not_seen_before() -> None:
    with Graph().as_default():
        w = variable("w")
        value = np.negative(constant(np.ones(WIDTH)))  # could be written to w itself: w is read after it
        before = w * 10
        changed = w.assign(value)
        assert ran([before, changed], w=1) == ([10, -1], {"w": -1})
        assert ran([w.assign(np.concatenate([w[1:], w[:1]]))], w=3) == ([3], {"w": 3})


def test_copies_are_made_only_where_they_are_needed() -> None:
    with Graph().as_default() as graph:
        w, g = variable("w"), variable("g")
        y = w * 2
        updated = w.assign_sub(g)
        fresh = y + updated  # the value of the last assignment: it does not change any more
        scaled = w.assign(w * 0.5)
    (piece,) = cut(Step(graph, [fresh], [])).pieces
    assert [t.type for t in piece.order] == [
        "Variable",
        "Variable",
        "Constant",
        "multiply",
        "assign_sub",
        "add",
    ]
    (piece,) = cut(Step(graph, [scaled], [])).pieces
    assert [t.type for t in piece.order] == ["Variable", "Constant", "multiply", "assign", "copy"]


def test_a_cycle_is_named() -> None:
    with Graph().as_default():
        one: Tensor = constant(1.0) * 2
        two = one + 1
    first, second = (Item("op", t, DEVICES[0]) for t in (one, two))
    second.inputs.append(first)
    first.after.append(second)
    with pytest.raises(InvalidArgumentError, match=r"a cycle: add, multiply wait for each other; look at"):
        schedule([first, second])
