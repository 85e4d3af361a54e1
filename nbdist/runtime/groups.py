"""Groups of tasks for collectives: membership, rendezvous, and a new group after a death.

    world = World(task, ranks=(1, 2, 3), run="…", check=control.check)
    group = world.group("gradients", kind="auto")        # every rank calls it, in the same order
    group.all_reduce(x, "sum", out=x)
    lost = world.reform()                                # after a death: the remaining ranks form the world
    lost = world.reform(admits=world.joining())          # between two steps: new processes join them

Ranks exchange their endpoints through the Server of the first rank (see `GroupCoordinator` below).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from nbdist.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NbdistError,
    TaskDiedError,
    UnavailableError,
)
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, TaskInfo, find_rank
from nbdist.wire.collective.base import Collective, Member
from nbdist.wire.collective.local import thread_group
from nbdist.wire.collective.registry import COLLECTIVES, Exchange, form
from nbdist.wire.collective.shm.sync import ProcessMonitor
from nbdist.wire.rpc.client import Caller, Peer
from nbdist.wire.rpc.envelope import error_frame, error_from
from nbdist.wire.rpc.frame import Frame

LOOK_SECONDS = 0.2  # how often a waiting rank looks whether its run was aborted
ASK_AGAIN_SECONDS = 1.0  # after which a process that waits to join asks all tasks again
CONNECT_SECONDS = 30.0  # for the ranks of a group to connect to each other
PATIENCE_SECONDS = 600.0  # for ranks that are still busy with what comes before the group
LOOPS = "loops"  # the digest of a process that waits to join loops of one's own


def nothing_wrong() -> None:
    """Return: outside of a run nothing can abort."""


@dataclass(frozen=True)
class Departed:
    """The tasks that are not in a group which was formed again: the lost ones, and those that have left."""

    lost: list[TaskInfo]
    left: list[TaskInfo]


@dataclass
class World:
    """The replicas of a run, as one of them sees it: tasks of these ``ranks``, in order; this is ``task``.

    Without a task it is a world of one, which needs no wire.
    """

    task: Task | None = None
    ranks: tuple[int, ...] = (0,)
    run: str = ""
    check: Callable[[], None] = nothing_wrong
    """Raises when the run was aborted; looked at while waiting for others."""
    kind: str = "auto"
    """The collective of the group that plain calls use."""
    least: int = 1
    """How many replicas have to be left for training to continue after a death."""
    rejoins: bool = False
    """Whether this process joins a run that is under way, in place of a lost one or as a new worker."""
    left: bool = False
    """Whether this process has left the others, which continue."""
    enters: bool = False
    """Whether this process was admitted to the others' loops, and has made no step with them yet."""
    coordinator: GroupCoordinator | None = None
    """The coordinator on this task, which others ask to join; None if none can."""
    order: tuple[int, ...] = ()
    """The ranks in the order of the run; new ranks follow them. Empty: that of ``ranks``."""
    numbers: tuple[int, ...] = ()
    """The numbers of the ranks' replicas in the run, as of its beginning here. Empty: their places."""
    began_with: int | None = None
    """How many replicas the run began with; None: as many as there are."""
    connect_seconds: float = CONNECT_SECONDS
    """In which the ranks of the next group connect, once all have asked for it."""
    _formed: dict[str, int] = field(default_factory=dict)
    _common: Collective | None = None
    _members: dict[int, TaskInfo] = field(default_factory=dict)
    """The processes of the ranks, as of when they joined: a lost one may have been replaced since."""

    def __post_init__(self) -> None:
        """Keep the order of the ranks."""
        self.order = self.order or self.ranks

    @property
    def index(self) -> int:
        """This replica's place among the ranks."""
        return 0 if self.task is None else self.ranks.index(self.task.rank)

    @property
    def size(self) -> int:
        """How many replicas there are."""
        return len(self.ranks)

    @property
    def infos(self) -> list[TaskInfo]:
        """The task of each replica."""
        if self.task is None:
            return []
        for rank in self.ranks:
            if rank not in self._members:
                self._members[rank] = find_rank(self.task.roster, rank)
        return [self._members[rank] for rank in self.ranks]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each replica; equal ones can share memory."""
        return ("here",) if self.task is None else tuple(info.host for info in self.infos)

    @property
    def local_index(self) -> int:
        """This replica's place among those of its host."""
        hosts = self.hosts
        return hosts[: self.index].count(hosts[self.index])

    @property
    def local_size(self) -> int:
        """How many replicas this host has."""
        hosts = self.hosts
        return hosts.count(hosts[self.index])

    @property
    def common(self) -> Collective:
        """The group of plain calls such as ``nb.collective.all_reduce``; formed at the first use.

        Every replica calls it at the same point of its body.
        """
        if self._common is None:
            self._common = self.group("common", self.kind)
        return self._common

    @property
    def formed(self) -> bool:
        """Whether the group of plain calls is there."""
        return self._common is not None

    def close(self) -> None:
        """Leave the group of plain calls, if there was any."""
        if self._common is not None:
            self._common.close()
            self._common = None

    def end(self) -> None:
        """Announce that this replica joins no more groups; replicas that wait for it get an error."""
        self.close()
        if self.left:
            return
        if self.coordinator is not None and not self.rejoins:
            self.coordinator.end_joins(self.run)
        if self.task is None:
            return
        if self.enters:
            self._leave()
        elif self.size == 1:
            return
        elif self.coordinator is not None and self.task.rank == self.ranks[0]:
            self.coordinator.end_rank(self.run, self.task.rank)
        else:
            with suppress(ConnectionError):  # the first rank has ended, and the groups with it
                self.task.peer(self.ranks[0]).send("group.ended", {"run": self.run, "rank": self.task.rank})

    def _leave(self) -> None:
        """Have the others continue without this process, which was admitted and has made no step."""
        assert self.task is not None
        mine = {"ranks": [self.task.rank], "incarnations": [self.task.info.incarnation]}
        for info in self.infos:
            if info.rank != self.task.rank:
                with suppress(ConnectionError), Peer(info.address, self.task.keys, name=info.name) as peer:
                    peer.wait_connected()
                    peer.send("group.lost", {"run": self.run, **mine})

    def group(self, purpose: str, kind: str = "auto") -> Collective:
        """Form a group of all replicas; every one calls it, for the same purposes in the same order.

        Raises what ``check`` raises, TaskDiedError or UnavailableError if a rank is lost,
        DeadlineExceededError if the ranks do not connect within ``connect_seconds``, and
        FailedPreconditionError in a process that has not joined the others yet.
        """
        if self.rejoins:
            raise FailedPreconditionError(
                "the process of a replaced worker joins the others in fit(), and the body makes a collective "
                "call before it"
            )
        if self.task is None or self.size == 1:
            if kind not in ("auto", *(spec.name for spec in COLLECTIVES.values() if spec.single)):
                raise InvalidArgumentError(f"collective {kind!r} is for several replicas, this is one alone")
            return thread_group([self.task.name if self.task else "here"])[0]
        task, name, infos = self.task, self._name(purpose), self.infos
        member = Member(
            rank=self.index,
            hosts=self.hosts,
            names=tuple(info.name for info in infos),
            incarnation=int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big"),
            prefix=task.segment_prefix,
            keys=task.keys,
            bind=task.info.address.rpartition("://")[2].rpartition(":")[0] or "127.0.0.1",
            check=self.check,
        )
        with self._requests(infos[0]) as requests:
            group = form(member, self._exchange(requests, name), kind, self.connect_seconds)
        self.connect_seconds = CONNECT_SECONDS
        return group

    def exchange(self, purpose: str, values: dict[str, Any]) -> Sequence[dict[str, Any]]:
        """Return the values of all replicas, in their order; every one calls it, as it calls `group`.

        ``values`` are numbers, texts and lists of them. Raises what ``check`` raises, UnavailableError if a
        rank is lost, and DeadlineExceededError if not all call it within 10 minutes.
        """
        if self.task is None or self.size == 1:
            return [values]
        with self._requests(self.infos[0]) as requests:
            return self._exchange(requests, self._name(purpose))(values)

    def reform(self, admits: Sequence[int] = (), leaves: bool = False) -> Departed:
        """Continue with the remaining replicas, all of which call it; return the tasks without a place.

        The ranks that the first replica ``admits`` join them: they wait in :meth:`join`. A replica that
        ``leaves`` calls it as well, and is in no group afterwards. Raises TaskDiedError if fewer than
        ``least`` are left.
        """
        self.close()
        if self.task is None:
            return Departed([], [])
        name = self._name("reform")
        others = [info for info in self.infos if info.rank != self.task.rank]
        with PeerMonitor(self.task, others) as monitor:
            # All go through the ranks in one order, past those that are lost, and so meet at the same one.
            answers = (self._reform_at(first, name, admits, leaves, monitor) for first in self.infos)
            frame = next((answer for answer in answers if answer is not None), None)
        if frame is None:
            raise UnavailableError(
                "none of the replicas can be reached, and the group cannot be formed again"
            )
        if frame.kind == "error":
            raise error_from(frame)
        present, leaving = frame.meta["ranks"], frame.meta["left"]
        lost = [info for info in self.infos if info.rank not in (*present, *leaving)]
        left = [info for info in self.infos if info.rank in leaving]
        self._take(frame)
        if leaves:
            self.left = True
            return Departed(lost, left)
        if self.size < self.least:
            raise TaskDiedError(
                f"{described(lost)} lost: {self.size} workers are left, and --min-workers is {self.least}"
            )
        return Departed(lost, left)

    def joining(self, training: int, digest: str) -> list[int]:
        """Return the ranks that wait to join a training, on the first replica; none on the others.

        Those with other variables, by their ``digest``, are refused, as are those that ask for an earlier
        training, which has ended. Loops of one's own have the digest ``LOOPS``, whatever they train.
        """
        if self.coordinator is None or self.index:
            return []
        waiting = self.coordinator.joining(self.run)
        found = []
        for rank, one in waiting.items():
            if rank in self.ranks:
                continue
            if LOOPS in (one.digest, digest):
                if one.digest == digest:
                    found.append(rank)
                elif one.digest == LOOPS or one.training <= training:
                    self.coordinator.answer_join(self.run, rank, None)
                continue
            if one.training > training:
                continue
            if one.training < training:
                self.coordinator.answer_join(self.run, rank, None)
            elif one.digest != digest:
                what = "its body has built another model than the others train"
                self.coordinator.answer_join(self.run, rank, InvalidArgumentError(what))
            else:
                found.append(rank)
        return found

    def join(self, training: int, digest: str) -> bool:
        """Wait until the others admit this new process to a training; return False if that has ended.

        Runs in a process that ``rejoins``. Raises what ``check`` raises, InvalidArgumentError if the others
        train other variables, and UnavailableError if all other processes are lost.
        """
        assert self.task is not None
        meta = {
            "run": self.run,
            "rank": self.task.rank,
            "task": self.task.info.to_dict(),
            "training": training,
            "digest": digest,
        }
        peers: dict[str, Peer] = {}
        asked = 0.0
        try:
            while True:
                self.check()
                if time.monotonic() - asked > ASK_AGAIN_SECONDS:  # others may be replaced, too
                    asked = time.monotonic()
                    self._ask_all(peers, meta)
                for frame in _received(peers):
                    if frame.kind == "group.over":
                        return False
                    if frame.kind == "error":
                        raise error_from(frame)
                    if frame.kind == "group.members":
                        self.close()
                        self._take(frame)
                        self.rejoins, self.enters = False, digest == LOOPS
                        return True
        finally:
            for peer in peers.values():
                peer.close()

    def _ask_all(self, peers: dict[str, Peer], meta: dict[str, Any]) -> None:
        """Ask all other tasks of the run to join; whichever is the first replica answers."""
        assert self.task is not None
        for info in self.task.roster:
            if info.rank not in self.order or info.rank == self.task.rank:
                continue
            if self.coordinator and self.coordinator.is_lost(self.run, info):
                continue
            if info.address not in peers:
                peers[info.address] = Peer(info.address, self.task.keys, name=info.name)
            with suppress(UnavailableError):  # it has died
                peers[info.address].send("group.join", meta)
        if not peers:
            raise UnavailableError("no process is left that this one could join")

    def _take(self, members: Frame) -> None:
        """Take the members of a group that was formed again, and keep them for those that have not heard."""
        if self.coordinator is not None:
            self.coordinator.settle(self.run, members)
        if members.meta["formed"]:  # some may have failed to form a group that others have formed
            self._formed = dict(members.meta["formed"])
        if self.task is not None and self.task.rank in members.meta["ranks"]:
            tasks = [TaskInfo.from_dict(entries) for entries in members.meta["tasks"]]
            self.ranks, self._members = tuple(members.meta["ranks"]), {info.rank: info for info in tasks}

    def _reform_at(
        self, first: TaskInfo, name: str, admits: Sequence[int], leaves: bool, monitor: PeerMonitor
    ) -> Frame | None:
        """Re-form the group at the Server of ``first``; return its answer, None if it is lost."""
        assert self.task is not None
        is_here, meta = first.rank == self.task.rank, {**self._meta(name), "leaves": leaves}
        meta |= {
            "task": self.task.info.to_dict(),
            "after": self._name_of("reform", self._formed["reform"] - 1),
        }
        if is_here:
            meta |= {"admits": list(admits), "order": list(self.order), "formed": self._formed}
        deadline = time.monotonic() + PATIENCE_SECONDS
        peers: dict[str, Peer] = {}
        with self._requests(first) as requests:
            try:
                requests.send("group.reform", meta)
                while time.monotonic() < deadline:
                    frame = _answer_of(requests)
                    if frame is not None:
                        return frame
                    self.check()
                    if self._is_lost(first, monitor):
                        return _answer_of(requests)  # it may have answered just before
                    if is_here and (lost := monitor.lost()):
                        numbers = [info.incarnation for info in self.infos if info.rank in lost]
                        requests.tell("group.lost", {"run": self.run, "ranks": lost, "incarnations": numbers})
                    if is_here and first != self.infos[0]:  # which may have answered some before it died
                        for frame in self._answers_elsewhere(peers, meta, monitor):
                            if frame.kind == "error":
                                return frame
                            requests.tell("group.answered", {"run": self.run, **frame.meta})
            except UnavailableError as error:
                # One that was reached has had this time for another connection.
                waits = self.coordinator is not None and not requests.losses
                deadline = time.monotonic() + CONFIRM_SECONDS * waits
                while not self._is_lost(first, monitor):
                    self.check()
                    if time.monotonic() >= deadline:
                        raise UnavailableError(
                            f"{error}. The replicas do not form their group again without it as long as it "
                            "may live, because two parts of them would train apart: check the network "
                            "between the hosts"
                        ) from None
                    time.sleep(LOOK_SECONDS)
                return None
            finally:
                for other in peers.values():
                    other.close()
        raise self._too_late(name)

    def _answers_elsewhere(
        self, peers: dict[str, Peer], meta: dict[str, Any], monitor: PeerMonitor
    ) -> list[Frame]:
        """Return what others have received as the answer to this rank's request to form the group again."""
        assert self.task is not None
        asked = {key: meta[key] for key in ("run", "group", "rank", "after")}
        for info in self.infos:
            if info.rank == self.task.rank or self._is_lost(info, monitor):
                continue
            if info.address not in peers:
                peers[info.address] = Peer(info.address, self.task.keys, name=info.name)
            with suppress(UnavailableError):  # it has died
                peers[info.address].send("group.answer", asked)
        return [frame for frame in _received(peers) if frame.kind in ("error", "group.members")]

    def _is_lost(self, info: TaskInfo, monitor: PeerMonitor) -> bool:
        """Return whether a process is certainly lost: on this host, or as the client has found."""
        if self.coordinator is not None and self.coordinator.is_lost(self.run, info):
            return True
        return info.rank in monitor.lost_here()

    def _requests(self, first: TaskInfo) -> _Requests:
        task = self.task
        assert task is not None
        return _Requests(lambda: Peer(first.address, task.keys, name=first.name))

    def _name(self, purpose: str) -> str:
        number = self._formed[purpose] = self._formed.get(purpose, 0) + 1
        return self._name_of(purpose, number)

    def _name_of(self, purpose: str, number: int) -> str:
        return f"{self.run}/{purpose}/{number}"

    def _meta(self, name: str) -> dict[str, Any]:
        assert self.task is not None
        return {"run": self.run, "group": name, "rank": self.task.rank, "ranks": list(self.ranks)}

    def _exchange(self, requests: _Requests, name: str) -> Exchange:
        rounds = 0

        def exchange(endpoint: dict[str, Any]) -> Sequence[dict[str, Any]]:
            nonlocal rounds
            rounds += 1
            requests.send("group.endpoint", self._meta(f"{name}/{rounds}"), (_packed(endpoint),))
            frame = self._receive(requests, "group.endpoints", name)
            return [_unpacked(array) for array in frame.arrays]

        return exchange

    def _receive(self, requests: _Requests, kind: str, name: str) -> Frame:
        """Return the answer that all ranks receive together."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            frame = requests.receive()
            if frame is None:
                self.check()
            elif frame.kind == "error":
                raise error_from(frame)
            elif frame.kind == kind:
                return frame
        raise self._too_late(name)

    def _too_late(self, name: str) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"not all {self.size} replicas joined {name!r} within {PATIENCE_SECONDS:.0f} s: every worker "
            "has to make the same collective calls and fits, in the same order"
        )


def described(infos: Sequence[TaskInfo]) -> str:
    """Return tasks as the beginning of a sentence: their names, and "is" or "are"."""
    names = ", ".join(f"{info.name} (pid {info.pid})" for info in infos)
    return f"{names} {'is' if len(infos) == 1 else 'are'}"


class _Requests:
    """Requests to the task that answers all ranks; ``connect`` makes a connection to it.

    A request is sent again when the connection was lost, since it or its answer may be lost with it: the
    task answers it once more. That ends with UnavailableError when no new connection is made within
    `CONFIRM_SECONDS`, or after `MAX_LOSSES` lost ones; at once if the first one cannot be made.
    """

    def __init__(self, connect: Callable[[], Peer]) -> None:
        self._connect, self._peer = connect, connect()
        self._request: Callable[[Peer], None] = lambda peer: None
        self.losses = 0
        """How often a connection was lost."""
        self._deadline, self._lost = math.inf, UnavailableError()

    def send(self, kind: str, meta: dict[str, Any], arrays: Sequence[Array] = ()) -> None:
        """Send a request, after the answer to the one before."""
        self._request = lambda peer: peer.send(kind, meta, arrays)
        self._request(self._peer)

    def tell(self, kind: str, meta: dict[str, Any]) -> None:
        """Send what needs no answer and is sent again anyway."""
        self._peer.send(kind, meta)

    def receive(self) -> Frame | None:
        """Return an answer; None if none arrives within `LOOK_SECONDS`, or the request was sent again."""
        try:
            frame = self._peer.receive(LOOK_SECONDS)
        except UnavailableError as error:
            if not (self._peer.authenticated or self.losses):
                raise
            if self._peer.authenticated:
                self.losses, self._lost = self.losses + 1, error
                self._deadline = time.monotonic() + CONFIRM_SECONDS
            self._peer.close()
            self._peer, frame = self._connect(), None
            self._request(self._peer)
        is_late = not self._peer.authenticated and time.monotonic() > self._deadline
        if is_late or self.losses > MAX_LOSSES:
            raise self._lost
        return frame

    def __enter__(self) -> _Requests:
        return self

    def __exit__(self, *error: object) -> None:
        self._peer.close()


def _answer_of(requests: _Requests) -> Frame | None:
    """Return the answer to a request to form the group again, if it arrives within a moment."""
    frame = requests.receive()
    return frame if frame is not None and frame.kind in ("error", "group.members") else None


def _received(peers: dict[str, Peer]) -> list[Frame]:
    """Return what has arrived from some peers after a short wait; drop those that have died."""
    found = []
    for address, peer in list(peers.items()):
        try:
            frame = peer.receive(LOOK_SECONDS / len(peers))
        except UnavailableError:
            peers.pop(address).close()
            continue
        if frame is not None:
            found.append(frame)
    if not peers:
        time.sleep(LOOK_SECONDS)
    return found


def _packed(endpoint: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(json.dumps(endpoint).encode(), np.uint8)


def _unpacked(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    endpoint = json.loads(array.tobytes())
    if not isinstance(endpoint, dict):
        raise InvalidArgumentError(f"an endpoint is a table of plain values, not {endpoint!r}")
    return endpoint


# Rendezvous of a run's tasks: a service on the Server of the first task.
#
#     replica                                     service
#     group.endpoint  run, group, endpoint ─────► group.endpoints (pushed to all), once all ranks have joined
#     group.reform    run, group, leaves ───────► group.members (pushed to all): the ranks that are left, and
#                                                 those that the first rank admits; apart, those that leave
#     group.join      run, rank, training ──────► group.members once it is admitted; group.over if that
#                                                 training has ended; an error if its model is another one
#     group.answer    run, group ───────────────► group.members if this task has that answer already
#     group.answered  run, group, ranks ────────► this is the answer to all that ask for that group here
#     group.lost      run, ranks, incarnations ─► these processes are lost, as another rank has found
#     group.ended     run, rank ────────────────► this rank joins no more groups: ranks that wait get an error
#
# A connection may be reset with a request or its answer on it. The rank sends the request again
# (`_Requests`), and the service, which keeps its last answers, gives the same one. A rank that gives up, and
# forms the group again, ends the wait of those that have come to a group without it: they do the same.
#
# A new process asks every task to join, because it does not know which one is the first now. The first
# replica sees the request on its training thread (`World.joining`), and says with its next update that the
# group changes; all replicas then re-form it before the step that follows (see distribute/all_reduce.py).
#
# The task that answers may die when some have its answer and others have not. So each task keeps the last one
# (`settle`), and gives it to whichever asks again: a new process that asks to join, and ranks that have gone
# on to form the group again at the next task. That one asks the ranks that do not come for their answer.
# Otherwise those that have the answer, and wait in the new group, and the others would wait for each other.
#
# Ranks are those of tasks.

Array = np.ndarray[Any, Any]
KEPT_RUNS = 64  # that have ended and are remembered
CONFIRM_SECONDS = 5.0  # in which a rank that cannot be reached is again, or the client says that it is lost
MAX_LOSSES = 3  # lost connections on which one rank's request, or its answer, may have been


@dataclass(frozen=True)
class JoinRequest:
    """What a new process asks for: a training by its number, for variables with this digest."""

    training: int
    digest: str
    task: dict[str, Any]
    sender: Caller

    @property
    def incarnation(self) -> int:
        """The incarnation of the new process."""
        return int(self.task["incarnation"])


class GroupCoordinator:
    """Lets the ranks of a group find each other; all calls come from the Server's thread."""

    def __init__(self, server: Server) -> None:
        self._runs: dict[str, _Run] = {}
        self._past: deque[str] = deque(maxlen=KEPT_RUNS)
        self._name, self._server = server.name, server
        for kind, handler in (
            ("group.endpoint", self._endpoint),
            ("group.reform", self._reform),
            ("group.answer", self._find_answer),
            ("group.answered", self._take_answer),
            ("group.lost", self._mark_lost),
            ("group.ended", self._ended),
            ("group.join", self._join),
        ):
            server.on(kind, partial(self._dispatch, handler))

    def lose(self, run: str, ranks: list[int], incarnations: Sequence[int] = ()) -> None:
        """Record lost tasks of a run: it re-forms without them, and groups with them are refused.

        The loss of a process that another one has replaced in the run is old news.
        """
        here = self._of(run)
        for rank, incarnation in zip(ranks, incarnations or [0] * len(ranks), strict=True):
            here.dead.add(incarnation)
            if incarnation in (0, here.admitted.get(rank, incarnation)):
                here.lost.add(rank)
            if rank in here.joins and incarnation in (0, here.joins[rank].incarnation):
                del here.joins[rank]
        self._check(here)

    def restore(self, run: str, rank: int) -> None:
        """Record that a lost task of a run has a new process."""
        if run in self._runs:
            self._runs[run].lost.discard(rank)

    def lost(self, run: str) -> list[int]:
        """Return the lost ranks of a run, as far as known here."""
        return sorted(self._runs[run].lost) if run in self._runs else []

    def is_lost(self, run: str, info: TaskInfo) -> bool:
        """Return whether a process of a run was reported as lost. May be called on any thread."""
        return run in self._runs and info.incarnation in self._runs[run].dead

    def settle(self, run: str, members: Frame) -> None:
        """Record the group that this task is in now, or has left: its processes do not wait to join it.

        ``members`` is the answer, which this task gives to those that have not received it. From any thread.
        """
        here = self._of(run)
        for task in members.meta["tasks"]:
            rank, incarnation = task["rank"], task["incarnation"]
            here.admitted[rank] = incarnation
            (here.lost.add if incarnation in here.dead else here.lost.discard)(rank)
            request = here.joins.get(rank)
            if request is not None and request.incarnation == incarnation:
                here.joins.pop(rank, None)
        here.settled = members
        self._server.post(partial(self._answer_waiting, here))

    def joining(self, run: str) -> dict[int, JoinRequest]:
        """Return the processes that wait to join a run, by rank. May be called on any thread."""
        return self._runs[run].joins.copy() if run in self._runs else {}

    def answer_join(self, run: str, rank: int, error: NbdistError | None) -> None:
        """Refuse to admit a process: with an error, or because the training has ended. From any thread."""
        self._server.post(partial(self._answer_join, self._of(run), rank, error))

    def end_joins(self, run: str) -> None:
        """Record that this task's part of a run has ended: no process joins it. From any thread."""
        here = self._of(run)
        here.joinable = False  # before the look at those that wait: `_join` does both the other way round
        for rank in list(here.joins):
            self._server.post(partial(self._answer_join, here, rank, None))

    def end_rank(self, run: str, rank: int) -> None:
        """Record that a rank's part of a run has ended: it joins no more groups. From any thread."""
        here = self._of(run)
        here.over.add(rank)
        if here.groups or here.reforms:  # else no rank waits
            self._server.post(partial(self._check, here))

    def drop_run(self, run: str) -> None:
        """Drop a run, with its incomplete groups; a rank that joins later gets an error."""
        self._runs.pop(run, None)
        self._past.append(run)

    def _dispatch(self, handler: Callable[[Frame, Caller], None], frame: Frame, sender: Caller) -> None:
        run = str(frame.meta["run"])
        if run not in self._past:
            handler(frame, sender)
        elif frame.kind == "group.join":
            _push(sender, Frame("group.over"))
        elif frame.kind in ("group.endpoint", "group.reform"):
            _push(sender, self._failure(AbortedError(f"run {run} has ended without this replica")))

    def _endpoint(self, frame: Frame, sender: Caller) -> None:
        here, name = self._of(frame.meta["run"]), str(frame.meta["group"])
        rank, ranks = int(frame.meta["rank"]), tuple(frame.meta["ranks"])
        if rank not in ranks or len(frame.arrays) != 1:
            what = f"rank {rank} of {list(ranks)} sent {len(frame.arrays)} endpoints for {name}"
            _push(sender, error_frame(InvalidArgumentError(what), self._name))
            return
        if name == here.endpoints[0]:
            _push(sender, here.endpoints[1])
            return
        group = here.groups.setdefault(name, _Group(ranks))
        group.arrived[rank] = (sender, np.array(frame.arrays[0]))
        self._check_group(here, name)

    def _check_group(self, here: _Run, name: str) -> None:
        group = here.groups[name]
        missing = set(group.ranks) - group.arrived.keys()
        if not missing:
            endpoints = tuple(group.arrived[rank][1] for rank in group.ranks)
            here.endpoints = name, Frame("group.endpoints", {}, endpoints)
            self._answer(here.groups.pop(name), here.endpoints[1])
        elif lost := sorted(missing & here.lost):
            error = TaskDiedError(f"the task of rank {lost[0]} has died")
            self._answer(here.groups.pop(name), self._failure(error))
        elif over := sorted(missing & here.over):
            self._answer(here.groups.pop(name), self._failure(_over(over[0])))
        elif elsewhere := sorted(missing & {rank for one in here.reforms.values() for rank in one.arrived}):
            what = f"the task of rank {elsewhere[0]} has failed, and forms the group again"
            self._answer(here.groups.pop(name), self._failure(UnavailableError(what)))

    def _reform(self, frame: Frame, sender: Caller) -> None:
        here, name = self._of(frame.meta["run"]), str(frame.meta["group"])
        rank, ranks = int(frame.meta["rank"]), tuple(frame.meta["ranks"])
        incarnation = int(frame.meta["task"]["incarnation"])
        if rank in here.lost and here.admitted.get(rank, incarnation) == incarnation:
            _push(sender, self._left_out(rank))
            return
        if (answer := self._known(here, rank, name, frame.meta["after"])) is not None:
            _push(sender, answer)
            return
        reform = here.reforms.setdefault(name, _Group(ranks, after=str(frame.meta["after"])))
        reform.arrived[rank] = (sender, np.empty(0, np.uint8))
        reform.tasks[rank] = frame.meta["task"]
        if frame.meta.get("leaves"):
            reform.leaving.add(rank)
        if "admits" in frame.meta:  # of the first rank
            reform.first = frame.meta
        self._check(here)

    def _check_reform(self, here: _Run, name: str) -> None:
        reform = here.reforms[name]
        missing = set(reform.ranks) - reform.arrived.keys() - here.lost - here.joins.keys()
        if over := sorted(missing & here.over):
            self._answer(here.reforms.pop(name), self._failure(_over(over[0])))
        elif not missing:
            here.settled = self._members(here, name, reform)
            self._answer(here.reforms.pop(name), here.settled)

    def _members(self, here: _Run, name: str, reform: _Group) -> Frame:
        """Return the ranks of the new group; those that the first rank admits are answered, too."""
        members = set(reform.arrived) - reform.leaving
        for rank in reform.first.get("admits", ()):
            if rank in here.joins and rank not in members:
                members.add(rank)
                request = here.joins.pop(rank)
                reform.arrived[rank] = (request.sender, np.empty(0, np.uint8))
                reform.tasks[rank] = request.task
                here.admitted[rank] = request.incarnation
                here.lost.discard(rank)
        place = {rank: number for number, rank in enumerate(reform.first.get("order", reform.ranks))}
        ranks = sorted(members, key=lambda rank: (place.get(rank, len(place)), rank))
        formed, left = reform.first.get("formed", {}), sorted(reform.leaving)
        tasks = [reform.tasks[rank] for rank in ranks]
        meta = {"group": name, "ranks": ranks, "tasks": tasks, "formed": formed, "left": left}
        return Frame("group.members", meta)

    def _known(self, here: _Run, rank: int, name: str, after: str) -> Frame | None:
        """Return the answer to a rank's request to form the group again, if this task has it already.

        The request names the one before it, in which the rank was: an error if this task was in another.
        """
        if here.settled is None:
            return None
        meta = here.settled.meta
        if rank in (*meta["ranks"], *meta["left"]):
            return here.settled if meta["group"] == name else None
        return self._left_out(rank) if meta["group"] in (name, after) else None

    def _answer_waiting(self, here: _Run) -> None:
        """Give the answer that this task has received to those that have come here without it."""
        for name, reform in list(here.reforms.items()):
            for rank, (sender, _) in list(reform.arrived.items()):
                if (answer := self._known(here, rank, name, reform.after)) is not None:
                    del reform.arrived[rank]
                    _push(sender, answer)
            if not reform.arrived:
                here.reforms.pop(name)

    def _find_answer(self, frame: Frame, sender: Caller) -> None:
        here, rank = self._of(frame.meta["run"]), int(frame.meta["rank"])
        answer = self._known(here, rank, str(frame.meta["group"]), str(frame.meta["after"]))
        if answer is not None:
            _push(sender, answer)

    def _take_answer(self, frame: Frame, sender: Caller) -> None:
        here, name = self._of(frame.meta["run"]), str(frame.meta["group"])
        if name in here.reforms:
            here.settled = Frame("group.members", frame.meta)
            self._answer(here.reforms.pop(name), here.settled)

    def _left_out(self, rank: int) -> Frame:
        what = f"the others have continued without rank {rank}, which did not answer"
        return self._failure(UnavailableError(what))

    def _join(self, frame: Frame, sender: Caller) -> None:
        run, rank = str(frame.meta["run"]), int(frame.meta["rank"])
        here = self._of(run)
        if not here.joinable:
            _push(sender, Frame("group.over"))
            return
        task = dict(frame.meta["task"])
        if here.admitted.get(rank) == task["incarnation"]:  # it asked before it had the answer
            if here.settled is not None and task in here.settled.meta["tasks"]:
                _push(sender, here.settled)
            return
        here.over.discard(rank)
        here.joins[rank] = JoinRequest(int(frame.meta["training"]), str(frame.meta["digest"]), task, sender)
        if not self._of(run).joinable:  # by now
            self._answer_join(here, rank, None)
        for name in list(here.reforms):
            self._check_reform(here, name)

    def _answer_join(self, here: _Run, rank: int, error: NbdistError | None) -> None:
        request = here.joins.pop(rank, None)
        if request is not None:
            _push(request.sender, Frame("group.over") if error is None else self._failure(error))

    def _mark_lost(self, frame: Frame, sender: Caller) -> None:
        self.lose(str(frame.meta["run"]), list(frame.meta["ranks"]), frame.meta.get("incarnations", ()))

    def _ended(self, frame: Frame, sender: Caller) -> None:
        here = self._of(frame.meta["run"])
        here.over.add(int(frame.meta["rank"]))
        self._check(here)

    def _check(self, here: _Run) -> None:
        for name in list(here.groups):
            self._check_group(here, name)
        for name in list(here.reforms):
            self._check_reform(here, name)

    def _of(self, run: str) -> _Run:
        return self._runs.setdefault(str(run), _Run())

    def _failure(self, error: NbdistError) -> Frame:
        return error_frame(error, self._name)

    @staticmethod
    def _answer(group: _Group, frame: Frame) -> None:
        for sender, _ in group.arrived.values():
            _push(sender, frame)


@dataclass
class _Group:
    ranks: tuple[int, ...]
    arrived: dict[int, tuple[Caller, Array]] = field(default_factory=dict)
    tasks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The processes that have arrived to form the group again, as `TaskInfo.to_dict` describes them."""
    after: str = ""
    """The name of the request to form the group again before this one."""
    leaving: set[int] = field(default_factory=set)
    """Ranks that have arrived, and are not in the new group."""
    first: dict[str, Any] = field(default_factory=dict)
    """What the first rank says of a new group: the ranks that it admits, their order, the groups so far."""


@dataclass
class _Run:
    groups: dict[str, _Group] = field(default_factory=dict)
    reforms: dict[str, _Group] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Ranks without a process in the group."""
    dead: set[int] = field(default_factory=set)
    """Incarnations that were lost, also of ranks that have another process now."""
    over: set[int] = field(default_factory=set)
    """Ranks whose part of the run has ended."""
    joins: dict[int, JoinRequest] = field(default_factory=dict)
    """New processes that wait to join."""
    admitted: dict[int, int] = field(default_factory=dict)
    """The incarnations of the processes in the group, by rank, since it was formed again."""
    endpoints: tuple[str, Frame] = ("", Frame(""))
    """The name of the last group that is complete, and its endpoints."""
    settled: Frame | None = None
    """The last answer to a request to form the group again, as this task has given or received it."""
    joinable: bool = True
    """Whether this task's part of the run is still under way."""


def _over(rank: int) -> UnavailableError:
    return UnavailableError(
        f"the task of rank {rank} has ended its part of the run and others wait for it, in a collective call "
        "or a fit: every worker has to make the same ones, in the same order"
    )


def _push(sender: Caller, frame: Frame) -> None:
    with suppress(ConnectionError):  # it has died; the other ranks find that out in the group
        sender.push(frame)


# Failure detection of peers: by process on this host, by connection on other hosts.

# For a process of this host to be stopped while a group is formed again; ranks that waited have watched it
# for longer.
PEER_FROZEN_SECONDS = 1.0
SILENT_SECONDS = 8.0  # for one of another host to be out of reach; being busy does not count


class PeerMonitor:
    """Detects failures of the tasks ``others`` as long as it is open."""

    def __init__(self, task: Task, others: Sequence[TaskInfo]) -> None:
        here = [info for info in others if info.host == task.info.host]
        self._watch = ProcessMonitor({info.rank: info.pid for info in here})
        self._keys, self._away = task.keys, {info.rank: info for info in others if info not in here}
        self._peers = {rank: self._connect(rank) for rank in self._away}

    def lost(self) -> list[int]:
        """Return the ranks that have ended, are frozen or cannot be reached."""
        return sorted({*self.lost_here(), *self._unreachable()})

    def lost_here(self) -> set[int]:
        """Return the ranks on this host that have ended or are frozen."""
        return {*self._watch.dead(), *self._watch.frozen(PEER_FROZEN_SECONDS)}

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()
        for peer in self._peers.values():
            peer.close()

    def _connect(self, rank: int) -> Peer:
        info = self._away[rank]
        return Peer(info.address, self._keys, name=info.name)

    def _unreachable(self) -> list[int]:
        found = []
        for rank, peer in list(self._peers.items()):
            try:
                peer.check(SILENT_SECONDS)
            except UnavailableError:
                if peer.authenticated:  # its connection is lost: its process, too, if it makes no other
                    peer.close()
                    self._peers[rank] = self._connect(rank)
                else:
                    found.append(rank)
        return found

    def __enter__(self) -> PeerMonitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
