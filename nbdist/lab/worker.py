"""Threads that do blocking I/O for the server's event loop, so that a slow disk never blocks the loop.

asyncio's own executor does not serve here: its threads are joined at interpreter exit, so that a read that
hangs on a file system (NFS) would keep the server from ending. These threads are daemons. And its queue is
unbounded: with a hanging disk every poll of every page would add a call. Here a full queue is an error that a
page shows.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from nbdist.errors import UnavailableError

Result = TypeVar("Result")
_Work = Callable[[], None]


class Worker:
    """Up to ``threads`` daemon threads, started when there is work for them.

    At most ``waiting`` calls wait for a thread; more are refused with `UnavailableError`.
    """

    def __init__(self, name: str, threads: int = 1, waiting: int = 64) -> None:
        self._name, self._max_threads, self._max_waiting = name, threads, waiting
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._pending = 0

    async def run(self, call: Callable[..., Result], *arguments: Any) -> Result:
        """Return what ``call(*arguments)`` returns on one of the threads, or raise what it raises.

        Cancelling the wait does not stop the call.
        """
        if self._pending >= self._max_threads + self._max_waiting:
            raise UnavailableError(
                "too many reads are waiting: the disk of nbdist's folder is slow, or does not answer"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()
        self._pending += 1

        def work() -> None:
            try:
                result, error = call(*arguments), None
            except BaseException as raised:
                result, error = None, raised
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._deliver, answer, result, error)

        self._work.put(work)
        if len(self._threads) < min(self._max_threads, self._pending):
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._serve, name=name, daemon=True))
            self._threads[-1].start()
        return await answer

    def close(self) -> None:
        """End the threads after the calls that wait."""
        for _ in self._threads:
            self._work.put(None)

    def _deliver(self, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._pending -= 1
        if answer.done():  # the wait was cancelled
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
