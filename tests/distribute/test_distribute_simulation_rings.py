"""Simulated rings and hierarchies equal the real code in virtual time, message by message."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_time import rehearse

from nbdist.distribute.all_reduce import _plan
from nbdist.distribute.simulation import Cost, simulate
from nbdist.distribute.simulation.report import Traffic, spread_over
from nbdist.distribute.simulation.rings import SimulatedRing, all_reduce, edges
from nbdist.distribute.simulation.simulator import FLOAT, REDUCERS, bucket_items
from nbdist.errors import InvalidArgumentError
from nbdist.wire.collective.schedule import CHUNK_BYTES

MB = 1 << 20
HOSTS = st.lists(st.integers(0, 3), min_size=1, max_size=7)
COSTS = st.builds(
    Cost,
    latency_s=st.floats(0, 1e-3),
    link_bytes_per_s=st.floats(1e6, 1e10),
    message_s=st.floats(0, 1e-4),
    socket_s_per_byte=st.floats(0, 1e-8),
    meeting_s=st.floats(0, 1e-4),
)


def simulated(kind: str, hosts: list[int], buckets: list[int], cost: Cost, starts: list[float]) -> tuple:
    traffic = Traffic()
    group, clocks = REDUCERS[kind](hosts, cost, traffic), np.array(starts)
    for nbytes in buckets:
        clocks = group.run(all_reduce(nbytes // 4, FLOAT, len(hosts)), clocks)
    return clocks, traffic


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from(["ring", "hierarchical"]),
    HOSTS,
    st.lists(st.sampled_from([4, 400, 70_004, MB, 3 * MB + 20]), min_size=1, max_size=3),
    COSTS,
    st.data(),
)
def test_the_simulation_is_the_real_code_in_virtual_time(
    kind: str, hosts: list[int], buckets: list[int], cost: Cost, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(st.floats(0, 0.01), min_size=len(hosts), max_size=len(hosts)))
    clocks, traffic = rehearse(kind, hosts, buckets, cost, starts)
    expected, counted = simulated(kind, hosts, buckets, cost, starts)
    assert traffic == counted
    np.testing.assert_allclose(clocks, expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("kind", ["ring", "hierarchical"])
def test_with_64_ranks_too(kind: str) -> None:
    hosts, starts = spread_over(64, 8), [0.001 * (rank % 7) for rank in range(64)]
    clocks, traffic = rehearse(kind, hosts, [MB], Cost(), starts)
    expected, counted = simulated(kind, hosts, [MB], Cost(), starts)
    assert traffic == counted
    np.testing.assert_allclose(clocks, expected, rtol=1e-9)


@given(st.integers(2, 40), st.integers(0, 200_000))
def test_a_rank_of_a_ring_sends_two_times_all_but_its_share(ranks: int, items: int) -> None:
    traffic = Traffic()
    SimulatedRing(range(ranks), Cost(), traffic).run(all_reduce(items, FLOAT, ranks), np.zeros(ranks))
    assert traffic.bytes == 2 * (ranks - 1) * items * 4
    share = 2 * (ranks - 1) / ranks * items * 4
    assert all(abs(sent - share) <= 2 * (ranks - 1) * 8 for sent in traffic.out.values())
    exchanged = ranks == 2 and items * 4 <= CHUNK_BYTES
    assert traffic.messages % (ranks if exchanged else 2 * (ranks - 1) * ranks) == 0


@given(st.integers(2, 40), st.integers(1, 8), st.integers(1, 64))
def test_a_hierarchy_sends_a_value_once_per_host(workers: int, hosts: int, kilobytes: int) -> None:
    hosts = min(hosts, workers)
    report = simulate("hierarchical", workers, hosts=hosts, model_bytes=kilobytes << 10, steps=2)
    buckets = bucket_items([kilobytes * 1024 // 64 // 4 * 4] * 64)
    lanes = workers // hosts
    padded = sum(-(-items // lanes) * lanes for items in buckets) * 4
    assert report.bytes == 2 * (hosts - 1) * padded


@given(st.lists(st.integers(1, 2_000_000), min_size=1, max_size=8))
def test_buckets_are_those_of_the_strategy(items: list[int]) -> None:
    variables = [(f"v{number}", np.broadcast_to(np.float32(0), count)) for number, count in enumerate(items)]
    assert bucket_items([4 * count for count in items]) == [bucket.count for bucket in _plan(variables)]


def test_overlapped_work_costs_no_time() -> None:
    quick = Cost(compute_s=10.0, spread=0)
    apart = simulate("ring", 4, model_bytes=64 * MB, cost=quick)
    assert 10 < apart.critical_path_s < 10.1
    crowded = simulate("ring", 4, model_bytes=64 * MB, cost=Cost(compute_s=10.0, spread=0, cores=1))
    assert crowded == apart  # one host per rank: no core is shared


def test_the_slowest_worker_sets_the_pace() -> None:
    alike = simulate("hierarchical", 16, hosts=2, cost=Cost(compute_s=9, spread=0))
    slow = simulate("hierarchical", 16, hosts=2, cost=Cost(compute_s=9, spread=0, slow_workers=1))
    assert 2.9 < slow.critical_path_s / alike.critical_path_s <= 3


def test_where_letters_are_many_larger_buckets_pay() -> None:
    many, few = (
        simulate("hierarchical", 128, hosts=64, model_bytes=32 * MB, bucket_bytes=size)
        for size in (MB, 16 * MB)
    )
    assert few.messages < many.messages / 2
    assert few.critical_path_s < many.critical_path_s
    assert few.bytes == many.bytes


def test_edges_share_the_link_of_their_host() -> None:
    together, between = edges([0, 0, 1, 1], Cost()).rate, edges([0, 1, 0, 1], Cost()).rate
    assert list(together) == [1e11, 1.25e9, 1e11, 1.25e9]
    assert list(between) == [0.625e9] * 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tree", 4), "no strategy 'tree'; choose from ring, hierarchical, ps"),
        (("ring", 4, 2), "'ring' has no parameter servers"),
        (("ps", 4), "'ps' needs at least one parameter server"),
        (("ring", 4, 0, MB, 5), "4 workers on 5 hosts"),
        (("ps_sync", 4, 1, MB, 4, None), "backups=4 of 4 workers"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        simulate(*arguments, backups=4 if "backups" in words else 0)
    with pytest.raises(InvalidArgumentError, match="message_s is -1"):
        Cost(message_s=-1)
    with pytest.raises(InvalidArgumentError, match="no collective 'tree' to rehearse"):
        rehearse("tree", [0, 1], [4], Cost())
