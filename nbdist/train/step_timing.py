"""Where the time of a replica's steps goes: seconds by part, and the rows of its run's timeline.

account = StepAccount(context.progress, context.step_log)
account.start()
for batch in batches:
    ...                                                    # pull, compute, push
    account.add(step, begun, waited, pulled, computed, late, pushed)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from nbdist.metrics.ring_log import RingLog, Row
from nbdist.metrics.timeline import Span
from nbdist.train.strategy import Replica

SHORTEST = 10e-6  # seconds; what is over sooner between the steps is not noted


class StepAccount:
    """Adds up the seconds of a replica's steps by part, in its progress, and records each step in ``log``."""

    def __init__(self, spent: dict[str, float], log: StepLog | None) -> None:
        self._spent, self._record = spent, None if log is None else log.add
        self._ended: float | None = None

    def start(self) -> None:
        """Count the time from now to the next step as time for its data."""
        self._ended = time.perf_counter()

    def exclude(self, seconds: float) -> None:
        """Exclude a time between two steps, such as a pause."""
        if self._ended is not None:
            self._ended += seconds

    def add(
        self,
        step: int,
        begun: float,
        waited: float,
        pulled: float,
        computed: float,
        late: float,
        pushed: float,
        paused: float = 0.0,
    ) -> float:
        """Add a step; return for how many seconds of it the replica waited for others, which were paused.

        ``begun``, ``pulled``, ``computed`` and ``pushed`` are times of time.perf_counter; ``waited`` and
        ``late`` are the seconds that the pull and the push waited for other replicas, and ``paused`` those
        for which the run was paused during the step.
        """
        data = 0.0 if self._ended is None else max(0.0, begun - self._ended)
        self._ended = pushed
        late = min(late, pushed - computed)
        rest = min(paused, waited + late)
        spent = self._spent
        spent["data"] += data
        spent["compute"] += computed - pulled
        spent["exchange"] += pulled - begun - waited + pushed - computed - late
        spent["wait"] += waited + late - rest
        if self._record is not None:
            self._record((step, data, begun, waited, pulled, computed, late, pushed))
        return rest


class StepLog:
    """Steps of one replica on its ``lane``, such as CPU:0, and what happened between them.

    The training thread adds, any thread reads. All times are of time.perf_counter, which on Linux, macOS and
    Windows is one clock for all processes of a host.
    """

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self._ring_log = RingLog()
        self.add: Callable[[Row], None] = self._ring_log.add
        """Record a step: (number, seconds for data, begun, seconds that the pull waited, pulled, computed,
        seconds that the push waited, pushed)."""
        self._pull: tuple[str, str] | None = None
        self._push = ("apply", "gradients")
        self._program = ("compute", "step")
        self._between: deque[tuple[str, str, float, float]] = deque(maxlen=32)

    def begin(self, replica: Replica) -> None:
        """Take note of what pulls and pushes are in the training that begins."""
        self._pull, self._push, self._program = replica.pull_is, replica.push_is, replica.program_is

    def note(self, kind: str, name: str, begun: float, ended: float) -> None:
        """Record what was done between steps."""
        if ended - begun >= SHORTEST:
            self._between.append((kind, name, begun, ended))

    def spans(self, task: str) -> list[Span]:
        """Return what is on record, as spans of ``task``."""
        between = [
            Span(task, self.lane, kind, name, begun, ended - begun)
            for kind, name, begun, ended in list(self._between)
        ]
        return [
            *step_spans(self._ring_log.rows(), task, self.lane, self._pull, self._push, self._program),
            *between,
        ]


def step_spans(
    rows: Iterable[Row],
    task: str,
    lane: str,
    pull: tuple[str, str] | None,
    push: tuple[str, str],
    program: tuple[str, str] = ("compute", "step"),
) -> Iterator[Span]:
    """Yield the parts of recorded steps; ``pull``, ``push`` and ``program`` are their kinds and names.

    A pull waits first, if it has to, and then receives; a push waits for the others, and then sends.
    """
    for step, data, begun, waited, pulled, computed, late, pushed in rows:
        if data > 0:
            yield Span(task, lane, "data", "next batch", begun - data, data, step)
        if waited > 0:
            yield Span(task, lane, "wait", "gradient under way", begun, waited, step)
        if pull is not None:
            yield Span(task, lane, *pull, begun + waited, max(0.0, pulled - begun - waited), step)
        yield Span(task, lane, *program, pulled, computed - pulled, step)
        if late > 0:
            yield Span(task, lane, "wait", "the other replicas", computed, late, step)
        yield Span(task, lane, *push, computed + late, max(0.0, pushed - computed - late), step)
