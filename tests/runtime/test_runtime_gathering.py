"""Where ranks find each other: who is waited for, who is told what, whatever the order in which they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.runtime.groups import Gathering
from nbdist.wire.rpc.frame import Frame


class Desk:
    """What a Server is to the service: handlers by kind, called by whoever sends."""

    name = "/job:worker/task:0"

    def __init__(self) -> None:
        self.handlers: dict[str, Callable[..., Any]] = {}
        self.service = Gathering(self)  # type: ignore[arg-type]

    def on(self, kind: str, handler: Callable[..., Any]) -> None:
        self.handlers[kind] = handler

    def say(self, kind: str, who: Caller, **meta: Any) -> None:
        arrays = (np.array([who.rank], np.uint8),) if kind == "group.card" else ()
        meta = {"run": "r", "group": "r/g/1", "rank": who.rank, "ranks": [3, 4, 5], **meta}
        self.handlers[kind](Frame(kind, meta, arrays), who)


class Caller:
    """A rank, and what it was told."""

    def __init__(self, rank: int) -> None:
        self.rank, self.heard = rank, list[Frame]()

    def push(self, frame: Frame) -> None:
        self.heard.append(frame)

    @property
    def error(self) -> str:
        assert self.heard[-1].kind == "error"
        return str(self.heard[-1].meta["message"])


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def ranks() -> list[Caller]:
    return [Caller(rank) for rank in (3, 4, 5)]


@given(st.permutations([0, 1, 2]))
def test_cards_come_in_the_order_of_ranks(order: list[int]) -> None:
    desk, ranks = Desk(), [Caller(rank) for rank in (3, 4, 5)]
    for i in order:
        assert not any(rank.heard for rank in ranks)
        desk.say("group.card", ranks[i])
    for rank in ranks:
        assert [int(card[0]) for card in rank.heard[0].arrays] == [3, 4, 5]


def test_who_waits_for_one_whose_part_is_over_is_told(desk: Desk, ranks: list[Caller]) -> None:
    desk.say("group.card", ranks[0])
    desk.say("group.ended", ranks[2])
    assert "rank 5 has ended its part" in ranks[0].error
    desk.say("group.card", ranks[1])
    assert "rank 5 has ended its part" in ranks[1].error


@given(st.permutations(["a", "b", "lose"]))
def test_a_roll_call_does_without_the_lost(order: list[str]) -> None:
    desk, ranks = Desk(), [Caller(rank) for rank in (3, 4, 5)]
    for what in order:
        if what == "lose":
            desk.service.lose("r", [4])
        else:
            desk.say("group.roll", ranks[0 if what == "a" else 2])
    for rank in (ranks[0], ranks[2]):
        assert [frame.meta["ranks"] for frame in rank.heard] == [[3, 5]]
    desk.say("group.roll", ranks[1])
    assert "have continued without rank 4" in ranks[1].error


def test_a_group_with_a_lost_rank_is_refused(desk: Desk, ranks: list[Caller]) -> None:
    desk.say("group.card", ranks[0])
    desk.say("group.gone", ranks[1], gone=[5])
    assert ranks[0].heard[-1].meta["type"] == "TaskDiedError"
    desk.say("group.card", ranks[1])
    assert "rank 5 has died" in ranks[1].error


def test_a_roll_call_waits_for_nobody_whose_part_is_over(desk: Desk, ranks: list[Caller]) -> None:
    desk.say("group.roll", ranks[0])
    desk.say("group.ended", ranks[1])
    assert "rank 4 has ended its part" in ranks[0].error


def test_runs_know_nothing_of_each_other(desk: Desk, ranks: list[Caller]) -> None:
    desk.service.lose("other", [5])
    desk.say("group.card", ranks[0])
    desk.say("group.card", ranks[1])
    assert not ranks[0].heard
    desk.service.drop_run("r")
    desk.say("group.card", ranks[2])
    assert "run r has ended without this replica" in ranks[2].error


def test_a_card_of_nobody(desk: Desk) -> None:
    stranger = Caller(9)
    desk.say("group.card", stranger)
    assert "rank 9 of [3, 4, 5]" in stranger.error
