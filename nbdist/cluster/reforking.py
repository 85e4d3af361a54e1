"""The keeper changes who is there: tasks get other processes under their ranks, come to be, or leave.

    client                           keeper
    end     rank: pid ─────────────► those that live are killed; from now on it is this turn's alone
    grow    tasks ─────────────────► the same for tasks that are new, with their environments
    fork    rank  ─────────────────► a process for the task, with its environment
    roster  tasks ─────────────────► all clients are told (event "roster"), and it is anybody's turn

    shrink  rank: pid ─────────────► a turn too; these tasks end when the roster without them has come

Before it forks the client waits until the hub has no engine of that rank, which is the id that the new one
asks for. There is one turn at a time, named by who takes it, so that two rosters never cross; a client that
hangs up loses its turn, and what it has forked. A task that somebody else has replaced meanwhile is not
ended. What becomes of a process that is no task (yet, or any more) only whose turn it is hears.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
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


@dataclass
class Turn:
    """Who changes what: tasks by rank that get processes, of which some are new, or that leave."""

    client: socket.socket
    name: str
    ranks: frozenset[int]
    coming: dict[int, dict[str, Any]] = field(default_factory=dict)
    leaving: bool = False
    forked: set[int] = field(default_factory=set)
    """The pids of this turn."""


class Reforking:
    """Whose turn it is to change the tasks, and the roster that the last one has made."""

    def __init__(self) -> None:
        self.roster: list[dict[str, Any]] | None = None
        self._turn: Turn | None = None
        self._dropped: set[int] = set()  # pids of turns that came to nothing

    def answer(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply:
        """Do what a client asks; raises Born in a child."""
        turn, name = self._turn, str(request["turn"])
        match request["request"]:
            case "end" | "shrink":
                return self._end(keeper, request, client)
            case "grow":
                return self._grow(keeper, request, client)
        if turn is None or turn.client is not client or turn.name != name:
            return {"error": "it is not this client's turn to change the tasks"}
        if request["request"] == "fork":
            return self._fork(keeper, turn, int(request["rank"]))
        return self._roster(keeper, turn, request["tasks"])

    def leave(self, keeper: Keeper, client: socket.socket) -> None:
        """Note that a client is gone."""
        if self._turn is not None and self._turn.client is client:
            self._drop(keeper)

    def is_task(self, keeper: Keeper, rank: int) -> bool:
        """Whether a process of that rank is a task, or is becoming one."""
        return rank in _known(keeper) or (self._turn is not None and rank in self._turn.coming)

    def _why_not(self, keeper: Keeper) -> str | None:
        if keeper.deadline is not None:
            return "the cluster is ending"
        if self._turn is not None:
            busy = ", ".join(map(str, sorted(self._turn.ranks)))
            doing = "ended" if self._turn.leaving else "started" if self._turn.coming else "replaced"
            return f"the task of rank {busy} is being {doing} at this moment; try again"
        return None

    def _end(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply:
        pids = {int(rank): int(pid) for rank, pid in request["pids"].items()}
        ranks, known = frozenset(pids), _known(keeper)
        if keeper.engine is None or not ranks <= known:
            return {"error": f"the ranks are {sorted(known)}, not {sorted(ranks)}"}
        if why := self._why_not(keeper):
            return {"error": why}
        living = {pid: rank for pid, rank in keeper.children.items() if rank in ranks}
        for pid, rank in living.items():
            if pid != pids[rank] and pid not in self._dropped:
                return {"error": f"the task of rank {rank} is pid {pid} by now, not {pids[rank]}"}
        leaving = request["request"] == "shrink"
        self._turn = Turn(client, str(request["turn"]), ranks, leaving=leaving)
        if not leaving:
            _kill(living)
        return {}

    def _grow(self, keeper: Keeper, request: dict[str, Any], client: socket.socket) -> Reply:
        coming = {int(task["rank"]): task for task in request["tasks"]}
        taken = sorted(_known(keeper) & coming.keys())
        if why := self._why_not(keeper):
            return {"error": why}
        if keeper.world is not None:
            return {"error": "an MPI world cannot add processes"}
        if keeper.engine is None or taken or min(coming) < 0:
            return {"error": f"the ranks {taken or sorted(coming)} are not free; try again"}
        self._turn = Turn(client, str(request["turn"]), frozenset(coming), coming)
        return {}

    def _fork(self, keeper: Keeper, turn: Turn, rank: int) -> Reply:
        if rank not in turn.ranks or turn.leaving:
            return {"error": f"rank {rank} is not of this turn: {sorted(turn.ranks)}"}
        if keeper.deadline is not None or rank in keeper.children.values():
            return {"error": f"rank {rank} lives, or the cluster is ending"}
        assert keeper.engine is not None
        tasks = [*turn.coming.values(), *keeper.plan["tasks"]]
        task = next(task for task in tasks if task["rank"] == rank)
        if rank in keeper.exits:
            forget_memory(keeper, keeper.exits[rank]["pid"])
        log = f"{keeper.folder}/log/engine-{rank}.log"
        with suppress(OSError):  # how the new one ends is not to be read in the words of the old one
            os.replace(log, f"{keeper.folder}/log/engine-{rank}-before.log")
        become = keeper.fork(rank, keeper.engine(task), log)
        if become is not None:
            raise Born(become)
        pid = next(pid for pid, has in keeper.children.items() if has == rank)
        turn.forked.add(pid)
        keeper.broadcast({"event": "forked", "pids": keeper.pids()})
        return {"pid": pid, "outside_world": keeper.world is not None}

    def _roster(self, keeper: Keeper, turn: Turn, tasks: list[dict[str, Any]] | None) -> Reply:
        """Take the new roster, or None when there is none: then what was forked ends."""
        if tasks is None:
            self._drop(keeper)
            return {}
        self._turn, self.roster = None, tasks
        before = [task for task in keeper.plan["tasks"] if not (turn.leaving and task["rank"] in turn.ranks)]
        keeper.plan["tasks"] = [*before, *turn.coming.values()]
        keeper.broadcast({"event": "roster", "tasks": tasks})
        if turn.leaving:
            for rank in turn.ranks & keeper.exits.keys():
                forget_memory(keeper, keeper.exits.pop(rank)["pid"])
            _kill({pid: rank for pid, rank in keeper.children.items() if rank in turn.ranks})
        return {}

    def _drop(self, keeper: Keeper) -> None:
        """End a turn that came to nothing, and what was forked in it."""
        assert self._turn is not None
        turn, self._turn = self._turn, None
        _kill(turn.forked & keeper.children.keys())
        self._dropped |= turn.forked
        for rank in turn.coming.keys() & keeper.exits.keys():
            forget_memory(keeper, keeper.exits.pop(rank)["pid"])


def _known(keeper: Keeper) -> set[int]:
    return {task["rank"] for task in keeper.plan["tasks"]}


def _kill(pids: dict[int, int] | set[int]) -> None:
    for pid in pids:  # children that are not reaped: the numbers are their own
        os.kill(pid, signal.SIGKILL)


def forget_memory(keeper: Keeper, pid: int) -> None:
    """Remove the shared segments that a process has left."""
    from nbdist.runtime.task import segment_prefix
    from nbdist.wire.shm import remove_all

    remove_all(f"{segment_prefix(keeper.plan['cluster_id'])}-{pid}")
