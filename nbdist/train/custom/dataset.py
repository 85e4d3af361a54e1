"""A dataset of global batches, of which each replica gets its share.

for x, y in strategy.distribute_dataset(dataset):
    strategy.run(step, (x, y))
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbdist.data import Dataset
from nbdist.data.meter import Meter
from nbdist.data.pieces import own_part
from nbdist.data.structure import leaves_of, rebuild
from nbdist.errors import InvalidArgumentError
from nbdist.train.custom.position import DatasetPosition
from nbdist.train.custom.reduce import joined
from nbdist.train.custom.resume import join, save_if_due
from nbdist.train.custom.runner import Runner
from nbdist.train.resume import made_of, require_same
from nbdist.train.strategy import Strategy


class DistributedDataset:
    """Batches of a dataset as this process's replicas get them; each ``for`` is one pass.

    A batch is the global one: shares differ by at most one example and add up to it, and may be empty. A pass
    ends early when the run is asked to stop.
    """

    def __init__(self, runner: Runner, dataset: Dataset, seed: int | None) -> None:
        self._runner = runner
        variables = runner.variables
        self._dataset = variables.context.served(variables.strategy.dataset(dataset, seed))
        self._passes = Passes(runner, self._dataset)

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a global batch."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        runner = self._runner
        strategies = [one.context.strategy for one in runner.variables.local.all]
        if self._dataset.apart:
            yield from self._pieces(strategies[0])
            return
        for strategy in strategies:
            strategy._pieces = None
        for element in self._passes.elements():
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
                first = strategy.first_example(size)
                runner.yielded += [(own, first, scale, part) for own, part in zip(mine, parts, strict=True)]
                shares.append(rebuild(element, mine))
            yield joined(shares)

    def _pieces(self, strategy: Strategy) -> Iterator[Any]:
        """Yield the pieces of global batches that this process makes of its own part of the data."""
        runner = self._runner
        strategy.begin_together(self._dataset)
        with self._passes.begun() as place:
            if place is None:
                return
            elements, number = iter(self._dataset), place.batches or 0
            for _ in range(number):
                runner.variables.context.control.check()
                next(elements, None)
            spec = self.element_spec
            pieces = strategy.together(elements, empty_batch(spec))
            whole = [np.zeros((1, *leaf.shape[1:]), leaf.dtype) for leaf in leaves_of(empty_batch(spec))]
            while not self._passes.boundary(place, number):
                piece, size = next(pieces, (None, 0))
                if not size:
                    break
                mine = [np.asarray(leaf) for leaf in leaves_of(piece)]
                if len(mine[0]):
                    whole = mine  # what stands for the batch where a replica has none of it
                scale = size / len(mine[0]) if len(mine[0]) else 0.0
                place_of = strategy.first_example(size)
                runner.yielded = [(own, place_of, scale, one) for own, one in zip(mine, whole, strict=True)]
                yield joined([rebuild(piece, mine)])
                number += 1
            else:
                return
        runner.end_pass()

    def __repr__(self) -> str:
        return f"<DistributedDataset of {self._dataset!r}>"


class Passes:
    """Passes through a dataset, in a run that continues from where they were; states are saved in between."""

    def __init__(self, runner: Runner, dataset: Dataset) -> None:
        self._runner, self._dataset = runner, dataset
        self._number = runner.variables.context.loop.number("datasets")
        self._meter: Meter | None = None

    def elements(self) -> Iterator[Any]:
        """Yield the elements of one pass that are still to come; it ends early when the run is to stop."""
        runner = self._runner
        with self.begun() as place:
            if place is None:
                return
            skipped, left_out = place.batches or 0, self._dataset.skipped
            try:
                for number, element in enumerate(self._dataset.iterate(meter=self.meter())):
                    if number < skipped:
                        runner.variables.context.control.check()
                        continue
                    if self.boundary(place, number):
                        return
                    yield element
            finally:  # also where a loop ends before the data does
                if runner.variables.context.is_chief and (note := self._dataset.skipped_note(left_out)):
                    print(note)
        runner.end_pass()

    def meter(self) -> Meter | None:
        """Return what measures the dataset, for the view of the run that this is in; None without a run."""
        context = self._runner.variables.context
        if self._meter is None and context.recorder is not None:
            self._meter = Meter(training=True)
        context.input_meter = self._meter or context.input_meter
        return self._meter

    @contextlib.contextmanager
    def begun(self) -> Iterator[DatasetPosition | None]:
        """Begin a pass, inside a ``with``: where it begins, or None if it was over in an earlier run."""
        context, dataset = self._runner.variables.context, self._dataset
        join(context)
        made = made_of(dataset) if context.states is not None else {}
        if data := context.loop.saved_data(self._number):
            require_same("the saved state", data, made)
        place = context.loop.begin_pass(self._number, dataset.opened, made)
        if place is None:
            yield None
            return
        dataset.reopen(place.opened)
        try:
            yield place
        finally:
            context.loop.end_pass(self._number, dataset.opened)

    def boundary(self, place: DatasetPosition, number: int) -> bool:
        """Save the state if it is time, before batch ``number``; return whether the pass ends here."""
        place.batches = number
        variables = self._runner.variables
        save_if_due(variables.context, self._number)
        ends = self._runner.stopping()
        if not ends and variables.context.loop.active[:1] == [self._number]:
            variables.admit()
        place.batches = number + 1  # it is handed out: another dataset's boundary finds it over
        return ends


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
        pipelines = max(replicas // here, 1)
        dataset = own_part(make(InputContext(pipelines, number, replicas)), pipelines, number)
        self._dataset = variables.context.served(dataset)
        self._passes = Passes(runner, self._dataset)

    @property
    def element_spec(self) -> Any:
        """The shapes and dtypes of a replica's batch."""
        return self._dataset.element_spec

    def __iter__(self) -> Iterator[Any]:
        runner, local = self._runner, self._runner.variables.local
        with self._passes.begun() as place:
            if place is None:
                return
            elements, number = self._dataset.iterate(meter=self._passes.meter()), place.batches or 0
            for _ in range(number * len(local.all)):
                runner.variables.context.control.check()
                next(elements, None)
            while not self._passes.boundary(place, number):
                batches = [next(elements, None) for _ in local.all]
                there = [np.array(batch is not None, np.int64) for batch in batches]
                if not local.all_reduce(there, "sum"):
                    break
                yield joined(
                    [empty_batch(self.element_spec) if batch is None else batch for batch in batches]
                )
                number += 1
            else:
                return
        runner.end_pass()


def empty_batch(spec: Any) -> Any:
    """Return a batch without examples, of the shapes and dtypes of ``spec``."""
    nothing = [np.zeros((0, *(n or 0 for n in one.shape[1:])), one.dtype) for one in leaves_of(spec)]
    return rebuild(spec, nothing)
