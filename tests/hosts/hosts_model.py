"""The training on two hosts, and on one device for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.nn import Dense, Sequential
from nbdist.optim import SGD
from nbdist.train import Callback
from nbdist.train.context import Context, use


def fit(
    rows: int = 60, size: int = 20, epochs: int = 3, width: int = 6, callbacks: Sequence[Callback] = ()
) -> dict[str, Any]:
    """Train under the current strategy; return the losses, the global step, and the first weights."""
    random = np.random.default_rng(0)
    y = np.arange(rows) % 3
    x = (random.normal(size=(rows, 4)) * 0.5 + np.eye(3, 4)[y]).astype(np.float32)
    made = Sequential([Dense(width, activation="tanh"), Dense(3, activation="softmax")], seed=5)
    made.compile(SGD(0.3, momentum=0.5), "sparse_categorical_crossentropy")
    history = made.fit(
        Dataset.from_arrays(x, y).shuffle(rows).batch(size), epochs=epochs, callbacks=callbacks
    )
    return {
        "loss": history["loss"],
        "global_step": history.global_step,
        "weights": [weight[..., :8].tolist() for weight in made.get_weights()],
    }


def fit_alone(**model: Any) -> dict[str, Any]:
    """Train on one device."""
    with use(Context(seed=7, quiet=True)):
        return fit(**model)


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that the weights and the number of steps equal those of one device, to rounding."""
    assert found["global_step"] == expected["global_step"], found
    for ours, theirs in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
