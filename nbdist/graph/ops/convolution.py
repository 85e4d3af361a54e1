"""Convolution of images (batch, height, width, channels) with kernels (height, width, in, out).

    y = conv2d(x, kernel, bias), optionally through relu

The kernels work on a few images at a time, so that the copied windows (im2col; Chellapilla et al. 2006)
stay in the second-level cache between being written and being multiplied. The gradients are convolutions
again, so that theirs are, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Example, Op, Spec, fits, register, show
from nbdist.graph.ops.convolution_kernels import forward_kernel, input_kernel, kernel_kernel
from nbdist.graph.ops.windows import Pair, axes_of, padded, pair, window_counts, windows_of
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
            f"conv2d: images of {x.shape[3]} channels meet a kernel for {kernel.shape[2]}: "
            f"shapes {show(x.shape)} and {show(kernel.shape)}"
        )
    dtype = np.result_type(x.dtype, kernel.dtype, *(b.dtype for b in bias))
    return Spec((x.shape[0], rows, columns, kernel.shape[3]), dtype)


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
    windows = windows_of(xp, padded(xp, x, height, width), height, width)
    y: Array = xp.tensordot(windows, kernel, 3)
    for b in bias:
        y = y + b
    return xp.maximum(y, 0) if relu else y


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
    """Return the gradient of the images: each window's part is added where the window was."""
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
    """Return the gradient of the kernel: what each of its elements met, times what came of it."""
    height, width = axes_of(x.shape, like.shape[:2], strides, padding, dilation)
    windows = windows_of(xp, padded(xp, x, height, width), height, width)
    return xp.tensordot(windows, g, ((0, 1, 2), (0, 1, 2)))  # type: ignore[no-any-return]


def _planned(
    forward: Callable[..., Array], plan: Callable[..., Callable[..., None]]
) -> Callable[..., Callable[..., None]]:
    def into(xp: Any, **how: Any) -> Callable[..., None]:
        if xp is np:
            return plan(**how)
        return lambda *arrays: xp.copyto(arrays[-1], forward(xp, *arrays[:-1], **how))

    return into


def _gradient_spec(images: int, kernel: int) -> Callable[..., Spec]:
    """Return a gradient's spec; the inputs at these places are images and kernel, or have their shapes."""

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


_CASES: list[tuple[tuple[int, ...], tuple[int, ...], Pair, str]] = [
    ((2, 5, 6, 2), (3, 3, 2, 3), (1, 1), "valid"),
    ((2, 5, 6, 2), (3, 2, 2, 3), (1, 1), "same"),
    ((1, 7, 6, 1), (3, 3, 1, 2), (2, 2), "same"),
    ((2, 6, 7, 2), (2, 4, 2, 1), (2, 1), "valid"),
    ((1, 4, 4, 9), (1, 1, 9, 2), (1, 3), "same"),
    ((1, 3, 3, 1), (4, 4, 1, 1), (1, 1), "same"),
]


_DILATED: list[tuple[tuple[int, ...], tuple[int, ...], Pair, str, Pair]] = [
    ((2, 7, 8, 2), (3, 3, 2, 3), (1, 1), "valid", (2, 2)),
    ((2, 6, 7, 1), (3, 2, 1, 2), (1, 1), "same", (2, 3)),
    ((1, 9, 8, 2), (3, 2, 2, 2), (2, 1), "same", (2, 2)),
    ((1, 5, 12, 9), (1, 3, 9, 2), (1, 2), "valid", (1, 3)),  # windows too wide to be copied turned
    ((1, 3, 3, 1), (2, 2, 1, 1), (1, 1), "same", (4, 4)),
]


def _cases() -> list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    plain = [(x, k, {"strides": s, "padding": p}) for x, k, s, p in _CASES]
    return plain + [(x, k, {"strides": s, "padding": p, "dilation": d}) for x, k, s, p, d in _DILATED]


def _examples(rng: np.random.Generator) -> list[Example]:
    plain = [
        Example((rng.normal(size=x), rng.normal(size=k)), {**how, "relu": False}) for x, k, how in _cases()
    ]
    x, k, s, p = _CASES[0]
    biased = (rng.normal(size=x), rng.normal(size=k), rng.normal(size=k[-1]))
    return plain + [Example(biased, {"strides": s, "padding": p, "relu": relu}) for relu in (False, True)]


def _gradient_examples(first: int, second: int) -> Callable[[np.random.Generator], list[Example]]:
    """Return examples of a gradient: of the result's shape, of one input, and the shape of the other."""

    def examples(rng: np.random.Generator) -> list[Example]:
        found = []
        for *case, how in _cases():
            f = np.dtype(np.float64)
            result = _spec(Spec(case[0], f), Spec(case[1], f), **how)
            g = rng.normal(size=[n or 0 for n in result.shape])
            used, like = case[first], case[second]
            found.append(Example((g, rng.normal(size=used), np.zeros(like)), how))
        return found

    return examples


register(
    Op(
        "conv2d",
        forward=_forward,
        into=_planned(_forward, forward_kernel),
        spec=_spec,
        vjp=_vjp,
        examples=_examples,
    )
)
register(
    Op(
        "conv2d_to_input",
        forward=_to_input,
        into=_planned(_to_input, input_kernel),
        spec=_gradient_spec(2, 1),
        vjp=lambda np, up, y, g, kernel, like, **how: (
            record("conv2d", up, kernel, **how),
            record("conv2d_to_kernel", g, up, kernel, **how),
            None,
        ),
        shape_only=frozenset({2}),
        examples=_gradient_examples(1, 0),
    )
)
register(
    Op(
        "conv2d_to_kernel",
        forward=_to_kernel,
        into=_planned(_to_kernel, kernel_kernel),
        spec=_gradient_spec(1, 2),
        vjp=lambda np, up, y, g, x, like, **how: (
            record("conv2d", x, up, **how),
            record("conv2d_to_input", g, up, x, **how),
            None,
        ),
        shape_only=frozenset({2}),
        examples=_gradient_examples(0, 1),
    )
)
