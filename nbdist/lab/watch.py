"""Looks at everything, again and again, as long as a page is there to see it; and then no more.

pages that are visible ──► Watch ──► one look at a time, on a thread ──► what each page has not been told yet
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from nbdist.lab.state import Seen, changes

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
