"""How a piece is cut into functions for XLA and calls on the host; NumPy computes the functions here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from examples import examples
from graph_steps import Meaning, Pieces, Step, cut_for, steps
from hypothesis import given, settings

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.partition import Plan, partition
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Constant, Graph, Variable, placeholder, record
from nbdist.graph.variables import get_variable
from nbdist.graph.xla.piece import Function, HostCall, XlaProgram, cut

TPUS = tuple(f"/job:a/replica:0/task:0/device:{name}" for name in ("CPU:0", "TPU:0", "TPU:1"))


class OnNumPy(XlaProgram):
    """A program whose functions NumPy computes, on copies, as XLA does."""

    def _compute(self, number: int, part: Function, values: dict[Any, Any]) -> None:
        found = {t: values[t] for t in part.inputs}
        current = {v: self._held[v].array.copy() for v in part.variables}
        for node in part.nodes:
            if isinstance(node, Variable):
                found[node] = current[node].copy()
            elif isinstance(node, Constant):
                found[node] = node.value
            elif node.op is not None:
                arrays = [current[t].copy() if t in current else found[t] for t in node.inputs]
                found[node] = node.op.forward(np, *arrays, **node.attrs).copy()
                for i in node.op.writes:
                    current[node.inputs[i]] = arrays[i]  # type: ignore[index]  # a variable
        for v in part.assigned:
            self._held[v].array[...] = current[v]
        values.update((t, found[t]) for t in part.outputs)


def on_numpy(fetches: Any, *, shapes: Any, values: Any, **how: Any) -> XlaProgram:
    held = {v: SimpleNamespace(array=array) for v, array in values.items()}
    return OnNumPy(fetches, held=held, device="TPU:0", **how)


@settings(max_examples=examples(200))
@given(steps())
def test_a_step_means_the_same_in_functions_and_calls(step: Step) -> None:
    variables = {v.name: a.copy() for v, a in step.values.items()}
    fetched = Pieces.of(cut_for(step.fetches, step.feeds), variables, compiled=on_numpy).run(
        list(step.feeds.values())
    )
    meaning = Meaning(step)
    for t, got, expected in zip(step.fetches, fetched, meaning.fetched(), strict=True):
        if expected is not None:
            np.testing.assert_array_equal(got, expected, err_msg=t.name)  # type: ignore[arg-type]
    for name, expected in meaning.afterwards().items():
        np.testing.assert_array_equal(variables[name], expected, err_msg=name)


def parts_of(plan: Plan, name: str) -> list[str]:
    """Return the parts of a device's piece in words: "host" or the number of ops."""
    (piece,) = [piece for piece in plan.pieces if piece.device.endswith(name)]
    parts = cut(piece.order, [t for _, t in piece.fetches], [t for _, t in piece.feeds])
    return [
        part.node.type if isinstance(part, HostCall) else f"{sum(t.op is not None for t in part.nodes)} ops"
        for part in parts
    ]


def planned(fetches: list[Any], feeds: list[Any], shapes: list[Any], soft: bool = False) -> Plan:
    return partition(fetches, feeds=feeds, shapes=shapes, devices=TPUS, default=TPUS[0], soft=soft)


def test_a_piece_is_one_function_between_what_it_receives_and_sends() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (4, 8))
        with device("/device:CPU:0"):
            a, b = x * 2, x + 1
        with device("/device:TPU:0"):
            w = Variable(np.ones((8, 8), np.float32), name="w")
            first = np.tanh(a @ w)
            second = b @ w + first
            trained = w.assign_sub(np.mean(second) * w)
        with device("/device:TPU:1"):
            answer = np.exp(first)
        with device("/device:TPU:0"):
            last = answer * second
    assert parts_of(planned([second, trained], [x], [(4, 8)]), "TPU:0") == ["receive", "receive", "8 ops"]
    both = parts_of(planned([last], [x], [(4, 8)]), "TPU:0")
    assert both == ["receive", "2 ops", "send", "receive", "receive", "3 ops"]


def test_an_initial_value_is_made_on_the_host() -> None:
    with Graph().as_default(), device("/device:TPU:1"):
        w: Any = get_variable("w", (3, 3), np.float32, initializer="glorot_uniform")
        parts = parts_of(planned([w.initializer], [], []), "TPU:1")
    assert parts == ["initial_value", "2 ops"]  # the assignment, and a copy for the client


def test_an_op_with_a_shape_that_depends_on_values() -> None:
    with Graph().as_default():
        x = placeholder(np.int64, (4,), name="x")
        with device("/device:TPU:1"):
            picked = record("distinct_rows", x + 1, rows=9)
            y = np.sum(picked * 3)
    with pytest.raises(
        InvalidArgumentError,
        match=r"cannot be placed on .*TPU:1: it has the shape \(\?,\), with a size that depends on values, "
        r"and XLA compiles static shapes.*nb.device\('/device:CPU:0'\).*allow_soft_placement=True",
    ):
        planned([y], [x], [(4,)])
    plan = planned([y], [x], [(4,)], soft=True)
    assert plan.placement[picked.name] == TPUS[0]
    assert plan.placement[y.name] == TPUS[0]  # its input has a size that no plan knows
    assert plan.placement[picked.inputs[0].name] == TPUS[2]
