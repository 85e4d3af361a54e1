"""Layers for images (batch, height, width, channels): Conv2D, MaxPool2D, AveragePool2D."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import Shape, show
from nbdist.graph.ops.windows import Pair, checked_padding, pair
from nbdist.graph.tensor import Tensor
from nbdist.keras_arguments import keras_arguments
from nbdist.nn import functional, initializers
from nbdist.nn.layers.activations import ACTIVATIONS, checked_activation
from nbdist.nn.layers.base import Array, Layer
from nbdist.nn.layers.core import whole


class Conv2D(Layer):
    """``activation(conv2d(x, kernel) + bias)``, on images (batch, height, width, channels).

    The result is (batch, rows, columns, filters).

    - ``filters``: the number of output channels, 1 or more
    - ``kernel_size``, ``strides``: one whole number or (height, width)
    - ``padding``: "valid" (windows lie inside the images) or "same" (zeros around them keep the size, divided
      by the strides)
    - ``activation``: "relu", "sigmoid", "tanh", "softmax", "gelu", "silu", "elu" or "softplus"; None or
      "linear" for none
    - ``use_bias``: whether there is a bias for each filter
    - ``kernel_initializer``, ``bias_initializer``: names from ``nb.nn.initializers``
    - ``dilation_rate``: the distance of the elements of a window, one whole number or (height, width)
    - ``groups``: into how many parts channels and filters are cut, each convolved separately; both must be
      multiples of it
    - ``dimension``: the name of the filters' dimension, by which ``TPUStrategy.layout`` may split the weights

    Raises InvalidArgumentError for a value that is none of these.

    >>> Conv2D(32, 3, activation="relu")
    Conv2D(filters=32, kernel_size=(3, 3), activation='relu')
    """

    settings = (
        "filters", "kernel_size", "strides", "padding", "activation", "use_bias", "kernel_initializer",
        "bias_initializer", "dilation_rate", "groups", "dimension",
    )  # fmt: skip

    @keras_arguments("Conv2D")
    def __init__(
        self,
        filters: int,
        kernel_size: int | Pair,
        strides: int | Pair = (1, 1),
        padding: str = "valid",
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str = "glorot_uniform",
        bias_initializer: str = "zeros",
        dilation_rate: int | Pair = (1, 1),
        groups: int = 1,
        dimension: str | None = None,
    ) -> None:
        self.dimension = dimension
        self.dilation_rate = pair("dilation_rate", dilation_rate)
        self.groups = whole("Conv2D: groups", groups)
        self.filters, self.use_bias = whole("Conv2D: filters", filters), bool(use_bias)
        self.kernel_size, self.strides = pair("kernel_size", kernel_size), pair("strides", strides)
        self.padding, self.activation = checked_padding(padding), checked_activation(activation)
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        initializers.get(kernel_initializer)
        initializers.get(bias_initializer)
        if self.filters % self.groups:
            raise InvalidArgumentError(f"Conv2D: {self.filters} filters cannot be cut into {groups} groups")

    def build(self, shape: Shape, rng: np.random.Generator | None) -> dict[str, Array]:
        """Return kernel (height, width, in, filters) and bias (filters,)."""
        channels = image_channels("Conv2D", shape)
        if channels % self.groups:
            raise InvalidArgumentError(f"Conv2D: {channels} channels cannot be cut into {self.groups} groups")
        size = (*self.kernel_size, channels // self.groups, self.filters)
        weights = {"kernel": initializers.get(self.kernel_initializer)(size, rng)}
        if self.use_bias:
            weights["bias"] = initializers.get(self.bias_initializer)((self.filters,), rng)
        return weights

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        rectified = self.activation == "relu"  # done while a block is in the cache
        y = functional.conv2d(
            x, weights["kernel"], weights.get("bias"), self.strides, self.padding, relu=rectified,
            dilation=self.dilation_rate, groups=self.groups,
        )  # fmt: skip
        return y if rectified else ACTIVATIONS[self.activation](y)


class _Pool2D(Layer):
    """One number for each window of each channel."""

    settings = ("pool_size", "strides", "padding")

    @keras_arguments("a pooling layer")
    def __init__(
        self, pool_size: int | Pair = (2, 2), strides: int | Pair | None = None, padding: str = "valid"
    ) -> None:
        self.pool_size = pair("pool_size", pool_size)
        self.strides = None if strides is None else pair("strides", strides)
        self.padding = checked_padding(padding)

    def build(self, shape: Shape, rng: np.random.Generator | None) -> dict[str, Array]:
        """Return nothing, for images."""
        image_channels(type(self).__name__, shape)
        return {}

    @abstractmethod
    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""


class MaxPool2D(_Pool2D):
    """The largest of each window: (batch, height, width, channels) -> (batch, rows, columns, channels).

    ``pool_size`` and ``strides`` are one whole number or (height, width); ``strides`` None is the size of the
    pool. ``padding`` is "valid" or "same". If several elements are the largest, the first gets
    the gradient.

    >>> MaxPool2D(3, strides=2)
    MaxPool2D(pool_size=(3, 3), strides=(2, 2))
    """

    computes_in = "input"

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        return functional.max_pool2d(x, self.pool_size, self.strides, self.padding)


class AveragePool2D(_Pool2D):
    """The mean of each window: (batch, height, width, channels) -> (batch, rows, columns, channels).

    ``pool_size``, ``strides`` and ``padding`` are those of :class:`MaxPool2D`; padding does not count.

    >>> AveragePool2D()
    AveragePool2D()
    """

    computes_in = "float32"

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        return functional.avg_pool2d(x, self.pool_size, self.strides, self.padding)


def image_channels(layer: str, shape: Shape) -> int:
    """Return the number of channels of images, or raise with the way to make images of other examples."""
    if len(shape) != 3 or shape[2] is None:
        hint: Any = "put Reshape((height, width, channels)) before it"
        if len(shape) == 2 and None not in shape:
            hint = f"put Reshape({(*(np.array(shape).tolist()), 1)}) before it"
        raise InvalidArgumentError(
            f"{layer} takes images (height, width, channels), got examples of shape {show(shape)}; {hint}"
        )
    return shape[2]
