"""Programs as CUDA graphs, with a stand-in for CuPy: no GPU has run this."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from fake_cupy import DeviceArray, FakeCupy, MemoryPool, Stream, counts, recording, using_allocator
from op_inputs import Example, examples_of

from nbdist.errors import AbortedError, InvalidArgumentError
from nbdist.graph.compile.capture import Captured, notes_to
from nbdist.graph.compile.program import Program, compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.op import OPS, Op
from nbdist.graph.tensor import Graph, Tensor, Variable, placeholder, record
from nbdist.nn.functional import dropout, sigmoid, sparse_softmax_cross_entropy

Array = np.ndarray[Any, Any]


@pytest.fixture
def cupy() -> Iterator[Any]:
    Stream.graphs.clear()
    yield FakeCupy()
    assert recording() is None


@pytest.fixture(autouse=True)
def notes() -> Iterator[list[str]]:
    found: list[str] = []
    with notes_to(found.append):
        yield found


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


def elementwise(cupy: Any, **how: Any) -> Program:
    """Return three ops on four numbers that are not one kernel, but that one graph can compute."""
    with Graph().as_default():
        x = placeholder(np.float32, (4,), name="x")
        y = np.arctan(np.sinh(np.arcsinh(x)))
    return compile_program([y], feeds=[x], shapes=[(4,)], xp=cupy, capture=True, **how)


def test_graphs_compute_what_the_program_does(cupy: Any, notes: list[str]) -> None:
    """CuPy records no cuBLAS call: graphs run between the matrix products."""
    plain, host_values = compiled(np)
    program, device_values = compiled(cupy, capture=True)
    targets = [cupy.asarray(np.zeros(v.shape, np.float32)) for v in host_values]
    rng = np.random.default_rng(1)
    for call in range(6):
        if call == 4:  # a group has formed again
            targets = [cupy.asarray(np.zeros(v.shape, np.float32)) for v in host_values]
        x, labels = rng.random((20, 6), np.float32), rng.integers(0, 3, 20)
        expected = [np.zeros(v.shape, np.float32) for v in host_values]
        (loss,) = plain(x, labels, *expected)
        fed = cupy.asarray(x), cupy.asarray(labels)
        counts.clear()
        (found,) = program(*fed, *targets)
        if call in (3, 5):
            assert counts["launch"] == 5 + 4 + 2  # products, graphs, copies of feeds
        np.testing.assert_allclose(float(found), float(loss), rtol=1e-6)
        for target, gradient in zip(targets, expected, strict=True):
            np.testing.assert_allclose(target.get(), gradient, rtol=1e-5, atol=1e-7)
        for host, device, gradient in zip(host_values, device_values, expected, strict=True):
            host -= 0.1 * gradient  # graphs read weights where they are
            device.host -= 0.1 * gradient
    assert len(notes) == 1
    assert "runs as 4 CUDA graphs; not recorded: 5 calls of matmul (calling cuBLAS" in notes[0]


def test_one_graph_is_one_launch(cupy: Any, notes: list[str]) -> None:
    program = elementwise(cupy)
    for call in range(4):
        x = np.full(4, call, np.float32)
        counts.clear()
        (y,) = program(x if call > 1 else cupy.asarray(x))  # a feed may be on the host: it is copied
        if call > 1:
            assert (counts["launch"], counts["copy to device"]) == (2, 1)  # the copy of the feed, the graph
        np.testing.assert_allclose(y.get(), np.arctan(x), rtol=1e-6)
    assert notes == ["a program of 3 calls runs as 1 CUDA graph"]


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
    program = compile_program([counted + 0], values={v: array}, xp=cupy, capture=True)
    for n in range(1, 5):
        np.testing.assert_array_equal(program()[0].get(), np.full(3, n))
        np.testing.assert_array_equal(array.get(), np.full(3, n))
    assert Stream.graphs[-1].launches == 2


def test_a_fence_refuses_changes_of_a_launch(cupy: Any) -> None:
    entered: list[bool] = []

    class Fence:
        def __enter__(self) -> None:
            entered.append(True)
            if closed:
                raise AbortedError("the session is closed")

        def __exit__(self, *error: object) -> None:
            return

    with Graph().as_default():
        v = Variable(np.zeros(3))
        counted = v.assign_add(np.ones(3)) * 2 + 1
    array, closed = cupy.asarray(np.zeros(3)), False
    program = compile_program([counted], values={v: array}, xp=cupy, capture=True, fence=Fence())
    for _ in range(3):
        program()
    entered.clear()
    program()
    assert entered == [True]
    closed = True
    with pytest.raises(AbortedError):
        program()
    np.testing.assert_array_equal(array.get(), np.full(3, 4))


def test_what_calls_return_keeps_its_memory(cupy: Any) -> None:
    """Both where a graph reads it, and where a call between two graphs makes it anew each time."""
    with Graph().as_default():
        x = placeholder(np.float64, (3, 3))
        y = np.sort(np.sort(x * 2 + 1, axis=0), axis=1)  # no kernel writes these into planned memory
        z = np.exp(np.linalg.inv(y + np.eye(3)) * 0.5) + 1
    program = compile_program([z, y], feeds=[x], shapes=[(3, 3)], xp=cupy, capture=True)
    for seed in range(5):
        a = np.random.default_rng(seed).random((3, 3))
        found, ordered = program(cupy.asarray(a))
        expected = np.sort(np.sort(a * 2 + 1, 0), 1)
        np.testing.assert_array_equal(ordered.get(), expected)
        np.testing.assert_allclose(
            found.get(), np.exp(np.linalg.inv(expected + np.eye(3)) * 0.5) + 1, rtol=1e-6
        )
    assert max(graph.launches for graph in Stream.graphs) == 3


def test_random_numbers_are_drawn_anew_at_each_launch(cupy: Any, notes: list[str]) -> None:
    with Graph().as_default():
        x = placeholder(np.float32, (4, 30))
        draw = placeholder(np.int64, (4,))
        y = np.sinh(np.arctan(dropout(np.sinh(x), 0.5, draw)))
    plain = compile_program([y], feeds=[x, draw], shapes=[(4, 30), (4,)])
    program = compile_program([y], feeds=[x, draw], shapes=[(4, 30), (4,)], xp=cupy, capture=True)
    ones, found = np.ones((4, 30), np.float32), []
    for step in range(5):
        numbers = np.array([1, 2, step, 0], np.int64)
        found.append(program(cupy.asarray(ones), cupy.asarray(numbers))[0].get())
        np.testing.assert_allclose(found[-1], plain(ones, numbers)[0], rtol=1e-5)
    assert not np.array_equal(found[3], found[4])
    assert max(graph.launches for graph in Stream.graphs) == 3


def test_gradients_are_announced_after_they_are_computed(cupy: Any) -> None:
    """At each call, between graphs."""
    with Graph().as_default():
        x = placeholder(np.float32, (4,))
        parts = [np.exp(x)]
        for _ in range(20):
            parts.append(np.arctan(parts[-1]) + 1)
    targets = [cupy.asarray(np.zeros(4, np.float32)) for _ in range(2)]
    seen: list[Array] = []
    into = [parts[10], parts[20]]
    program = compile_program(
        [],
        feeds=[x],
        shapes=[(4,)],
        into=into,
        xp=cupy,
        capture=True,
        written={t: lambda target=target: seen.append(target.get()) for t, target in zip(into, targets)},
    )
    for call in range(4):
        seen.clear()
        wanted = [np.exp(np.full(4, call, np.float32))]
        for _ in range(20):
            wanted.append(np.arctan(wanted[-1]) + 1)
        program(cupy.asarray(np.full(4, call, np.float32)), *targets)
        np.testing.assert_allclose(seen, [wanted[10], wanted[20]], rtol=1e-6)
    assert sum(graph.launches == 2 for graph in Stream.graphs) == 2


def test_a_program_without_graphs_says_why(
    cupy: Any, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Graph().as_default():
        unknown = placeholder(np.float32, (None,), name="rows")
        x = placeholder(np.float64, (3, 3))
        products = x @ x @ x
    with pytest.raises(
        InvalidArgumentError, match=r"'rows' \(Placeholder\) has a shape that is known only at run time, so"
    ):
        compile_program([unknown * 2], feeds=[unknown], shapes=[(None,)], xp=cupy, capture=True)
    with pytest.raises(InvalidArgumentError, match="compiled for NumPy"):
        compile_program([unknown * 2], feeds=[unknown], shapes=[(3,)], capture=True)
    for fetch, feed, shape in ((unknown * 2, unknown, (None,)), (products, x, (3, 3))):
        program = compile_program([fetch], feeds=[feed], shapes=[shape], xp=cupy, capture=None)
        for _ in range(3):
            (found,) = program(cupy.asarray(np.ones((3, 3)[: len(shape)], feed.dtype)))
        assert float(found.get().ravel()[0]) == (2 if feed is unknown else 9)
    assert len(notes) == 2
    assert notes[0].startswith("a program of 1 calls runs without CUDA graphs: 'rows' (Placeholder) has a")
    assert "2 calls of matmul (calling cuBLAS API" in notes[1]
    program = elementwise(cupy)
    monkeypatch.setattr(Stream, "end_capture", lambda stream: fail(stream))
    for _ in range(4):
        (found,) = program(cupy.asarray(np.zeros(4, np.float32)))
        np.testing.assert_array_equal(found.get(), np.zeros(4))
    assert "cudaErrorStreamCaptureUnjoined" in notes[2]
    assert len(notes) == 3


def fail(stream: Stream) -> None:
    stream.recorded = None
    raise RuntimeError("cudaErrorStreamCaptureUnjoined")


@pytest.mark.parametrize(("chosen", "graphs"), [("1", 1), ("0", 0), (None, 1)])
def test_a_variable_switches_it_off(
    cupy: Any, monkeypatch: pytest.MonkeyPatch, chosen: str | None, graphs: int
) -> None:
    if chosen is not None:
        monkeypatch.setenv("NBDIST_CUDA_GRAPHS", chosen)
    with Graph().as_default():
        x = placeholder(np.float32, (4,))
        y = np.arctan(np.sinh(np.arcsinh(x)))
    program = compile_program([y], feeds=[x], shapes=[(4,)], xp=cupy, capture=None)
    for _ in range(3):
        program(cupy.asarray(np.zeros(4, np.float32)))
    assert isinstance(program.function, Captured) == bool(graphs)
    assert sum(graph.launches > 0 for graph in Stream.graphs) == graphs
    monkeypatch.setenv("NBDIST_CUDA_GRAPHS", "yes")
    with pytest.raises(InvalidArgumentError, match="NBDIST_CUDA_GRAPHS='yes'; choose 1"):
        compile_program([y], feeds=[x], shapes=[(4,)], xp=cupy, capture=None)


def test_memory_of_graphs_is_in_the_pool_that_has_the_limit(
    cupy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[MemoryPool] = []

    def noted(allocator: Any) -> Any:
        used.append(allocator.__self__)
        return using_allocator(allocator)

    monkeypatch.setattr(cupy.cuda, "using_allocator", noted)
    for program in (elementwise(cupy), elementwise(cupy)):
        for _ in range(3):
            program(cupy.asarray(np.zeros(4, np.float32)))
    (pool,) = set(used)
    assert (pool.allocator, pool.limit) == (cupy.cuda.get_allocator(), 0)


def test_another_thread_records_graphs_of_its_own(cupy: Any) -> None:
    """Programs of one thread share the memory of temporary arrays, for they run one after the other."""
    program = elementwise(cupy)
    for number in range(4):
        given = np.full(4, number, np.float32)
        with ThreadPoolExecutor(1) if number == 3 else nullcontext() as other:
            call = program if other is None else lambda x: other.submit(program, x).result()
            np.testing.assert_allclose(call(cupy.asarray(given))[0].get(), np.arctan(given), rtol=1e-6)
    assert [graph.launches for graph in Stream.graphs if graph.launches] == [1, 1]


def test_an_error_between_graphs_names_its_op(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Graph().as_default():
        x = placeholder(np.float64, (2, 2))
        y = np.linalg.inv(np.exp(x) + 1 - 1) + 1
    program = compile_program([y], feeds=[x], shapes=[(2, 2)], xp=cupy, capture=True)
    for _ in range(3):
        program(cupy.asarray(np.eye(2)))
    with pytest.raises(np.linalg.LinAlgError) as caught:
        program(cupy.asarray(np.zeros((2, 2))))
    failed = program.node_at(caught.tb)
    assert failed is not None
    assert failed.type == "inv"


def test_a_call_with_too_few_arrays_is_refused(cupy: Any) -> None:
    program, _ = compiled(cupy, capture=True)
    with pytest.raises(InvalidArgumentError, match="takes 5 arrays, got 1"):
        program(DeviceArray(np.zeros((20, 6), np.float32)))


NOT_RECORDED = {
    *("matmul", "einsum", "conv2d", "conv2d_to_kernel"),  # cuBLAS
    *("det", "log_abs_det", "det_sign", "cholesky", "solve", "singular_values", "inv"),  # cuSOLVER
    *("gather_rows", "add_rows"),  # check row numbers on the host
    "concatenate",  # CuPy sends addresses to the GPU
}
"""Ops that docs/gpus.md lists as not recorded."""


def test_which_ops_cannot_be_recorded(cupy: Any) -> None:
    last = {name: examples[-1] for name in OPS if (examples := examples_of(name))}
    assert {name for name, example in last.items() if refuses(cupy, OPS[name], example)} == NOT_RECORDED


def refuses(cupy: Any, op: Op, example: Example) -> bool:
    with Graph().as_default():
        feeds = [placeholder(a.dtype, a.shape) for a in map(np.asarray, example.inputs)]
        value = record(op.name, *feeds, **example.attrs)
    program = compile_program([value], feeds=feeds, shapes=[f.shape for f in feeds], xp=cupy, capture=True)
    for _ in range(2):
        program(*(cupy.array(a) for a in example.inputs))
    assert isinstance(program.function, Captured)
    return bool(program.function._between)
