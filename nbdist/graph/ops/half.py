"""Float16 products on a CPU: computed in float32 and rounded once, since BLAS has none of float16.

    matmul = in_float32(np.matmul)
    matmul(a, b, out)               # if out is float16: converts a and b, and rounds the product to out

NumPy's own products of float16 call no BLAS, convert each number again for each of its products, and round
after each addition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.graph.backend import Array

HALF, SINGLE = np.dtype(np.float16), np.dtype(np.float32)


def in_float32(kernel: Callable[..., Any]) -> Callable[..., None]:
    """Return ``kernel(*arrays, out)`` for arrays of the host, computed in float32 where ``out`` is float16.

    >>> out = np.zeros(1, np.float16)
    >>> in_float32(np.matmul)(np.ones((1, 4096), np.float16), np.ones(4096, np.float16), out)
    >>> float(out[0])
    4096.0
    """
    wide: list[Array] = []

    def product(*arrays: Array) -> None:
        *given, out = arrays
        if out.dtype != HALF:
            kernel(*arrays)
            return
        if not wide or wide[0].shape != out.shape:
            wide[:] = [np.empty(out.shape, SINGLE)]
        kernel(*map(as_float32, given), wide[0])
        np.copyto(out, wide[0], casting="same_kind")

    return product


def as_float32(array: Array) -> Array:
    """Return a float16 array as float32; any other one, and a number broadcast to a shape, as it is."""
    return array.astype(SINGLE) if array.dtype == HALF and any(array.strides) else array


def product_forward(
    product: Callable[..., Any],
) -> Callable[..., Any]:
    """Return ``forward(xp, *arrays, **how)`` of an op, computed in float32 for float16 arrays of the host."""

    def forward(xp: Any, *arrays: Array, **how: Any) -> Any:
        if xp is np and arrays[0].dtype == HALF and np.result_type(*arrays) == HALF:
            return product(xp, *map(as_float32, arrays), **how).astype(HALF)
        return product(xp, *arrays, **how)

    return forward
