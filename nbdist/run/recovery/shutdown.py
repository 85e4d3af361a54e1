"""How bodies are made to end: `Escalation` decides which step is due, `StuckTaskReplacer` does the last one.

    seconds   body on an engine                body in the notebook's own process (in-graph replication)
    0         "run.stop": ends after its step  "run.stop"
    1.5       SIGINT                           "run.abort": ends inside its step
    2.0                                        KeyboardInterrupt in the body's thread
    4.0       its process is replaced
    5.0                                        given up: the run ends, and the body continues

Why this order:

- Each step loses more than the one before. After a stop the results are complete; after an abort or a signal
  the model is what the last whole step made of it; a replaced process loses its namespace as well.
- An engine needs no abort before the signal: SIGINT also ends a wait of its main thread. In the notebook's
  process the body is another thread, where a KeyboardInterrupt arrives only while it runs Python code; the
  abort comes first because a thread that waits for another task looks for it.
- After a failure the signal comes at 1.0 s: the step that is under way is of no use without the failed
  replica.
- A second interrupt makes the abort and the signal due at once. The last step keeps its time: users press the
  button several times, and that must not cost a namespace.
- A client that polls late (its kernel was busy in another cell) takes one step, and the steps after it move
  by as much. Without that a body that reacts to the signal would be replaced in the same poll.

A process is replaced, not only killed, because the ranks of a cluster have no holes: the new task has the
rank of the old one, and all other tasks keep their namespaces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from nbdist.cluster.resize import short_name
from nbdist.errors import NbdistError, UnavailableError
from nbdist.run.protocols import RunReplacement, RunTasks
from nbdist.run.stack_look import StackLook
from nbdist.runtime.task import TaskInfo

SIGNAL_AFTER, REPLACE_AFTER, GIVE_UP_AFTER = 1.5, 4.0, 5.0  # seconds after the interrupt or the abort
ABORT_SECONDS = 0.5  # between the abort and the signal
FAILED_AFTER = 1.0  # seconds between a failure and the signal
LAST = ("replace", "give up")
LOOK_SECONDS = 2.0  # to read where stuck tasks are, before they are replaced
RETRY_SECONDS = 5.0  # for which a replacement is tried again while another client changes the cluster


class Escalation:
    """Decides which step is due for tasks that do not end. The clock is a parameter.

    With ``aborts`` it is for a body in the notebook's own process: aborted before the signal, given up last.

    >>> now = 0.0
    >>> escalation = Escalation(lambda: now)
    >>> escalation.interrupt(), escalation.due()
    (True, None)
    >>> now = 2.0; escalation.due(), escalation.due()
    ('signal', None)
    >>> now = 4.4; escalation.due()
    >>> now = 4.6; escalation.due()
    'replace'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, aborts: bool = False) -> None:
        self._clock, self._aborts = clock, aborts
        self._began: float | None = None
        self._steps: list[tuple[float, str]] = []

    def interrupt(self) -> bool:
        """Begin, or hurry to the signal if it has begun; return whether this was the first interrupt."""
        if self._began is None:
            self.begin()
            return True
        now = self._clock() - self._began
        self._steps = [(after if step in LAST else min(after, now), step) for after, step in self._steps]
        return False

    def begin(self, failed: bool = False) -> None:
        """Begin, unless it has begun; the signal comes earlier after a failure."""
        if self._began is None:
            self._began = self._clock()
            after = min(SIGNAL_AFTER, FAILED_AFTER) if failed else SIGNAL_AFTER
            self._steps = [(after, "signal"), (REPLACE_AFTER, "replace")]
            if self._aborts:
                last = (GIVE_UP_AFTER, "give up")
                self._steps = [(after, "abort"), (after + ABORT_SECONDS, "signal"), last]

    def due(self) -> str | None:
        """Return "abort", "signal", "replace" or "give up" when its time has come, each once."""
        if self._began is None or not self._steps:
            return None
        late = self._clock() - self._began - self._steps[0][0]
        if late < 0:
            return None
        self._began += late  # the later steps move with this one
        return self._steps.pop(0)[1]


class StuckTaskReplacer:
    """Replaces the tasks of a run that did not stop; call ``poll`` repeatedly while it is ``under_way``.

    ``ended`` are the tasks that it ends on purpose. ``report`` describes the result. ``error`` is set if the
    tasks could not be replaced.
    """

    def __init__(self, cluster: RunTasks, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended: list[TaskInfo] = []
        self.report = ""
        self.error: NbdistError | None = None
        self._cluster, self._clock = cluster, clock
        self._since: float | None = None
        self._after = 0.0
        self._replacement: RunReplacement | None = None
        self._old: list[TaskInfo] = []  # those of `ended` that no other client has replaced
        self._look: StackLook | None = None

    @property
    def under_way(self) -> bool:
        """Whether tasks are being replaced."""
        return self._since is not None and not self.report

    def begin(self, stuck: list[TaskInfo], after: float) -> None:
        """Replace these tasks, which were asked to stop ``after`` seconds ago."""
        self.ended, self._after, self._since = list(stuck), after, self._clock()
        self._look = StackLook(self._cluster, [info.rank for info in stuck])
        self.poll()

    def poll(self) -> None:
        """Do what can be done now, without waiting."""
        if not self.under_way:
            return
        assert self._look is not None
        assert self._since is not None
        if not self._look.is_over and self._clock() < self._since + LOOK_SECONDS:
            return
        try:
            if self._replacement is None:
                self._replacement = self._start()
            if self._replacement is not None and self._replacement.poll():
                new, notes = self._replacement.tasks, self._replacement.notes
                self.report = replaced_report(self._old, new, self._after, notes, self._look.places)
        except NbdistError as error:
            self.report = (
                f"{_named(self.ended)} did not stop within {self._after:g} s, and could not be replaced: "
                f"{error}. See %cluster, and try again with %cluster restart {short_name(self.ended[0])}, or "
                "end the cluster with %cluster stop"
            )
            self.error = UnavailableError(self.report)
        except KeyboardInterrupt:  # the next poll starts the replacement again
            self._replacement = None
            raise

    def _start(self) -> RunReplacement | None:
        """Start the replacement; None if another client changes the cluster: try again at the next poll."""
        assert self._since is not None
        now = self._cluster.tasks
        self._old = [info for info in self.ended if info in now]
        if not self._old:  # another client that follows the run has replaced them
            self.report = replaced_report([], [], self._after, [])
            return None
        try:
            return self._cluster.replace(self._old)
        except UnavailableError:
            if self._clock() - self._since > RETRY_SECONDS:
                raise
            return None


def replaced_report(
    old: list[TaskInfo],
    new: list[TaskInfo],
    after: float,
    notes: list[str],
    places: Mapping[int, str] = MappingProxyType({}),
) -> str:
    """Return a report of tasks that were replaced; ``places`` are where they were, by rank, if known.

    >>> one = TaskInfo("worker", 1, 1, "here", 7, "127.0.0.1:80", "CPU:0", 1)
    >>> print(replaced_report([one], [one], 4.0, ["More."], {1: "at line 7 of the body"}))
    /job:worker/task:1 (pid 7) did not stop within 4 s and was replaced: its namespace is new (pid 7)
    It was at line 7 of the body
    More.
    All other tasks are as they were: their namespaces are kept.
    """
    if not old:
        return f"Tasks that did not stop within {after:g} s were replaced by another client of the cluster"
    lines = []
    for one, other in zip(old, new, strict=True):
        lines.append(
            f"{one.name} (pid {one.pid}) did not stop within {after:g} s and was replaced: "
            f"its namespace is new (pid {other.pid})"
        )
        if place := places.get(one.rank):
            lines.append(f"It was {place}")
    return "\n".join([*lines, *notes, "All other tasks are as they were: their namespaces are kept."])


def given_up_report(stuck: Iterable[TaskInfo]) -> str:
    """Return a report of bodies in this process that did not stop."""
    return (
        f"{_named(stuck)} did not stop within 5 s of the interrupt; the body continues in this process: it "
        "waits, or runs native code, or catches KeyboardInterrupt. Restart the kernel if it does not end"
    )


def _named(tasks: Iterable[TaskInfo]) -> str:
    return ", ".join(f"{info.name} (pid {info.pid})" for info in tasks)
