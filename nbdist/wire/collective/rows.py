"""Where a result is written item by item, in whatever order its pieces come."""

from __future__ import annotations

import numpy as np

from nbdist.wire.collective.calls import Call
from nbdist.wire.frames import Array


class Row:
    """The items of `out` as one row: `out` itself, or a row beside it where that would not do."""

    def __init__(self, call: Call, out: Array, x: Array) -> None:
        self._out = out
        # An input that overlaps the output, but is not it, would be overwritten before it is read.
        self._direct = out.flags.c_contiguous and (
            (call.what == "all_reduce" and (out is x or _same_place(out, x)))
            or not np.may_share_memory(out, x)
        )
        self.items = out.reshape(-1) if self._direct else np.empty(out.size, out.dtype)

    def finish(self) -> None:
        """Put the result where it belongs."""
        if not self._direct:
            np.copyto(self._out, self.items.reshape(self._out.shape))


def _same_place(one: Array, other: Array) -> bool:
    place, there = one.__array_interface__, other.__array_interface__
    same: bool = place["data"] == there["data"] and place["strides"] == there["strides"]
    return same and one.dtype == other.dtype
