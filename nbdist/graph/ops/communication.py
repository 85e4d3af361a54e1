"""Ops that move values between devices or replicas: send, receive, signal, await, all_reduce.

`nbdist.graph.compile.partition` inserts sends and receives where an edge crosses devices; ``device`` is the
edge's other end. These ops have no kernel: the executor of a subgraph, or the runner of a replica's step,
performs them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.graph.op import Shape, Spec, define_external
from nbdist.graph.tensor import Tensor, record

# Sends a value to the edge's other end.
define_external("send", spec=lambda x, edge, device: x, has_value=False)


def _received(edge: int, device: str, shape: Shape, dtype: Any) -> Spec:
    return Spec(tuple(shape), np.dtype(dtype))


define_external("receive", spec=_received)  # waits for the value


_NOTHING = Spec((), np.dtype(bool))
for _name in ("signal", "await"):  # send and receive of a control dependency, which has no value
    define_external(_name, spec=lambda edge, device: _NOTHING, has_value=False)


# Collectives of a strategy's replicas, in the middle of a step.


def _reduced(x: Spec, op: str) -> Spec:
    return Spec(x.shape, np.dtype(np.float64)) if op == "mean" and x.dtype.kind in "biu" else x


def _vjp(np: Any, g: Tensor, y: Tensor, x: Tensor, op: str) -> tuple[Tensor | None]:
    # Each replica's y depends on every replica's x, so each x gets the gradients of all y.
    return (None,) if op == "first" else (record("all_reduce", g, op=op),)


# The "sum" or "mean" of all replicas' x, or that of the "first" one, on every replica.
define_external("all_reduce", spec=_reduced, vjp=_vjp)
