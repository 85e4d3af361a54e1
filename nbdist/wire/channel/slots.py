"""MessageSlots: shared memory that holds a sender's large values, and the receiver's views of them.

    slots = MessageSlots("nbdist-c1")                                       # the sender
    message = slots.fill(kind=2, plan=7, step=3, edge=0, arrays=[x])        # copies x to its slot
    arrays, meta = SlotMappings().read(decode(message))                     # the receiver: views, no copy

There is one slot per (kind, plan, edge). Its next message overwrites it, so a sender of step n + 1 must know
that step n was read. A message is refused if its slot was overwritten before it was decoded. sender.py
explains the memory ordering.
"""

# Layout of a slot, in bytes:
#
#     0       SLOT: sequence of the message in it, offset and length of the table, length of meta
#     64      the table, one entry per array; then meta
#     then    the arrays, each at a multiple of 64 (a cache line)
#
# A slot that `reserve` returned has its arrays from DIRECT_AT (one page) on, where the caller writes them;
# only SLOT, table and meta, which have to fit in the page before, are written for each message.
#
# A slot grows by replacement: the sender creates a larger segment under a new name and removes the old
# segment's name. The receiver's mapping of the old one stays valid as long as its arrays are in use.
#
# The sender writes the sequence first and the contents after it. A receiver that finds another sequence than
# its message's, before or after it has copied the table and meta, refuses the message.

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.errors import DataLossError, NbdistError
from nbdist.wire.channel.message import ENTRIES, SLOT, Layout, Pointer, encode_pointer, read_table, views
from nbdist.wire.rpc.frame import CODES, MAX_ARRAYS, Array, wire_dtype
from nbdist.wire.shm import Segment, shared_folder

Key = tuple[int, int, int]  # kind, plan, edge
LINE = 64  # bytes; arrays are aligned to cache lines
PAGE = mmap.PAGESIZE
DIRECT_AT = PAGE  # offset of the memory that `reserve` returns; SLOT, table and meta are before it


class MessageSlots:
    """One sender's slots, made at their first use and replaced when they must grow."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._slots: dict[Key, _Slot] = {}
        self._reserved: dict[Key, _Slot] = {}

    def fill(
        self, kind: int, plan: int, step: int, edge: int, arrays: Sequence[Array], meta: bytes = b""
    ) -> bytes:
        """Copy a message's contents into its slot; return the message that points there.

        Arrays that are already in the slot's reserved memory are not copied. Raises ResourceExhaustedError
        when the host has no room for the segment.
        """
        key = (kind, plan, edge)
        slot = self._reserved.get(key)
        if slot is None or not slot.holds(arrays, meta):
            slot = self._slots.get(key)
            shapes = [(array.dtype, array.shape) for array in arrays]
            if slot is None or slot.shapes != shapes or slot.meta_room < len(meta):
                slot = self._slots[key] = _laid_out(self._prefix, slot, kind, shapes, len(meta))
        sequence = slot.write(arrays, meta)
        return encode_pointer(Pointer(kind, plan, step, edge, len(arrays), slot.segment.name, sequence))

    def reserve(self, kind: int, plan: int, edge: int, nbytes: int) -> Array:
        """Return zeroed shared bytes for a value that `fill` then does not copy."""
        key = (kind, plan, edge)
        slot = self._reserved.get(key)
        if slot is None or len(slot.segment.bytes) < DIRECT_AT + nbytes:
            grown = _Slot(Segment.create(self._prefix, DIRECT_AT + nbytes))
            if slot is not None:
                slot.segment.close()
            slot = self._reserved[key] = grown
        return slot.segment.bytes[DIRECT_AT : DIRECT_AT + nbytes]

    def release(self, plan: int | None = None) -> None:
        """Remove the slots of a plan, or all."""
        for slots in (self._slots, self._reserved):
            for key in [key for key in slots if plan is None or key[1] == plan]:
                slots.pop(key).segment.close()


class _Slot:
    """One slot: a segment and the layout of the arrays in it."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.sequence = 0
        self.shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
        self.meta_room = 0
        self._memory = segment.bytes.data
        self._table = b""
        self._places: list[Array] = []
        self._known: list[Array] | None = None  # the arrays in reserved memory that `_table` describes

    def lay_out(self, layout: Layout, table: bytes, meta_room: int) -> None:
        self.shapes = [(dtype, shape) for dtype, shape, _ in layout]
        self.meta_room, self._table = meta_room, table
        self._places = [
            np.ndarray(shape, dtype, self.segment.bytes, start) for (dtype, shape, start) in layout
        ]

    def write(self, arrays: Sequence[Array], meta: bytes) -> int:
        """Write a message's contents; return its number in this slot."""
        self.sequence += 1
        # Before the contents, so that a receiver detects that the message it reads was overwritten.
        SLOT.pack_into(self._memory, 0, self.sequence, LINE, len(self._table), len(meta))
        at = LINE + len(self._table)
        self._memory[LINE:at] = self._table
        if meta:
            self._memory[at : at + len(meta)] = meta
        for place, array in zip(self._places, arrays):
            np.copyto(place, array)
        return self.sequence

    def holds(self, arrays: Sequence[Array], meta: bytes) -> bool:
        """Return whether these arrays are in this slot's reserved memory, so that no copy is needed."""
        memory = self.segment.bytes
        if not arrays or not all(array.base is memory and array.flags.c_contiguous for array in arrays):
            return False
        if (
            self._known is None
            or len(arrays) != len(self._known)
            or any(one is not other for one, other in zip(arrays, self._known))
        ):
            origin = _place_of(memory)
            layout = [(array.dtype, array.shape, _place_of(array) - origin) for array in arrays]
            if not all(dtype in CODES and not start % 8 for dtype, _, start in layout):
                return False
            self._table, self._known = _table(layout), list(arrays)
        return LINE + len(self._table) + len(meta) <= DIRECT_AT


def _laid_out(
    prefix: str, old: _Slot | None, kind: int, shapes: list[tuple[np.dtype[Any], tuple[int, ...]]], meta: int
) -> _Slot:
    """Return a slot with room for such arrays and meta: `old` if it is large enough, else a new one."""
    assert len(shapes) <= MAX_ARRAYS
    at = LINE + sum(ENTRIES[len(shape)].size for _, shape in shapes) + meta
    layout: Layout = []
    for given, shape in shapes:
        dtype = given if given in CODES else wire_dtype(given, kind)
        at += -at % LINE
        layout.append((dtype, shape, at))
        at += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    slot = old
    if slot is None or len(slot.segment.bytes) < at:
        slot = _Slot(Segment.create(prefix, at + -at % PAGE))
        if old is not None:
            old.segment.close()
    slot.lay_out(layout, _table(layout), meta)
    slot.shapes = shapes
    return slot


def _table(layout: Layout) -> bytes:
    return b"".join(
        ENTRIES[len(shape)].pack(CODES[dtype], len(shape), start, *shape) for dtype, shape, start in layout
    )


def _place_of(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class SlotMappings:
    """One receiver's views of the slots of all its senders."""

    def __init__(self) -> None:
        self._mappings: dict[str, _Mapping] = {}

    def read(self, pointer: Pointer) -> tuple[tuple[Array, ...], bytes]:
        """Return read-only views of a message's arrays, and its packed meta.

        Raises DataLossError if the segment does not exist, is not private to this user, is too short, or was
        overwritten.
        """
        mapping = self._mappings.get(pointer.name)
        if mapping is None:
            self.release()
            try:
                mapping = self._mappings[pointer.name] = _Mapping(Segment.open(pointer.name))
            except (NbdistError, OSError, ValueError) as error:
                raise DataLossError(f"a message's shared memory cannot be used: {error}") from None
        return mapping.read(pointer.sequence, pointer.count)

    def release(self) -> None:
        """Unmap the segments that their senders have removed; arrays that are still in use stay valid."""
        folder = shared_folder()
        for name in [name for name in self._mappings if not (folder / name).exists()]:
            del self._mappings[name]

    def close(self) -> None:
        """Unmap all segments."""
        self._mappings.clear()


class _Mapping:
    def __init__(self, segment: Segment) -> None:
        self._memory = segment.bytes.data.toreadonly()
        self._table = b""
        self._arrays: tuple[Array, ...] | None = None

    def read(self, sequence: int, count: int) -> tuple[tuple[Array, ...], bytes]:
        memory = self._memory
        if len(memory) < SLOT.size:
            raise DataLossError(f"a message's shared memory has only {len(memory)} bytes")
        found, at, table_length, meta_length = SLOT.unpack_from(memory)
        meta_at = at + table_length
        if meta_at + meta_length > len(memory):
            raise DataLossError("a message in shared memory is longer than its segment")
        table, meta = bytes(memory[at:meta_at]), bytes(memory[meta_at : meta_at + meta_length])
        if found != sequence or SLOT.unpack_from(memory)[0] != sequence:
            raise DataLossError(
                f"message {sequence} in shared memory was overwritten by message {found} of the same kind, "
                "plan and edge before it was read"
            )
        if self._arrays is None or table != self._table or len(self._arrays) != count:
            layout, end = read_table(table, 0, len(table), count)
            if end != len(table):
                raise DataLossError("a message's table in shared memory is longer than its entries")
            self._arrays, self._table = views(memory, layout), table
        return self._arrays, meta
