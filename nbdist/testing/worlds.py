"""Threads of this process that stand for the processes of a run."""

from __future__ import annotations

import threading
from typing import Any

from nbdist.runtime import groups
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.local import thread_group

_forming = threading.Lock()


class ThreadWorld(groups.World):
    """The place of a process among those of a run, which is a thread of this process."""

    timeout = 20.0
    """Seconds that a replica waits for the others."""

    def __init__(self, number: int, size: int, made: dict[Any, list[Collective]]) -> None:
        super().__init__(ranks=tuple(range(size)))
        self._number, self._made = number, made
        self._asked: dict[str, int] = {}

    @property
    def index(self) -> int:
        """The number of this process, from 0 on."""
        return self._number

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each process: all are here."""
        return ("here",) * len(self.ranks)

    def group(self, purpose: str, kind: str = "auto") -> Collective:
        """Return this process's end of the next group for a purpose: a group of threads, of any ``kind``."""
        number = self._asked[purpose] = self._asked.get(purpose, 0) + 1
        key = purpose, number
        with _forming:
            if key not in self._made:
                self._made[key] = thread_group([f"replica {i}" for i in self.ranks], timeout=self.timeout)
            return self._made[key][self._number]


def worlds(size: int) -> list[ThreadWorld]:
    """Return the places of all processes of a run."""
    made: dict[Any, list[Collective]] = {}
    return [ThreadWorld(i, size, made) for i in range(size)]
