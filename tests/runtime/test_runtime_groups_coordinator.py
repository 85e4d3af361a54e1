"""The rendezvous of ranks: groups complete, re-form and fail, in any order of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.runtime.groups import GroupCoordinator
from nbdist.wire.rpc.frame import Frame


class FakeServer:
    """Stands for a Server: handlers by kind, called by the sender."""

    name = "/job:worker/task:0"

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[..., Any]] = {}
        self.service = GroupCoordinator(self)  # type: ignore[arg-type]

    def on(self, kind: str, handler: Callable[..., Any]) -> None:
        self.handlers[kind] = handler

    def send(self, kind: str, rank: Caller, **meta: Any) -> None:
        arrays = (np.array([rank.rank], np.uint8),) if kind == "group.endpoint" else ()
        task = {"rank": rank.rank, "incarnation": rank.rank}
        meta = {"run": "r", "group": "r/g/1", "rank": rank.rank, "ranks": [3, 4, 5], **meta}
        meta |= {"task": task, "after": "r/g/0"} if kind == "group.reform" else {}
        self.handlers[kind](Frame(kind, meta, arrays), rank)


class Caller:
    """A rank, and the messages that it received."""

    def __init__(self, rank: int) -> None:
        self.rank, self.received = rank, list[Frame]()

    def push(self, frame: Frame) -> None:
        self.received.append(frame)

    @property
    def error(self) -> str:
        assert self.received[-1].kind == "error"
        return str(self.received[-1].meta["message"])


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def ranks() -> list[Caller]:
    return [Caller(rank) for rank in (3, 4, 5)]


@given(st.permutations([0, 1, 2]))
def test_endpoints_arrive_in_the_order_of_ranks(order: list[int]) -> None:
    server, ranks = FakeServer(), [Caller(rank) for rank in (3, 4, 5)]
    for i in order:
        assert not any(rank.received for rank in ranks)
        server.send("group.endpoint", ranks[i])
    for rank in ranks:
        assert [int(one[0]) for one in rank.received[0].arrays] == [3, 4, 5]


def test_waiting_for_a_rank_that_has_ended_fails(server: FakeServer, ranks: list[Caller]) -> None:
    server.send("group.endpoint", ranks[0])
    server.send("group.ended", ranks[2])
    assert "rank 5 has ended its part" in ranks[0].error
    server.send("group.endpoint", ranks[1])
    assert "rank 5 has ended its part" in ranks[1].error


@given(st.permutations(["a", "b", "lose"]))
def test_a_group_re_forms_without_lost_ranks(order: list[str]) -> None:
    server, ranks = FakeServer(), [Caller(rank) for rank in (3, 4, 5)]
    for what in order:
        if what == "lose":
            server.service.lose("r", [4])
        else:
            server.send("group.reform", ranks[0 if what == "a" else 2])
    for rank in (ranks[0], ranks[2]):
        assert [frame.meta["ranks"] for frame in rank.received] == [[3, 5]]
    server.send("group.reform", ranks[1])
    assert "have continued without rank 4" in ranks[1].error


def test_a_group_with_a_lost_rank_is_refused(server: FakeServer, ranks: list[Caller]) -> None:
    server.send("group.endpoint", ranks[0])
    server.send("group.lost", ranks[1], ranks=[5])
    assert ranks[0].received[-1].meta["type"] == "TaskDiedError"
    server.send("group.endpoint", ranks[1])
    assert "rank 5 has died" in ranks[1].error


def test_re_forming_does_not_wait_for_a_rank_that_has_ended(server: FakeServer, ranks: list[Caller]) -> None:
    server.send("group.reform", ranks[0])
    server.send("group.ended", ranks[1])
    assert "rank 4 has ended its part" in ranks[0].error


def test_runs_are_independent(server: FakeServer, ranks: list[Caller]) -> None:
    server.service.lose("other", [5])
    server.send("group.endpoint", ranks[0])
    server.send("group.endpoint", ranks[1])
    assert not ranks[0].received
    server.service.drop_run("r")
    server.send("group.endpoint", ranks[2])
    assert "run r has ended without this replica" in ranks[2].error


def test_an_endpoint_of_a_foreign_rank_is_refused(server: FakeServer) -> None:
    stranger = Caller(9)
    server.send("group.endpoint", stranger)
    assert "rank 9 of [3, 4, 5]" in stranger.error


@given(st.permutations([0, 1, 2]))
def test_a_rank_that_leaves_takes_part_in_the_reform_and_not_in_the_group(order: list[int]) -> None:
    server, ranks = FakeServer(), [Caller(rank) for rank in (3, 4, 5)]
    for i in order:
        assert not any(rank.received for rank in ranks)
        first = {"admits": [], "order": [3, 4, 5], "formed": {}} if i == 0 else {}
        server.send("group.reform", ranks[i], leaves=i == 1, **first)
    for rank in ranks:
        assert rank.received[0].meta["ranks"] == [3, 5]
        assert rank.received[0].meta["left"] == [4]


def test_a_request_that_is_sent_again_gets_the_same_answer(server: FakeServer, ranks: list[Caller]) -> None:
    for kind in ("group.endpoint", "group.reform"):
        for rank in ranks:
            server.send(kind, rank)
        again = Caller(4)
        server.send(kind, again)
        (found,), expected = again.received, ranks[1].received[-1]
        assert (found.kind, found.meta) == (expected.kind, expected.meta)
        assert [array.tolist() for array in found.arrays] == [array.tolist() for array in expected.arrays]


@pytest.mark.parametrize("first", ["group.endpoint", "group.reform"])
def test_no_rank_waits_in_a_group_for_one_that_forms_it_again(
    server: FakeServer, ranks: list[Caller], first: str
) -> None:
    last = "group.reform" if first == "group.endpoint" else "group.endpoint"
    server.send(first, ranks[0])
    server.send(last, ranks[1])
    waits = ranks[0] if first == "group.endpoint" else ranks[1]
    assert "has failed, and forms the group again" in waits.error
