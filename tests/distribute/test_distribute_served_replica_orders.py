"""For any order of gradients: counts are exact, and no replica hangs."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import LAYOUT, Town, trained
from staleness import most_stale

from nbdist.runtime.ps.sync import Rules

seeds = st.integers(0, 2**32 - 1)
batch_counts = st.lists(st.integers(0, 6), min_size=1, max_size=4)
EXAMPLES = settings(max_examples=examples(150), deadline=None)


def check_accounts(town: Town) -> None:
    """Check that every gradient is part of an update or dropped, by counts and by values."""
    for server in town.servers:
        shard, rules = server.shard, town.rules
        assert sum(shard.statistics.made) + sum(shard.statistics.dropped) == server.offered
        each = rules.needed if rules.synchronous else 1
        assert sum(shard.statistics.made) == each * shard.updates
        assert float(LAYOUT.views(shard.memory)[0][0]) == pytest.approx(server.expected, rel=1e-12)
        assert not shard.waited_for


@EXAMPLES
@given(batch_counts, st.integers(1, 9), st.integers(1, 3), seeds)
def test_synchronous_with_any_number_of_gradients_a_step(
    batches: list[int], needed: int, servers: int, seed: int
) -> None:
    rules = Rules(len(batches), True, needed, servers=servers)
    town = trained(rules, batches, seed)
    check_accounts(town)
    made = sum(worker.made for worker in town.workers)
    assert all(server.offered == made for server in town.servers)
    if rules.several:  # no gradient is late: only the last, incomplete step is dropped
        assert [server.shard.updates for server in town.servers] == [made // needed] * servers
        assert made == sum(batches)
    if not rules.backups and not rules.several:
        assert [server.shard.updates for server in town.servers] == [min(batches)] * servers
    if servers == 1:
        dropped = [worker.replica.report.dropped for worker in town.workers if worker.replica]
        if not rules.several:  # the replica does not know that a kept gradient was dropped
            assert dropped == town.servers[0].shard.statistics.dropped


@EXAMPLES
@given(st.integers(2, 4), st.integers(1, 6), st.integers(1, 3), seeds)
def test_equal_replicas_without_backups_make_a_step_of_each_batch(
    replicas: int, batches: int, servers: int, seed: int
) -> None:
    town = trained(Rules(replicas, True, servers=servers), [batches] * replicas, seed)
    check_accounts(town)
    assert [server.shard.updates for server in town.servers] == [batches] * servers
    assert not any(worker.replica.report.dropped for worker in town.workers if worker.replica)


@EXAMPLES
@given(st.integers(2, 4), st.data(), seeds)
def test_replicas_stop_only_when_too_few_are_left(replicas: int, data: st.DataObject, seed: int) -> None:
    """With R of N, replicas continue until fewer than R are left."""
    needed = data.draw(st.integers(1, replicas - 1))
    batches = data.draw(st.lists(st.integers(0, 6), min_size=replicas, max_size=replicas))
    town = trained(Rules(replicas, True, needed), batches, seed)
    through = [worker for worker in town.workers if not worker.stopped]
    assert len(through) > replicas - needed
    assert town.servers[0].shard.updates <= sum(batches) // needed


@EXAMPLES
@given(batch_counts, st.one_of(st.none(), st.integers(0, 3)), st.integers(1, 3), seeds)
def test_asynchronous_replicas_keep_the_bound_on_staleness(
    batches: list[int], bound: int | None, servers: int, seed: int
) -> None:
    rules = Rules(len(batches), staleness=bound, servers=servers)
    town = trained(rules, batches, seed)
    check_accounts(town)
    assert all(server.shard.updates == sum(batches) for server in town.servers)
    ahead = [steps for worker in town.workers for steps in worker.ahead]
    assert bound is None or max(ahead, default=0) <= bound
    most = most_stale(rules)
    for server in town.servers:
        assert most is None or server.shard.statistics.staleness[1] <= most


@EXAMPLES
@given(batch_counts, st.integers(1, 6), st.integers(1, 2), st.data(), seeds)
def test_deaths_leave_no_replica_waiting(
    batches: list[int], needed: int, servers: int, data: st.DataObject, seed: int
) -> None:
    synchronous = data.draw(st.booleans())
    bound = None if synchronous else data.draw(st.integers(0, 2))
    rules = Rules(len(batches), synchronous, needed if synchronous else None, bound, servers=servers)
    deaths = data.draw(st.dictionaries(st.integers(0, len(batches) - 1), st.integers(1, 30), max_size=2))
    town = trained(rules, batches, seed, deaths)
    for server in town.servers:
        assert sum(server.shard.statistics.made) + sum(server.shard.statistics.dropped) == server.offered
        assert not server.shard.waited_for
    killed = sum(worker.dead and not worker.broken for worker in town.workers)
    living = [worker for worker in town.workers if not worker.dead]
    if any(worker.broken for worker in town.workers):
        assert rules.fails_without(killed)
    if not synchronous:
        assert all(worker.made == batches[worker.number] for worker in living)


def test_the_bound_is_reached() -> None:
    """Some order of events reaches the bound: those of the seeds 79 and 169 do."""
    rules = Rules(2, staleness=1)
    seeds = range(50, 50 + examples(400))
    most = max(trained(rules, [8, 8], seed).servers[0].shard.statistics.staleness[1] for seed in seeds)
    assert most == most_stale(rules) == 4
