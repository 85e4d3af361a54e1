"""The keeper forks again: tasks that are dead, or are to end, get other processes under their ranks.

    client                           keeper
    end     ranks ─────────────────► those that live are killed; from now on it is this client's turn
    fork    rank  ─────────────────► another process for the task, with its old environment
    roster  tasks ─────────────────► all clients are told (event "roster"), and it is anybody's turn

Between the first two the client waits until the hub has forgotten the old engine, which has the id that the
new one asks for. One client replaces at a time, so that two rosters never cross; one that hangs up loses its
turn.
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

    def answer(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply:
        """Do what a client asks; raises Born in a child."""
        match request["request"]:
            case "end":
                return self._end(keeper, frozenset(map(int, request["ranks"])), client)
            case "fork":
                return self._fork(keeper, int(request["rank"]), client)
        return self._roster(keeper, request["tasks"], client)

    def leave(self, client: socket.socket) -> None:
        """Note that a client is gone."""
        if self._turn is not None and self._turn[0] is client:
            self._turn = None

    def _end(self, keeper: Keeper, ranks: frozenset[int], client: socket.socket) -> Reply:
        known = {task["rank"] for task in keeper.plan["tasks"]}
        if keeper.deadline is not None:
            return {"error": "the cluster is ending"}
        if keeper.engine is None or not ranks <= known:
            return {"error": f"the ranks are {sorted(known)}, not {sorted(ranks)}"}
        if self._turn is not None:
            busy = ", ".join(map(str, sorted(self._turn[1])))
            return {"error": f"the task of rank {busy} is being replaced at this moment; try again"}
        self._turn = (client, ranks)
        for pid, rank in keeper.children.items():
            if rank in ranks:  # a child that is not reaped: the number is its own
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
        keeper.broadcast({"event": "forked", "pids": keeper.pids()})
        return {"outside_world": bool(keeper.seats)}

    def _roster(self, keeper: Keeper, tasks: list[dict[str, Any]] | None, client: socket.socket) -> Reply:
        """Take the new roster, or None when there is none: then the tasks stay dead."""
        if self._turn is None or self._turn[0] is not client:
            return {"error": "it is not this client's turn to replace tasks"}
        ranks, self._turn = self._turn[1], None
        if tasks is not None:
            self.roster = tasks
            keeper.broadcast({"event": "roster", "tasks": tasks})
            return {}
        for pid, rank in keeper.children.items():
            if rank in ranks:
                os.kill(pid, signal.SIGKILL)
        return {}
