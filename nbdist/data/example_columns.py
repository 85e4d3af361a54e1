"""Reads serialized Examples of one layout all at once: a column of values for each feature. Pure.

    layout = layout_of(records[0])              # names, types, numbers of values: in the order of the bytes
    columns = Columns(records, layout)
    columns.good                                # which records have exactly this layout
    columns.floats("x", 64)                     # (records, 64) float32

Records that one program has written have the same features in the same order, so their bytes differ only in
values and lengths. All records are walked in step, a position for each: at every step the bytes that the
layout fixes (tags and names) are compared, and a length is read. What ends elsewhere than its parent does, or
has other bytes, is not of this layout, and left to a parser of Protocol Buffers. The encoding, with the
numbers in the order of the bytes (https://protobuf.dev/programming-guides/encoding):

    Example    0a LENGTH entries                        entry    0a LENGTH 0a LENGTH name 12 LENGTH feature
    feature    0a LENGTH (0a LENGTH bytes)*  or  12 LENGTH 0a LENGTH floats  or  1a LENGTH 0a LENGTH varints
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BYTES, FLOATS, INTEGERS = 0x0A, 0x12, 0x1A
"""The tags of a feature's kinds."""
Ints = NDArray[np.int64]
_LENGTH_BYTES = 5  # of a length, at most: a message has less than 2 GB


@dataclass(frozen=True)
class Entry:
    """One feature: its name, encoded, the tag of its kind, and whether it has values; how many, of bytes."""

    name: bytes
    kind: int
    values: int


Layout = tuple[Entry, ...]


def layout_of(record: bytes) -> Layout | None:
    """Return the layout of an Example; None if it is written in another way, or is none.

    >>> layout_of(bytes.fromhex("0a0c0a0a0a016112051a030a0107"))
    (Entry(name=b'a', kind=26, values=1),)
    """
    found = []
    try:
        at, end = _part(record, 0, 0x0A, len(record))
        if end != len(record):
            return None
        while at < end:
            at, entry = _part(record, at, 0x0A, end)
            start, stop = _part(record, at, 0x0A, entry)
            name = record[start:stop]
            name.decode()  # text, or the record is damaged
            start, stop = _part(record, stop, 0x12, entry)
            kind = record[start] if start < stop else 0
            if stop != entry or kind not in (BYTES, FLOATS, INTEGERS) or len(name) > 127:
                return None
            start, stop = _part(record, start, kind, stop)
            if stop != entry:
                return None
            values = 0
            while start < stop:
                _, start = _part(record, start, 0x0A, stop)
                values += 1
            if kind != BYTES and values > 1:
                return None
            found.append(Entry(name, kind, values))
            at = entry
    except (IndexError, ValueError):
        return None
    names = {entry.name for entry in found}
    return tuple(found) if found and len(names) == len(found) else None


def _part(record: bytes, at: int, tag: int, limit: int) -> tuple[int, int]:
    """Return where the value of a field with this tag begins and ends."""
    if record[at] != tag:
        raise ValueError
    length = shift = 0
    for number in range(_LENGTH_BYTES):
        byte = record[at + 1 + number]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            start = at + 2 + number
            if start + length > limit:
                raise ValueError
            return start, start + length
    raise ValueError


class Columns:
    """The values of records, which have ``layout`` where :attr:`good` is true; columns are of these only."""

    def __init__(self, records: Sequence[bytes], layout: Layout) -> None:
        data = b"".join(records)
        longest = max((len(entry.name) for entry in layout), default=0)
        # Positions of records of another layout may lead anywhere, but not past this.
        self._limit = len(data) + 1
        self._bytes = np.frombuffer(data + bytes(longest + _LENGTH_BYTES + 8), np.uint8)
        self._data = data
        ends = np.cumsum([len(record) for record in records])
        self._at = np.concatenate(([0], ends[:-1]))
        self.good = np.ones(len(records), bool)
        self._spans: dict[bytes, list[tuple[Ints, Ints]]] = {}
        self._expect(b"\n")
        self._ends_at(self._part(), ends)
        for entry in layout:
            self._spans[entry.name] = self._entry(entry)
        self.good &= self._at == ends
        self._decoded = {
            entry.name: self._integers(*self._spans[entry.name][0])
            for entry in layout
            if entry.kind == INTEGERS and entry.values
        }
        for entry in layout:
            if entry.kind == FLOATS and entry.values:
                ((starts, stops),) = self._spans[entry.name]
                self.good &= (stops - starts) % 4 == 0

    def _entry(self, entry: Entry) -> list[tuple[Ints, Ints]]:
        self._expect(b"\n")
        end = self._part()
        self._expect(b"\n" + bytes([len(entry.name)]) + entry.name + b"\x12")
        self._ends_at(self._part(), end)
        self._expect(bytes([entry.kind]))
        self._ends_at(self._part(), end)
        spans = []
        for _ in range(entry.values):
            self._expect(b"\n")
            stop = self._part()
            spans.append((self._at, stop))
            self._at = stop
        self._ends_at(self._at, end)
        return spans

    def _expect(self, fixed: bytes) -> None:
        """Compare the next bytes with what the layout fixes."""
        if len(fixed) == 1:
            self.good &= self._bytes[self._at] == fixed[0]
        else:
            there = self._bytes[self._at[:, None] + np.arange(len(fixed))]
            self.good &= (there == np.frombuffer(fixed, np.uint8)).all(axis=1)
        self._at = self._at + len(fixed)

    def _part(self) -> Ints:
        """Read a length; return where the part of that length ends."""
        byte = self._bytes[self._at]
        length = byte.astype(np.int64)
        self._at = self._at + 1
        more = byte > 127
        if more.any():
            length &= 127
            for shift in range(7, 7 * _LENGTH_BYTES, 7):
                byte = self._bytes[self._at]
                length |= np.where(more, byte & 127, 0).astype(np.int64) << shift
                self._at = self._at + more
                more &= byte > 127
                if not more.any():
                    break
            self.good &= ~more
        end = self._at + length
        np.minimum(self._at, self._limit, out=self._at)
        return np.minimum(end, self._limit)

    def _ends_at(self, end: Ints, parent: Ints) -> None:
        self.good &= end == parent

    def _joined(self, starts: Ints, stops: Ints) -> bytes:
        data = self._data
        return b"".join(
            [data[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        )

    def _integers(self, starts: Ints, stops: Ints) -> tuple[Ints, Ints]:
        """Return all whole numbers of a feature, and how many each record has; those not good have none."""
        stops = np.where(self.good, stops, starts)
        joined = np.frombuffer(self._joined(starts, stops), np.uint8)
        edges = np.cumsum(stops - starts)
        last = np.flatnonzero(joined < 128)  # of each number
        first = np.concatenate(([0], last[:-1] + 1)) if len(last) else last
        counts = np.diff(np.searchsorted(last, edges), prepend=0)
        full = np.ones(len(joined) + 1, bool)  # whether a number ends before this byte
        full[1:] = joined < 128
        sizes = last - first + 1
        most = int(sizes.max(initial=0))
        # A record whose last number has no end, or one of more than 64 bits, is not good.
        wrong = ~full[edges]
        if most > 9:
            long = (sizes > 10) | ((sizes == 10) & (joined[last] > 1))
            owner = np.searchsorted(edges, last[long], side="right")
            wrong[owner] = True
        if wrong.any():
            self.good &= ~wrong
            return self._integers(starts, stops)  # the numbers behind a wrong one begin elsewhere
        values = (joined[first] & 127).astype(np.uint64)
        for place in range(1, min(most, 10)):
            has = np.flatnonzero(sizes > place)
            values[has] |= (joined[first[has] + place] & 127).astype(np.uint64) << np.uint64(7 * place)
        return values.view(np.int64), counts

    # Columns

    def counts(self, entry: Entry) -> Ints:
        """Return how many values the good records have of a feature."""
        own = np.flatnonzero(self.good)
        if entry.kind == BYTES or not entry.values:
            return np.full(len(own), entry.values)
        if entry.kind == INTEGERS:
            return self._decoded[entry.name][1][own]
        ((starts, stops),) = self._spans[entry.name]
        return (stops - starts)[own] // 4

    def values(self, entry: Entry) -> NDArray[Any]:
        """Return all values of a feature that the good records have, in one axis; bytes as objects."""
        own = np.flatnonzero(self.good)
        if not entry.values:
            return np.empty(0, {BYTES: "O", FLOATS: "<f4", INTEGERS: "i8"}[entry.kind])
        if entry.kind == INTEGERS:
            values, counts = self._decoded[entry.name]
            return values if len(own) == len(counts) else values[np.repeat(self.good, counts)]
        if entry.kind == FLOATS:
            ((starts, stops),) = self._spans[entry.name]
            starts, sizes = starts[own], (stops - starts)[own]
            if (
                len(own) and sizes[0] and (sizes == sizes[0]).all()
            ):  # one copy for each record, without Python
                size = int(sizes[0])
                parts = np.ndarray(len(self._data) - size + 1, f"V{size}", self._data, strides=(1,))
                return parts[starts].view("<f4")
            return np.frombuffer(bytearray(self._joined(starts, starts + sizes)), "<f4")
        found = np.empty((len(own), entry.values), object)
        data = self._data
        for place, (starts, stops) in enumerate(self._spans[entry.name]):
            pairs = zip(starts[own].tolist(), stops[own].tolist(), strict=True)
            found[:, place] = [data[start:stop] for start, stop in pairs]
        return found.reshape(-1)
