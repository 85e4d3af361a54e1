"""Simulate a strategy on a cluster of any size: what travels, and how fast it would be.

    from nbdist.distribute.simulation import Cost, simulate

    simulate("hierarchical", workers=1000, hosts=125, model_bytes=100 << 20, cost=Cost(compute_s=0.2))
    simulate("ps", workers=1000, servers=32, hosts=125, model_bytes=100 << 20).batches_per_second
    compare(workers=64, hosts=8, model_bytes=100 << 20)[0]      # the fastest there

The functions that real trainings use decide the messages, their order and their pieces:
 buckets, ring and hierarchy schedules, layouts, placement round robin, the accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from nbdist.distribute.all_reduce import CONTROL, COUNT
from nbdist.distribute.simulation.cost import Array, Cost
from nbdist.distribute.simulation.replicas import SimulatedReplica
from nbdist.distribute.simulation.report import Report, Traffic, spread_over
from nbdist.distribute.simulation.rings import SimulatedHierarchy, SimulatedRing, all_reduce
from nbdist.distribute.simulation.servers import Machines, Serving
from nbdist.errors import InvalidArgumentError, choices
from nbdist.graph.placement import round_robin
from nbdist.runtime.layout import ALIGNMENT, Layout
from nbdist.runtime.ps.sync import Rules
from nbdist.wire.collective.buckets import BUCKET_BYTES, plan_buckets
from nbdist.wire.collective.call import CollectiveCall

FLOAT = np.dtype(np.float32)
VARIABLES = 64
COLLECTIVE_STEPS, SERVER_STEPS = 3, 3


class Reducer(Protocol):
    """Ranks that reduce together."""

    def run(self, call: CollectiveCall, clocks: Array) -> Array:
        """Return when each rank is done, given when each begins."""


REDUCERS: dict[str, Callable[[Sequence[int], Cost, Traffic], Reducer]] = {
    "ring": SimulatedRing,
    "hierarchical": SimulatedHierarchy,
}
STRATEGIES = (*REDUCERS, "ps", "ps_sync")


def simulate(
    strategy: str,
    workers: int,
    servers: int = 0,
    model_bytes: int = 100 << 20,
    hosts: int | None = None,
    cost: Cost | None = None,
    *,
    variables: Sequence[int] | None = None,
    backups: int = 0,
    staleness: int | None = None,
    apart: bool | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    steps: int | None = None,
) -> Report:
    """Return what `workers` would do under a strategy: "ring", "hierarchical", "ps" or "ps_sync".

    Workers are spread over `hosts`, by default one each. The model has `variables` of so many bytes, float32,
    by default 64 of one size that make up `model_bytes`. Servers have hosts of their own if they are `apart`,
    by default wherever there is more than one host. `backups` workers need not be waited for ("ps_sync"),
    `staleness` is how many steps a replica may be ahead of the slowest ("ps"). `bucket_bytes` is how much is
    reduced together at most. Runs on the client.

    >>> report = simulate("ring", workers=4, model_bytes=4 << 20, cost=Cost(spread=0))
    >>> report.messages, round(report.bytes / (4 << 20), 1)
    (72, 6.0)
    """
    hosts = workers if hosts is None else hosts
    cost = cost or Cost()
    if strategy not in STRATEGIES:
        raise InvalidArgumentError(f"no strategy {strategy!r}; {choices(strategy, STRATEGIES)}")
    if not 1 <= hosts <= workers:
        raise InvalidArgumentError(f"{workers} workers on {hosts} hosts; give 1 to {workers} hosts")
    if strategy in REDUCERS and (servers or backups or staleness is not None):
        raise InvalidArgumentError(
            f"{strategy!r} has no parameter servers; leave out servers={servers}, backups={backups}, "
            f"staleness={staleness}"
        )
    if strategy not in REDUCERS and servers < 1:
        raise InvalidArgumentError(f"{strategy!r} needs at least one parameter server; give servers=")
    if not 0 <= backups < workers:
        raise InvalidArgumentError(f"backups={backups} of {workers} workers; give 0 to {workers - 1}")
    if steps is not None and steps < 2:
        raise InvalidArgumentError(f"steps={steps}: a rate needs at least 2")
    sizes = list(variables) if variables is not None else equal_parts(model_bytes, VARIABLES)
    places = spread_over(workers, hosts)
    if strategy in REDUCERS:
        items = bucket_items(sizes, bucket_bytes)
        return _collective(strategy, places, items, cost, steps or COLLECTIVE_STEPS)
    apart = hosts > 1 if apart is None else apart
    at = [hosts + server if apart else server % hosts for server in range(servers)]
    synchronous = strategy == "ps_sync"
    aggregate = workers - backups if backups else None
    rules = Rules(workers, synchronous, aggregate, staleness, servers=servers)
    return _served(strategy, Machines(places, at), sizes, cost, steps or SERVER_STEPS, rules)


def compare(
    workers: int,
    hosts: int | None = None,
    model_bytes: int = 100 << 20,
    cost: Cost | None = None,
    *,
    servers: Sequence[int] = (1, 4, 16),
) -> list[Report]:
    """Return a report on each strategy, with each of some numbers of servers; the fastest comes first.

    >>> print(compare(16, hosts=2, model_bytes=100_000_000, cost=Cost(compute_s=1))[0])
    hierarchical: 14.69 batches/s (92%), 528 messages and 100 MB through the busiest link in a step
    """
    plans = [(name, count) for name in STRATEGIES for count in ((0,) if name in REDUCERS else servers)]
    reports = [simulate(name, workers, count, model_bytes, hosts, cost) for name, count in plans]
    return sorted(reports, key=lambda report: -report.batches_per_second)


def equal_parts(nbytes: int, parts: int) -> list[int]:
    """Return the bytes of float32 variables of one size that make up a model.

    >>> equal_parts(1000, 4)
    [248, 248, 248, 248]
    """
    return [max(4, nbytes // parts // 4 * 4)] * parts


def bucket_items(variables: Sequence[int], limit: int = BUCKET_BYTES) -> list[int]:
    """Return how many float32 are reduced together, in the order in which that is done.

    As all-reduce strategies do it: last variable first, and one more word that goes with the last bucket.
    """
    tensors = [(str(number), (nbytes // 4,), FLOAT) for number, nbytes in enumerate(variables)]
    plan = plan_buckets([*reversed(tensors), (CONTROL, (COUNT,), FLOAT)], limit, align=ALIGNMENT)
    return [bucket.count for bucket in plan]


def shard_bytes(variables: Sequence[int], servers: int) -> list[int]:
    """Return the size of each server's shard, as parameter servers place and lay out variables."""
    placed = round_robin(len(variables), servers)
    return [
        Layout.of(
            (str(n), (nbytes // 4,), FLOAT) for n, nbytes in enumerate(variables) if placed[n] == server
        ).size
        for server in range(servers)
    ]


def all_reduce_s(collective: str, hosts: Sequence[int], nbytes: int, cost: Cost) -> float:
    """Return the seconds of one all-reduce of float32: "ring" or "hierarchical", given each rank's host.

    >>> cost = Cost(link_bytes_per_s=1e8, socket_s_per_byte=1e-9)
    >>> round(all_reduce_s("ring", [0, 1, 2], 30_000_000, cost), 2)   # 40 MB leave each host
    0.4
    """
    call = all_reduce(nbytes // FLOAT.itemsize, FLOAT, len(hosts))
    reducer = REDUCERS[collective](hosts, _crowded(cost, hosts), Traffic())
    return float(reducer.run(call, np.zeros(len(hosts))).max())


def _crowd(cost: Cost, hosts: Sequence[int]) -> float:
    """Return how many workers of the fullest host share a core; at least 1."""
    return max(1.0, max(map(hosts.count, set(hosts))) / cost.cores) if cost.cores else 1.0


def _crowded(cost: Cost, hosts: Sequence[int]) -> Cost:
    """Return the cost of ranks that send and receive at the same time on the cores of a host."""
    crowd = _crowd(cost, hosts)
    return replace(cost, message_s=cost.message_s * crowd, socket_s_per_byte=cost.socket_s_per_byte * crowd)


def _collective(name: str, hosts: Sequence[int], items: Sequence[int], cost: Cost, steps: int) -> Report:
    workers, traffic = len(hosts), Traffic()
    reducer = REDUCERS[name](hosts, _crowded(cost, hosts), traffic)
    local = max(hosts.count(host) for host in set(hosts))
    crowd = _crowd(cost, hosts)
    roomy = cost.cores is None or cost.cores >= 2 * local
    overlap = len(items) > 1 and (len(set(hosts)) > 1 or roomy)
    parts = np.cumsum(items) / sum(items) if overlap else np.ones(len(items))
    done, ends = np.zeros(workers), []
    for times in cost.compute_times(workers, steps) * crowd:
        begun, clocks = done, done
        for count, part in zip(items, parts, strict=True):
            ready = begun + times * (1 - cost.backward_share * (1 - part))
            clocks = reducer.run(all_reduce(count, FLOAT, workers), np.maximum(clocks, ready))
        done = clocks + sum(items) * FLOAT.itemsize * cost.apply_s_per_byte * crowd
        ends.append(float(done.max()))
    step = ends[-1] / steps
    return _report(name, workers, 0, len(set(hosts)), traffic, steps, step, 1 / step, workers / step, cost)


def _served(
    name: str, machines: Machines, variables: Sequence[int], cost: Cost, steps: int, rules: Rules
) -> Report:
    workers, servers = len(machines.workers), len(machines.servers)
    serving = Serving(machines, shard_bytes(variables, servers), rules, cost)
    times = cost.compute_times(workers, steps)
    replicas = [
        SimulatedReplica(number, host, serving, rules, times[:, number].tolist())
        for number, host in enumerate(machines.workers)
    ]
    for replica in replicas:
        replica.start()
    serving.events.play()
    if rules.synchronous:
        changed = serving.updates
        updates = (len(changed) - 1) / (changed[-1] - changed[0])
        batches, step = updates * rules.needed, 1 / updates
    else:  # each from its first gradient to its last, for the others may be done already
        updates = batches = sum((steps - 1) / (one.pushed[-1] - one.pushed[0]) for one in replicas)
        step = workers / batches
    hosts = len(set(machines.workers))
    return _report(
        name, workers, servers, hosts, serving.traffic, steps, step, updates, batches, cost, serving.staleness
    )


def _report(
    strategy: str,
    workers: int,
    servers: int,
    hosts: int,
    traffic: Traffic,
    steps: int,
    step: float,
    updates: float,
    batches: float,
    cost: Cost,
    staleness: float = 0.0,
) -> Report:
    return Report(
        strategy,
        workers,
        servers,
        hosts,
        messages=round(traffic.messages / steps),
        host_messages=round(traffic.host_messages / steps),
        bytes=round(traffic.bytes / steps),
        busiest_link_bytes=round(traffic.busiest / steps),
        critical_path_s=step,
        steps_per_second=updates,
        batches_per_second=batches,
        efficiency=batches * cost.compute_s / workers,
        staleness=staleness,
    )
