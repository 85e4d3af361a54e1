"""Nested elements: tuples and dicts of arrays, to any depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.errors import InvalidArgumentError


@dataclass(frozen=True)
class ElementSpec:
    """``shape`` and ``dtype`` of one array of an element; sizes that differ between elements are None."""

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


def leaves_of(structure: Any) -> list[Any]:
    """Return the leaves of nested tuples and dicts, in order.

    >>> leaves_of(({"image": 1, "mask": 2}, 3))
    [1, 2, 3]
    """
    if isinstance(structure, tuple):
        return [leaf for part in structure for leaf in leaves_of(part)]
    if isinstance(structure, dict):
        return [leaf for part in structure.values() for leaf in leaves_of(part)]
    return [structure]


def columns_of(elements: list[Any]) -> list[tuple[Any, ...]]:
    """Return the values of each place of elements, which must have the structure of the first.

    >>> columns_of([{"a": 1, "b": 2}, {"b": 4, "a": 3}])
    [(1, 3), (2, 4)]
    """
    first = elements[0]
    if not isinstance(first, (tuple, dict)):
        if any(issubclass(kind, (tuple, dict)) for kind in set(map(type, elements))):
            raise _differs(first, next(one for one in elements if isinstance(one, (tuple, dict))))
        return [tuple(elements)]
    kind, names = (dict, first.keys()) if isinstance(first, dict) else (tuple, range(len(first)))
    for element in elements:
        if not isinstance(element, kind) or len(element) != len(names):
            raise _differs(first, element)
    try:
        return [column for name in names for column in columns_of([element[name] for element in elements])]
    except KeyError:
        raise _differs(first, next(one for one in elements if one.keys() != names)) from None


def _differs(first: Any, other: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the elements of a batch need one structure, and the first is {_form(first)}, "
        f"another {_form(other)}: return the same tuple or the same names for each element"
    )


def _form(structure: Any) -> str:
    if isinstance(structure, dict):
        return f"a dict of {', '.join(map(repr, structure)) or 'nothing'}"
    return f"a tuple of {len(structure)}" if isinstance(structure, tuple) else "a single value"


def rebuild(structure: Any, leaves: list[Any]) -> Any:
    """Return ``leaves`` in the form of ``structure``; undoes `leaves_of`."""
    if isinstance(structure, tuple):
        if not any(isinstance(part, (tuple, dict)) for part in structure):
            return tuple(leaves)
    elif not isinstance(structure, dict):
        return leaves[0]
    return _rebuild(structure, iter(leaves))


def _rebuild(structure: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(structure, tuple):
        return tuple(_rebuild(part, leaves) for part in structure)
    if isinstance(structure, dict):
        return {name: _rebuild(part, leaves) for name, part in structure.items()}
    return next(leaves)


def stack(elements: list[Any]) -> Any:
    """Return elements of one structure as one batch; raises `InvalidArgumentError` if shapes differ."""
    first = elements[0]
    columns = columns_of(elements)
    stacked = []
    for index, column in enumerate(columns):
        try:
            stacked.append(stack_column(column))
        except InvalidArgumentError:
            raise
        except ValueError as error:
            shapes = sorted({np.shape(part) for part in column})
            raise InvalidArgumentError(
                f"array {index} of these elements has shapes {', '.join(map(str, shapes))}; a batch needs "
                "one shape: use padded_batch, or bucket_by_length"
            ) from error
    return rebuild(first, stacked)


def stack_column(column: tuple[Any, ...]) -> NDArray[Any]:
    """Return values of one place as an array; bytes as objects, for a dtype S drops zeros at their end.

    Raises InvalidArgumentError for values that no dtype has as they are: numbers among text, and whole
    numbers that would become floats.
    """
    first = column[0]
    refuse_masks("an element of a batch", column)
    if isinstance(first, bytes):
        found = np.empty(len(column), object)
        found[:] = column
        return found
    if not np.isscalar(first):
        return np.asarray(np.stack(column))
    values: NDArray[Any] = np.asarray(column)
    if values.dtype.kind == "U" and not all(isinstance(value, str) for value in column):
        other = next(value for value in column if not isinstance(value, str))
        raise InvalidArgumentError(
            f"a batch has {other!r:.80} among texts; return text, or numbers, for every element"
        )
    return exact("a batch", column, values)


def refuse_masks(what: str, values: Sequence[Any]) -> None:
    """Raise InvalidArgumentError if an array of NumPy among ``values`` masks any, which would be dropped."""
    has_masks = any(issubclass(kind, np.ma.MaskedArray) for kind in set(map(type, values)))
    if has_masks and any(map(np.ma.is_masked, values)):
        raise InvalidArgumentError(
            f"{what} has a mask, which a dataset does not keep: give array.filled(value), and the mask as "
            "another array"
        )


def exact(what: str, values: Sequence[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that NumPy has made of ``values``; of whole numbers as whole numbers.

    NumPy makes floats of those of which some are beyond int64. Raises InvalidArgumentError if no dtype has
    all of them.

    >>> exact("x", [2**63, 1], np.asarray([2**63, 1]))
    array([9223372036854775808,                   1], dtype=uint64)
    """
    if array.dtype.kind != "f" or not all(isinstance(value, (int, np.integer)) for value in values):
        return array
    try:
        return np.asarray([int(value) for value in values], np.uint64)
    except OverflowError:
        raise InvalidArgumentError(
            f"{what} has the whole numbers {min(values)} and {max(values)}, and no dtype of whole numbers "
            "has both: keep them within int64 or uint64, or make them floats"
        ) from None


def spec_of(element: Any) -> Any:
    """Return the `ElementSpec` of each array in ``element``, in its structure."""
    return rebuild(
        element, [ElementSpec(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves_of(element)]
    )
