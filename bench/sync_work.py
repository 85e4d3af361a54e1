"""The work of P3 and P4, for all sides: batches that two workers share, and what is compared. NumPy only.

Each step is one update with the mean gradient of a global batch of 100, 50 for each of 2 workers; which
worker has which examples makes no difference. "cnn" is the network of cnn_work.py, "mlp" that of work.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import cnn_work, work

Array = NDArray[np.float32]

WORKERS, BATCH = 2, 100


@dataclass(frozen=True)
class Work:
    """One network, its data, and how long it is trained."""

    first_weights: Callable[[], Sequence[Array]]
    data: Callable[[], tuple[Array, NDArray[np.int64]]]
    loss: Callable[..., float]
    """The mean cross-entropy over all data, given the weights."""
    learning_rate: float
    warm_up: int
    """Steps before the clock starts."""
    steps: int
    """Steps by the clock: some seconds of ours, in which no fixed cost of a few milliseconds shows."""

    def share(self, rank: int) -> tuple[Array, NDArray[np.int64]]:
        """Return the examples of one worker, as (batches, examples of a batch, ...)."""
        x, y = self.data()
        own = BATCH // WORKERS
        x, y = x.reshape(-1, WORKERS, own, *x.shape[1:]), y.reshape(-1, WORKERS, own)
        return np.ascontiguousarray(x[:, rank]), np.ascontiguousarray(y[:, rank])

    def batches(self) -> tuple[Array, NDArray[np.int64]]:
        """Return all examples, as (batches, examples of a batch, ...)."""
        x, y = self.data()
        return x.reshape(-1, BATCH, *x.shape[1:]), y.reshape(-1, BATCH)

    def outcome(self, seconds: float, weights: Sequence[Array]) -> dict[str, Any]:
        """Return images per second of all workers, and what all sides have to agree on."""
        first = self.first_weights()
        squares = sum(float(np.square(new - old).sum()) for new, old in zip(weights, first, strict=True))
        check = {
            "updates": self.warm_up + self.steps,
            "loss fell by": self.loss(*first) - self.loss(*weights),
            "weights moved by": squares**0.5,
        }
        return {"value": BATCH * self.steps / seconds, "check": check}


def _mlp_data() -> tuple[Array, NDArray[np.int64]]:
    x, y = work.data()
    return x, y.argmax(1)


def _cnn_loss(
    k1: Array, b1: Array, k2: Array, b2: Array, w3: Array, b3: Array, w4: Array, b4: Array
) -> float:
    x, y = cnn_work.data()
    windows = np.lib.stride_tricks.sliding_window_view
    total = 0.0
    for i in range(0, len(x), BATCH):
        a = np.maximum(np.einsum("nhwcij,ijco->nhwo", windows(x[i : i + BATCH], (3, 3), (1, 2)), k1) + b1, 0)
        a = np.tensordot(windows(a, (3, 3), (1, 2)), k2.transpose(2, 0, 1, 3), 3) + b2
        a = np.maximum(a, 0).reshape(BATCH, 12, 2, 12, 2, 64).max((2, 4)).reshape(BATCH, -1)
        z = np.maximum(a @ w3 + b3, 0) @ w4 + b4
        z -= z.max(1, keepdims=True)
        total += float((np.log(np.exp(z).sum(1)) - z[np.arange(BATCH), y[i : i + BATCH]]).sum())
    return total / len(x)


WORKS = {
    "cnn": Work(cnn_work.first_weights, cnn_work.data, _cnn_loss, cnn_work.LEARNING_RATE, 10, 50),
    "mlp": Work(work.first_weights, _mlp_data, work.loss, work.LEARNING_RATE, 50, 8000),
}


def options(parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """Return the work that the command line asks for, and its device and steps if it names them.

    ``parser`` has options of one side alone.
    """
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--work", choices=list(WORKS), required=True)
    parser.add_argument("--device", default="CPU:0", help="CPU:0 or GPU:0")
    parser.add_argument("--warm-up", type=int)
    parser.add_argument("--steps", type=int)
    return parser.parse_args()


def scaled(options: argparse.Namespace) -> Work:
    """Return the work of the command line, for as many steps as that names."""
    work = WORKS[options.work]
    return replace(work, warm_up=options.warm_up or work.warm_up, steps=options.steps or work.steps)
