"""An op is one record of kernel, gradient and shape inference.

    tanh = define(
        "tanh",
        forward=lambda xp, x: xp.tanh(x),
        into=lambda xp: xp.tanh,
        vjp=lambda np, g, y, x: (g * (1 - y * y),),
        spec=same_as_input,
    )

No code outside depends on an op's name, but for the forms of ONNX (`serialize.onnx`) and XLA (`xla.forms`).
An op is complete once it is in the table. The tests compare each op's gradient with finite differences, on
the inputs in tests/op_inputs.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array

Shape: TypeAlias = tuple[int | None, ...]
"""A shape; None stands for a size that is known only when the graph runs."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of a tensor, known before the graph runs."""

    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.

    ``forward(xp, *arrays, **attrs)`` returns the value. ``spec(*specs, **attrs)`` returns shape and dtype,
    or raises. ``vjp(np, g, y, *tensors, **attrs)`` returns one symbolic gradient (or None) per input;
    ``sparse_vjp`` replaces it where gradients may be IndexedSlices, which it takes and returns.
    ``into(xp, **attrs)`` returns a kernel ``kernel(*arrays, out)`` that writes its value into a planned
    buffer. A ``view`` op's value shares its first input's memory whenever NumPy can (an op that also has
    ``into`` is a view only where shape and dtype stay the same, and computes otherwise). An ``elementwise``
    op computes each element of its value from one element of each input, so that it can be run block by
    block; ``cuda`` is that computation in CUDA C, of ``a``, ``b`` and ``c`` in the type ``W``, so that a
    chain of such ops is one kernel on a GPU. A kernel may overwrite an input that has no later use if its
    index is in ``in_place`` (by default all inputs of an elementwise op, none of others).
    ``scratch(*specs, **attrs)`` returns the dtype of memory of the value's shape that NumPy's kernel takes
    before ``out``, None for none; a GPU's kernel takes none, because it keeps inner values in registers. Of
    the inputs in ``shape_only`` only the shape is read. An op that ``writes`` changes those inputs
    (variables) in place (it ``replaces`` them if it does not read their old values); its value is the first
    of them. The kernel of an ``external`` op (a send, a data source) comes from the executor of the program.
    ``has_value`` is false for an op that runs for its effect only. An op that ``waits`` may wait for other
    steps: it runs after all ops that do not depend on it.
    """

    name: str
    forward: Callable[..., Array]
    spec: Callable[..., Spec]
    vjp: Callable[..., Sequence[Any]] | None = None
    sparse_vjp: Callable[..., Sequence[Any]] | None = None
    into: Callable[..., Callable[..., Any]] | None = None
    view: bool = False
    elementwise: bool = False
    cuda: str | None = None
    in_place: frozenset[int] | None = None
    scratch: Callable[..., np.dtype[Any] | None] | None = None
    shape_only: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    replaces: bool = False
    external: bool = False
    waits: bool = False
    has_value: bool = True


OPS: dict[str, Op] = {}
"""Every op by name."""


def register(op: Op) -> Op:
    """Put an op in the table; its name must be free."""
    if op.name in OPS:
        raise InvalidArgumentError(f"op {op.name!r} is in the table already")
    OPS[op.name] = op
    return op


P = ParamSpec("P")


def _registered(make: Callable[P, Op]) -> Callable[P, Op]:
    return lambda *args, **kwargs: register(make(*args, **kwargs))


define = _registered(Op)
"""Makes an `Op` of its arguments, and puts it in the table."""


def define_into(
    name: str, into: Callable[..., Callable[..., Any]], spec: Callable[..., Spec], **more: Any
) -> Op:
    """Define an op by its kernel alone, which the forward function has write into new memory."""

    def forward(xp: Any, *inputs: Array, **attrs: Any) -> Array:
        result = spec(*(Spec(array.shape, array.dtype) for array in inputs), **attrs)
        out: Array = xp.empty(result.shape, result.dtype)
        into(xp, **attrs)(*inputs, out)
        return out

    return define(name, forward=forward, into=into, spec=spec, **more)


def define_external(name: str, spec: Callable[..., Spec], **more: Any) -> Op:
    """Define an op that the executor of its program performs itself."""

    def forward(*inputs: Any, **attrs: Any) -> Any:
        raise RuntimeError(f"op {name!r} has no kernel: the executor of its program performs it")

    return define(name, forward=forward, spec=spec, external=True, **more)


def show(shape: Shape) -> str:
    """Write a shape the way NumPy does, with ``?`` for an unknown size.

    >>> show((None, 3))
    '(?, 3)'
    """
    inner = ", ".join("?" if n is None else str(n) for n in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def broadcast(name: str, *shapes: Shape) -> Shape:
    """Return the shape that arrays of these shapes broadcast to; unknown sizes stay unknown.

    >>> broadcast("add", (None, 3), (3,))
    (None, 3)
    """
    result: list[int | None] = []
    for position in range(1, max(map(len, shapes), default=0) + 1):
        sizes = {s[-position] for s in shapes if len(s) >= position} - {1}
        known = sizes - {None}
        if len(known) > 1:
            raise InvalidArgumentError(
                f"{name}: shapes {' and '.join(map(show, shapes))} do not broadcast: "
                f"sizes {' and '.join(map(str, sorted(n for n in known if n is not None)))} differ"
            )
        result.append(known.pop() if known else (None if None in sizes else 1))
    return tuple(reversed(result))


def fits(shape: Sequence[int | None], other: Sequence[int | None]) -> bool:
    """Return whether two shapes may be equal: as many dimensions, and no two known sizes that differ.

    >>> fits((None, 3), (2, 3)), fits((2,), (2, 3))
    (True, False)
    """
    pairs = zip(shape, other, strict=False)
    return len(shape) == len(other) and all(a == b or None in (a, b) for a, b in pairs)


def check_gradient(name: str, g: Spec, expected: Spec) -> None:
    """Raise InvalidArgumentError unless a gradient has the shape of its variable or tensor."""
    if not fits(g.shape, expected.shape):
        raise InvalidArgumentError(
            f"{name}: a gradient of shape {show(g.shape)}; expected {show(expected.shape)}"
        )


def gradient_spec(name: str, forward: Callable[..., Spec]) -> Callable[..., Spec]:
    """Return the spec of ``name``, whose inputs are a gradient, the ``like`` whose shape it gets, and others.

    ``forward(like, *others, **attrs)`` is the spec of the op whose value the gradient belongs to.
    """

    def spec(g: Spec, like: Spec, *others: Spec, **attrs: Any) -> Spec:
        check_gradient(name, g, forward(like, *others, **attrs))
        return Spec(like.shape, g.dtype)

    return spec


def whole(what: str, value: Any) -> int:
    """Return a whole number as an int: Python's or NumPy's, or an array of one.

    >>> whole("axis", np.int64(1))
    1
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} is a whole number, got {value!r}") from None


def whole_axes(name: str, axis: Any) -> int | tuple[int, ...] | None:
    """Return an axis, several, or None, as NumPy's functions take them, in Python's own numbers."""
    if isinstance(axis, (tuple, list)):
        return tuple(whole(f"{name}: axis", a) for a in axis)
    return None if axis is None else whole(f"{name}: axis", axis)


def listed_axes(name: str, axis: Any) -> tuple[int, ...]:
    """Return an axis, or several, in their order; None stands for none."""
    found = whole_axes(name, axis)
    return found if isinstance(found, tuple) else () if found is None else (found,)


def number_dtype(what: str, dtype: Any) -> np.dtype[Any]:
    """Return a dtype that tensors hold: real numbers and booleans.

    >>> number_dtype("placeholder", "float32")
    dtype('float32')
    """
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{what}: {dtype!r} is not a dtype; give np.float32, say") from None
    if found.kind == "c":
        raise InvalidArgumentError(
            f"{what}: {found} is complex, and tensors hold real numbers: keep the real and the imaginary "
            "part in two tensors (z.real, z.imag)"
        )
    if found.kind not in "biuf":
        raise InvalidArgumentError(f"{what}: tensors hold numbers and booleans, not {found}")
    return found


def number_array(what: str, value: Any, dtype: Any = None) -> Array:
    """Return a new array of the numbers in ``value``; InvalidArgumentError for all else."""
    wanted = None if dtype is None else number_dtype(what, dtype)
    try:
        array = np.array(value, dtype=wanted)
    except OverflowError:
        raise InvalidArgumentError(f"{what}: {value!r} does not fit {wanted}; use a larger dtype") from None
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{what}: expected a number or an array of numbers, with rows of one length, got {value!r}; "
            f"NumPy's error: {error}"
        ) from None
    if array.dtype.kind not in "biufc":
        raise InvalidArgumentError(f"{what}: expected a tensor, an array or a number, got {value!r}")
    number_dtype(what, array.dtype)
    if array.dtype.kind in "iu" and isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iu":
        require_range(what, np.asarray(value), array.dtype)
    return array


def require_range(what: str, numbers: Array, dtype: np.dtype[Any]) -> None:
    """Raise InvalidArgumentError, which names one, if whole ``numbers`` do not fit an integer dtype."""
    limits = np.iinfo(dtype)
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
    if low < limits.min or high > limits.max:
        raise InvalidArgumentError(
            f"{what} takes whole numbers from {limits.min} to {limits.max}; "
            f"got {high if high > limits.max else low}"
        )


def shape_of(what: str, shape: Any) -> Shape:
    """Return a declared shape: a list or tuple of sizes, None for those that each run may choose."""
    if not isinstance(shape, (tuple, list)):
        raise InvalidArgumentError(f"{what}: a shape is a tuple of sizes, got {shape!r}; (3,) is one of 3")
    sizes = tuple(None if n is None else whole(f"{what}: a size in a shape", n) for n in shape)
    if any(n is not None and n < 0 for n in sizes):
        raise InvalidArgumentError(
            f"{what}: the shape {show(sizes)} has a size below 0; None is a size that each run chooses"
        )
    return sizes


def floating(name: str, *specs: Spec) -> None:
    """Raise InvalidArgumentError unless all values are floating-point numbers.

    >>> floating("softmax", Spec((3,), np.dtype(np.float32)))
    """
    for spec in specs:
        if spec.dtype.kind != "f":
            raise InvalidArgumentError(
                f"{name} takes floating-point numbers, got {spec.dtype}: convert them with "
                ".astype(np.float32) first"
            )


def normal_axes(name: str, axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return axes as sorted non-negative numbers; None means all.

    >>> normal_axes("sum", -1, 2)
    (1,)
    """
    found = whole_axes(name, axis)
    axes = tuple(range(ndim)) if found is None else (found,) if isinstance(found, int) else found
    for a in axes:
        if not -ndim <= a < ndim:
            raise InvalidArgumentError(f"{name}: axis {a} is out of range for {ndim} dimensions")
    result = tuple(sorted(a % ndim for a in axes))
    if len(set(result)) != len(result):
        raise InvalidArgumentError(f"{name}: axis {axis} names one axis twice")
    return result
