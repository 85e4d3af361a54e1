"""Finds out which processes of this host have died or are frozen, by rank."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

FROZEN_SECONDS = 8.0
STOPPED = ("T", "t")


class FreezeDetector:
    """Finds frozen processes by rank: each call reads their state in /proc.

    A stopped process (SIGSTOP, a debugger) is frozen. A process that computes, holds the interpreter lock for
    long in native code, or waits for a core is not. Ranks of this process are left out. ``clock`` returns
    seconds.
    """

    def __init__(self, pids: Mapping[int, int], clock: Callable[[], float] = time.monotonic) -> None:
        self._pids = {rank: pid for rank, pid in pids.items() if pid != os.getpid()}
        self._clock = clock
        self._stopped_since: dict[int, float] = {}

    def frozen(self, seconds: float = FROZEN_SECONDS) -> list[int]:
        """Return the ranks that polls have seen stopped for longer than ``seconds``."""
        now = self._clock()
        for rank, pid in self._pids.items():
            if _state(pid) in STOPPED:
                self._stopped_since.setdefault(rank, now)
            else:
                self._stopped_since.pop(rank, None)
        return sorted(rank for rank, since in self._stopped_since.items() if now - since > seconds)


class Watch(FreezeDetector):
    """Watches processes by rank, also for their end, by a descriptor of each, until it is closed."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        super().__init__(pids)
        self._descriptors: dict[int, int] = {}
        for rank, pid in self._pids.items():
            with suppress(OSError):  # the process has ended, or is in another PID namespace
                self._descriptors[os.pidfd_open(pid)] = rank

    def register(self, poll: select.poll) -> None:
        """Let a poll return when one of the processes ends."""
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)

    def seen(self) -> list[int]:
        """Return the ranks with a detectable end."""
        return sorted(self._descriptors.values())

    def unseen(self) -> list[int]:
        """Return the ranks whose end will not be noticed, because no process of their id is seen here."""
        return sorted(self._pids.keys() - set(self._descriptors.values()))

    def dead(self) -> list[int]:
        """Return the ranks whose processes have ended, zombies among them."""
        poll = select.poll()
        self.register(poll)
        return sorted(self._descriptors[descriptor] for descriptor, _ in poll.poll(0))

    def close(self) -> None:
        """Close the descriptors, and stop watching for ends."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
