"""`IndexedSlices`: sparse gradients that hold only the rows that were looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.composite import Composite
from nbdist.graph.op import Shape, Spec, show
from nbdist.graph.tensor import Tensor, record, symbolic


class IndexedSlices(Composite):
    """A tensor of shape ``dense_shape``, zero except for some rows: ``values[i]`` adds to row ``indices[i]``.

    A row may occur several times; its values add up. ``gradients`` returns it for a variable that is used
    only by row lookups. ``to_tensor()`` makes it dense, and so does any NumPy function except a product
    with one number. A session fetches it as IndexedSlices of arrays.

    >>> slices = IndexedSlices(np.ones((2, 3)), np.array([4, 1]), (10, 3))
    >>> slices
    <IndexedSlices of (2, 3) rows in (10, 3) float64>
    """

    __slots__ = ("dense_shape", "dtype", "indices", "name", "shape", "values")

    def __init__(self, values: Any, indices: Any, dense_shape: Sequence[int]) -> None:
        for part in (values, indices):
            if not isinstance(part, (Tensor, np.ndarray)):
                raise InvalidArgumentError(f"IndexedSlices holds tensors or arrays, got {part!r}")
        self.values, self.indices = values, indices
        self.dense_shape = tuple(int(n) for n in dense_shape)
        self.shape: Shape = self.dense_shape
        self.dtype = values.dtype
        self.name = getattr(values, "name", "")
        rows = values.shape[:1] == indices.shape or None in (*values.shape[:1], *indices.shape)
        if values.ndim < 1 or indices.ndim != 1 or not rows or values.shape[1:] != self.shape[1:]:
            raise InvalidArgumentError(
                f"IndexedSlices: values {show(values.shape)} at indices {show(indices.shape)} are not rows "
                f"of {show(self.shape)}"
            )

    @property
    def graph(self) -> Any:  # type: ignore[override]  # an array has none
        """The graph of values and indices."""
        return self.values.graph

    @property
    def fetched(self) -> tuple[Any, Any]:
        """The tensors that a session computes for it."""
        return self.values, self.indices

    def with_values(self, values: Sequence[Any]) -> IndexedSlices:
        """Return the same rows with the arrays that a session computed."""
        return IndexedSlices(np.asarray(values[0]), np.asarray(values[1]), self.dense_shape)

    def to_tensor(self) -> Tensor:
        """Return the dense tensor of shape ``dense_shape``."""
        return record("add_rows", self.values, self.indices, shape=self.shape)

    as_tensor = to_tensor

    def __mul__(self, factor: Any) -> Any:
        if np.ndim(factor) == 0:
            return IndexedSlices(self.values * factor, self.indices, self.dense_shape)
        return self.to_tensor() * factor

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        if np.ndim(divisor) == 0:
            return IndexedSlices(self.values / divisor, self.indices, self.dense_shape)
        return self.to_tensor() / divisor

    def __repr__(self) -> str:
        return f"<IndexedSlices of {show(self.values.shape)} rows in {show(self.shape)} {self.dtype}>"


def check_row_numbers(indices: Spec) -> None:
    """Raise InvalidArgumentError for what are not the row numbers of a sparse gradient."""
    if len(indices.shape) != 1 or indices.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"a sparse gradient has one row number per row, got {show(indices.shape)} of {indices.dtype}"
        )


def add(a: Any, b: Any) -> Any:
    """Return the sum of two gradients: IndexedSlices if both are, else dense."""
    if isinstance(a, IndexedSlices) and isinstance(b, IndexedSlices):
        values = symbolic.concatenate((a.values, b.values), axis=0)
        return IndexedSlices(values, symbolic.concatenate((a.indices, b.indices), axis=0), a.dense_shape)
    return dense(a) + dense(b)


def as_dtype(gradient: Any, dtype: np.dtype[Any]) -> Any:
    """Return a gradient, dense or IndexedSlices, as a dtype; the same object if it has it."""
    if gradient.dtype == dtype:
        return gradient
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(gradient.values.astype(dtype), gradient.indices, gradient.dense_shape)
    return gradient.astype(dtype)


def dense(gradient: Any) -> Tensor:
    """Return a gradient as a tensor."""
    result: Tensor = gradient.as_tensor() if isinstance(gradient, Composite) else gradient
    return result
