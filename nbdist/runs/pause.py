"""The pause between two looks at a run, which ends early when there is something to see."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress


class Pause:
    """Who follows a run rests in it, on a thread or on a loop; ``wake`` ends the rest, from any thread.

    >>> pause = Pause()
    >>> pause.wake()  # while nobody rests: the next rest is none
    >>> pause.rest(60.0)
    """

    def __init__(self) -> None:
        self._woken = threading.Event()
        self._tell: Callable[[], object] = lambda: None

    def wake(self) -> None:
        """End the rest of this moment, or the next one."""
        self._woken.set()
        with suppress(RuntimeError):  # the loop has ended, and nobody rests on it
            self._tell()

    def rest(self, seconds: float) -> None:
        """Rest on this thread."""
        self._woken.wait(seconds)
        self._woken.clear()  # before the next look, which sees whatever it was

    async def rest_on_loop(self, seconds: float) -> None:
        """Rest while this thread's event loop goes on."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        timer = loop.call_later(seconds, end)
        self._tell = lambda: loop.call_soon_threadsafe(end)
        if self._woken.is_set():
            end()
        try:
            await over
        finally:
            timer.cancel()
            self._tell = lambda: None
            self._woken.clear()
