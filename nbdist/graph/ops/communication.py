"""What crosses between the pieces of a cut graph: a partition makes these ops, a station does them.

``device`` is the edge's other end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.graph.op import Op, Shape, Spec, register
from nbdist.graph.tensor import Tensor, record


def _elsewhere(*inputs: Any, **attrs: Any) -> Any:
    raise RuntimeError("what crosses between devices is moved by what runs the pieces")


register(  # hands a value to the edge's other end
    Op("send", forward=_elsewhere, spec=lambda x, edge, device: x, external=True, has_value=False)
)


def _received(edge: int, device: str, shape: Shape, dtype: Any) -> Spec:
    return Spec(tuple(shape), np.dtype(dtype))


register(Op("receive", forward=_elsewhere, spec=_received, external=True))  # waits for the value


_NOTHING = Spec((), np.dtype(bool))
for _name in ("signal", "await"):  # the same for a control dependency, which has no value
    register(
        Op(_name, forward=_elsewhere, spec=lambda edge, device: _NOTHING, external=True, has_value=False)
    )


# What replicas of a strategy do together in the middle of a step; what runs the step's program does it.


def _all_reduced_elsewhere(*inputs: Any, **attrs: Any) -> Any:
    raise RuntimeError("what replicas do together is done by what runs a step of theirs")


def _reduced(x: Spec, op: str) -> Spec:
    return Spec(x.shape, np.dtype(np.float64)) if op == "mean" and x.dtype.kind in "biu" else x


def _vjp(np: Any, g: Tensor, y: Tensor, x: Tensor, op: str) -> tuple[Tensor | None]:
    # Each replica's y holds every replica's x, so that all their gradients meet in each x.
    return (None,) if op == "first" else (record("all_reduce", g, op=op),)


register(  # the "sum" or "mean" of all replicas' x, or that of the "first" one, on every replica
    Op("all_reduce", forward=_all_reduced_elsewhere, spec=_reduced, vjp=_vjp, external=True)
)
