"""BatchNorm and LayerNorm."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import Shape, show
from nbdist.graph.tensor import Tensor, symbolic
from nbdist.keras_arguments import keras_arguments
from nbdist.nn import functional, initializers
from nbdist.nn.layers.base import Array, Layer, Training


class _Norm(Layer):
    """Scale and shift of values that were made to have mean 0 and variance 1."""

    computes_in = "float32"
    center: bool
    scale: bool
    epsilon: float

    def build(self, shape: Shape, rng: np.random.Generator | None) -> dict[str, Array]:
        """Return gamma and beta, one number per channel (the last axis)."""
        channels = _channels(self, shape)
        weights = {"gamma": initializers.ones((channels,), rng)} if self.scale else {}
        return weights | ({"beta": initializers.zeros((channels,), rng)} if self.center else {})

    def _normalised(self, x: Tensor, mean: Tensor, variance: Tensor, weights: dict[str, Tensor]) -> Tensor:
        factor: Any = 1 / symbolic.sqrt(variance + self.epsilon)
        y: Tensor = (x - mean) * (factor * weights["gamma"] if self.scale else factor)
        return y + weights["beta"] if self.center else y


class BatchNorm(_Norm):
    """Each channel (of the last axis) gets mean 0 and variance 1 over the batch. Ioffe and Szegedy 2015.

    In training the mean and variance are those of the batch, and moving averages of them are kept
    (``moving = momentum * moving + (1 - momentum) * batch``); ``evaluate`` and ``predict`` use those.

    With several replicas each normalises by its own part of the batch, as in Keras, so N replicas do not
    compute quite what one does; and each has its own moving averages, of which validation and the client use
    those of the first replica (the chief): variables of ``synchronization="on_read"`` and
    ``aggregation="only_first_replica"``. A replica without examples in a step does not change its own. Of a
    single example the output is the offset alone: a note says so.

    - ``momentum``: the decay of the moving averages, from 0 to below 1
    - ``epsilon``: added to the variance, under the root; from 0 to below 1
    - ``center``, ``scale``: whether an offset (beta) is added and a factor (gamma) multiplied, both trained

    With ``trainable = False`` it uses the moving averages in training, too, and does not change them.

    Raises InvalidArgumentError for a value outside of these ranges.

    >>> BatchNorm(momentum=0.9)
    BatchNorm(momentum=0.9)
    """

    settings = ("momentum", "epsilon", "center", "scale")

    @keras_arguments("BatchNorm")
    def __init__(
        self, momentum: float = 0.99, epsilon: float = 1e-3, center: bool = True, scale: bool = True
    ) -> None:
        self.momentum = functional.checked_rate(momentum, "BatchNorm: momentum")
        self.epsilon = functional.checked_rate(epsilon, "BatchNorm: epsilon")
        self.center, self.scale = bool(center), bool(scale)

    @property
    def differs_in_training(self) -> bool:
        """Whether it uses the batch's mean and variance in training; not if it is frozen, as in Keras."""
        return self.trainable

    def states(self, shape: Shape) -> dict[str, Array]:
        """Return the moving mean and variance, one number per channel."""
        channels = _channels(self, shape)
        return {
            "moving_mean": np.broadcast_to(np.float32(0), channels),
            "moving_variance": np.broadcast_to(np.float32(1), channels),
        }

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output by the moving averages."""
        return self._normalised(x, weights["moving_mean"], weights["moving_variance"], weights)

    def train(self, x: Tensor, weights: dict[str, Tensor], training: Training) -> Tensor:
        """Return the layer's output by the batch's mean and variance, and move the averages."""
        axes = tuple(range(x.ndim - 1))
        mean, variance = x.mean(axis=axes), x.var(axis=axes)
        for moving, batch in ((weights["moving_mean"], mean), (weights["moving_variance"], variance)):
            training.updates[moving] = moving * self.momentum + batch * (1 - self.momentum)
        return self._normalised(x, mean, variance, weights)


class LayerNorm(_Norm):
    """Each example's last axis gets mean 0 and variance 1. Ba, Kiros and Hinton 2016.

    ``epsilon``, ``center`` and ``scale`` are those of :class:`BatchNorm`.

    >>> LayerNorm()
    LayerNorm()
    """

    settings = ("epsilon", "center", "scale")

    @keras_arguments("LayerNorm")
    def __init__(self, epsilon: float = 1e-3, center: bool = True, scale: bool = True) -> None:
        self.epsilon = functional.checked_rate(epsilon, "LayerNorm: epsilon")
        self.center, self.scale = bool(center), bool(scale)

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
        return self._normalised(x, mean, variance, weights)


def _channels(layer: Layer, shape: Shape) -> int:
    if not shape or shape[-1] is None:
        raise InvalidArgumentError(
            f"{type(layer).__name__} needs a last axis of known size, got examples of shape {show(shape)}"
        )
    return shape[-1]
