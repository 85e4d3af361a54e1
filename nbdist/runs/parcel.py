"""Values on their way home: models, histories, arrays and plain values, as plain data.

Nothing is pickled here: a parcel holds only None, bool, int, float, str, lists, dicts and arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, ResourceExhaustedError
from nbdist.nn import Model, Sequential
from nbdist.train.callbacks import History

LIMIT_BYTES = 256 << 20
MAX_DEPTH = 8
MAX_ITEMS = 100_000


def pack(value: Any) -> dict[str, Any]:
    """Return ``value`` as plain data; InvalidArgumentError says why it cannot come home."""
    if isinstance(value, Model):
        if not value.weights:
            raise InvalidArgumentError("a model without weights stays where it is")
        packed = {"kind": "model", "config": value.to_config(), "weights": value.get_weights()}
    elif isinstance(value, History):
        packed = {"kind": "history", "config": value.to_config()}
    else:
        packed = {"kind": "plain", "value": _plain(value, 0)}
    size = _size(packed)
    if size > LIMIT_BYTES:
        raise ResourceExhaustedError(f"{size:,} bytes are more than the {LIMIT_BYTES:,} that may come home")
    return packed


def unpack(packed: dict[str, Any]) -> Any:
    """Return the value that :func:`pack` took."""
    if packed["kind"] == "model":
        model = Sequential.from_config(packed["config"])
        model.set_weights(packed["weights"])
        return model
    if packed["kind"] == "history":
        return History.from_config(packed["config"])
    return _real(packed["value"])


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidArgumentError("it is nested too deeply")
    if isinstance(value, np.generic):  # before the next: a float64 is a float too
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise InvalidArgumentError("an array of objects stays where it is")
        return value.copy()  # the task keeps it until the next run, and the name's own may change meanwhile
    if isinstance(value, (list, tuple)) and len(value) <= MAX_ITEMS:
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"kind": kind, "items": [_plain(v, depth + 1) for v in value]}
    if isinstance(value, dict) and len(value) <= MAX_ITEMS and all(isinstance(k, (str, int)) for k in value):
        return {"kind": "dict", "items": {k: _plain(v, depth + 1) for k, v in value.items()}}
    raise InvalidArgumentError(
        f"a {type(value).__name__} cannot come home; return numbers, arrays or a model"
    )


def _real(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    if plain["kind"] == "dict":
        return {k: _real(v) for k, v in plain["items"].items()}
    items = [_real(v) for v in plain["items"]]
    return tuple(items) if plain["kind"] == "tuple" else items


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(_size(v) for v in value.values())
    if isinstance(value, list):
        return sum(_size(v) for v in value)
    return len(value) if isinstance(value, str) else 8
