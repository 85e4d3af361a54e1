"""When a replica's steps did what, for the timeline of its run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from nbdist.metrics.ring_log import Row, Tape
from nbdist.metrics.timeline import Span
from nbdist.train.strategy import Replica

SHORTEST = 10e-6  # seconds; what is over sooner between the steps is not noted


class StepLog:
    """Steps of one replica on its ``lane``, such as CPU:0, and what happened between them.

    The training thread adds, any thread reads. All times are of time.perf_counter, which on Linux, macOS and
    Windows is one clock for all processes of a host.
    """

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self._tape = Tape()
        self.add: Callable[[Row], None] = self._tape.add
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
            *step_spans(self._tape.rows(), task, self.lane, self._pull, self._push, self._program),
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
