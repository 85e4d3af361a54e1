"""Processes of this host that are looked at again and again, told from later ones under the same number."""

from __future__ import annotations

from contextlib import suppress

import psutil

CLOCK_SECONDS = 3.0  # a process's start is known to a second or two only, where the clock is being set right


class Processes:
    """Remembers processes between looks, so that a look costs a dozen microseconds each."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, float], psutil.Process | None] = {}
        self._used: set[tuple[int, float]] = set()

    def find(self, pid: int, written: float) -> psutil.Process | None:
        """Return the process that a file of this age (seconds since 1970) names, if it lives still."""
        key = (pid, written)
        self._used.add(key)
        process = self._known[key] if key in self._known else find_process(pid, written)
        if process is not None and not lives(process):
            process = None
        self._known[key] = process  # one that is gone does not come back
        return process

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


def lives(process: psutil.Process) -> bool:
    """Return whether a process goes on, or is stopped; one that waits to be reaped has ended."""
    with suppress(psutil.Error, OSError):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
