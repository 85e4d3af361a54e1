"""Ops that repeat, pad, flip or split arrays: tile, repeat, pad, flip, roll, moveaxis, split."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Spec, define, gradient_spec, listed_axes, normal_axes, show, whole
from nbdist.graph.ops.shape import accumulator
from nbdist.graph.tensor import FUNCTIONS, Tensor, record, symbolic

# tile: the gradient folds the copies back onto each other.


def _times(n: int | None, count: int) -> int | None:
    return 0 if count == 0 else None if n is None else n * count


def _tile_spec(x: Spec, reps: tuple[int, ...]) -> Spec:
    if len(reps) != len(x.shape) or any(r < 0 for r in reps):
        raise InvalidArgumentError(f"tile: counts {reps} for shape {show(x.shape)}; each is 0 or more")
    return Spec(tuple(_times(n, r) for n, r in zip(x.shape, reps)), x.dtype)


def _fold(xp: Any, g: Array, like: Array, reps: tuple[int, ...]) -> Array:
    parts = [size for count, n in zip(reps, like.shape, strict=True) for size in (count, n)]
    axes = tuple(range(0, len(parts), 2))
    return g.reshape(parts).sum(axis=axes, dtype=accumulator(g)).astype(g.dtype, copy=False)  # type: ignore[no-any-return]


define(
    "tile",  # as many counts as dimensions
    forward=lambda xp, x, reps: xp.tile(x, reps),
    spec=_tile_spec,
    vjp=lambda np, g, y, x, reps: (record("fold_tiles", g, x, reps=reps),),
)
define(
    "fold_tiles",
    forward=_fold,
    spec=gradient_spec("fold_tiles", _tile_spec),
    vjp=lambda np, up, y, g, like, reps: (record("tile", up, reps=reps), None),
    shape_only=frozenset({1}),
)


def _tile(A: Tensor, reps: Any) -> Tensor:
    counts = listed_axes("tile", reps.tolist() if isinstance(reps, np.ndarray) else reps)
    if any(r < 0 for r in counts):
        raise InvalidArgumentError(f"tile: counts are 0 or more, got {reps!r}")
    missing = len(counts) - A.ndim
    x = symbolic.expand_dims(A, tuple(range(missing))) if missing > 0 else A
    return record("tile", x, reps=(1,) * max(-missing, 0) + counts)


FUNCTIONS[np.tile] = _tile

# repeat: the gradient sums each run of equal elements.


def _repeat_spec(x: Spec, repeats: int | tuple[int, ...], axis: int) -> Spec:
    (axis,) = normal_axes("repeat", axis, len(x.shape))
    n = x.shape[axis]
    if isinstance(repeats, int):
        total = _times(n, repeats)
    elif n not in (None, len(repeats)):
        raise InvalidArgumentError(
            f"repeat: {len(repeats)} counts for {n} elements along axis {axis} of {show(x.shape)}"
        )
    else:
        total = sum(repeats)
    return Spec((*x.shape[:axis], total, *x.shape[axis + 1 :]), x.dtype)


def _sum_runs(xp: Any, g: Array, like: Array, repeats: int | tuple[int, ...], axis: int) -> Array:
    at, n = axis % like.ndim, like.shape[axis]
    if isinstance(repeats, int):
        runs = g.reshape(*like.shape[:at], n, repeats, *like.shape[at + 1 :])
        return runs.sum(axis=at + 1, dtype=accumulator(g)).astype(g.dtype, copy=False)  # type: ignore[no-any-return]
    out = xp.zeros(like.shape, g.dtype)
    xp.add.at(xp.moveaxis(out, at, 0), xp.repeat(xp.arange(n), list(repeats)), xp.moveaxis(g, at, 0))
    return out  # type: ignore[no-any-return]


define(
    "repeat",
    forward=lambda xp, x, repeats, axis: xp.repeat(
        x, repeats if isinstance(repeats, int) else list(repeats), axis
    ),
    spec=_repeat_spec,
    vjp=lambda np, g, y, x, repeats, axis: (record("sum_runs", g, x, repeats=repeats, axis=axis),),
)
define(
    "sum_runs",
    forward=_sum_runs,
    spec=gradient_spec("sum_runs", _repeat_spec),
    vjp=lambda np, up, y, g, like, repeats, axis: (
        record("repeat", up, repeats=repeats, axis=axis),
        None,
    ),
    shape_only=frozenset({1}),
)


def _repeat(a: Tensor, repeats: Any, axis: int | None = None) -> Tensor:
    if isinstance(repeats, Tensor):
        raise NotImplementedError(
            "np.repeat does not record with counts that are a Tensor: the shape of the result depends on them"
        )
    counts = np.asarray(repeats)
    if counts.dtype.kind not in "iu" or counts.ndim > 1 or (counts < 0).any():
        raise InvalidArgumentError(f"repeat: counts are whole numbers, 0 or more, got {repeats!r}")
    x, axis = (symbolic.ravel(a), 0) if axis is None else (a, whole("repeat: axis", axis))
    plain = int(counts.reshape(-1)[0]) if counts.size == 1 else tuple(int(c) for c in counts)
    return record("repeat", x, repeats=plain, axis=axis)


FUNCTIONS[np.repeat] = _repeat

# pad

Widths = tuple[tuple[int, int], ...]


def _pad_spec(x: Spec, widths: Widths, values: tuple[tuple[float, float], ...]) -> Spec:
    if not len(widths) == len(values) == len(x.shape):
        raise InvalidArgumentError(f"pad: {len(widths)} widths for shape {show(x.shape)}")
    return Spec(
        tuple(None if n is None else n + before + after for n, (before, after) in zip(x.shape, widths)),
        x.dtype,
    )


define(
    "pad",
    forward=lambda xp, x, widths, values: xp.pad(x, widths, constant_values=values),
    into=lambda xp, widths, values: _pad_kernel(xp, widths, values),
    spec=_pad_spec,
    vjp=lambda np, g, y, x, widths, values: (
        g[tuple(slice(before, -after or None) for before, after in widths)],
    ),
)


def _pad_kernel(xp: Any, widths: Widths, values: tuple[tuple[float, float], ...]) -> Any:
    """Fill the border, axis by axis as NumPy does, then copy: np.pad spends its time in Python."""

    def kernel(x: Array, out: Array) -> None:
        key = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths))
        for axis, ((before, after), (low, high)) in enumerate(zip(widths, values)):
            lead = (slice(None),) * axis
            if before:
                out[(*lead, slice(0, before))] = low
            if after:
                out[(*lead, slice(out.shape[axis] - after, None))] = high
        out[key] = x

    return kernel


def _pairs(name: str, given: Any, ndim: int) -> Any:
    try:
        return np.broadcast_to(np.asarray(given), (ndim, 2)).tolist()
    except ValueError:
        raise InvalidArgumentError(f"pad: {name}={given!r} does not fit {ndim} dimensions") from None


def _pad(array: Tensor, pad_width: Any, mode: str = "constant", **options: Any) -> Tensor:
    if isinstance(pad_width, dict):
        pad_width = [pad_width.get(i, pad_width.get(i - array.ndim, (0, 0))) for i in range(array.ndim)]
        pad_width = [(w, w) if isinstance(w, (int, np.integer)) else w for w in pad_width]
    widths: Widths = tuple((int(b), int(a)) for b, a in _pairs("pad_width", pad_width, array.ndim))
    if any(n < 0 for pair in widths for n in pair):
        raise InvalidArgumentError(f"pad: widths are 0 or more, got {pad_width!r}")
    if mode == "constant":
        given = np.asarray(options.pop("constant_values", 0)).astype(array.dtype)
        if not options:
            values = tuple(map(tuple, _pairs("constant_values", given, array.ndim)))
            return record("pad", array, widths=widths, values=values)
    elif mode in ("edge", "reflect", "symmetric", "wrap") and not options:
        return _pad_from_inside(array, widths, mode)
    with_what = "".join(f", {name}={value!r}" for name, value in options.items())
    raise NotImplementedError(f"np.pad(mode={mode!r}{with_what}) does not record on a Tensor")


def _pad_from_inside(x: Tensor, widths: Widths, mode: Any) -> Tensor:
    """Each padded element is a copy of an element of the array: take them by position."""
    for axis, pair in enumerate(widths):
        n = x.shape[axis]
        if pair == (0, 0):
            continue
        if n is None:
            raise InvalidArgumentError(f"pad: mode {mode!r} needs the size of axis {axis} of {show(x.shape)}")
        x = symbolic.take(x, np.pad(np.arange(n), pair, mode=mode), axis=axis)
    return x


FUNCTIONS[np.pad] = _pad

# flip, roll, moveaxis, split: made of other ops, unless these need a shape that may be unknown.


def _flip(m: Tensor, axis: Any = None) -> Tensor:
    axes = normal_axes("flip", axis if axis is None else _ints(axis), m.ndim)
    return m[tuple(slice(None, None, -1 if i in axes else None) for i in range(m.ndim))]


def _ints(axis: Any) -> tuple[int, ...]:
    given = axis.tolist() if isinstance(axis, np.ndarray) else axis
    return tuple(whole("axis", a) for a in (given if isinstance(given, (tuple, list)) else (given,)))


FUNCTIONS[np.flip] = _flip
FUNCTIONS[np.flipud] = lambda m: _flip(m, 0)
FUNCTIONS[np.fliplr] = lambda m: _flip(m, 1)


def _roll_spec(x: Spec, shift: tuple[int, ...], axis: tuple[int, ...]) -> Spec:
    if len(shift) != len(axis):
        raise InvalidArgumentError(f"roll: {len(shift)} shifts for {len(axis)} axes")
    for a in axis:  # one axis may be named twice: the shifts add up
        normal_axes("roll", a, len(x.shape))
    return x


define(
    "roll",
    forward=lambda xp, x, shift, axis: xp.roll(x, shift, axis),
    spec=_roll_spec,
    vjp=lambda np, g, y, x, shift, axis: (record("roll", g, shift=tuple(-s for s in shift), axis=axis),),
)


def _roll(a: Tensor, shift: Any, axis: Any = None) -> Tensor:
    if axis is None:
        return record("reshape_like", _roll(symbolic.ravel(a), shift, 0), a)
    shifts, axes = np.broadcast_arrays(shift, axis)
    return record("roll", a, shift=_ints(list(shifts.reshape(-1))), axis=_ints(list(axes.reshape(-1))))


FUNCTIONS[np.roll] = _roll


def _moveaxis(a: Tensor, source: Any, destination: Any) -> Tensor:
    old, new = _ints(source), _ints(destination)
    normal_axes("moveaxis", old, a.ndim)
    normal_axes("moveaxis", new, a.ndim)
    if len(old) != len(new):
        raise InvalidArgumentError(f"moveaxis: {len(old)} axes cannot go to {len(new)} places")
    order = [i for i in range(a.ndim) if i not in {s % a.ndim for s in old}]
    for place, axis in sorted((n % a.ndim, s % a.ndim) for n, s in zip(new, old)):
        order.insert(place, axis)
    result: Tensor = symbolic.transpose(a, order)
    return result


FUNCTIONS[np.moveaxis] = _moveaxis


def _split(ary: Tensor, indices_or_sections: Any, axis: int = 0, even: bool = True) -> list[Tensor]:
    (at,) = normal_axes("split", whole("split: axis", axis), ary.ndim)
    n = ary.shape[at]
    if isinstance(indices_or_sections, (int, np.integer)):
        count = int(indices_or_sections)
        if n is None:
            raise InvalidArgumentError(f"split: the size of axis {at} of {show(ary.shape)} is not known")
        if count < 1 or (even and n % count):
            raise InvalidArgumentError(f"split: {n} along axis {at} cannot be cut into {count} equal parts")
        sizes = [n // count + (i < n % count) for i in range(count)]
        cuts = [int(c) for c in np.cumsum(sizes)[:-1]]
    else:
        cuts = [whole("split: an index", c) for c in indices_or_sections]
    lead = (slice(None),) * at
    return [ary[(*lead, slice(start, end))] for start, end in zip([0, *cuts], [*cuts, None])]


FUNCTIONS[np.split] = _split
FUNCTIONS[np.array_split] = lambda ary, indices_or_sections, axis=0: _split(
    ary, indices_or_sections, axis, even=False
)
