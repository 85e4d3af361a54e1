"""The work that several benchmarks share: data, initial weights, and the values to compare. NumPy only.

The network and its size are those of a well-known article on asynchronous parameter servers: 784-100-10,
sigmoid, SGD with a rate of 0.001, batches of 100. The data are random, with labels that can be learned.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

INPUTS, HIDDEN, CLASSES = 784, 100, 10
EXAMPLES, BATCH = 5000, 100
LEARNING_RATE = 0.001
WARM_UP = 50  # steps of each worker before the clock starts


def data() -> tuple[Array, Array]:
    """Return (x, one-hot y): 5000 examples, float32."""
    random = np.random.default_rng(0)
    x = random.random((EXAMPLES, INPUTS), np.float32)
    scores = (x - 0.5) @ random.standard_normal((INPUTS, CLASSES), np.float32)
    return x, np.eye(CLASSES, dtype=np.float32)[scores.argmax(1)]


def first_weights() -> tuple[Array, Array, Array, Array]:
    """Return the initial W1, b1, W2, b2 of every side."""
    random = np.random.default_rng(1)
    return (
        random.standard_normal((INPUTS, HIDDEN), np.float32) * np.float32(0.05),
        np.zeros(HIDDEN, np.float32),
        random.standard_normal((HIDDEN, CLASSES), np.float32) * np.float32(0.2),
        np.zeros(CLASSES, np.float32),
    )


def batch_start(step: int) -> int:
    """Return the first row of the batch of ``step``."""
    return step * BATCH % EXAMPLES


def loss(w1: Array, b1: Array, w2: Array, b2: Array) -> float:
    """Return the mean cross-entropy over all data: the sides must agree on it at the end."""
    x, y = data()
    z = 1 / (1 + np.exp(-(x @ w1 + b1))) @ w2 + b2
    z -= z.max(1, keepdims=True)
    return float((np.log(np.exp(z).sum(1)) - (z * y).sum(1)).mean())


def check(updates: int, w1: Array, b1: Array, w2: Array, b2: Array) -> dict[str, float]:
    """Return what both sides report: the updates, the fall of the loss, the distance of the weights."""
    first, last = first_weights(), (w1, b1, w2, b2)
    squares = sum(float(np.square(new - old).sum()) for new, old in zip(last, first))
    return {"updates": updates, "loss fell by": loss(*first) - loss(*last), "weights moved by": squares**0.5}
