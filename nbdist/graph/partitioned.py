"""`PartitionedVariable`: a variable in shards; each shard is placed, stored and trained by itself.

table = get_variable("table", (10_000_000, 20), partitioner=fixed_size_partitioner(3))
rows = nn.functional.embedding_lookup(table, ids)       # fetches these rows, from the shards that own them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.composite import Composite
from nbdist.graph.op import show
from nbdist.graph.ops.rows import lookup
from nbdist.graph.ops.state import group
from nbdist.graph.partitioners import shard_offsets, shard_sizes
from nbdist.graph.tensor import ShardSlice, Tensor, Variable, constant, record, symbolic


class PartitionedVariable(Composite):
    """A variable that is cut along one axis into ``shards``, variables of the graph.

    ``offsets`` has the first index of each shard on ``axis``. NumPy's functions use the whole variable, which
    fetches all shards; ``embedding_lookup`` fetches rows only.

    >>> from nbdist.graph.partitioners import fixed_size_partitioner
    >>> from nbdist.graph.tensor import Graph
    >>> from nbdist.graph.variables import get_variable
    >>> with Graph().as_default():
    ...     table = get_variable("table", (10, 4), partitioner=fixed_size_partitioner(3))
    >>> table
    <PartitionedVariable 'table' (10, 4) float32 in 3 shards>
    >>> [shard.name for shard in table.shards], table.offsets
    (['table/part_0', 'table/part_1', 'table/part_2'], (0, 4, 7))
    """

    __slots__ = ("axis", "dtype", "graph", "name", "offsets", "shape", "shards")

    def __init__(self, name: str, shape: tuple[int, ...], shards: Sequence[Variable]) -> None:
        self.name, self.shape, self.shards = name, shape, list(shards)
        self.dtype, self.graph = self.shards[0].dtype, self.shards[0].graph
        uneven = (a for a, n in enumerate(shape) if any(shard.shape[a] != n for shard in self.shards))
        self.axis = next(uneven, 0)
        self.offsets = tuple(
            shard.part.start[self.axis] if shard.part and shape else 0 for shard in self.shards
        )

    @property
    def trainable(self) -> bool:
        """Whether an optimizer changes it."""
        return self.shards[0].trainable

    @property
    def initializer(self) -> Tensor:
        """The op that gives all shards their initial values."""
        return group(*(shard.initializer for shard in self.shards))

    @property
    def fetched(self) -> list[Variable]:
        """The tensors that a session computes for it."""
        return self.shards

    def with_values(self, values: Sequence[Any]) -> Any:
        """Return the whole array, given the values of the shards."""
        return np.concatenate(values, axis=self.axis) if self.shape else values[0]

    def rows(self, ids: Any) -> Tensor:
        """Return the rows at ``ids``, fetched from the shards that own them."""
        if self.axis != 0:
            raise InvalidArgumentError(
                f"{self.name!r} is cut along axis {self.axis}; embedding_lookup takes one that is cut along 0"
            )
        ends = tuple(zip(self.offsets, (*self.offsets[1:], self.shape[0] or 0), strict=True))
        graph = self.graph
        with graph.within(replace(graph.scope, name=graph.unique("embedding_lookup") + "/")):
            numbers = ids if isinstance(ids, Tensor) else constant(ids)
            return lookup(numbers, ends, lambda i, wanted: gathered(self.shards[i], wanted))

    def as_tensor(self) -> Tensor:
        """Return the whole as one tensor, which sends all shards to its device."""
        joined: Tensor = symbolic.concatenate(self.shards, axis=self.axis)
        return joined if len(self.shards) > 1 else self.shards[0]

    def assign(self, value: Any) -> Tensor:
        """Return the op that sets the value; each shard is sent its part."""
        return self._change("assign", value)

    def assign_add(self, value: Any) -> Tensor:
        """Return the op that adds to the value, in place."""
        return self._change("assign_add", value)

    def assign_sub(self, value: Any) -> Tensor:
        """Return the op that subtracts from the value, in place."""
        return self._change("assign_sub", value)

    def _change(self, how: str, value: Any) -> Tensor:
        value = value if isinstance(value, (Tensor, Composite)) else np.asarray(value)
        if value.shape != self.shape:
            raise InvalidArgumentError(
                f"{self.name!r} has the shape {show(self.shape)} and takes no value of {show(value.shape)}"
            )
        value = value.as_tensor() if isinstance(value, Composite) else value
        before = (slice(None),) * self.axis
        ends = (*self.offsets[1:], self.shape[self.axis] if self.shape else 0)
        parts = (value[(*before, slice(*ends))] for ends in zip(self.offsets, ends, strict=True))
        return group(*(getattr(s, how)(part) for s, part in zip(self.shards, parts, strict=True)))

    def __repr__(self) -> str:
        spec = f"{show(self.shape)} {self.dtype} in {len(self.shards)} shards"
        return f"<PartitionedVariable {self.name!r} {spec}>"


def gathered(table: Variable, ids: Any) -> Tensor:
    """Return the rows of a variable at ``ids``, gathered on the variable's device."""
    with table.graph.within(replace(table.graph.scope, colocated=table)):
        return record("gather_rows", table, ids)


def parts_of(
    name: str, shape: tuple[int, ...], counts: Sequence[int]
) -> list[tuple[ShardSlice, tuple[int, ...]]]:
    """Return (start, shape) of each shard, given the number of shards along each axis.

    >>> [(part.start, size) for part, size in parts_of("v", (5, 2), [2, 1])]
    [((0, 0), (3, 2)), ((3, 0), (2, 2))]
    """
    cut = [axis for axis, n in enumerate(counts) if n != 1]
    if len(counts) != len(shape) or len(cut) > 1 or any(n < 1 for n in counts):
        raise InvalidArgumentError(
            f"the partitioner of {name!r} returned {list(counts)} for the shape {show(shape)}; it returns a "
            "number of shards for each axis, of which one may be above 1"
        )
    axis = cut[0] if cut else 0
    if not shape:
        return [(ShardSlice(name, shape, ()), shape)]
    parts = []
    for first, n in zip(
        shard_offsets(shape[axis], counts[axis]), shard_sizes(shape[axis], counts[axis]), strict=True
    ):
        start = (0,) * axis + (first,) + (0,) * (len(shape) - axis - 1)
        parts.append((ShardSlice(name, shape, start), (*shape[:axis], n, *shape[axis + 1 :])))
    return parts
