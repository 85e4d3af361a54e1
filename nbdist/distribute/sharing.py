"""How replicas that step together, or on their own, go through one dataset."""

from __future__ import annotations

from nbdist.data import AutoShardPolicy, Dataset
from nbdist.data.pieces import own_part, part_for
from nbdist.errors import InvalidArgumentError


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
