"""Activations by the name that layers take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.tensor import Tensor, symbolic
from nbdist.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": functional.relu,
    "sigmoid": functional.sigmoid,
    # A softmax is a sum, and its small values are what a loss looks at.
    "softmax": lambda x: functional.softmax(x.astype(np.float32) if x.dtype == np.float16 else x),
    "tanh": symbolic.tanh,
    "gelu": functional.gelu,
    "silu": lambda x: x * functional.sigmoid(x),
    "softplus": lambda x: symbolic.logaddexp(x, 0),
    # where, not minimum: at 0 two equal values would share the gradient, and elu'(0) is 1
    "elu": lambda x: symbolic.where(x > 0, x, symbolic.expm1(symbolic.where(x > 0, 0, x))),
}
"""Activations by the name that layers take."""


def checked_activation(activation: str | None) -> str:
    """Return the activation's name; None is "linear"."""
    name = "linear" if activation is None else activation
    if name not in ACTIVATIONS:
        raise InvalidArgumentError(f"no activation {name!r}; {choices(name, sorted(ACTIVATIONS))}")
    return name
