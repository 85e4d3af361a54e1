"""Sorting."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.graph.op import Spec, define, normal_axes, whole
from nbdist.graph.tensor import FUNCTIONS, Tensor, record, symbolic


def _spec(x: Spec, axis: int, kind: str | None) -> Spec:
    normal_axes("sort", whole("sort: axis", axis), len(x.shape))
    return x


def _sort_vjp(np: Any, g: Tensor, y: Tensor, x: Tensor, axis: int, kind: str | None) -> tuple[Tensor]:
    order = record("argsort", x, axis=axis, kind="stable")
    return (record("add_along_like", g, x, order, axis=axis),)


define("sort", forward=lambda xp, x, axis, kind: xp.sort(x, axis=axis, kind=kind), spec=_spec, vjp=_sort_vjp)


define(
    "argsort",
    forward=lambda xp, x, axis, kind: xp.argsort(x, axis=axis, kind=kind),
    spec=lambda x, axis, kind: Spec(_spec(x, axis, kind).shape, np.dtype(np.intp)),
)


def _recorder(name: str) -> Any:
    def recorder(
        a: Tensor, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None
    ) -> Tensor:
        x, along = (symbolic.ravel(a), 0) if axis is None else (a, whole(f"{name}: axis", axis))
        (along,) = normal_axes(name, along, x.ndim)
        return record(name, x, axis=along, kind="stable" if stable else kind)

    return recorder


FUNCTIONS[np.sort], FUNCTIONS[np.argsort] = _recorder("sort"), _recorder("argsort")
