"""Convolution of images (batch, height, width, channels) with kernels (height, width, in, out).

    y = conv2d(x, kernel, bias), optionally through relu

The kernels copy the windows of a few images at a time (im2col; Chellapilla et al. 2006) and multiply them as
one matrix product, so that the copies stay in the second-level cache between being written and being
multiplied. The gradients are convolutions as well, and use the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Spec, define, fits, show
from nbdist.graph.ops.half import in_float32, product_forward
from nbdist.graph.ops.windows import Pair, WindowAxis, axes_of, padded, pair, window_counts, windows_of
from nbdist.graph.tensor import Tensor, record


def _spec(
    x: Spec,
    kernel: Spec,
    *bias: Spec,
    strides: Pair,
    padding: str,
    relu: bool = False,
    dilation: Pair = (1, 1),
) -> Spec:
    if len(kernel.shape) != 4 or None in kernel.shape:
        raise InvalidArgumentError(
            f"conv2d: a kernel has shape (height, width, in, out), got {show(kernel.shape)}"
        )
    dilation = pair("conv2d: dilation", dilation)
    tall, wide = (((k or 0) - 1) * d + 1 for k, d in zip(kernel.shape[:2], dilation, strict=True))
    rows, columns = window_counts("conv2d", x.shape, (tall, wide), strides, padding)
    if x.shape[3] not in (None, kernel.shape[2]):
        raise InvalidArgumentError(
            f"conv2d: images have {x.shape[3]} channels, the kernel is for {kernel.shape[2]}: "
            f"shapes {show(x.shape)} and {show(kernel.shape)}"
        )
    dtype = np.result_type(x.dtype, kernel.dtype, *(b.dtype for b in bias))
    return Spec((x.shape[0], rows, columns, kernel.shape[3]), dtype)


DEVICE_BYTES = 1 << 28
"""Bytes of windows that are copied at once on a GPU; those of a whole batch may be many gigabytes."""


def _chunks(x: Array, height: WindowAxis, width: WindowAxis) -> list[slice]:
    """Return parts of a batch with windows of at most ``DEVICE_BYTES``, at least one image each."""
    of_image = height.count * width.count * height.size * width.size * x.shape[3] * x.dtype.itemsize
    step = max(DEVICE_BYTES // max(of_image, 1), 1)
    return [slice(i, i + step) for i in range(0, len(x), step)]


def _forward(
    xp: Any,
    x: Array,
    kernel: Array,
    *bias: Array,
    strides: Pair,
    padding: str,
    relu: bool = False,
    dilation: Pair = (1, 1),
) -> Array:
    height, width = axes_of(x.shape, kernel.shape[:2], strides, padding, dilation)
    y: Array = xp.empty(
        (len(x), height.count, width.count, kernel.shape[3]), xp.result_type(x, kernel, *bias)
    )
    for chunk in _chunks(x, height, width):
        windows = windows_of(xp, padded(xp, x[chunk], height, width), height, width)
        y[chunk] = xp.tensordot(windows, kernel, 3)
    for b in bias:
        xp.add(y, b, out=y)
    return xp.maximum(y, 0, out=y) if relu else y


def _vjp(
    np: Any, g: Tensor, y: Tensor, x: Tensor, kernel: Tensor, *bias: Tensor, relu: bool = False, **how: Any
) -> list[Tensor]:
    if relu:
        g = record("relu_grad", g, y)
    return [
        record("conv2d_to_input", g, kernel, x, **how),
        record("conv2d_to_kernel", g, x, kernel, **how),
        *(record("sum_to_like", g, b) for b in bias),
    ]


def _to_input(
    xp: Any, g: Array, kernel: Array, like: Array, strides: Pair, padding: str, dilation: Pair = (1, 1)
) -> Array:
    """Return the gradient of the images: each window's gradient is added at the window's place."""
    height, width = axes_of(like.shape, kernel.shape[:2], strides, padding, dilation)
    out = xp.zeros(like.shape, xp.result_type(g, kernel))
    for i in range(height.size):
        for j in range(width.size):
            (rows, y), (columns, x) = height.inside(i), width.inside(j)
            out[:, y, x] += g[:, rows, columns] @ kernel[i, j].T
    return out  # type: ignore[no-any-return]


def _to_kernel(
    xp: Any, g: Array, x: Array, like: Array, strides: Pair, padding: str, dilation: Pair = (1, 1)
) -> Array:
    """Return the gradient of the kernel: windows of the images times the gradient of the result."""
    height, width = axes_of(x.shape, like.shape[:2], strides, padding, dilation)
    total: Array = xp.zeros(like.shape, xp.result_type(g, x))
    for chunk in _chunks(x, height, width):
        windows = windows_of(xp, padded(xp, x[chunk], height, width), height, width)
        total += xp.tensordot(windows, g[chunk], ((0, 1, 2), (0, 1, 2)))
    return total


def _planned(
    forward: Callable[..., Array], plan: Callable[..., Callable[..., None]]
) -> Callable[..., Callable[..., None]]:
    def into(xp: Any, **how: Any) -> Callable[..., None]:
        if xp is np:
            return in_float32(plan(**how))
        return lambda *arrays: xp.copyto(arrays[-1], forward(xp, *arrays[:-1], **how))

    return into


def _gradient_spec(images: int, kernel: int) -> Callable[..., Spec]:
    """Return a gradient's spec; the inputs at these indices are images and kernel, or have their shapes."""

    def spec(*inputs: Spec, strides: Pair, padding: str, dilation: Pair = (1, 1)) -> Spec:
        g, used, like = inputs
        how: dict[str, Any] = {"strides": strides, "padding": padding, "dilation": dilation}
        result = _spec(inputs[images], inputs[kernel], **how)
        if not fits(g.shape, result.shape):
            raise InvalidArgumentError(
                f"conv2d: a gradient of shape {show(g.shape)} for a result of {show(result.shape)}"
            )
        return Spec(like.shape, np.result_type(g.dtype, used.dtype))

    return spec


# NumPy kernels: blocks of a few images, planned once, then matrix products.
#
# A program has fixed shapes, so each kernel plans at its first call. Views of a block of images are kept as
# long as the images are in the same array (a buffer of the program), and made again for another (a batch).

BLOCK_BYTES = 1 << 18
"""Bytes of copied windows: a part of the L2 cache, with room for the other factor and the result."""
NARROW = 16  # elements of a window's row: below this, copying along the image's rows is faster


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


def _kept(plan: Callable[..., Callable[..., None]]) -> Callable[..., None]:
    """Return a kernel that plans at the first call."""
    planned: list[Callable[..., None]] = []

    def kernel(*arrays: Array) -> None:
        if not planned:
            planned.append(plan(*arrays))
        planned[0](*arrays)

    return kernel


class _Windows:
    """The windows of images, copied block by block into one buffer as the rows of a matrix.

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
        if self.turned:  # transposed, elements first: long copies along the images' rows
            windows = windows.transpose(3, 4, 5, 0, 1, 2)
            columns = self.memory[:, : stop - start].T
            target = columns.T[: self.window].reshape(windows.shape)  # a view: axes are split
            return start, stop, columns, target, windows, inside, images
        # One row of a window is contiguous in the image, unless it is dilated: copy it in one piece.
        merged = (*windows.shape[:4], windows.shape[4] * windows.shape[5])
        if source.flags.c_contiguous and self.width.dilation == 1:
            windows = np.lib.stride_tricks.as_strided(
                windows, merged, (*windows.strides[:4], source.itemsize)
            )
        columns = self.memory[: stop - start]
        target = columns[:, : self.window].reshape(windows.shape)
        return start, stop, columns, target, windows, inside, images


def _bordered(x: Array, images: int, height: WindowAxis, width: WindowAxis) -> Array | None:
    """Return zeros for a block of images with their padding, or None if there is no padding."""
    if not any((height.before, height.after, width.before, width.after)):
        return None
    tall, wide = height.before + height.n + height.after, width.before + width.n + width.after
    return np.zeros((images, tall, wide, x.shape[3]), x.dtype)


define(
    "conv2d",
    forward=product_forward(_forward),
    into=_planned(_forward, forward_kernel),
    spec=_spec,
    vjp=_vjp,
)


def input_kernel(strides: Pair, padding: str, dilation: Pair = (1, 1)) -> Callable[..., None]:
    """Return ``kernel(g, kernel, like, out)``, which computes the gradient of the images."""

    def plan(g: Array, kernel: Array, like: Array, out: Array) -> Callable[..., None]:
        height, width = axes_of(like.shape, kernel.shape[:2], strides, padding, dilation)
        one_by_one = height.step == 1 == width.step and width.dilation == 1
        return (_rows_to_input if one_by_one else _columns_to_input)(g, kernel, out, height, width)

    return _kept(plan)


def _rows_to_input(
    g: Array, kernel: Array, out: Array, height: WindowAxis, width: WindowAxis
) -> Callable[..., None]:
    """Plan for windows one step apart: one product for each row of the kernel, on copied rows of ``g``.

    Column ``x`` gets its gradient from ``width.size`` neighbouring columns of a row of ``g``. Zeros at both
    ends of the rows of ``g`` give every column that many neighbours, in one piece.
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


def _columns_to_input(
    g: Array, kernel: Array, out: Array, height: WindowAxis, width: WindowAxis
) -> Callable[..., None]:
    """Plan for any steps: one product gives the gradients of all windows, which are added at their places."""
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


define(
    "conv2d_to_input",
    forward=product_forward(_to_input),
    into=_planned(_to_input, input_kernel),
    spec=_gradient_spec(2, 1),
    vjp=lambda np, up, y, g, kernel, like, **how: (
        record("conv2d", up, kernel, **how),
        record("conv2d_to_kernel", g, up, kernel, **how),
        None,
    ),
    shape_only=frozenset({2}),
)


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


define(
    "conv2d_to_kernel",
    forward=product_forward(_to_kernel),
    into=_planned(_to_kernel, kernel_kernel),
    spec=_gradient_spec(1, 2),
    vjp=lambda np, up, y, g, x, like, **how: (
        record("conv2d", x, up, **how),
        record("conv2d_to_input", g, up, x, **how),
        None,
    ),
    shape_only=frozenset({2}),
)
