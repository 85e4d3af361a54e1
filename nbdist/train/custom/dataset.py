"""A dataset of global batches, of which each replica gets its share.

for x, y in strategy.distribute_dataset(dataset):
    strategy.run(step, (x, y))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.train.custom.reduce import joined
from nbdist.train.custom.runner import Runner


class DistributedDataset:
    """Batches of a dataset as this process's replicas get them; each ``for`` is one pass.

    A batch is the global one: shares differ by at most one example and add up to it, and may be empty. A pass
    ends early when the run is asked to stop.
    """

    def __init__(self, runner: Runner, dataset: Dataset, seed: int | None) -> None:
        self._runner = runner
        self._dataset = runner.variables.strategy.dataset(dataset, seed)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a global batch."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        runner = self._runner
        strategies = [one.context.strategy for one in runner.variables.local.all]
        for element in self._dataset:
            if runner.stopping():
                return
            parts = [np.asarray(part) for part in leaves_of(element)]
            if any(not part.ndim for part in parts):
                raise InvalidArgumentError(
                    "distribute_dataset takes batches, and this dataset has single examples; add .batch(size)"
                )
            size = len(parts[0])
            shares = []
            runner.yielded = []
            for strategy in strategies:
                share = strategy.share(size)
                mine = [part[share] for part in parts]
                scale = size / len(mine[0]) if len(mine[0]) else 0.0
                runner.yielded += [(part, strategy.first_example(size), scale) for part in mine]
                shares.append(rebuild(element, mine))
            yield joined(shares)
        runner.end_pass()

    def __repr__(self) -> str:
        return f"<DistributedDataset of {self._dataset!r}>"


@dataclass(frozen=True)
class InputContext:
    """Which process reads, of how many, and for how many replicas in all."""

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return a replica's part of a global batch; raise if it cannot be cut into equal ones.

        >>> InputContext(num_replicas_in_sync=2).get_per_replica_batch_size(64)
        32
        """
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest:
            raise InvalidArgumentError(
                f"a global batch of {global_batch_size} cannot be cut into {self.num_replicas_in_sync} equal "
                "ones; strategy.distribute_dataset cuts any"
            )
        return size


class ReplicaBatches:
    """A dataset of batches for single replicas, which each process makes and its replicas take in turn.

    A pass ends for all replicas together; one that has no batch any more gets an empty one until then.
    """

    def __init__(self, runner: Runner, make: Callable[[InputContext], Dataset]) -> None:
        variables = runner.variables
        here, replicas = len(variables.local.all), variables.strategy.num_replicas_in_sync
        number = variables.strategy.replica_index // here if replicas > 1 else 0
        self._runner = runner
        self._dataset = make(InputContext(max(replicas // here, 1), number, replicas))

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a replica's batch."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        runner, elements = self._runner, iter(self._dataset)
        local = runner.variables.local
        while not runner.stopping():
            batches = [next(elements, None) for _ in local.all]
            there = [np.array(batch is not None, np.int64) for batch in batches]
            if not local.all_reduce(there, "sum"):
                runner.end_pass()
                return
            yield joined([self._empty() if batch is None else batch for batch in batches])

    def _empty(self) -> Any:
        spec = self.element_spec
        nothing = [np.zeros((0, *(n or 0 for n in one.shape[1:])), one.dtype) for one in leaves_of(spec)]
        return rebuild(spec, nothing)
