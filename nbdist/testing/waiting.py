"""Waiting in the contracts: for a condition, with a limit that only a hang reaches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds until a condition counts as hanging."""
POLL_SECONDS = 0.005


def until(condition: Callable[[], object]) -> None:
    """Return when a condition is true; fail after `PATIENCE` seconds.

    >>> until(lambda: True)
    """
    deadline, pause = time.monotonic() + PATIENCE, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {PATIENCE:g} s"
        pause.wait(POLL_SECONDS)
