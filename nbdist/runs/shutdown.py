"""How a run is made to end: ask, abort, signal, replace or give up. Decides only; the clock is handed in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from nbdist.cluster.resize import short_name
from nbdist.errors import NbdistError, UnavailableError
from nbdist.runs.protocols import Replacement, Tasks
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


# The last rung: tasks that did not stop are ended, and others take their places under their ranks.

TRY_SECONDS = 5.0  # for the turn to replace tasks, which another client may have at this moment


class Replacing:
    """Has stuck tasks of a run replaced; ``look`` now and then while it is ``under_way``.

    ``ended`` are the tasks whose end is our doing. ``told`` says what became of them, and ``error`` what
    went wrong: then they are dead, or go on.
    """

    def __init__(self, cluster: Tasks, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended: list[TaskInfo] = []
        self.told = ""
        self.error: NbdistError | None = None
        self._cluster, self._clock = cluster, clock
        self._since: float | None = None
        self._after = 0.0
        self._replacement: Replacement | None = None
        self._old: list[TaskInfo] = []  # those that nobody else has replaced

    @property
    def under_way(self) -> bool:
        """Whether there is something to wait for."""
        return self._since is not None and not self.told

    def begin(self, stuck: list[TaskInfo], after: float) -> None:
        """End these tasks, which were told to stop ``after`` seconds ago."""
        self.ended, self._after, self._since = list(stuck), after, self._clock()
        self.look()

    def look(self) -> None:
        """Do what can be done now."""
        if not self.under_way:
            return
        try:
            if self._replacement is None:
                self._replacement = self._begun()
            if self._replacement is not None and self._replacement.look():
                self.told = told(self._old, self._replacement.tasks, self._after, self._replacement.notes)
        except NbdistError as error:
            self.told = untold(self.ended, self._after, error)
            self.error = UnavailableError(self.told)
        except KeyboardInterrupt:  # what was half done is done again
            self._replacement = None
            raise

    def _begun(self) -> Replacement | None:
        """Return the replacement, None if another one is under way; it is tried again then."""
        assert self._since is not None
        now = self._cluster.tasks
        self._old = [info for info in self.ended if info in now]
        if not self._old:  # who else follows the run has been faster
            self.told = told([], [], self._after, [])
            return None
        try:
            return self._cluster.replace(self._old)
        except UnavailableError:
            if self._clock() - self._since > TRY_SECONDS:
                raise
            return None


def gone_among(cluster: Tasks, tasks: list[TaskInfo]) -> list[TaskInfo]:
    """Return the cluster's dead tasks, and those of ``tasks`` that somebody has replaced meanwhile."""
    dead, now = cluster.dead(), {info.rank: info.incarnation for info in cluster.tasks}
    replaced = (one for one in tasks if one.incarnation and now.get(one.rank, 0) not in (0, one.incarnation))
    return [*dead, *replaced]


def told(old: list[TaskInfo], new: list[TaskInfo], after: float, notes: list[str]) -> str:
    """Return what became of tasks that were replaced.

    >>> one = TaskInfo("worker", 1, 1, "here", 7, "127.0.0.1:80", "CPU:0", 1)
    >>> print(told([one], [one], 4.0, ["More."]))
    /job:worker/task:1 (pid 7) did not stop within 4 s and was replaced: its namespace is new (pid 7)
    More.
    All other tasks are as they were: their namespaces are kept.
    """
    if not old:
        return f"What did not stop within {after:g} s was replaced by another client of the cluster"
    lines = [
        f"{one.name} (pid {one.pid}) did not stop within {after:g} s and was replaced: "
        f"its namespace is new (pid {other.pid})"
        for one, other in zip(old, new, strict=True)
    ]
    return "\n".join([*lines, *notes, "All other tasks are as they were: their namespaces are kept."])


def untold(old: list[TaskInfo], after: float, error: NbdistError) -> str:
    """Return what to say when nothing took the place of tasks that did not stop."""
    names = ", ".join(f"{info.name} (pid {info.pid})" for info in old)
    return (
        f"{names} did not stop within {after:g} s, and could not be replaced: {error}. See %cluster, and try "
        f"again with %cluster restart {short_name(old[0])}, or end the cluster with %cluster stop"
    )
