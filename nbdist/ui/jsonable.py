"""Values as JSON allows them: a number that is not finite becomes None, a NumPy scalar a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

PLAIN = (str, int, bool, type(None))


def jsonable(value: Any) -> Any:
    """Return ``value`` with only dicts, lists, text, finite numbers, booleans and None in it.

    >>> jsonable({1: float("nan"), "n": np.int64(3), "odd": (object, "x")})
    {'1': None, 'n': 3, 'odd': ["<class 'object'>", 'x']}
    """
    kind = type(value)
    if kind in PLAIN:  # most of what there is, ten times a second
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
