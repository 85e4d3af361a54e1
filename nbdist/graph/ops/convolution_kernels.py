"""How convolutions are computed with NumPy: blocks of a few images, planned once, then matrix products.

A program has fixed shapes, so each kernel plans at its first call. Views of a block of images are kept as
long as the images are in the same array (a buffer of the program), and made anew for others (a batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nbdist.graph.backend import Array
from nbdist.graph.ops.windows import Axis, Pair, axes_of, windows_of

BLOCK_BYTES = 1 << 18
"""Of copied windows: a part of the second-level cache that leaves room for what meets them."""
NARROW = 16  # elements of a window's row: below this, copying along the image's rows is faster

Step = Callable[[], Any]


def forward_kernel(
    strides: Pair, padding: str, relu: bool = False, dilation: Pair = (1, 1)
) -> Callable[..., None]:
    """Return ``kernel(x, kernel, [bias,] out)``."""

    def plan(x: Array, kernel: Array, *bias_and_out: Array) -> Callable[..., None]:
        *bias, out = bias_and_out
        copies = _Windows(x, kernel.shape, strides, padding, dilation, ones=len(bias))
        # A bias is the kernel's last row, and every window ends with a one: the product adds it.
        weights = np.empty((copies.window + len(bias), kernel.shape[3]), out.dtype)

        def run(x: Array, kernel: Array, *rest: Array) -> None:
            flat = rest[-1].reshape(-1, kernel.shape[3])
            np.copyto(weights[: copies.window], kernel.reshape(copies.window, -1))
            if bias:
                np.copyto(weights[-1], rest[0])
            for start, stop, columns in copies.blocks(x):
                part = flat[start:stop]
                np.matmul(columns, weights, out=part)
                if relu:
                    np.maximum(part, 0, out=part)

        return run

    return _kept(plan)


def kernel_kernel(strides: Pair, padding: str, dilation: Pair = (1, 1)) -> Callable[..., None]:
    """Return ``kernel(g, x, like, out)``, which computes the gradient of the kernel."""

    def plan(g: Array, x: Array, like: Array, out: Array) -> Callable[..., None]:
        copies = _Windows(x, like.shape, strides, padding, dilation)
        part = np.empty((copies.window, like.shape[3]), out.dtype)

        def run(g: Array, x: Array, like: Array, out: Array) -> None:
            total = out.reshape(copies.window, -1)
            total.fill(0)
            flat = g.reshape(-1, like.shape[3])
            for start, stop, columns in copies.blocks(x):
                np.matmul(columns.T, flat[start:stop], out=part)
                np.add(total, part, out=total)

        return run

    return _kept(plan)


def input_kernel(strides: Pair, padding: str, dilation: Pair = (1, 1)) -> Callable[..., None]:
    """Return ``kernel(g, kernel, like, out)``, which computes the gradient of the images."""

    def plan(g: Array, kernel: Array, like: Array, out: Array) -> Callable[..., None]:
        height, width = axes_of(like.shape, kernel.shape[:2], strides, padding, dilation)
        one_by_one = height.step == 1 == width.step and width.dilation == 1
        return (_rows_to_input if one_by_one else _columns_to_input)(g, kernel, out, height, width)

    return _kept(plan)


def _kept(plan: Callable[..., Callable[..., None]]) -> Callable[..., None]:
    """Return a kernel that plans at the first call."""
    planned: list[Callable[..., None]] = []

    def kernel(*arrays: Array) -> None:
        if not planned:
            planned.append(plan(*arrays))
        planned[0](*arrays)

    return kernel


class _Windows:
    """The windows of images, copied block by block into one piece of memory as rows of a matrix.

    Each row may end with a number of ones.
    """

    def __init__(
        self, x: Array, kernel: Sequence[int], strides: Pair, padding: str, dilation: Pair, ones: int = 0
    ) -> None:
        self.height, self.width = axes_of(x.shape, (kernel[0], kernel[1]), strides, padding, dilation)
        self.window = kernel[0] * kernel[1] * kernel[2]
        self.positions = self.height.count * self.width.count
        bytes_of_image = max(self.positions * self.window * x.itemsize, 1)
        self.images = max(min(BLOCK_BYTES // bytes_of_image, len(x)), 1)
        self.turned = kernel[1] * kernel[2] < NARROW
        rows, width = self.images * self.positions, self.window + ones
        self.memory = np.ones((width, rows) if self.turned else (rows, width), x.dtype)
        self.border = _bordered(x, self.images, self.height, self.width)
        self._last: Array | None = None
        self._steps: list[tuple[int, int, Array, Array, Array, Array | None, Array | None]] = []

    def blocks(self, x: Array) -> Iterator[tuple[int, int, Array]]:
        """Yield (first row, end, matrix) for each block: a row is one window."""
        if x is not self._last:
            self._steps = [self._step(x, i) for i in range(0, len(x), self.images)]
            self._last = x
        for start, stop, columns, target, windows, inside, images in self._steps:
            if inside is not None:
                np.copyto(inside, images)  # type: ignore[arg-type]
            np.copyto(target, windows)
            yield start, stop, columns

    def _step(self, x: Array, first: int) -> Any:
        images = x[first : first + self.images]
        n = len(images)
        source, inside = images, None
        if self.border is not None:
            source = self.border[:n]
            inside = source[
                :,
                self.height.before : self.height.before + self.height.n,
                self.width.before : self.width.before + self.width.n,
            ]
        windows = windows_of(np, source, self.height, self.width)
        start, stop = first * self.positions, (first + n) * self.positions
        if self.turned:  # windows' elements first: long copies along the images' rows
            windows = windows.transpose(3, 4, 5, 0, 1, 2)
            columns = self.memory[:, : stop - start].T
            target = columns.T[: self.window].reshape(windows.shape)  # a view: axes are split
            return start, stop, columns, target, windows, inside, images
        # One row of a window is contiguous in the image, unless it is dilated: copy it at once.
        merged = (*windows.shape[:4], windows.shape[4] * windows.shape[5])
        if source.flags.c_contiguous and self.width.dilation == 1:
            windows = np.lib.stride_tricks.as_strided(
                windows, merged, (*windows.strides[:4], source.itemsize)
            )
        columns = self.memory[: stop - start]
        target = columns[:, : self.window].reshape(windows.shape)
        return start, stop, columns, target, windows, inside, images


def _bordered(x: Array, images: int, height: Axis, width: Axis) -> Array | None:
    """Return zeros for a block of images with their padding, or None if there is no padding."""
    if not any((height.before, height.after, width.before, width.after)):
        return None
    tall, wide = height.before + height.n + height.after, width.before + width.n + width.after
    return np.zeros((images, tall, wide, x.shape[3]), x.dtype)


def _rows_to_input(g: Array, kernel: Array, out: Array, height: Axis, width: Axis) -> Callable[..., None]:
    """Plan for windows one step apart: one product for each row of the kernel, on copied rows of ``g``.

    What column ``x`` gets from a row of ``g`` comes from the ``width.size`` columns that end where the window
    began, so that rows of ``g`` with zeros at both ends hold it in one piece.
    """
    k, channels = width.size, g.shape[3]
    wide = width.n + k - 1
    left = k - 1 - width.before
    bytes_of_image = max(g.shape[1] * width.n * k * channels * g.itemsize, 1)
    images = max(min(BLOCK_BYTES // bytes_of_image, len(g)), 1)
    border = np.zeros((images, g.shape[1], wide, channels), g.dtype)
    rows = np.empty((images, g.shape[1], width.n, k * channels), g.dtype)
    part = np.empty((images * g.shape[1] * width.n, out.shape[3]), out.dtype)
    place = slice(left, left + g.shape[2])
    s = border.strides
    sliding = np.lib.stride_tricks.as_strided(border, rows.shape, (s[0], s[1], s[2], s[3]))
    spans = [(i, *height.inside(i)) for i in range(height.size)]

    def run(g: Array, kernel: Array, like: Array, out: Array) -> None:
        turned = np.ascontiguousarray(kernel[:, ::-1].transpose(0, 1, 3, 2)).reshape(
            height.size, k * channels, -1
        )
        out.fill(0)
        for first in range(0, len(g), images):
            block = g[first : first + images]
            n = len(block)
            np.copyto(border[:n, :, place], block)
            np.copyto(rows[:n], sliding[:n])
            matrix, product = rows[:n].reshape(-1, k * channels), part[: n * g.shape[1] * width.n]
            summands = product.reshape(n, g.shape[1], width.n, -1)
            target = out[first : first + n]
            for i, windows, elements in spans:
                np.matmul(matrix, turned[i], out=product)
                np.add(target[:, elements], summands[:, windows], out=target[:, elements])

    return run


def _columns_to_input(g: Array, kernel: Array, out: Array, height: Axis, width: Axis) -> Callable[..., None]:
    """Plan for any steps: one product gives all windows' parts, which are added where the windows were."""
    window = height.size * width.size * out.shape[3]
    bytes_of_image = max(height.count * width.count * window * g.itemsize, 1)
    images = max(min(BLOCK_BYTES // bytes_of_image, len(g)), 1)
    memory = np.empty((images, height.count, width.count, height.size, width.size, out.shape[3]), out.dtype)
    spans = [
        (i, j, *height.inside(i), *width.inside(j)) for i in range(height.size) for j in range(width.size)
    ]

    def run(g: Array, kernel: Array, like: Array, out: Array) -> None:
        turned = kernel.reshape(window, -1).T
        out.fill(0)
        for first in range(0, len(g), images):
            block = g[first : first + images]
            parts, target = memory[: len(block)], out[first : first + images]
            np.matmul(block.reshape(-1, g.shape[3]), turned, out=parts.reshape(-1, window))
            for i, j, rows, y, columns, x in spans:
                np.add(target[:, y, x], parts[:, rows, columns, i, j], out=target[:, y, x])

    return run
