"""Datasets that are read where they are used: by ops, on the device of the scope around."""

from __future__ import annotations

from nbdist.data import Dataset
from nbdist.data.recipe import describe
from nbdist.data.shares import share_of
from nbdist.data.steps import Step
from nbdist.data.structure import leaves_of
from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Shape
from nbdist.graph.ops.datasets import DatasetSource
from nbdist.graph.tensor import Tensor


def next_batch(
    dataset: Dataset, name: str | None = None, *, share: tuple[int, int] = (0, 1)
) -> tuple[Tensor, ...]:
    """Return the next batch of ``dataset`` as tensors, one for each array of an element.

    The device of the scope around reads it: the arrays travel there once, before the first run, and each run
    of a session takes one batch. Every session begins at the first pass. At the end of a pass the run raises
    OutOfRangeError, and the next begins another pass, in another order if the dataset is shuffled.
    ``share=(i, n)`` takes the i-th of n shares of each batch: towers that each read one go through the same
    batches together, as long as every run takes one for all of them. Raises InvalidArgumentError for a
    dataset that has a function in it (map, from_generator) or no batches.

    >>> import numpy as np
    >>> from nbdist.graph.scopes import Graph
    >>> with Graph().as_default():
    ...     next_batch(Dataset.from_arrays(np.eye(6), np.arange(6)).batch(2, drop_remainder=True))
    (<Tensor 'dataset/batch_part' (2, 6) float64>, <Tensor 'dataset/batch_part_1' (2,) int64>)
    """
    steps, arrays = described(dataset)
    source = DatasetSource(steps, arrays, name or "dataset")
    rows = source.next()
    return tuple(
        source.part(rows, i, _shared(spec.shape, share), array.dtype, share)
        for i, (spec, array) in enumerate(zip(leaves_of(dataset.element_spec), arrays, strict=True))
    )


def described(dataset: Dataset) -> tuple[tuple[Step, ...], list[Array]]:
    """Return a description of a dataset whose elements are batches, in a form that can be sent; or raise."""
    steps, arrays = describe(dataset)
    if not any(name == "batch" for name, *_ in steps):
        raise InvalidArgumentError(
            f"{dataset!r} has single examples, and what a step takes is a batch: add .batch(size)"
        )
    return steps, arrays


def _shared(shape: Shape, share: tuple[int, int]) -> Shape:
    """Return the shape of a share of a batch, as far as it is known."""
    which, shares = share
    size, *rest = shape
    if size is None or not 0 <= which < shares:
        return (None, *rest)
    part = share_of(size, shares, which)
    return (part.stop - part.start, *rest)
