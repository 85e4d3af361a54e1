"""What each task did when: spans of time, and the timeline that they make up. Pure: no clock.

spans = [Span("/job:worker/task:0", "CPU:0", "compute", "step", start=10.0, seconds=0.002, step=7)]
timeline = Timeline(spans)
timeline.totals()                  # seconds by task and kind
timeline.save("step.json")         # for chrome://tracing and https://ui.perfetto.dev
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from nbdist.errors import DataLossError, InvalidArgumentError, choices

KINDS = ("data", "compute", "send", "receive", "wait", "apply", "drop")
"""What a task's time goes to; "apply" is a gradient that changes the parameters, "drop" one that does not."""


BY_EVENTS = ", CUDA events"
"""Ends the name of a lane whose spans a GPU has measured by CUDA events, and not the host's clock."""
MOST_SPANS = 50_000  # more than a trace viewer is pleasant with; older ones are left out, and counted
NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a task did, from ``start`` on for ``seconds``.

    ``start`` is in seconds of a clock that all spans of a timeline share. A ``lane`` is what does one thing
    at a time on the task, such as a device or a thread. ``kind`` is one of `KINDS`. A send and what receives
    it have one ``name`` and one ``step``; ``step`` is None for what belongs to no training step.
    """

    task: str
    lane: str
    kind: str
    name: str
    start: float
    seconds: float
    step: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidArgumentError(f"no kind of span {self.kind!r}; {choices(self.kind, KINDS)}")
        if not math.isfinite(self.start):
            raise InvalidArgumentError(f"a span starts at a finite time, not {self.start!r}: {self.name!r}")
        if not 0 <= self.seconds < math.inf:
            raise InvalidArgumentError(f"a span takes 0 or more seconds, not {self.seconds!r}: {self.name!r}")

    @property
    def end(self) -> float:
        """When it was over, in seconds of the shared clock."""
        return self.start + self.seconds


class Timeline:
    """Spans of several tasks on one clock, in the order of their starts.

    ``tasks`` names the rows, also those in which nothing happened; tasks of the spans that it does not name
    follow. ``title`` is shown above it. Of more than `MOST_SPANS` spans the latest are kept, and
    ``left_out`` counts the others.

    >>> work = Span("/job:worker/task:0", "CPU:0", "compute", "step", start=5.0, seconds=0.25, step=1)
    >>> Timeline([work]).totals()
    {'/job:worker/task:0': {'compute': 0.25}}
    """

    def __init__(
        self, spans: Iterable[Span], tasks: Sequence[str] = (), *, title: str = "", left_out: int = 0
    ) -> None:
        given = list(spans)
        self.tasks: tuple[str, ...] = tuple(dict.fromkeys([*tasks, *(span.task for span in given)]))
        given.sort(key=lambda span: (span.start, span.seconds))
        self.title = title
        self.left_out = left_out + max(0, len(given) - MOST_SPANS)
        self.spans: tuple[Span, ...] = tuple(given[-MOST_SPANS:])

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps that something is known of, in order."""
        return tuple(sorted({span.step for span in self.spans if span.step is not None}))

    @property
    def bounds(self) -> tuple[float, float]:
        """The start of the first span and the end of the last one; zeros if there is none."""
        if not self.spans:
            return 0.0, 0.0
        return self.spans[0].start, max(span.end for span in self.spans)

    @property
    def seconds(self) -> float:
        """How much time it covers."""
        begin, end = self.bounds
        return end - begin

    def lanes(self, task: str) -> tuple[str, ...]:
        """Return a task's lanes by name."""
        return tuple(sorted({span.lane for span in self.spans if span.task == task}))

    def totals(self) -> dict[str, dict[str, float]]:
        """Return the seconds that each task spent on each kind.

        What happened at the same time on several lanes of a task counts once for each kind, so that no
        figure is larger than the time covered. Every task is there, with the kinds that it has.
        """
        found: dict[str, dict[str, list[tuple[float, float]]]] = {task: {} for task in self.tasks}
        for span in self.spans:
            found[span.task].setdefault(span.kind, []).append((span.start, span.end))
        return {
            task: {kind: covered(kinds[kind]) for kind in KINDS if kind in kinds}
            for task, kinds in found.items()
        }

    def between(self, begin: float, end: float) -> Self:
        """Return what happened from ``begin`` to ``end``; spans that reach beyond are cut there."""
        if not begin <= end:
            raise InvalidArgumentError(f"a part of a timeline ends after it begins, not {begin} to {end}")
        inside = [
            replace(span, start=(at := max(span.start, begin)), seconds=min(span.end, end) - at)
            for span in self.spans
            if (span.start < end and span.end > begin) or begin <= span.start == span.end <= end
        ]
        return type(self)(inside, self.tasks, title=self.title, left_out=self.left_out)

    def moved(self, by: Mapping[str, float]) -> Self:
        """Return it with the spans of some tasks ``by[task]`` seconds later."""
        spans = [replace(s, start=s.start + by[s.task]) if s.task in by else s for s in self.spans]
        return type(self)(spans, self.tasks, title=self.title, left_out=self.left_out)

    def arrows(self) -> list[tuple[Span, Span]]:
        """Return (send, what received it) for all that are both there.

        A "receive", "apply" or "drop" belongs to the last "send" of its name, on another task, that had begun
        when it ended; and of its step, unless the send is of no step.
        """
        sends: dict[tuple[str, int | None], list[Span]] = {}
        for span in self.spans:
            if span.kind == "send":
                sends.setdefault((span.name, span.step), []).append(span)
        starts = {key: [send.start for send in found] for key, found in sends.items()}
        pairs = []
        for span in self.spans:
            key = (span.name, span.step if (span.name, span.step) in sends else None)
            if span.kind in ("receive", "apply", "drop") and key in sends:
                before = sends[key][: bisect_right(starts[key], span.end)]
                send = next((one for one in reversed(before) if one.task != span.task), None)
                if send is not None:
                    pairs.append((send, span))
        return pairs

    def chrome_trace(self) -> dict[str, Any]:
        """Return it as a Chrome trace: a process per task, a thread per lane, microseconds from the start."""
        return chrome_trace(self)

    def save(self, path: str | Path, theme: str | None = None) -> Path:
        """Write the Chrome trace to ``path``, which ends in .json; returns the path.

        A chart has a ``theme`` ("light" or "dark"), a trace has none.
        """
        path = Path(path)
        if theme is not None:
            raise InvalidArgumentError(f"a Chrome trace has no theme, got theme={theme!r}")
        if path.suffix != ".json":
            raise InvalidArgumentError(f"a Chrome trace is a .json file, not {path.name!r}")
        path.write_text(json.dumps(self.chrome_trace()))
        return path

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON and frames; times are kept to the nanosecond."""
        zero, _ = self.bounds
        names: dict[str, int] = {}
        rows = [
            [
                *(names.setdefault(text, len(names)) for text in (s.task, s.lane, s.kind, s.name)),
                round((s.start - zero) / NANOSECOND),
                round(s.seconds / NANOSECOND),
                s.step,
            ]
            for s in self.spans
        ]
        return {
            "title": self.title,
            "tasks": list(self.tasks),
            "names": list(names),
            "zero": zero,
            "spans": rows,
            "left_out": self.left_out,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Return the timeline that `to_dict` described; raises DataLossError if it is none."""
        try:
            names, zero = content["names"], content["zero"]
            spans = [
                Span(
                    task=names[task],
                    lane=names[lane],
                    kind=names[kind],
                    name=names[name],
                    start=zero + start * NANOSECOND,
                    seconds=seconds * NANOSECOND,
                    step=step,
                )
                for task, lane, kind, name, start, seconds, step in content["spans"]
            ]
            return cls(
                spans, content["tasks"], title=str(content["title"]), left_out=int(content["left_out"])
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataLossError(f"no timeline: {type(error).__name__}: {error}") from error

    def __len__(self) -> int:
        return len(self.spans)

    def __repr__(self) -> str:
        where = f"{len(self.tasks)} tasks, {self.seconds * 1e3:.3f} ms"
        return f"<{type(self).__name__}: {len(self)} spans of {where}>"


# Intervals of time, which may overlap.


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return how much time intervals (begin, end) cover together; what overlaps counts once.

    >>> covered([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total = 0.0
    reached = float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


# A timeline in the Trace Event Format, which chrome://tracing and Perfetto read.
#
# The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

MICROSECONDS = 1e6


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """Return the trace: names of processes (tasks) and threads (lanes), spans, arrows from send to receive.

    Times are microseconds from the start of the timeline.
    """
    zero, _ = timeline.bounds
    threads = {
        (task, lane): (process + 1, thread + 1)
        for process, task in enumerate(timeline.tasks)
        for thread, lane in enumerate(timeline.lanes(task))
    }
    events: list[dict[str, Any]] = []
    for process, task in enumerate(timeline.tasks):
        events.append(_named("process_name", process + 1, 0, {"name": task}))
        events.append(_named("process_sort_index", process + 1, 0, {"sort_index": process}))
    for (_, lane), (process, thread) in threads.items():
        events.append(_named("thread_name", process, thread, {"name": lane}))
        events.append(_named("thread_sort_index", process, thread, {"sort_index": thread}))
    for span in timeline.spans:
        process, thread = threads[span.task, span.lane]
        event = {
            "ph": "X",
            "name": span.name,
            "cat": span.kind,
            "ts": _micro(span.start - zero),
            "dur": _micro(span.seconds),
            "pid": process,
            "tid": thread,
            "args": {"kind": span.kind},
        }
        if span.step is not None:
            event["args"] = {"kind": span.kind, "step": span.step}
        events.append(event)
    for number, (send, receive) in enumerate(timeline.arrows(), 1):
        # An arrow hangs on the slice that is around its time, so the head must not come before the slice.
        ends = (("s", send, send.start), ("f", receive, max(send.start, receive.start)))
        for phase, span, at in ends:
            process, thread = threads[span.task, span.lane]
            arrow = {"ph": phase, "id": number, "name": span.name, "cat": "transfer"}
            arrow |= {"ts": _micro(at - zero), "pid": process, "tid": thread}
            events.append(arrow | {"bp": "e"} if phase == "f" else arrow)
    about = {"title": timeline.title, "left_out": timeline.left_out}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}


def _named(what: str, process: int, thread: int, content: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": content}


def _micro(seconds: float) -> float:
    """Return microseconds, to the nanosecond."""
    return round(seconds * MICROSECONDS, 3)
