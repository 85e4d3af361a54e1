"""`HeldInterrupts`: a block that interrupts of this process do not cut off.

    with HeldInterrupts():
        ...                     # at its end the handler that it replaced is called, once for each interrupt

It is not always Python's own handler, which raises KeyboardInterrupt: that of a cell that awaits, or of
`asyncio.run`, cancels a task, and a user's may save something.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

MOST_HELD, HELD_SECONDS = 2, 5.0


class HeldInterrupts:
    """Holds interrupts back inside a ``with``, for the handler that it replaces.

    Where more than `MOST_HELD` have come, over `HELD_SECONDS`, the block hangs: then KeyboardInterrupt is
    raised in it. On another thread than the main one it does nothing: no interrupt comes there.
    """

    def __init__(self) -> None:
        self._came: list[float] = []
        self._before: Any = None

    def __enter__(self) -> Self:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread() and callable(before):
            self._before = before
            signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self.deliver()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._came.append(time.monotonic())
        if len(self._came) > MOST_HELD and self._came[-1] - self._came[0] >= HELD_SECONDS:
            self.deliver()
            raise KeyboardInterrupt

    def deliver(self) -> None:
        """Call the replaced handler for each interrupt that has come; raises what that raises."""
        if self._came:
            self._came.pop()
            try:
                self._before(signal.SIGINT, None)
            finally:
                self.deliver()
