"""What a function that replicas run can know of its replica, and do with the others' in the middle of a step.

def step(x):
    replica = nb.distribute.get_replica_context()
    mean = replica.all_reduce("mean", x.mean(axis=0))     # of the global batch, with gradients
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.graph.composite import Composite
from nbdist.graph.tensor import Tensor, constant, placeholder
from nbdist.train.reduction import reduce_op
from nbdist.train.traced import Tracing, tracing
from nbdist.train.trees import mapped


class ReplicaContext:
    """One replica, in a function that ``strategy.run`` traces for all of them."""

    def __init__(self, what: Tracing) -> None:
        self._tracing = what

    @property
    def strategy(self) -> Any:
        """The strategy that runs the function."""
        return self._tracing.strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas make a step together."""
        return self._tracing.replicas

    @property
    def replica_id_in_sync_group(self) -> Tensor:
        """The replica's number from 0 on, as a tensor: what is traced is run by all of them."""
        made = self._tracing.trace
        if made.replica is None:
            made.replica = placeholder(np.int32, (), name="replica_id")
        return made.replica

    def all_reduce(self, op: Any, value: Any) -> Any:
        """Return the "sum" or "mean" of the replicas' tensors, of one or of each in a tree.

        Every replica has a part in it, and its gradient takes all replicas' gradients back to each.
        """
        how = reduce_op(op)

        def one(value: Any) -> Tensor:
            tensor = value.as_tensor() if isinstance(value, Composite) else value
            tensor = tensor if isinstance(tensor, Tensor) else constant(tensor)
            if self.num_replicas_in_sync > 1:
                return self._tracing.all_reduce(tensor, how.value)
            return tensor.astype(np.float64) if how == "mean" and tensor.dtype.kind in "biu" else tensor

        return mapped(one, value)


def get_replica_context() -> ReplicaContext | None:
    """Return the replica's context in a function that ``strategy.run`` traces; None elsewhere.

    >>> get_replica_context() is None
    True
    """
    found = tracing()
    return None if found is None else ReplicaContext(found)
