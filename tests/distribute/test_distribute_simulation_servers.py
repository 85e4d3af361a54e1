"""Simulated parameter servers: replicas act like real ones, and the traffic adds up."""

from __future__ import annotations

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_servers_oracle import rehearse_replicas
from staleness import most_stale

from nbdist.distribute.simulation import Cost, simulate
from nbdist.distribute.simulation.events import Events
from nbdist.distribute.simulation.replicas import SimulatedReplica
from nbdist.distribute.simulation.report import Traffic, spread_over
from nbdist.distribute.simulation.servers import Machines, Serving
from nbdist.distribute.simulation.simulator import equal_parts, shard_bytes
from nbdist.runtime.ps.sync import Rules

MB = 1 << 20


def simulated(
    machines: Machines, sizes: list[int], rules: Rules, cost: Cost, times: np.ndarray
) -> tuple[list[list[float]], Traffic]:
    serving = Serving(machines, sizes, rules, cost)
    replicas = [
        SimulatedReplica(number, host, serving, rules, times[:, number].tolist())
        for number, host in enumerate(machines.workers)
    ]
    for replica in replicas:
        replica.start()
    serving.events.play()
    return [replica.pushed for replica in replicas], serving.traffic


@st.composite
def rules_of(draw: st.DrawFn, workers: int, servers: int) -> Rules:
    synchronous = draw(st.booleans())
    aggregate = draw(st.one_of(st.none(), st.integers(1, workers))) if synchronous else None
    staleness = None if synchronous else draw(st.one_of(st.none(), st.integers(0, 3)))
    return Rules(workers, synchronous, aggregate, staleness, servers=servers)


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3))
def test_simulated_replicas_are_the_real_ones_in_virtual_time(
    data: st.DataObject, workers: int, servers: int, hosts: int
) -> None:
    at = st.integers(0, hosts - 1)
    machines = Machines([data.draw(at) for _ in range(workers)], [data.draw(at) for _ in range(servers)])
    rules = data.draw(rules_of(workers, servers))
    cost = Cost(
        seed=data.draw(st.integers(0, 99)),
        spread=0.3,  # no two events at the same time, because their order may differ
        cores=data.draw(st.sampled_from([None, 1, 2])),
        slow_workers=data.draw(st.integers(0, workers)),
    )
    sizes = [MB * (server + 1) for server in range(servers)]
    times = cost.compute_times(workers, 4)
    real, travelled = rehearse_replicas(machines, sizes, rules, cost, times)
    pushed, counted = simulated(machines, sizes, rules, cost, times)
    assert travelled == counted
    assert [len(one) for one in pushed] == [len(one) for one in real]
    for one, other in zip(pushed, real, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_where_servers_drop_different_gradients_too(seed: int, aggregate: int) -> None:
    rules = Rules(5, synchronous=True, aggregate=aggregate, servers=3)
    machines = Machines([0, 1, 2, 0, 1], [3, 4, 0])
    cost = Cost(compute_s=0.004, spread=0.5, seed=seed)  # about the time of a gradient's transfer
    times = cost.compute_times(5, 8)
    real, travelled = rehearse_replicas(machines, [MB, 2 * MB, 300_032], rules, cost, times)
    pushed, counted = simulated(machines, [MB, 2 * MB, 300_032], rules, cost, times)
    assert travelled == counted
    for one, other in zip(pushed, real, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("rules", [{}, {"synchronous": True}, {"staleness": 1}], ids=str)
def test_with_64_replicas_too(rules: dict) -> None:
    machines = Machines(spread_over(64, 8), [8, 9, 10, 11])
    given, times = Rules(64, servers=4, **rules), Cost().compute_times(64, 3)
    real, travelled = rehearse_replicas(machines, [MB] * 4, given, Cost(), times)
    pushed, counted = simulated(machines, [MB] * 4, given, Cost(), times)
    assert travelled == counted
    np.testing.assert_allclose(pushed, real, rtol=1e-9)


@settings(deadline=None, max_examples=examples(40))
@given(
    st.sampled_from(["ps", "ps_sync"]),
    st.integers(1, 24),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 2000),
)
def test_each_step_brings_the_model_to_each_worker_and_a_gradient_back(
    strategy: str, workers: int, servers: int, hosts: int, kilobytes: int
) -> None:
    hosts = min(hosts, workers)
    report = simulate(strategy, workers, servers, kilobytes << 10, hosts, apart=True)
    model = sum(shard_bytes(equal_parts(kilobytes << 10, 64), servers))
    assert report.bytes == 2 * model * workers
    # Ask, parameters, gradient, answer for each; where the shards are apart, one more and its answer.
    counts = 2 if servers > 1 and strategy == "ps" else 0
    assert report.messages == workers * (4 * servers + counts)
    assert report.host_messages == 0
    assert 0 < report.efficiency <= 1.2  # the drawn times may be a little below the mean


@settings(deadline=None, max_examples=examples(25))
@given(st.sampled_from(["ps", "ps_sync"]), st.integers(1, 12), st.integers(1, 12))
def test_more_servers_never_make_the_busiest_link_busier(strategy: str, workers: int, servers: int) -> None:
    few = simulate(strategy, workers, servers, 4 * MB, apart=True)
    more = simulate(strategy, workers, servers + 1, 4 * MB, apart=True)
    assert more.busiest_link_bytes <= few.busiest_link_bytes
    assert (
        few.busiest_link_bytes == workers * max(shard_bytes(equal_parts(4 * MB, 64), servers))
        or servers > workers
    )


def test_on_one_host_nothing_travels() -> None:
    report = simulate("ps", 4, 1, MB, hosts=1)
    assert (report.messages, report.bytes, report.busiest_link_bytes) == (0, 0, 0)
    assert report.host_messages == 4 * 2  # a bell rung for the gradient, one for the answer


def test_a_slow_worker_costs_synchronous_steps_and_backups_make_up_for_it() -> None:
    cost = Cost(compute_s=1.0, slow_workers=1, slow_factor=4.0)
    waiting = simulate("ps_sync", 8, 2, MB, cost=cost, steps=6)
    backed = simulate("ps_sync", 8, 2, MB, cost=cost, backups=1, steps=6)
    free = simulate("ps", 8, 2, MB, cost=cost, steps=6)
    bounded = simulate("ps", 8, 2, MB, cost=cost, staleness=1, steps=30)
    assert waiting.critical_path_s > 3.5
    assert backed.critical_path_s < 1.5
    assert backed.batches_per_second == pytest.approx(7 / backed.critical_path_s)
    assert free.efficiency > 0.85
    assert bounded.efficiency < 0.4  # all are held to the pace of the slowest
    assert waiting.staleness == 0 < bounded.staleness <= most_stale(Rules(8, staleness=1, servers=2))


def test_one_server_is_as_fast_as_its_link() -> None:
    cost = Cost(compute_s=0.1, socket_s_per_byte=0, message_s=0)
    report = simulate("ps", 64, 1, 100 * MB, cost=cost)
    assert report.batches_per_second == pytest.approx(cost.link_bytes_per_s / (100 * MB), rel=0.1)


def test_the_same_again_is_the_same() -> None:
    assert simulate("ps", 20, 3, MB) == simulate("ps", 20, 3, MB)
    assert simulate("ps", 20, 3, MB) != simulate("ps", 20, 3, MB, cost=Cost(seed=1))


def test_events_come_in_the_order_of_their_time() -> None:
    events, seen = Events(), []
    events.at(2.0, seen.append, "c")
    events.at(1.0, seen.append, "a")
    events.at(1.0, lambda: events.at(0.5, seen.append, "b"))
    events.play()
    assert seen == ["a", "b", "c"]
    assert events.now == 2.0
