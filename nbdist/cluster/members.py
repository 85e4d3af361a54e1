"""The tasks of a cluster as a client sees them: who is there now, who is gone, and how that came."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nbdist.cluster.link import CONTROLLER, KeeperLink, describe_exit
from nbdist.errors import InvalidArgumentError, TaskDiedError
from nbdist.runtime.clusterengine import forget, know
from nbdist.runtime.task import Roster, TaskInfo
from nbdist.wire.keys import ClusterKeys


class Members:
    """Follows the tasks through ``link``; ``changed`` is called before one that is new is shown."""

    def __init__(
        self, roster: Roster, keys: ClusterKeys, link: KeeperLink, changed: Callable[[], object]
    ) -> None:
        self._tasks = list(roster)
        self._meeting = threading.RLock()
        self._keys, self._link, self._changed = keys, link, changed
        for info in self._tasks:
            know(f"nbdist://{info.address}", keys)

    def now(self) -> list[TaskInfo]:
        """Return the tasks by rank, as they are now: one that was replaced, by whomever, is the new one."""
        self._link.ended()
        with self._meeting:  # one thread after another, so that none brings back what was heard before
            if self._link.roster is not None:
                self._meet(self._link.roster)
            return self._tasks

    def dead(self) -> list[TaskInfo]:
        """Return the tasks whose processes are gone."""
        tasks, ended = self.now(), self._link.ended()
        return [info for info in tasks if info.rank in ended]

    def controller_died(self) -> str | None:
        """Return how the controller ended, if it has."""
        how = self._link.ended().get(CONTROLLER)
        if how is None:
            return self._link.stopping or None  # its tasks end before it
        return describe_exit(how)

    def deaths(self, infos: Mapping[int, TaskInfo]) -> dict[int, TaskDiedError]:
        """Return what has become of those of the tasks that are gone, by rank."""
        current = {info.rank: info for info in self.now()}
        ended = self._link.ended()
        deaths = {}
        for info in infos.values():
            how = ended.get(info.rank) or ended.get(CONTROLLER)
            if info.rank not in current:
                deaths[info.rank] = TaskDiedError(
                    f"{info.name} (pid {info.pid}) has left: the cluster was made smaller"
                )
            elif current[info.rank] != info:
                deaths[info.rank] = TaskDiedError(
                    f"{info.name} (pid {info.pid}) was replaced by pid {current[info.rank].pid}"
                )
            elif how is not None:
                what = "" if info.rank in ended else "the controller of "
                deaths[info.rank] = TaskDiedError(
                    f"{what}{info.name} (pid {how['pid']}) died: {describe_exit(how)}; "
                    f"its log ended with:\n{how['log'].strip() or '(nothing)'}"
                )
        return deaths

    def ranks(self, on: int | Iterable[int] | None) -> list[int]:
        """Return the ranks that are meant, in order. Raises InvalidArgumentError for an unknown one."""
        known = [info.rank for info in self.now()]
        if on is None:
            return known
        ranks = [on] if isinstance(on, int) else sorted(set(on))
        unknown = [rank for rank in ranks if rank not in known]
        if unknown or not ranks:
            raise InvalidArgumentError(f"no task has rank {unknown or ranks}; the ranks are {known}")
        return ranks

    def status(self) -> list[dict[str, Any]]:
        """Return a row per task: rank, name, host, pid, device, address, state, and how it ended."""
        tasks, rows = self.now(), []
        ended = self._link.ended()
        for info in tasks:
            how = ended.get(info.rank)
            row = {
                "rank": info.rank,
                "name": info.name,
                "job": info.job,
                "index": info.index,
                "pid": info.pid,
            }
            row |= {"host": info.host, "device": info.device, "address": info.address}
            row |= {"state": "running" if how is None else "dead", "ended": how and describe_exit(how)}
            rows.append(row)
        return rows

    def _meet(self, heard: list[dict[str, Any]]) -> None:
        """Take the roster in which tasks have been replaced, have come or have left."""
        if [entries["incarnation"] for entries in heard] == [info.incarnation for info in self._tasks]:
            return
        self._changed()
        before = self._tasks
        self._tasks = [TaskInfo.from_dict(entries) for entries in heard]
        for old in before:
            if old not in self._tasks:
                forget(f"nbdist://{old.address}")
        for new in self._tasks:
            if new not in before:
                know(f"nbdist://{new.address}", self._keys)
