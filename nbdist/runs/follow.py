"""How a run is followed: a look now and then at all that may have changed, and a view that is told of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from nbdist.metrics.run_folder import sync_run
from nbdist.runs.control import Controls
from nbdist.runs.monitor import Watch
from nbdist.runs.progress import Standing
from nbdist.runs.task.reporting import Displayed

if TYPE_CHECKING:
    from nbdist.runs.run import Run

FIRST_PAUSE, SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.001, 0.07  # seconds; an outcome ends a pause early
CALMER = 1.5  # from one pause to the next
STANDING_SECONDS = 0.09  # between two looks at how far the run is, for the view: it draws ten times a second


class Following:
    """Looks at a run through its ``watch``, and rests between two looks; all from one thread, but ``wake``.

    What goes wrong beside the run is put into ``notes``, and the run goes on.
    """

    def __init__(self, watch: Watch, controls: Controls, view: View | None, notes: list[str]) -> None:
        self.view = view
        """What shows the run, if anything does."""
        self._watch, self._controls, self._notes = watch, controls, notes
        self._pause, self._seconds = Pause(), FIRST_PAUSE
        self._shown_news, self._show_after = 0, 0.0
        self._secured = False

    def look(self) -> bool:
        """Look once at everything that may have changed; whether there is nothing more to wait for."""
        with self._controls.looking():
            self._watch.look()
        self._secure()
        # A short cell is followed closely, a long one calmly: looking costs the tasks' own cores time.
        ending = bool(self._watch.calls.ready_ranks())
        self._seconds = SHORTEST_PAUSE if ending else min(self._seconds * CALMER, LONGEST_PAUSE)
        now, news = time.monotonic(), self._watch.tally.news
        if news != self._shown_news and now >= self._show_after:
            self._shown_news, self._show_after = news, now + STANDING_SECONDS
            self.show(lambda view: view.progress(self.standing()))
        self.show(lambda view: view.tick())
        return self._watch.complete()

    def rest(self) -> None:
        """Rest until the next look, on this thread."""
        self._pause.rest(self._seconds)

    async def rest_on_loop(self) -> None:
        """Rest until the next look, while this thread's event loop goes on."""
        await self._pause.rest_on_loop(self._seconds)

    def wake(self) -> None:
        """Have the next look come at once; from any thread."""
        self._pause.wake()

    def standing(self) -> Standing:
        """Return how far the run is now."""
        return self._watch.tally.standing(time.monotonic(), self._watch.store)

    def show(self, tell: Callable[[View], object]) -> None:
        """Tell the view; one that fails is left out, for the run matters more than how it is shown."""
        if self.view is not None:
            try:
                tell(self.view)
            except Exception as error:
                failed = f"the view of run {self._watch.run} failed: {type(error).__name__}: {error}"
                self._notes.append(failed)
                self.view = None

    def _secure(self) -> None:
        """See to it that run.json outlives a power failure, once there is something in its logs."""
        if self._secured or not self._watch.store.series:
            return
        self._secured = True
        try:
            sync_run(self._watch.run)
        except OSError as error:
            self._notes.append(f"run.json could not be brought to the disk: {error}")


class View(Protocol):
    """What shows a run; every call comes from the thread that follows it."""

    def tick(self) -> None:
        """Show what is new; called many times a second."""

    def progress(self, standing: Standing) -> None:
        """Take note of how far the run is."""

    def output(self, task: str, text: str) -> None:
        """Append what a task printed."""

    def display(self, task: str, shown: Displayed) -> None:
        """Show an object that a task displayed."""

    def end(self, run: Run) -> None:
        """Show the run's end for good."""


# The pause between two looks at a run, which ends early when there is something to see.


class Pause:
    """Who follows a run rests in it, on a thread or on a loop; ``wake`` ends the rest, from any thread.

    >>> pause = Pause()
    >>> pause.wake()  # while nobody rests: the next rest is none
    >>> pause.rest(60.0)
    """

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._tell: Callable[[], object] = lambda: None

    def wake(self) -> None:
        """End the rest of this moment, or the next one."""
        self._woken.set()
        with suppress(RuntimeError):  # the loop has ended, and nobody rests on it
            self._tell()

    def rest(self, seconds: float) -> None:
        """Rest on this thread."""
        self._woken.wait(seconds)
        self._woken.clear()  # before the next look, which sees whatever it was

    async def rest_on_loop(self, seconds: float) -> None:
        """Rest while this thread's event loop goes on."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = loop.call_later(seconds, end)
        self._tell = lambda: loop.call_soon_threadsafe(end)
        if self._woken.is_set():
            end()
        try:
            await over
        finally:
            timer.cancel()
            self._tell = lambda: None
            self._woken.clear()


# An interrupt stops a run, unless this process ends: Jupyter says so just after its signal.

RESTART_SECONDS = 0.25  # within which the word follows an interrupt that the kernel is being restarted


class Leaving:
    """Tells an interrupt from the end of this process, after which run ``run`` goes on without it.

    ``asked`` tells whether this process is ending; without it every interrupt is one at once.

    >>> Leaving("20261120-digits").signalled(again=False)
    True
    """

    def __init__(self, run: str) -> None:
        self.asked: Callable[[], bool] | None = None
        self._run = run
        self._stop_at: float | None = None

    @property
    def now(self) -> bool:
        """Whether this process ends."""
        return self.asked is not None and self.asked()

    def signalled(self, again: bool) -> bool:
        """Take note of an interrupt; whether the run is to stop at once, as it does ``again`` and again."""
        if self.asked is None or self._stop_at is not None or again:
            self._stop_at = None
            return True
        self._stop_at = time.monotonic() + RESTART_SECONDS
        return False

    def passed(self) -> bool:
        """Whether the run is to stop now, for no word of an end has followed an interrupt; said once."""
        if self._stop_at is None or time.monotonic() < self._stop_at or self.now:
            return False
        self._stop_at = None
        return True

    def stay(self) -> None:
        """Raise KeyboardInterrupt if this process ends."""
        if self.now:
            error = KeyboardInterrupt(f"the kernel ends; run {self._run} continues: nb.attach({self._run!r})")
            # A whole traceback takes IPython a second, and Jupyter waits little longer for the kernel's end.
            # IPython asks every exception for this method, of which its type knows nothing.
            error._render_traceback_ = lambda: [f"KeyboardInterrupt: {error}"]  # type: ignore[attr-defined]
            raise error
