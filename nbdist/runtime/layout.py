"""Where each variable lies in a flat buffer.

    layout = Layout.of([("w", (784, 100), "<f4"), ("b", (100,), "<f4")])
    buffer = np.zeros(layout.size, np.uint8)
    w, b = layout.views(buffer)
    for flat in layout.flats(buffer): ...      # one array per dtype, for the optimizer

Variables of one dtype lie together, so that an optimizer makes one pass over all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError

Array: TypeAlias = np.ndarray[Any, Any]
ALIGNMENT = 64
MOST_BYTES = 1 << 48  # of one variable; NumPy's own arithmetic overflows above


@dataclass(frozen=True)
class Entry:
    """One variable: its name, shape, dtype and byte offset."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True)
class Layout:
    """Variables packed into one buffer of ``size`` bytes."""

    entries: tuple[Entry, ...]
    groups: tuple[tuple[str, int, int], ...]
    """Per dtype: its name, the byte offset and the number of items."""
    size: int

    @classmethod
    def of(cls, variables: Iterable[tuple[str, Sequence[int], Any]]) -> Layout:
        """Pack variables, given as (name, shape, dtype), each aligned to a cache line.

        >>> Layout.of([("a", (3,), "<f4"), ("b", (2,), "<f4")]).size
        128
        """
        wanted = [(str(n), tuple(int(k) for k in s), np.dtype(d)) for n, s, d in variables]
        for name, shape, dtype in wanted:
            if dtype.kind not in "biufc":
                raise InvalidArgumentError(f"variable {name!r} has dtype {dtype}; expected numbers")
            if any(size < 0 for size in shape) or prod(filter(None, shape)) * dtype.itemsize > MOST_BYTES:
                raise InvalidArgumentError(
                    f"variable {name!r} has shape {shape}: its sizes are 0 or more, and it has at most "
                    f"{MOST_BYTES:,} bytes"
                )
        kinds = list(dict.fromkeys(d.str for _, _, d in wanted))
        places: dict[int, int] = {}
        groups = []
        offset = 0
        for kind in kinds:
            start = offset
            for i, (_, shape, dtype) in enumerate(wanted):
                if dtype.str == kind:
                    places[i] = offset
                    offset += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
            groups.append((kind, start, (offset - start) // np.dtype(kind).itemsize))
        entries = tuple(Entry(n, s, d.str, places[i]) for i, (n, s, d) in enumerate(wanted))
        return cls(entries, tuple(groups), offset)

    @classmethod
    def joined(cls, layouts: Sequence[Layout], of: Sequence[int]) -> Layout:
        """Return the layout of several buffers, one after the other.

        Variable i is the next one of ``layouts[of[i]]``.

        >>> a, b = (Layout.of([(name, (3,), "<f4")]) for name in "ab")
        >>> [(e.name, e.offset) for e in Layout.joined([a, b], [1, 0]).entries]
        [('b', 64), ('a', 0)]
        """
        starts = [sum(one.size for one in layouts[:number]) for number in range(len(layouts))]
        moved = [
            iter([replace(entry, offset=start + entry.offset) for entry in one.entries])
            for start, one in zip(starts, layouts, strict=True)
        ]
        groups = [
            (kind, start + offset, count)
            for start, one in zip(starts, layouts, strict=True)
            for kind, offset, count in one.groups
        ]
        size = sum(one.size for one in layouts)
        return cls(tuple(next(moved[number]) for number in of), tuple(groups), size)

    def views(self, buffer: Array) -> list[Array]:
        """Return one array per variable, in order, in the memory of ``buffer`` (bytes)."""
        return [
            buffer[e.offset : e.offset + prod(e.shape) * np.dtype(e.dtype).itemsize]
            .view(e.dtype)
            .reshape(e.shape)
            for e in self.entries
        ]

    def flats(self, buffer: Array) -> list[Array]:
        """Return one flat array per dtype, padding included, in the memory of ``buffer``."""
        return [buffer[o : o + n * np.dtype(k).itemsize].view(k) for k, o, n in self.groups]

    def cut(self, flats: Sequence[Array]) -> list[Array]:
        """Return one array per variable, in the memory of flat arrays such as :meth:`flats` returns."""
        groups = {kind: (start, flat) for (kind, start, _), flat in zip(self.groups, flats, strict=True)}
        found = []
        for entry in self.entries:
            start, flat = groups[entry.dtype]
            first = (entry.offset - start) // flat.itemsize
            found.append(flat[first : first + prod(entry.shape)].reshape(entry.shape))
        return found

    def buffer(self, xp: ModuleType = np) -> Array:
        """Return a new zeroed buffer of a backend, which starts on a cache line."""
        if xp is not np:  # CuPy's memory pool aligns more than that
            return xp.zeros(self.size, np.uint8)  # type: ignore[no-any-return]
        raw = np.zeros(self.size + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + self.size]

    def digest(self) -> str:
        """Return a short fingerprint: equal on all workers that built the same graph."""
        return hashlib.sha256(repr(self.entries).encode()).hexdigest()[:16]

    def to_wire(self) -> list[list[Any]]:
        """Return names, shapes and dtypes as plain values, for :meth:`of`."""
        return [[e.name, list(e.shape), e.dtype] for e in self.entries]
