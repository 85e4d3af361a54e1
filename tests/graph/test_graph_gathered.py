"""Gathered variables: runs of the lines that read a unit, and programs whose variables come and go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from examples import examples
from graph_expressions import Expression, expressions, leaves_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.gathered import Gathered, runs_of
from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, Variable, placeholder

Array = np.ndarray[Any, Any]


class Memory:
    """The arrays of variables, which have NaN while their unit is not here; a test's `Gathers`."""

    def __init__(self, values: dict[Any, Array], units: dict[Any, int]) -> None:
        self._values, self.units = values, units
        self.arrays = {v: np.full_like(value, np.nan) for v, value in values.items()}
        self.present, self.ended, self.most = set[int](), set[int](), 0

    def need(self, unit: int) -> None:
        assert unit not in self.present | self.ended
        self.present.add(unit)
        self.most = max(self.most, len(self.present))
        for v in self._of(unit):
            np.copyto(self.arrays[v], self._values[v])

    def release(self, unit: int, again: bool) -> None:
        self.present.remove(unit)
        if not again:
            self.ended.add(unit)
        for v in self._of(unit):
            self.arrays[v].fill(np.nan)

    def _of(self, unit: int) -> list[Any]:
        return [v for v, own in self.units.items() if own == unit]

    def gathered(self) -> Gathered:
        return Gathered(self.units, self.need, self.release)


@settings(max_examples=examples(200))
@given(st.lists(st.sets(st.integers(0, 4), max_size=3), max_size=12))
def test_each_read_is_in_a_run_of_its_unit(reads: list[set[int]]) -> None:
    runs = runs_of(reads)
    for unit in set[int]().union(*reads):
        own = [run for run in runs if run.unit == unit]
        lines = [now for now, units in enumerate(reads) if unit in units]
        assert all(any(run.first <= now <= run.last for run in own) for now in lines)
        assert all(run.first in lines and run.last in lines for run in own)
        assert [run.again for run in own] in ([False], [True, False])
        gaps = [sum(map(bool, reads[before + 1 : after])) for before, after in pairwise(lines)]
        assert len(own) == 1 + any(gaps)
        if len(own) == 2:
            first, second = own
            assert sum(map(bool, reads[first.last + 1 : second.first])) == max(gaps)
    assert {run.unit for run in runs} == set().union(*reads)


@settings(deadline=None, max_examples=examples(100))
@given(expressions(), st.data())
def test_any_expression_reads_variables_while_they_are_here(
    expression: Expression, data: st.DataObject
) -> None:
    """Also through views, in chains, and where a target is a variable itself."""
    leaves = leaves_of(expression, 0)
    expected = expression.run(leaves)
    with Graph().as_default():
        inputs: list[Any] = [
            placeholder(np.float64, a.shape) if i < expression.feeds else Variable(a)
            for i, a in enumerate(leaves)
        ]
        tensors = expression.run(inputs)
    variables = inputs[expression.feeds :]
    memory = Memory(
        dict(zip(variables, leaves[expression.feeds :], strict=True)),
        {v: data.draw(st.integers(0, 2)) for v in variables},
    )
    written = data.draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=4, unique=True))
    program = compile_program(
        [],
        feeds=inputs[: expression.feeds],
        shapes=[f.shape for f in inputs[: expression.feeds]],
        values=memory.arrays,
        into=[tensors[i] for i in written],
        gathered=memory.gathered(),
    )
    for _ in range(2):
        memory.ended.clear()
        outputs = [np.full(np.shape(expected[i]), np.nan) for i in written]
        program(*leaves[: expression.feeds], *outputs)
        for i, output in zip(written, outputs, strict=True):
            np.testing.assert_allclose(output, expected[i], rtol=1e-9, atol=1e-12)
        assert not memory.present


def test_layers_are_here_one_by_one_forward_and_back() -> None:
    rng = np.random.default_rng(0)
    with Graph().as_default():
        x = placeholder(np.float64, (5, 4))
        weights = [Variable(rng.normal(size=(4, 4))) for _ in range(6)]
        y: Any = x
        for w in weights:
            y = np.tanh(y @ w)
        loss = np.sum(y * y)
        found = gradients(loss, weights)
    values = {w: rng.normal(size=(4, 4)) for w in weights}
    batch = rng.normal(size=(5, 4))
    into, marks = [g for g in found[::-1] if g is not None], list[int]()
    settings: dict[str, Any] = {"feeds": [x], "shapes": [(5, 4)], "into": into}
    outputs, expected = ([np.zeros((4, 4)) for _ in weights] for _ in range(2))
    compile_program([loss], values=values, **settings)(batch, *expected)
    memory = Memory(values, {w: number for number, w in enumerate(weights)})
    written = {g: lambda number=number: marks.append(number) for number, g in enumerate(into)}
    program = compile_program(
        [loss], values=memory.arrays, gathered=memory.gathered(), written=written, **settings
    )
    program(batch, *outputs)
    np.testing.assert_array_equal(outputs, expected)
    assert (memory.most, memory.ended, sorted(marks)) == (1, set(range(6)), list(range(6)))
    memory.ended.clear()
    _, spans = program.traced(batch, *outputs)
    assert len(spans) == len(program.nodes)


def test_a_program_returns_no_variable_that_is_released() -> None:
    with Graph().as_default():
        w = Variable(np.zeros(3), name="w")
        view = w.reshape(3, 1)
    memory = Memory({w: np.zeros(3)}, {w: 0})
    with pytest.raises(InvalidArgumentError, match="here only while the program reads it"):
        compile_program([view], values=memory.arrays, gathered=memory.gathered())
