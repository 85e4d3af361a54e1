"""Follows a run in the background: for ``%%distribute --background`` and ``nb.attach``."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from nbdist.runs.run import Run
from nbdist.ui.view import RunView

SHOW_EVERY = 0.1  # seconds
_following: dict[int, asyncio.Task[None]] = {}  # by the identity of their runs: one may be attached to twice


def follow_in_background(run: Run) -> None:
    """Begin to follow a run in the background: in a notebook, in a script and in IPython.

    A separate thread follows a run with a live view on a page: the view updates ten times a second while the
    event loop is free, and once a second while a cell computes. Its controls work while no other cell runs. A
    thread also follows a run without a view (``live=False``), and any run if no loop runs. Where a notebook
    is executed without a page (nbconvert, papermill), the event loop follows its runs: `over` and `standing`
    advance between cells, and in ``wait``. Errors are shown at the run's view; ``run.wait()`` raises them.
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
    if run.options.replication == "in-graph":
        work = _follow(run)
    elif not isinstance(view, RunView):
        run.follow_on_thread()
        work = _tell_at_end(run)
    elif view.on_page:
        view.shown_by_this_thread()
        run.follow_on_thread()
        work = _show(run, view)
    else:  # the picture belongs to the cell that waits
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


async def _tell_at_end(run: Run) -> None:
    """Print the notes of a run that a thread follows."""
    while not run.settled:
        with suppress(KeyboardInterrupt):  # meant for the cell that runs now
            await asyncio.sleep(SHOW_EVERY)
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
