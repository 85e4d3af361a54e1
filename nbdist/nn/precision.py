"""Calls of layers in a precision: what inputs and weights are cast to.

    value = call(layer, value, weights, "mixed_float16")

In mixed precision products and activations are float16 (or bfloat16, where XLA computes), and means, sums and
softmax float32 (`Layer.computes_in`), as in PyTorch's autocast. Weights stay float32 variables: each step
casts them, and their gradients are float32, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.tensor import Tensor, Variable
from nbdist.nn.layers import Layer, Training
from nbdist.optim.precision import PRECISIONS


def call(
    layer: Layer,
    x: Tensor,
    weights: Mapping[str, Variable],
    precision: str,
    training: Training | None = None,
) -> Tensor:
    """Return a layer's output, in training if ``training`` is given, with a policy's casts."""
    given: dict[str, Tensor] = {**weights}
    casts = precision != "float32" and layer.computes_in != "input"
    policy = np.dtype(PRECISIONS[precision])
    if precision != "float32":
        x.graph.use_half(precision.removeprefix("mixed_"))
    if casts:
        dtype = policy if layer.computes_in == "policy" else np.dtype(np.float32)
        x = _cast(x, dtype)
        states = () if layer.trainable else layer.states(x.shape[1:])
        given = {
            name: _cast(v, dtype) if v.trainable or not (layer.trainable or name in states) else v
            for name, v in weights.items()
        }
    trains = training is not None and layer.differs_in_training
    value = layer.train(x, given, training) if training is not None and trains else layer.call(x, given)
    return _cast(value, policy) if casts and layer.computes_in == "float32" else value


def output(value: Tensor, precision: str) -> Tensor:
    """Return a model's output for losses, metrics and users: float32."""
    return value if precision == "float32" else _cast(value, np.dtype(np.float32))


def check_weights(layer: Layer, weights: Mapping[str, Variable], precision: str) -> None:
    """Raise InvalidArgumentError for weights of which mixed precision has no float32 values."""
    for name, v in weights.items():
        if precision != "float32" and v.dtype.kind == "f" and v.dtype != np.float32:
            raise InvalidArgumentError(
                f"precision {precision!r} keeps float32 weights, and {name!r} of {layer!r} is {v.dtype}: "
                "make it float32 in the layer's build() and states(), or drop precision="
            )


def _cast(x: Tensor, dtype: np.dtype[np.generic]) -> Tensor:
    return x.astype(dtype) if x.dtype.kind == "f" and x.dtype != dtype else x
