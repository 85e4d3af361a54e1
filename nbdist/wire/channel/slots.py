"""MessageSlots: shared memory in which one sender's large values stand, and the receiver's views of them.

    slots = MessageSlots("nbdist-c1")                                       # the sender
    message = slots.fill(kind=2, plan=7, step=3, edge=0, arrays=[x])  # x is copied in
    arrays, meta = SlotMappings().read(decode(message))  # the receiver: views, nothing copied

There is one slot per (kind, plan, edge). Its next message overwrites it, so a sender of step n + 1 must know
that step n was read; a message whose slot was overwritten before it was looked at is refused.
"""

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
LINE = 64  # arrays begin where a cache line does
PAGE = mmap.PAGESIZE
LENT_AT = PAGE  # where lent memory begins; what describes it stands before


class MessageSlots:
    """One sender's slots, made when first used and made anew when they must grow."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._slots: dict[Key, _Slot] = {}
        self._lent: dict[Key, _Slot] = {}

    def fill(
        self, kind: int, plan: int, step: int, edge: int, arrays: Sequence[Array], meta: bytes = b""
    ) -> bytes:
        """Copy a message's contents into its slot; return the message that points there.

        Arrays that lie in the slot's lent memory already are not copied. Raises ResourceExhaustedError when
        the host has no room for the segment.
        """
        key = (kind, plan, edge)
        slot = self._lent.get(key)
        if slot is None or not slot.holds(arrays, meta):
            slot = self._slots.get(key)
            shapes = [(array.dtype, array.shape) for array in arrays]
            if slot is None or slot.shapes != shapes or slot.meta_room < len(meta):
                slot = self._slots[key] = _laid_out(self._prefix, slot, kind, shapes, len(meta))
        sequence = slot.write(arrays, meta)
        return encode_pointer(Pointer(kind, plan, step, edge, len(arrays), slot.segment.name, sequence))

    def lend(self, kind: int, plan: int, edge: int, nbytes: int) -> Array:
        """Return shared bytes to write a value to, which `fill` then need not copy; zero at first."""
        key = (kind, plan, edge)
        slot = self._lent.get(key)
        if slot is None or len(slot.segment.bytes) < LENT_AT + nbytes:
            grown = _Slot(Segment.create(self._prefix, LENT_AT + nbytes))
            if slot is not None:
                slot.segment.close()
            slot = self._lent[key] = grown
        return slot.segment.bytes[LENT_AT : LENT_AT + nbytes]

    def release(self, plan: int | None = None) -> None:
        """Give up the slots of a plan, or all."""
        for slots in (self._slots, self._lent):
            for key in [key for key in slots if plan is None or key[1] == plan]:
                slots.pop(key).segment.close()


class _Slot:
    """One segment: SLOT, then a table, then meta, then arrays."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.sequence = 0
        self.shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
        self.meta_room = 0
        self._memory = segment.bytes.data
        self._table = b""
        self._places: list[Array] = []
        self._known: list[Array] | None = None  # lent arrays, whose table is written

    def lay_out(self, layout: Layout, table: bytes, meta_room: int) -> None:
        self.shapes = [(dtype, shape) for dtype, shape, _ in layout]
        self.meta_room, self._table = meta_room, table
        self._places = [
            np.ndarray(shape, dtype, self.segment.bytes, start) for (dtype, shape, start) in layout
        ]

    def write(self, arrays: Sequence[Array], meta: bytes) -> int:
        """Write a message's contents; return its number in this slot."""
        self.sequence += 1
        # First of all: whoever still reads the message before must see that it is gone.
        SLOT.pack_into(self._memory, 0, self.sequence, LINE, len(self._table), len(meta))
        at = LINE + len(self._table)
        self._memory[LINE:at] = self._table
        if meta:
            self._memory[at : at + len(meta)] = meta
        for place, array in zip(self._places, arrays):
            np.copyto(place, array)
        return self.sequence

    def holds(self, arrays: Sequence[Array], meta: bytes) -> bool:
        """Whether these arrays lie in this slot's lent memory, ready to be pointed at."""
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
        return LINE + len(self._table) + len(meta) <= LENT_AT


def _laid_out(
    prefix: str, old: _Slot | None, kind: int, shapes: list[tuple[np.dtype[Any], tuple[int, ...]]], meta: int
) -> _Slot:
    """Return a slot with room for such arrays and meta: the old one if it is large enough."""
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
    """One receiver's views of the slots of all who send to it."""

    def __init__(self) -> None:
        self._mappings: dict[str, _Mapping] = {}

    def read(self, pointer: Pointer) -> tuple[tuple[Array, ...], bytes]:
        """Return read-only views of a message's arrays, and its packed meta.

        Raises DataLossError when what the message points at is not there, not private to this user, short,
        or overwritten.
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
        """Forget the segments that their senders have removed; arrays that are still in use stay valid."""
        folder = shared_folder()
        for name in [name for name in self._mappings if not (folder / name).exists()]:
            del self._mappings[name]

    def close(self) -> None:
        """Forget all."""
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
            raise DataLossError("a message in shared memory is longer than that")
        table, meta = bytes(memory[at:meta_at]), bytes(memory[meta_at : meta_at + meta_length])
        if found != sequence or SLOT.unpack_from(memory)[0] != sequence:
            raise DataLossError(
                f"message {sequence} in shared memory was overwritten by message {found} of the same kind, "
                "plan and edge before it was read"
            )
        if self._arrays is None or table != self._table or len(self._arrays) != count:
            layout, end = read_table(table, 0, len(table), count)
            if end != len(table):
                raise DataLossError("a message's table in shared memory is longer than it says")
            self._arrays, self._table = views(memory, layout), table
        return self._arrays, meta
