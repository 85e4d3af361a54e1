"""The state shared by all routes of a Jupyter server: its readers, threads, poller and pending actions.

Threads: the server has one event loop, and a disk can be slow or hang (NFS). So nothing is read on the loop:

    requests of a page (one run, a file)   ──► Service.read     ──► READERS threads
    polls for all connected pages          ──► Poller           ──► one thread, one poll at a time
    commands to sweeps                     ──► Service.command  ──► COMMAND_THREADS threads

A hanging disk blocks these threads only. Requests then fail after READ_SECONDS, and `Worker` refuses new ones
when too many wait.

Stream: `Poller` polls while at least one connected page is visible, and offers each page the newest state.
`ChangeSender` (one per page) sends the difference to the state that it sent before. It keeps one state at
most: if a page reads slowly, later states replace the waiting one, so the memory per page is bounded, and the
page skips states instead of falling behind.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from nbdist.errors import DeadlineExceededError, FailedPreconditionError, NotFoundError
from nbdist.lab.actions.manager import Actions
from nbdist.lab.state import Item, PanelState, Snapshot, changes
from nbdist.lab.tensorboard.manager import Boards
from nbdist.lab.views import Views, default_views
from nbdist.lab.worker import Worker

SERVICE = "nbdist_service"
"""The key of the `Service` in the server's settings."""


READ_SECONDS = 30.0  # limit for one request
READERS = 4  # threads for requests; polls have a thread of their own
COMMAND_THREADS = 8  # threads that write command files and wait for the answer
Result = TypeVar("Result")


class Service:
    """What all routes share; one per server. It reads nothing and starts no thread before the first request.

    ``folder`` is the working directory of action processes.
    """

    def __init__(
        self,
        make_views: Callable[[], Views] = default_views,
        folder: str | None = None,
        boards: Boards | None = None,
    ) -> None:
        self._make_views, self._views_lock = make_views, threading.Lock()
        self._cached_views: Views | None = None
        self._cached_state: PanelState | None = None
        self._readers = Worker("nbdist-read", READERS)
        self._poll_thread = Worker("nbdist-poll")
        self.poller = Poller(self._snapshot)
        self._command_threads = Worker("nbdist-command", COMMAND_THREADS)
        self.actions = Actions(self.poller.wake, folder)
        self.boards = boards or Boards()

    async def read(self, view: Callable[[Views], Result]) -> Result:
        """Return the result of ``view``, which runs on a thread."""
        return await within(READ_SECONDS, self._readers.run(lambda: view(self._views())))

    async def command(self, view: Callable[[Views], Result]) -> Result:
        """Return the result of ``view``, on a thread for commands: an answer may take seconds."""
        return await self._command_threads.run(lambda: view(self._views()))

    async def poll(self, cluster: str | None) -> dict[str, Any]:
        """Return the current state, with the tasks of one cluster."""
        return await within(READ_SECONDS, self._poll_thread.run(lambda: self._state().poll(cluster)))

    async def check(self, about: str, id: str, command: str) -> Item:
        """Return an item that accepts a command.

        Raises NotFoundError if the item does not exist, FailedPreconditionError with the reason if it does
        not accept the command now.
        """
        items: list[Item] = (await self.poll(None))[about]
        item = next((one for one in items if one["id"] == id), None)
        if item is None:
            raise NotFoundError(f"there is no {about.removesuffix('s')} {id!r} (any more)")
        if not item["can"].get(command):
            why = item["why"].get(command) or f"it does not accept the command {command!r}"
            raise FailedPreconditionError(f"{id}: {why}")
        return item

    async def close(self) -> None:
        """Cancel pending actions, end TensorBoard processes, and stop polling."""
        await asyncio.gather(self.actions.close(), self.boards.close())
        await self.poller.close()
        self._readers.close()
        self._command_threads.close()
        self._poll_thread.close()

    async def _snapshot(self, clusters: frozenset[str]) -> Snapshot:
        return await self._poll_thread.run(lambda: self._state().snapshot(clusters))

    def _views(self) -> Views:
        """Return the readers, made at the first use and on a thread: their imports take a moment."""
        with self._views_lock:
            if self._cached_views is None:
                self._cached_views = self._make_views()
            return self._cached_views

    def _state(self) -> PanelState:
        if self._cached_state is None:
            views = self._views()
            self._cached_state = PanelState(
                views.clusters, views.tasks, views.runs, views.sweeps, lambda: self.actions.pending
            )
        return self._cached_state


async def within(seconds: float, work: Awaitable[Result]) -> Result:
    """Return the result of some work; raise DeadlineExceededError if it takes longer."""
    try:
        return await asyncio.wait_for(work, seconds)
    except TimeoutError:
        raise DeadlineExceededError(
            f"reading has taken more than {seconds:g} s: the disk of nbdist's folder is slow; try again"
        ) from None


# The poller, and the sender of changes to one page.

ACTIVE_SECONDS, IDLE_SECONDS = 0.5, 2.0  # poll interval while an item changes by itself, and otherwise
MIN_SECONDS = 0.1  # between two polls, also if a page asks for one
SEND_SECONDS = 0.5  # between two messages to one page
log = logging.getLogger(__name__)


class Page(Protocol):
    """A connected page: the cluster that it has opened, and whether it is visible."""

    cluster: str | None
    visible: bool

    def offer(self, state: dict[str, Any], /) -> None:
        """Receive the newest state."""


class Poller:
    """Polls while a page is visible; all methods are called on the server's event loop.

    ``poll`` returns the state of all items and of some clusters' tasks. The next call starts only after it
    has returned.
    """

    def __init__(self, poll: Callable[[frozenset[str]], Awaitable[Snapshot]]) -> None:
        self._poll = poll
        self._pages: list[Page] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def join(self, page: Page) -> None:
        """Add a page."""
        self._pages.append(page)
        self.wake()

    def leave(self, page: Page) -> None:
        """Remove a page."""
        if page in self._pages:
            self._pages.remove(page)
            self.wake()

    def wake(self) -> None:
        """Poll as soon as `MIN_SECONDS` allow: a page's view changed, or an action began or ended."""
        self._wake.set()
        if self._visible() and not self.running:
            self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def running(self) -> bool:
        """Whether it polls now; it does not while no page is visible."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop polling, and remove all pages."""
        self._pages.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._visible():
            self._wake.clear()
            clusters = frozenset(page.cluster for page in self._visible() if page.cluster is not None)
            interval = IDLE_SECONDS
            try:
                snapshot = await self._poll(clusters)
            except Exception:
                log.exception("nbdist: polling clusters and runs failed")
            else:
                interval = ACTIVE_SECONDS if snapshot.active else IDLE_SECONDS
                for page in self._visible():
                    # A page may have opened another cluster during the poll: it is in the next one.
                    if page.cluster is None or page.cluster in clusters:
                        page.offer(snapshot.for_cluster(page.cluster))
            await asyncio.sleep(MIN_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), interval - MIN_SECONDS)

    def _visible(self) -> list[Page]:
        return [page for page in self._pages if page.visible]


class ChangeSender:
    """Sends one page the difference between the state that it has and the newest one.

    ``send`` returns when the connection has accepted a message. At most one message is being sent and one
    state waits; a newer state replaces the waiting one.
    """

    def __init__(self, send: Callable[[dict[str, Any]], Awaitable[object]]) -> None:
        self._send = send
        self._sent: dict[str, Any] | None = None
        self._newest: dict[str, Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._not_before = 0.0

    def offer(self, state: dict[str, Any]) -> None:
        """Send a state as soon as possible, unless a newer one replaces it before."""
        self._newest = state
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def drop(self) -> None:
        """Drop the waiting state: the page is hidden or closed."""
        self._newest = None

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._newest is not None:
            if clock() < self._not_before:
                await asyncio.sleep(self._not_before - clock())
                continue  # a newer state may have replaced it
            state, self._newest = self._newest, None
            if (message := message_of(self._sent, state)) is not None:
                await self._send(message)
                self._not_before = clock() + SEND_SECONDS
            self._sent = state


def message_of(sent: dict[str, Any] | None, state: dict[str, Any]) -> dict[str, Any] | None:
    """Return the message that updates a page from the state sent before; None if nothing changed.

    >>> message_of(None, {"version": 1})
    {'kind': 'state', 'version': 1}
    """
    if sent is None:
        return {"kind": "state", **state}
    found = changes(sent, state)
    return {"kind": "changes", **found} if found else None
