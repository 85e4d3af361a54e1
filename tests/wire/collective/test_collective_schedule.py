"""Schedules, executed step by step on sets of ranks instead of values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.wire.collective.call import describe
from nbdist.wire.collective.schedule import (
    BEGIN,
    ROUNDS_IN_FLIGHT,
    Lanes,
    RingSchedule,
    broadcast_route,
    host_groups,
)

FLOAT = np.dtype("f4")
WHATS = st.sampled_from(["all_reduce", "reduce_scatter", "all_gather"])
LAYOUTS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


def call_of(what: str, count: int, size: int, root: int = -1) -> object:
    op = "sum" if what in ("all_reduce", "reduce_scatter") else ""
    return describe(what, (count,), FLOAT, size, op, root)


@given(WHATS, st.integers(2, 9), st.integers(0, 700_000))
def test_each_message_of_each_round_is_received_once_and_in_order(what: str, size: int, count: int) -> None:
    schedule = RingSchedule.of(call_of(what, count, size))
    done: dict[int, int] = {}
    for number, step in schedule.actions():
        if step == BEGIN:
            assert number not in done
        assert done.get(number, BEGIN - 1) == step - 1
        done[number] = step
        assert sum(last < schedule.messages - 1 for last in done.values()) <= ROUNDS_IN_FLIGHT
    assert done == dict.fromkeys(range(schedule.rounds), schedule.messages - 1)


@given(WHATS, st.integers(2, 9))
def test_every_share_reaches_the_ranks_that_need_it(what: str, size: int) -> None:
    schedule = RingSchedule.of(call_of(what, 64 * size, size))
    ranks = range(size)
    hands = {rank: {rank} for rank in ranks}  # the ranks with values in the chunk that a rank sends next
    whole: list[set[int]] = [set() for _ in ranks]  # the shares with a result on each rank
    for step in range(schedule.messages):
        sent = {(rank + 1) % size: (schedule.sent(rank, step), hands[rank]) for rank in ranks}
        for rank, (share, values) in sent.items():
            assert share == schedule.received(rank, step)
            if schedule.reduces and step < size - 1:
                assert rank not in values, "a rank's value is added twice"
                values = values | {rank}
                if step == size - 2:
                    assert values == set(ranks)
                    whole[rank].add(share)
            else:
                assert schedule.reduces or values == {share}
                whole[rank].add(share)
            hands[rank] = values
    for rank in ranks:
        if what == "reduce_scatter":
            assert whole[rank] == {rank}
        elif what == "all_reduce" and size == 2:  # each has sent everything
            assert schedule.shares[0] == schedule.shares[1] == (0, 128)
            assert whole[rank] == {1 - rank}
        else:
            assert whole[rank] | ({rank} if what == "all_gather" else set()) == set(ranks)


@given(WHATS, st.integers(2, 9), st.integers(0, 700_000))
def test_the_chunks_of_all_rounds_cover_all_items_once(what: str, size: int, count: int) -> None:
    schedule = RingSchedule.of(call_of(what, count, size))
    for share, (low, high) in enumerate(schedule.shares):
        chunks = [schedule.chunk(number, share) for number in range(schedule.rounds)]
        assert [n for chunk in chunks for n in (chunk.start, chunk.stop) if chunk.start < chunk.stop][
            ::2
        ] == list(range(low, high, schedule.length))
        assert sum(chunk.stop - chunk.start for chunk in chunks) == high - low
        assert all(chunk.stop - chunk.start <= schedule.length for chunk in chunks)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 300_000))
def test_a_broadcast_visits_every_rank_once(size: int, root: int, count: int) -> None:
    root %= size
    call = call_of("broadcast", count, size, root)
    order = sorted(range(size), key=lambda rank: broadcast_route(call, rank)[0])
    assert order == [(root + n) % size for n in range(size)]
    chunks = broadcast_route(call, root)[1]
    assert [n for chunk in chunks for n in range(count)[chunk]] == list(range(count))


@given(LAYOUTS, st.integers(0, 50), st.data())
def test_every_rank_has_a_place_and_every_lane_a_rank_of_each_host(
    hosts: list[str], count: int, data: st.DataObject
) -> None:
    lanes = Lanes(host_groups(hosts))
    assert sorted(rank for one in lanes.hosts for rank in one) == list(range(len(hosts)))
    places = list(lanes.places())
    assert sorted(rank for rank, *_ in places) == list(range(len(hosts)))
    assert len({place[1:] for place in places}) == len(hosts)
    assert all(lane < lanes.count and turn < lanes.turns for _, lane, _, turn in places)
    for lane in range(lanes.count):
        assert lanes.members(lane) == [rank for rank, at, _, turn in places if (at, turn) == (lane, 0)]
    root = data.draw(st.integers(0, len(hosts) - 1))
    for what in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"):
        call = call_of(what, count, len(hosts), root if what == "broadcast" else -1)
        plans = [lanes.plan(call, host) for host in range(len(lanes.hosts))]
        assert len({plan.between for plan in plans}) == 1
        for ranks, plan in zip(lanes.hosts, plans):
            assert {phase.among for phase in (*plan.collect, *plan.spread)} <= {"host"}
            assert len(ranks) > 1 or not (plan.collect or plan.spread)
            compares_first = what != "all_gather" or len(ranks) > lanes.count
            assert len(plan.collect) == (len(ranks) > 1 and compares_first)
            assert compares_first or len(ranks) == 1 or len(plan.spread) == 1
            assert len(ranks) == lanes.count or plan.spread, "a rank without a lane waits for none"
            assert all(-1 <= phase.root < len(ranks) for phase in (*plan.collect, *plan.spread))
            assert plan.between.among == "lanes"
            assert -1 <= plan.between.root < len(lanes.hosts)


@pytest.mark.parametrize(
    ("host", "expected"),
    [(0, [("host", -1), ("lanes", 1), ("host", -1)]), (1, [("host", 1), ("lanes", 1)]), (2, [("lanes", 1)])],
)
def test_a_broadcast_begins_on_the_host_of_its_root(host: int, expected: list[tuple[str, int]]) -> None:
    hosts = ((0, 2), (1, 3)) if host < 2 else ((0, 2), (3,), (1,))
    plan = Lanes(hosts).plan(call_of("broadcast", 5, 4, 3), host)
    assert [(phase.among, phase.root) for phase in plan.phases] == expected


@pytest.mark.parametrize(
    ("hosts", "host", "expected"),
    [
        (((0, 1), (2, 3)), 0, ["reduce_scatter 8", "all_reduce 4", "all_gather 4"]),
        (((0, 1, 2), (3, 4)), 0, ["all_reduce 8", "all_reduce 4", "broadcast 4", "broadcast 4"]),
        (((0, 1, 2), (3, 4)), 1, ["reduce_scatter 8", "all_reduce 4", "all_gather 4"]),
        (((0, 1, 2), (3,)), 0, ["all_reduce 7", "all_reduce 7", "broadcast 7"]),
        (((0, 1, 2), (3,)), 1, ["all_reduce 7"]),
    ],
)
def test_each_lane_reduces_its_share(hosts: Any, host: int, expected: list[str]) -> None:
    plan = Lanes(hosts).plan(call_of("all_reduce", 7, 5), host)
    assert [f"{phase.what} {phase.items}" for phase in plan.phases] == expected
