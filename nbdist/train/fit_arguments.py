"""Checks of the arguments that every ``fit`` has."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.numbers import is_whole
from nbdist.train.callbacks import Callback


def fit_counts(epochs: Any, steps_per_epoch: Any, **others: Any) -> tuple[int, int | None]:
    """Return epochs and steps per epoch as ints, or None for one pass.

    Raises InvalidArgumentError for one of them, or of ``others``, that is not a whole number above 0.

    >>> fit_counts(np.int64(3), None)
    (3, None)
    """
    for name, value in {"epochs": epochs, "steps_per_epoch": steps_per_epoch, **others}.items():
        number = value.item() if isinstance(value, np.integer) else value
        if not is_whole(number, 1) and not (name == "steps_per_epoch" and value is None):
            raise InvalidArgumentError(f"fit: {name} is a whole number above 0, got {value!r}")
    return int(epochs), None if steps_per_epoch is None else int(steps_per_epoch)


def own_callbacks(callbacks: Any, model: Any) -> Sequence[Callback]:
    """Return the callbacks of a ``fit``, which know its model from now on.

    Raises InvalidArgumentError for anything but a list of Callback, and for a method of batches, or one that
    is misspelt, which would not be called.
    """
    if not isinstance(callbacks, (list, tuple)) or not all(isinstance(one, Callback) for one in callbacks):
        raise InvalidArgumentError(f"fit: callbacks is a list of nb.train.Callback, got {callbacks!r}")
    called = [name for name in dir(Callback) if name.startswith("on_")]
    for callback in callbacks:
        for name in set(dir(type(callback))) - set(called):
            if name.startswith("on_") and (get_close_matches(name, called) or "_batch" in name):
                raise InvalidArgumentError(
                    f"{type(callback).__name__}.{name}() would not be called; {choices(name, called)}"
                )
        callback.model = model
    return callbacks
