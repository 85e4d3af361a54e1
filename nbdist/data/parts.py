"""A pass in parts, for processes that make it together: each makes every n-th element.

    first = part_of(dataset, parts=2, index=0)      # elements 0, 2, 4, ... of each pass
    other = part_of(dataset, parts=2, index=1)      # elements 1, 3, 5, ...

A map is a function of one element, so a part leaves out the others' elements *before* the maps at the end of
the pipeline, and makes only its own: of ``read.map(f).batch(32).prefetch(2)`` it reads everything, and calls
``f`` for the elements of its own batches. What else is at the end (a filter, a shuffle) is made whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from nbdist.data import elements, parallel, processes
from nbdist.data.blocks import Block, Blocks, Pass
from nbdist.data.dataset import Dataset
from nbdist.data.meter import Measured

MAPS = (elements.mapped, parallel.mapped, processes.mapped)


def part_of(dataset: Dataset, parts: int, index: int, first: int = 0) -> Dataset:
    """Return the elements of a pass whose number modulo ``parts`` is ``index``, from number ``first`` on.

    Its shuffles, and the counts of their openings, are those of ``dataset``.

    >>> squares = Dataset.range(7).map(lambda n: n * n).batch(2)
    >>> [batch.tolist() for batch in part_of(squares, 2, 1)]
    [[4, 9], [36]]
    >>> [batch.tolist() for batch in part_of(squares, 1, 0, first=2)]
    [[16, 25], [36]]
    """
    if parts == 1 and first == 0:
        return with_passes(dataset, dataset._stage.blocks, whole=False)
    made, _ = _selected(dataset._stage.blocks, 1, parts, index, first)
    return with_passes(dataset, made, whole=False)


def divides(dataset: Dataset) -> bool:
    """Return whether several parts of a pass have less work each than the whole: there is a map to divide.

    >>> divides(Dataset.range(4).map(abs).batch(2)), divides(Dataset.range(4).map(abs).shuffle(4))
    (True, False)
    """
    return _selected(dataset._stage.blocks, 1, 2, 0, 0)[1]


def with_passes(dataset: Dataset, made: Blocks, *, whole: bool = True) -> Dataset:
    """Return a dataset that equals ``dataset`` in all that is known of it, with passes that ``made`` makes.

    ``made`` returns blocks of elements; with ``whole`` False not all of them, in the form that they have in
    ``dataset``.
    """
    stage = dataset._stage
    changes: dict[str, Any] = {"rows": None} if whole else {"count": None}
    if whole:
        made = Measured(made, ("data tasks",))
    return Dataset(replace(stage, blocks=made, **changes), dataset._salt)


def first_skipped(dataset: Dataset) -> str:
    """Return the reason for the first record that was left out; "" if there is none."""
    return dataset._skipped.first


def _selected(made: Blocks, unit: int, parts: int, index: int, first: int) -> tuple[Blocks, bool]:
    """Return ``made`` with one part of its elements only, and whether a map is divided.

    ``unit`` elements here become one at the end of the pipeline.
    """
    if isinstance(made, Measured):
        inner, divided = _selected(made.made, unit, parts, index, first)
        return Measured(inner, made.step, made.execution), divided
    function = made.func if isinstance(made, partial) else None
    if function in MAPS or function is parallel.prefetched:
        assert isinstance(made, partial)
        upstream, *rest = made.args
        inner, divided = _selected(upstream, unit, parts, index, first)
        return partial(made.func, inner, *rest), divided or function in MAPS
    if function is elements.batch:
        assert isinstance(made, partial)
        upstream, rows, size, drop_remainder = made.args
        inner, divided = _selected(upstream, unit * size, parts, index, first)
        return partial(made.func, inner, rows, size, drop_remainder), divided
    return partial(own_groups, made, unit, parts, index, first), False


def own_groups(upstream: Blocks, unit: int, parts: int, index: int, first: int, run: Pass) -> Iterator[Block]:
    """Yield every ``parts``-th group of ``unit`` elements: ``index`` modulo ``parts``, from ``first`` on."""
    position = 0
    for block in upstream(run):
        start = 0
        while start < len(block):
            group, offset = divmod(position + start, unit)
            stop = min(len(block), start + unit - offset)
            if group >= first and group % parts == index:
                yield block[start:stop]
            start = stop
        position += len(block)
