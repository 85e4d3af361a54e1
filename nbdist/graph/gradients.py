"""Reverse-mode differentiation: the gradient of a graph is a graph. No op is treated by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.composite import Composite
from nbdist.graph.op import fits, show
from nbdist.graph.partitioned import PartitionedVariable
from nbdist.graph.scopes import Graph
from nbdist.graph.sparse import IndexedSlices, add, as_dtype, dense
from nbdist.graph.tensor import Tensor, constant, symbolic

Gradient = Tensor | IndexedSlices


def gradients(ys: Any, xs: Any, grad_ys: Any = None) -> list[Any]:
    """Return d(sum of ys)/dx for each x, as tensors of the same graph; None where no y depends on x.

    A gradient has its x's dtype. Integers and booleans have no gradient: the result is None, and none
    propagates through them.

    ``ys`` and ``xs`` are tensors or lists of them; a partitioned variable stands for its shards. ``grad_ys``
    holds a gradient for each y (None: ones), so that the result is the sum of their products. Where an x
    is used by ``embedding_lookup`` alone, its gradient is an :class:`IndexedSlices`. The gradient of a tensor
    is computed on the tensor's device.

    Method: reverse-mode differentiation (Linnainmaa 1970), each op's rule taken from its record.

    >>> from nbdist.graph.tensor import Graph, Variable
    >>> with Graph().as_default():
    ...     x = Variable(np.ones(3), name="x")
    ...     gradients(np.sum(x * x), [x])[0].shape
    (3,)
    """
    targets, sources = [dense(y) for y in _listed(ys)], _listed(xs)
    given = [None] * len(targets) if grad_ys is None else _listed(grad_ys)
    if not targets:
        raise InvalidArgumentError("gradients: ys is empty; give a tensor to differentiate")
    _check(targets, sources, given)
    graph = targets[0].graph
    beside = _placed(graph)
    order = _reaching(targets, set(sources))
    # Parts of one device are added there, so that one sum is sent to x.
    sums: dict[Tensor, dict[str, Gradient]] = {}

    def collect(x: Tensor, gradient: Gradient, device: str) -> None:
        found = sums.setdefault(x, {})
        found[device] = add(found[device], gradient) if device in found else gradient

    def total(x: Tensor) -> Gradient | None:
        parts = list(sums.get(x, {}).values())
        if len(parts) < 2:
            return parts[0] if parts else None
        with beside(x):
            return reduce(add, parts)

    for y, start in zip(targets, given, strict=True):
        if y in order:
            with beside(y):
                collect(y, as_dtype(_start(y, start), y.dtype), y.device)
    for node in reversed(order):
        g = total(node)
        if g is not None:
            sums[node] = {node.device: g}
        if g is None or node.op is None or node.op.vjp is None:
            continue
        with beside(node):
            rule = node.op.sparse_vjp
            if rule is None:
                rule, g = node.op.vjp, dense(g)
            parts = rule(symbolic, g, node, *node.inputs, **node.attrs)
            for x, part in zip(node.inputs, parts, strict=True):
                if part is not None and x in order and x.dtype.kind == "f":
                    collect(x, as_dtype(part, x.dtype), node.device)
    return [total(x) for x in sources]


def _placed(graph: Graph) -> Callable[[Tensor], AbstractContextManager[Graph]]:
    """Return a context manager of the scope of a tensor's gradient: its device, its name."""
    outer = graph.scope
    name = graph.unique("gradients") + "/"

    def beside(node: Tensor) -> AbstractContextManager[Graph]:
        on = node if node.device else outer.colocated
        # Without the enclosing control dependencies: values of the forward pass are not read again.
        return graph.within(replace(outer, name=f"{name}{node.name}/", colocated=on, control=()))

    return beside


def _start(y: Tensor, given: Any) -> Tensor:
    if given is None:
        ones: Tensor = symbolic.ones_like(y)
        return ones
    return dense(given) if isinstance(given, (Tensor, Composite)) else constant(given, y.dtype)


def _listed(value: Any) -> list[Any]:
    """Return tensors as a list, shards for a partitioned variable; None for a missing gradient."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    listed: list[Any] = []
    for one in values:
        listed.extend(one.shards if isinstance(one, PartitionedVariable) else [one])
    return listed


def _check(ys: list[Any], xs: list[Any], given: list[Any]) -> None:
    for what, tensors in (("y", ys), ("x", xs)):
        for t in tensors:
            if not isinstance(t, Tensor):
                raise InvalidArgumentError(f"gradients: {what} is a tensor, got {t!r}")
            if t.graph is not ys[0].graph:
                raise InvalidArgumentError(f"gradients: {t!r} belongs to another graph than {ys[0]!r}")
    if len(given) != len(ys):
        raise InvalidArgumentError(f"gradients: {len(ys)} ys have {len(given)} grad_ys; give one for each")
    for y, start in zip(ys, given, strict=True):
        if y.dtype.kind != "f":
            raise InvalidArgumentError(f"gradients: {y!r} is not a floating point tensor")
        shape = y.shape if start is None else getattr(start, "shape", None) or np.shape(start)
        if not fits(shape, y.shape):
            raise InvalidArgumentError(
                f"gradients: {y!r} has a gradient of the same shape, got {show(shape)}"
            )


def _reaching(ys: Iterable[Tensor], xs: set[Tensor]) -> dict[Tensor, None]:
    """Return, inputs before users, the tensors on a path from one of ``xs`` to one of ``ys``."""
    on_path: dict[Tensor, bool] = {}
    order: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(y, False) for y in ys]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            on_path[node] = node in xs or any(on_path[i] for i in node.inputs)
            if on_path[node]:
                order[node] = None
        elif node not in on_path:
            on_path[node] = False
            stack.append((node, True))
            stack.extend((i, False) for i in node.inputs if i not in on_path)
    return order
