"""The trace of a parameter server's work on gradients, for the timeline of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from nbdist.metrics.ring_log import BEFORE, RECENT, RingLog
from nbdist.metrics.timeline import Span

KEPT_RUNS = 4


def gradient_of(replica: int) -> str:
    """Return what a replica's gradients are called in a timeline, where sent and where applied."""
    return f"gradient of replica {replica}"


def parameters_for(replica: int) -> str:
    """Return what the parameters that a replica pulls are called in a timeline."""
    return f"parameters for replica {replica}"


SHOWN: dict[str, tuple[str, Callable[[int], str]]] = {
    "sent": ("send", parameters_for),
    "applied": ("apply", gradient_of),
    "collected": ("receive", gradient_of),
    "dropped": ("drop", gradient_of),
}
"""The kind of span that each entry is, and its name."""


class ServiceLog:
    """The work of one parameter server in one run, by lane: the mailbox's thread and the socket's.

    Each lane is written by its own thread and read by any. A replica's n-th gradient is that of its n-th
    step, for in each step it sends one to every parameter server.
    """

    def __init__(self, replicas: int) -> None:
        self._steps: defaultdict[int, int] = defaultdict(int)
        each = {"mailbox": replicas, "socket": 2 * replicas}  # there a step is a pull and a push
        self._ring_logs = {lane: RingLog(RECENT * rows, BEFORE * rows) for lane, rows in each.items()}

    def gradient(self, lane: str, replica: int, begun: float, ended: float, became: str) -> None:
        """Record that a gradient came in: it was "applied", is "collected" for a step, or "dropped"."""
        step = self._steps[replica] = self._steps[replica] + 1
        self._ring_logs[lane].add((became, replica, step, begun, ended))

    def parameters(self, lane: str, replica: int, begun: float, ended: float) -> None:
        """Record that a replica was sent the parameters."""
        self._ring_logs[lane].add(("sent", replica, None, begun, ended))

    def spans(self, task: str) -> Iterator[Span]:
        """Yield what is on record, as spans of ``task``."""
        for lane, ring_log in self._ring_logs.items():
            for became, replica, step, begun, ended in ring_log.rows():
                kind, name_of = SHOWN[became]
                yield Span(task, lane, kind, name_of(replica), begun, ended - begun, step)


class ServiceLogs:
    """The logs of the last runs on a task, by run."""

    def __init__(self) -> None:
        self._logs: dict[str, ServiceLog] = {}

    def of(self, run: str, replicas: int) -> ServiceLog:
        """Return the log of a run, made at the first use; the oldest one goes when there are too many."""
        if run not in self._logs:
            self._logs[run] = ServiceLog(replicas)
            while len(self._logs) > KEPT_RUNS:
                del self._logs[next(iter(self._logs))]
        return self._logs[run]

    def spans(self, run: str, task: str) -> list[Span]:
        """Return what is on record of a run, which may be nothing."""
        return list(self._logs[run].spans(task)) if run in self._logs else []
