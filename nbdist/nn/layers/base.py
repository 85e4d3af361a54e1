"""`Layer`, the base class, and the context that a layer sees in training."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from nbdist.graph.op import Shape
from nbdist.graph.tensor import Tensor
from nbdist.keras_arguments import KerasAttributes

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass
class Training:
    """The inputs of a layer that exist only in training.

    ``draw`` is fed at every step: four numbers (the run's seed, which training it is, the step, the place of
    the replica's first example in the global batch), from which random numbers follow that do not depend on
    how many replicas share the batch. ``number`` is the layer's own in its model. ``updates`` collects
    new values for states (a moving average, say), which are assigned in the step.
    """

    draw: Tensor
    number: int = 0
    updates: dict[Tensor, Tensor] = field(default_factory=dict)


class Layer(KerasAttributes, ABC):
    """One step of a network.

    To write one, define ``call``, and ``build`` if it has weights, ``states`` if it keeps values that are not
    trained, and ``train`` if it computes something else in training.

    >>> class Double(Layer):
    ...     def call(self, x, weights):
    ...         return 2 * x
    """

    settings: ClassVar[tuple[str, ...]] = ()
    input_dtype: ClassVar[Any] = np.float32
    """What a model feeds if this is its first layer."""
    computes_in: ClassVar[str] = "policy"
    """What floating point inputs and weights are cast to in mixed precision: "policy", the policy's dtype
    (float16); "float32", for layers that compute means or sums, with an output in the policy's dtype;
    "input", nothing: the layer computes as its input is."""
    shards: int = 1
    """Tasks that the layer's own weights are split over, where the model is trained in-graph."""

    trainable: bool = True
    """Whether training changes the layer's weights. Set it to False to freeze them, and before `fit`: a model
    sees it when it is used next."""
    dimension: str | None = None
    """The name of the layer's last output dimension, by which a mesh of devices may split its weights."""

    def build(self, shape: Shape, rng: np.random.Generator | None) -> dict[str, Array]:
        """Return the initial weights by name: arrays, which become the model's.

        - ``shape``: the shape of one example (without the batch axis)
        - ``rng``: draws the values; None if only shapes and dtypes are needed
        """
        return {}

    def states(self, shape: Shape) -> dict[str, Array]:
        """Return the initial values, by name, that are kept between steps and not trained.

        ``shape`` is that of one example.
        """
        return {}

    @abstractmethod
    def call(self, x: Tensor, weights: dict[str, Tensor]) -> Tensor:
        """Return the layer's output for ``x`` (batch, ...); ``weights`` has weights and states by name."""

    def train(self, x: Tensor, weights: dict[str, Tensor], training: Training) -> Tensor:
        """Return the layer's output in training, by default that of ``call``.

        ``x`` and ``weights`` are those of ``call``; ``training`` has the random numbers of the step, and
        takes new values of states.
        """
        return self.call(x, weights)

    @property
    def differs_in_training(self) -> bool:
        """Whether :meth:`train` computes something else than :meth:`call`."""
        return type(self).train is not Layer.train

    def to_config(self) -> dict[str, Any]:
        """Return the layer's name and settings as plain values."""
        frozen = {} if self.trainable else {"trainable": False}
        own = {name: getattr(self, name) for name in self.settings}
        return {"layer": type(self).__name__, **own, **frozen}

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        values = {name: getattr(self, name) for name in self.settings}
        unusual = [f"{name}={value!r}" for name, value in values.items() if value != defaults[name].default]
        unusual += [] if self.trainable else ["trainable=False"]
        return f"{type(self).__name__}({', '.join(unusual)})"
