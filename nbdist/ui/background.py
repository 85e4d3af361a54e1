"""Follows a run while the notebook goes on: for ``%%distribute --background`` and ``nb.attach``."""

from __future__ import annotations

import asyncio

from nbdist.runs.run import Run

_following: dict[int, asyncio.Task[None]] = {}  # by the identity of their runs: one may be attached to twice


def follow_in_background(run: Run) -> bool:
    """Follow a run on this thread's event loop from now on; whether there is one.

    The view moves and its controls work while no other cell has the thread. What goes wrong is shown where
    the run is, and raised by ``run.wait()``. Without a loop nobody follows: call ``run.wait()`` then.
    """
    if id(run) in _following:
        return True
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    # Kept here: a loop has only a weak reference to its tasks.
    task = _following[id(run)] = loop.create_task(_follow(run), name=f"nbdist follows run {run.id}")
    task.add_done_callback(lambda _: _following.pop(id(run), None))
    return True


async def _follow(run: Run) -> None:
    while True:
        try:
            await run.followed()
            break
        except KeyboardInterrupt:  # meant for the cell that runs now
            continue
    for note in run.untold():
        print(note)
