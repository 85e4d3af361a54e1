"""The format of a message: a small typed header and the raw buffers of arrays; never a pickle."""

# Design.
#
# A frame is a list of parts, little-endian throughout:
#
#     part 0       "NBD1"     4 bytes
#                  u16        length of kind, at most MAX_KIND (128 bytes)
#                  u16        number of arrays n, at most MAX_ARRAYS (4,096)
#                  u32        length of meta, at most MAX_META (1 MiB)
#                  kind       UTF-8 text
#                  meta       a msgpack map of plain values; empty for {}
#                  n times    u8 dtype code (index into DTYPES), u8 ndim (at most MAX_NDIM, 32), ndim * u64
#     part 1..n    the bytes of the arrays, C-ordered, sent without a copy
#
# All parts together have at most MAX_BYTES (1 GiB), or the limit that the Listener or Peer sets.
# `envelope.py` adds the role and the sequence number before part 0 and cuts parts into pieces for the socket.
#
# Sizes are checked before anything is allocated or indexed. The sender holds the cluster's key, but a damaged
# message, another version or a bug must neither exhaust memory nor read outside a buffer:
#
# - The lengths of kind and meta are compared with their limits and with the length of part 0, and the number
#   of arrays with the number of parts.
# - An array's byte count (product of its dimensions times the item size) has to equal the length of its part.
#   No array is allocated from claimed dimensions: it is a view of bytes that have arrived. The product is
#   computed with Python integers, which do not overflow; NumPy's do, and a shape such as (2**40, 2**40) would
#   pass as small. Dimensions beside a zero are limited to 2**48 items, because NumPy multiplies them too.
# - msgpack extension types are refused, so that decoding constructs built-in types only. `unpackb` refuses a
#   list or a map that claims more items than the bytes of meta can hold.
# - Bytes after the last array header are refused: nothing in part 0 is left unread.
#
# Every violation raises DataLossError, a size over the limit ResourceExhaustedError.

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgpack
import numpy as np

from nbdist.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError

Array = np.ndarray[Any, np.dtype[Any]]
Buffer = bytes | bytearray | memoryview
MAGIC = b"NBD1"
PRELUDE = struct.Struct("<4sHHI")  # magic, length of kind, number of arrays, length of meta
ARRAY = struct.Struct("<BB")  # dtype code, ndim; then ndim dimensions
DIMENSION = struct.Struct("<Q")
MAX_NDIM = 32
MAX_KIND = 128
MAX_ARRAYS = 4096
MAX_META = 1 << 20
MAX_BYTES = 1 << 30
# A dtype's index is its code on the wire: append, never reorder.
DTYPES = tuple(
    np.dtype(name)
    for name in (
        "?", "i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16",
    )
)  # fmt: skip
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}


@dataclass(frozen=True)
class Frame:
    """A message: its kind, a dict of small plain values (`meta`), and arrays.

    `meta` holds None, bool, int, float, str, bytes, and lists and dicts of them; tuples arrive as lists.

    >>> decode(encode(Frame("add", {"name": "w"}, (np.ones(2, np.float32),)))).arrays[0]
    array([1., 1.], dtype=float32)
    """

    kind: str
    meta: dict[str, Any] = field(default_factory=dict)
    arrays: tuple[Array, ...] = ()


def encode(frame: Frame) -> list[Buffer]:
    """Return the parts of a message; the buffers of C-contiguous little-endian arrays are not copied.

    Raises InvalidArgumentError for values that a frame cannot carry: an array of objects, a meta value of
    another type, more than the limits.
    """
    kind = frame.kind.encode()
    if len(kind) > MAX_KIND or len(frame.arrays) > MAX_ARRAYS:
        raise InvalidArgumentError(f"a frame has at most {MAX_KIND} bytes of kind and {MAX_ARRAYS} arrays")
    meta = pack_meta(frame.meta, frame.kind)
    head = [PRELUDE.pack(MAGIC, len(kind), len(frame.arrays), len(meta)), kind, meta]
    buffers: list[Buffer] = []
    for given in frame.arrays:
        array = _as_wire(given, frame.kind)
        head.append(ARRAY.pack(CODES[array.dtype], array.ndim))
        head.extend(map(DIMENSION.pack, array.shape))
        buffers.append(array.reshape(-1).view(np.uint8).data)
    return [b"".join(head), *buffers]


def decode(parts: Sequence[Buffer], limit_bytes: int = MAX_BYTES) -> Frame:
    """Return the frame in `parts`; its arrays are read-only views over the received buffers.

    Raises DataLossError for anything that `encode` did not write, and ResourceExhaustedError over the limit.
    """
    if not parts:
        raise DataLossError("an empty message is not a frame")
    total = sum(memoryview(part).nbytes for part in parts)
    if total > limit_bytes:
        raise ResourceExhaustedError(f"a message of {total} bytes is over the limit of {limit_bytes}")
    head = parts[0] if isinstance(parts[0], bytes) else bytes(parts[0])
    if len(head) < PRELUDE.size:
        raise DataLossError(f"a frame's header of {len(head)} bytes is cut off")
    magic, kind_length, count, meta_length = PRELUDE.unpack_from(head)
    at = PRELUDE.size
    if magic != MAGIC:
        raise DataLossError("not a frame of nbdist: both sides must run the same version")
    if kind_length > MAX_KIND or meta_length > MAX_META or len(head) < at + kind_length + meta_length:
        raise DataLossError("a frame's header claims more than it holds")
    if count != len(parts) - 1:
        raise DataLossError(f"a frame claims {count} arrays and came with {len(parts) - 1}")
    try:
        kind = head[at : at + kind_length].decode()
    except UnicodeDecodeError:
        raise DataLossError("a frame's kind is not text") from None
    at += kind_length
    meta = unpack_meta(head[at : at + meta_length])
    at += meta_length
    arrays = []
    for part in parts[1:]:
        array, at = _decode_array(head, at, part)
        arrays.append(array)
    if at != len(head):
        raise DataLossError(f"{len(head) - at} bytes follow a frame's header")
    return Frame(kind, meta, tuple(arrays))


def _decode_array(head: bytes, at: int, part: Buffer) -> tuple[Array, int]:
    if len(head) < at + ARRAY.size:
        raise DataLossError("an array's header is cut off")
    code, ndim = ARRAY.unpack_from(head, at)
    at += ARRAY.size
    if code >= len(DTYPES) or ndim > MAX_NDIM:
        raise DataLossError(f"an array with dtype code {code} and {ndim} dimensions")
    if len(head) < at + ndim * DIMENSION.size:
        raise DataLossError("an array's dimensions are cut off")
    shape = struct.unpack_from(f"<{ndim}Q", head, at)
    dtype = DTYPES[code]
    have = memoryview(part).nbytes
    # Python integers do not overflow; NumPy's do, and it multiplies the dimensions beside a zero as well.
    if prod(shape) * dtype.itemsize != have or prod(filter(None, shape)) >= 1 << 48:
        raise DataLossError(f"an array of shape {shape} and dtype {dtype} came with {have} bytes")
    array = np.frombuffer(part, dtype) if have else np.empty(0, dtype)
    if not array.flags.aligned:
        array = array.copy()
    array = array.reshape(shape)
    array.flags.writeable = False
    return array, at + ndim * DIMENSION.size


def _as_wire(given: Array, kind: str) -> Array:
    array = given if isinstance(given, np.ndarray) else np.asarray(given)
    if array.dtype not in CODES:
        array = array.astype(wire_dtype(array.dtype, kind))
    if array.ndim > MAX_NDIM:
        raise InvalidArgumentError(f"an array of {array.ndim} dimensions in {kind!r}; at most {MAX_NDIM}")
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def wire_dtype(dtype: np.dtype[Any], kind: object) -> np.dtype[Any]:
    """Return the little-endian form of a dtype; InvalidArgumentError if a frame cannot carry it."""
    swapped = dtype.newbyteorder("<")
    if swapped not in CODES:
        raise InvalidArgumentError(
            f"an array of dtype {dtype} in {kind!r} cannot be sent; "
            f"convert it to one of {', '.join(d.name for d in DTYPES)}"
        )
    return swapped


def pack_meta(values: dict[str, Any] | None, kind: object, limit: int = MAX_META) -> bytes:
    """Return a message's plain values as msgpack.

    Raises InvalidArgumentError for a value that is not plain and for more than `limit` bytes.
    """
    if not values:
        return b""
    try:
        meta: bytes = msgpack.packb(values, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"the meta of {kind!r} holds a value that is not plain data: {error}"
        ) from None
    if len(meta) > limit:
        raise InvalidArgumentError(f"the meta of {kind!r} has {len(meta)} bytes; send it as an array")
    return meta


def unpack_meta(raw: bytes) -> dict[str, Any]:
    """Return the values that `pack_meta` packed; DataLossError for anything else."""
    if not raw:
        return {}
    try:
        meta = msgpack.unpackb(raw, raw=False, strict_map_key=False, ext_hook=_refuse_extension)
    except Exception as error:  # msgpack raises many types, among them its own StackError and ValueError
        raise DataLossError(f"a frame's meta cannot be read: {type(error).__name__}") from None
    if not isinstance(meta, dict):
        raise DataLossError(f"a frame's meta is a {type(meta).__name__}, not a dict")
    return meta


def _refuse_extension(code: int, data: bytes) -> Any:
    raise DataLossError(f"a frame's meta holds an extension type {code}")
