"""Initializers by their Keras names: a distribution, and its scale for a variable's shape.

    KINDS["he_normal"]((784, 100), np.random.default_rng(0))      # an array, drawn here
    get_variable("w", (784, 100), initializer="he_normal")        # drawn on the variable's device

Both use one table; the second is in ``graph.ops.random``, for variables that are too large to send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.backend import Array

CHUNK = 1 << 18  # elements drawn at a time: bounds the additional memory


@dataclass(frozen=True, slots=True)
class InitializerKind:
    """A kind of initial values.

    ``draw`` is "uniform" (in +-scale), "normal" (of deviation scale), "truncated_normal" (of deviation
    scale, cut at two deviations of the whole normal distribution) or "constant" (scale everywhere).
    ``scale`` is a function of fan-in and fan-out. Called with a
    shape and a generator, it returns float32 values.

    >>> KINDS["glorot_uniform"]((2, 4), np.random.default_rng(0)).round(2)
    array([[ 0.27, -0.46, -0.92, -0.97],
           [ 0.63,  0.83,  0.21,  0.46]], dtype=float32)
    """

    name: str
    draw: str
    scale: Callable[[int, int], float]

    def scale_for(self, shape: Sequence[int]) -> float:
        """Return the scale for a variable of this shape."""
        return float(self.scale(*fans(shape)))

    def __call__(self, shape: Sequence[int], rng: np.random.Generator | None) -> Array:
        """Return values for a variable of this shape, drawn in float64 a chunk at a time, in float32.

        Without ``rng`` the result has shape and dtype only, and takes no memory.
        """
        if rng is None:
            return np.broadcast_to(np.float32(0), tuple(shape))
        scale = self.scale_for(shape)
        if self.draw == "constant":
            return np.full(shape, scale, np.float32) if scale else np.zeros(shape, np.float32)
        values = np.empty(shape, np.float32)
        flat = values.reshape(-1)
        scratch = np.empty(min(CHUNK, flat.size))
        for first in range(0, flat.size, CHUNK):
            block = scratch[: flat.size - first]
            fill(block, self.draw, scale, rng)
            flat[first : first + CHUNK] = block
        return values


def fill(block: Array, draw: str, scale: float, rng: np.random.Generator) -> None:
    """Draw values into ``block``, of float32 or float64; each takes one number of ``rng`` (but "normal")."""
    if draw == "normal":
        rng.standard_normal(out=block, dtype=block.dtype)
        np.multiply(block, scale, out=block)
        return
    rng.random(out=block, dtype=block.dtype)
    if draw == "uniform":
        np.multiply(block, 2 * scale, out=block)
        np.subtract(block, scale, out=block)
    else:
        _truncated_normal(block, scale)


TRUNCATED = 0.9544997361036416  # erf(sqrt(2)): the share of a normal distribution within two deviations
DEVIATION = 0.87962566103423978  # deviation of a unit normal distribution truncated at two
# The central polynomial of erfinv (Giles 2010, "Approximating the erfinv function"), from the highest power.
_ERFINV = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
    -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip


def _truncated_normal(block: Array, scale: float) -> None:
    """Map uniform numbers from 0 to 1 to a normal distribution truncated at two deviations, by its inverse.

    Redrawing values outside would need a number of draws that depends on all earlier values, and a shard
    could not draw its own part.
    """
    np.multiply(block, 2 * TRUNCATED, out=block)
    np.subtract(block, TRUNCATED, out=block)
    w = np.multiply(block, block)
    np.log1p(np.negative(w, out=w), out=w)
    np.subtract(-2.5, w, out=w)  # -log(1 - x * x) - 2.5
    p = np.full_like(block, _ERFINV[0])
    for c in _ERFINV[1:]:
        np.multiply(p, w, out=p)
        np.add(p, c, out=p)
    np.multiply(block, p, out=block)
    np.multiply(block, np.sqrt(2) * scale / DEVIATION, out=block)


def fans(shape: Sequence[int]) -> tuple[int, int]:
    """Return fan-in and fan-out of a kernel of ``shape``: inputs of one output, outputs of one input.

    >>> fans((3, 3, 32, 64))
    (288, 576)
    """
    if len(shape) < 2:
        return (shape[0], shape[0]) if shape else (1, 1)
    window = prod(shape[:-2])
    return shape[-2] * window, shape[-1] * window


def _root(part: float) -> float:
    return float(np.sqrt(part))


KINDS: dict[str, InitializerKind] = {
    kind.name: kind
    for kind in (
        # Glorot and Bengio 2010
        InitializerKind(
            "glorot_uniform", "uniform", lambda inputs, outputs: _root(6 / max(inputs + outputs, 1))
        ),
        InitializerKind(
            "glorot_normal", "truncated_normal", lambda inputs, outputs: _root(2 / max(inputs + outputs, 1))
        ),
        # He et al. 2015
        InitializerKind("he_uniform", "uniform", lambda inputs, outputs: _root(6 / max(inputs, 1))),
        InitializerKind("he_normal", "truncated_normal", lambda inputs, outputs: _root(2 / max(inputs, 1))),
        # LeCun et al. 1998
        InitializerKind("lecun_uniform", "uniform", lambda inputs, outputs: _root(3 / max(inputs, 1))),
        InitializerKind(
            "lecun_normal", "truncated_normal", lambda inputs, outputs: _root(1 / max(inputs, 1))
        ),
        InitializerKind("random_uniform", "uniform", lambda inputs, outputs: 0.05),
        InitializerKind("random_normal", "normal", lambda inputs, outputs: 0.05),
        # As in the first TensorFlow examples.
        InitializerKind("standard_normal", "normal", lambda inputs, outputs: 1.0),
        InitializerKind("zeros", "constant", lambda inputs, outputs: 0.0),
        InitializerKind("ones", "constant", lambda inputs, outputs: 1.0),
    )
}
"""Every kind by name."""
KINDS["uniform"], KINDS["normal"] = KINDS["random_uniform"], KINDS["random_normal"]


def kind_of(name: str) -> InitializerKind:
    """Return the kind of that name."""
    if name not in KINDS:
        raise InvalidArgumentError(f"no initializer {name!r}; {choices(name, sorted(KINDS))}")
    return KINDS[name]
