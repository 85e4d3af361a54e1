"""Transforms that put several elements together, or take them apart: padded batches, buckets, windows."""

from __future__ import annotations

import contextlib
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.data.blocks import Block, Blocks, Pass
from nbdist.data.elements import apply, kept, noted
from nbdist.data.rows import Rows
from nbdist.data.structure import columns_of, leaves_of, rebuild, refuse_masks, stack
from nbdist.errors import InvalidArgumentError
from nbdist.numbers import is_whole

Shapes = list[list[int | None]] | None


def is_shape(value: Any) -> bool:
    """Whether a value is a list of sizes, whole numbers of 0 or more, or None for the largest."""
    return isinstance(value, list) and all(size is None or is_whole(size, 0) for size in value)


def padded_batches(
    upstream: Blocks,
    rows: Rows | None,
    size: int,
    shapes: Shapes,
    values: list[Any],
    drop_remainder: bool,
    run: Pass,
) -> Iterator[Block]:
    """Yield batches of ``size`` elements, padded to one shape."""
    incoming = kept(upstream, rows, run)
    while group := list(itertools.islice(incoming, size)):
        if len(group) == size or not drop_remainder:
            yield [padded(group, shapes, values)]


def padded(group: list[Any], shapes: Shapes, values: list[Any]) -> Any:
    """Return elements as one batch.

    - ``shapes``: for each array of an element the sizes to pad to, None for the largest of the batch; or
      None for that everywhere
    - ``values``: what to pad with, for each array, or one for all
    """
    columns = columns_of(group)
    if shapes is not None and len(shapes) != len(columns):
        raise InvalidArgumentError(
            f"padded_shapes has {len(shapes)} shapes, and an element has {len(columns)} arrays; give a list "
            "for each, such as ([None], [])"
        )
    if len(values) not in (1, len(columns)):
        raise InvalidArgumentError(
            f"padding_values has {len(values)} values, and an element has {len(columns)} arrays"
        )
    whole = []
    for number, column in enumerate(columns):
        shape = None if shapes is None else shapes[number]
        whole.append(_padded(number, column, shape, values[number if len(values) > 1 else 0]))
    return rebuild(group[0], whole)


def _padded(number: int, column: Sequence[Any], shape: list[int | None] | None, value: Any) -> NDArray[Any]:
    if not np.ndim(column[0]):
        found: NDArray[Any] = stack(list(column))
        return found
    refuse_masks("an element of a batch", column)
    arrays = [np.asarray(part) for part in column]
    axes = arrays[0].ndim
    if any(array.ndim != axes for array in arrays) or (shape is not None and len(shape) != axes):
        counts = sorted({array.ndim for array in arrays})
        raise InvalidArgumentError(
            f"array {number} has {', '.join(map(str, counts))} axes, and a padded batch needs one number of "
            f"them{'' if shape is None else f', {len(shape)} as padded_shapes says'}"
        )
    largest = [max(array.shape[axis] for array in arrays) for axis in range(axes)]
    sizes = largest if shape is None else [given or most for given, most in zip(shape, largest, strict=True)]
    for axis, (most, allowed) in enumerate(zip(largest, sizes, strict=True)):
        if most > allowed:
            raise InvalidArgumentError(
                f"array {number} has {most} values on axis {axis}, and padded_shapes allows {allowed}; use a "
                "larger size, None, or cut it in map()"
            )
    batch = np.broadcast_to(_padding(number, arrays, value), (len(arrays), *sizes)).copy()
    for row, array in zip(batch, arrays, strict=True):
        row[tuple(slice(n) for n in array.shape)] = array
    return batch


def _padding(number: int, arrays: list[NDArray[Any]], value: Any) -> NDArray[Any]:
    """Return ``value`` as an array of a single value in the dtype of a padded batch of ``arrays``.

    0 is the zero of every dtype: for texts the empty one, and for bytes those of length 0.
    """
    dtype = np.result_type(*arrays)
    one = next((item for array in arrays for item in array.flat[:1].tolist()), None)
    kind = type(one) if dtype.kind in "SUO" and isinstance(one, (str, bytes)) else None
    if kind is not None and type(value) is int and value == 0:
        value = kind()
    if kind is not None and isinstance(value, kind):
        return np.array(value, dtype if dtype.kind == "O" else np.result_type(dtype, np.asarray(value)))
    with np.errstate(invalid="ignore"), contextlib.suppress(TypeError, ValueError, OverflowError):
        found = np.full((), value, dtype)
        if kind is None and (dtype.kind in "SUOfc" or found == value):
            return found
    what = "text" if kind is str else "bytes" if kind is bytes else dtype
    raise InvalidArgumentError(
        f"array {number} is {what}, and padding_values has {value!r:.80} for it; give a value of {what}"
    )


def bucketed(
    upstream: Blocks,
    rows: Rows | None,
    length_of: Callable[..., Any],
    boundaries: Sequence[int],
    sizes: Sequence[int],
    values: list[Any],
    drop_remainder: bool,
    run: Pass,
) -> Iterator[Block]:
    """Yield padded batches of elements of similar lengths; at the end what is left, shortest first."""
    held: list[list[Any]] = [[] for _ in sizes]
    for number, element in enumerate(kept(upstream, rows, run)):
        try:
            length = int(apply(length_of, element))
        except Exception as error:
            raise noted(error, length_of, number) from None
        bucket = bisect_right(boundaries, length)
        held[bucket].append(element)
        if len(held[bucket]) == sizes[bucket]:
            yield [padded(held[bucket], None, values)]
            held[bucket] = []
    if not drop_remainder:
        for group in held:
            if group:
                yield [padded(group, None, values)]


def unbatched(upstream: Blocks, rows: Rows | None, run: Pass) -> Iterator[Block]:
    """Yield the rows of each element."""
    for element in kept(upstream, rows, run):
        parts = leaves_of(element)
        if any(not np.ndim(part) for part in parts):
            raise InvalidArgumentError("unbatch takes batches, and an element has a single value")
        lengths = sorted({len(part) for part in parts})
        if len(lengths) > 1:
            raise InvalidArgumentError(f"the arrays of a batch have {', '.join(map(str, lengths))} rows")
        yield [rebuild(element, [part[row] for part in parts]) for row in range(lengths[0])]


def windows(
    upstream: Blocks,
    rows: Rows | None,
    size: int,
    shift: int,
    stride: int,
    drop_remainder: bool,
    run: Pass,
) -> Iterator[Block]:
    """Yield windows, stacked like batches."""
    incoming = kept(upstream, rows, run)
    span = (size - 1) * stride + 1
    held: list[Any] = []
    while True:
        held += itertools.islice(incoming, span - len(held))
        if not held or (drop_remainder and len(held) < span):
            return
        yield [stack(held[:span:stride])]
        if shift >= len(held):
            skipped = sum(1 for _ in itertools.islice(incoming, shift - len(held)))
            if len(held) < span or skipped < shift - len(held):
                return
            held = []
        else:
            del held[:shift]
