"""Shows a sweep: a grid that freezes at its end, or lines in a terminal.

    shown = SweepDisplay(sweep)
    shown.show()
    follow_sweep_in_background(sweep, shown)   # ticks and freezes while the kernel's loop is free

Without a loop: ``shown.tick()`` ten times a second, then ``shown.finish()``. The sweep does not depend on
its display.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from IPython import display as ipython

from nbdist.trials.sweep import Sweep
from nbdist.ui.display.run import LATE, LINE_EVERY, Place, place
from nbdist.ui.frozen.sweep import frozen_sweep, summary_of, sweep_line, sweep_text
from nbdist.ui.widgets.sweep_commands import take_commands

if TYPE_CHECKING:
    from nbdist.ui.widgets.sweep import SweepView

LOOK_EVERY = 0.1  # seconds


class SweepDisplay:
    """One sweep's output. Only the kernel's main thread may call methods other than `tick_from_any_thread`.

    ``report`` takes the lines if there is no page (default: print).
    """

    def __init__(
        self, sweep: Sweep, *, report: Callable[[str], None] = print, where: Place | None = None
    ) -> None:
        self.sweep = sweep
        self.report = report
        self.where: Place = where or place()
        self.display_id, self.again_id = uuid.uuid4().hex, uuid.uuid4().hex
        """Those of the outputs that keep the picture, and of the grids shown after the end."""
        self.outputs: list[str] = []
        """The ids of the displayed outputs."""
        self.view: SweepView | None = None
        self.frozen = False
        self.line_due = self.ticked = float("-inf")

    def show(self) -> None:
        """Show the sweep on the page; a batch shows a line of text, a terminal nothing yet."""
        if self.where == "terminal":
            return
        if self.where == "batch":
            self._display({"text/plain": f"{self.sweep.name}: running"}, self.display_id, raw=True)
            return
        self.view = self._make_view()
        self._display(self.view, self.display_id)

    def show_again(self) -> None:
        """Show the sweep in another cell: the same grid while it runs, another one afterwards.

        The commands of a finished sweep's grid still work: one that adds trials continues the sweep, all
        outputs show the same grid again, and a picture replaces them at its end.
        """
        if self.where != "page":
            if self.sweep.over:
                self.frozen = True
                if self.where == "terminal":
                    self.report(self._as_text())
                else:
                    self._display(self._bundle(), self.again_id, raw=True)
        elif not self.sweep.over:
            if self.view is None:
                self.show()
            else:
                self._display(self.view, self.display_id)  # the picture replaces both at the end
        else:
            if self.outputs and not self.frozen:
                self.finish()
            self.frozen = True  # the new grid is complete
            if self.view is None or self.view.comm is None:  # its page has closed it
                self.view = self._make_view()
            self._display(self.view, self.again_id)
            self.view.finish()
            self.view.close_when_left()  # the output itself, so that a slow page needs no further message

    def tick(self, now: float | None = None) -> None:
        """Send new events, about ten times a second; ``now`` in seconds on a monotonic clock."""
        now = self.ticked = time.monotonic() if now is None else now
        if self.frozen:  # it continued, so the frozen picture is outdated
            self.frozen = False
            if self.where == "page" and self.view is None:
                self.view = self._make_view()
            if self.view is not None and self.display_id in self.outputs:
                ipython.update_display(self.view, display_id=self.display_id)
        if self.view is not None:
            self.view.finished = self.view.closes_unseen = False
            self.view.tick(now)
        elif self.where == "terminal" and now >= self.line_due:
            self.line_due = now + LINE_EVERY
            with self.sweep.lock:
                line = sweep_line(self.sweep)
            self.report(f"{self.sweep.name}: {line}")

    def tick_from_any_thread(self) -> None:
        """Update the grid while the main thread is busy. For another thread."""
        now, view = time.monotonic(), self.view
        if view is not None and now - self.ticked > LATE:
            view.tick_unacknowledged(now)

    @property
    def in_use(self) -> bool:
        """Whether a user types into a field of the grid, which is not replaced then."""
        return self.view is not None and bool(self.view.focused)

    def show_the_end(self) -> None:
        """Send the final state to the grid, which stays and still takes commands."""
        if self.view is not None and not self.view.finished:
            self.view.finish()

    def finish(self) -> None:
        """Replace the grid by a picture and a table; again only if the sweep continued."""
        if self.frozen:
            return
        self.frozen = True
        if self.where == "terminal":
            self.report(self._as_text())
            return
        if self.view is not None:
            self.view.finish()  # first, because drawing the picture takes time
        if self.where == "page":
            take_commands(self.sweep)
        bundle = self._bundle()
        for output in self.outputs:
            ipython.update_display(bundle, display_id=output, raw=True)
        if not self.outputs:
            self._display(bundle, self.display_id, raw=True)
        if self.view is not None:
            self.view.close_unseen()
            self.view = None

    def _display(self, what: object, output: str, **options: bool) -> None:
        if output not in self.outputs:
            self.outputs.append(output)
        ipython.display(what, display_id=output, **options)

    def _make_view(self) -> SweepView:
        from nbdist.ui.widgets.sweep import SweepView

        view = SweepView(self.sweep)
        view.on_continued = lambda: self._continue(view)
        return view

    def _continue(self, view: SweepView) -> None:
        """Follow the sweep again after a command from a page's old grid continued it."""
        self.view = view
        follow_sweep_in_background(self.sweep, self)

    def _bundle(self) -> dict[str, object]:
        with self.sweep.lock:
            return frozen_sweep(self.sweep)

    def _as_text(self) -> str:
        with self.sweep.lock:
            return sweep_text(summary_of(self.sweep))


_following: dict[int, asyncio.Task[None]] = {}  # by the identity of the displays


def follow_sweep_in_background(sweep: Sweep, display: SweepDisplay | None = None) -> bool:
    """Show a sweep on this thread's event loop until it ends, then freeze it; return whether there is a loop.

    A ``display`` of None makes one in this cell. While no other cell runs, the grid updates ten times a
    second and its controls work; while a cell computes, another thread updates the grid once a second.
    Without a loop, the caller ticks and finishes the display.
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
    # Immediately: the next cell may block the thread before the task starts, on a busy machine or by Run All.
    over = _move(display)
    # A loop has only weak references to its tasks.
    task = loop.create_task(_follow(sweep, display), name=f"nbdist shows sweep {sweep.id}")
    _following[id(display)] = task

    def end(_: object) -> None:
        over.set()
        _following.pop(id(display), None)

    task.add_done_callback(end)
    return True


async def _follow(sweep: Sweep, display: SweepDisplay) -> None:
    while True:
        try:
            while not sweep.over:
                display.tick()
                await asyncio.sleep(LOOK_EVERY)
            display.show_the_end()
            while sweep.over and display.in_use:
                await asyncio.sleep(LOOK_EVERY)
            if sweep.over:
                display.finish()
                return
        except KeyboardInterrupt:  # meant for the current cell
            continue


def _move(display: SweepDisplay) -> threading.Event:
    """Start a thread that ticks a display whenever the loop is busy, until the event is set."""
    over = threading.Event()
    display.ticked = time.monotonic()  # give the loop time to start

    def move() -> None:
        while not over.wait(LOOK_EVERY):
            display.tick_from_any_thread()

    threading.Thread(target=move, name=f"nbdist moves {display.sweep.id}", daemon=True).start()
    return over
