"""One series of one replica in bounded memory: what is kept depends on the points only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.metrics.decimate import extremes

FIRST = 6  # points that there is room for at first
_KEPT = np.dtype([("order", "<i8"), ("step", "<u4"), ("value", "<f8"), ("time", "<f8")])


class Thinned:
    """Keeps all points until there are more than ``buckets``, then each bucket's extremes, the first and
    the last.

    With ``count`` points seen, a bucket is the smallest power of two points wide that needs at most
    ``buckets`` buckets. At most about ``3 * buckets`` points are kept (2 per bucket unless there are NaNs),
    28 bytes each.
    """

    __slots__ = ("_buckets", "_filled", "_points", "_thin", "count")  # there may be very many of them

    def __init__(self, buckets: int) -> None:
        self.count = 0
        self._buckets = buckets
        self._filled = 0
        self._thin = 0  # how many points had been seen when it was last thinned
        self._points = np.empty(FIRST, _KEPT)

    def extend(self, steps: NDArray[Any], values: NDArray[Any], times: NDArray[Any]) -> None:
        """Append points; the three have one length."""
        piece = 4 * self._buckets  # so that one long call takes no more memory than many short ones
        for start in range(0, len(values), piece):
            part = slice(start, start + piece)
            self._append(steps[part], values[part], times[part])

    def _append(self, steps: NDArray[Any], values: NDArray[Any], times: NDArray[Any]) -> None:
        new = len(values)
        if self._filled + new > len(self._points):
            self._make_room(new)
        part = self._points[self._filled : self._filled + new]
        part["order"] = np.arange(self.count, self.count + new)
        part["step"], part["value"], part["time"] = steps, values, times
        self._filled += new
        self.count += new

    def kept(self) -> NDArray[np.void]:
        """Return the points kept (fields order, step, value, time) as a view, thinned up to now."""
        if self.count > self._buckets and self._thin != self.count:
            self._thin = self.count
            points = self._points[: self._filled]
            keep = extremes(points["order"] // self._width(), points["value"])
            self._points[: len(keep)] = points[keep]
            self._filled = len(keep)
        return self._points[: self._filled]

    def narrow(self, buckets: int) -> None:
        """Use fewer buckets from now on."""
        self._buckets = min(self._buckets, buckets)
        self._thin = 0
        self._points = self.kept().copy()

    @property
    def held(self) -> int:
        """How many points are held just now, thinned or not."""
        return self._filled

    def last(self) -> NDArray[np.void]:
        """Return the newest point, as an array of one."""
        return self._points[self._filled - 1 : self._filled]

    def _width(self) -> int:
        return 1 << max(0, (-(-self.count // self._buckets) - 1).bit_length())

    def _make_room(self, new: int) -> None:
        kept = self.kept()
        if len(kept) + new <= len(self._points) // 2:  # thinning alone made room, and pays for many calls
            return
        # Past this size twice the kept points fit, so that thinning stays rare however small the calls are.
        larger = np.empty(2 * (len(kept) + new), _KEPT)
        larger[: len(kept)] = kept
        self._points = larger
