"""`Batches`: what a framework trains on, as batches of flat tuples of arrays, which replicas share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nbdist.data import Dataset
from nbdist.data.structure import leaves_of, rebuild
from nbdist.graph.backend import Array


@dataclass(frozen=True)
class Batches:
    """Batches of flat tuples of arrays, and what makes the element for the model of a share of one."""

    dataset: Dataset
    opened: Callable[[tuple[Array, ...]], Any]
    note: str = ""
    """What a user should know."""


class Pass(Iterator[Any]):
    """One pass over the batches of a dataset; its ``len``, for progress bars, is that of the dataset."""

    def __init__(self, batches: Iterator[Any], dataset: Dataset) -> None:
        self._batches, self._dataset = batches, dataset

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._dataset)


def nested(dataset: Dataset, note: str = "") -> Batches:
    """Return a dataset whose batches are nested tuples and dicts of arrays, or single arrays.

    >>> import numpy as np
    >>> rows = Dataset.from_arrays({"a": np.zeros(4), "b": np.ones(4)}, np.arange(4)).batch(2)
    >>> found = nested(rows)
    >>> found.opened(next(iter(found.dataset)))
    ({'a': array([0., 0.]), 'b': array([1., 1.])}, array([0, 1]))
    """
    spec = dataset.element_spec
    if isinstance(spec, tuple) and not any(isinstance(part, (tuple, dict)) for part in spec):
        return Batches(dataset, tuple, note)
    if not isinstance(spec, (tuple, dict)):
        return Batches(dataset, lambda batch: batch[0], note)
    return Batches(dataset.map(_leaves), lambda batch: rebuild(spec, list(batch)), note)


def _leaves(*element: Any) -> tuple[Any, ...]:
    return tuple(leaves_of(element))
