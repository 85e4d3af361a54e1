"""Follows a run in the background: for ``%%distribute --background`` and ``nb.attach``."""

from __future__ import annotations

import asyncio

from nbdist.runs.run import Run
from nbdist.ui.view import RunView

SHOW_EVERY = 0.1  # seconds
_following: dict[int, asyncio.Task[None]] = {}  # by the identity of their runs: one may be attached to twice


def follow_in_background(run: Run) -> None:
    """Begin to follow a run in the background: in a notebook, in a script and in IPython.

    A separate thread follows a run with a live view on a page: the view updates ten times a second while the
    event loop is free, and once a second while a cell computes. Its controls work while no other cell runs. A
    run without a view is followed on the event loop, or on a thread if no loop runs. Errors are shown at the
    run's view, and ``run.wait()`` raises them.
    """
    if id(run) in _following:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        run.follow_on_thread()
        return
    view = run.view
    # The body of an in-graph run is in this process, and the thread that started it follows it.
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
    """Show on this loop a run that a thread follows."""
    while True:
        try:
            while not run.settled:
                view.tick()
                await asyncio.sleep(SHOW_EVERY)
            view.freeze(run)
            break
        except KeyboardInterrupt:  # meant for the cell that runs now
            continue
        except Exception as error:  # an error of the view must not end the run
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
