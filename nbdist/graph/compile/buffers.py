"""A program's memory plan: values get offsets in one slab for as long as they live.

offsets, total = place([Slot(4096, 0, 2), Slot(4096, 3, 5)])     # [0, 0], 4096
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.op import Spec

ALIGNMENT = 64  # a cache line; BLAS and SIMD loops start faster on it
MOST_TRIES, WORK = 40, 4_000  # random orders to try at most; orders times values at most
FEW = 60  # up to so many values, many more tries are cheap and may be needed


@dataclass(slots=True)
class Slot:
    """Memory in use from step ``first`` to step ``last``, by one value or by several in turn."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """Return how many bytes a value takes in a slab.

    >>> aligned(65)
    128
    """
    return -(-size // ALIGNMENT) * ALIGNMENT


def peak(slots: Sequence[Slot]) -> int:
    """Return the most bytes that are alive at one step.

    >>> peak([Slot(100, 0, 1), Slot(10, 1, 2), Slot(50, 2, 3)])
    110
    """
    changes: dict[int, int] = {}
    for slot in slots:
        changes[slot.first] = changes.get(slot.first, 0) + slot.size
        changes[slot.last + 1] = changes.get(slot.last + 1, 0) - slot.size
    most = alive = 0
    for step in sorted(changes):
        alive += changes[step]
        most = max(most, alive)
    return most


def place(slots: Sequence[Slot]) -> tuple[list[int], int]:
    """Return an offset for each slot, and the slab's size; slots in use at the same time do not overlap.

    Finding the smallest slab is NP-hard (dynamic storage allocation; Garey and Johnson 1979). Each slot in
    turn gets the lowest offset that is free while it is in use. Placing the largest first comes near the
    minimum most often (Pisarchyk and Lee 2020). Where it does not, other orders are tried, and offsets from
    the top.
    """
    sizes = np.array([aligned(slot.size) for slot in slots], np.int64)
    firsts = np.array([slot.first for slot in slots], np.int64)
    lasts = np.array([slot.last for slot in slots], np.int64)
    least = peak([Slot(int(n), s.first, s.last) for n, s in zip(sizes, slots, strict=True)])
    best: tuple[list[int], int] | None = None
    for rank, from_top, enough in _tries(sizes, firsts, lasts):
        order = np.lexsort((firsts, rank)).tolist()
        found = _place_in_order(order, sizes, firsts, lasts, from_top, least)
        if best is None or found[1] < best[1]:
            best = found
        if best[1] <= enough * least:
            break
    assert best is not None
    return best


def _tries(sizes: Array, firsts: Array, lasts: Array) -> Iterator[tuple[Array, Array, float]]:
    """Yield (sort keys of the slots, which of them to place from the top, a size that is good enough).

    The size is a multiple of the peak; the last tries accept a larger one.
    """
    lives = lasts - firsts + 1
    none = np.zeros(len(sizes), bool)
    for rank in (-sizes, -lives, -(sizes * lives), firsts):
        yield rank, none, 1.02
    rng = np.random.default_rng(0)  # the same plan for the same graph
    tries = min(MOST_TRIES, WORK // len(sizes))
    for _ in range(tries):
        yield -sizes * rng.uniform(0.5, 1.5, len(sizes)), none, 1.02
    for _ in range(4 * tries if len(sizes) <= FEW else 0):
        yield -sizes * rng.uniform(0.2, 1.8, len(sizes)), rng.random(len(sizes)) < 0.5, 1.1


def _place_in_order(
    order: list[int], sizes: Array, firsts: Array, lasts: Array, from_top: Array, least: int
) -> tuple[list[int], int]:
    offsets, ends = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    for n, slot in enumerate(order):
        others = np.array(order[:n], np.intp)
        others = others[(firsts[others] <= lasts[slot]) & (lasts[others] >= firsts[slot])]
        others = others[offsets[others].argsort(kind="stable")]
        # The gaps between slots in use; the last gap ends at the peak, or as far up as the slot needs.
        begins = np.maximum.accumulate(np.concatenate([[0], ends[others]]))
        room = np.concatenate([offsets[others], [max(least, begins[-1] + sizes[slot])]]) - begins
        fits = np.flatnonzero(room >= sizes[slot])
        gap = fits[-1 if from_top[slot] else 0]
        offsets[slot] = begins[gap] + (room[gap] - sizes[slot] if from_top[slot] else 0)
        ends[slot] = offsets[slot] + sizes[slot]
    return offsets.tolist(), int(ends.max(initial=0))


def slab(xp: ModuleType, size: int) -> Array:
    """Return ``size`` bytes that begin at a multiple of ``ALIGNMENT``."""
    raw: Array = xp.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT if xp is np else 0
    return raw[start : start + size]


def dummy(spec: Spec) -> Array:
    """Return an array of a value's shape that takes no memory.

    Its strides are those of a C-ordered array, so that NumPy decides on views as for the real one.
    """
    strides, step = [], spec.dtype.itemsize
    for n in reversed(spec.shape):
        strides.append(step)
        step *= max(n or 0, 1)
    shape = tuple(n or 0 for n in spec.shape)
    return np.lib.stride_tricks.as_strided(
        np.zeros((), spec.dtype), shape, tuple(reversed(strides)), writeable=False
    )
