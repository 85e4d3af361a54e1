"""A graph as one pure function of arrays, which ``jax.jit`` traces and XLA compiles.

    step = pure_function([loss], feeds=[x, y], shapes=[(32, 784), (32,)], variables=[w, b])
    (loss_value,), (w_after, b_after) = jax.jit(step)([x_array, y_array], [w_array, b_array])

Where a program of NumPy writes into planned memory and assigns variables in place, this function takes their
values and returns the new ones. XLA plans the memory, fuses elementwise ops, and partitions the function for
several devices. Ops run in the program's order with their ``forward`` on jax.numpy, or with the form that
`forms` has for them. All shapes are static.

Values have the dtypes of the graph, int64 and float64 included: run the function inside ``wide_types()``. In
a graph whose ``half`` is "bfloat16" those of float16 are computed in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.compile.buffers import dummy
from nbdist.graph.compile.partition import describe
from nbdist.graph.compile.specs import Specs, value_order
from nbdist.graph.op import Shape, show
from nbdist.graph.ops.half import HALF
from nbdist.graph.tensor import Constant, Tensor, Variable
from nbdist.graph.xla.devices import jax_module
from nbdist.graph.xla.forms import FORMS, UPDATES, refusal

Pure: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]]
"""``function(fed, values) -> (fetched, new values)``."""


class Dtypes:
    """The dtypes that a graph's dtypes are computed in: themselves, but that float16 may be bfloat16."""

    def __init__(self, half: Any) -> None:
        self._half = half

    @classmethod
    def of(cls, jax: Any, tensors: Sequence[Tensor]) -> Dtypes:
        """Return those of the graph of some tensors."""
        bfloat16 = any(t.graph.half == "bfloat16" for t in tensors[:1])
        return cls(np.dtype(jax.numpy.bfloat16) if bfloat16 else HALF)

    def __getitem__(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return self._half if dtype == HALF else dtype

    def of_attributes(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the attributes of an op, of which some are dtypes."""
        return {
            name: self[np.dtype(one)] if isinstance(one, (np.dtype, type)) else one
            for name, one in attrs.items()
        }


def pure_function(
    fetches: Sequence[Tensor],
    *,
    feeds: Sequence[Tensor] = (),
    shapes: Sequence[Shape] = (),
    variables: Sequence[Variable] = (),
    updates: Mapping[Variable, Tensor] | None = None,
    order: Sequence[Tensor] | None = None,
) -> Pure:
    """Return what ``fetches`` need as ``function(fed, values) -> (fetched, new values)``.

    - ``feeds``: what is fed, with arrays of exactly ``shapes``
    - ``variables``: those that are read or assigned; ``values`` and the new values are in their order
    - ``updates``: new values of variables, beside those that assignments in the graph make
    - ``order``: the tensors to compute, inputs before users

    An op without a value is left out: checks of values raise in NumPy, and cannot in XLA. Raises
    InvalidArgumentError, which names op and line, for an op that XLA cannot run or whose shape depends on
    values, and for a placeholder or variable that is missing.
    """
    wanted = [*fetches, *(updates or {}).values()]
    specs = Specs.fed(feeds, shapes)
    ordered = list(value_order(wanted, specs, frozenset(feeds)) if order is None else order)
    _check(ordered, specs, feeds, variables)
    jax = jax_module()
    dtypes = Dtypes.of(jax, wanted)

    def function(fed: Sequence[Any], values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        found: dict[Tensor, Any] = {
            t: value.astype(dtypes[t.dtype]) for t, value in zip(feeds, fed, strict=True)
        }
        current: dict[Tensor, Any] = dict(zip(variables, values, strict=True))
        for node in ordered:
            if node in found:
                continue
            if isinstance(node, Variable):
                found[node] = current[node]
            elif isinstance(node, Constant):
                found[node] = jax.numpy.asarray(node.value, dtypes[node.dtype])
            elif node.op is not None and node.op.has_value:
                arguments = [
                    _argument(node, i, found, current, specs, dtypes) for i in range(len(node.inputs))
                ]
                found[node], written = _value(jax, node, arguments, specs, dtypes)
                for i, new in zip(sorted(node.op.writes), written, strict=True):
                    current[node.inputs[i]] = new
        for variable, new in (updates or {}).items():
            current[variable] = found[new]
        return [found[t] for t in fetches], [current[v] for v in variables]

    return function


def _argument(
    node: Tensor,
    i: int,
    found: Mapping[Tensor, Any],
    current: Mapping[Tensor, Any],
    specs: Specs,
    dtypes: Dtypes,
) -> Any:
    """Return an input of an op; a variable as it is now, and an array without memory for a shape."""
    source = node.inputs[i]
    assert node.op is not None
    if i in node.op.shape_only:
        return dummy(replace(specs[source], dtype=dtypes[source.dtype]))
    return current[source] if source in current else found[source]


def _value(
    jax: Any, node: Tensor, arguments: Sequence[Any], specs: Specs, dtypes: Dtypes
) -> tuple[Any, list[Any]]:
    """Run one op on tracers; return its value, and those of the variables that it changes.

    An error names the op.
    """
    assert node.op is not None
    op, spec, attrs = node.op, specs[node], dtypes.of_attributes(node.attrs)
    written: list[Any] = []
    try:
        if op.name in UPDATES:
            value, *_ = written = UPDATES[op.name](jax, *arguments, **attrs)
        elif op.name in FORMS:
            value = FORMS[op.name](jax, *arguments, **attrs)
        elif not node.inputs:  # such as an initial value: a constant of the function
            value = op.forward(np, **attrs)
        else:
            value = op.forward(jax.numpy, *arguments, **attrs)
    except (
        jax.errors.JAXTypeError,
        jax.errors.JAXIndexError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        raise InvalidArgumentError(
            f"{describe(node)} has no form that XLA compiles: {str(error).splitlines()[0]}. Compute it on a "
            "CPU or GPU (another strategy), or leave it out of the step"
        ) from error
    if value.shape != spec.shape:
        raise InvalidArgumentError(
            f"{describe(node)}: its spec is {show(spec.shape)}, its value under XLA is {show(value.shape)}"
        )
    dtype = dtypes[spec.dtype]
    value = value if value.dtype == dtype else value.astype(dtype)
    return value, written or [value for _ in op.writes]


def _check(
    ordered: Sequence[Tensor], specs: Specs, feeds: Sequence[Tensor], variables: Sequence[Variable]
) -> None:
    """Raise InvalidArgumentError for what cannot be part of a function of these arguments."""
    given: set[Tensor] = {*feeds, *variables}
    for node in ordered:
        if node in given or isinstance(node, Constant):
            continue
        if node.op is None:
            what = "a variable that the function does not take" if isinstance(node, Variable) else "to be fed"
            raise InvalidArgumentError(f"{node.name!r} is {what}")
        if node.op.external and node.op.name not in FORMS:
            raise InvalidArgumentError(
                f"{describe(node)} communicates, and XLA compiles a function of arrays: leave it out of the "
                "step, or use another strategy"
            )
        if reason := refusal(node, specs):
            raise InvalidArgumentError(f"{describe(node)} {reason}")
