"""Shows a run wherever it was started: a live widget that freezes at its end, or lines in a terminal.

shown = LiveDisplay(store, tasks, "mnist", total_steps=500)
shown.show()
...                              # shown.tick(now), shown.progress(...), shown.output(...) while it runs
shown.finish(summary)            # the notebook keeps a picture, a table and the data, and no widget
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from nbdist.ui.ansi import plain
from nbdist.ui.control import KINDS, Callback, Controls
from nbdist.ui.frozen import ALONE, frozen
from nbdist.ui.frozentext import text
from nbdist.ui.lines import latest_values, progress_line
from nbdist.ui.summary import Mark, Summary, short_task
from nbdist.ui.transcript import Transcript

if TYPE_CHECKING:
    from nbdist.metrics.store import RunStore
    from nbdist.ui.live import LiveView

Place = Literal["page", "batch", "terminal"]
LATE = 0.5  # seconds without a tick, after which a cell is taken to occupy the main thread
LINE_EVERY = 2.0  # seconds between progress lines in a terminal


def place() -> Place:
    """Return the kind of output: a notebook's page, a batch (`nbconvert --execute`), or a terminal."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return "terminal"
    # A front end that allows no input is a batch. nbclient and papermill would keep the state of the live
    # widget in the notebook, because they never drop a closed widget.
    request = kernel.get_parent("shell")
    return "page" if request.get("content", {}).get("allow_stdin", True) else "batch"


class LiveDisplay:
    """One run's output. `progress`, `mark`, `output` and `tick_meanwhile` may come from any thread, all else
    belongs to the kernel's main thread.

    ``report`` takes the lines where there is no page (default: print); ``again`` says how to follow the run
    when the kernel is gone.
    """

    def __init__(
        self,
        store: RunStore,
        tasks: Sequence[str],
        title: str = "run",
        total_steps: int | None = None,
        *,
        run_id: str = "",
        charts: Iterable[str] | None = None,
        again: str = "",
        report: Callable[[str], None] = print,
        where: Place | None = None,
    ) -> None:
        self.store, self.tasks, self.title, self.run_id = store, list(tasks), title, run_id
        self.total_steps = total_steps
        self.charts, self.again = None if charts is None else list(charts), again
        self.report = report
        self.where: Place = where or place()
        self.display_id = uuid.uuid4().hex
        self.view: LiveView | None = None
        self.lock = threading.RLock()
        self.ticked = float("-inf")
        self.transcripts = {task: Transcript() for task in tasks}
        self.status: Mapping[str, Any] = {}
        self.marks: Sequence[Mark] = ()
        self.controls = Controls()
        self.line_due = float("-inf")
        self.show_due: float | None = None

    def show(self, after: float = 0.0) -> None:
        """Put the run on the page; nothing graphical happens elsewhere.

        With ``after``, a run that is over within so many seconds is shown once, at its end.
        """
        if self.where == "terminal":
            return
        self.show_due = time.monotonic() + after if after else None
        if after:
            return
        from IPython.display import display

        if self.where == "batch":
            display({"text/plain": f"{self.title}: running"}, raw=True, display_id=self.display_id)
            return
        self.view = self._make_view()
        self.view.progress(self.status)
        self.view.mark(self.marks)
        display(self.view, display_id=self.display_id)

    def _make_view(self) -> LiveView:
        from nbdist.ui.live import LiveView

        return LiveView(
            self.store, self.tasks, self.title, self.total_steps, self.charts, self.transcripts, self.run_id,
            self.controls, self.again, self.lock,
        )  # fmt: skip

    def show_again(self, summary: Summary | None) -> None:
        """Put the run on the page once more; with a summary it is over, and the view has all of it."""
        if self.where != "page":
            if summary is not None and self.where == "terminal":
                self.report(text(replace_outputs(summary, {}), ALONE))
            return
        from IPython.display import display

        if self.view is not None:
            display(self.view, display_id=self.display_id)  # both give way to the picture at the end
        elif self.show_due is not None:
            self.show()
        elif summary is not None:
            view = self._make_view()
            display(view)
            view.progress(self.status)
            view.mark(summary.marks)
            view.finish(summary.state)
            view.close_when_left()  # it is the output itself: a slow page has nothing else to load

    def tick(self, now: float | None = None) -> None:
        """Send what is new, about ten times a second; ``now`` in seconds on a steady clock."""
        with self.lock:
            self._tick(time.monotonic() if now is None else now)

    def _tick(self, now: float) -> None:
        self.ticked = time.monotonic()
        if self.show_due is not None and now >= self.show_due:
            self.show()
        if self.view is not None:
            self.view.tick(now)
        elif self.where == "terminal" and self.status and now >= self.line_due:
            self.line_due = now + LINE_EVERY
            self.report(progress_line(self.title, self.status, latest_values(self.store, self.charts)))

    def tick_meanwhile(self) -> None:
        """Update the view while the main thread is busy."""
        now = time.monotonic()
        with self.lock:
            if self.view is not None and now - self.ticked > LATE:
                self.view.tick_unheard(now)

    def progress(self, status: Mapping[str, Any]) -> None:
        """Take note of the run's progress (see `LiveView.progress`)."""
        with self.lock:
            self.status = {**self.status, **status}
            if self.view is not None:
                self.view.progress(status)

    def mark(self, marks: Sequence[Mark]) -> None:
        """Set the marks on the curves."""
        with self.lock:
            self.marks = marks
            if self.view is not None:
                self.view.mark(marks)

    def output(self, task: str, printed: str) -> None:
        """Append what a task printed."""
        with self.lock:
            self._output(task, printed)

    def _output(self, task: str, printed: str) -> None:
        transcript = self.transcripts.setdefault(task, Transcript())
        before = transcript.written
        transcript.append(printed)
        if self.where == "terminal":
            _, lines, _ = transcript.since(before)
            for line in plain(lines).splitlines():
                self.report(f"[{short_task(task)}] {line}")

    def on_control(self, callback: Callback, kinds: Sequence[str] = KINDS) -> None:
        """Call back with what the page wants of the run (see `LiveView.on_control`); before it is shown."""
        self.controls.on(callback, kinds)

    def finish(self, summary: Summary) -> None:
        """Freeze: the widget gives way to a picture and a table, and is closed."""
        with self.lock:
            self._finish(summary)

    def _finish(self, summary: Summary) -> None:
        if not summary.outputs:
            summary = replace_outputs(summary, {t: log.text() for t, log in self.transcripts.items()})
        if self.where == "terminal":
            for task in self.transcripts:
                self._report_open_line(task)
            self.report(text(replace_outputs(summary, {}), ALONE))
            return
        from IPython.display import display, update_display

        if self.view is not None:
            self.view.finish(summary.state)  # first, since drawing the picture takes a moment
        put = update_display if self.show_due is None else display
        self.show_due = None
        wanted = self.charts if self.view is None else self.view.feed.wanted  # what was looked at last
        put(frozen(self.store, summary, wanted), raw=True, display_id=self.display_id)
        if self.view is not None:
            self.view.close_unseen()
            self.view = None

    def _report_open_line(self, task: str) -> None:
        if self.transcripts[task].open:
            self.output(task, "\n")


def replace_outputs(summary: Summary, outputs: Mapping[str, str]) -> Summary:
    """Return the summary with other output."""
    from dataclasses import replace

    return replace(summary, outputs=outputs)
