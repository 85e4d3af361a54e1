"""Where the replicas of a strategy bring values together that are no gradients: sums, means, the first's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbdist.errors import FailedPreconditionError
from nbdist.train.context import current
from nbdist.wire.collective.base import Collective

if TYPE_CHECKING:
    from nbdist.train.strategy import Strategy

Array: TypeAlias = np.ndarray[Any, Any]


def all_reduce(strategy: Strategy, array: Any, op: str) -> Array:
    """Return the sum or the mean of what all replicas in sync have, on every one."""
    array = np.asarray(array)
    if strategy.num_replicas_in_sync == 1:
        return np.asarray(array, np.float64 if op == "mean" and array.dtype.kind in "biu" else None)
    return meet(strategy).all_reduce(array, op)


def meet(strategy: Strategy) -> Collective:
    """Return this replica's end of the group of all replicas in sync."""
    found: Collective | None = strategy.__dict__.get("_meeting")
    if found is None:
        found = strategy.__dict__["_meeting"] = strategy.meeting()
    return found


def part(strategy: Strategy, error: BaseException | None = None) -> None:
    """Let go of the group; an error breaks it: the others must not wait for this replica."""
    found: Collective | None = strategy.__dict__.pop("_meeting", None)
    if found is not None and error is not None:
        found.abort(f"{type(error).__name__}: {error}")


def common_group(strategy: Strategy) -> Collective:
    """Return the group of the run's plain collective calls, if all of the run are in sync."""
    world = getattr(strategy, "world", None) or current().world
    if world.size != strategy.num_replicas_in_sync:
        raise FailedPreconditionError(
            f"strategy {strategy.name} has {strategy.num_replicas_in_sync} replicas in sync, and this run "
            f"has {world.size}: there is no group in which they bring values together"
        )
    common: Collective = world.common
    return common
