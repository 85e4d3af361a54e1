"""Dense, Flatten, Reshape, Activation, Dropout, Embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.op import Shape, show
from nbdist.graph.tensor import Tensor
from nbdist.keras_arguments import keras_arguments
from nbdist.nn import functional, initializers
from nbdist.nn.layers.activations import ACTIVATIONS, checked_activation
from nbdist.nn.layers.base import Array, Layer, Training
from nbdist.nn.layers.split import checked_split, split_dense, split_weights


class Dense(Layer):
    """``activation(x @ kernel + bias)``: (batch, ..., inputs) -> (batch, ..., units).

    The kernel is applied to the last axis, for any number of axes before it, as in Keras.

    - ``units``: the number of outputs, 1 or more
    - ``activation``: "relu", "sigmoid", "tanh", "softmax", "gelu", "silu", "elu" or "softplus"; None or
      "linear" for none
    - ``use_bias``: whether there is a bias for each unit
    - ``kernel_initializer``, ``bias_initializer``: names from ``nb.nn.initializers``
    - ``split``: how the kernel is cut into shards, on tasks of their own where the model is trained in-graph:
      "columns" (each makes some of the units), "rows" (each takes some of the inputs, and the results are
      added up) or None. Rows after columns need no exchange in between (Shoeybi et al. 2019)
    - ``shards``: the number of shards, at least 2 with ``split``
    - ``dimension``: the name of the units' dimension, by which ``TPUStrategy.layout`` may split the weights

    Raises InvalidArgumentError for a value that is none of these.
    """

    settings = (
        "units", "activation", "use_bias", "kernel_initializer", "bias_initializer", "split", "shards",
        "dimension",
    )  # fmt: skip

    @keras_arguments("Dense")
    def __init__(
        self,
        units: int,
        activation: str | None = None,
        use_bias: bool = True,
        kernel_initializer: str = "glorot_uniform",
        bias_initializer: str = "zeros",
        split: str | None = None,
        shards: int = 1,
        dimension: str | None = None,
    ) -> None:
        self.dimension = dimension
        self.split, self.shards = checked_split(split, shards)
        self.units, self.use_bias = whole("Dense: units", units), bool(use_bias)
        self.activation = checked_activation(activation)
        self.kernel_initializer, self.bias_initializer = kernel_initializer, bias_initializer
        initializers.get(kernel_initializer)
        initializers.get(bias_initializer)

    def build(self, shape: Shape, rng: np.random.Generator | None) -> dict[str, Array]:
        """Return kernel (inputs, units) and bias (units,)."""
        if not shape or shape[-1] is None:
            raise InvalidArgumentError(
                f"Dense takes examples with a last axis of known size, got examples of shape {show(shape)}; "
                "single numbers need an axis: x[:, None]"
            )
        weights = {"kernel": initializers.get(self.kernel_initializer)((shape[-1], self.units), rng)}
        if self.use_bias:
            weights["bias"] = initializers.get(self.bias_initializer)((self.units,), rng)
        return weights if self.split is None else split_weights(weights, self.split, self.shards)

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        between = x.shape[1:-1]
        if between and None not in between:  # one product of matrices instead of one for each example
            rows = self.call(x.reshape(-1, x.shape[-1]), weights)
            return rows.reshape(-1, *between, self.units)
        if self.split is not None:
            return split_dense(x, weights, self.split, self.shards, self.activation)
        y = x @ weights["kernel"]
        if self.use_bias:
            y = y + weights["bias"]
        return ACTIVATIONS[self.activation](y)


class Flatten(Layer):
    """(batch, a, b, ...) -> (batch, a*b*...)."""

    computes_in = "input"

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        sizes = [n for n in x.shape[1:] if n is not None]
        return x.reshape(-1, prod(sizes))


class Reshape(Layer):
    """(batch, ...) -> (batch, *target_shape); one size of the target may be -1.

    >>> Reshape((28, 28, 1))
    Reshape(target_shape=(28, 28, 1))
    """

    settings = ("target_shape",)
    computes_in = "input"

    @keras_arguments("Reshape")
    def __init__(self, target_shape: Sequence[int]) -> None:
        sizes = tuple(target_shape) if isinstance(target_shape, (tuple, list)) else (target_shape,)
        good = all(isinstance(n, (int, np.integer)) and (n > 0 or n == -1) for n in sizes)
        if not good or sizes.count(-1) > 1:
            raise InvalidArgumentError(
                f"Reshape: target_shape holds sizes above 0, one of which may be -1, got {target_shape!r}"
            )
        self.target_shape = tuple(int(n) for n in sizes)

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        size, rest = prod(n or 0 for n in x.shape[1:]), prod(n for n in self.target_shape if n > 0)
        if size % rest or (-1 not in self.target_shape and size != rest):
            raise InvalidArgumentError(
                f"Reshape: examples of shape {show(x.shape[1:])} have {size} elements, which do not fit "
                f"{self.target_shape}"
            )
        return x.reshape(-1, *(n if n > 0 else size // rest for n in self.target_shape))


class Activation(Layer):
    """The ``activation`` of a name, such as "relu", as a layer of its own."""

    settings = ("activation",)
    computes_in = "input"

    @keras_arguments("Activation")
    def __init__(self, activation: str) -> None:
        self.activation = checked_activation(activation)

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        return ACTIVATIONS[self.activation](x)


class Dropout(Layer):
    """In training, a share ``rate`` of the elements becomes 0, the others grow by 1 / (1 - rate).

    Which ones follows from the run's seed, the step and an example's place in the global batch, so that any
    number of replicas drops the same. ``evaluate`` and ``predict`` drop nothing. Srivastava et al. 2014.

    >>> Dropout(0.5)
    Dropout(rate=0.5)
    """

    settings = ("rate",)
    computes_in = "input"

    @keras_arguments("Dropout")
    def __init__(self, rate: float) -> None:
        self.rate = functional.checked_rate(rate)

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return ``x``."""
        return x

    def train(self, x: Tensor, weights: dict[str, Tensor], training: Training) -> Tensor:
        """Return ``x`` with some elements dropped."""
        return functional.dropout(x, self.rate, training.draw, training.number)


class Embedding(Layer):
    """A row of numbers for each whole number: (batch, ...) of integers -> (batch, ..., output_dim).

    The integers go from 0 to ``input_dim`` - 1. ``output_dim`` is 1 or more, and
    ``embeddings_initializer`` a name from ``nb.nn.initializers``. ``dimension`` names the output's last
    dimension, by which ``TPUStrategy.layout`` may split the table.

    >>> Embedding(1000, 16)
    Embedding(input_dim=1000, output_dim=16)
    """

    settings = ("input_dim", "output_dim", "embeddings_initializer", "dimension")
    computes_in = "input"
    input_dtype: ClassVar[Any] = np.int64

    @keras_arguments("Embedding")
    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: str = "uniform",
        dimension: str | None = None,
    ) -> None:
        self.dimension = dimension
        self.input_dim = whole("Embedding: input_dim", input_dim)
        self.output_dim = whole("Embedding: output_dim", output_dim)
        self.embeddings_initializer = embeddings_initializer
        initializers.get(embeddings_initializer)

    def build(self, shape: Shape, rng: np.random.Generator | None) -> dict[str, Array]:
        """Return embeddings (input_dim, output_dim)."""
        table = initializers.get(self.embeddings_initializer)((self.input_dim, self.output_dim), rng)
        return {"embeddings": table}

    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output."""
        numbers = x if x.dtype.kind in "iu" else x.astype(np.int64)
        return functional.embedding_lookup(weights["embeddings"], numbers)


def whole(what: str, value: Any) -> int:
    """Return ``value`` as an int if it is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidArgumentError(f"{what} is a whole number above 0, got {value!r}")
    return int(value)
