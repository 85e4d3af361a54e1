"""The convolutional network's work, for both sides: data, initial weights, values to compare. NumPy only.

28 x 28 x 1 images; Conv 32 3x3, Conv 64 3x3, max pool 2, Dense 64, Dense 10; Adam with AMSGrad; 50 a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

EXAMPLES, BATCH = 1000, 50
LEARNING_RATE, EPSILON = 0.001, 1e-12  # so small that where it is added makes no difference
WARM_UP = 10  # steps before the clock starts
SHAPES = [(3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (9216, 64), (64,), (64, 10), (10,)]


def data() -> tuple[Array, NDArray[np.int64]]:
    """Return (images, labels): 1000 random images, with labels that can be learned."""
    random = np.random.default_rng(0)
    x = random.random((EXAMPLES, 28, 28, 1), np.float32)
    scores = (x.reshape(EXAMPLES, -1) - 0.5) @ random.standard_normal((784, 10), np.float32)
    return x, scores.argmax(1)


def first_weights() -> list[Array]:
    """Return kernels (height, width, in, out) and biases as both sides' initial weights."""
    random = np.random.default_rng(1)
    return [
        random.standard_normal(s, np.float32) * np.float32((2 / np.prod(s[:-1])) ** 0.5)
        if len(s) > 1
        else np.zeros(s, np.float32)
        for s in SHAPES
    ]


def to_channels_first(weights: Sequence[Array]) -> list[Array]:
    """Return the weights as PyTorch holds them: kernels (out, in, ...), flat inputs by channel first."""
    k1, b1, k2, b2, w3, b3, w4, b4 = weights
    w3 = w3.reshape(12, 12, 64, 64).transpose(3, 2, 0, 1).reshape(64, 9216)
    turned = [k1.transpose(3, 2, 0, 1), b1, k2.transpose(3, 2, 0, 1), b2, w3, b3, w4.T, b4]
    return [np.ascontiguousarray(w) for w in turned]


def to_channels_last(weights: Sequence[Array]) -> list[Array]:
    """Return PyTorch's weights in the order of :data:`SHAPES`."""
    k1, b1, k2, b2, w3, b3, w4, b4 = weights
    w3 = w3.reshape(64, 64, 12, 12).transpose(2, 3, 1, 0).reshape(9216, 64)
    return [k1.transpose(2, 3, 1, 0), b1, k2.transpose(2, 3, 1, 0), b2, w3, b3, w4.T, b4]


def batch_start(step: int) -> int:
    """Return the first row of the batch of ``step``."""
    return step * BATCH % EXAMPLES


def check(updates: int, weights: Sequence[Array]) -> dict[str, float]:
    """Return what both sides report: the number of updates and the distance that the weights moved."""
    squares = sum(float(np.square(new - old).sum()) for new, old in zip(weights, first_weights()))
    return {"updates": updates, "weights moved by": squares**0.5}
