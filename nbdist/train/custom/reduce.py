"""Reduces values of several replicas to a sum or a mean.

loss = strategy.reduce("sum", strategy.run(step, (x, y)))
accuracy = strategy.reduce("mean", strategy.run(correct, (x, y)), axis=0)     # of all examples
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.composite import Composite
from nbdist.graph.tensor import Tensor, constant, placeholder
from nbdist.train.custom.trace import Tracing, tracing, tree_leaves, tree_map

Array: TypeAlias = np.ndarray[Any, Any]
AllReduce: TypeAlias = Callable[[Sequence[Array], str], Array]
"""Returns the "sum" or the "mean" of all replicas' arrays, given those of this process."""


class ReduceOp(StrEnum):
    """How values of replicas become one."""

    SUM = "sum"
    MEAN = "mean"


def reduce_op(op: Any) -> ReduceOp:
    """Return the operation of that name, in small or capital letters.

    >>> reduce_op("SUM")
    <ReduceOp.SUM: 'sum'>
    """
    try:
        return ReduceOp(op.lower() if isinstance(op, str) else op)
    except ValueError:
        raise InvalidArgumentError(f"no way to reduce {op!r}; {choices(op, ReduceOp)}") from None


@dataclass(frozen=True)
class PerReplica:
    """A value of each replica of this process, in order; where it has one replica, a value is itself.

    >>> PerReplica((1, 2)).values
    (1, 2)
    """

    values: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.values)


def of_replica(tree: Any, index: int, replicas: int) -> Any:
    """Return what one replica has of a tree, in which some values are of each replica."""

    def one(value: Any) -> Any:
        if not isinstance(value, PerReplica):
            return value
        if len(value) != replicas:
            raise InvalidArgumentError(
                f"there are values of {len(value)} replicas, and this process has {replicas}; "
                "take them from this strategy's own run or distribute_dataset"
            )
        return value.values[index]

    return tree_map(one, tree)


def joined(trees: Sequence[Any]) -> Any:
    """Return trees of the same form, one of each replica, as one tree of values of replicas."""
    if len(trees) == 1:
        return trees[0]
    columns = [list(tree_leaves(tree)) for tree in trees]
    rows = iter(zip(*columns, strict=True))
    return tree_map(lambda _: PerReplica(next(rows)), trees[0])


def reduced(op: ReduceOp, values: Sequence[Any], axis: Any, all_reduce: AllReduce) -> Array:
    """Return the sum or mean over all replicas, given the values of those in this process.

    With an axis over that as well: a mean is then that of all elements, however many each replica has.
    """
    arrays = [np.asarray(value) for value in values]
    if any(array.dtype.kind not in "biufc" for array in arrays):
        raise InvalidArgumentError(f"reduce takes numbers of the replicas, got {values[0]!r}")
    if axis is None:
        return all_reduce(arrays, op)
    try:
        sums = [array.sum(axis=axis) for array in arrays]
    except (np.exceptions.AxisError, TypeError) as error:
        raise InvalidArgumentError(
            f"reduce: {error}; the replicas' values have the shapes {[array.shape for array in arrays]}"
        ) from None
    if op is ReduceOp.SUM:
        return all_reduce(sums, "sum")
    # Sum and count travel together, in double precision: a count of examples may be large.
    kind = np.complex128 if sums[0].dtype.kind == "c" else np.float64
    counts = [_count(array, axis) for array in arrays]
    packed = [np.append(total.ravel(), n).astype(kind) for total, n in zip(sums, counts, strict=True)]
    *total, count = all_reduce(packed, "sum")
    if not count:
        raise InvalidArgumentError("reduce: there is nothing to take the mean of, on no replica")
    mean = (np.array(total) / count).reshape(sums[0].shape)
    floats = arrays[0].dtype.kind in "fc"
    result: Array = mean.astype(arrays[0].dtype) if floats else mean
    return result


def _count(array: Array, axis: Any) -> int:
    axes = axis if isinstance(axis, tuple) else (axis,)
    return int(np.prod([array.shape[a] for a in axes]))


# What a function that replicas run can know of its replica, and do with the others' in the middle of a
# step.
#
# def step(x):
#     replica = nb.distribute.get_replica_context()
#     mean = replica.all_reduce("mean", x.mean(axis=0))     # of the global batch, with gradients


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

        return tree_map(one, value)


def get_replica_context() -> ReplicaContext | None:
    """Return the replica's context in a function that ``strategy.run`` traces; None elsewhere.

    >>> get_replica_context() is None
    True
    """
    found = tracing()
    return None if found is None else ReplicaContext(found)
