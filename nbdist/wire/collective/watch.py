"""The processes of the other ranks of this host: who has died, who is frozen."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FROZEN_SECONDS = 8.0
STOPPED = ("T", "t")


class Watch:
    """Watches processes by rank; ranks of this very process are left out."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        self._pids = {rank: pid for rank, pid in pids.items() if pid != os.getpid()}
        self._descriptors: dict[int, int] = {}
        self._stopped_since: dict[int, float] = {}
        for rank, pid in self._pids.items():
            with suppress(OSError):  # already gone, or in another namespace of processes
                self._descriptors[os.pidfd_open(pid)] = rank

    def register(self, poll: select.poll) -> None:
        """Let a poll return when one of the processes ends."""
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)

    def unseen(self) -> list[int]:
        """Return the ranks whose end will not be noticed, because no process of their id is seen here."""
        return sorted(self._pids.keys() - set(self._descriptors.values()))

    def dead(self) -> list[int]:
        """Return the ranks whose processes have ended, zombies among them."""
        poll = select.poll()
        self.register(poll)
        return sorted(self._descriptors[descriptor] for descriptor, _ in poll.poll(0))

    def frozen(self, seconds: float = FROZEN_SECONDS) -> list[int]:
        """Return the ranks that have been stopped, as by SIGSTOP, for longer than so many seconds.

        One that computes, or holds the interpreter for long, is not frozen.
        """
        now = time.monotonic()
        for rank, pid in self._pids.items():
            if _state(pid) in STOPPED:
                self._stopped_since.setdefault(rank, now)
            else:
                self._stopped_since.pop(rank, None)
        return sorted(rank for rank, since in self._stopped_since.items() if now - since > seconds)

    def close(self) -> None:
        """Watch no more."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
