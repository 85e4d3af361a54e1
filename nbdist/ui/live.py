"""The live view of a run: a widget that is told what happens and sends it to the page, calmly.

    view = LiveView(store, tasks=["/job:worker/task:0"], title="mnist", total_steps=500)
    view.on_control(lambda kind, rate: run.stop(), ["stop"])
    display(view)
    ...                       # ten times a second, on the kernel's main thread:
    view.tick(time.monotonic())

What travels: from the page ``ready``, ``ack``, ``snapshot``, ``visible``, ``gone``, and what is wanted of the
run (see control.py); to the page ``frame`` only, one message with everything that is new, its points as one
binary buffer (see frames.py).
Nothing of it is widget state, so nothing of it is saved with a notebook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from nbdist.errors import NotFoundError
from nbdist.ui.available import Available, chosen
from nbdist.ui.control import KINDS, Callback, Controls
from nbdist.ui.feed import Feed, Sending
from nbdist.ui.frames import frame
from nbdist.ui.jsonable import jsonable
from nbdist.ui.pace import Pace
from nbdist.ui.shorten import clip
from nbdist.ui.transcript import Transcript

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore

LOADED_AFTER = 3.0  # seconds in which a page has loaded the widget, or never will
STATIC = Path(__file__).parent / "static"


@cache
def bundled(name: str) -> str:
    """Return a file of the built front end; NotFoundError says how to build it."""
    try:
        return (STATIC / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(
            f"no {STATIC / name}; build it with `npm ci && npm run build` in widget/"
        ) from None


class LiveView(anywidget.AnyWidget):  # type: ignore[misc]  # anywidget has no types
    """Curves, progress, replicas and output of one run. All methods belong to the kernel's main thread.

    ``tasks`` are task names in replica order; parameter servers may follow, and have output only.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)

    def __init__(
        self,
        store: RunStore,
        tasks: Sequence[str],
        title: str = "run",
        total_steps: int | None = None,
        charts: Iterable[str] | None = None,
        transcripts: dict[str, Transcript] | None = None,
        run_id: str = "",
        controls: Controls | None = None,
        again: str = "",
    ) -> None:
        self.planned = None if charts is None else list(charts)  # what is drawn unless the page chooses
        self.feed = Feed(store, self.planned)
        self.available = Available()
        self.pace = Pace()
        self.now = 0.0
        self.head: dict[str, Any] = {"title": title, "run": run_id, "tasks": list(tasks)}
        self.head |= {"total": total_steps, "again": again}
        self.controls = controls or Controls()
        self.status: dict[str, Any] = {"state": "starting"}
        self.status_is_new = True
        self.transcripts = {task: Transcript() for task in tasks} if transcripts is None else transcripts
        self.shown: dict[str, tuple[int, str]] = {}  # task -> what the page has of its transcript
        self.snapshot_wanted = True
        self.finished = False
        self.views: set[str] = set()  # in pages, on a screen or not
        self.closes_unseen = False
        super().__init__(_esm=bundled("live.js"), _css=bundled("live.css"))
        self.on_msg(self._on_page_message)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """Return what is displayed, with words for those who cannot show a widget, or not any more."""
        found = super()._repr_mimebundle_(**kwargs)
        data = found[0] if isinstance(found, tuple) else found
        if data is not None:
            data["text/plain"] = self._in_words()
        return found

    def _in_words(self) -> str:
        title, run_id, again = (clip(self.head[key]) for key in ("title", "run", "again"))
        named = f"{title} ({run_id})" if run_id not in ("", title) else title
        return f"Live view of {named}; {again}" if again else f"Live view of {named}"

    def tick(self, now: float) -> None:
        """Send at most one frame, if something is new and the page keeps up; ``now`` in seconds."""
        self.now = now
        if self.pace.may_send(now):
            self._send_frame(now)

    def progress(self, status: Mapping[str, Any]) -> None:
        """Take note of the run's progress; what is not known may be left out or None.

        Keys: state, step, total, unit ("steps" or "updates"), steps_per_second, examples_per_second,
        seconds_left, elapsed (seconds), note, learning_rate (in force; None where there is none to set),
        checkpoint (the latest: number, step, path, error), and per_replica, a mapping of replica to its
        state, step, steps_per_second, staleness and ``spent`` (seconds of a step by part: data, compute,
        exchange, wait).
        """
        self.status = {**self.status, **jsonable(status)}
        self.status_is_new = True
        if (replicas := status.get("per_replica")) is not None:
            self.feed.gone = frozenset(i for i, one in replicas.items() if one.get("state") == "gone")

    def output(self, task: str, text: str) -> None:
        """Append what a task printed."""
        self.transcripts.setdefault(task, Transcript()).append(text)

    def finish(self, state: str) -> None:
        """The run is over (``finished``, ``stopped`` or ``failed``); no further tick is needed."""
        self.progress({"state": state, "seconds_left": None})
        self.finished = self.snapshot_wanted = True  # the last picture is complete, whatever was lost before
        self._send_last()

    def close(self) -> None:
        """Take the widget off the page, and its layout model too, which would stay in a saved notebook."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()

    def close_unseen(self) -> None:
        """Close as soon as no page holds the widget: one that was loaded in mid-run has no other output."""
        self.closes_unseen = True
        if self.views:
            return
        try:
            # A page that is still loading the widget stumbles over one that is gone.
            asyncio.get_running_loop().call_later(LOADED_AFTER, self._close_if_unseen)
        except RuntimeError:  # no loop, no page
            self.close()

    def on_control(self, callback: Callback, kinds: Sequence[str] = KINDS) -> None:
        """Call back with what is wanted of the run, of these kinds, and with "set" the learning rate.

        The page has the controls for which somebody is called. What a callback raises is shown there.
        """
        self.controls.on(callback, kinds)
        self.snapshot_wanted = True

    def _on_page_message(self, _: object, message: Mapping[str, Any], __: object) -> None:
        kind, view = str(message.get("kind")), str(message.get("view"))
        if kind in KINDS:
            self.progress({"problem": self.controls.act(kind, message.get("learning_rate"))})
        elif kind == "charts":
            choose = partial(self._choose_charts, message.get("titles"))
            self.progress({"problem": self.controls.trying(kind, choose)})
        elif kind == "gone":
            self.pace.looked_at(view, False)
            self.views.discard(view)
            if self.closes_unseen:
                self._close_if_unseen()
                return
        elif kind == "ack":
            self.pace.acknowledged(int(message["sequence"]), self.now)
        elif kind in ("ready", "visible", "snapshot"):
            self.views.add(view)
            self.pace.looked_at(view, bool(message["visible"]))
            self._catch_up(int(message["sequence"]))
        if self.finished:  # nobody ticks any more
            self._send_last()

    def _choose_charts(self, titles: object) -> None:
        self.feed.choose(chosen(titles, self.feed.store.series) or self.planned)
        self.snapshot_wanted = self.snapshot_wanted or self.finished  # nobody ticks any more

    def _catch_up(self, has: int) -> None:
        """The page has drawn everything up to a frame; if that is not the last one, start over."""
        if has != self.pace.sequence or has == 0:
            self.pace.start_over()
            self.snapshot_wanted = True
        else:
            self.pace.acknowledged(has, self.now)

    def _close_if_unseen(self) -> None:
        if not self.views:
            self.close()

    def _send_last(self) -> None:
        if self.snapshot_wanted and self.pace.has_room(self.now):
            self._send_frame(self.now)

    def _send_frame(self, now: float) -> None:
        snapshot = self.snapshot_wanted
        planned = self.feed.plan()
        sending = self.feed.everything(now) if snapshot or planned else self.feed.news(now)
        content: dict[str, Any] = {"kind": "frame", "snapshot": snapshot}
        if snapshot or planned:
            content["head"] = {
                **self.head,
                "controls": self.controls.kinds,
                "charts": self._charts(),
                "series": self.feed.names,
            }
        if snapshot or self.status_is_new:
            content["progress"] = self.status
        if available := self.available.news(self.feed.store.series, now, anew=snapshot):
            content["available"] = available
        if printed := self._new_output(snapshot):
            content["output"] = printed
        if not (len(content) > 2 or sending.parts):
            return
        content["replaced"] = sending.replaced
        self.snapshot_wanted = self.status_is_new = False
        self._send_numbered(content, sending, now)

    def _send_numbered(self, content: dict[str, Any], sending: Sending, now: float) -> None:
        sequence = self.pace.sent(now)
        self.send(content, [frame(sequence, sending.parts)])

    def _charts(self) -> list[dict[str, Any]]:
        index = {name: number for number, name in enumerate(self.feed.names)}
        return [
            {"title": c.title, "train": index.get(c.train or ""), "validation": index.get(c.validation or "")}
            for c in self.feed.charts
        ]

    def _new_output(self, snapshot: bool) -> list[dict[str, Any]]:
        """Return what was printed since the last frame: finished text, and the line being written."""
        if snapshot:
            self.shown.clear()
        news = []
        for task, transcript in self.transcripts.items():
            position, open_line = self.shown.get(task, (0, ""))
            if (position, open_line) == (transcript.written, transcript.open):
                continue
            written, text, line = transcript.since(position)
            self.shown[task] = (written, transcript.open)
            news.append({"task": task, "text": text, "open": line, "cut": transcript.cut})
        return news
