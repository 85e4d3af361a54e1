"""Nested elements: tuples and dicts of arrays, to any depth."""

from __future__ import annotations

from collections.abc import Iterator
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
        except ValueError as error:
            shapes = sorted({np.shape(part) for part in column})
            raise InvalidArgumentError(
                f"array {index} of these elements has shapes {', '.join(map(str, shapes))}; a batch needs "
                "one shape: use padded_batch, or bucket_by_length"
            ) from error
    return rebuild(first, stacked)


def stack_column(column: tuple[Any, ...]) -> NDArray[Any]:
    """Return values of one place as an array; bytes as objects, for a dtype S drops zeros at their end."""
    if isinstance(column[0], bytes):
        found = np.empty(len(column), object)
        found[:] = column
        return found
    return np.asarray(column) if np.isscalar(column[0]) else np.stack(column)


def spec_of(element: Any) -> Any:
    """Return the `ElementSpec` of each array in ``element``, in its structure."""
    return rebuild(
        element, [ElementSpec(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves_of(element)]
    )
