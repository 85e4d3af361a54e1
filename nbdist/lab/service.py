"""What all routes of a Jupyter server share: what they read, on which threads, and what pages have begun."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NotFoundError
from nbdist.lab.actions.manager import Actions
from nbdist.lab.state import Item, Seen, State, Views, changes, real_views
from nbdist.lab.tensorboard.manager import Boards
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


# The poller: reads all items periodically while a page is connected.
#
# pages that are visible ──► Watch ──► one look at a time, on a thread ──► what each page has not been told
# yet

SOON, LATER = 0.5, 2.0  # seconds from one look to the next: while something goes on, and otherwise
LEAST = 0.1  # the same where a page asks for it
APART = 0.5  # seconds from one message to a page to the next
log = logging.getLogger(__name__)


class Page(Protocol):
    """Who looks: which cluster it has opened, and whether anybody can see it now."""

    cluster: str | None
    visible: bool

    def offer(self, state: dict[str, Any], /) -> None:
        """Take note of what the state is now."""


class Watch:
    """Looks for pages; all methods are called on the server's event loop.

    ``see`` makes one look. It is not called again before it has answered, however long that takes.
    """

    def __init__(self, see: Callable[[frozenset[str]], Awaitable[Seen]]) -> None:
        self._see = see
        self._pages: list[Page] = []
        self._wake = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def join(self, page: Page) -> None:
        """Look for a page as well from now on."""
        self._pages.append(page)
        self.wake()

    def leave(self, page: Page) -> None:
        """Look for a page no more."""
        if page in self._pages:
            self._pages.remove(page)
            self.wake()

    def wake(self) -> None:
        """Have the next look come at once: a page wants something else, or something was begun."""
        self._wake.set()
        if self._visible() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    @property
    def looks(self) -> bool:
        """Whether it looks at this time."""
        return self._looking is not None and not self._looking.done()

    async def close(self) -> None:
        """Look no more."""
        self._pages.clear()
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def _look(self) -> None:
        while self._visible():
            self._wake.clear()
            clusters = frozenset(page.cluster for page in self._visible() if page.cluster is not None)
            pause = LATER
            try:
                seen = await self._see(clusters)
            except Exception:
                log.exception("nbdist: a look at clusters and runs has failed")
            else:
                pause = SOON if seen.moving else LATER
                for page in self._visible():
                    if page.cluster is None or page.cluster in clusters:
                        page.offer(seen.of(page.cluster))
            await asyncio.sleep(LEAST)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause - LEAST)

    def _visible(self) -> list[Page]:
        return [page for page in self._pages if page.visible]


class Telling:
    """Tells one page what it does not know yet; what changes while it reads is told together afterwards.

    ``send`` returns when the page's connection has taken a message. One is on its way at most, and the newest
    state waits: nothing else is kept, however slowly the page reads.
    """

    def __init__(self, send: Callable[[dict[str, Any]], Awaitable[object]]) -> None:
        self._send = send
        self._told: dict[str, Any] | None = None
        self._newest: dict[str, Any] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._next = 0.0

    def offer(self, state: dict[str, Any]) -> None:
        """Take note of the state; it is sent as soon as it may be."""
        self._newest = state
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._tell())

    def drop(self) -> None:
        """Send nothing of what waits: the page is hidden, or gone."""
        self._newest = None

    async def _tell(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._newest is not None:
            if clock() < self._next:
                await asyncio.sleep(self._next - clock())
                continue  # what is newest by now is what counts
            state, self._newest = self._newest, None
            if (message := message_of(self._told, state)) is not None:
                await self._send(message)
                self._next = clock() + APART
            self._told = state


def message_of(told: dict[str, Any] | None, state: dict[str, Any]) -> dict[str, Any] | None:
    """Return what to send to a page that was told one state, to bring it to another; None for nothing.

    >>> message_of(None, {"version": 1})
    {'kind': 'state', 'version': 1}
    """
    if told is None:
        return {"kind": "state", **state}
    found = changes(told, state)
    return {"kind": "changes", **found} if found else None
