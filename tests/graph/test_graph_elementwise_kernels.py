"""Chains of elementwise ops as one GPU kernel: the host runs them, NVRTC compiles them (host_kernels.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from examples import examples
from fake_cupy import FakeCupy
from graph_expressions import Expression, expressions, leaves_of
from hypothesis import given, settings
from test_graph_kernel import compiled, sources
from test_graph_program import as_graph
from tiers import matrix

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import Program, compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.kernel import Kernel
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder
from nbdist.nn import functional

cupy = FakeCupy()


def normalised(x: Tensor, axis: Any, gamma: Tensor) -> Tensor:
    mean, variance = x.mean(axis=axis, keepdims=True), x.var(axis=axis, keepdims=True)
    result: Tensor = (x - mean) * (gamma / np.sqrt(variance + 1e-3)) + 0.5
    return result


def mixed(x: Tensor, gamma: Tensor) -> Tensor:
    """Comparisons, booleans, a broadcast row, and numbers of 16, 32 and 64 bits."""
    large = np.logical_and(x > gamma, np.logical_not(np.isnan(x)))
    half = np.where(large, np.maximum(x, gamma), np.abs(x) * 2).astype(np.float16)
    result: Tensor = (half * half).astype(np.float64) + np.sqrt(np.square(x) + np.exp(-x))
    return result


FUNCTIONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], int, int]] = {
    "gelu": (lambda x, gamma: functional.gelu(x), 1, 5),
    "gelu by tanh": (lambda x, gamma: functional.gelu(x, approximate=True), 1, 9),
    "layer norm": (lambda x, gamma: normalised(x, -1, gamma), 7, 11),
    "batch norm": (lambda x, gamma: normalised(x, 0, gamma), 7, 11),
    "mixed": (mixed, 3, 17),
}
"""By name: a function, and how many kernels its value takes, and would take without fusion."""


def kernels_of(program: Program) -> list[Kernel]:
    calls = [call for name, call in program.scope.items() if name.startswith("fused_")]
    return [call.func for call in calls if isinstance(call, partial)]


@pytest.mark.parametrize("name", matrix(["gelu", "layer norm", "mixed"], rest=["gelu by tanh", "batch norm"]))
def test_a_chain_is_one_kernel_with_numpys_values(name: str) -> None:
    function, fused, alone = FUNCTIONS[name]
    with Graph().as_default():
        x, gamma = placeholder(np.float32, (6, 5)), Variable(np.linspace(-1, 2, 5, dtype=np.float32))
        y = function(x, gamma)
        found = [g for g in gradients(np.sum(y * y), [gamma, x]) if g is not None]
    rng = np.random.default_rng(0)
    batch, weights = rng.normal(size=(6, 5)).astype(np.float32), np.linspace(-1, 2, 5, dtype=np.float32)
    results, programs = [], []
    for xp in (np, cupy):
        how: dict[str, Any] = {
            "feeds": [x],
            "shapes": [(6, 5)],
            "values": {gamma: xp.asarray(weights)},
            "xp": xp,
        }
        lines = len(compile_program([y], **how).nodes)
        assert lines == (alone if xp is np else fused)
        programs.append(compile_program([y, *found], **how))
        results.append([a if xp is np else a.get() for a in programs[-1](xp.asarray(batch))])
    for expected, ours in zip(*results, strict=True):
        assert (ours.dtype, ours.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5)
    made = kernels_of(programs[1])
    assert made
    assert compiled("90", [text for kernel in made for text in sources(kernel)]).startswith(b"\x7fELF")


def test_a_value_that_is_read_elsewhere_is_written_by_the_kernel() -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (4, 3))
        inner = np.exp(x) * 2
        y = np.sqrt(inner + 1)
        total = np.sum(inner, axis=0)
    program = compile_program([y, inner, total], feeds=[x], shapes=[(4, 3)], xp=cupy)
    assert len(program.nodes) == 2
    given = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)
    found = [a.get() for a in program(cupy.asarray(given))]
    wanted = np.exp(given) * 2
    for ours, expected in zip(found, (np.sqrt(wanted + 1), wanted, wanted.sum(0)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6)


def test_a_kernel_does_not_overwrite_what_it_reads_as_a_view() -> None:
    """The new value of a variable is computed from its transpose: in another buffer."""
    with Graph().as_default():
        v = Variable(np.zeros((3, 3), np.float32))
        change = v.assign(np.exp(np.swapaxes(v, 0, 1)) * 2 + v)
    start = np.arange(9, dtype=np.float32).reshape(3, 3) / 9
    held = cupy.asarray(start)
    compile_program([change], values={v: held}, xp=cupy)()
    np.testing.assert_allclose(held.get(), np.exp(start.T) * 2 + start, rtol=1e-6)


def test_whole_numbers_are_compared_exactly() -> None:
    with Graph().as_default():
        a, b = placeholder(np.int64, (2,)), placeholder(np.int64, (2,))
        y = (a == b).astype(np.float32) * 2
    program = compile_program([y], feeds=[a, b], shapes=[(2,), (2,)], xp=cupy)
    given = np.array([2**60, 2**60 + 1])
    np.testing.assert_array_equal(
        program(cupy.asarray(given), cupy.asarray(given * 0 + 2**60))[0].get(), [2, 0]
    )


@settings(deadline=None, max_examples=examples(10))
@given(expressions())
def test_any_expression_equals_numpy(expression: Expression) -> None:
    leaves = leaves_of(expression, 0)
    try:
        inputs, tensors = as_graph(expression, leaves)
    except (TypeError, InvalidArgumentError, NotImplementedError):
        return
    program = compile_program(
        tensors,
        feeds=inputs[: expression.feeds],
        shapes=[a.shape for a in leaves[: expression.feeds]],
        values={v: cupy.asarray(a) for v, a in zip(inputs, leaves) if isinstance(v, Variable)},
        xp=cupy,
    )
    found = program(*map(cupy.asarray, leaves[: expression.feeds]))
    for ours, expected in zip(found, expression.run(leaves), strict=True):
        np.testing.assert_allclose(ours.get(), expected, rtol=1e-9, atol=1e-9)
