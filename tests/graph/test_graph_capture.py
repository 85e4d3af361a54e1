"""Programs as CUDA graphs, with a stand-in for CuPy: no GPU has run this."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_cupy import DeviceArray, FakeCupy, Stream

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.program import Program, compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder, record
from nbdist.nn.functional import dropout, embedding_lookup, sigmoid, sparse_softmax_cross_entropy

Array = np.ndarray[Any, Any]


@pytest.fixture
def cupy() -> Iterator[Any]:
    Stream.graphs.clear()
    yield FakeCupy()
    assert Stream.recording is None


def network() -> tuple[list[Any], list[Variable], Tensor, list[Tensor]]:
    rng = np.random.default_rng(0)
    with Graph().as_default():
        x, labels = placeholder(np.float32, (20, 6), name="x"), placeholder(np.int64, (20,), name="labels")
        weights = [Variable(rng.normal(size=s).astype(np.float32)) for s in ((6, 8), (8,), (8, 3))]
        hidden = sigmoid(x @ weights[0] + weights[1])
        loss = sparse_softmax_cross_entropy(labels, hidden @ weights[2]).mean()
        found = [g for g in gradients(loss, weights) if g is not None]
    return [x, labels], weights, loss, found


def compiled(xp: Any, **how: Any) -> tuple[Program, list[Any]]:
    feeds, weights, loss, found = network()
    values = [xp.asarray(w.initial_value) for w in weights]
    program = compile_program(
        [loss],
        feeds=feeds,
        shapes=[f.shape for f in feeds],
        values=dict(zip(weights, values, strict=True)),
        into=found,
        xp=xp,
        **how,
    )
    return program, values


def test_a_launched_graph_computes_what_the_program_does(cupy: Any) -> None:
    plain, host_values = compiled(np)
    program, device_values = compiled(cupy, capture=True)
    rng = np.random.default_rng(1)
    for call in range(5):
        x, labels = rng.random((20, 6), np.float32), rng.integers(0, 3, 20)
        expected = [np.zeros(v.shape, np.float32) for v in host_values]
        targets = [cupy.asarray(t) for t in expected]  # others at every call
        (loss,) = plain(x, labels, *expected)
        (found,) = program(cupy.asarray(x), cupy.asarray(labels), *targets)
        np.testing.assert_allclose(float(found), float(loss), rtol=1e-6)
        for target, gradient in zip(targets, expected, strict=True):
            np.testing.assert_allclose(target.get(), gradient, rtol=1e-5, atol=1e-7)
        for host, device, gradient in zip(host_values, device_values, expected, strict=True):
            host -= 0.1 * gradient  # the graph reads weights where they are
            device.host -= 0.1 * gradient
        assert [g.launches for g in Stream.graphs] == ([] if call == 0 else [call])


def test_it_is_a_program_like_any_other(cupy: Any) -> None:
    program, values = compiled(cupy, capture=True)
    plain, _ = compiled(cupy)
    assert isinstance(program, Program)
    assert program.source == plain.source
    assert program.buffer_bytes == plain.buffer_bytes
    x, labels = cupy.asarray(np.zeros((20, 6), np.float32)), cupy.asarray(np.zeros(20, np.int64))
    targets = [cupy.asarray(np.zeros(v.shape, np.float32)) for v in values]
    (loss,), spans = program.traced(x, labels, *targets)
    assert float(loss) == float(program(x, labels, *targets)[0])
    assert len(spans) == len(program.nodes)


def test_what_changes_a_variable_does_so_once_a_call(cupy: Any) -> None:
    with Graph().as_default():
        v = Variable(np.zeros(3))
        counted = v.assign_add(np.ones(3)) * 1
    array = cupy.asarray(np.zeros(3))
    program = compile_program([counted], values={v: array}, xp=cupy, capture=True)
    for n in range(1, 5):
        np.testing.assert_array_equal(program()[0].get(), np.full(3, n))
        np.testing.assert_array_equal(array.get(), np.full(3, n))


def test_what_calls_return_keeps_its_memory(cupy: Any) -> None:
    with Graph().as_default():
        x = placeholder(np.float64, (4, 3))
        y = np.sort(np.sort(x, axis=0), axis=1)  # no kernel writes these into planned memory
    program = compile_program([y], feeds=[x], shapes=[(4, 3)], xp=cupy, capture=True)
    for seed in range(4):
        a = np.random.default_rng(seed).random((4, 3))
        np.testing.assert_array_equal(program(cupy.asarray(a))[0].get(), np.sort(np.sort(a, 0), 1))


def test_dropout_is_recorded(cupy: Any) -> None:
    """Its kernel reads what to drop from the device, so that a launch drops by what was fed last."""
    with Graph().as_default():
        x, draw = placeholder(np.float32, (4, 30)), placeholder(np.int64, (4,))
        y = dropout(x, 0.5, draw) * 2
    given = np.ones((4, 30), np.float32)
    plain, captured = (
        compile_program([y], feeds=[x, draw], shapes=[(4, 30), (4,)], xp=xp, capture=xp is cupy)
        for xp in (np, cupy)
    )
    for step in range(4):
        numbers = np.array([3, 1, step, 0])
        ours = captured(cupy.asarray(given), cupy.asarray(numbers))[0].get()
        np.testing.assert_array_equal(ours, plain(given, numbers)[0])


def test_what_looks_at_values_on_the_host_fails_with_its_op_and_can_be_tried_again(cupy: Any) -> None:
    with Graph().as_default():
        ids = placeholder(np.int64, (4,))
        y = embedding_lookup(np.ones((5, 3), np.float32), ids) * 2
    program = compile_program([y], feeds=[ids], shapes=[(4,)], xp=cupy, capture=True)
    given = cupy.asarray(np.arange(4))
    program(given)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="StreamCaptureUnsupported") as caught:
            program(given)
        assert "capture=True" in caught.value.__notes__[0]
        failed = program.node_at(caught.tb)
        assert failed is not None
        assert failed.type == "gather_rows"


def test_what_cannot_be_a_graph_is_said_when_it_is_compiled(cupy: Any) -> None:
    with Graph().as_default():
        unknown = placeholder(np.float32, (None,), name="rows")
        shape: Any = {"shape": (3,), "whole": (3,), "start": (0,)}
        how: Any = {"draw": "normal", "scale": 1.0, "dtype": np.dtype(np.float32), "seed": 1}
        drawn = record("initial_value", **shape, **how)
    with pytest.raises(
        InvalidArgumentError, match=r"'rows' \(Placeholder\) has a shape that is known only at run time"
    ):
        compile_program([unknown * 2], feeds=[unknown], shapes=[(None,)], xp=cupy, capture=True)
    with pytest.raises(InvalidArgumentError, match=r"\(initial_value\) is computed on the host"):
        compile_program([drawn], xp=cupy, capture=True)
    with pytest.raises(InvalidArgumentError, match="compiled for NumPy"):
        compile_program([unknown * 2], feeds=[unknown], shapes=[(3,)], capture=True)


def test_a_call_with_too_few_arrays_is_refused(cupy: Any) -> None:
    program, _ = compiled(cupy, capture=True)
    with pytest.raises(InvalidArgumentError, match="takes 5 arrays, got 1"):
        program(DeviceArray(np.zeros((20, 6), np.float32)))
