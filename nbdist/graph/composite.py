"""Base of values made of several tensors, which become one tensor where NumPy computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nbdist.graph.array_methods import ArrayMethods

if TYPE_CHECKING:
    from nbdist.graph.op import Shape
    from nbdist.graph.tensor import Graph, Tensor


class Composite(ArrayMethods, NDArrayOperatorsMixin):
    """Several tensors under one name: ``as_tensor()`` makes one of them, and so does any NumPy function.

    Shapes and dtypes are known without this. A session fetches a composite as one array.
    """

    __slots__ = ()
    __iter__ = None  # iterating would make one tensor for each row

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    graph: Graph

    def as_tensor(self) -> Tensor:
        """Return all of it as one tensor."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def astype(self, dtype: Any) -> Tensor:
        """Return the values as another dtype."""
        return self.as_tensor().astype(dtype)

    def __getitem__(self, key: Any) -> Tensor:
        return self.as_tensor()[key]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return getattr(ufunc, method)(*map(_tensors, inputs), **kwargs)

    def __array_function__(
        self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return func(*map(_tensors, args), **{name: _tensors(value) for name, value in kwargs.items()})

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self!r} has no value until the graph runs; run it in a Session")

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} has no truth value until the graph runs; use np.where, not if")

    __hash__ = object.__hash__


def _tensors(value: Any) -> Any:
    """Return an argument of a NumPy function with every composite in it as a tensor."""
    if isinstance(value, Composite):
        return value.as_tensor()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_tensors, value))
    return value
