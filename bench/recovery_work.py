"""The work and the record of ``bench recovery`` and ``bench faults``: every step is a line in a file.

All sides train the 784-100-10 network of `bench.work` on 2 workers, make a checkpoint every 100 global steps
and wait a little in each step, so that both sides are at the same step when a task is killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

WORKERS, CHECKPOINT_STEPS, KILL_STEP, PACE = 2, 100, 250, 0.02
UNDER_WAY = 0.1  # seconds after the signal in which a step that was under way may still end
PAUSE = 0.2  # seconds; shorter ones are the pace of the steps
LONGEST = 180.0  # seconds for the start, and again for the recovery


@dataclass(frozen=True)
class Step:
    """A step that a process has made: when, the global step after it, the process, its rank."""

    time: float
    step: int
    pid: int
    rank: int


class StepLog:
    """Appends each step of this process to a file of its own in ``folder``, and waits ``pace`` seconds."""

    def __init__(self, folder: str, rank: int, pace: float = PACE) -> None:
        self._path = Path(folder, f"steps-{rank}-{os.getpid()}.txt")
        self._rank, self._pace = rank, pace

    def add(self, step: int) -> None:
        """Record that the global step is ``step`` now, and wait."""
        with self._path.open("a") as file:
            file.write(f"{time.time()} {step} {os.getpid()} {self._rank}\n")
        time.sleep(self._pace)


def read(folder: str) -> list[Step]:
    """Return the steps of all processes, in the order of time."""
    found = []
    for path in Path(folder).glob("steps-*.txt"):
        for line in path.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n"):
                found.append(Step(float(words[0]), int(words[1]), int(words[2]), int(words[3])))
    return sorted(found, key=lambda one: one.time)


@dataclass(frozen=True)
class Figures:
    """What a death costs; times are seconds from the signal."""

    next_step: float
    """Until training makes its next step: the end of the longest pause of all workers, if there is one."""
    all_steps: float
    """Until every worker trains again, the replacement of the killed one too."""
    lost: int
    """Global steps that are made a second time."""


def figures(
    steps: Sequence[Step], killed_at: float, victims: Collection[int], workers: int = WORKERS
) -> Figures | None:
    """Return the figures of a death, None while not every worker trains again.

    - ``steps``: in the order of time
    - ``victims``: the ranks of the killed workers, whose new processes must make a step
    - ``workers``: how many there are

    A server died at 10.0; both workers had made 251 steps, and continued from a checkpoint of step 200:

    >>> before = [Step(9.8, 250, 1, 0), Step(9.9, 251, 2, 1)]
    >>> after = [Step(11.5, 201, 1, 0), Step(12.0, 202, 2, 1)]
    >>> figures([*before, *after], 10.0, [])
    Figures(next_step=1.5, all_steps=2.0, lost=51)
    >>> figures([*before, *after[:1]], 10.0, []) is None
    True
    """
    before = [one for one in steps if one.time <= killed_at + UNDER_WAY]
    after = [one for one in steps if one.time > killed_at + UNDER_WAY]
    if not after:
        return None
    pauses = [one.time - previous.time for previous, one in zip([before[-1], *after], after, strict=False)]
    longest = max(range(len(after)), key=pauses.__getitem__)
    again = after[longest:] if pauses[longest] >= PAUSE else after
    old = {one.pid for one in before}
    firsts = []
    for rank in range(workers):
        mine = [one for one in again if one.rank == rank]
        made = [one.time for one in mine if rank not in victims or one.pid not in old]
        if not made:
            return None
        firsts.append(made[0])
    return Figures(again[0].time - killed_at, max(firsts) - killed_at, lost_steps(before, after))


def lost_steps(before: Sequence[Step], after: Sequence[Step]) -> int:
    """Return how many global steps are made a second time after a death.

    A process that lives on sees the global step fall. The steps of different processes are not compared
    then: a process may record its step after others have made more.

    >>> lost_steps([Step(0, 9, 1, 0), Step(1, 8, 2, 1)], [Step(2, 10, 1, 0), Step(3, 9, 3, 1)])
    0
    """
    highest: dict[int, int] = {}
    falls = not {one.pid for one in before} & {one.pid for one in after}
    for one in [*before, *after]:
        falls |= one.step <= highest.get(one.pid, -1)
        highest[one.pid] = max(one.step, highest.get(one.pid, -1))
    lost = max(one.step for one in before) + 1 - min(one.step for one in after)
    return max(0, lost) if falls else 0


def reached(steps: Sequence[Step], workers: int = WORKERS) -> bool:
    """Whether it is time to kill: the global step is reached, and every worker has made steps."""
    made = {one.rank for one in steps} == set(range(workers))
    return made and max(one.step for one in steps) >= KILL_STEP
