"""Max and average pooling of images (batch, height, width, channels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Example, Op, Spec, fits, floating, register, show
from nbdist.graph.ops.windows import Pair, WindowAxis, axes_of, window_counts
from nbdist.graph.tensor import record

BLOCK_BYTES = 1 << 20
"""Bytes of images per block: large enough to amortize calls, small enough to stay in a cache."""
DEVICE_BLOCK_BYTES = 1 << 28
"""The same on a GPU, which has no such cache: each block costs launches, and temporaries of its size."""

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
    most = BLOCK_BYTES if isinstance(x, np.ndarray) else DEVICE_BLOCK_BYTES
    step = max(most * len(x) // max(x.nbytes, 1), 1)
    return [slice(i, i + step) for i in range(0, len(x), step)]


def _spec(name: str) -> Callable[..., Spec]:
    def spec(x: Spec, size: Pair, strides: Pair, padding: str) -> Spec:
        if name == "avg_pool2d":
            floating(name, x)
        rows, columns = window_counts(name, x.shape, size, strides, padding)
        return Spec((x.shape[0], rows, columns, x.shape[3]), x.dtype)

    return spec


def _empty(xp: Any, x: Array, size: Pair, strides: Pair, padding: str) -> Array:
    height, width = axes_of(x.shape, size, strides, padding)
    return xp.empty((len(x), height.count, width.count, x.shape[3]), x.dtype)  # type: ignore[no-any-return]


def _into(kernel: Callable[..., None], make: Callable[..., Array]) -> Callable[..., Array]:
    """Return a kernel's forward function: it allocates the result and fills it."""

    def forward(xp: Any, *arrays: Array, **how: Any) -> Array:
        out = make(xp, *arrays, **how)
        kernel(xp, *arrays, out, **how)
        return out

    return forward


def _kernel(function: Callable[..., None]) -> Callable[..., Callable[..., None]]:
    return lambda xp, **how: lambda *arrays: function(xp, *arrays, **how)


def _largest(xp: Any, x: Array, out: Array, size: Pair, strides: Pair, padding: str) -> None:
    spans = _spans(*axes_of(x.shape, size, strides, padding))
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    same = padding == "same"
    for block in _blocks(x):
        images, target = x[block], out[block]
        if same:
            target.fill(lowest)
        for n, (windows, elements) in enumerate(spans):
            if n == 0 and not same:
                target[windows] = images[elements]
            else:
                xp.maximum(target[windows], images[elements], out=target[windows])


def _which(xp: Any, y: Array, x: Array, out: Array, size: Pair, strides: Pair, padding: str) -> None:
    """Count, for each window, the elements before the first that is the largest."""
    spans = _spans(*axes_of(x.shape, size, strides, padding))
    for block in _blocks(x):
        images, largest, count = x[block], y[block], out[block]
        missed = xp.ones(count.shape, bool)
        count.fill(0)
        for windows, elements in spans[:-1]:
            part = missed[windows]
            xp.logical_and(part, images[elements] != largest[windows], out=part)
            xp.add(count, missed, out=count)


def _to_which(
    xp: Any, g: Array, which: Array, like: Array, out: Array, size: Pair, strides: Pair, padding: str
) -> None:
    """Give each window's gradient to one of its elements."""
    height, width = axes_of(like.shape, size, strides, padding)
    tiles = size == strides and like.shape[1:3] == (height.count * size[0], width.count * size[1])
    for block in _blocks(out):
        given, chosen, target = g[block], which[block], out[block]
        if not tiles:
            target.fill(0)
        for n, (windows, elements) in enumerate(_spans(height, width)):
            hit = chosen[windows] == n
            if tiles:
                xp.multiply(given[windows], hit, out=target[elements])
            else:
                target[elements] += given[windows] * hit


def _of_which(xp: Any, u: Array, which: Array, out: Array, size: Pair, strides: Pair, padding: str) -> None:
    """Pick one element of each window."""
    out.fill(0)
    for n, (windows, elements) in enumerate(_spans(*axes_of(u.shape, size, strides, padding))):
        out[windows] += u[elements] * (which[windows] == n)


_CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 4, 6, 2), {"size": (2, 2), "strides": (2, 2), "padding": "valid"}),
    ((1, 5, 6, 2), {"size": (2, 3), "strides": (2, 3), "padding": "same"}),
    ((2, 5, 5, 1), {"size": (3, 2), "strides": (1, 2), "padding": "valid"}),
    ((1, 5, 4, 2), {"size": (3, 3), "strides": (2, 1), "padding": "same"}),
    ((1, 7, 5, 1), {"size": (2, 2), "strides": (3, 2), "padding": "valid"}),
]


def _distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.permutation(np.arange(1.0, 1 + np.prod(shape))).reshape(shape)


def _examples(rng: np.random.Generator) -> list[Example]:
    return [Example((_distinct(rng, shape),), how) for shape, how in _CASES]


def _which_examples(of_windows: bool) -> Callable[[np.random.Generator], list[Example]]:
    """Return examples of (values by window, index of the element in each window)."""

    def examples(rng: np.random.Generator) -> list[Example]:
        found = []
        for shape, how in _CASES:
            x = _distinct(rng, shape)
            which = _which_forward(np, _max_forward(np, x, **how), x, **how)
            g = rng.normal(size=which.shape)
            if of_windows:
                found.append(Example((np.asarray(g), which, np.zeros(shape)), how))
            else:
                found.append(Example((np.asarray(rng.normal(size=shape)), which), how))
        return found

    return examples


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


_max_forward = _into(_largest, _empty)
_which_forward = _into(_which, lambda xp, y, x, size, **how: xp.empty(y.shape, _counter(size)))
register(
    Op(
        "max_pool2d",
        forward=_max_forward,
        into=_kernel(_largest),
        spec=_spec("max_pool2d"),
        vjp=lambda np, g, y, x, **how: (
            record("max_pool2d_to_which", g, record("max_pool2d_which", y, x, **how), x, **how),
        ),
        examples=_examples,
    )
)
register(
    Op(
        "max_pool2d_which",
        forward=_which_forward,
        into=_kernel(_which),
        spec=_which_spec,
    )
)
register(
    Op(
        "max_pool2d_to_which",
        forward=_into(_to_which, lambda xp, g, which, like, **how: xp.empty(like.shape, g.dtype)),
        into=_kernel(_to_which),
        spec=_to_which_spec,
        vjp=lambda np, up, out, g, which, like, **how: (
            record("max_pool2d_of_which", up, which, **how),
            None,
            None,
        ),
        shape_only=frozenset({2}),
        examples=_which_examples(of_windows=True),
    )
)
register(
    Op(
        "max_pool2d_of_which",
        forward=_into(_of_which, lambda xp, u, which, **how: xp.empty(which.shape, u.dtype)),
        into=_kernel(_of_which),
        spec=_of_which_spec,
        vjp=lambda np, g, out, u, which, **how: (
            record("max_pool2d_to_which", g, which, u, **how),
            None,
        ),
        examples=_which_examples(of_windows=False),
    )
)


def _counts(xp: Any, height: WindowAxis, width: WindowAxis, dtype: Any) -> Array:
    """Return how many elements of the image are in each window; padding does not count."""
    tall, wide = (
        sum((np.arange(a.count) >= a.inside(i)[0].start) & (np.arange(a.count) < a.inside(i)[0].stop)
            for i in range(a.size))
        for a in (height, width)
    )  # fmt: skip
    return xp.asarray(np.outer(tall, wide)[:, :, None], dtype)  # type: ignore[no-any-return]


def _averaging(function: Callable[..., None]) -> Callable[..., Callable[..., None]]:
    """Return a kernel that makes its counts once for each shape: in a CUDA graph nothing can be copied."""

    def into(xp: Any, **how: Any) -> Callable[..., None]:
        counts: dict[Any, Array] = {}

        def kernel(one: Array, *rest: Array) -> None:
            images = one if function is _mean else rest[-1]
            key = (images.shape[1:3], one.dtype)
            if key not in counts:
                counts[key] = _counts(xp, *axes_of(images.shape, **how), one.dtype)
            function(xp, one, *rest, counts=counts[key], **how)

        return kernel

    return into


def _averaged(function: Callable[..., None], make: Callable[..., Array]) -> Callable[..., Array]:
    """Return the forward function of such a kernel."""

    def forward(xp: Any, *arrays: Array, **how: Any) -> Array:
        out = make(xp, *arrays, **how)
        _averaging(function)(xp, **how)(*arrays, out)
        return out

    return forward


def _mean(xp: Any, x: Array, out: Array, counts: Array, size: Pair, strides: Pair, padding: str) -> None:
    spans = _spans(*axes_of(x.shape, size, strides, padding))
    for block in _blocks(x):
        images, target = x[block], out[block]
        target.fill(0)
        for windows, elements in spans:
            target[windows] += images[elements]
        xp.divide(target, counts, out=target)


def _spread(
    xp: Any, g: Array, like: Array, out: Array, counts: Array, size: Pair, strides: Pair, padding: str
) -> None:
    spans = _spans(*axes_of(like.shape, size, strides, padding))
    for block in _blocks(out):
        share, target = g[block] / counts, out[block]
        target.fill(0)
        for windows, elements in spans:
            target[elements] += share[windows]


register(
    Op(
        "avg_pool2d",
        forward=_averaged(_mean, _empty),
        into=_averaging(_mean),
        spec=_spec("avg_pool2d"),
        vjp=lambda np, g, y, x, **how: (record("avg_pool2d_grad", g, x, **how),),
        examples=_examples,
    )
)


def _spread_spec(g: Spec, like: Spec, **how: Any) -> Spec:
    floating("avg_pool2d", g)
    _check_windows("avg_pool2d_grad", like, g, **how)
    return Spec(like.shape, g.dtype)


register(
    Op(
        "avg_pool2d_grad",
        forward=_averaged(_spread, lambda xp, g, like, **how: xp.empty(like.shape, g.dtype)),
        into=_averaging(_spread),
        spec=_spread_spec,
        vjp=lambda np, up, y, g, like, **how: (record("avg_pool2d", up, **how), None),
        shape_only=frozenset({1}),
        examples=lambda rng: [
            Example((np.ones_like(_empty(np, np.zeros(shape), **how)), np.zeros(shape)), how)
            for shape, how in _CASES
        ],
    )
)
