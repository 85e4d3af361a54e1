"""Window geometry of convolution and pooling: output sizes, padding, and views of windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Shape, show

Pair = tuple[int, int]


@dataclass(frozen=True)
class WindowAxis:
    """``count`` windows of ``size`` elements, ``step`` apart, along an axis of ``n``.

    ``before`` and ``after`` are the padded elements at the ends. The elements of a window are ``dilation``
    apart.
    """

    n: int
    size: int
    step: int
    count: int
    before: int
    after: int
    dilation: int = 1

    @classmethod
    def of(cls, n: int, size: int, step: int, padding: str, dilation: int = 1) -> WindowAxis:
        """Place windows as TensorFlow does: ``same`` pads evenly, an odd one last; ``valid`` does not pad.

        >>> WindowAxis.of(5, 3, 2, "same")
        WindowAxis(n=5, size=3, step=2, count=3, before=1, after=1, dilation=1)
        """
        extent = (size - 1) * dilation + 1
        if padding == "valid":
            return cls(n, size, step, max((n - extent) // step + 1, 0), 0, 0, dilation)
        count = -(-n // step)
        missing = max((count - 1) * step + extent - n, 0)
        return cls(n, size, step, count, missing // 2, missing - missing // 2, dilation)

    def inside(self, offset: int) -> tuple[slice, slice]:
        """Return slices: the windows whose element at ``offset`` is in the array, and these elements."""
        offset *= self.dilation
        first = max(-(-(self.before - offset) // self.step), 0)
        last = min((self.n - 1 + self.before - offset) // self.step, self.count - 1)
        start = first * self.step + offset - self.before
        count = max(last - first + 1, 0)
        stop = start + (count - 1) * self.step + 1 if count else start
        return slice(first, first + count), slice(start, stop, self.step)


def axes_of(
    shape: Shape, size: Pair, strides: Pair, padding: str, dilation: Pair = (1, 1)
) -> tuple[WindowAxis, WindowAxis]:
    """Return the windows along height and width of images (batch, height, width, channels)."""
    height, width = (n or 0 for n in shape[1:3])
    return (
        WindowAxis.of(height, size[0], strides[0], padding, dilation[0]),
        WindowAxis.of(width, size[1], strides[1], padding, dilation[1]),
    )


def window_counts(name: str, shape: Shape, size: Pair, strides: Pair, padding: str) -> tuple[int | None, ...]:
    """Return how many windows there are along height and width; None where a size is unknown."""
    if len(shape) != 4:
        raise InvalidArgumentError(
            f"{name} takes images (batch, height, width, channels), got shape {show(shape)}"
        )
    for what, value in (("windows", size), ("strides", strides)):
        if pair(f"{name}: the size of {what}", value) != tuple(value):
            raise InvalidArgumentError(f"{name}: {what} are a pair of whole numbers above 0, got {value!r}")
    if padding not in ("valid", "same"):
        raise InvalidArgumentError(f"{name}: padding is 'valid' or 'same', got {padding!r}")
    counts = tuple(
        None if n is None else WindowAxis.of(n, k, s, padding).count
        for n, k, s in zip(shape[1:3], size, strides, strict=True)
    )
    if 0 in counts:
        raise InvalidArgumentError(
            f"{name}: windows of {size[0]} x {size[1]} do not fit into images of shape {show(shape[1:])}; "
            "use smaller windows or padding='same'"
        )
    return counts


def pair(name: str, value: Any) -> Pair:
    """Return one whole number above 0 for each of height and width.

    >>> pair("strides", 2)
    (2, 2)
    """
    values = (value, value) if isinstance(value, (int, np.integer)) else value
    good = isinstance(values, (tuple, list)) and len(values) == 2
    if not good or any(not isinstance(v, (int, np.integer)) or isinstance(v, bool) or v < 1 for v in values):
        raise InvalidArgumentError(f"{name} is a whole number above 0, or a pair of them, got {value!r}")
    return int(values[0]), int(values[1])


def checked_padding(padding: Any) -> str:
    """Return "valid" or "same"."""
    if str(padding).lower() not in ("valid", "same"):
        raise InvalidArgumentError(f"padding is 'valid' or 'same', got {padding!r}")
    return str(padding).lower()


def windows_of(xp: Any, x: Array, height: WindowAxis, width: WindowAxis) -> Array:
    """Return a view (batch, rows, columns, window height, window width, channels) of padded images."""
    b, h, w, c = x.strides
    return xp.lib.stride_tricks.as_strided(  # type: ignore[no-any-return]
        x,
        (x.shape[0], height.count, width.count, height.size, width.size, x.shape[3]),
        (b, h * height.step, w * width.step, h * height.dilation, w * width.dilation, c),
    )


def padded(xp: Any, x: Array, height: WindowAxis, width: WindowAxis) -> Array:
    """Return images with the zeros that padding adds; the same images if it adds none."""
    ends = ((0, 0), (height.before, height.after), (width.before, width.after), (0, 0))
    return xp.pad(x, ends) if any(map(any, ends)) else x
