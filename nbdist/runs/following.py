"""How a run is followed: a look now and then at all that may have changed, and a view that is told of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from nbdist.metrics.run_folder import sync_run
from nbdist.runs.controlling import Controls
from nbdist.runs.output import Displayed
from nbdist.runs.pause import Pause
from nbdist.runs.progress import Standing
from nbdist.runs.watch import Watch

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
