"""A dataset of global batches, of which each replica gets its share.

for x, y in strategy.distribute_dataset(dataset):
    strategy.run(step, (x, y))
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.train.reduction import joined
from nbdist.train.running import Runner


class DistributedDataset:
    """Batches of a dataset as this process's replicas get them; each ``for`` is one pass.

    A batch is the global one: shares differ by at most one example and add up to it, and may be empty. A pass
    ends early when the run is asked to stop.
    """

    def __init__(self, runner: Runner, dataset: Dataset, seed: int | None) -> None:
        self._runner = runner
        self._dataset = runner.held.strategy.dataset(dataset, seed)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a global batch."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        runner = self._runner
        strategies = [place.context.strategy for place in runner.held.places.all]
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
                runner.yielded += [(part, strategy.place(size), scale) for part in mine]
                shares.append(rebuild(element, mine))
            yield joined(shares)
        runner.end_pass()

    def __repr__(self) -> str:
        return f"<DistributedDataset of {self._dataset!r}>"
