"""Processes of this host that are looked at again and again, told from later ones under the same number."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

CLOCK_SECONDS = 3.0  # a process's start is known to a second or two only, where the clock is being set right
CHECK_SECONDS = 5.0  # no system gives a number that is free to another process as soon as that


class Processes:
    """Remembers processes between looks, so that a look costs a dozen microseconds each."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[tuple[int, float], tuple[psutil.Process, float] | None] = {}
        self._used: set[tuple[int, float]] = set()

    def find(self, pid: int, written: float) -> psutil.Process | None:
        """Return the process that a file of this age (seconds since 1970) names, if it lives still."""
        key, now = (pid, written), self._now()
        self._used.add(key)
        if key not in self._known:
            process = find_process(pid, written)
            self._known[key] = None if process is None else (process, now)
        known = self._known[key]
        if known is None:
            return None
        process, checked = known
        if now - checked > CHECK_SECONDS:
            self._known[key] = (process, now) if process.is_running() else None
        if self._known[key] is not None and not has_ended(process):
            return process
        self._known[key] = None  # one that is gone does not come back
        return None

    def forget_unused(self) -> None:
        """Forget those that were not asked for since the last call."""
        self._known = {key: process for key, process in self._known.items() if key in self._used}
        self._used.clear()


def find_process(pid: int, written: float | None) -> psutil.Process | None:
    """Return the process of that number, if it is one that a file written then can mean; None is any."""
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        if written is None or process.create_time() <= written + CLOCK_SECONDS:
            return process
    return None


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process is gone; one that is stopped is not, one that waits to be reaped is."""
    with suppress(psutil.Error, OSError):
        return process.status() == psutil.STATUS_ZOMBIE
    return True
