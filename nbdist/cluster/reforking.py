"""The keeper forks again: tasks that are dead, or are to end, get other processes under their ranks.

    client                           keeper
    end     rank: pid ─────────────► those that live are killed; from now on it is this client's turn
    fork    rank  ─────────────────► another process for the task, with its old environment
    roster  tasks ─────────────────► all clients are told (event "roster"), and it is anybody's turn

Between the first two the client waits until the hub has forgotten the old engine, which has the id that the
new one asks for. One client replaces at a time, so that two rosters never cross; one that hangs up loses its
turn, and what it has forked. A task that somebody else has replaced meanwhile is not ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from nbdist.cluster.keeper import Keeper

Reply = dict[str, Any]


class Born(BaseException):
    """Leaves the keeper's loop in a fresh child; ``become`` is what it is to be."""

    def __init__(self, become: Callable[[], None]) -> None:
        super().__init__()
        self.become = become


class Reforking:
    """Whose turn it is to replace tasks, and the roster that the last one has made."""

    def __init__(self) -> None:
        self.roster: list[dict[str, Any]] | None = None
        self._turn: tuple[socket.socket, frozenset[int]] | None = None
        self._forked: set[int] = set()  # pids of this turn
        self._dropped: set[int] = set()  # of turns that came to nothing

    def answer(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply:
        """Do what a client asks; raises Born in a child."""
        match request["request"]:
            case "end":
                pids = {int(rank): int(pid) for rank, pid in request["pids"].items()}
                return self._end(keeper, pids, client)
            case "fork":
                return self._fork(keeper, int(request["rank"]), client)
        return self._roster(keeper, request["tasks"], client)

    def leave(self, keeper: Keeper, client: socket.socket) -> None:
        """Note that a client is gone."""
        if self._turn is not None and self._turn[0] is client:
            self._drop(keeper)

    def _end(self, keeper: Keeper, pids: dict[int, int], client: socket.socket) -> Reply:
        ranks = frozenset(pids)
        known = {task["rank"] for task in keeper.plan["tasks"]}
        if keeper.deadline is not None:
            return {"error": "the cluster is ending"}
        if keeper.engine is None or not ranks <= known:
            return {"error": f"the ranks are {sorted(known)}, not {sorted(ranks)}"}
        if self._turn is not None:
            busy = ", ".join(map(str, sorted(self._turn[1])))
            return {"error": f"the task of rank {busy} is being replaced at this moment; try again"}
        living = {pid: rank for pid, rank in keeper.children.items() if rank in ranks}
        for pid, rank in living.items():
            if pid != pids[rank] and pid not in self._dropped:
                return {"error": f"the task of rank {rank} is pid {pid} by now, not {pids[rank]}"}
        self._turn = (client, ranks)
        for pid in living:  # children that are not reaped: the numbers are their own
            os.kill(pid, signal.SIGKILL)
        return {}

    def _fork(self, keeper: Keeper, rank: int, client: socket.socket) -> Reply:
        if self._turn is None or self._turn[0] is not client or rank not in self._turn[1]:
            return {"error": f"it is not this client's turn to replace rank {rank}"}
        if keeper.deadline is not None or rank in keeper.children.values():
            return {"error": f"rank {rank} lives, or the cluster is ending"}
        from nbdist.runtime.task import segment_prefix
        from nbdist.wire.shm import remove_all

        assert keeper.engine is not None
        task = next(task for task in keeper.plan["tasks"] if task["rank"] == rank)
        if rank in keeper.exits:
            remove_all(f"{segment_prefix(keeper.plan['cluster_id'])}-{keeper.exits[rank]['pid']}")
        log = f"{keeper.folder}/log/engine-{rank}.log"
        with suppress(OSError):  # how the new one ends is not to be read in the words of the old one
            os.replace(log, f"{keeper.folder}/log/engine-{rank}-before.log")
        become = keeper.fork(rank, keeper.engine(task), log)
        if become is not None:
            raise Born(become)
        self._forked.update(pid for pid, has in keeper.children.items() if has == rank)
        keeper.broadcast({"event": "forked", "pids": keeper.pids()})
        return {"outside_world": bool(keeper.seats)}

    def _roster(self, keeper: Keeper, tasks: list[dict[str, Any]] | None, client: socket.socket) -> Reply:
        """Take the new roster, or None when there is none: then the tasks stay dead."""
        if self._turn is None or self._turn[0] is not client:
            return {"error": "it is not this client's turn to replace tasks"}
        if tasks is None:
            self._drop(keeper)
            return {}
        self._turn, self.roster = None, tasks
        self._forked.clear()
        keeper.broadcast({"event": "roster", "tasks": tasks})
        return {}

    def _drop(self, keeper: Keeper) -> None:
        """End a turn that came to nothing, and what was forked in it."""
        for pid in self._forked & set(keeper.children):
            os.kill(pid, signal.SIGKILL)
        self._dropped |= self._forked
        self._forked.clear()
        self._turn = None
