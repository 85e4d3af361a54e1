"""Row lookup and scatter-add on tables: embeddings and their sparse gradients.

A lookup in a table of shards is several ops, each on the device of its data: the device of the lookup makes
the ids distinct and splits them, each shard gathers its rows, and the device of the lookup joins and spreads
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array, to_host
from nbdist.graph.op import Spec, define, define_into, show, whole
from nbdist.graph.sparse import IndexedSlices, dense
from nbdist.graph.tensor import FUNCTIONS, Tensor, record


def summed_rows(xp: Any, rows: Array, positions: Array) -> tuple[Array, Array]:
    """Return the distinct positions in order, and the sum of the rows at each, added in their order.

    >>> summed_rows(np, np.array([[1.0], [2.0], [4.0]]), np.array([5, 3, 5]))
    (array([3, 5]), array([[2.],
           [5.]]))
    """
    if len(positions) < 2 or bool((positions[1:] > positions[:-1]).all()):
        return positions, rows
    order = xp.argsort(positions, kind="stable")
    in_order = positions[order]
    first = xp.concatenate((xp.ones(1, bool), in_order[1:] != in_order[:-1]))
    if xp is np:
        return in_order[first], np.add.reduceat(rows[order], np.flatnonzero(first), axis=0)
    total = xp.zeros((int(first.sum()), *rows.shape[1:]), rows.dtype)
    xp.add.at(total, xp.cumsum(first) - 1, rows[order])
    return in_order[first], total


def check_rows(positions: Array, rows: int) -> None:
    """Raise an InvalidArgumentError that names the first number that is not a row of the table."""
    if positions.size == 0 or (positions.min() >= 0 and positions.max() < rows):
        return
    flat = to_host(positions).reshape(-1)
    wrong = flat[(flat < 0) | (flat >= rows)]
    there = f"rows 0 to {rows - 1}" if rows else "no rows"
    more = f" ({len(wrong)} of {len(flat)} ids are outside)" if len(wrong) > 1 else ""
    raise InvalidArgumentError(f"id {wrong[0]} is outside the table, which has {there}{more}")


def _check_whole(ids: Spec) -> None:
    if ids.dtype.kind not in "iu":
        raise InvalidArgumentError(f"embedding_lookup: ids are whole numbers, got {ids.dtype}")


def _gathered_spec(table: Spec, ids: Spec) -> Spec:
    if not table.shape:
        raise InvalidArgumentError("embedding_lookup: a table has rows, a single number has none")
    _check_whole(ids)
    return Spec((*ids.shape, *table.shape[1:]), table.dtype)


def _gather_kernel(xp: Any) -> Callable[[Array, Array, Array], None]:
    def kernel(table: Array, ids: Array, out: Array) -> None:
        check_rows(ids, len(table))
        if xp is np and len(table):
            np.take(table, ids, 0, out, "clip")  # mode "raise" would check again, and need a buffer
        else:
            out[...] = xp.take(table, ids, axis=0)

    return kernel


def _gathered_rows(np: Any, g: Any, y: Tensor, table: Tensor, ids: Tensor) -> tuple[Any, None]:
    """Return a gradient that holds only the rows that were looked up, if the table's size is known."""
    g = dense(g)
    sizes = [n for n in table.shape if n is not None]
    if len(sizes) < table.ndim:
        return record("take_back_like", g, table, ids, axis=0), None
    if ids.ndim != 1:
        g, ids = np.reshape(g, (-1, *sizes[1:])), np.ravel(ids)
    return IndexedSlices(g, ids, sizes), None


define_into(
    "gather_rows",
    into=_gather_kernel,
    spec=_gathered_spec,
    vjp=lambda np, g, y, table, ids: (record("take_back_like", g, table, ids, axis=0), None),
    sparse_vjp=_gathered_rows,
)


def _add_rows_kernel(xp: Any, shape: tuple[int, ...]) -> Callable[[Array, Array, Array], None]:
    def kernel(values: Array, indices: Array, out: Array) -> None:
        check_rows(indices, shape[0])
        out.fill(0)
        at, total = summed_rows(xp, values, indices)
        out[at] = total

    return kernel


def _add_rows_spec(values: Spec, indices: Spec, shape: tuple[int, ...]) -> Spec:
    if not shape or any(whole("add_rows: a size", n) < 0 for n in shape):
        raise InvalidArgumentError(f"add_rows: {shape} is not the shape of a table")
    _check_whole(indices)
    return Spec(tuple(shape), values.dtype)


define_into(
    "add_rows",
    into=_add_rows_kernel,
    spec=_add_rows_spec,
    vjp=lambda np, up, y, values, indices, shape: (record("gather_rows", up, indices), None),
)


def _distinct_spec(ids: Spec, rows: int) -> Spec:
    _check_whole(ids)
    return Spec((None,), np.dtype(np.int64))


def _distinct(xp: Any, ids: Array, rows: int) -> Array:
    check_rows(ids, rows)
    return xp.unique(ids).astype(np.int64, copy=False)  # type: ignore[no-any-return]


define(
    "distinct_rows",  # the ids of a lookup, each once and in order
    forward=_distinct,
    spec=_distinct_spec,
)


def _searchsorted_spec(a: Spec, v: Spec, side: str) -> Spec:
    if len(a.shape) != 1 or side not in ("left", "right"):
        raise InvalidArgumentError(f"searchsorted: no place in {show(a.shape)} from the side {side!r}")
    return Spec(v.shape, np.dtype(np.intp))


define(
    "searchsorted",
    forward=lambda xp, a, v, side: xp.asarray(xp.searchsorted(a, v, side=side)),
    spec=_searchsorted_spec,
)
FUNCTIONS[np.searchsorted] = lambda a, v, side="left": record("searchsorted", a, v, side=side)


def _ends(xp: Any, numbers: Array, start: int, stop: int) -> slice:
    first, end = to_host(xp.searchsorted(numbers, xp.asarray([start, stop])))
    return slice(int(first), int(end))


def _join(xp: Any, numbers: Array, *parts: Array, ends: tuple[tuple[int, int], ...]) -> Array:
    return xp.concatenate(parts, axis=0)  # type: ignore[no-any-return]


def _spread(xp: Any, x: Array, numbers: Array, start: int, stop: int) -> Array:
    out = xp.zeros((len(numbers), *x.shape[1:]), x.dtype)
    out[_ends(xp, numbers, start, stop)] = x
    return out  # type: ignore[no-any-return]


define(
    "rows_between",  # the rows of x whose sorted number is in [start, stop)
    forward=lambda xp, x, numbers, start, stop: x[_ends(xp, numbers, start, stop)],
    spec=lambda x, numbers, start, stop: Spec((None, *x.shape[1:]), x.dtype),
    vjp=lambda np, g, y, x, numbers, start, stop: (
        record("spread_rows", g, numbers, start=start, stop=stop),
        None,
    ),
)
define(
    "spread_rows",  # the inverse: rows outside are zero
    forward=_spread,
    spec=lambda x, numbers, start, stop: Spec((*numbers.shape, *x.shape[1:]), x.dtype),
    vjp=lambda np, g, y, x, numbers, start, stop: (
        record("rows_between", g, numbers, start=start, stop=stop),
        None,
    ),
)
define(
    "join_rows",  # concatenates the shards' rows; ends are the [start, stop) of their numbers
    forward=_join,
    spec=lambda numbers, *parts, ends: Spec((*numbers.shape, *parts[0].shape[1:]), parts[0].dtype),
    vjp=lambda np, g, y, numbers, *parts, ends: (
        None,
        *(record("rows_between", g, numbers, start=start, stop=stop) for start, stop in ends),
    ),
)


def lookup(ids: Tensor, ends: tuple[tuple[int, int], ...], gather: Callable[[int, Tensor], Tensor]) -> Tensor:
    """Return the rows at ``ids`` of a table in shards; shard i holds those between ``ends[i]``.

    ``gather(i, numbers)`` returns rows of shard i, counted from its first. Each row is sent once.
    """
    distinct = record("distinct_rows", ids, rows=ends[-1][1])
    parts = []
    for number, (start, stop) in enumerate(ends):
        wanted = record("rows_between", distinct, distinct, start=start, stop=stop)
        parts.append(gather(number, wanted - start if start else wanted))
    joined = record("join_rows", distinct, *parts, ends=ends)
    return record("gather_rows", joined, record("searchsorted", distinct, ids, side="left"))
