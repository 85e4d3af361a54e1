"""Labels and outputs that a loss of Keras computes something with, though they are not what it takes.

Keras broadcasts labels (n, 1) against outputs (n, 4), cuts the fractions of class numbers off, and with JAX
gives class numbers without an output a loss of 0. A loss of one's own is left alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.train.labels import LABELS, LOGITS

SPARSE = "sparse_categorical_crossentropy"


def name_of(loss: Any) -> str:
    """Return the name of the function of Keras that a loss computes; "" for a function of one's own."""
    import keras

    function = getattr(loss, "fn", loss)
    name = getattr(function, "__name__", "")
    return name if getattr(keras.losses, name, None) is function else ""


def takes_probabilities(loss: Any) -> bool:
    """Return whether a loss takes probabilities that its settings would let be logits."""
    settings = getattr(loss, "_fn_kwargs", {})
    return name_of(loss) in LOGITS and not settings.get("from_logits", False)


def check_shapes(loss: Any, labels: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    """Raise InvalidArgumentError for labels of several examples that are broadcast against outputs."""
    name = name_of(loss)
    if name and name != SPARSE and len(labels) == len(outputs) and labels[1:] != outputs[1:]:
        raise InvalidArgumentError(
            f"{name} takes labels of the shape of the outputs, and a label has the shape {labels[1:]} where "
            f"an output has {outputs[1:]}: each label would be compared with several outputs. Give the last "
            f"layer {labels[-1]} output{'s' * (labels[-1] != 1)}, or labels of the other shape"
        )


def check_labels(loss: Any, labels: Array, outputs: int, is_whole: bool) -> None:
    """Raise InvalidArgumentError for labels that a loss does not take.

    - ``outputs``: the number of outputs of an example
    - ``is_whole``: whether all examples count, and not only those that weights and masks leave
    """
    name = name_of(loss)
    if not labels.size or not is_whole:
        return
    if name == SPARSE:
        ignored = getattr(loss, "ignore_class", None)
        counted = labels if ignored is None else labels[labels != ignored]
        if not counted.size:
            return
        if (counted != np.floor(counted)).any():
            wrong = counted[counted != np.floor(counted)].flat[0]
            raise InvalidArgumentError(
                f"{name} takes class numbers, which are whole, and a label is {wrong:g}: use np.rint(y), or "
                "another loss for numbers, such as mse"
            )
        if not 0 <= counted.min() <= counted.max() < outputs:
            raise InvalidArgumentError(
                f"{name}: labels go from {counted.min():g} to {counted.max():g}, and the model has {outputs} "
                f"outputs (classes 0 to {outputs - 1})"
            )
    elif name in LABELS and (wrong := LABELS[name].wrong(labels)) is not None:
        raise InvalidArgumentError(f"{name} takes {LABELS[name].what}, and {wrong}: {LABELS[name].instead}")
