"""Elements as bytes, for shared memory and cache files: no pickle, and arrays without a copy where possible.

    head, buffers = encode(element)          # msgpack, and the memory of the arrays
    element = decode(head, memory)           # arrays are views of `memory`, where the buffers lie

In the head a tuple is {"t": parts}, a dict {"d": [[key, part], ...]}, an array {"a": [dtype, shape, offset]};
None, truth, numbers, text and bytes are themselves. A list is {"l": parts}; one of tuples or dicts of one
form is kept as columns, {"lt": columns} or {"ld": [keys, columns]}, and one of arrays of one form as one
array of all, {"la": array}: that is several times quicker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from nbdist.errors import InvalidArgumentError

ALIGNMENT = 64
PLAIN = (bool, int, float, str, bytes, type(None))


def encode(element: Any) -> tuple[bytes, list[tuple[int, NDArray[Any]]], int]:
    """Return (head, arrays with their offsets, bytes that they need).

    Raises InvalidArgumentError for a value that is neither an array nor a plain one.
    """
    arrays: list[tuple[int, NDArray[Any]]] = []
    size = 0

    def together(parts: list[Any]) -> Any:
        """Return the form of a list whose parts are alike, or None."""
        kinds = set(map(type, parts))
        if len(parts) < 2 or len(kinds) > 1:
            return None
        first = parts[0]
        if isinstance(first, tuple):
            if not first or len(set(map(len, parts))) > 1:
                return None
            return {"lt": [form(list(column)) for column in zip(*parts, strict=True)]}
        if isinstance(first, dict):
            if not first or any(part.keys() != first.keys() for part in parts):
                return None
            return {"ld": [list(first), [form([part[key] for part in parts]) for key in first]]}
        if isinstance(first, np.generic):
            alike = first.dtype.kind in "biufcmM" and len({part.dtype for part in parts}) == 1
        else:
            alike = kinds == {np.ndarray} and first.ndim > 0 and first.dtype.kind in "biufcmMSU"
            alike = alike and len({(part.dtype, part.shape) for part in parts}) == 1
        return {"la": form(np.array(parts))} if alike else None

    def form(value: Any) -> Any:
        nonlocal size
        if isinstance(value, tuple):
            return {"t": [form(part) for part in value]}
        if isinstance(value, dict):
            return {"d": [[key, form(part)] for key, part in value.items()]}
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcmMSU":
            array = np.ascontiguousarray(value)
            offset = -(-size // ALIGNMENT) * ALIGNMENT
            size = offset + array.nbytes
            arrays.append((offset, array))
            return {"a": [array.dtype.str, list(np.shape(value)), offset, isinstance(value, np.generic)]}
        if isinstance(value, np.ndarray) and value.dtype == object:
            return {"o": [list(value.shape), [form(one) for one in value.reshape(-1)]]}
        if isinstance(value, list):
            return together(value) or {"l": [form(part) for part in value]}
        if isinstance(value, PLAIN):
            return value
        raise InvalidArgumentError(
            f"a value of type {type(value).__name__} cannot leave its process or be cached in a file; return "
            "arrays, numbers, text or bytes, in tuples and dicts"
        )

    return msgpack.packb(form(element)), arrays, size


def write(memory: memoryview, arrays: list[tuple[int, NDArray[Any]]]) -> None:
    """Copy arrays into memory, at their offsets."""
    for offset, array in arrays:
        into = np.frombuffer(memory, np.uint8, array.nbytes, offset) if array.nbytes else None
        if into is not None:
            into[:] = array.reshape(-1).view(np.uint8)


def decode(head: bytes, memory: memoryview | bytes, *, copy: bool) -> Any:
    """Return the element; its arrays are copies, or read-only views of ``memory``."""

    def value(form: Any) -> Any:
        if not isinstance(form, dict):
            return form
        ((kind, parts),) = form.items()
        if kind == "t":
            return tuple(value(part) for part in parts)
        if kind == "d":
            return {key: value(part) for key, part in parts}
        if kind == "l":
            return [value(part) for part in parts]
        if kind == "lt":
            return list(zip(*map(value, parts), strict=True))
        if kind == "ld":
            keys, columns = parts
            return [dict(zip(keys, row, strict=True)) for row in zip(*map(value, columns), strict=True)]
        if kind == "la":
            rows = value(parts)
            return [row.copy() for row in rows] if copy and rows.ndim > 1 else list(rows)
        if kind == "o":
            found = np.empty(len(parts[1]), object)
            found[:] = [value(part) for part in parts[1]]
            return found.reshape(parts[0])
        dtype, shape, offset, single = parts
        count = int(np.prod(shape, dtype=int))
        array = np.frombuffer(memory, dtype, count, offset) if count else np.empty(0, dtype)
        array = array.reshape(shape)
        if single:
            return array[()]
        return array.copy() if copy else array

    return value(msgpack.unpackb(head, strict_map_key=False))


def packed(element: Any) -> Iterator[bytes]:
    """Yield the parts of an element as one record: the head's length, the head, the arrays."""
    head, arrays, size = encode(element)
    memory = bytearray(size)
    write(memoryview(memory), arrays)
    yield len(head).to_bytes(8, "little")
    yield head
    yield bytes(memory)


def unpacked(record: bytes) -> Any:
    """Return the element of a record that :func:`packed` made."""
    start = 8 + int.from_bytes(record[:8], "little")
    return decode(record[8:start], memoryview(record)[start:], copy=True)
