"""Layers, losses, metrics and models, by their Keras names."""

from nbdist.nn import functional, initializers, losses, metrics
from nbdist.nn.layers import (
    Activation,
    AveragePool2D,
    BatchNorm,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Layer,
    LayerNorm,
    MaxPool2D,
    Reshape,
)
from nbdist.nn.model import Model, Sequential, load
from nbdist.nn.scaling import compute_average_loss

__all__ = [
    "Activation",
    "AveragePool2D",
    "BatchNorm",
    "Conv2D",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "Layer",
    "LayerNorm",
    "MaxPool2D",
    "Model",
    "Reshape",
    "Sequential",
    "compute_average_loss",
    "functional",
    "initializers",
    "load",
    "losses",
    "metrics",
]
