"""An op is one record: its value, its gradient and its shape stand together.

    tanh = register(Op(
        "tanh",
        forward=lambda xp, x: xp.tanh(x),
        into=lambda xp: xp.tanh,
        vjp=lambda np, g, y, x: (g * (1 - y * y),),
        spec=same_as_input,
    ))

The engine that walks ops knows none by name. An op is finished when it is in the table: a
finite-difference test walks the table through each op's ``examples``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array

Shape: TypeAlias = tuple[int | None, ...]
"""A shape; None stands for a size that is known only when the graph runs."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What is known of a tensor before it runs."""

    shape: Shape
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Example:
    """Inputs on which an op's gradient is compared with finite differences."""

    inputs: tuple[Array, ...]
    attrs: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation.

    ``forward(xp, *arrays, **attrs)`` returns the value. ``spec(*specs, **attrs)`` returns shape and dtype,
    or raises. ``vjp(np, g, y, *tensors, **attrs)`` returns one symbolic gradient (or None) per input;
    ``sparse_vjp`` is asked instead where gradients may be IndexedSlices, which it takes and returns.
    ``into(xp, **attrs)`` returns a kernel ``kernel(*arrays, out)`` that writes its value into a planned
    buffer. A ``view`` op's value shares its first input's memory whenever NumPy can (one that has ``into`` as
    well is a view only where shape and dtype stay as they are, and computes otherwise). An ``elementwise``
    op computes each element of its value from one element of each input, so that it can be run block by
    block. A kernel may write over an input that is not needed any more if that is one of ``in_place`` (by
    default any of an elementwise op's inputs, none of others'). ``scratch(*specs, **attrs)`` returns the
    dtype of memory of the value's shape that the kernel takes before ``out``, None for none. Of the inputs
    in ``shape_only`` nothing but the shape is read. An op that ``writes`` changes those inputs (variables)
    in place (it ``replaces`` them if it does not look at what they were); its value is the first of them.
    An ``external`` op's kernel is given by what runs the program (a send, a data source). ``has_value`` is
    false for what is run for its effect only. An op that ``waits`` may do so for what other steps do: it
    comes after all that a step can do without it.
    """

    name: str
    forward: Callable[..., Array]
    spec: Callable[..., Spec]
    vjp: Callable[..., Sequence[Any]] | None = None
    sparse_vjp: Callable[..., Sequence[Any]] | None = None
    into: Callable[..., Callable[..., Any]] | None = None
    view: bool = False
    elementwise: bool = False
    in_place: frozenset[int] | None = None
    scratch: Callable[..., np.dtype[Any] | None] | None = None
    shape_only: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    replaces: bool = False
    external: bool = False
    waits: bool = False
    has_value: bool = True
    examples: Callable[[np.random.Generator], list[Example]] | None = None


OPS: dict[str, Op] = {}
"""Every op by name."""


def register(op: Op) -> Op:
    """Put an op in the table; its name must be free."""
    if op.name in OPS:
        raise InvalidArgumentError(f"op {op.name!r} is in the table already")
    OPS[op.name] = op
    return op


def show(shape: Shape) -> str:
    """Write a shape the way NumPy does, with ``?`` for what is not known yet.

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


def normal_axes(name: str, axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    """Return axes as sorted non-negative numbers; None means all.

    >>> normal_axes("sum", -1, 2)
    (1,)
    """
    axes = tuple(range(ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    for a in axes:
        if not -ndim <= a < ndim:
            raise InvalidArgumentError(f"{name}: axis {a} is out of range for {ndim} dimensions")
    result = tuple(sorted(a % ndim for a in axes))
    if len(set(result)) != len(result):
        raise InvalidArgumentError(f"{name}: axis {axis} names one axis twice")
    return result
