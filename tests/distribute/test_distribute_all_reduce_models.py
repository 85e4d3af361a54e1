"""Any model of ``nb.nn``, with any loss and batch size, is trained by N replicas as by one device."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from one_device import Drawn, Found, drawn, require_one_device

from nbdist.data import Dataset
from nbdist.distribute import MultiWorkerMirroredStrategy, OneDeviceStrategy, Strategy
from nbdist.nn import Dense, Dropout, Flatten, LayerNorm, Sequential
from nbdist.optim import SGD, Adagrad, Adam, LossScaleOptimizer
from nbdist.testing.strategy import World, everywhere, thread_world

pytestmark = pytest.mark.slow

OPTIMIZERS = {
    "sgd": partial(SGD, 0.1, momentum=0.5),
    "adam": partial(Adam, 0.01),
    "adagrad": partial(Adagrad, 0.05),
}
BETWEEN = {
    "dropout": lambda: Dropout(0.4),
    "dense": lambda: Dense(5, "relu"),
    "norm": LayerNorm,
    "flatten": Flatten,
}
LOSSES = {
    "sparse_categorical_crossentropy": "softmax",
    "categorical_crossentropy": "softmax",
    "binary_crossentropy": "sigmoid",
    "kl_divergence": "softmax",
    "mse": None,
    "mae": "tanh",
    "huber": None,
    "log_cosh": None,
    "squared_hinge": "tanh",
    "categorical_hinge": "softmax",
    "cosine_similarity": None,
}
"""Each with the activation of the last layer that it goes with."""


def data_of(loss: str, rows: int, seed: int) -> tuple[Any, Any]:
    """Return inputs, and labels of the kind that the loss takes."""
    rng = np.random.default_rng(seed)
    x, number = rng.normal(size=(rows, 4)).astype(np.float32), rng.integers(0, 3, rows)
    if loss == "sparse_categorical_crossentropy":
        return x, number
    ones = np.eye(3, dtype=np.float32)[number]
    return x, 2 * ones - 1 if loss == "squared_hinge" else ones


def trained(
    strategy: Strategy,
    data: tuple[Any, Any],
    loss: str,
    between: list[str],
    optimizer: Any,
    size: int,
    **options: Any,
) -> Found:
    """Train on a replica; return the weights and the losses of the epochs."""
    with strategy.scope():
        layers = [BETWEEN[name]() for name in between]
        model = Sequential([Dense(6, "tanh"), *layers, Dense(3, LOSSES[loss])], seed=5)
        model.compile(optimizer(), loss, **options)
    history = model.fit(Dataset.from_arrays(*data).shuffle(len(data[0])).batch(size), epochs=2)
    return Found(model.get_weights(), list(history["loss"]))


def one_device() -> World:
    return thread_world(lambda place: OneDeviceStrategy())


@settings(max_examples=examples(60), deadline=None)
@given(
    drawn(
        LOSSES,
        optimizer=st.sampled_from(sorted(OPTIMIZERS)),
        between=st.lists(st.sampled_from(sorted(BETWEEN)), max_size=3),
        mixed=st.booleans(),
    )
)
def test_replicas_are_equal_to_one_device(one: Drawn) -> None:
    loss, make = one["loss"], OPTIMIZERS[one["optimizer"]]
    data = data_of(loss, one["rows"], one["seed"])
    how: dict[str, Any] = {"precision": "mixed_float16" if one["mixed"] else "float32"}
    near = {"rtol": 1e-3, "atol": 1e-4}
    if one["mixed"]:  # at a scale at which nothing overflows: a share's may where a whole batch's do not
        make = lambda: LossScaleOptimizer(OPTIMIZERS[one["optimizer"]](), initial_scale=256)
        near = {"rtol": 2e-2, "atol": 1e-2}

    def train(strategy: Strategy, _: Any = None) -> Found:
        return trained(strategy, data, loss, one["between"], make, one["size"], **how)

    [expected] = everywhere(one_device(), train)
    require_one_device(expected, train, one, **near)


@pytest.mark.parametrize("size", [1, 3])
def test_the_loss_of_a_step_that_overflows_is_in_every_history(
    size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a batch of one, the share of the second replica is empty."""
    data, how = data_of("categorical_crossentropy", 3, 0), {"precision": "mixed_float16"}
    both = thread_world(lambda place: MultiWorkerMirroredStrategy(world=place), 2)
    make = lambda: LossScaleOptimizer(SGD(0.1), initial_scale=2.0**24)
    (_, alone), (_, first), (_, second) = (
        one
        for world in (one_device(), both)
        for one in everywhere(
            world,
            lambda strategy, _: trained(strategy, data, "categorical_crossentropy", [], make, size, **how),
        )
    )
    assert "a gradient overflowed" in capsys.readouterr().out
    np.testing.assert_allclose(first, alone, rtol=1e-2)
    np.testing.assert_array_equal(second, first)
