"""What a share of a batch counts: losses of shares as parts of the loss of the whole batch. Pure.

    replica 0: 16 examples, 12 targets that count, loss 0.5     part 12 / 32, loss 0.5 * 12 / 32
    replica 1: 16 examples,  3 targets that count, loss 0.8     part  3 / 32, loss 0.8 *  3 / 32
    the batch: 32 examples, 15 targets that count               sum of losses / sum of parts = 0.56

A loss that is a mean over examples has parts that add up to 1. One with weights of classes, a mask or ignored
targets has other ones, and no replica knows the sum before all have computed: so the push adds them up with
the gradients (`Measuring`), which are divided by it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.train.capabilities import Measures
from nbdist.train.replica import Replica
from nbdist.train.strategy import Strategy


def own_loss(part_of_loss: float, counted: float | None, mine: int, size: int) -> float:
    """Return the mean loss of a share, ``mine`` examples of ``size``, given its part of the batch's loss.

    It is 0 if nothing in the share counts.

    >>> own_loss(0.25, None, 16, 32), own_loss(0.25, 8.0, 16, 32), own_loss(0.0, 0.0, 16, 32)
    (0.5, 1.0, 0.0)
    """
    if counted is None:
        return part_of_loss * (size / mine)
    return part_of_loss * (size / counted) if counted else part_of_loss


def measures_of(results: Sequence[Any], counted: float | None, mine: int, size: int) -> Measures:
    """Return what a replica has measured, given the (loss, *metrics) of its program.

    >>> measures_of([0.25, 0.5], 8.0, 16, 32)
    Measures(loss=0.25, metrics=[0.5], part=0.25, examples=0.5, counts_examples=False)
    """
    loss, *metrics = results
    part = (mine if counted is None else counted) / size
    return Measures(float(loss), [float(one) for one in metrics], part, mine / size, counted is None)


def counted_in(counted: float | None, replica: Replica, strategy: Strategy, mine: int) -> float | None:
    """Return what the loss of a share has ``counted``; None if the share is weighed by its examples.

    Raises InvalidArgumentError if replicas weigh all shares so, and the loss counts something else.
    """
    if counted is None or replica.measures is not None:
        return counted
    if strategy.num_replicas_in_sync == 1:
        return None
    raise InvalidArgumentError(
        f"the loss of this worker's share counts {counted:g} where there are {mine} examples (weights of "
        f"classes, ignored targets, or a mask), and strategy {strategy.name} adds up shares by their "
        "examples: the result would not be that of one device. Take --strategy multi_worker, mirrored or "
        "sharded, or a loss that divides by the number of examples"
    )
