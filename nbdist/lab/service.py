"""What all routes of a Jupyter server share: what they read, on which threads, and what pages have begun."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NotFoundError
from nbdist.lab.actions import Actions
from nbdist.lab.state import Item, Seen, State
from nbdist.lab.tensorboard import Boards
from nbdist.lab.views import Views, real_views
from nbdist.lab.watch import Watch
from nbdist.lab.worker import Worker

SERVICE = "nbdist_service"
"""Its name among the server's settings."""
READ_SECONDS = 30.0  # after which a page is told that its question takes too long
READERS = 4  # threads for what a page asks once; what it follows has its own
Result = TypeVar("Result")


class Service:
    """Made once for a server. Nothing is read, and nothing runs, until a page asks.

    ``folder`` is where what pages begin is run.
    """

    def __init__(
        self,
        make_views: Callable[[], Views] = real_views,
        folder: str | None = None,
        boards: Boards | None = None,
    ) -> None:
        self._make_views, self._making = make_views, threading.Lock()
        self._made: Views | None = None
        self._joined: State | None = None
        self._readers = Worker("nbdist-read", READERS)
        self._looker = Worker("nbdist-look")
        self.watch = Watch(self._see)
        self.actions = Actions(self.watch.wake, folder)
        self.boards = boards or Boards()

    async def read(self, view: Callable[[Views], Result]) -> Result:
        """Return what a view returns, which runs on a thread."""
        return await within(READ_SECONDS, self._readers.run(lambda: view(self._views())))

    async def look(self, cluster: str | None) -> dict[str, Any]:
        """Return the state as it is now."""
        return await within(READ_SECONDS, self._looker.run(lambda: self._state().look(cluster)))

    async def check(self, about: str, id: str, wish: str) -> Item:
        """Return the item; raises NotFoundError if it is not there, FailedPreconditionError with why not."""
        items: list[Item] = (await self.look(None))[about]
        item = next((one for one in items if one["id"] == id), None)
        if item is None:
            raise NotFoundError(f"there is no {about.removesuffix('s')} {id!r} (any more)")
        if not item["can"].get(wish):
            why = item["why"].get(wish) or f"it cannot be asked to {wish}"
            raise FailedPreconditionError(f"{id}: {why}")
        return item

    async def close(self) -> None:
        """End what goes on, and stop reading."""
        await asyncio.gather(self.actions.close(), self.boards.close())
        await self.watch.close()
        self._readers.close()
        self._looker.close()

    async def _see(self, clusters: frozenset[str]) -> Seen:
        return await self._looker.run(lambda: self._state().see(clusters))

    def _views(self) -> Views:
        """Make them at the first use, on a thread: importing what they need takes a moment."""
        with self._making:
            if self._made is None:
                self._made = self._make_views()
            return self._made

    def _state(self) -> State:
        if self._joined is None:
            views = self._views()
            self._joined = State(
                views.clusters, views.tasks, views.runs, views.sweeps, lambda: self.actions.underway
            )
        return self._joined


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """Return what comes of some work; raise DeadlineExceededError if it takes longer."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise DeadlineExceededError(
            f"reading has taken more than {seconds:g} s: the disk of nbdist's folder is slow; try again"
        ) from None
