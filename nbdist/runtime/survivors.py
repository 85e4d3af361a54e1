"""Which other replicas are gone, as far as one of them can see: processes here, connections elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from nbdist.errors import UnavailableError
from nbdist.runtime.task import Task, TaskInfo
from nbdist.wire.collective.watch import Watch
from nbdist.wire.peers import Peer

FROZEN_SECONDS = 1.0  # for a process of this host to be stopped; those who wait have watched it for longer
SILENT_SECONDS = 8.0  # for one of another host to be out of reach; being busy does not count


class Survivors:
    """Looks after the tasks ``others`` for as long as it is open."""

    def __init__(self, task: Task, others: Sequence[TaskInfo]) -> None:
        here = [info for info in others if info.host == task.info.host]
        self._watch = Watch({info.rank: info.pid for info in here})
        self._peers = {
            info.rank: Peer(info.address, task.keys, name=info.name) for info in others if info not in here
        }

    def gone(self) -> list[int]:
        """Return the ranks that have ended, are frozen or cannot be reached."""
        return sorted({*self._watch.dead(), *self._watch.frozen(FROZEN_SECONDS), *self._unreachable()})

    def close(self) -> None:
        """Look no more."""
        self._watch.close()
        for peer in self._peers.values():
            peer.close()

    def _unreachable(self) -> list[int]:
        found = []
        for rank, peer in self._peers.items():
            try:
                peer.check(SILENT_SECONDS)
            except UnavailableError:
                found.append(rank)
        return found

    def __enter__(self) -> Survivors:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()
