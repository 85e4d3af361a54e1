"""Where the time of a replica's steps goes: seconds by part, and the rows of its run's timeline.

account = StepAccount(context.progress, context.step_log)
account.start()
for batch in batches:
    ...                                                    # pull, compute, push
    account.add(step)
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nbdist.metrics.ring_log import RingLog, Row
from nbdist.metrics.timeline import BY_EVENTS, Span
from nbdist.train.replica import Replica

if TYPE_CHECKING:
    from nbdist.train.step import Step

Part: TypeAlias = tuple[str, str, float, float]
"""A part of a step: its kind, one of `nbdist.metrics.timeline.KINDS`, its name, and its begin and end."""

SHORTEST = 10e-6  # seconds; what is over sooner between the steps is not noted


class StepAccount:
    """Adds up the seconds of a replica's steps by part, in its progress, and records each step in ``log``.

    With ``events`` the log's rows have the seconds of the GPU, too.
    """

    def __init__(
        self, spent: dict[str, float], log: StepLog | None, events: StepEvents | None = None
    ) -> None:
        self._spent, self._record, self._events = spent, None if log is None else log.add, events
        self.ended = math.inf
        """When the last step ended, or `start` was called (time.perf_counter); infinite before."""

    def start(self) -> None:
        """Count the time from now to the next step as time for its data."""
        self.ended = time.perf_counter()

    def exclude(self, seconds: float) -> None:
        """Exclude a time between two steps, such as a pause."""
        self.ended += seconds

    def add(self, step: Step, paused: float = 0.0) -> float:
        """Add a step that was pushed; return for how many seconds it waited for others, which were paused.

        ``paused`` are the seconds for which the run was paused during the step.
        """
        begun, waited, pulled = step.begun, step.waited, step.pulled
        computed, pushed = step.computed, step.pushed
        data = max(0.0, begun - self.ended)
        self.ended = pushed
        late = min(step.late, pushed - computed)
        rest = min(paused, waited + late)
        spent = self._spent
        spent["data"] += data
        spent["compute"] += computed - pulled
        spent["exchange"] += pulled - begun - waited + pushed - computed - late
        spent["wait"] += waited + late - rest
        if self._record is not None:
            row = (step.number, data, begun, waited, pulled, computed, late, pushed)
            if self._events is None:
                self._record(row)
            else:
                self._events.add(row, self._record)
        return rest


class StepEvents:
    """Measures the program and the push of each step on a GPU by CUDA events, which the host never waits for.

        events = StepEvents(cupy)
        events.mark(StepEvents.PULLED); ...; events.mark(StepEvents.PUSHED)
        events.add(row, log.add)

    A kernel's launch returns at once, so the host's clock shows when it was asked for. The events of a step
    are read after the next one. If they are not done by then, the step has the host's times.
    """

    PULLED, COMPUTED, PUSHING, PUSHED = range(4)

    def __init__(self, xp: ModuleType) -> None:
        self._cuda = xp.cuda
        self._current: list[Any] = []
        self._last: list[Any] = []
        self._waiting: tuple[Row, Callable[[Row], None]] | None = None

    @classmethod
    def of(cls, xp: ModuleType, log: StepLog | None) -> StepEvents | None:
        """Return the events of steps on ``xp``; None without a log, and for NumPy."""
        return None if xp is np or log is None else cls(xp)

    def mark(self, place: int) -> None:
        """Record that all work so far was queued before a place of the step: PULLED, COMPUTED, ..."""
        if not self._current:  # on the GPU that this thread works for
            self._current = [self._cuda.Event() for _ in range(4)]
        self._current[place].record(self._cuda.get_current_stream())

    def add(self, row: Row, record: Callable[[Row], None]) -> None:
        """Call ``record`` with this row when the step after it has ended."""
        self.flush()
        self._waiting = row, record
        self._current, self._last = self._last, self._current

    def flush(self) -> None:
        """Record the last step."""
        if self._waiting is None:
            return
        (row, record), self._waiting = self._waiting, None
        if all(event.done for event in self._last):
            pulled, computed, pushing, pushed = self._last
            elapsed = self._cuda.get_elapsed_time  # in milliseconds
            row = (*row[:-1], elapsed(pulled, computed) / 1e3, elapsed(pushing, pushed) / 1e3, row[-1])
        record(row)


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
        seconds that the push waited, pushed). Before the last there may be the seconds that the program and
        the push took on a GPU."""
        self._parts = RingLog()
        self._pull: tuple[str, str] | None = None
        self._push = ("apply", "gradients")
        self._program = ("compute", "step")
        self._between: deque[tuple[str, str, float, float]] = deque(maxlen=32)

    def begin(self, replica: Replica) -> None:
        """Take note of what pulls and pushes are in the training that begins."""
        spans = replica.spans
        self._pull, self._push, self._program = spans.pull, spans.push, spans.program

    def add_parts(
        self, step: int, begun: float, parts: tuple[Part, ...], updating: float, ended: float
    ) -> None:
        """Record a step from ``begun`` to ``ended``, with ``parts`` in order.

        Between the parts it computes, and from ``updating`` on it applies gradients.
        """
        self._parts.add((step, begun, parts, updating, ended))

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
            *(
                Span(task, self.lane, kind, name, begun, ended - begun, step)
                for step, *times in self._parts.rows()
                for kind, name, begun, ended in filled(*times)
            ),
            *between,
        ]


def filled(begun: float, parts: Iterable[Part], updating: float, ended: float) -> Iterator[Part]:
    """Yield the parts of a step in order, with what it does between them: "compute", then "apply".

    >>> [kind for kind, *_ in filled(1.0, [("wait", "all-reduce", 2.0, 3.0)], updating=4.0, ended=5.0)]
    ['compute', 'wait', 'compute', 'apply']
    """
    at = begun
    for part in [*parts, ("", "", ended, ended)]:
        if at < min(part[2], updating):
            yield "compute", "step", at, min(part[2], updating)
        if max(at, updating) < part[2]:
            yield "apply", "gradients", max(at, updating), part[2]
        if part[0]:
            yield part
        at = max(at, part[3])


def step_spans(
    rows: Iterable[Row],
    task: str,
    lane: str,
    pull: tuple[str, str] | None,
    push: tuple[str, str],
    program: tuple[str, str] = ("compute", "step"),
) -> Iterator[Span]:
    """Yield the parts of recorded steps; ``pull``, ``push`` and ``program`` are their kinds and names.

    A pull waits first, if it has to, and then receives; a push waits for the others, and then sends. What a
    GPU has measured has a lane of its own: the program ends when the host has its loss, and there the push
    begins.
    """
    for step, data, begun, waited, pulled, computed, late, *measured, pushed in rows:
        if data > 0:
            yield Span(task, lane, "data", "next batch", begun - data, data, step)
        if waited > 0:
            yield Span(task, lane, "wait", "gradient under way", begun, waited, step)
        if pull is not None:
            yield Span(task, lane, *pull, begun + waited, max(0.0, pulled - begun - waited), step)
        if measured:
            computing, pushing = measured
            of_gpu = lane + BY_EVENTS
        else:
            computing, pushing, of_gpu = computed - pulled, pushed - computed, lane
        yield Span(task, of_gpu, *program, computed - computing, computing, step)
        if late > 0:
            yield Span(task, lane, "wait", "the other replicas", computed, late, step)
        yield Span(task, of_gpu, *push, computed + late, max(0.0, pushing - late), step)
