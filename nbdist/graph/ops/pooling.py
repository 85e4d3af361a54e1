"""Max and average pooling of images (batch, height, width, channels)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.kernel import FLOATS, Kernel, define_kernel
from nbdist.graph.op import Spec, define_into, fits, floating, show
from nbdist.graph.ops.windows import Pair, WindowAxis, axes_of, window_counts
from nbdist.graph.tensor import record

BLOCK_BYTES = 1 << 20
"""Bytes of images per block: large enough to amortize calls, small enough to stay in a cache."""

Spans = list[tuple[tuple[slice, slice, slice], tuple[slice, slice, slice]]]


def _spans(height: WindowAxis, width: WindowAxis) -> Spans:
    """Return, for each element of a window, (its slices in the windows, its slices in the images)."""
    found: Spans = []
    for i in range(height.size):
        for j in range(width.size):
            (rows, y), (columns, x) = height.inside(i), width.inside(j)
            found.append(((slice(None), rows, columns), (slice(None), y, x)))
    return found


def _blocks(x: Array) -> list[slice]:
    step = max(BLOCK_BYTES * len(x) // max(x.nbytes, 1), 1)
    return [slice(i, i + step) for i in range(0, len(x), step)]


def _spec(name: str) -> Callable[..., Spec]:
    def spec(x: Spec, size: Pair, strides: Pair, padding: str) -> Spec:
        if name == "avg_pool2d":
            floating(name, x)
        rows, columns = window_counts(name, x.shape, size, strides, padding)
        return Spec((x.shape[0], rows, columns, x.shape[3]), x.dtype)

    return spec


# On a GPU a thread computes an element of the result: of a window, or of an image, which adds up the windows
# that it is in, in the order in which NumPy adds them. (In a window, an element has the number a * wide + b.)
GEOMETRY = (
    ", int64 height, int64 rows, int64 tall, int64 down, int64 top"
    ", int64 width, int64 columns, int64 wide, int64 across, int64 left, int64 channels"
)
OF_WINDOW = """
typedef Wide<T>::type W;
const long long channel = i % channels, column = i / channels % columns;
const long long row = i / channels / columns % rows, image = i / channels / columns / rows;
"""
EACH_ELEMENT = """
for (long long a = 0; a < tall; ++a) {
  const long long y = row * down + a - top;
  for (long long b = 0; b < wide; ++b) {
    const long long x = column * across + b - left;
    if (y < 0 || y >= height || x < 0 || x >= width) continue;
    const long long at = ((image * height + y) * width + x) * channels + channel;
"""
OF_ELEMENT = """
typedef Wide<T>::type W;
const long long channel = i % channels, x = i / channels % width;
const long long y = i / channels / width % height, image = i / channels / width / height;
"""
EACH_WINDOW = """
for (long long a = 0; a < tall; ++a) {
  const long long row = (y + top - a) / down;
  if (y + top < a || (y + top - a) % down || row >= rows) continue;
  for (long long b = 0; b < wide; ++b) {
    const long long column = (x + left - b) / across;
    if (x + left < b || (x + left - b) % across || column >= columns) continue;
    const long long at = ((image * rows + row) * columns + column) * channels + channel;
"""
END = "\n}\n}\n"


def _pooling_kernel(name: str, inputs: str, outputs: str, body: str) -> Kernel:
    types = {"T": FLOATS} | ({"K": ("uint8",) * len(FLOATS)} if "K " in inputs + outputs else {})
    return define_kernel(name, inputs + GEOMETRY, outputs, body, types=types)


MAX_POOL = _pooling_kernel(
    "max_pool2d",
    "raw T images",
    "raw T out",
    OF_WINDOW
    + "W best = 0; bool any = false;"
    + EACH_ELEMENT
    + "const W value = images[at]; if (!any || value > best || value != value) best = value; any = true;"
    + END
    + "out[i] = T(best);",
)
WHICH = _pooling_kernel(
    "max_pool2d_which",
    "raw T largest, raw T images",
    "raw K out",
    OF_WINDOW
    + "long long found = tall * wide - 1; const W sought = largest[i];"
    + EACH_ELEMENT
    + "if (W(images[at]) == sought && a * wide + b < found) found = a * wide + b;"
    + END
    + "out[i] = found;",
)
TO_WHICH = _pooling_kernel(
    "max_pool2d_to_which",
    "raw T g, raw K which",
    "raw T out",
    OF_ELEMENT
    + "W total = 0;"
    + EACH_WINDOW
    + "if ((long long)which[at] == a * wide + b) total += W(g[at]);"
    + END
    + "out[i] = T(total);",
)
OF_WHICH = _pooling_kernel(
    "max_pool2d_of_which",
    "raw T images, raw K which",
    "raw T out",
    OF_WINDOW
    + "W found = 0; const long long sought = which[i];"
    + EACH_ELEMENT
    + "if (a * wide + b == sought) found = images[at];"
    + END
    + "out[i] = T(found);",
)
MEAN = _pooling_kernel(
    "avg_pool2d",
    "raw T images",
    "raw T out",
    OF_WINDOW
    + "W total = 0; long long count = 0;"
    + EACH_ELEMENT
    + "total += W(images[at]); ++count;"
    + END
    + "out[i] = T(total / W(count));",
)
SPREAD = _pooling_kernel(
    "avg_pool2d_grad",
    "raw T g",
    "raw T out",
    OF_ELEMENT
    + "W total = 0;"
    + EACH_WINDOW
    + """
    const long long first = row * down - top, last = first + tall;
    const long long begin = column * across - left, end = begin + wide;
    const long long count = ((last < height ? last : height) - (first > 0 ? first : 0))
                          * ((end < width ? end : width) - (begin > 0 ? begin : 0));
    total += W(g[at]) / W(count);
    """
    + END
    + "out[i] = T(total);",
)


def _kernel(
    on_host: Callable[..., None], on_gpu: Kernel, reads: int, images: int = 0
) -> Callable[..., Callable[..., None]]:
    """Return what writes an op's value: of the windows along height and width, its inputs, and ``out``.

    The kernel ``on_gpu`` reads the first inputs only, ``reads`` of them. Windows are those of the input
    ``images``, of which only the shape may be used.
    """

    def bound(xp: Any, **how: Any) -> Callable[..., None]:
        def write(*arrays: Array) -> None:
            shape, out = arrays[images].shape, arrays[-1]
            axes = axes_of(shape, **how)
            if xp is np:
                on_host(*axes, *arrays)
            else:
                geometry = [n for a in axes for n in (a.n, a.count, a.size, a.step, a.before)]
                on_gpu(xp, *arrays[:reads], *geometry, shape[3], out, size=out.size)

        return write

    return bound


def _largest(height: WindowAxis, width: WindowAxis, x: Array, out: Array) -> None:
    spans = _spans(height, width)
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = any(a.before or a.after for a in (height, width))
    for block in _blocks(x):
        images, target = x[block], out[block]
        if padded:
            target.fill(lowest)
        for n, (windows, elements) in enumerate(spans):
            if n == 0 and not padded:
                target[windows] = images[elements]
            else:
                np.maximum(target[windows], images[elements], out=target[windows])


def _which(height: WindowAxis, width: WindowAxis, y: Array, x: Array, out: Array) -> None:
    """Count, for each window, the elements before the first that is the largest."""
    spans = _spans(height, width)
    for block in _blocks(x):
        images, largest, count = x[block], y[block], out[block]
        missed = np.ones(count.shape, bool)
        count.fill(0)
        for windows, elements in spans[:-1]:
            part = missed[windows]
            np.logical_and(part, images[elements] != largest[windows], out=part)
            np.add(count, missed, out=count)


def _to_which(height: WindowAxis, width: WindowAxis, g: Array, which: Array, like: Array, out: Array) -> None:
    """Give each window's gradient to one of its elements."""
    tiles = all(a.size == a.step and a.n == a.count * a.size for a in (height, width))
    for block in _blocks(out):
        given, chosen, target = g[block], which[block], out[block]
        if not tiles:
            target.fill(0)
        for n, (windows, elements) in enumerate(_spans(height, width)):
            hit = chosen[windows] == n
            if tiles:
                np.multiply(given[windows], hit, out=target[elements])
            else:
                target[elements] += given[windows] * hit


def _of_which(height: WindowAxis, width: WindowAxis, u: Array, which: Array, out: Array) -> None:
    """Pick one element of each window."""
    out.fill(0)
    for n, (windows, elements) in enumerate(_spans(height, width)):
        out[windows] += u[elements] * (which[windows] == n)


def _counter(size: Pair) -> np.dtype[Any]:
    return np.min_scalar_type(size[0] * size[1])


def _check_windows(name: str, images: Spec, *of_windows: Spec, **how: Any) -> None:
    """Raise unless inputs have the shape that the windows of the images give."""
    expected = _spec(name)(images, **how).shape
    for found in of_windows:
        if not fits(found.shape, expected):
            raise InvalidArgumentError(
                f"{name}: images {show(images.shape)} have windows {show(expected)}, got {show(found.shape)}"
            )


def _which_spec(y: Spec, x: Spec, size: Pair, strides: Pair, padding: str) -> Spec:
    _check_windows("max_pool2d_which", x, y, size=size, strides=strides, padding=padding)
    return Spec(y.shape, _counter(size))


def _to_which_spec(g: Spec, which: Spec, like: Spec, **how: Any) -> Spec:
    _check_windows("max_pool2d_to_which", like, g, which, **how)
    return Spec(like.shape, g.dtype)


def _of_which_spec(u: Spec, which: Spec, **how: Any) -> Spec:
    _check_windows("max_pool2d_of_which", u, which, **how)
    return Spec(which.shape, u.dtype)


define_into(
    "max_pool2d",
    into=_kernel(_largest, MAX_POOL, reads=1),
    spec=_spec("max_pool2d"),
    vjp=lambda np, g, y, x, **how: (
        record("max_pool2d_to_which", g, record("max_pool2d_which", y, x, **how), x, **how),
    ),
)
define_into("max_pool2d_which", _kernel(_which, WHICH, reads=2, images=1), _which_spec)
define_into(
    "max_pool2d_to_which",
    into=_kernel(_to_which, TO_WHICH, reads=2, images=2),
    spec=_to_which_spec,
    vjp=lambda np, up, out, g, which, like, **how: (
        record("max_pool2d_of_which", up, which, **how),
        None,
        None,
    ),
    shape_only=frozenset({2}),
)
define_into(
    "max_pool2d_of_which",
    into=_kernel(_of_which, OF_WHICH, reads=2),
    spec=_of_which_spec,
    vjp=lambda np, g, out, u, which, **how: (
        record("max_pool2d_to_which", g, which, u, **how),
        None,
    ),
)


@lru_cache(maxsize=64)
def _counts(height: WindowAxis, width: WindowAxis, dtype: Any) -> Array:
    """Return how many elements of the image are in each window; padding does not count."""
    tall, wide = (
        sum((np.arange(a.count) >= a.inside(i)[0].start) & (np.arange(a.count) < a.inside(i)[0].stop)
            for i in range(a.size))
        for a in (height, width)
    )  # fmt: skip
    return np.asarray(np.outer(tall, wide)[:, :, None], dtype)


def _mean(height: WindowAxis, width: WindowAxis, x: Array, out: Array) -> None:
    spans, counts = _spans(height, width), _counts(height, width, x.dtype)
    for block in _blocks(x):
        images, target = x[block], out[block]
        target.fill(0)
        for windows, elements in spans:
            target[windows] += images[elements]
        np.divide(target, counts, out=target)


def _spread(height: WindowAxis, width: WindowAxis, g: Array, like: Array, out: Array) -> None:
    spans, counts = _spans(height, width), _counts(height, width, g.dtype)
    for block in _blocks(out):
        share, target = g[block] / counts, out[block]
        target.fill(0)
        for windows, elements in spans:
            target[elements] += share[windows]


define_into(
    "avg_pool2d",
    into=_kernel(_mean, MEAN, reads=1),
    spec=_spec("avg_pool2d"),
    vjp=lambda np, g, y, x, **how: (record("avg_pool2d_grad", g, x, **how),),
)


def _spread_spec(g: Spec, like: Spec, **how: Any) -> Spec:
    floating("avg_pool2d", g)
    _check_windows("avg_pool2d_grad", like, g, **how)
    return Spec(like.shape, g.dtype)


define_into(
    "avg_pool2d_grad",
    into=_kernel(_spread, SPREAD, reads=1, images=1),
    spec=_spread_spec,
    vjp=lambda np, up, y, g, like, **how: (record("avg_pool2d", up, **how), None),
    shape_only=frozenset({1}),
)
