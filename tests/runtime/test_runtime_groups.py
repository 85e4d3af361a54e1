"""The world of a run's ranks: a task that dies while it answers leaves none that waits for another."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from waiting import PATIENCE, limit, until

from nbdist.errors import UnavailableError
from nbdist.runtime import groups
from nbdist.runtime.groups import GroupCoordinator, World
from nbdist.runtime.server import Server
from nbdist.runtime.task import Task, TaskInfo, host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc import client
from nbdist.wire.shm import remove_all

RUN, SIZE = "r", 4


class Died(Exception):
    """Ends a rank's thread."""


class Rank:
    """A rank of a run: a task with a Server, whose body is a thread of this process."""

    def __init__(self, rank: int, keys: ClusterKeys) -> None:
        self.server = Server({"worker": {rank: "127.0.0.1:0"}}, "worker", rank, keys=keys)
        self.coordinator = GroupCoordinator(self.server)
        self.info = TaskInfo(
            "worker", rank, rank, host_identity(), os.getpid(), self.server.address, "CPU:0",
            self.server.incarnation,
        )  # fmt: skip
        self.task: Task
        self.world: World
        self.died = threading.Event()
        self.outcome: int | str = "waits"
        self._thread = threading.Thread(target=self._run, daemon=True)

    def place(self, roster: tuple[TaskInfo, ...], ranks: tuple[int, ...]) -> None:
        """Take a place in the run: in its group, or as a new process that joins it."""
        joins = self.info.rank not in ranks
        self.task = Task(self.info, roster, self.server, self.server.keys, "groups")
        self.world = World(
            self.task, tuple(range(SIZE)) if joins else ranks, RUN, self._check,
            kind="shm", rejoins=joins, coordinator=self.coordinator, order=tuple(range(SIZE)),
        )  # fmt: skip

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.died.set()
        self._thread.join(PATIENCE)
        self.task.close()

    def joined(self) -> int | str:
        """Return with how many ranks it is in a group, or the error that it got."""
        self._thread.join(PATIENCE)
        return self.outcome

    def _check(self) -> None:
        if self.died.is_set():
            raise Died

    def _run(self) -> None:
        world = self.world
        try:
            if world.rejoins:
                assert world.join(1, "d")
            else:
                world.reform(world.joining(1, "d") if world.index == 0 else ())
            while True:
                try:
                    with world.group("gradients") as group:
                        self.outcome = int(group.all_reduce(np.ones(1), "sum")[0])
                    return
                except UnavailableError:
                    world.reform()
        except Died:
            self.outcome = "died"
        except UnavailableError as error:
            self.outcome = str(error)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rank]]:
    monkeypatch.setattr(groups, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(groups, "ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(client, "CONNECT_SECONDS", limit(0.5))
    keys = ClusterKeys.create()
    found = [Rank(rank, keys) for rank in range(SIZE)]
    yield found
    for one in found:
        one.end()
    remove_all("groups")


def answer_some(
    ranks: Sequence[Rank], answered: set[int], monkeypatch: pytest.MonkeyPatch, lost: Sequence[int] = ()
) -> None:
    """Have the chief die as soon as it has answered some ranks, and the client report that to all.

    The ``lost`` ones have died before, which it has reported too.
    """
    chief, *others = ranks

    def answer(group: groups._Group, frame: groups.Frame) -> None:
        for rank in lost:
            ranks[rank].died.set()
            ranks[rank].server.close()
        for one in others:
            one.coordinator.lose(RUN, list(lost), [ranks[rank].info.incarnation for rank in lost])
        for rank in answered:
            groups._push(group.arrived[rank][0], frame)
            until(lambda rank=rank: ranks[rank].coordinator._of(RUN).settled == frame)  # type: ignore[misc]
        chief.died.set()
        chief.server.close()
        for one in others:
            one.server.post(partial(one.coordinator.lose, RUN, [0], [chief.info.incarnation]))

    monkeypatch.setattr(chief.coordinator, "_answer", answer)


def start(ranks: Sequence[Rank], new: int) -> None:
    """Start a new process, and the others when the chief knows that it waits."""
    ranks[new].start()
    until(lambda: new in ranks[0].coordinator.joining(RUN))
    for one in ranks:
        if one is not ranks[new]:
            one.start()


@pytest.mark.slow
@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize(
    "has_answer", ["neither", "first", "second", "both", "new", "first new", "second new"]
)
def test_a_chief_that_dies_while_it_admits_a_process_leaves_none_that_waits(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch, new: int, has_answer: str
) -> None:
    members = tuple(rank for rank in range(SIZE) if rank != new)
    roster = tuple(one.info for one in ranks)
    for one in ranks:
        one.place(roster, members)
    _, first, second = members
    named = {"first": first, "second": second, "both": first, "new": new}
    answered = {named[word] for word in has_answer.split() if word != "neither"}
    answered |= {second} if has_answer == "both" else set()
    answer_some(ranks, answered, monkeypatch)
    start(ranks, new)
    if answered & {first, second}:  # an answer that one of the others has is that of all
        assert [ranks[rank].joined() for rank in (first, second, new)] == [3, 3, 3]
        return
    assert [ranks[rank].joined() for rank in (first, second)] == [2, 2]
    if answered:
        assert "the others have continued without rank" in str(ranks[new].joined())
        return
    assert ranks[new].outcome == "waits"  # to be admitted by the first of them
    assert ranks[first].world.joining(1, "d") == [new]


@pytest.mark.slow
def test_a_chief_and_the_process_that_it_admits_die_before_the_others_know(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in ranks:
        one.place(tuple(other.info for other in ranks), (0, 2, 3))
    before = [replace(one.info, incarnation=7) if one is ranks[1] else one.info for one in ranks]
    tasks = [info.to_dict() for info in before]
    for one in ranks:  # they were in a group with the process that the new one replaces
        meta = {"group": "r/reform/0", "ranks": [0, 1, 2, 3], "tasks": tasks, "formed": {}, "left": []}
        one.coordinator.settle(RUN, groups.Frame("group.members", meta))
    answer_some(ranks, {2, 3}, monkeypatch, lost=[1])
    start(ranks, 1)
    assert [ranks[rank].joined() for rank in (2, 3)] == [2, 2]
