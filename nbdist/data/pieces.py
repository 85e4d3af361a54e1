"""The part that one of several workers reads, where they make each global batch together.

    dataset = Dataset.tfrecords("train-*").batch(64).with_auto_shard("file")
    part = part_for(dataset, workers=4, index=0)        # batches of 16: its part of each global batch

With policy DATA all workers go through the same global batches and each takes its share, which is also what
they do without a policy. With the others each worker makes global batches of its own data, its files say, and
cuts each into as many pieces as there are workers: one piece for each of as many steps. The global batch of a
step consists of a piece of each worker. Pieces differ by at most one example, and workers take them in turns:
the pieces of a step have together as many examples as a global batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from nbdist.data.blocks import Block, Blocks, Pass, too_few
from nbdist.data.dataset import Dataset
from nbdist.data.elements import elements
from nbdist.data.policy import AutoShardPolicy
from nbdist.data.rows import Rows
from nbdist.data.shares import share_of
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError


def part_for(dataset: Dataset, workers: int, index: int) -> Dataset:
    """Return the dataset as worker ``index`` of ``workers`` reads it, by its policy.

    With policy DATA it is the whole dataset; else a dataset with :attr:`Dataset.apart`, of pieces of batches.
    Raises InvalidArgumentError for a policy that cannot be followed, as `Dataset.auto_shard` does; with DATA
    for fewer examples than workers: here if their number is known, else at the end of a pass.

    >>> halves = [part_for(Dataset.range(6).batch(3).with_auto_shard("off"), 2, index) for index in (0, 1)]
    >>> [[piece.tolist() for piece in half] for half in halves]
    [[[0, 1], [2], [3, 4], [5]], [[2], [0, 1], [5], [3, 4]]]
    """
    if dataset.policy is None or workers == 1:
        return dataset
    policy = dataset.resolved_policy(workers)
    stage = dataset._stage
    if policy is AutoShardPolicy.DATA:
        if dataset.source is not None and dataset.source.count < workers:
            raise too_few(dataset.source.count, workers)
        made = partial(enough, stage.blocks, stage.rows, workers)
        return Dataset(replace(stage, blocks=made, rows=None), dataset._salt)
    own = dataset.auto_shard(workers, index, policy)._stage
    made = partial(pieces, own.blocks, own.rows, workers, index)
    step = ("pieces", policy.value, workers)
    count = stage.count if stage.count == math.inf else None
    part = replace(
        own,
        blocks=made,
        rows=None,
        count=count,
        steps=(*stage.steps, step),
        spec=None,
        files=None,
        apart=True,
    )
    return Dataset(part, dataset._salt)


def own_part(dataset: Dataset, workers: int, index: int) -> Dataset:
    """Return what worker ``index`` of ``workers`` reads, by its policy, if each makes batches of its own."""
    if dataset.policy is None or workers == 1:
        return dataset
    return dataset.auto_shard(workers, index, dataset.policy)


def pieces(upstream: Blocks, rows: Rows | None, workers: int, index: int, run: Pass) -> Iterator[Block]:
    """Yield the pieces of each batch, a different one first on each worker."""
    for batch in elements(upstream, rows, run):
        leaves = leaves_of(batch)
        size = _length(leaves)
        for number in range(workers):
            share = share_of(size, workers, (number + index) % workers)
            yield [rebuild(batch, [leaf[share] for leaf in leaves])]


def enough(upstream: Blocks, rows: Rows | None, workers: int, run: Pass) -> Iterator[Block]:
    """Yield each batch; raise InvalidArgumentError at the end if there were fewer examples than workers."""
    count = 0
    for batch in elements(upstream, rows, run):
        count += _length(leaves_of(batch))
        yield [batch]
    if count < workers:
        raise too_few(count, workers)


def _length(leaves: list[object]) -> int:
    try:
        return len(leaves[0])  # type: ignore[arg-type]  # a single value has none
    except TypeError:
        raise InvalidArgumentError(
            "an auto-shard policy is for batches, and this dataset has single examples; add .batch(size), "
            "with the size of the global batch"
        ) from None
