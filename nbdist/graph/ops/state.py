"""Ops on variables: read, copy and assign; and group, which runs only for its inputs' effects."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError, NanLossError
from nbdist.graph.backend import Array
from nbdist.graph.op import Spec, define, fits, show
from nbdist.graph.scopes import default_graph
from nbdist.graph.tensor import Tensor, record


def group(*ops: Tensor, name: str | None = None) -> Tensor:
    """Return an op that runs all of ``ops``; a session returns None for it.

    >>> from nbdist.graph.tensor import Graph, Variable
    >>> with Graph().as_default():
    ...     a, b = Variable(1.0), Variable(2.0)
    ...     group(a.assign(3.0), b.assign(4.0))
    <Tensor 'group' () bool>
    """
    for op in ops:
        if not isinstance(op, Tensor):
            raise InvalidArgumentError(f"group takes ops and tensors, got {op!r}")
    graph = ops[0].graph if ops else default_graph()
    made = record("group", name=name) if graph is default_graph() else _in(graph, name)
    made.control_inputs = tuple(dict.fromkeys((*made.control_inputs, *ops)))
    return made


def _in(graph: Any, name: str | None) -> Tensor:
    with graph.as_default():
        return record("group", name=name)


def _assign_spec(v: Spec, value: Spec) -> Spec:
    _check_shape(v, value)
    if not np.can_cast(value.dtype, v.dtype, "same_kind"):
        raise InvalidArgumentError(
            f"a variable of {v.dtype} takes no {value.dtype} value; convert it with .astype({v.dtype.name!r})"
        )
    return v


def _assign(xp: Any, v: Array, value: Array) -> Array:
    _check_shape(v, value)
    xp.copyto(v, value, casting="same_kind")
    return v


def _assign_add(xp: Any, v: Array, value: Array) -> Array:
    _check_shape(v, value)
    return xp.add(v, value, out=v, casting="same_kind")  # type: ignore[no-any-return]


def _assign_sub(xp: Any, v: Array, value: Array) -> Array:
    _check_shape(v, value)
    return xp.subtract(v, value, out=v, casting="same_kind")  # type: ignore[no-any-return]


def _check_shape(v: Array | Spec, value: Array | Spec) -> None:
    # Shapes of arrays differ where a size was unknown; NumPy would broadcast a row.
    if v.shape != value.shape and not fits(v.shape, value.shape):
        raise InvalidArgumentError(
            f"a variable of shape {show(v.shape)} takes no value of {show(value.shape)}"
        )


for _name, _forward in (("assign", _assign), ("assign_add", _assign_add), ("assign_sub", _assign_sub)):
    define(_name, forward=_forward, spec=_assign_spec, writes=frozenset({0}), replaces=_name == "assign")


define(  # the value after the control inputs have run
    "read",
    forward=lambda xp, x: x,
    spec=lambda x: x,
    vjp=lambda np, g, y, x: (g,),
    sparse_vjp=lambda np, g, y, x: (g,),
    view=True,
)
define(  # the current value, which later assignments do not change
    "copy",
    forward=lambda xp, x: xp.array(x),
    into=lambda xp: lambda x, out: xp.copyto(out, x),
    spec=lambda x: x,
    vjp=lambda np, g, y, x: (g,),
)


def _check_finite(xp: Any, x: Array) -> Array:
    if not xp.isfinite(x).all():
        raise NanLossError(f"the loss is {'NaN' if xp.isnan(x).any() else 'infinite'}")
    return x


define(  # raises before any op that depends on it runs
    "check_finite",
    forward=_check_finite,
    spec=lambda x: x,
    has_value=False,
)
define("group", forward=lambda xp: xp.zeros((), bool), spec=lambda: Spec((), np.dtype(bool)), has_value=False)
