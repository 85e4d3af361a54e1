"""Waiting in the contracts: for a condition or for threads, with a limit that only a hang reaches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""Seconds until a condition or a thread counts as hanging."""
POLL_SECONDS = 0.005


def until(condition: Callable[[], object]) -> None:
    """Return when a condition is true; fail after `PATIENCE` seconds.

    >>> until(lambda: True)
    """
    deadline, pause = time.monotonic() + PATIENCE, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {PATIENCE:g} s"
        pause.wait(POLL_SECONDS)


def together(
    count: int,
    work: Callable[[int], Any],
    name: Callable[[int], str] = "replica {}".format,
    seconds: float = PATIENCE,
) -> list[Any]:
    """Return what ``work(i)`` returns or raises, run in as many threads.

    ``name(i)`` tells a thread that has not ended after so many seconds.
    """
    results: list[Any] = [None] * count

    def run(index: int) -> None:
        try:
            results[index] = work(index)
        except BaseException as error:
            results[index] = error

    # A thread that hangs does not keep the process alive.
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for number, thread in enumerate(threads):
        thread.join(seconds)
        assert not thread.is_alive(), f"{name(number)} hangs"
    return results
