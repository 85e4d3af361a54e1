"""Schedules, executed step by step on sets of ranks instead of values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.wire.collective.call import describe
from nbdist.wire.collective.schedule import (
    AGREEMENT,
    BEGIN,
    ROUNDS_IN_FLIGHT,
    RingSchedule,
    broadcast_route,
    host_groups,
    phases,
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
def test_only_leaders_send_between_hosts(hosts: list[str], count: int, data: st.DataObject) -> None:
    ranks = host_groups(hosts)
    assert sorted(rank for one in ranks for rank in one) == list(range(len(hosts)))
    root = data.draw(st.integers(0, len(hosts) - 1))
    for what in ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier"):
        call = call_of(what, count, len(hosts), root if what == "broadcast" else -1)
        for host in range(len(ranks)):
            plan = phases(call, ranks, host)
            assert [phase.among for phase in plan].count("leaders") == (what != "barrier")
            for phase in plan:
                among = ranks[host] if phase.among == "host" else ranks
                assert -1 <= phase.root < len(among)
    assert [phase.among for phase in AGREEMENT] == ["host", "leaders", "host"]


@pytest.mark.parametrize("host", [0, 1])
def test_a_broadcast_begins_on_the_host_of_its_root(host: int) -> None:
    plan = phases(call_of("broadcast", 5, 4, 3), [[0, 2], [1, 3]], host)
    assert [(phase.among, phase.root) for phase in plan] == (
        [("leaders", 1), ("host", 0)] if host == 0 else [("host", 1), ("leaders", 1)]
    )
