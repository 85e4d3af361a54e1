"""Follows a run: `RunFollower` polls it and updates its view, and sleeps between two polls.

The time between two polls grows from 10 to 70 ms, because polling costs the tasks' own cores time; an outcome
that arrives ends the sleep (`WakeableSleep`), and the last messages are then polled every millisecond.
`InterruptDebounce` distinguishes an interrupt, which stops the run, from the end of this process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nbdist.metrics.run_folder import sync_run
from nbdist.run.control import RunControls
from nbdist.run.displays import Displayed
from nbdist.run.monitor import RunMonitor
from nbdist.run.progress import Standing

if TYPE_CHECKING:
    from nbdist.run.run import Run

FIRST_SLEEP, SHORTEST_SLEEP, LONGEST_SLEEP = 0.01, 0.001, 0.07  # seconds
BACKOFF = 1.5  # factor from one sleep to the next
PROGRESS_SECONDS = 0.09  # between two updates of the view's progress; it draws ten times a second
RESTART_SECONDS = 0.25  # in which the kernel's shutdown message follows its interrupt signal


class RunFollower:
    """Polls a run through its ``monitor`` and updates ``view``, if any; all from one thread, except ``wake``.

    Failures of the view and of the disk are added to ``notes``; the run continues.
    """

    def __init__(self, monitor: RunMonitor, controls: RunControls, notes: list[str]) -> None:
        self.view: View | None = None
        """Shows the run; None if nothing does."""
        self._monitor, self._controls, self._notes = monitor, controls, notes
        self._sleep, self._seconds = WakeableSleep(), FIRST_SLEEP
        self._shown_messages, self._show_after = 0, 0.0
        self._synced = False

    def poll(self) -> bool:
        """Poll the run once and update the view; return whether the run has ended."""
        with self._controls.polling():
            self._monitor.poll()
        self._sync_record()
        ending = self._monitor.members.all_ended  # only last messages are missing
        self._seconds = SHORTEST_SLEEP if ending else min(self._seconds * BACKOFF, LONGEST_SLEEP)
        now, messages = time.monotonic(), self._monitor.followed.tally.messages
        complete = self._monitor.complete()  # the end shows the progress, too
        if messages != self._shown_messages and now >= self._show_after and not complete:
            self._shown_messages, self._show_after = messages, now + PROGRESS_SECONDS
            self.show(lambda view: view.progress(self.standing()))
        self.show(lambda view: view.tick())
        return complete

    def sleep(self) -> None:
        """Block this thread until the next poll is due."""
        self._sleep.sleep(self._seconds)

    async def sleep_on_loop(self) -> None:
        """Wait until the next poll is due, on this thread's event loop."""
        await self._sleep.sleep_on_loop(self._seconds)

    def wake(self) -> None:
        """Make the next poll due now; from any thread."""
        self._sleep.wake()

    def standing(self) -> Standing:
        """Return the run's progress now."""
        return self._monitor.followed.tally.standing(time.monotonic(), self._monitor.followed.store)

    def show(self, update: Callable[[View], object]) -> None:
        """Update the view; one that fails is dropped, and the run continues without it."""
        if self.view is not None:
            try:
                update(self.view)
            except Exception as error:
                run = self._monitor.followed.run
                self._notes.append(f"the view of run {run} failed: {type(error).__name__}: {error}")
                self.view = None

    def _sync_record(self) -> None:
        """Write run.json through to the disk once the logs have points: it survives a power failure."""
        if self._synced or not self._monitor.followed.store.series:
            return
        self._synced = True
        try:
            sync_run(self._monitor.followed.run)
        except OSError as error:
            self._notes.append(f"run.json could not be written through to the disk: {error}")


class View(Protocol):
    """Shows a run; all calls come from the thread that follows the run."""

    def tick(self) -> None:
        """Draw changes; called at every poll."""

    def progress(self, standing: Standing) -> None:
        """Show the run's progress."""

    def output(self, task: str, text: str) -> None:
        """Append a task's output."""

    def display(self, task: str, shown: Displayed) -> None:
        """Show an object that a task displayed."""

    def end(self, run: Run) -> None:
        """Show the run's end."""


class WakeableSleep:
    """A sleep, on a thread or an event loop, that ``wake`` ends from any thread.

    >>> sleep = WakeableSleep()
    >>> sleep.wake()  # before the sleep: it ends at once
    >>> sleep.sleep(60.0)
    """

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._wake_loop: Callable[[], object] = lambda: None

    def wake(self) -> None:
        """End the present sleep, or else the next one."""
        self._woken.set()
        with suppress(RuntimeError):  # the loop has ended, and nothing sleeps on it
            self._wake_loop()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        self._woken.wait(seconds)
        self._woken.clear()  # before the next poll, which finds what it was set for

    async def sleep_on_loop(self, seconds: float) -> None:
        """Wait on this thread's event loop."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = loop.call_later(seconds, end)
        self._wake_loop = lambda: loop.call_soon_threadsafe(end)
        if self._woken.is_set():
            end()
        try:
            await over
        finally:
            timer.cancel()
            self._wake_loop = lambda: None
            self._woken.clear()


class InterruptDebounce:
    """Decides whether an interrupt stops run ``run``, or this process ends and the run continues without it.

    Jupyter interrupts a kernel before it shuts it down, and sends the shutdown message just after the signal.
    So the first interrupt counts only once `RESTART_SECONDS` have passed without that message; a second
    interrupt counts at once. ``process_ends`` returns whether the message has arrived; where it is None, as
    in a script, every interrupt counts at once.

    >>> InterruptDebounce("20261120-digits").interrupt(again=False)
    True
    """

    def __init__(self, run: str) -> None:
        self.process_ends: Callable[[], bool] | None = None
        self._run = run
        self._stop_at: float | None = None

    @property
    def is_ending(self) -> bool:
        """Whether this process ends."""
        return self.process_ends is not None and self.process_ends()

    def interrupt(self, again: bool) -> bool:
        """Record an interrupt; return whether it counts at once, as one that comes ``again`` does."""
        if self.process_ends is None or self._stop_at is not None or again:
            self._stop_at = None
            return True
        self._stop_at = time.monotonic() + RESTART_SECONDS
        return False

    def is_due(self) -> bool:
        """Whether a recorded interrupt counts now; True once for each."""
        if self._stop_at is None or time.monotonic() < self._stop_at or self.is_ending:
            return False
        self._stop_at = None
        return True

    def raise_if_ending(self) -> None:
        """Raise KeyboardInterrupt if this process ends."""
        if self.is_ending:
            error = KeyboardInterrupt(f"the kernel ends; run {self._run} continues: nb.attach({self._run!r})")
            # IPython needs a second for a whole traceback, and Jupyter waits little longer for the kernel's
            # end. IPython looks up this method on every exception; the exception's type does not declare it.
            error._render_traceback_ = lambda: [f"KeyboardInterrupt: {error}"]  # type: ignore[attr-defined]
            raise error
