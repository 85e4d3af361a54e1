"""How replicas that step together go through one dataset."""

from __future__ import annotations

from nbdist.data import Dataset
from nbdist.errors import InvalidArgumentError


def one_order(dataset: Dataset, seed: int | None, replicas: int) -> Dataset:
    """Return the dataset in one order for all replicas, each of which takes its share of every batch."""
    if dataset.shards > 1 and replicas > 1:
        raise InvalidArgumentError(
            f"the dataset is one of {dataset.shards} shards: synchronous replicas share each batch of the "
            "whole dataset by themselves; drop .shard(), or train with --async"
        )
    return dataset.with_seed(seed or 0)
