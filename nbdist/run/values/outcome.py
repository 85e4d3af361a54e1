"""The outcome of a body as bytes, for our own sockets and files. Pure; no pickle.

    MAGIC, length of the head u8, bytes of the arrays u8, crc32 u4 of all that follows    (little-endian)
    head     msgpack: the outcome, with a place, a dtype and a shape for each array
    arrays   their own bytes, one after the other

Tuples, complex numbers and whole numbers of any size keep their types. Sizes are checked before memory is
allocated.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from nbdist.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from nbdist.frameworks.registry import StateDict, array_of, framework_of
from nbdist.metrics.run_folder import write_whole_file
from nbdist.nn import Model, Sequential
from nbdist.train.callbacks import History

MAGIC = b"nbdist outcome 1\n"
SIZES = struct.Struct("<QQI")  # of the head, of the arrays, checksum
LEAST = len(MAGIC) + SIZES.size
MOST_HEAD = 256 << 20
MOST_BYTES = 16 << 30
ARRAY, TUPLE, WHOLE, COMPLEX = 1, 2, 3, 4
KINDS = "biufcmMSU"  # of dtypes without objects and fields
Buffer = bytes | memoryview


def encode(outcome: dict[str, Any]) -> list[Buffer]:
    """Return an outcome's bytes in pieces; the arrays' own are not copied.

    Results that cannot be written (a date, an array of records) are left out and named under "left".

    >>> decode(b"".join(encode({"rank": 1, "results": {"x": np.arange(2)}, "pair": (1, 2)})))
    {'rank': 1, 'results': {'x': array([0, 1])}, 'pair': (1, 2)}
    """
    try:
        return _encoded(outcome)
    except InvalidArgumentError:
        return _encoded(_what_can_be_written(outcome))


def decode(data: Buffer) -> dict[str, Any]:
    """Return the outcome in ``data``; raises `DataLossError` for anything that `encode` did not write."""
    size = whole_size(data)
    if len(data) != size:
        raise DataLossError(f"an outcome of {size:,} bytes came with {len(data):,}")
    view = memoryview(data)
    head, _, checksum = SIZES.unpack_from(view, len(MAGIC))
    if zlib.crc32(view[LEAST:]) != checksum:
        raise DataLossError("an outcome is damaged: its checksum is wrong")
    room = view[LEAST + head :]
    try:
        outcome = _unpack(bytes(view[LEAST : LEAST + head]), lambda place: _array_in(room, place))
    except DataLossError:
        raise
    except Exception as error:  # msgpack, NumPy and nested extensions raise many kinds
        raise DataLossError(f"an outcome cannot be read: {type(error).__name__}") from None
    if not isinstance(outcome, dict):
        raise DataLossError(f"an outcome is a {type(outcome).__name__}, not a table")
    return outcome


def whole_size(start: Buffer) -> int:
    """Return how many bytes the outcome has that begins with ``start`` (at least `LEAST` bytes)."""
    if len(start) < LEAST or bytes(start[: len(MAGIC)]) != MAGIC:
        raise DataLossError("that is not an outcome of nbdist, or one of another version")
    head, arrays, _ = SIZES.unpack_from(start, len(MAGIC))
    if head > MOST_HEAD or LEAST + head + arrays > MOST_BYTES:
        raise DataLossError(f"an outcome claims a head of {head:,} and arrays of {arrays:,} bytes")
    return int(LEAST + head + arrays)


def page(pieces: Sequence[Buffer], start: int, most: int) -> bytes:
    """Return up to ``most`` bytes of what the pieces make together, from ``start`` on.

    >>> page([b"abc", b"de", b"fgh"], 2, 4)
    b'cdef'
    """
    taken, at = [], 0
    for piece in pieces:
        low, high = max(start - at, 0), min(start + most - at, len(piece))
        if low < high:
            taken.append(bytes(piece[low:high]))
        at += len(piece)
    return b"".join(taken)


def light(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return an outcome without results other than histories: the part that is kept after it was fetched."""
    results = {
        name: packed for name, packed in outcome.get("results", {}).items() if packed["kind"] == "history"
    }
    for name, value in outcome.get("values", {}).items():  # of a body in the notebook's own process
        if isinstance(value, History):
            results[name] = pack(value)
    rest = {key: value for key, value in outcome.items() if key not in ("values", "left", "model")}
    return {**rest, "results": results}


def _what_can_be_written(outcome: dict[str, Any]) -> dict[str, Any]:
    kept, left = {}, list(outcome.get("left", ()))
    for name, packed in outcome.get("results", {}).items():
        try:
            _encoded({"results": packed})
        except InvalidArgumentError as error:
            left.append(f"{name} stayed on {outcome.get('task', 'its task')}: {error}")
        else:
            kept[name] = packed
    return {**outcome, "results": kept, "left": left}


def _encoded(outcome: dict[str, Any]) -> list[Buffer]:
    writer = _Writer()
    head = writer.pack(outcome)
    checksum = 0
    for piece in (head, *writer.pieces):
        checksum = zlib.crc32(piece, checksum)
    return [MAGIC + SIZES.pack(len(head), writer.size, checksum) + head, *writer.pieces]


@dataclass
class _Writer:
    """Packs a head, and collects the arrays that it meets."""

    pieces: list[Buffer] = field(default_factory=list)
    size: int = 0

    def pack(self, value: Any) -> bytes:
        try:
            packed: bytes = msgpack.packb(
                value, default=self._other, strict_types=True, unicode_errors="surrogatepass"
            )
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgumentError(f"it cannot be written: {error}") from None
        return packed

    def _other(self, value: Any) -> Any:
        match value:
            case np.ndarray():
                return msgpack.ExtType(ARRAY, self.pack(self._place(value)))
            case np.generic() if not isinstance(value.item(), np.generic):
                return value.item()
            case tuple():
                return msgpack.ExtType(TUPLE, self.pack(list(value)))
            case int():
                return msgpack.ExtType(
                    WHOLE, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
                )
            case complex():
                return msgpack.ExtType(COMPLEX, struct.pack("<dd", value.real, value.imag))
            case float():
                return float(value)
            case str():
                return "".join(value)
            case dict():
                return dict(value)
            case list():
                return list(value)
        raise TypeError(f"a {type(value).__name__} is not a plain value")

    def _place(self, array: np.ndarray[Any, Any]) -> list[Any]:
        if array.dtype.kind not in KINDS:
            raise TypeError(f"an array of dtype {array.dtype}")
        flat = np.ascontiguousarray(array).reshape(-1)
        data = flat.view(np.uint8).data if flat.nbytes else memoryview(b"")
        at, self.size = self.size, self.size + flat.nbytes
        self.pieces.append(data)
        return [array.dtype.str, list(array.shape), at]


def _unpack(data: bytes, array: Callable[[Any], Any]) -> Any:
    def other(code: int, payload: bytes) -> Any:
        if code == ARRAY:
            return array(_unpack(payload, array))
        if code == TUPLE:
            return tuple(_unpack(payload, array))
        if code == WHOLE:
            return int.from_bytes(payload, "little", signed=True)
        if code == COMPLEX:
            return complex(*struct.unpack("<dd", payload))
        raise DataLossError(f"an outcome holds an extension type {code}")

    return msgpack.unpackb(data, ext_hook=other, strict_map_key=False, unicode_errors="surrogatepass")


def _array_in(room: memoryview, place: Any) -> np.ndarray[Any, Any]:
    text, shape, at = place
    dtype = np.dtype(str(text))
    count = prod(shape)
    size = count * dtype.itemsize
    whole = all(isinstance(n, int) and n >= 0 for n in (*shape, at))
    if dtype.kind not in KINDS or len(shape) > 32 or not whole or at + size > len(room):
        raise DataLossError(f"an array of dtype {text} and shape {shape} is not in its outcome")
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer(room, dtype, count, at).reshape(shape).copy()


# Outcomes in a run's folder, one file per task, for clients that attach after the tasks have ended.


def write_outcome(
    folder: Path, rank: int, outcome: dict[str, Any] | Sequence[Buffer], wait: bool = True
) -> Path:
    """Write a task's outcome (0600), or the pieces of one, whole or not at all; raises `OSError`.

    Without ``wait`` the disk may take its time.
    """
    path = outcome_path(folder, rank)
    pieces = encode(outcome) if isinstance(outcome, dict) else outcome
    write_whole_file(path, b"".join(pieces), wait)
    return path


def keep_light(folder: Path, outcomes: Mapping[int, dict[str, Any]]) -> None:
    """Write the part of fetched outcomes that is kept: histories, and the replicas' progress."""
    for rank, outcome in outcomes.items():
        if outcome and not outcome_path(folder, rank).exists():  # else a task wrote all of it
            write_outcome(folder, rank, light(outcome), wait=False)


def read_outcome(folder: Path, rank: int) -> dict[str, Any] | None:
    """Return a task's outcome, None if it has none there; raises `DataLossError` if it is damaged."""
    path = outcome_path(folder, rank)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataLossError(f"{path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        try:
            start = file.read(LEAST)
            if whole_size(start) != os.fstat(file.fileno()).st_size:  # before memory is taken for it
                raise DataLossError("it was cut")
            return decode(start + file.read())
        except DataLossError as error:
            raise DataLossError(f"{path} is damaged: {error}") from None


def outcome_path(folder: Path, rank: int) -> Path:
    """Return where a task's outcome stands in a run's folder."""
    return folder / f"outcome-{rank:04d}.bin"


# Serializer of results: models, histories, arrays and plain values, as plain data.
#
# Nothing is pickled: the plain data holds only None, bool, int, float, str, lists, dicts and arrays.

LIMIT_BYTES = 256 << 20
MAX_DEPTH = 8
MAX_ITEMS = 100_000
MOST_SEEN = 1000  # items of a list, to tell whether it is data
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, np.ndarray, np.generic)
DATA_MODULES = ("pandas.", "polars.", "pyarrow.", "scipy.sparse.", "collections.", "datetime.", "decimal.")


def pack(value: Any) -> dict[str, Any]:
    """Return ``value`` as plain data; InvalidArgumentError says why it cannot be fetched."""
    if isinstance(value, Model):
        if not value.weights:
            raise InvalidArgumentError("a model without weights stays where it is")
        packed = {"kind": "model", "config": value.to_config(), "weights": value.get_weights()}
    elif (framework := framework_of(value)) is not None:
        packed = {"kind": "state_dict", "arrays": framework.state_of(value)}
    elif isinstance(value, History):
        packed = {"kind": "history", "config": value.to_config()}
    else:
        packed = {"kind": "plain", "value": _plain(value, 0)}
    size = _size(packed)
    if size > LIMIT_BYTES:
        raise ResourceExhaustedError(f"{size:,} bytes are more than the {LIMIT_BYTES:,} that may be fetched")
    return packed


def is_data(value: Any, depth: int = 0) -> bool:
    """Return whether a value is data: what a user expects in the notebook, whether it can be fetched or not.

    >>> is_data({1, 2}), is_data([{(1, 2): 3}]), is_data(len), is_data([len])
    (True, True, False, False)
    """
    kind = type(value)  # by which no foreign object is asked for anything
    if issubclass(kind, (list, tuple, set, frozenset, dict)):
        items = islice(value.values() if issubclass(kind, dict) else value, MOST_SEEN)
        return depth <= MAX_DEPTH and all(is_data(one, depth + 1) for one in items)
    return issubclass(kind, PLAIN) or f"{kind.__module__}.".startswith(DATA_MODULES)


def unpack(packed: dict[str, Any]) -> Any:
    """Return the value that :func:`pack` took."""
    if packed["kind"] == "model":
        model = Sequential.from_config(packed["config"])
        model.set_weights(packed["weights"])
        return model
    if packed["kind"] == "state_dict":
        return StateDict(packed["arrays"])
    if packed["kind"] == "history":
        return History.from_config(packed["config"])
    return _real(packed["value"])


def _plain(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidArgumentError("it is nested too deeply")
    if (array := array_of(value)) is not None:
        if array.dtype.kind not in KINDS:  # bfloat16, for example
            raise InvalidArgumentError(f"an array of {array.dtype} stays where it is: convert it to float32")
        value = array
    if isinstance(value, np.generic):  # before the next: a float64 is a float too
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise InvalidArgumentError("an array of objects stays where it is")
        return value.copy()  # the task keeps it until the next run, and the variable's own may change before
    if isinstance(value, (list, tuple)) and len(value) <= MAX_ITEMS:
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"kind": kind, "items": [_plain(v, depth + 1) for v in value]}
    if isinstance(value, dict) and len(value) <= MAX_ITEMS and all(isinstance(k, (str, int)) for k in value):
        return {"kind": "dict", "items": {k: _plain(v, depth + 1) for k, v in value.items()}}
    if depth:
        raise InvalidArgumentError(
            f"a {type(value).__name__} inside of it cannot be fetched; return a dict of the parts, which are "
            "fetched one by one"
        )
    raise InvalidArgumentError(
        f"a {type(value).__name__} cannot be fetched; return numbers, arrays or a model"
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
