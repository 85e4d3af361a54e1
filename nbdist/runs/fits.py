"""Replicas that share parameters train together: each body calls fit as often as all others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nbdist.errors import FailedPreconditionError
from nbdist.runtime.task import TaskInfo


def left_waiting(
    workers: Sequence[TaskInfo],
    lost: Collection[int],
    begun: Mapping[int, int],
    outcomes: Mapping[int, Mapping[str, Any]],
) -> FailedPreconditionError | None:
    """Return what is wrong if a replica waits in a fit that another one's body has ended without.

    ``begun`` are the trainings that each rank has begun, as far as it is known; ``outcomes`` are of the
    bodies that are over. Workers that are ``lost`` are not waited for.
    """
    ended = {rank: outcome.get("trainings", 0) for rank, outcome in outcomes.items()}
    most = max(begun.values(), default=0)
    short = [info.name for info in workers if info.rank not in lost and ended.get(info.rank, most) < most]
    if not short:
        return None
    waits = next(info.name for info in workers if begun.get(info.rank) == most)
    return FailedPreconditionError(
        f"{waits} trains, and {', '.join(short)} ended without its part in fit number {most}: "
        "replicas that share parameters have to call fit the same number of times. Call it on "
        "every worker, or use --strategy one_device"
    )
