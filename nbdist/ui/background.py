"""Follows a run while the notebook goes on: for ``%%distribute --background`` and ``nb.attach``."""

from __future__ import annotations

import asyncio

from nbdist.runs.run import Run
from nbdist.ui.view import RunView

SHOW_EVERY = 0.1  # seconds
_following: dict[int, asyncio.Task[None]] = {}  # by the identity of their runs: one may be attached to twice


def follow_in_background(run: Run) -> None:
    """Follow a run from now on, while this thread goes on: in a notebook, in a script and in IPython.

    A run with a live view on a page is followed from a thread of its own: its view moves ten times a second
    while the event loop is free, and once a second while a cell computes. Its controls work while no other
    cell has the thread. A run that shows nothing on a page is followed on the event loop, or where there is
    none on a thread. What goes wrong is shown where the run is, and raised by ``run.wait()``.
    """
    if id(run) in _following:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        run.follow_on_thread()
        return
    view = run.view
    # The body of an in-graph run is in this process, and followed where it was started.
    if isinstance(view, RunView) and view.on_page and run.options.replication != "in-graph":
        view.shown_by_this_thread()
        run.follow_on_thread()
        work = _show(run, view)
    else:
        work = _follow(run)
    # Kept here: a loop has only a weak reference to its tasks.
    task = _following[id(run)] = loop.create_task(work, name=f"nbdist follows run {run.id}")
    task.add_done_callback(lambda _: _following.pop(id(run), None))


async def _show(run: Run, view: RunView) -> None:
    """Show on this loop what a thread follows."""
    while True:
        try:
            while not run.settled:
                view.tick()
                await asyncio.sleep(SHOW_EVERY)
            view.freeze(run)
            break
        except KeyboardInterrupt:  # meant for the cell that runs now
            continue
        except Exception as error:  # the run matters more than how it is shown
            run.notes.append(f"the view of run {run.id} failed: {type(error).__name__}: {error}")
            break
    _tell(run)


async def _follow(run: Run) -> None:
    while True:
        try:
            await run.followed()
            break
        except KeyboardInterrupt:  # meant for the cell that runs now
            continue
    _tell(run)


def _tell(run: Run) -> None:
    for note in run.untold():
        print(note)
