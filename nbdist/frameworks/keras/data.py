"""What `fit` of Keras trains on and validates with: `training_data`.

    arrays of x, y          rows, shuffled, in batches
    Dataset, iterable       batches (x, y) or (x, y, sample_weight), as they are

x and y are arrays, or for several inputs or outputs lists of arrays, in their order, or dicts by their names.
A weight of each example is a third part of a batch, as in Keras; class weights become such weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from nbdist.data import Dataset
from nbdist.data.adapter import batches_of, batches_of_rows, refuse_batch_size
from nbdist.data.foreign import to_numpy
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array

HeldOut: TypeAlias = Dataset | tuple[Any, ...]
"""Batches, or arrays (x, y) or (x, y, sample_weight)."""


def training_data(
    x: Any,
    y: Any,
    batch_size: int | None,
    shuffle: bool = True,
    sample_weight: Any = None,
    class_weight: Mapping[int, float] | None = None,
    validation_split: float = 0.0,
) -> tuple[Dataset, HeldOut | None]:
    """Return batches (x, y) or (x, y, sample_weight), and what ``validation_split`` holds out of arrays.

    Raises InvalidArgumentError for other data, and for arguments that do not go with each other.
    """
    if sample_weight is not None and class_weight is not None:
        raise InvalidArgumentError(
            "fit takes sample_weight or class_weight: multiply them, and drop the latter"
        )
    if y is None:
        batches = given_batches(x)
        refuse_batch_size(x, batch_size)
        for name, value in (("sample_weight", sample_weight), ("validation_split", validation_split or None)):
            if value is not None:
                raise InvalidArgumentError(
                    f"fit: {name} is for arrays x and y: this data has batches already"
                )
        if class_weight is not None:
            require_one_label(batches.element_spec[1])
            if len(batches.element_spec) == 3:
                raise InvalidArgumentError("the batches have sample weights: multiply, and drop class_weight")
            batches = batches.map(lambda x, y: (x, y, class_weights(y, class_weight)))
        return batches, None
    rows = (arrays(x), arrays(y), *(() if sample_weight is None else (arrays(sample_weight),)))
    rows, held_out = split(rows, validation_split) if validation_split else (rows, None)
    if class_weight is not None:
        require_one_label(rows[1])
        rows = (*rows, class_weights(rows[1], class_weight))
    return batches_of_rows(rows, batch_size, shuffle), held_out


def validation_data(data: Any) -> HeldOut:
    """Return validation data: arrays (x, y) or (x, y, sample_weight), or a Dataset or list of batches."""
    if isinstance(data, (tuple, list)) and len(data) in (2, 3) and are_arrays(data):
        return tuple(map(arrays, data))
    return given_batches(data)


def are_arrays(data: Any) -> bool:
    """Return whether a tuple or list is (x, y), and not a list of batches."""
    return isinstance(data, tuple) or not all(isinstance(one, (tuple, list)) for one in data)


def given_batches(data: Any) -> Dataset:
    """Return a Dataset of batches, or an iterable of them that begins anew for each epoch, as a Dataset."""
    one_array = isinstance(data, (np.ndarray, tuple, dict))
    found = batches_of(
        data,
        rows=lambda data: None,
        batch=None if one_array else lambda batch: tuple(map(arrays, batch)),
        expected="an array x with its labels y, or a Dataset or a list of batches (x, y)",
    )
    spec = found.element_spec
    if not isinstance(spec, tuple) or len(spec) not in (2, 3) or not all(map(are_named, spec)):
        raise InvalidArgumentError(
            "a batch is (x, y) or (x, y, sample_weight), of arrays, or of lists of arrays for several inputs "
            "or outputs, or dicts by their names"
        )
    if any(not one.shape for one in leaves_of(spec)):
        raise InvalidArgumentError("the dataset gives single examples, not batches; call .batch(size) on it")
    return found


def are_named(part: Any) -> bool:
    """Return whether a part of a batch is one array, or a tuple or dict of arrays."""
    ones = part.values() if isinstance(part, dict) else part if isinstance(part, tuple) else (part,)
    return all(hasattr(one, "shape") for one in ones)


def arrays(part: Any) -> Any:
    """Return an array, or a tuple or dict of arrays; floats have Keras's type, as in its own ``fit``."""
    if isinstance(part, dict):
        return {name: arrays(one) for name, one in part.items()}
    if isinstance(part, (list, tuple)) and part and all(getattr(one, "ndim", 0) for one in part):
        return tuple(map(arrays, part))
    import keras

    found = np.asarray(to_numpy(part) if hasattr(part, "detach") else part)
    return found.astype(keras.config.floatx()) if found.dtype.kind == "f" else found


def split(rows: tuple[Any, ...], fraction: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first rows of arrays, and the last ``fraction`` of them, as Keras cuts them.

    >>> split((np.arange(5), {"a": np.arange(5)}), 0.25)
    ((array([0, 1, 2]), {'a': array([0, 1, 2])}), (array([3, 4]), {'a': array([3, 4])}))
    """
    count = len(leaves_of(rows)[0])
    at = math.floor(count * (1.0 - fraction)) if 0 < fraction < 1 else 0
    if not 0 < at < count:
        raise InvalidArgumentError(
            f"validation_split is a number above 0 and below 1 that leaves examples on both sides, got "
            f"{fraction!r} of {count} examples"
        )

    leaves = leaves_of(rows)
    return rebuild(rows, [one[:at] for one in leaves]), rebuild(rows, [one[at:] for one in leaves])


def require_one_label(labels: Any) -> None:
    """Raise InvalidArgumentError for several outputs, each of which would need class weights of its own."""
    if isinstance(labels, (dict, tuple)):
        raise InvalidArgumentError("class_weight is for models of one output: give sample_weight")


def class_weights(labels: Array, weights: Mapping[int, float]) -> Array:
    """Return the weight of each example, by the number of its class; 1 for a class that is not named.

    >>> class_weights(np.array([0, 2, 1]), {2: 0.5}), class_weights(np.eye(2), {1: 3.0})
    (array([1. , 0.5, 1. ], dtype=float32), array([1., 3.], dtype=float32))
    """
    if labels.ndim > 1:
        labels = labels.argmax(-1) if labels.shape[-1] != 1 else labels[..., 0]
    return np.array([weights.get(int(number), 1.0) for number in np.round(labels)], np.float32)
