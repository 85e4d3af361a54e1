"""Batches that towers read by themselves: the data lies with each of them, and the client feeds none of it.

    reading = Reading(dataset, homes=["/job:worker/task:0", "/job:worker/task:1"], parts)
    for arrays, size in reading.batches(begin): ...         # on the client: sizes, and arrays of nothing
    x, y = reading.share(0, size)                           # in the graph: what tower 0 gets of such a batch

All towers go through the same batches in the same order, and each takes its share. The client goes through
the same dataset without its data; so it knows the size of each batch, and the graph has exact shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nbdist.data import Dataset
from nbdist.data.recipe import without_data
from nbdist.data.shares import share_of
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.ops.datasets import DatasetSource
from nbdist.graph.ops.state import group
from nbdist.graph.scopes import control_dependencies, device
from nbdist.graph.tensor import Placeholder, Tensor, placeholder, record
from nbdist.train.graph_dataset import described
from nbdist.train.trainable import Parts


class Reading:
    """A dataset of (x, y) in batches, read on the devices ``homes``, one of each tower.

    Adds to the default graph. ``parts`` is what the batches are for. Raises InvalidArgumentError for a
    dataset that cannot travel or that has no batches.
    """

    def __init__(self, dataset: Dataset, homes: Sequence[str], parts: Parts) -> None:
        self.dataset, self._homes, self._parts = dataset, homes, parts
        steps, self._arrays = described(dataset)
        structure = dataset.source.structure if dataset.source is not None else None
        if not isinstance(structure, tuple) or len(structure) != 2 or len(self._arrays) != 2:
            raise InvalidArgumentError(
                "training takes batches of (x, y); use Dataset.from_arrays(x, y).batch(...)"
            )
        if parts.classes is None:  # class numbers are checked where they are read
            parts.check_labels(self._arrays[1])
        self._outline = without_data(dataset)
        self._opened: Placeholder = placeholder(np.int64, (len(self._outline.opened),), name="opened")
        self.sources: list[DatasetSource] = []
        """Of each tower; running the ``next()`` of one advances its tower to the next batch."""
        for home in homes:
            with device(home):
                self.sources.append(DatasetSource(steps, self._arrays, "data"))
        self._begin = group(*(source.begin(self._opened) for source in self.sources))
        self._passed: set[tuple[int, ...]] = set()

    def batches(
        self, begin: Callable[[Tensor, dict[Tensor, Array]], object]
    ) -> Iterator[tuple[tuple[Array, ...], int]]:
        """Yield, for each batch of a pass, arrays of its shapes that take no memory, and its size.

        ``begin`` runs an op, given what it is fed: it has all towers begin this very pass.
        """
        begin(self._begin, {self._opened: np.array(self._outline.opened, np.int64)})
        for outline in self._outline:
            yield self._shapes(outline.shape), len(outline)

    def share(self, i: int, size: int) -> tuple[Tensor, Tensor]:
        """Return x and y of tower ``i``'s share of the next batch, which is one of ``size``."""
        x, y = self._arrays
        source, share = self.sources[i], (i, len(self.sources))
        rows, part = source.next(), share_of(size, len(self.sources), i)
        own = part.stop - part.start
        labels = source.part(rows, 1, (own, *y.shape[1:]), y.dtype, share)
        wanted, classes = self._parts.y, self._parts.classes
        with device(self._homes[i]):
            checks = [] if classes is None else [record("check_classes", labels, classes=classes)]
            with control_dependencies(checks):
                labels = record("cast", labels, dtype=wanted.dtype)
            if labels.ndim < wanted.ndim:
                labels = np.expand_dims(labels, -1)  # type: ignore[assignment]  # tensors are arrays
            images = source.part(rows, 0, (own, *x.shape[1:]), x.dtype, share)
            if images.dtype != self._parts.x.dtype:
                images = images.astype(self._parts.x.dtype)
        return images, labels

    def _shapes(self, lead: tuple[int, ...]) -> tuple[Array, ...]:
        """Return arrays of a batch's shapes, of the first example.

        Their dtypes are the data's own the first time, for a check.
        """
        first = lead not in self._passed
        self._passed.add(lead)
        taken = (self._parts.x.dtype, self._parts.y.dtype)
        own = tuple(array.dtype for array in self._arrays)
        dtypes = own if first else taken
        return tuple(
            np.broadcast_to(array[:1].astype(dtype), (*lead, *array.shape[1:]))
            for dtype, array in zip(dtypes, self._arrays, strict=True)
        )
