"""Replicas on threads of this process that stand for the processes of a run."""

from __future__ import annotations

import threading
from typing import Any

from nbdist.runtime import groups
from nbdist.wire.collective.base import Collective
from nbdist.wire.collective.local import thread_group


class ThreadWorld(groups.World):
    """A replica on a thread of this process that stands for a process."""

    timeout = 20.0  # seconds that a replica waits for the others

    def __init__(self, number: int, size: int, made: dict[Any, list[Collective]]) -> None:
        super().__init__(ranks=tuple(range(size)))
        self._number, self._made, self._asked, self._lock = number, made, {}, threading.Lock()

    @property
    def index(self) -> int:
        return self._number

    @property
    def hosts(self) -> tuple[str, ...]:
        return ("here",) * len(self.ranks)

    def group(self, purpose: str, kind: str = "auto") -> Collective:
        number = self._asked[purpose] = self._asked.get(purpose, 0) + 1
        key = purpose, number
        names = [f"replica {i}" for i in self.ranks]
        return self._made.setdefault(key, thread_group(names, timeout=self.timeout))[self._number]


def worlds(size: int) -> list[ThreadWorld]:
    made: dict[Any, list[Collective]] = {}
    return [ThreadWorld(i, size, made) for i in range(size)]
