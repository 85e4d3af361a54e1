"""A session with more feed shapes than plans returns the same values as with a plan for each shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_tasks import ONE, PS, Tasks, begin

from nbdist.graph.compile.program import compile_program
from nbdist.graph.gradients import gradients
from nbdist.graph.scopes import device
from nbdist.graph.tensor import Graph, Variable, placeholder, record
from nbdist.nn import functional
from nbdist.optim import SGD, Adam
from nbdist.runtime.session.session import MOST_SHAPES, Session

Layer = Callable[[Any], Any]
ENDS: dict[str, Layer] = {
    "mean": lambda y: np.mean(np.square(y)),
    "sum": lambda y: np.sum(np.square(y)),
    "mean of sums": lambda y: np.mean(np.sum(y * y, axis=tuple(range(1, y.ndim)))),
    "std": lambda y: np.std(y) + np.mean(y),
    "norm": lambda y: np.linalg.norm(y),
    "max": lambda y: np.max(y, axis=0).sum() + np.max(y),
}


def variable(*shape: int) -> Variable:
    return Variable(np.random.default_rng(sum(shape)).uniform(0.2, 1, shape), name="w")


def through_images(x: Any) -> Any:
    images = x.reshape(-1, 2, 2, 1)
    y = functional.relu(functional.conv2d(images, variable(2, 2, 1, 3), padding="same"))
    return functional.max_pool2d(y, 2, strides=1, padding="same").reshape(-1, 12)[:, :4]


LAYERS: dict[str, Layer] = {
    "matmul": lambda x: x @ variable(4, 4),
    "bias": lambda x: x + variable(4),
    "scale": lambda x: x * variable(1, 4),
    "one number": lambda x: x * variable(1),
    "einsum": lambda x: np.einsum("ij,jk->ik", x, variable(4, 4)),
    "einsum of three": lambda x: np.einsum("ij,jk,k->ik", x, variable(4, 4), variable(4)),
    "tensordot": lambda x: np.tensordot(x, variable(4, 4), 1),
    "inner": lambda x: np.inner(x, variable(4, 4)),
    "conv": through_images,
    "tanh": np.tanh,
    "relu": functional.relu,
    "softmax": functional.softmax,
    "log softmax": functional.log_softmax,
    "centred": lambda x: x - np.mean(x, axis=0),
    "normalised": lambda x: x / np.sqrt(np.var(x, axis=0) + 0.1),
    "by rows": lambda x: x - np.mean(x, axis=1, keepdims=True),
    "by the largest": lambda x: x / (np.max(np.abs(x), axis=0, keepdims=True) + 1),
    "joined": lambda x: np.concatenate([x, x[::-1]]),
    "stacked": lambda x: np.stack([x, 2 * x]).sum(axis=0),
    "running": lambda x: np.cumsum(x, axis=0) / 9,
    "chosen": lambda x: np.where(x > 0.3, x, x * x),
    "turned": lambda x: np.swapaxes(np.swapaxes(x, 0, 1) * 2, 0, 1),
    "picked": lambda x: x[:, [1, 0, 3, 2]],
    "first row": lambda x: x + x[0],
    "products": lambda x: x + 0.1 * (x @ (np.transpose(x) @ x)),
    "ones": lambda x: x + np.ones_like(x),
    "roll": lambda x: np.roll(x, 1, axis=0),
    "sorted": lambda x: np.sort(x, axis=0),
    "repeated": lambda x: np.repeat(x, 2, axis=0),
    "tiled": lambda x: np.tile(x, (2, 1)),
    "padded": lambda x: np.pad(x, ((1, 0), (0, 0))),
}


def rows_of(n: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).uniform(-1, 1, (n, 4))


@settings(deadline=None, max_examples=examples(25))
@given(
    st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=3),
    st.sampled_from(sorted(ENDS)),
    st.permutations(range(1, 14)),
)
def test_more_shapes_than_plans(layers: list[str], end: str, sizes: list[int]) -> None:
    with Graph().as_default() as graph:
        x = placeholder(np.float64, (None, 4), name="x")
        y: Any = x * variable(1)
        for name in layers:
            y = LAYERS[name](y)
        loss = ENDS[end](y)
        variables = [t for t in graph.tensors if isinstance(t, Variable)]
        wanted = [loss, *gradients(loss, variables)]
    with pytest.MonkeyPatch.context() as patched, Session(graph=graph) as session:
        patched.setattr("nbdist.runtime.session.session.MOST_SHAPES", 2)
        begin(session)
        for n in sizes:
            found = session.run(wanted, {x: rows_of(n)})
            if n % 4 == 1:
                held = {v: np.asarray(v.initial_value) for v in variables}
                program = compile_program(wanted, feeds=[x], shapes=[(n, 4)], values=held)
                for mine, exact in zip(found, program(rows_of(n)), strict=True):
                    assert mine.dtype == exact.dtype
                    np.testing.assert_allclose(mine, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layer", ["matmul", "bias", "einsum", "tensordot", "conv"])
def test_training_with_a_new_batch_size_in_every_step(layer: str) -> None:
    with Graph().as_default() as graph:
        x = placeholder(np.float64, (None, 4), name="x")
        loss = np.mean(np.square(LAYERS[layer](x)))
        train = Adam(0.01).minimize(loss)
    with Session(graph=graph) as session:
        begin(session)
        losses = [session.run([loss, train], {x: np.ones((n, 4))})[0] for n in range(1, MOST_SHAPES + 7)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_training_with_a_new_batch_size_in_every_step_on_a_cluster(graph: Graph, tasks: Tasks) -> None:
    x = placeholder(np.float64, (None, 4), name="x")
    with device(PS):
        w, b = variable(4, 3), Variable(np.zeros(3), name="b")
    with device(ONE):
        loss: Any = np.mean(np.square(np.tensordot(x, w, 1) + b))
    train = SGD(0.01).minimize(loss)
    with tasks.session() as session:
        begin(session)
        losses = [session.run([loss, train], {x: np.ones((n, 4))})[0] for n in range(1, MOST_SHAPES + 7)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_labels_of_each_batch() -> None:
    with Graph().as_default() as graph:
        x, y = placeholder(np.float64, (None, 4)), placeholder(np.int64, (None,))
        w = variable(4, 4)
        loss = functional.sparse_softmax_cross_entropy(y, x @ w).sum()
        hot = record("one_hot", y, depth=4, dtype=np.dtype(np.float64))
        other = functional.softmax_cross_entropy(hot, x @ w).sum()
        wanted = [loss, other, *gradients(loss, [w]), *gradients(other, [w])]
    with Session(graph=graph) as session:
        begin(session)
        for n in range(1, MOST_SHAPES + 7):
            one, two, first, second = session.run(wanted, {x: rows_of(n), y: np.arange(n) % 4})
            assert one == pytest.approx(two)
            np.testing.assert_allclose(first, second, atol=1e-12)
