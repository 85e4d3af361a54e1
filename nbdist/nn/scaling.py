"""Scales a replica's losses so that their sum over all replicas is the mean of the global batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.composite import Composite
from nbdist.graph.tensor import Tensor, symbolic


def compute_average_loss(per_example_loss: Any, global_batch_size: Any) -> Any:
    """Return the sum of the examples' losses, divided by how many examples all replicas have together.

    Gradients of it, summed over the replicas, are those of one device with the whole batch.
    ``per_example_loss`` is a tensor or an array of any shape, ``global_batch_size`` a whole number of 1 or
    more (or a tensor, if it is known only at run time). Raises InvalidArgumentError for another batch size.

    >>> compute_average_loss([1, 2, 3, 4, 5], global_batch_size=10)
    np.float64(1.5)
    """
    if not isinstance(global_batch_size, Tensor):
        whole = isinstance(global_batch_size, (int, np.integer)) and not isinstance(global_batch_size, bool)
        if not whole or global_batch_size < 1:
            raise InvalidArgumentError(
                f"compute_average_loss: a global batch has 1 example or more, got {global_batch_size!r}"
            )
    losses = per_example_loss
    if not isinstance(losses, (Tensor, Composite)):
        losses = np.asarray(losses)
    return symbolic.sum(losses) / global_batch_size
