"""Layers: each declares its weights and computes its output.

Sequential([Dense(100, activation="sigmoid"), Dense(10, activation="softmax")])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbdist.errors import InvalidArgumentError, choices
from nbdist.nn.layers.activations import ACTIVATIONS
from nbdist.nn.layers.base import Layer, Training
from nbdist.nn.layers.convolution import AveragePool2D, Conv2D, MaxPool2D
from nbdist.nn.layers.core import Activation, Dense, Dropout, Embedding, Flatten, Reshape
from nbdist.nn.layers.normalization import BatchNorm, LayerNorm

__all__ = [
    "ACTIVATIONS", "LAYERS", "Activation", "AveragePool2D", "BatchNorm", "Conv2D", "Dense", "Dropout",
    "Embedding", "Flatten", "Layer", "LayerNorm", "MaxPool2D", "Reshape", "Training", "check_layers",
    "layer_from_config",
]  # fmt: skip

LAYERS: dict[str, type[Layer]] = {
    kind.__name__: kind
    for kind in (
        Activation, AveragePool2D, BatchNorm, Conv2D, Dense, Dropout, Embedding, Flatten, LayerNorm,
        MaxPool2D, Reshape,
    )
}  # fmt: skip
"""Layers by name, for models that are fetched or loaded."""


def layer_from_config(config: dict[str, Any]) -> Layer:
    """Return the layer that ``to_config`` described."""
    settings = dict(config)
    name = settings.pop("layer")
    if name not in LAYERS:
        raise InvalidArgumentError(f"no layer {name!r}; {choices(name, sorted(LAYERS))}")
    trainable = bool(settings.pop("trainable", True))
    layer = LAYERS[name](**settings)
    layer.trainable = trainable
    return layer


def check_layers(layers: Sequence[Any]) -> list[Layer]:
    """Return the layers as a list; anything else is an error that names it."""
    if not isinstance(layers, (list, tuple)):
        raise InvalidArgumentError(f"Sequential takes a list of layers, got {layers!r}")
    for layer in layers:
        if not isinstance(layer, Layer):
            raise InvalidArgumentError(f"Sequential takes layers such as Dense(10), got {layer!r}")
    return list(layers)
