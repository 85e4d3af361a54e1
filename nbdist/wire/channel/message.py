"""The format of a message (a step's command, value or result) in a pipe and in a shared slot.

    in a pipe    HEAD | table | the arrays' bytes | meta | END      inline, at most 4,096 bytes, or
                 HEAD | sequence | name of a segment | END          a pointer to contents in that segment:
    in a slot    SLOT | table | meta | the arrays' bytes

The table has one entry per array: dtype code, dimensions, and the offset of its bytes. The decoder compares
every claimed length and offset with the bytes received before it uses them. No input or output happens here.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import DataLossError, InvalidArgumentError
from nbdist.wire.rpc.frame import (
    CODES,
    DTYPES,
    MAX_ARRAYS,
    MAX_META,
    MAX_NDIM,
    Array,
    Frame,
    pack_meta,
    unpack_meta,
    wire_dtype,
)

MAGIC = b"NBL1"
FRAME = "message"
HEAD = struct.Struct("<4sHBBHHIQQ")  # magic, length, form, kind, arrays, length of tail, edge, plan, step
WHOLE, IN_SLOT, WAKE = 1, 2, 3  # forms
SEQUENCE = struct.Struct("<Q")
SLOT = struct.Struct("<QQQQ")  # sequence, and in bytes: start of the table, length of the table, of meta
ENTRIES = [struct.Struct(f"<BB6xQ{ndim}Q") for ndim in range(MAX_NDIM + 1)]  # code, ndim, start, dimensions
ENTRY = ENTRIES[0]
ROOM = select.PIPE_BUF
"""Bytes of the longest message: the kernel writes up to PIPE_BUF bytes to a pipe atomically."""


ALIGNMENT = 8  # of every message and of the arrays in it
END = b"/message"  # a message without it at the length in the head is truncated
PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]
CALL_TO_WAKE = HEAD.pack(MAGIC, HEAD.size + len(END), WAKE, 0, 0, 0, 0, 0, 0) + END
Layout = list[tuple[np.dtype[Any], tuple[int, ...], int]]  # dtype, shape, start


@dataclass(slots=True)
class Message:
    """A message from one task or client to another, for one step.

    `kind` (0 to 255) is its type, `plan` and `step` identify the step, `edge` (up to 2**32 - 1) the value
    within the step. `meta` holds plain values, as in a Frame.
    """

    kind: int
    plan: int
    step: int
    edge: int = 0
    arrays: tuple[Array, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Pointer:
    """A message with its contents in a shared segment, as that segment's `sequence`-th message."""

    kind: int
    plan: int
    step: int
    edge: int
    count: int
    name: str
    sequence: int


def encode(
    kind: int, plan: int, step: int, edge: int, arrays: Sequence[Array], meta: bytes = b""
) -> bytes | None:
    """Return an inline message, or None if it does not fit in `ROOM` bytes.

    >>> decode(encode(1, 7, 3, 0, [np.float32(0.5)], pack_values({"loss": True}, 1)))
    Message(kind=1, plan=7, step=3, edge=0, arrays=(array(0.5, dtype=float32),), meta={'loss': True})
    """
    start = HEAD.size
    for array in arrays:
        start += ENTRY.size + 8 * array.ndim
    table, contents = [], []
    end = start
    for array in arrays:
        code = CODES.get(array.dtype)
        if code is None:
            array = array.astype(wire_dtype(array.dtype, kind))
            code = CODES[array.dtype]
        nbytes = array.nbytes
        if end + nbytes > ROOM or array.ndim > MAX_NDIM:
            return None
        table.append(ENTRIES[array.ndim].pack(code, array.ndim, end, *array.shape))
        contents.append(array.tobytes())
        if nbytes % ALIGNMENT:
            contents.append(PADDING[nbytes % ALIGNMENT])
        end += nbytes + -nbytes % ALIGNMENT
    length = end + len(meta) + -len(meta) % ALIGNMENT + len(END)
    if length > ROOM:
        return None
    head = _head(length, WHOLE, kind, len(arrays), len(meta), edge, plan, step)
    return b"".join((head, *table, *contents, meta, PADDING[len(meta) % ALIGNMENT], END))


def encode_pointer(pointer: Pointer) -> bytes:
    """Return the message that points to contents in shared memory."""
    name = pointer.name.encode()
    length = HEAD.size + SEQUENCE.size + len(name) + -len(name) % ALIGNMENT + len(END)
    head = _head(
        length, IN_SLOT, pointer.kind, pointer.count, len(name), pointer.edge, pointer.plan, pointer.step
    )
    return b"".join((head, SEQUENCE.pack(pointer.sequence), name, PADDING[len(name) % ALIGNMENT], END))


def decode(message: bytes) -> Message | Pointer | None:
    """Return the decoded message, or None for a wake-up; its arrays are read-only views of the bytes.

    Raises DataLossError for anything that `encode` and `encode_pointer` did not write.
    """
    if len(message) < HEAD.size:
        raise DataLossError(f"{len(message)} bytes that are not a message")
    magic, length, form, kind, count, tail, edge, plan, step = HEAD.unpack_from(message)
    if magic != MAGIC or length != len(message) or not message.endswith(END):
        raise DataLossError(f"{len(message)} bytes that are not a message")
    if form == IN_SLOT:
        name_at = HEAD.size + SEQUENCE.size
        if length != name_at + tail + -tail % ALIGNMENT + len(END):
            raise DataLossError(f"a message of {length} bytes claims a segment name of {tail} bytes")
        try:
            name = message[name_at : name_at + tail].decode()
        except UnicodeDecodeError:
            raise DataLossError("a message's segment has a name that is not text") from None
        (sequence,) = SEQUENCE.unpack_from(message, HEAD.size)
        return Pointer(kind, plan, step, edge, count, name, sequence)
    if form == WAKE:
        return None
    if form != WHOLE:
        raise DataLossError(f"a message has the unknown form {form}")
    meta_at = length - len(END) - tail - -tail % ALIGNMENT
    layout, table_end = read_table(message, HEAD.size, meta_at, count)
    arrays = views(message, layout)
    if table_end + sum(array.nbytes + -array.nbytes % ALIGNMENT for array in arrays) != meta_at:
        raise DataLossError(f"the parts of a message of {length} bytes do not add up to its length")
    return Message(kind, plan, step, edge, arrays, unpack_meta(message[meta_at : meta_at + tail]))


def read_table(buffer: bytes, at: int, end: int, count: int) -> tuple[Layout, int]:
    """Return the entries of a table of `count` entries at `at`, and the offset of its end.

    Raises DataLossError for a table that does not end before `end`.
    """
    if count > MAX_ARRAYS:
        raise DataLossError(f"a message claims {count} arrays; at most {MAX_ARRAYS}")
    layout: Layout = []
    for _ in range(count):
        if at + ENTRY.size > end or buffer[at + 1] > MAX_NDIM:
            raise DataLossError("a message's table is cut off or damaged")
        entry = ENTRIES[buffer[at + 1]]
        if at + entry.size > end or buffer[at] >= len(DTYPES):
            raise DataLossError("a message's table is cut off or damaged")
        code, _, start, *shape = entry.unpack_from(buffer, at)
        layout.append((DTYPES[code], tuple(shape), start))
        at += entry.size
    return layout, at


def views(memory: Any, layout: Layout) -> tuple[Array, ...]:
    """Return arrays over the read-only `memory`, after a check that each lies within it."""
    size = len(memory)
    arrays = []
    for dtype, shape, start in layout:
        nbytes = prod(shape) * dtype.itemsize  # Python integers do not overflow; numpy's do
        # NumPy multiplies the dimensions beside a zero as well, so these are limited too.
        if start % ALIGNMENT or start + nbytes > size or not (nbytes or prod(filter(None, shape)) < 1 << 48):
            raise DataLossError(f"an array of shape {shape} and dtype {dtype} at {start} of {size} bytes")
        arrays.append(np.ndarray(shape, dtype, memory, start))
    return tuple(arrays)


def to_frame(kind: int, plan: int, step: int, edge: int, arrays: Sequence[Array], meta: bytes) -> Frame:
    """Return the frame that carries a message over a socket."""
    _head(0, WHOLE, kind, len(arrays), 0, edge, plan, step)  # sockets and pipes refuse the same numbers
    numbers = [kind, plan, step, edge]
    if len(meta) <= MAX_META // 2:
        return Frame(FRAME, {"message": numbers, "meta": meta}, tuple(arrays))
    return Frame(FRAME, {"message": numbers}, (np.frombuffer(meta, np.uint8), *arrays))


def from_frame(frame: Frame) -> Message:
    """Return the message that a frame carries; DataLossError if it carries none."""
    numbers, meta, arrays = frame.meta.get("message"), frame.meta.get("meta"), frame.arrays
    if frame.kind != FRAME or not isinstance(numbers, list):
        raise DataLossError(f"a frame of kind {frame.kind!r} is not a message")
    if meta is None and arrays and arrays[0].dtype == np.uint8:
        meta, arrays = arrays[0].tobytes(), arrays[1:]
    if (
        len(numbers) != 4
        or any(type(one) is not int or one < 0 for one in numbers)
        or type(meta) is not bytes
    ):
        raise DataLossError(f"a message has the numbers {numbers!r} and meta of {type(meta).__name__}")
    kind, plan, step, edge = numbers
    return Message(kind, plan, step, edge, arrays, unpack_meta(meta))


def pack_values(values: dict[str, Any] | None, kind: int) -> bytes:
    """Return a message's plain values as bytes, of at most 4 GiB: the segment's memory is the limit."""
    return pack_meta(values, f"message {kind}", 1 << 32) if values else b""


def _head(length: int, form: int, kind: int, count: int, tail: int, edge: int, plan: int, step: int) -> bytes:
    try:
        return HEAD.pack(MAGIC, length, form, kind, count, tail, edge, plan, step)
    except struct.error as error:
        raise InvalidArgumentError(
            f"a message of kind {kind}, plan {plan}, step {step}, edge {edge}, {count} arrays: {error}"
        ) from None


# Splits the bytes read from a pipe into messages. No input or output.


class PipeBuffer:
    """Bytes read from a pipe: messages of several writers, one after the other.

    Bytes that are not a message are skipped up to the next one and counted in `damaged`; `failure` is the
    reason for the last skip.
    """

    def __init__(self) -> None:
        self.damaged = 0
        self.failure = ""
        self._bytes = b""
        self._at = 0
        self._whole = True
        self._skipping = False

    def add(self, chunk: bytes, whole: bool) -> None:
        """Append bytes that were read; with `whole`, the pipe is empty, so they end where a message ends."""
        self._bytes = self._bytes[self._at :] + chunk if self._at < len(self._bytes) else chunk
        self._at, self._whole = 0, whole

    def take(self) -> Message | Pointer | None:
        """Return the next message, or None if no complete one is left."""
        while self._at < len(self._bytes):
            at, left = self._at, len(self._bytes) - self._at
            length = HEAD.unpack_from(self._bytes, at)[1] if left >= HEAD.size else left + 1
            if length <= left and length >= HEAD.size and not length % ALIGNMENT:
                try:
                    message = decode(
                        self._bytes if length == len(self._bytes) else self._bytes[at : at + length]
                    )
                except DataLossError as error:
                    self._skip(str(error))
                    continue
                self._at, self._skipping = at + length, False
                if message is not None:
                    return message
            elif not self._whole and left < ROOM:
                return None
            else:
                self._skip(f"{left} bytes that do not begin with a message")
        return None

    def _skip(self, failure: str) -> None:
        if not self._skipping:
            self.damaged, self.failure, self._skipping = self.damaged + 1, failure, True
        found = self._bytes.find(MAGIC, self._at + 1)
        end = len(self._bytes) if self._whole else len(self._bytes) - len(MAGIC) + 1
        self._at = found if found >= 0 else max(end, self._at + 1)
