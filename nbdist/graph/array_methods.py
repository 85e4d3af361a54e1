"""The methods that a Tensor shares with ndarray: ``x.sum(axis=0)`` is ``np.sum(x, axis=0)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from nbdist.graph.tensor import Tensor

symbolic: Any = np
"""NumPy, untyped: on tensors its functions return tensors, which NumPy's types do not declare."""


class ArrayMethods:
    """The methods of an ndarray, recorded through NumPy's functions of the same names.

    >>> from nbdist.graph.tensor import Graph, placeholder
    >>> with Graph().as_default():
    ...     placeholder(np.float32, (None, 3)).cumsum(axis=1).max().shape
    ()
    """

    __slots__ = ()

    @property
    def T(self) -> Tensor:
        """The tensor with its axes reversed."""
        return self._through("transpose")

    def reshape(self, *shape: Any) -> Tensor:
        """Return the values in another shape; one size may be -1."""
        return self._through("reshape", shape[0] if len(shape) == 1 else shape)

    def ravel(self) -> Tensor:
        """Return the values as one axis."""
        return self._through("ravel")

    flatten = ravel

    def transpose(self, *axes: Any) -> Tensor:
        """Return the values with axes in another order, reversed if none is given."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], (int, np.integer)) else axes
        return self._through("transpose", order or None)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Return the values with two axes exchanged."""
        return self._through("swapaxes", axis1, axis2)

    def squeeze(self, axis: Any = None) -> Tensor:
        """Return the values without axes of size 1."""
        return self._through("squeeze", axis=axis)

    def repeat(self, repeats: Any, axis: int | None = None) -> Tensor:
        """Return each element several times."""
        return self._through("repeat", repeats, axis=axis)

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """Return the elements at ``indices`` along an axis."""
        return self._through("take", indices, axis=axis)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """Return a diagonal of two axes, as the last axis."""
        return self._through("diagonal", offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """Return the sum of a diagonal."""
        return self._through("trace", offset, axis1, axis2)

    def dot(self, other: Any) -> Tensor:
        """Return the dot product with another tensor."""
        return self._through("dot", other)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        """Return the values limited to a range."""
        return self._through("clip", min, max)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the sum over an axis, several axes, or all."""
        return self._through("sum", axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the mean over an axis, several axes, or all."""
        return self._through("mean", axis=axis, keepdims=keepdims)

    def prod(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the product over an axis, several axes, or all."""
        return self._through("prod", axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the maximum over an axis, several axes, or all."""
        return self._through("max", axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> Tensor:
        """Return the minimum over an axis, several axes, or all."""
        return self._through("min", axis=axis, keepdims=keepdims)

    def var(self, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
        """Return the variance over an axis, several axes, or all."""
        return self._through("var", axis=axis, ddof=ddof, keepdims=keepdims)

    def std(self, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
        """Return the standard deviation over an axis, several axes, or all."""
        return self._through("std", axis=axis, ddof=ddof, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index of the maximum."""
        return self._through("argmax", axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index of the minimum."""
        return self._through("argmin", axis=axis, keepdims=keepdims)

    def argsort(self, axis: int | None = -1) -> Tensor:
        """Return the indices that sort the values."""
        return self._through("argsort", axis=axis)

    def cumsum(self, axis: int | None = None) -> Tensor:
        """Return running sums."""
        return self._through("cumsum", axis=axis)

    def cumprod(self, axis: int | None = None) -> Tensor:
        """Return running products."""
        return self._through("cumprod", axis=axis)

    def _through(self, function: str, *args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = getattr(symbolic, function)(self, *args, **kwargs)
        return result
