"""Serializes op attributes: numbers, text, dtypes, slices, tuples, lists, dicts, arrays.

    plain = to_plain((slice(None), 3, ...), arrays)      # ["tuple", ["slice", None, None, None], 3, ["..."]]
    from_plain(plain, Beside(arrays))                    # (slice(None), 3, Ellipsis)

Types that msgpack distinguishes are stored as they are; everything else is a list that begins with a tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar
from zlib import crc32

import msgpack
import numpy as np

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.graph.backend import Array

Text = TypeVar("Text", str, bytes)
MAX_DEPTH = 32  # of nested tuples, lists and dicts
MAX_TEXT = 1 << 16  # characters of a text, bytes of a bytes
MAX_NDIM = 32
MAX_INTEGER = 64  # bytes of an int that 64 bits do not hold
INLINE = 256  # bytes of an array inside the table; larger ones are stored beside it
DTYPES = {
    dtype.str: dtype
    for dtype in map(
        np.dtype,
        "? i1 <i2 <i4 <i8 u1 <u2 <u4 <u8 <f2 <f4 <f8 <c8 <c16".split(),  # noqa: SIM905  # one line
    )
}
"""The dtypes that can be serialized, by their text."""


def to_plain(value: Any, beside: list[Array], depth: int = MAX_DEPTH) -> Any:
    """Return a value as what msgpack packs; arrays over ``INLINE`` bytes are added to ``beside``.

    Raises InvalidArgumentError for objects of other classes, functions, and deep nesting.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 63 else ["int", _integer_bytes(value)]
    if kind is str or kind is bytes:
        return checked_text(value)
    if depth == 0:
        raise InvalidArgumentError(f"values are nested more than {MAX_DEPTH} deep")
    if kind is tuple or kind is list:
        return [kind.__name__, *(to_plain(v, beside, depth - 1) for v in value)]
    if kind is dict:
        pairs = [(to_plain(k, beside, depth - 1), to_plain(v, beside, depth - 1)) for k, v in value.items()]
        # Equal dicts have equal bytes, whatever their insertion order.
        return ["dict", *(x for pair in sorted(pairs, key=lambda pair: pack(pair[0])) for x in pair)]
    if kind is slice:
        return ["slice", *(to_plain(v, beside, depth - 1) for v in (value.start, value.stop, value.step))]
    if value is ...:
        return ["..."]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if isinstance(value, np.dtype) or (kind is type and issubclass(value, (np.generic, int, float, complex))):
        return ["dtype", dtype_text(np.dtype(value))]
    if isinstance(value, np.generic):
        return ["scalar", text := dtype_text(value.dtype), np.asarray(value, DTYPES[text]).tobytes()]
    if kind is np.ndarray:
        return _array_to_plain(value, beside)
    raise InvalidArgumentError(
        f"{value!r} of {kind} cannot be serialized; use numbers, text, dtypes, tuples or arrays"
    )


def checked_text(text: Text) -> Text:
    """Return a text, or bytes; raises InvalidArgumentError if it is too long."""
    if len(text) > MAX_TEXT:
        raise InvalidArgumentError(f"a text of {len(text)} characters; the limit is {MAX_TEXT}")
    return text


def _integer_bytes(value: int) -> bytes:
    size = value.bit_length() // 8 + 1
    if size > MAX_INTEGER:
        raise InvalidArgumentError(f"an int of {size} bytes; the limit is {MAX_INTEGER}")
    return value.to_bytes(size, "little", signed=True)


def _array_to_plain(value: Array, beside: list[Array]) -> list[Any]:
    text = dtype_text(value.dtype)
    if value.ndim > MAX_NDIM:
        raise InvalidArgumentError(f"an array of {value.ndim} dimensions; the limit is {MAX_NDIM}")
    array = np.asarray(value, DTYPES[text], order="C")
    if array.nbytes <= INLINE:
        return ["array", text, array.tobytes(), *array.shape]
    beside.append(array)
    return ["beside", len(beside) - 1, checksum(array)]


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return a dtype's text, in one byte order; InvalidArgumentError if it cannot be serialized."""
    text = dtype.newbyteorder("<").str
    if text not in DTYPES:
        names = ", ".join(d.name for d in DTYPES.values())
        raise InvalidArgumentError(f"values of {dtype} cannot be serialized; convert them to one of {names}")
    return text


def checksum(array: Array) -> int:
    """Return the CRC-32 of a C-ordered array's bytes."""
    return crc32(array.reshape(-1).view(np.uint8).data)


def pack(plain: Any) -> bytes:
    """Return a plain value's bytes, the same for the same value on every machine."""
    packed: bytes = msgpack.packb(plain, use_bin_type=True)
    return packed


class Beside:
    """The arrays beside a table; each is used once, in order."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._used = 0

    def take(self, position: Any, expected: Any) -> Array:
        """Return the next array, read-only; DataLossError if it is another one or damaged."""
        if type(position) is not int or position != self._used or position >= len(self._arrays):
            total = len(self._arrays)
            raise DataLossError(f"array {position!r} is not the next one: {self._used} of {total} are used")
        array = self._arrays[position]
        if not isinstance(array, np.ndarray) or DTYPES.get(array.dtype.str) is None or array.ndim > MAX_NDIM:
            raise DataLossError(f"array {position} is not an array of numbers")
        array = np.ascontiguousarray(array).reshape(array.shape).view()
        array.flags.writeable = False
        if checksum(array) != expected:
            raise DataLossError(
                f"array {position} of shape {array.shape} does not have the checksum sent with it"
            )
        self._used += 1
        return array

    def finish(self) -> None:
        """Raise DataLossError unless every array was used."""
        if self._used != len(self._arrays):
            raise DataLossError(f"{len(self._arrays)} arrays were sent and {self._used} are used")


def from_plain(plain: Any, beside: Beside, depth: int = MAX_DEPTH) -> Any:
    """Return the value of a ``to_plain`` result; DataLossError for anything else."""
    kind = type(plain)
    if plain is None or kind is bool or kind is int or kind is float:
        return plain
    if kind is str or kind is bytes:
        if len(plain) > MAX_TEXT:
            raise DataLossError(f"a text of {len(plain)} characters; the limit is {MAX_TEXT}")
        return plain
    if kind is not list or not plain or type(plain[0]) is not str:
        raise DataLossError(f"a value that is a {kind.__name__} without a tag")
    tag, *rest = plain
    if tag not in _READERS:
        raise DataLossError(
            f"a value has the unknown tag {tag[:40]!r}; expected one of {', '.join(_READERS)}"
        )
    if depth == 0:
        raise DataLossError(f"values are nested more than {MAX_DEPTH} deep")
    try:
        return _READERS[tag](rest, beside, depth - 1)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidArgumentError):  # nbdist's own error: a bug, not damage
            raise
        raise DataLossError(f"a {tag!r} has an invalid content: {error}") from None


def _all(rest: list[Any], beside: Beside, depth: int) -> list[Any]:
    return [from_plain(v, beside, depth) for v in rest]


def _dict(rest: list[Any], beside: Beside, depth: int) -> dict[Any, Any]:
    values = _all(rest, beside, depth)
    found = dict(zip(values[::2], values[1::2], strict=True))
    if len(found) != len(values) // 2:
        raise ValueError("a key occurs twice")
    return found


def _slice(rest: list[Any], beside: Beside, depth: int) -> slice:
    start, stop, step = ends = _all(rest, beside, depth)
    if any(not isinstance(v, (int, np.integer, type(None))) for v in ends):
        raise TypeError("an end is not a whole number")
    return slice(start, stop, step)


def _ellipsis(rest: list[Any], beside: Beside, depth: int) -> Any:
    () = rest
    return ...


def _complex(rest: list[Any], beside: Beside, depth: int) -> complex:
    real, imaginary = rest
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError("a part is not a float")
    return complex(real, imaginary)


def _integer(rest: list[Any], beside: Beside, depth: int) -> int:
    (raw,) = rest
    if type(raw) is not bytes or len(raw) > MAX_INTEGER:
        raise TypeError("a number is not bytes, or too long")
    return int.from_bytes(raw, "little", signed=True)


def _dtype(rest: list[Any], beside: Beside, depth: int) -> np.dtype[Any]:
    (text,) = rest
    return read_dtype(text)


def read_dtype(text: Any) -> np.dtype[Any]:
    """Return the dtype of a text; DataLossError if it is not in `DTYPES`."""
    if type(text) is not str or text not in DTYPES:
        raise DataLossError(f"an unknown dtype {str(text)[:40]!r}")
    return DTYPES[text]


def _scalar(rest: list[Any], beside: Beside, depth: int) -> Any:
    text, raw = rest
    return _from_bytes(text, raw, ())[()]


def _array(rest: list[Any], beside: Beside, depth: int) -> Array:
    text, raw, *shape = rest
    if len(shape) > MAX_NDIM or any(type(n) is not int or n < 0 for n in shape):
        raise TypeError("an invalid shape")
    return _from_bytes(text, raw, tuple(shape))


def _from_bytes(text: Any, raw: Any, shape: tuple[int, ...]) -> Array:
    dtype = read_dtype(text)
    if type(raw) is not bytes or len(raw) != prod(shape) * dtype.itemsize:
        raise ValueError(f"bytes that do not fill an array of shape {shape}")
    return np.frombuffer(raw, dtype).reshape(shape) if raw else np.empty(shape, dtype)


def _beside(rest: list[Any], beside: Beside, depth: int) -> Array:
    position, expected = rest
    return beside.take(position, expected)


_READERS: dict[str, Callable[[list[Any], Beside, int], Any]] = {
    "tuple": lambda rest, beside, depth: tuple(_all(rest, beside, depth)),
    "list": _all,
    "dict": _dict,
    "slice": _slice,
    "...": _ellipsis,
    "complex": _complex,
    "int": _integer,
    "dtype": _dtype,
    "scalar": _scalar,
    "array": _array,
    "beside": _beside,
}
