"""Arrays on a GPU, told apart without importing what made them: a CuPy array comes with CuPy loaded.

if is_on_device(x):
    x = to_host(x)              # waits for the current stream
    ...
    return like(given, result)  # on the device again
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.wire.collective.calls import Call
from nbdist.wire.frames import Array

CUPY = "cupy"


def is_on_device(x: Any) -> bool:
    """Return whether x is a CuPy array."""
    return any(base.__module__.partition(".")[0] == CUPY for base in type(x).__mro__)


def cupy_of(x: Any) -> ModuleType:
    """Return the CuPy that made x."""
    assert is_on_device(x)
    return sys.modules[CUPY]


def to_host(x: Any) -> Array:
    """Return the values of a CuPy array, once all that its stream was given before is done."""
    values: Array = x.get()
    return values


def like(x: Any, values: Array, out: Any = None) -> Array:
    """Return values of the host as a CuPy array beside x: `out`, or a new one."""
    there: Array = cupy_of(x).asarray(values)
    if out is None:
        return there
    taken: Array = out
    taken[...] = there
    return taken


def check_out(call: Call, out: Any, rank: int) -> None:
    """Refuse what cannot take the result of a call whose input is on a device."""
    if out is None:
        return
    shape = call.out_shape(rank)
    if not is_on_device(out) or out.shape != shape or out.dtype != call.result:
        where = "" if is_on_device(out) else f", a {type(out).__module__}.{type(out).__name__}"
        found = f"{getattr(out, 'dtype', '')} {getattr(out, 'shape', '')}{where}".strip(" ,")
        raise InvalidArgumentError(
            f"out of {call.text} is {found}; it has to be {call.result} {shape} on the device that x is on"
        )
