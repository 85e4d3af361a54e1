"""Which part of a timeline shows one step of every task. Pure.

Synchronous tasks share a step. Each asynchronous task has a step of its own; the window is a moment at
which the records show as many tasks as possible, and their servers.
Among these moments it is the latest with a step of about the median duration: the last step of an epoch
often has a smaller batch, for which every task makes a new plan.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Self, TypeAlias

from nbdist.errors import DataLossError, FailedPreconditionError, InvalidArgumentError
from nbdist.metrics.run_folder import write_whole_file
from nbdist.metrics.timeline import Span, Timeline

NEAR = 0.1  # of the median duration: as good as the median itself
Interval: TypeAlias = tuple[float, float]
Steps: TypeAlias = dict[int, Interval]


@dataclass(frozen=True)
class Window:
    """A time, and the first and last number of the ``steps`` steps of each task that it was chosen for."""

    begin: float
    end: float
    first: int
    last: int
    steps: int = 1
    why: str = ""
    """The reason for the choice, if the caller named no step; text for users."""

    @property
    def name(self) -> str:
        """The steps, as text for users; asynchronous tasks have different numbers."""
        return f"{self._numbers} ({self.why})" if self.why else self._numbers

    @property
    def _numbers(self) -> str:
        if self.first == self.last:
            return f"step {self.first:,}"
        numbers = f"{self.first:,} to {self.last:,}"
        if self.last - self.first < self.steps:
            return f"steps {numbers}"
        return f"{'one step' if self.steps == 1 else f'{self.steps} steps'} each, of {numbers}"


def step_window(timeline: Timeline, step: int | None = None, steps: int = 1) -> Window:
    """Return the time of ``steps`` steps of every task that trains, the last of them ``step``.

    Without ``step`` the function chooses steps that all tasks recorded: a single one of about the median
    duration, or the latest several. ``step`` counts the steps of the first task that has it; the window shows
    the other tasks at that time. Raises InvalidArgumentError for a step that the timeline lacks,
    FailedPreconditionError if it has no step.
    """
    if steps < 1:
        raise InvalidArgumentError(f"a timeline shows 1 step or more, not {steps}")
    trained = step_intervals(timeline)
    if not trained:
        raise FailedPreconditionError("there is no training step in this timeline")
    why = ""
    if step is None and steps == 1 and (traced_steps := most_together(trained)):
        spans = {number: _whole(trained, number) for number in traced_steps}
        traced, why = typical({number: end - begin for number, (begin, end) in spans.items()})
        return Window(*spans[traced], traced, traced, why=why)
    if step is None and steps == 1:
        task, ends = common_steps(trained, served_intervals(timeline))
        number, why = typical({n: end - trained[task][n][0] for n, end in ends.items()})
        moment = ends[number]
    elif step is None:
        moment = max(common_steps(trained, served_intervals(timeline))[1].values())
    else:
        having = [intervals for intervals in trained.values() if step in intervals]
        if not having:
            raise InvalidArgumentError(f"step {step} is not on record; there are steps {_ranges(trained)}")
        moment = having[0][step][1]
    shown = {task: _at(intervals, moment) for task, intervals in trained.items()}
    newest = max(number for number in shown.values() if number is not None) if step is None else step
    together = _together(trained, newest)
    if all(task in together for task, number in shown.items() if number is not None):
        shown = {task: newest if task in together else None for task in shown}
    chosen = {
        (task, number): trained[task][number]
        for task, last in shown.items()
        if last is not None
        for number in range(last - steps + 1, last + 1)
        if number in trained[task]
    }
    numbers = [number for _, number in chosen]
    begin, end = min(start for start, _ in chosen.values()), max(until for _, until in chosen.values())
    return Window(begin, _arrived(timeline, set(chosen), begin, end), min(numbers), max(numbers), steps, why)


def _arrived(timeline: Timeline, steps: set[tuple[str, int]], begin: float, end: float) -> float:
    """Return when what these steps sent had arrived, if that is soon after their end, or else their end."""
    arrived = [
        receive.end
        for send, receive in timeline.arrows()
        if send.step is not None and (send.task, send.step) in steps
    ]
    return max([end, *(time for time in arrived if time <= end + (end - begin) / 2)])


def step_intervals(timeline: Timeline) -> dict[str, Steps]:
    """Return when each step was, by task: of the tasks that compute."""
    computing = {span.task for span in timeline.spans if span.kind == "compute" and span.step is not None}
    found: dict[str, Steps] = {task: {} for task in timeline.tasks if task in computing}
    for span in timeline.spans:
        if span.step is not None and span.task in found:
            begin, end = found[span.task].get(span.step, (span.start, span.end))
            found[span.task][span.step] = min(begin, span.start), max(end, span.end)
    return found


def served_intervals(timeline: Timeline) -> dict[str, list[Steps]]:
    """Return what the tasks that do not compute did with each thing that comes in every step, by task."""
    computing = {span.task for span in timeline.spans if span.kind == "compute" and span.step is not None}
    found: dict[str, dict[str, Steps]] = {}
    for span in timeline.spans:
        if span.step is not None and span.task not in computing:
            found.setdefault(span.task, {}).setdefault(span.name, {})[span.step] = (span.start, span.end)
    return {task: list(named.values()) for task, named in found.items()}


def typical(seconds: dict[int, float]) -> tuple[int, str]:
    """Return the latest step with a duration within a tenth of the median, or the nearest, and the reason.

    >>> typical({1: 0.006, 2: 0.005, 3: 0.0055, 4: 0.081})
    (3, 'near the median of 4 recorded, 5.75 ms')
    """
    middle = median(seconds.values())
    near = [number for number, one in seconds.items() if abs(one - middle) <= NEAR * middle]
    chosen = max(near) if near else min(seconds, key=lambda n: (abs(seconds[n] - middle), -n))
    if len(seconds) < 2:
        return chosen, ""
    took = f"{middle * 1e3:,.0f}" if middle >= 0.1 else f"{middle * 1e3:.3g}"
    return chosen, f"near the median of {len(seconds):,} recorded, {took} ms"


def common_steps(trained: dict[str, Steps], served: dict[str, list[Steps]]) -> tuple[str, dict[int, float]]:
    """Return (task, ends of those of its steps at which the records show the most tasks, then servers).

    The task is the one with the latest such moment. A server thins its record by its own clock and load: it
    may have no record of the moment at which a task ended.
    """
    known = [[stretches(intervals)] for intervals in trained.values()]
    serving = [[stretches(intervals) for intervals in named] for named in served.values()]

    def seen(moment: float) -> tuple[int, int]:
        return _seen(known, moment), _seen(serving, moment)

    ends = {one.last_end for task in (*known, *serving) for found in task for one in found}
    best, moment = max((seen(end), end) for end in ends)
    # The task that ended a step last, as of this moment; keep those of its steps that as many tasks recorded.
    before = {
        task: max((end for _, end in steps.values() if end <= moment), default=-inf)
        for task, steps in trained.items()
    }
    task = max(before, key=before.__getitem__)
    found = {n: end for n, (_, end) in trained[task].items() if end <= moment and seen(end) == best}
    last = max(n for n, (_, end) in trained[task].items() if end <= moment)
    return task, found or {last: moment}


def _seen(tasks: list[list[list[Stretch]]], moment: float) -> int:
    return sum(any(_stretch_at(found, moment) for found in task) for task in tasks)


def most_together(trained: dict[str, Steps]) -> list[int]:
    """Return the steps with the most tasks in common, if these are more than any moment shows.

    Such steps were traced: all tasks recorded them, and possibly no others.
    """
    found = {n: len(_together(trained, n)) for n in set().union(*trained.values())}
    most = max(found.values())
    known = [[stretches(intervals)] for intervals in trained.values()]
    ends = {one.last_end for task in known for found_ in task for one in found_}
    seen = max(_seen(known, end) for end in ends)
    return [n for n, count in found.items() if count == most] if most > seen else []


def _whole(trained: dict[str, Steps], step: int) -> Interval:
    """Return the begin and the end of a step over the tasks that took part in it."""
    begins, ends = zip(*(trained[task][step] for task in _together(trained, step)), strict=True)
    return min(begins), max(ends)


@dataclass(frozen=True)
class Stretch:
    """Steps on record that follow each other; at the end of the first one something is known."""

    first_end: float
    last_end: float


def stretches(intervals: Steps) -> list[Stretch]:
    """Return the stretches of consecutive steps, in order."""
    found: list[Stretch] = []
    before: int | None = None
    for number in sorted(intervals):
        end = intervals[number][1]
        if before is not None and number == before + 1:
            found[-1] = Stretch(found[-1].first_end, end)
        else:
            found.append(Stretch(end, end))
        before = number
    return found


def _stretch_at(found: list[Stretch], moment: float) -> Stretch | None:
    index = bisect_right(found, moment, key=lambda stretch: stretch.first_end) - 1
    return found[index] if index >= 0 and moment <= found[index].last_end else None


def _at(intervals: Steps, moment: float) -> int | None:
    """Return the last step that had ended at a moment which is on record; None where nothing is known."""
    if _stretch_at(stretches(intervals), moment) is None:
        return None
    return max(number for number, (_, end) in intervals.items() if end <= moment)


def _together(trained: dict[str, Steps], step: int) -> set[str]:
    """Return the tasks that did this step at the same time as the last of them."""
    found = {task: intervals[step] for task, intervals in trained.items() if step in intervals}
    last = max(end for _, end in found.values())
    begin = min(start for start, end in found.values() if end == last)
    return {task for task, (_, end) in found.items() if end >= begin}


def _ranges(trained: dict[str, Steps]) -> str:
    """Return the numbers of the steps on record, for people."""
    numbers = sorted(set().union(*trained.values()))
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts[-8:])


# A task's part of a timeline, on that task's clock, and the alignment of all parts.
#
# Processes of a host share a clock. What another host's clock reads is found by asking it and halving the
# round trip while it can be asked, and from both hosts' time of day afterwards.

ROUND_TRIPS = 8


@dataclass(frozen=True)
class Part:
    """What one task recorded. ``clock`` and ``day`` are its clock and its time of day at one moment."""

    task: str
    host: str
    clock: float
    day: float
    timeline: Timeline

    @classmethod
    def now(cls, task: str, host: str, timeline: Timeline) -> Self:
        """Return a part that is made on the task, now."""
        return cls(task, host, time.perf_counter(), time.time(), timeline)

    def encode(self) -> bytes:
        """Return it as JSON."""
        content = {"task": self.task, "host": self.host, "clock": self.clock, "day": self.day}
        return json.dumps(content | {"timeline": self.timeline.to_dict()}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return what `encode` wrote; raises DataLossError if it is something else."""
        try:
            found: dict[str, Any] = json.loads(content)
            timeline = Timeline.from_dict(found["timeline"])
            return cls(
                str(found["task"]), str(found["host"]), float(found["clock"]), float(found["day"]), timeline
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataLossError(f"no part of a timeline: {type(error).__name__}: {error}") from error


def joined(parts: Iterable[Part], tasks: Sequence[str], shifts: Mapping[str, float]) -> Timeline:
    """Return one timeline of all parts; ``shifts[host]`` seconds bring a host's clock to the common one."""
    spans: list[Span] = []
    for part in parts:
        shift = shifts[part.host]
        spans += part.timeline.moved({part.task: shift}).spans if shift else part.timeline.spans
    return Timeline(spans, tasks)


def shift_by_day(part: Part, clock: float, day: float) -> float:
    """Return what brings a part's clock to ``clock``, as far as both times of day agree."""
    return (part.day - part.clock) - (day - clock)


def shift_by_asking(ask: Callable[[], float], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return what brings another host's clock to ``clock``: ``ask`` it, and believe the quickest answer.

    Cristian's algorithm; it is wrong by at most half of that answer's round trip.
    """
    best = None
    for _ in range(ROUND_TRIPS):
        begun = clock()
        theirs = ask()
        ended = clock()
        if best is None or ended - begun < best[0]:
            best = (ended - begun, (begun + ended) / 2 - theirs)
    assert best is not None
    return best[1]


def part_path(folder: Path, rank: int) -> Path:
    """Return where the task of a rank writes its part into a run's folder."""
    return folder / f"timeline-{rank:04d}.json"


def write_part(folder: Path, rank: int, part: Part) -> None:
    """Write a task's part, whole or not at all."""
    write_whole_file(part_path(folder, rank), part.encode())


def has_parts(folder: Path) -> bool:
    """Whether any task wrote a part into a run's folder."""
    return any(folder.glob("timeline-*.json"))


def read_parts(folder: Path) -> list[Part]:
    """Return the parts in a run's folder, by rank; raises DataLossError if one is damaged."""
    parts = []
    for path in sorted(folder.glob("timeline-*.json")):
        try:
            parts.append(Part.decode(path.read_bytes()))
        except DataLossError as error:
            raise DataLossError(f"{path} is damaged: {error}") from error
    return parts
