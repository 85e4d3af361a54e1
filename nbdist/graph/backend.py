"""NumPy or CuPy, by device."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError, MissingExtra

Array: TypeAlias = np.ndarray[Any, Any]
"""An array of the backend: numpy.ndarray, or cupy.ndarray on a GPU."""


def backend(device: str = "CPU:0") -> ModuleType:
    """Return the array module of a device: numpy for ``CPU:i``, cupy for ``GPU:i``.

    >>> backend("CPU:0").__name__
    'numpy'
    """
    kind = device.rpartition("/")[2].removeprefix("device:").partition(":")[0].upper()
    if kind == "CPU":
        return np
    if kind == "GPU":
        return _cupy()
    raise InvalidArgumentError(f"no backend for device {device!r}; expected CPU:<i> or GPU:<i>")


def _cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise MissingExtra("gpu", "arrays on a GPU") from error
    return cupy  # type: ignore[no-any-return]  # CuPy has no types


def backend_of(array: Array) -> ModuleType:
    """Return the module that an array belongs to.

    >>> backend_of(np.zeros(1)).__name__
    'numpy'
    """
    return np if isinstance(array, np.ndarray) else _cupy()


def to_device(array: Array, xp: ModuleType) -> Array:
    """Return an array with these values on the device of ``xp``; the array itself if it is there already."""
    result: Array = array if xp is np else xp.asarray(array)
    return result


def to_host(array: Array) -> Array:
    """Return the values of an array of either backend as a NumPy array."""
    return array if isinstance(array, np.ndarray) else array.get()
