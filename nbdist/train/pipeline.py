"""In which order the stages of a pipeline work through the micro-batches of a step. Pure.

GPipe   all micro-batches forward, then all backward              (Huang et al. 2019)
1F1B    as soon as it can, one backward after each forward: fewer activations are kept
                                                                 (Narayanan et al. 2019)
"""

from __future__ import annotations

from dataclasses import dataclass

from nbdist.errors import InvalidArgumentError, choices

SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class Work:
    """What a stage does in one time slot: micro-batch ``micro_batch``, forward or backward."""

    slot: int
    stage: int
    micro_batch: int
    forward: bool


def pipeline(stages: int, micro_batches: int, schedule: str = "gpipe") -> list[Work]:
    """Return all work of a step in order of time, for stages that all take one slot for any work.

    >>> [f"{'F' if w.forward else 'B'}{w.micro_batch}" for w in pipeline(2, 2, "1f1b") if w.stage == 0]
    ['F0', 'F1', 'B0', 'B1']
    """
    if schedule not in SCHEDULES:
        raise InvalidArgumentError(f"no schedule {schedule!r}; {choices(schedule, SCHEDULES)}")
    orders = [_order(stage, stages, micro_batches, schedule) for stage in range(stages)]
    done: dict[tuple[int, int, bool], int] = {}
    found: list[Work] = []
    slot = 0
    while any(orders):
        begun: list[Work] = []
        finished = {key for key, end in done.items() if end < slot}
        for stage, order in enumerate(orders):
            if order and _ready(stage, *order[0], stages, finished):
                begun.append(Work(slot, stage, *order.pop(0)))
        for work in begun:
            done[work.stage, work.micro_batch, work.forward] = work.slot
        found += begun
        slot += 1
    return found


def bubble_fraction(stages: int, micro_batches: int, schedule: str = "gpipe") -> float:
    """Return the share of the stages' time in which they have nothing to do, in 0 to 1.

    >>> bubble_fraction(3, 6)
    0.25
    """
    work = pipeline(stages, micro_batches, schedule)
    slots = max(w.slot for w in work) + 1
    return 1 - len(work) / (slots * stages)


def _order(stage: int, stages: int, micro_batches: int, schedule: str) -> list[tuple[int, bool]]:
    """Return a stage's own order of (micro-batch, forward)."""
    # Else enough is under way that the last stage can always give one back.
    ahead = micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)
    order = [(m, True) for m in range(ahead)]
    for m in range(micro_batches):
        order.append((m, False))
        if ahead + m < micro_batches:
            order.append((ahead + m, True))
    return order


def _ready(stage: int, micro: int, forward: bool, stages: int, done: set[tuple[int, int, bool]]) -> bool:
    if forward:
        return stage == 0 or (stage - 1, micro, True) in done
    return (stage, micro, True) in done and (stage == stages - 1 or (stage + 1, micro, False) in done)
