"""How workers go through one dataset: in step, as under a `WorkerStrategy`, or each on its own."""

from __future__ import annotations

from nbdist.data import AutoShardPolicy, Dataset
from nbdist.data.pieces import own_part, part_for
from nbdist.errors import InvalidArgumentError
from nbdist.runtime.groups import World
from nbdist.train.context import current
from nbdist.train.strategy import Strategy


class WorkerStrategy(Strategy):
    """A strategy of a run's workers, which make each step together, on their shares of one batch.

    Strategies of one's own inherit from it: they give a ``name`` and the method ``replica``.

    - ``world``: the replicas; None for those of the surrounding run
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = current().world if world is None else world
        self.num_replicas_in_sync, self.replica_index = self.world.size, self.world.index

    def dataset(self, dataset: Dataset, seed: int | None) -> Dataset:
        """Return the dataset in one order for all, of which each replica takes its share of every batch."""
        return one_order(dataset, seed, self.num_replicas_in_sync, self.world.size, self.world.index)


def one_order(dataset: Dataset, seed: int | None, replicas: int, workers: int = 1, index: int = 0) -> Dataset:
    """Return the dataset in one order for all replicas, each of which takes its share of every batch.

    If the dataset says how ``workers`` divide it, worker ``index`` gets its part: see
    `nbdist.data.pieces.part_for`.
    """
    if dataset.shards > 1 and replicas > 1:
        raise InvalidArgumentError(
            f"the dataset is one of {dataset.shards} shards: synchronous replicas share each batch of the "
            "whole dataset by themselves; drop .shard(), say how to divide it with .with_auto_shard(policy), "
            "or train with --async"
        )
    part = part_for(dataset, workers, index)
    if part.apart and dataset.resolved_policy(workers) is AutoShardPolicy.OFF:
        return part.with_seed(seed or 0, index)  # all have the same data, and go through it in other orders
    return part.with_seed(seed or 0)


def own_order(dataset: Dataset, seed: int | None, replicas: int, index: int) -> Dataset:
    """Return the dataset in an order of its own for a replica that steps independently, or its part of it."""
    part = own_part(dataset, replicas, index)
    return part if seed is None else part.with_seed(seed, index)
