"""How a run is made to end: ask, abort, signal, replace or give up. Decides only; the clock is handed in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from nbdist.runtime.task import TaskInfo

SIGNAL_AFTER, REPLACE_AFTER, GIVE_UP_AFTER = 1.5, 4.0, 5.0  # seconds after the interrupt or the abort
ABORT_SECONDS = 0.5  # that an abort has before the signal
FAILED_AFTER = 1.0  # seconds after a failure until the signal: no step has to be finished then

LAST = ("replace", "give up")


class Ladder:
    """Says when the next rung is due: a task that does not stop is replaced.

    One that ``aborts`` is for a body in the notebook's own process: aborted before the signal, given up last.
    Who asks late, for a busy notebook say, is told one rung, and the next one as long after it as ever.

    >>> now = 0.0
    >>> ladder = Ladder(lambda: now)
    >>> ladder.first(), ladder.due()
    (True, None)
    >>> now = 2.0; ladder.due(), ladder.due()
    ('signal', None)
    >>> now = 4.4; ladder.due()
    >>> now = 4.6; ladder.due()
    'replace'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, aborts: bool = False) -> None:
        self._clock, self._aborts = clock, aborts
        self._began: float | None = None
        self._rungs: list[tuple[float, str]] = []

    def first(self) -> bool:
        """Start to climb; a second interrupt hurries to the signal. Whether this was the first."""
        if self._began is None:
            self.begin_abort()
            return True
        now = self._clock() - self._began
        self._rungs = [(after if name in LAST else min(after, now), name) for after, name in self._rungs]
        return False

    def begin_abort(self, failed: bool = False) -> None:
        """Start to climb, if that has not begun; faster after a failure."""
        if self._began is None:
            self._began = self._clock()
            after = min(SIGNAL_AFTER, FAILED_AFTER) if failed else SIGNAL_AFTER
            self._rungs = [(after, "signal"), (REPLACE_AFTER, "replace")]
            if self._aborts:
                last = (GIVE_UP_AFTER, "give up")
                self._rungs = [(after, "abort"), (after + ABORT_SECONDS, "signal"), last]

    def due(self) -> str | None:
        """Return "abort", "signal", "replace" or "give up" when its time has come, each once."""
        if self._began is None or not self._rungs:
            return None
        late = self._clock() - self._began - self._rungs[0][0]
        if late < 0:
            return None
        self._began += late
        return self._rungs.pop(0)[1]


def given_up(stuck: Iterable[TaskInfo]) -> str:
    """Return what to say of tasks in this process that did not stop, and cannot be replaced."""
    names = ", ".join(f"{info.name} (pid {info.pid})" for info in stuck)
    return (
        f"{names} did not stop within 5 s of the interrupt; the body continues in this process: it "
        "waits, or is in native code, or does not let itself be interrupted. Restart the kernel if "
        "it does not end"
    )
