"""`LiveView`: the live view of a run, a widget that sends the run's progress to the page.

    view = LiveView(store, tasks=["/job:worker/task:0"], title="mnist", total_steps=500)
    view.on_control(lambda kind, rate: run.stop(), ["stop"])
    display(view)
    ...                       # ten times a second, on the kernel's main thread:
    view.tick(time.monotonic())

The page sends ``ready``, ``ack``, ``snapshot``, ``visible``, ``closed``, and commands for the run (see
controls.py). The kernel sends only ``frame``: one message with all changes, its points as one binary buffer
(see frames.py). No frame is widget state, so a saved notebook contains none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from typing import Any

from nbdist.metrics.store import RunStore
from nbdist.run.progress import ABSENT
from nbdist.terminal.transcript import Position, Transcript
from nbdist.text import clip
from nbdist.ui.formatting import jsonable
from nbdist.ui.frozen.summary import Part
from nbdist.ui.widgets.base import StreamingView
from nbdist.ui.widgets.controls import KINDS, Callback, PageControls
from nbdist.ui.widgets.frames import frame
from nbdist.ui.widgets.run_feed import Available, Feed, chosen


class LiveView(StreamingView):
    """Curves, progress, replicas and output of one run. Threads other than the main one must hold ``lock``.

    ``tasks`` are task names in replica order; parameter servers may follow, and have output only.
    """

    mime_type = "application/vnd.nbdist.run+json"

    def __init__(
        self,
        store: RunStore,
        tasks: Sequence[str],
        title: str = "run",
        total_steps: int | None = None,
        charts: Iterable[str] | None = None,
        transcripts: dict[str, Transcript] | None = None,
        run_id: str = "",
        controls: PageControls | None = None,
        again: str = "",
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self.planned = None if charts is None else list(charts)
        """The charts that are drawn unless the page chooses others."""
        self.feed = Feed(store, self.planned)
        self.available = Available()
        self.head: dict[str, Any] = {"title": title, "run": run_id, "tasks": list(tasks)}
        self.head |= {"total": total_steps, "again": again}
        self.controls = controls or PageControls()
        self.status: dict[str, Any] = {"state": "starting"}
        self.beside: dict[Part, Any] = {}
        self.new: set[str] = {"progress"}
        """The parts that the page does not have: "progress", and those beside the curves."""
        self.transcripts = {task: Transcript() for task in tasks} if transcripts is None else transcripts
        self.shown: dict[str, tuple[Position, str]] = {}
        """By task: the position in its transcript, and the open lines, that the page has."""
        super().__init__("live", lock or threading.RLock())  # another thread may follow the run

    def _shown_id(self) -> str:
        return str(self.head["run"])

    def _as_text(self) -> str:
        title, run_id, again = (clip(self.head[key]) for key in ("title", "run", "again"))
        named = f"{title} ({run_id})" if run_id not in ("", title) else title
        return f"Live view of {named}; {again}" if again else f"Live view of {named}"

    def progress(self, status: Mapping[str, Any]) -> None:
        """Update the run's progress; a value that is not known may be left out or None.

        Keys: state, step, total, epoch and epochs (None in loops without fit), unit ("steps" or "updates"),
        steps_per_second, examples_per_second,
        seconds_left, elapsed (seconds), note, trained_on and warning (of its devices, in words),
        learning_rate (in force; None where there is none to set),
        in_session (whether a body trains in a monitored session, whose hooks save its checkpoints),
        checkpoint (the latest: number, step, path, error),
        input (see `nbdist.ui.input_pipeline`), and per_replica, a mapping of replica to its
        state, step, steps_per_second, staleness, restart (when it was replaced, in words) and ``spent``
        (seconds of a step by part: data, compute, exchange, wait).
        """
        self.status = {**self.status, **jsonable(status)}
        self.new.add("progress")
        if (replicas := status.get("per_replica")) is not None:
            self.feed.lost = frozenset(i for i, one in replicas.items() if one.get("state") in ABSENT)

    def set_tasks(self, tasks: Sequence[str]) -> None:
        """Take the names of all tasks, to which replicas were added."""
        self.head["tasks"] = list(tasks)
        self.snapshot_wanted = True

    def put(self, part: Part, value: Sequence[Any]) -> None:
        """Set what is shown beside the curves.

        ``marks`` on them (`Event`: events of the run), the ``gpus`` of the replicas over time (see
        `nbdist.ui.gpus`), or the ``pictures`` of the run's summaries (see `nbdist.ui.pictures`).
        """
        shown = [asdict(mark) for mark in value] if part == "marks" else value
        if shown != self.beside.get(part, []):
            self.beside[part] = shown
            self.new.add(part)

    def output(self, task: str, text: str) -> None:
        """Append text that a task has printed."""
        self.transcripts.setdefault(task, Transcript()).append(text)

    def finish(self, state: str) -> None:
        """Send the final state (``finished``, ``stopped`` or ``failed``); no further tick is needed."""
        self.progress({"state": state, "seconds_left": None})
        self.send_the_end()

    def on_control(self, callback: Callback, kinds: Sequence[str] = KINDS) -> None:
        """Register ``callback(kind, learning_rate)`` for commands of these kinds.

        The page shows the controls that have a callback, and the exception that a callback raises.
        ``learning_rate`` is None unless the kind is "set".
        """
        self.controls.on(callback, kinds)
        self.snapshot_wanted = True

    def _handle_command(self, kind: str, message: Mapping[str, Any]) -> None:
        if kind in KINDS:
            self.progress({"problem": self.controls.act(kind, message.get("learning_rate"))})
        elif kind == "charts":
            choose = partial(self._choose_charts, message.get("titles"))
            self.progress({"problem": self.controls.attempt(kind, choose)})

    def _choose_charts(self, titles: object) -> None:
        self.feed.choose(chosen(titles, self.feed.store.series) or self.planned)
        self.snapshot_wanted = self.snapshot_wanted or self.finished  # tick() is no longer called

    def _send_frame(self, now: float) -> None:
        snapshot = self.snapshot_wanted
        planned = self.feed.plan()
        update = self.feed.everything(now) if snapshot or planned else self.feed.news(now)
        content: dict[str, Any] = {"kind": "frame", "snapshot": snapshot}
        if snapshot or planned:
            content["head"] = {
                **self.head,
                "controls": self.controls.kinds,
                "charts": self._charts(),
                "series": self.feed.names,
            }
        if snapshot or "progress" in self.new:
            content["progress"] = self.status
        for part, shown in self.beside.items():
            if part in self.new or (snapshot and shown):
                content[part] = shown
        if available := self.available.news(self.feed.store.series, now, anew=snapshot):
            content["available"] = available
        if printed := self._new_output(snapshot):
            content["output"] = printed
        if not (len(content) > 2 or update.parts):
            return
        content["replaced"] = update.replaced
        self.snapshot_wanted = False
        self.new.clear()
        self.send(content, [frame(self.flow.sent(now), update.parts)])

    def _charts(self) -> list[dict[str, Any]]:
        index = {name: number for number, name in enumerate(self.feed.names)}
        return [
            {"title": c.title, "train": index.get(c.train or ""), "validation": index.get(c.validation or "")}
            for c in self.feed.charts
        ]

    def _new_output(self, snapshot: bool) -> list[dict[str, Any]]:
        """Return the text printed since the last frame: complete lines, and those that may still change.

        ``drop`` is how many of the last complete lines may change again, and are among these.
        """
        if snapshot:
            self.shown.clear()
        news = []
        for task, transcript in self.transcripts.items():
            position, lines = self.shown.get(task, (Position(), ""))
            dropped, text, now = transcript.since(position)
            if (transcript.position, now) == (position, lines):
                continue
            self.shown[task] = (transcript.position, now)
            item = {"task": task, "text": text, "open": now, "cut": transcript.cut}
            news.append({**item, "drop": dropped} if dropped else item)
        return news
