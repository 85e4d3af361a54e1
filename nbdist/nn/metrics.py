"""Metrics by their Keras names. Each gives one number per example; an epoch shows their mean.

model.compile("adam", "binary_crossentropy", metrics=["accuracy", nn.metrics.BinaryAccuracy(threshold=0.7)])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from nbdist.graph.tensor import Tensor, record, symbolic
from nbdist.nn import losses
from nbdist.nn.measures import Measure, measure

__all__ = [
    "METRICS", "Accuracy", "BinaryAccuracy", "CategoricalAccuracy", "Metric", "SparseCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy", "TopKCategoricalAccuracy", "accuracy", "binary_accuracy",
    "categorical_accuracy", "get", "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy",
    "top_k_categorical_accuracy",
]  # fmt: skip

np = symbolic


@dataclass(frozen=True)
class Metric(Measure):
    """A measure that a training shows beside its loss."""


def _hits(hit: Any) -> Tensor:
    result: Tensor = hit.astype(numpy.float32)
    return result


def sparse_categorical_accuracy(y: Tensor, predicted: Tensor) -> Tensor:
    """Return 1 where the most probable class is the true one; y are class numbers."""
    return _hits(np.argmax(predicted, axis=-1) == y)


def categorical_accuracy(y: Tensor, predicted: Tensor) -> Tensor:
    """Return 1 where the most probable class is the true one; y are one-hot rows."""
    return _hits(np.argmax(predicted, axis=-1) == np.argmax(y, axis=-1))


def binary_accuracy(y: Tensor, predicted: Tensor, threshold: float = 0.5) -> Tensor:
    """Return the share of the last axis where yes or no was predicted right; yes is above ``threshold``."""
    return _hits((predicted > threshold) == (y > 0.5)).mean(axis=-1)


def accuracy(y: Tensor, predicted: Tensor) -> Tensor:
    """Return the accuracy that fits: binary for one output, categorical for rows, sparse for numbers."""
    if predicted.shape[-1] == 1 and y.ndim == predicted.ndim:
        return binary_accuracy(y, predicted)
    return (categorical_accuracy if y.ndim == predicted.ndim else sparse_categorical_accuracy)(y, predicted)


def sparse_top_k_categorical_accuracy(y: Tensor, predicted: Tensor, k: int = 5) -> Tensor:
    """Return 1 where fewer than ``k`` classes are more probable than the true one; y are class numbers."""
    index = record("expand_dims", y, axis=(-1,))
    likelier = predicted > np.take_along_axis(predicted, index, axis=-1)
    return _hits(np.sum(likelier, axis=-1) < k)


def top_k_categorical_accuracy(y: Tensor, predicted: Tensor, k: int = 5) -> Tensor:
    """Return 1 where fewer than ``k`` classes are more probable than the true one; y are one-hot rows."""
    return sparse_top_k_categorical_accuracy(np.argmax(y, axis=-1), predicted, k)


@dataclass(frozen=True)
class Accuracy(Metric):
    """The share of right answers; see :func:`accuracy`."""

    function = staticmethod(accuracy)
    any_labels = True


@dataclass(frozen=True)
class BinaryAccuracy(Metric):
    """The share of right yes and no; yes is above ``threshold``. See :func:`binary_accuracy`."""

    threshold: float = 0.5
    function = staticmethod(binary_accuracy)


@dataclass(frozen=True)
class CategoricalAccuracy(Metric):
    """The share of right classes, for one-hot rows."""

    function = staticmethod(categorical_accuracy)


@dataclass(frozen=True)
class SparseCategoricalAccuracy(Metric):
    """The share of right classes, for class numbers."""

    function = staticmethod(sparse_categorical_accuracy)
    sparse = True


@dataclass(frozen=True)
class TopKCategoricalAccuracy(Metric):
    """The share of true classes among the ``k`` most probable, for one-hot rows."""

    k: int = 5
    function = staticmethod(top_k_categorical_accuracy)


@dataclass(frozen=True)
class SparseTopKCategoricalAccuracy(Metric):
    """The share of true classes among the ``k`` most probable, for class numbers.

    >>> SparseTopKCategoricalAccuracy(k=3).to_config()
    {'name': 'sparse_top_k_categorical_accuracy', 'k': 3}
    """

    k: int = 5
    function = staticmethod(sparse_top_k_categorical_accuracy)
    sparse = True


METRICS: dict[str, Measure] = losses.LOSSES | {
    kind.name: kind()
    for kind in (
        Accuracy, BinaryAccuracy, CategoricalAccuracy, SparseCategoricalAccuracy, TopKCategoricalAccuracy,
        SparseTopKCategoricalAccuracy,
    )
}  # fmt: skip
METRICS["acc"] = METRICS["accuracy"]
"""Metrics by name; every loss is one, too."""


def get(metric: Any) -> Measure:
    """Return the ``metric`` of a name (such as "accuracy") or config, or the one given.

    Raises InvalidArgumentError for an unknown one.

    >>> get("accuracy")
    Accuracy()
    """
    return measure("metric", metric, METRICS)


def label(metric: Any) -> str:
    """Return the name of a ``metric`` in the history: as it was given, or its own."""
    return metric if isinstance(metric, str) else get(metric).name
