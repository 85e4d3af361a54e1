"""Datasets in a graph: a task holds the arrays, and each step takes the next batch.

    source = DatasetSource(steps, arrays)  # from nbdist.data.recipe; kept on the enclosing scope's device
    rows = source.next()                        # a tensor: the number of rows of the whole batch
    x = source.part(rows, 0, shape=(None, 64), dtype=np.float32)

The arrays are sent once: a session runs ``source.load`` before the first run that needs the dataset. The
executor of a piece runs these ops itself, since an iterator is neither a value nor a variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array
from nbdist.graph.op import Shape, Spec, define_external
from nbdist.graph.scopes import default_graph
from nbdist.graph.tensor import Tensor, record

_NOTHING = Spec((), np.dtype(bool))
READS = ("next_batch", "batch_part")


class DatasetSource:
    """A dataset on the device of the enclosing scope, with a name that is unique in the graph.

    The arrays are not copied: do not change them during the session.
    """

    def __init__(self, steps: Sequence[Any], arrays: Sequence[Array], name: str = "dataset") -> None:
        graph = default_graph()
        self.name = graph.unique(name)
        scope = replace(graph.scope, name="", control=())  # loaded once, without a step's control inputs
        with graph.within(scope):
            # Attributes, not constants: they stay in host memory on any device.
            attrs = {"resource": self.name, "steps": tuple(steps), "arrays": tuple(arrays)}
            self.load = record("load_dataset", name=f"{self.name}/load", **attrs)

    def begin(self, opened: Any) -> Tensor:
        """Return the op that begins the pass given by ``opened`` (see ``Dataset.opened``)."""
        return self._record("begin_pass", opened)

    def next(self) -> Tensor:
        """Return the number of rows of the next batch, int64; running it moves to that batch.

        Raises OutOfRangeError when a pass has ended; the run after that begins another pass.
        """
        return self._record("next_batch")

    def part(
        self, rows: Tensor, index: int, shape: Shape, dtype: Any, share: tuple[int, int] = (0, 1)
    ) -> Tensor:
        """Return array ``index`` of the batch that ``rows`` counts: of n shares the i-th, for (i, n)."""
        return self._record(
            "batch_part", rows, index=index, share=share, shape=tuple(shape), dtype=np.dtype(dtype)
        )

    def _record(self, op_name: str, *inputs: Any, **attrs: Any) -> Tensor:
        graph = self.load.graph
        with graph.within(replace(graph.scope, name="", colocated=self.load)):
            made = record(op_name, *inputs, resource=self.name, name=f"{self.name}/{op_name}", **attrs)
        graph.once_before[made] = self.load
        return made


def _part_spec(
    rows: Spec, resource: str, index: int, share: tuple[int, int], shape: Shape, dtype: Any
) -> Spec:
    which, shares = share
    if not 0 <= which < shares:
        raise InvalidArgumentError(f"share {which} of {shares}: shares are counted from 0 to {shares - 1}")
    return Spec(tuple(shape), np.dtype(dtype))


define_external(  # keeps the arrays and the steps
    "load_dataset",
    spec=lambda resource, steps, arrays: _NOTHING,
    has_value=False,
)


define_external(
    "begin_pass",
    spec=lambda opened, resource: _NOTHING,
    has_value=False,
)


define_external("next_batch", spec=lambda resource: Spec((), np.dtype(np.int64)))


define_external("batch_part", spec=_part_spec)
