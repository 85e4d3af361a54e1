"""A run's tasks and outcomes, as a client that did not start the run reaches them.

`RemoteTasks` has connections of its own to a cluster's tasks, `EndedTasks` stands for those of a cluster that
has ended, and `RemoteOutcomes` fetches what bodies have returned.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbdist.cluster.cluster import Cluster
from nbdist.cluster.stacks import Stacks
from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    NbdistError,
    TaskDiedError,
    UnavailableError,
)
from nbdist.run.protocols import RunCalls, RunReplacement, RunTasks
from nbdist.run.values.outcome import MOST_BYTES, decode, read_outcome
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.frame import Frame

POLL_SECONDS = 1.0  # between two requests for the outcome of a body that has not ended
READY_SECONDS = 0.02  # likewise, of a body that has ended and encodes its outcome
CALL_TIMEOUT = 2.0
FLUSH_SECONDS = 1.0


class RemoteTasks:
    """A cluster's tasks over connections of its own: on shared ones other runs receive the messages."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.signal, self.replace, self.dead = cluster.signal, cluster.replace, cluster.dead
        self.controller_died, self.status = cluster.controller_died, cluster.status
        self.is_cut_off, self.stacks = cluster.is_cut_off, cluster.stacks
        self._making = threading.Lock()
        self._peers: dict[int, Peer] = {}
        self._closed = False

    @property
    def tasks(self) -> list[TaskInfo]:
        """The tasks of the cluster."""
        return self.cluster.tasks

    def peer(self, rank: int) -> Peer:
        """Return the connection to a task, made at the first use; all threads share it."""
        info = next((info for info in self.tasks if info.rank == rank), None)
        if info is None:
            raise UnavailableError(f"rank {rank} has left cluster {self.cluster.id}")
        with self._making:
            if self._closed:
                raise UnavailableError(f"the connection to {info.name} is closed: the run is over")
            found = self._peers.get(rank)
            if found is None or found.address != info.address:
                if found is not None:
                    found.close()
                found = self._peers[rank] = Peer(info.address, self.cluster.keys, name=info.name)
            return found

    def close(self) -> None:
        """Close the connections once their last messages are sent."""
        with self._making:
            self._closed = True
            for peer in self._peers.values():
                peer.close(FLUSH_SECONDS)


class EndedTasks:
    """Stands for the tasks of a cluster that has ended, or that a run does not need any longer.

    ``lacks_end`` is whether their hosts may still have the run's outcome: then its end is not known yet.
    """

    def __init__(self, tasks: Sequence[TaskInfo], lacks_end: bool = False) -> None:
        self.tasks, self._lacks_end = list(tasks), lacks_end

    def peer(self, rank: int) -> Peer:
        """Raise UnavailableError."""
        raise UnavailableError("the tasks of this run have ended")

    def signal(self, rank: int, signum: int) -> bool:
        """Return False: there is no process."""
        return False

    def replace(self, tasks: list[TaskInfo]) -> RunReplacement:
        """Raise UnavailableError: there is nothing to be replaced."""
        raise UnavailableError("the tasks of this run have ended")

    def dead(self) -> list[TaskInfo]:
        """Return nothing: the reason for the missing outcomes is given once for all tasks."""
        return []

    def controller_died(self) -> str | None:
        """Return None, for the same reason."""
        return None

    def is_cut_off(self) -> bool:
        """Return whether the run may have ended otherwise than it seems from here."""
        return self._lacks_end

    def status(self) -> list[dict[str, Any]]:
        """Return no rows."""
        return []

    def stacks(self, task: int, *, timeout: float) -> Stacks:
        """Raise UnavailableError."""
        raise UnavailableError("the tasks of this run have ended")


class RemoteOutcomes:
    """The outcomes of bodies that another process started: from the tasks, else from the run's folder.

    It stands for the calls of a `Run` (see `RunCalls`). ``over()`` returns the ranks whose bodies have ended.
    ``lacking(rank, known)`` returns what stands for an outcome that neither has: an error, or {} if the run
    does not need it; it is called when all other outcomes are known. A dead task's outcome may still come
    from a new process while ``is_settled()`` is false.

    The body of a task whose reservation has expired may still wait in the queue of its engine.
    ``queue(rank)`` submits a call to that engine, which does nothing; it returns None while the run may have
    an owner that sends the body. The run has never begun if all tasks have made it, and still have no body.
    ``queue`` is None for a run that has ended.
    """

    def __init__(
        self,
        run: str,
        folder: Path,
        tasks: RunTasks | None,
        workers: Sequence[TaskInfo],
        lacking: Callable[[int, Mapping[int, Any]], Any],
        is_settled: Callable[[], bool] = lambda: True,
        queue: Callable[[int], RunCalls | None] | None = None,
    ) -> None:
        self.over: Callable[[], Collection[int]] = tuple
        self._is_settled, self._queue = is_settled, queue
        self._queued: dict[int, RunCalls] = {}
        self._without_body: set[int] = set()
        self._run, self._folder, self._tasks, self._lacking = run, folder, tasks, lacking
        self._found: dict[int, Any] = {}
        self._missing: set[int] = set()
        self._pages: dict[int, bytearray] = {}
        self._asked: dict[int, float] = {}
        self._waiting = [info.rank for info in workers]

    def ready_ranks(self) -> list[int]:
        """Return the ranks whose outcome is known; fetches a page of each other one."""
        over = self.over()
        for rank in list(self._waiting):
            if self._due(rank, over):
                self._look(rank)
        if self._without_body and self._without_body == set(self._waiting) and not self._found:
            never = UnavailableError(
                f"run {self._run} has never begun: the process that started it ended after it had reserved "
                "the tasks, and before it had sent them the body. Start it again, from its cell"
            )
            for rank in list(self._waiting):
                self._settle(rank, never)
        if self._missing and not self._waiting:
            known = dict(self._found)
            self._found.update({rank: self._lacking(rank, known) for rank in sorted(self._missing)})
            self._missing.clear()
        return list(self._found)

    def expect(self, rank: int) -> RemoteOutcomes:
        """Expect the outcome of a rank's new process in place of that of the old one; return this."""
        self._found.pop(rank, None)
        self._missing.discard(rank)
        self._pages.pop(rank, None)
        self._queued.pop(rank, None)
        self._without_body.discard(rank)
        if rank not in self._waiting:
            self._waiting.append(rank)
        return self

    def outcome(self, rank: int) -> Any:
        """Return a rank's outcome, or an exception."""
        if rank not in self._found:
            raise FailedPreconditionError(f"the outcome of rank {rank} has not arrived")
        return self._found[rank]

    def _due(self, rank: int, over: Collection[int]) -> bool:
        wait = READY_SECONDS if rank in over else POLL_SECONDS
        return rank in self._pages or time.monotonic() - self._asked.get(rank, 0.0) >= wait

    def _look(self, rank: int) -> None:
        self._asked[rank] = time.monotonic()
        if self._tasks is not None and rank not in {info.rank for info in self._tasks.tasks}:
            left = TaskDiedError(f"rank {rank} of run {self._run} has left the cluster")
            self._settle(rank, self._written(rank) or left)
            return
        was_idle = self._was_idle(rank)  # before it is asked
        answer = self._ask(rank)
        if answer is not None and answer.meta["state"] == "expired":
            if was_idle:
                self._without_body.add(rank)
            elif rank not in self._queued and self._queue and (call := self._queue(rank)) is not None:
                self._queued[rank] = call
            return
        self._without_body.discard(rank)
        if answer is None:
            self._settle(rank, self._written(rank))
        elif answer.meta["state"] == "here":
            self._take(rank, answer)

    def _was_idle(self, rank: int) -> bool:
        """Whether the engine of a rank has made all calls that were in its queue."""
        if (call := self._queued.get(rank)) is None or not call.ready_ranks():
            return False
        if isinstance(call.outcome(rank), BaseException):  # it was not made: another one is submitted
            del self._queued[rank]
            return False
        return True

    def _ask(self, rank: int) -> Frame | None:
        """Return a task's answer, None if it will never have the outcome."""
        if self._tasks is None:
            return None
        if rank in {info.rank for info in self._tasks.dead()}:
            return None if self._is_settled() else Frame("run.outcome", {"state": "coming"})
        at = len(self._pages.get(rank, b""))
        try:
            answer = self._tasks.peer(rank).call(
                "run.outcome", {"run": self._run, "at": at}, timeout=CALL_TIMEOUT
            )
        except UnavailableError:  # if it is dead, that is noticed soon; else the next poll asks again
            return Frame("run.outcome", {"state": "coming"})
        except NbdistError:  # a task that has never had a run answers no such call
            return None if self._is_settled() else Frame("run.outcome", {"state": "coming"})
        unknown = ("unknown",) if self._queue else ("unknown", "expired")
        if answer.meta["state"] in unknown:  # a new process, which the run's owner prepares
            return None if self._is_settled() else Frame("run.outcome", {"state": "coming"})
        return answer

    def _take(self, rank: int, answer: Frame) -> None:
        size = int(answer.meta["size"])
        pages = self._pages.setdefault(rank, bytearray())
        pages += answer.arrays[0].tobytes()
        if size > MOST_BYTES or len(pages) > size or not answer.arrays[0].size:
            self._settle(rank, DataLossError(f"the outcome of rank {rank} does not have the size it claims"))
        elif len(pages) == size:
            try:
                self._settle(rank, decode(memoryview(pages)))
            except DataLossError as error:
                self._settle(rank, error)

    def _written(self, rank: int) -> Any:
        try:
            return read_outcome(self._folder, rank)
        except DataLossError as error:
            return error

    def _settle(self, rank: int, found: Any) -> None:
        self._waiting.remove(rank)
        self._pages.pop(rank, None)
        if found is None:
            self._missing.add(rank)
        else:
            self._found[rank] = found
