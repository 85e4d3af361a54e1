"""Shows a sweep wherever it was started: the grid, which freezes at its end, or lines in a terminal.

    shown = SweepDisplay(sweep)
    shown.show()
    follow_sweep_in_background(sweep, shown)   # ticks, and freezes, while the kernel's loop has time

or, where there is no loop: ``shown.tick()`` ten times a second, and ``shown.finish()``. The sweep runs by
itself, whoever looks.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbdist.ui.display.run import LINE_EVERY, Place, place
from nbdist.ui.frozen.sweep import frozen_sweep, summary_of, sweep_line, sweep_text
from nbdist.ui.widgets.sweep import SweepHandle

if TYPE_CHECKING:
    from nbdist.ui.widgets.sweep import SweepView

LOOK_EVERY = 0.1  # seconds
LATE = 0.5  # seconds without a tick, after which a cell is seen to have the main thread


class SweepDisplay:
    """One sweep's output. All methods but `tick_from_any_thread` belong to the kernel's main thread.

    ``report`` takes the lines where there is no page (default: print).
    """

    def __init__(
        self, sweep: SweepHandle, *, report: Callable[[str], None] = print, where: Place | None = None
    ) -> None:
        self.sweep = sweep
        self.report = report
        self.where: Place = where or place()
        self.display_id = uuid.uuid4().hex
        self.view: SweepView | None = None
        self.shown = self.frozen = False
        self.line_due = self.ticked = float("-inf")

    def show(self) -> None:
        """Put the sweep on the page; nothing graphical happens elsewhere."""
        if self.where == "terminal":
            return
        from IPython.display import display

        self.shown = True
        if self.where == "batch":
            display({"text/plain": f"{self.sweep.name}: running"}, raw=True, display_id=self.display_id)
            return
        self.view = self._make_view()
        display(self.view, display_id=self.display_id)

    def show_again(self) -> None:
        """Put the sweep on the page once more: the same grid while it runs, afterwards one of its own.

        The grid of a finished sweep shows everything, and its commands still work: one that adds trials
        continues the sweep, and at its end a picture replaces the grid.
        """
        self.frozen = self.frozen or self.sweep.over  # this is all there is to show of it
        if self.where == "terminal":
            if self.sweep.over:
                self.report(self._as_text())
            return
        from IPython.display import display

        if self.where == "batch":
            if self.sweep.over:
                display(self._bundle(), raw=True)
        elif self.sweep.over:
            self.view, self.shown = self._make_view(), True
            display(self.view, display_id=self.display_id)
            self.view.finish()
            self.view.close_when_left()  # it is the output itself: a slow page has nothing else to load
        elif self.view is None:
            self.show()
        else:
            display(self.view, display_id=self.display_id)  # both give way to the picture at the end

    def tick(self, now: float | None = None) -> None:
        """Send what is new, about ten times a second; ``now`` in seconds on a steady clock."""
        now = self.ticked = time.monotonic() if now is None else now
        self.frozen = False  # it continues: the frozen picture is out of date
        if self.view is not None:
            self.view.finished = self.view.closes_unseen = False
            self.view.tick(now)
        elif self.where == "terminal" and now >= self.line_due:
            self.line_due = now + LINE_EVERY
            with self.sweep.lock:
                line = sweep_line(self.sweep)
            self.report(f"{self.sweep.name}: {line}")

    def tick_from_any_thread(self) -> None:
        """Keep the grid moving while the main thread has had no time for it. For another thread."""
        now, view = time.monotonic(), self.view
        if view is not None and now - self.ticked > LATE:
            view.tick_unacknowledged(now)

    def finish(self) -> None:
        """Freeze: the grid gives way to a picture and a table. Once, unless the sweep went on since."""
        if self.frozen:
            return
        self.frozen = True
        if self.where == "terminal":
            self.report(self._as_text())
            return
        from IPython.display import display, update_display

        if self.view is not None:
            self.view.finish()  # first, since drawing the picture takes a moment
        put = update_display if self.shown else display
        self.shown = True
        put(self._bundle(), raw=True, display_id=self.display_id)
        if self.view is not None:
            self.view.close_unseen()
            self.view = None

    def _make_view(self) -> SweepView:
        from nbdist.ui.widgets.sweep import SweepView

        view = SweepView(self.sweep)
        view.on_continued = lambda: self._continue(view)
        return view

    def _continue(self, view: SweepView) -> None:
        """A page that still had the grid of the sweep has brought it back to work."""
        self.view, self.frozen = view, False
        view.closes_unseen = False
        follow_sweep_in_background(self.sweep, self)

    def _bundle(self) -> dict[str, object]:
        with self.sweep.lock:
            return frozen_sweep(self.sweep)

    def _as_text(self) -> str:
        with self.sweep.lock:
            return sweep_text(summary_of(self.sweep))


_following: dict[int, asyncio.Task[None]] = {}  # by the identity of their displays


def follow_sweep_in_background(sweep: SweepHandle, display: SweepDisplay | None = None) -> bool:
    """Show a sweep on this thread's event loop from now on and freeze it at its end; whether there is one.

    Without a ``display`` it gets one, here. The grid moves and its controls work while no other cell has the
    thread; while one computes, the grid moves once a second, from another thread. The sweep itself has a
    thread of its own. Without a loop, tick and finish the display yourself.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    if display is None:
        display = SweepDisplay(sweep)
        display.show()
    if id(display) in _following:
        return True
    # At once: the next cell may have the thread before the task has begun, on a busy machine or by Run All.
    over = _move(display)
    # Kept here: a loop has only a weak reference to its tasks.
    task = loop.create_task(_follow(sweep, display), name=f"nbdist shows sweep {sweep.id}")
    _following[id(display)] = task

    def end(_: object) -> None:
        over.set()
        _following.pop(id(display), None)

    task.add_done_callback(end)
    return True


async def _follow(sweep: SweepHandle, display: SweepDisplay) -> None:
    while True:
        try:
            while not sweep.over:
                display.tick()
                await asyncio.sleep(LOOK_EVERY)
            display.finish()
            return
        except KeyboardInterrupt:  # meant for the cell that runs now
            continue


def _move(display: SweepDisplay) -> threading.Event:
    """Have a thread tick a display whenever the loop has no time for it, until the event is set."""
    over = threading.Event()
    display.ticked = time.monotonic()  # the loop has its time to begin

    def move() -> None:
        while not over.wait(LOOK_EVERY):
            display.tick_from_any_thread()

    threading.Thread(target=move, name=f"nbdist moves {display.sweep.id}", daemon=True).start()
    return over
