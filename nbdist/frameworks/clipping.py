"""Summed gradients of all replicas, clipped before an update as after the all-reduce of DDP.

`ClippedSums` does what torch does, by the norm of all gradients; `clipped_by_norm` and `clipped_by_value` do
what Keras does with each gradient by itself. Where a strategy ``has_sums``, it calls them before an update.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nbdist.graph.backend import Array
from nbdist.train.boundary import square_sum


class ClippedSums:
    """Changes the gradients of an update as ``clip_grad_norm_`` and the optimizer of torch would.

    All replicas in step have the same sums, and so the same norm. Weight decay is added to what is clipped,
    and a group's learning rate multiplies both.

    - ``largest``: the largest norm of all gradients together, above 0
    - ``decay``, ``factors``: of each parameter; empty for none

    >>> gradients = [np.array([3.0]), np.array([0.0, 4.0])]
    >>> ClippedSums(1.0, [0.0, 0.5], [1.0, 2.0])(gradients, [np.ones(1), np.ones(2)])
    >>> [gradient.round(3).tolist() for gradient in gradients]
    [[0.6], [1.0, 2.6]]
    """

    def __init__(self, largest: float, decay: Sequence[float] = (), factors: Sequence[float] = ()) -> None:
        self._largest, self._decay, self._factors = largest, decay, factors

    def __call__(self, gradients: Sequence[Array], values: Sequence[Array]) -> None:
        """Change ``gradients`` in place; there is one for each of ``values``."""
        factor = min(self._largest / (np.sqrt(square_sum(gradients)) + 1e-6), 1.0)
        decays = self._decay or [0.0] * len(values)
        factors = self._factors or [1.0] * len(values)
        for gradient, value, decay, own in zip(gradients, values, decays, factors, strict=True):
            used = decay and gradient.any()  # the loss may not depend on it
            if factor < 1.0:
                gradient *= gradient.dtype.type(factor)
            if used:
                gradient += gradient.dtype.type(decay) * value
            if own != 1.0:
                gradient *= gradient.dtype.type(own)


def clipped_by_norm(largest: float, gradients: Sequence[Array], values: Sequence[Array]) -> None:
    """Divide each gradient whose norm is above ``largest`` such that it is that."""
    for gradient in gradients:
        norm = np.sqrt(square_sum([gradient]))
        if norm > largest:
            gradient *= gradient.dtype.type(largest / norm)


def clipped_by_value(largest: float, gradients: Sequence[Array], values: Sequence[Array]) -> None:
    """Move each number of the gradients between ``-largest`` and ``largest``."""
    for gradient in gradients:
        gradient.clip(-largest, largest, out=gradient)
