"""Where tasks of a run are that hang: `StackLook` reads it once, `SilentTasks` while tasks send nothing.

`StepWatch` notices that no task makes a step: one hangs, and the others wait for it and are not silent.

A look takes a tenth of a second, and seconds on a busy host, so it has a thread: no poll of a run waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence, Set

from nbdist.errors import NbdistError
from nbdist.run.protocols import RunTasks

MOST_TASKS = 8  # of one look
LOOK_SECONDS = 3.0  # for a host to answer
STALLED_SECONDS = 20.0  # without a step of a fit
AGAIN_SECONDS = 10.0  # between two looks at a task that stays silent


class StackLook:
    """Reads where tasks of these ``ranks`` are, on a thread that begins at once."""

    def __init__(self, cluster: RunTasks, ranks: Sequence[int]) -> None:
        self._cluster, self._ranks = cluster, list(ranks)[:MOST_TASKS]
        self.places: dict[int, str] = {}
        """By rank, such as "at line 7 of the body: step()"; of those that could be read so far."""
        self._thread = threading.Thread(target=self._read, name="nbdist stacks", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is read."""
        return not self._thread.is_alive()

    def _read(self) -> None:
        for rank in self._ranks:
            try:
                found = self._cluster.stacks(rank, timeout=LOOK_SECONDS)
            except NbdistError:  # an older supervisor, or the cluster has ended: the run goes on without it
                return
            if place := found.place(found.tasks[0]):
                self.places[rank] = place


class SilentTasks:
    """Where the silent tasks of a run are; ``clock`` returns seconds.

    A task is looked at when it becomes silent, and again every `AGAIN_SECONDS`.
    """

    def __init__(self, cluster: RunTasks, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._look: StackLook | None = None
        self._due = 0.0
        self._places: dict[int, str] = {}
        self._known: Set[int] = frozenset()

    def places(self, silent: Set[int]) -> dict[int, str]:
        """Return where the ``silent`` ranks are, as far as that is known; see `StackLook.places`."""
        if self._look is not None:
            self._places |= self._look.places
            if self._look.is_over:
                self._look = None
        self._places = {rank: place for rank, place in self._places.items() if rank in silent}
        is_new = not silent <= self._known
        self._known = set(silent)
        if silent and self._look is None and (is_new or self._clock() >= self._due):
            self._due = self._clock() + AGAIN_SECONDS
            self._look = StackLook(self._cluster, sorted(silent))
        return dict(self._places)


class StepWatch:
    """Notices that a fit makes no steps; ``clock`` returns seconds.

    >>> now = 0.0
    >>> watch = StepWatch(lambda: now)
    >>> watch.stalled(7, trains=True)
    ''
    >>> now = 21.0
    >>> watch.stalled(7, trains=True)
    'no step for more than 20 s: %cluster stacks shows where the workers are'
    >>> watch.stalled(7, trains=False), watch.stalled(7, trains=True), watch.stalled(8, trains=True)
    ('', '', '')
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps, self._since = 0, -math.inf

    def stalled(self, steps: int, trains: bool) -> str:
        """Return a note if the sum of all ``steps`` is what it was for long; "" if not.

        ``trains`` is whether steps are to be expected: not during a pause, for example.
        """
        now = self._clock()
        if steps != self._steps or not trains or not steps:
            self._steps, self._since = steps, now
        if now - self._since < STALLED_SECONDS:
            return ""
        return f"no step for more than {STALLED_SECONDS:.0f} s: %cluster stacks shows where the workers are"
