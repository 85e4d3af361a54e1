"""Groups of tasks that do collectives together: how ranks find each other, and who takes part.

    world = World(task, ranks=(1, 2, 3), run="…", check=control.check)
    group = world.group("gradients", kind="auto")        # every rank calls it, in the same order
    group.all_reduce(x, "sum", out=x)

The cards that ranks hand each other (what a rank brings to a group) go through the first rank's Server.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbdist.errors import DeadlineExceededError, InvalidArgumentError, UnavailableError
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, find_rank
from nbdist.wire.collective.base import Collective, Member
from nbdist.wire.collective.choice import Exchange, form
from nbdist.wire.collective.local import thread_group
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_frame, error_from
from nbdist.wire.peers import Peer, Sender

LOOK_SECONDS = 0.2  # how often a waiting rank looks whether its run was aborted
PATIENCE_SECONDS = 600.0  # for ranks that are still busy with what comes before the group


@dataclass
class World:
    """The replicas of a run, as one of them sees it: tasks of these ``ranks``, in order; this is ``task``.

    Without a task it is a world of one, which needs no wire.
    """

    task: Task | None = None
    ranks: tuple[int, ...] = (0,)
    run: str = ""
    check: Callable[[], None] = lambda: None
    """Raises when the run was aborted; looked at while waiting for others."""
    kind: str = "auto"
    """The collective of the group that plain calls use."""
    _formed: dict[str, int] = field(default_factory=dict)
    _common: Collective | None = None

    @property
    def index(self) -> int:
        """This replica's place among the ranks."""
        return 0 if self.task is None else self.ranks.index(self.task.rank)

    @property
    def size(self) -> int:
        """How many replicas there are."""
        return len(self.ranks)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each replica; equal ones can share memory."""
        if self.task is None:
            return ("here",)
        return tuple(find_rank(self.task.roster, rank).host for rank in self.ranks)

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

        Every replica comes to it at the same point of its body.
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
        """Say that this replica comes to no more groups; who waits for it is told."""
        self.close()
        if self.task is not None and self.size > 1:
            with suppress(ConnectionError):  # the first rank is gone, and with it all who wait there
                self.task.peer(self.ranks[0]).send("group.ended", {"run": self.run, "rank": self.index})

    def group(self, purpose: str, kind: str = "auto") -> Collective:
        """Form a group of all replicas; every one calls it, for the same purposes in the same order.

        Raises what ``check`` raises, UnavailableError when a rank is gone, DeadlineExceededError when one
        does not come.
        """
        number = self._formed[purpose] = self._formed.get(purpose, 0) + 1
        if self.task is None or self.size == 1:
            form_alone(kind)
            return thread_group([self.task.name if self.task else "here"])[0]
        task, name = self.task, f"{self.run}/{purpose}/{number}"
        infos = [find_rank(task.roster, rank) for rank in self.ranks]
        member = Member(
            rank=self.index,
            hosts=self.hosts,
            names=tuple(info.name for info in infos),
            incarnation=int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big"),
            prefix=task.segment_prefix,
            keys=task.keys,
            bind=_host_of(task.info.address),
            check=self.check,
        )
        with Peer(infos[0].address, task.keys, name=infos[0].name) as peer:
            return form(member, self._exchange(peer, name), kind)

    def _exchange(self, peer: Peer, name: str) -> Exchange:
        rounds = 0

        def exchange(card: dict[str, Any]) -> Sequence[dict[str, Any]]:
            nonlocal rounds
            rounds += 1
            meta = {"run": self.run, "group": f"{name}/{rounds}", "rank": self.index, "size": self.size}
            peer.send("group.card", meta, (_packed(card),))
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                frame = peer.receive(LOOK_SECONDS)
                if frame is None:
                    self.check()
                elif frame.kind == "error":
                    raise error_from(frame)
                elif frame.kind == "group.cards":
                    return [_unpacked(array) for array in frame.arrays]
            raise DeadlineExceededError(
                f"not all {self.size} replicas came to {name!r} within {PATIENCE_SECONDS:.0f} s: every "
                "worker has to make the same collective calls and fits, in the same order"
            )

        return exchange


def form_alone(kind: str) -> None:
    """Refuse a kind that one replica alone cannot use."""
    if kind not in ("auto", "local"):
        raise InvalidArgumentError(f"collective {kind!r} is for several replicas, this is one alone")


class Gathering:
    """Hands the cards of all ranks of a group to each of them, once all have come; runs on a Server."""

    def __init__(self, server: Server) -> None:
        self._runs: dict[str, _Gathered] = {}
        self._name = server.name
        server.on("group.card", self._take)
        server.on("group.ended", self._end)

    def drop_run(self, run: str) -> None:
        """Forget a run, with groups of it that were never complete."""
        self._runs.pop(run, None)

    def _take(self, frame: Frame, sender: Sender) -> None:
        name, rank, size = (frame.meta[key] for key in ("group", "rank", "size"))
        gathered = self._runs.setdefault(frame.meta["run"], _Gathered())
        if not 0 <= rank < size or len(frame.arrays) != 1:
            error = InvalidArgumentError(f"rank {rank} of {size} brought {len(frame.arrays)} cards to {name}")
            _push(sender, error_frame(error, self._name))
            return
        here = gathered.waiting.setdefault(name, {})
        here[rank] = (sender, np.array(frame.arrays[0]))
        if len(here) == size:
            del gathered.waiting[name]
            cards = tuple(here[rank][1] for rank in range(size))
            for who, _ in here.values():
                _push(who, Frame("group.cards", {}, cards))
        elif missing := sorted(gathered.ended - here.keys()):
            self._refuse(gathered, name, missing[0])

    def _end(self, frame: Frame, sender: Sender) -> None:
        gathered = self._runs.setdefault(frame.meta["run"], _Gathered())
        rank = int(frame.meta["rank"])
        gathered.ended.add(rank)
        for name in [name for name, here in gathered.waiting.items() if rank not in here]:
            self._refuse(gathered, name, rank)

    def _refuse(self, gathered: _Gathered, name: str, rank: int) -> None:
        """Tell those who have come to a group that it is not to be."""
        error = UnavailableError(
            f"replica {rank} has ended its part of the run and others wait for it, in a collective call or a "
            "fit: every worker has to make the same ones, in the same order"
        )
        for who, _ in gathered.waiting.pop(name).values():
            _push(who, error_frame(error, self._name))


@dataclass
class _Gathered:
    """Of one run: by group and rank who waits with which card, and which ranks come to no more groups."""

    waiting: dict[str, dict[int, tuple[Sender, Any]]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)


def _push(sender: Sender, frame: Frame) -> None:
    with suppress(ConnectionError):  # it has died; the others learn of it in the group
        sender.push(frame)


def _packed(card: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(json.dumps(card).encode(), np.uint8)


def _unpacked(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    card = json.loads(array.tobytes())
    if not isinstance(card, dict):
        raise InvalidArgumentError(f"a card is a table of plain values, not {card!r}")
    return card


def _host_of(address: str) -> str:
    """Return the host that an address such as tcp://10.0.0.1:4567 or 10.0.0.1:4567 names."""
    return address.rpartition("://")[2].rpartition(":")[0] or "127.0.0.1"
