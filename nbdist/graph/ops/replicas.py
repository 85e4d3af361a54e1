"""What replicas of a strategy do together in the middle of a step; what runs the step's program does it."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.graph.op import Op, Spec, register
from nbdist.graph.tensor import Tensor, record


def _elsewhere(*inputs: Any, **attrs: Any) -> Any:
    raise RuntimeError("what replicas do together is done by what runs a step of theirs")


def _reduced(x: Spec, op: str) -> Spec:
    return Spec(x.shape, np.dtype(np.float64)) if op == "mean" and x.dtype.kind in "biu" else x


def _vjp(np: Any, g: Tensor, y: Tensor, x: Tensor, op: str) -> tuple[Tensor | None]:
    # Each replica's y holds every replica's x, so that all their gradients meet in each x.
    return (None,) if op == "first" else (record("all_reduce", g, op=op),)


register(  # the "sum" or "mean" of all replicas' x, or that of the "first" one, on every replica
    Op("all_reduce", forward=_elsewhere, spec=_reduced, vjp=_vjp, external=True)
)
