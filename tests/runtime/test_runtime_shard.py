"""One parameter server's part: asynchronous and synchronous updates, staleness, leaving."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest

from nbdist.optim import SGD, Adam, Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.mailbox import CHANGES, COUNTERS
from nbdist.runtime.ps.shard import Offered, ParameterShard
from nbdist.runtime.ps.sync import DROPPED, KEPT, STOPPED, Answer, Rules

Array = np.ndarray[Any, Any]


def shard(
    replicas: int = 2,
    synchronous: bool = False,
    counts: bool = True,
    optimizer: Optimizer | None = None,
    initial: float = 0.0,
    **rules: Any,
) -> ParameterShard:
    layout = Layout.of([("v", (3,), "<f4")])
    memory = layout.buffer()
    layout.views(memory)[0][:] = initial
    return ParameterShard(
        layout,
        memory,
        np.zeros(COUNTERS, np.int64),
        optimizer or SGD(1.0),
        Rules(replicas, synchronous, **rules),
        counts=counts,
    )


def gradient(one: ParameterShard, value: float) -> list[Array]:
    buffer = one.layout.buffer()
    one.layout.views(buffer)[0][:] = value
    return one.layout.flats(buffer)


def value(one: ParameterShard) -> float:
    (view,) = one.layout.views(one.memory)
    assert (view == view[0]).all()
    return float(view[0])


def test_a_gradient_is_applied_on_arrival_and_its_staleness_reported() -> None:
    one = shard()
    assert one.offer(0, 7, gradient(one, 1), version=0) == Offered("applied", [Answer(0, 7, 0)])
    assert one.offer(1, 8, gradient(one, 2), version=0) == Offered("applied", [Answer(1, 8, 1)])
    assert one.offer(1, 9, gradient(one, 4), version=0) == Offered("applied", [Answer(1, 9, 2)])
    assert one.offer(0, 1, gradient(one, 0), version=3) == Offered("applied", [Answer(0, 1, 0)])
    assert value(one) == -7
    assert one.counters[:2].tolist() == [4, 4]
    assert one.updates == 4


@pytest.mark.parametrize("rules", [{}, {"synchronous": True, "aggregate": 2}, {"staleness": 1}])
def test_a_gradient_of_a_former_process_counts_once_or_not_at_all(rules: dict[str, Any]) -> None:
    """The process of replica 0 dies while its gradient is taken; another takes its place before or after."""
    for before in (True, False):
        one = shard(replicas=3, **rules)
        incarnation = 0
        if before:
            incarnation = 1
            one.join(0)
        found = one.offer(0, 0, gradient(one, 1), 0, lambda current=incarnation: current == 0)
        if before:
            assert found == Offered("dropped", [])
            assert (value(one), one.accumulator.count, one.statistics.dropped) == (0, 0, [0, 0, 0])
        else:
            one.join(0)  # withdraws a gradient that waits for its step
            assert one.accumulator.count == 0
        one.offer(0, 0, gradient(one, 1), one.updates)
        one.offer(1, 0, gradient(one, 1), one.updates)
        assert one.statistics.made[:2] == [1 + (not before and not rules.get("synchronous")), 1]


def test_the_global_step_counts_all_shards_together_when_there_are_several() -> None:
    one = shard(counts=False)
    one.offer(0, 0, gradient(one, 1), 0)
    assert one.counters[:2].tolist() == [0, 1]
    one.count(0)
    assert one.counters[:2].tolist() == [1, 1]


def test_a_synchronous_step_waits_for_all_and_adds() -> None:
    one = shard(replicas=3, synchronous=True)
    assert one.offer(2, 5, gradient(one, 1), 0) == Offered("collected", [])
    assert one.offer(0, 6, gradient(one, 2), 0) == Offered("collected", [])
    assert value(one) == 0
    became, answers = one.offer(1, 7, gradient(one, 4), 0)
    assert became == "applied"
    assert sorted(answers) == [Answer(0, 6), Answer(1, 7), Answer(2, 5)]
    assert value(one) == -7
    assert one.counters[:2].tolist() == [1, 1]


def test_two_workers_and_a_rate_of_two() -> None:
    """Fact 7: after the first step v0 = -0.4, v1 = -1.0, global_step 1 (the mean of two gradients)."""
    for start, first, expected in ((0.0, 0.1, -0.4), (1.0, 0.9, -1.0)):
        one = shard(synchronous=True, optimizer=SGD(2.0), initial=start)
        for worker in range(2):
            one.offer(worker, 0, gradient(one, (first + 0.2 * worker) / 2), 0)
        assert value(one) == pytest.approx(expected)
        assert one.counters[0] == 1


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adam(0.1)], ids=str)
def test_synchronous_updates_do_not_depend_on_the_order_of_arrival(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(4, 3)) * [1e-3, 1.0, 1e4]
    memories = set()
    for order in itertools.permutations(range(3)):
        one = shard(replicas=3, synchronous=True, optimizer=optimizer)
        for step in range(4):
            for replica in order:
                one.offer(replica, 0, gradient(one, values[step, replica]), step)
        memories.add(one.memory.tobytes())
    assert len(memories) == 1


def test_a_leaving_replica_breaks_up_the_step_and_frees_the_waiting_ones() -> None:
    one = shard(replicas=3, synchronous=True)
    one.offer(0, 5, gradient(one, 1), 0)
    one.offer(1, 6, gradient(one, 1), 0)
    assert one.leave(2) == [Answer(0, 5, 0, STOPPED), Answer(1, 6, 0, STOPPED)]
    assert one.broken_up
    assert one.leave(0) == []
    assert value(one) == 0
    assert one.counters[:2].tolist() == [0, 0]
    assert one.statistics.dropped == [1, 1, 0]


def test_a_gradient_after_another_has_left_is_answered_at_once() -> None:
    """Also if it was on its way already: otherwise it would wait for ever."""
    one = shard(synchronous=True)
    one.leave(0)
    assert one.offer(1, 3, gradient(one, 1), 0) == Offered("dropped", [Answer(1, 3, 0, STOPPED)])
    assert value(one) == 0
    assert one.statistics.dropped == [0, 1]


def test_asynchronous_replicas_leave_without_trouble() -> None:
    one = shard()
    assert one.leave(0) == []
    assert not one.broken_up
    assert one.offer(1, 0, gradient(one, 1), 0) == Offered("applied", [Answer(1, 0)])


def test_several_dtypes_are_updated_each() -> None:
    layout = Layout.of([("a", (2,), "<f4"), ("b", (2,), "<f8")])
    one = ParameterShard(
        layout, layout.buffer(), np.zeros(COUNTERS, np.int64), Adam(0.1), Rules(1), counts=True
    )
    buffer = layout.buffer()
    for view in layout.views(buffer):
        view[:] = 1
    one.offer(0, 0, layout.flats(buffer), 0)
    for view in layout.views(one.memory):
        np.testing.assert_allclose(view, -0.1, rtol=1e-4)


def test_threads_lose_no_update_and_no_count() -> None:
    one, each = shard(replicas=4, optimizer=SGD(1.0)), 200

    def work(replica: int) -> None:
        for _ in range(each):
            _, (answer,) = one.offer(replica, 0, gradient(one, 1), one.updates)
            assert answer.staleness >= 0

    threads = [threading.Thread(target=work, args=(replica,)) for replica in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value(one) == -4 * each
    assert one.counters[:2].tolist() == [4 * each] * 2


def test_the_fastest_make_the_mean_and_the_late_one_is_dropped() -> None:
    """Three shares of a batch, of which two make the step: their mean is theirs times 3/2."""
    one = shard(replicas=3, synchronous=True, aggregate=2)
    one.offer(1, 0, gradient(one, 2), 0)
    assert one.offer(2, 0, gradient(one, 4), 0).became == "applied"
    assert value(one) == -9
    assert one.offer(0, 5, gradient(one, 1000), 0) == Offered("dropped", [Answer(0, 5, 0, DROPPED)])
    assert one.offer(0, 5, gradient(one, 1), 1).became == "collected"
    assert one.offer(1, 5, gradient(one, 1), 1).became == "applied"
    assert value(one) == -12
    assert (one.statistics.made, one.statistics.dropped) == ([1, 2, 1], [1, 0, 0])
    assert one.counters[:2].tolist() == [2, 2]


def test_several_batches_of_one_replica_may_be_written_to_one_place() -> None:
    one = shard(replicas=2, synchronous=True, aggregate=4)
    place = gradient(one, 0)
    for amount in (1, 2):
        place[0][:3] = amount
        assert one.offer(0, 0, place, 0) == Offered("collected", [Answer(0, 0, 0, KEPT)])
    place[0][:3] = 3
    assert one.offer(0, 0, place, 0) == Offered("collected", [])
    assert one.offer(1, 0, gradient(one, 6), 0).became == "applied"
    assert value(one) == -6  # twelve, of four shares where a batch has two
    assert one.statistics.made == [3, 1]


def test_the_last_step_that_is_not_complete_is_dropped() -> None:
    one = shard(replicas=2, synchronous=True, aggregate=3)
    one.offer(0, 0, gradient(one, 1), 0)
    one.offer(1, 0, gradient(one, 1), 0)
    assert one.leave(0) == [Answer(1, 0, 0, KEPT)]
    assert one.leave(1) == []
    assert one.statistics.dropped == [1, 1]
    assert not one.waited_for


@pytest.mark.parametrize("locking", [False, True])
def test_changes_are_counted_with_locking_only(locking: bool) -> None:
    one = shard(locking=locking)
    one.offer(0, 0, gradient(one, 1), 0)
    assert one.counters[CHANGES] == (2 if locking else 0)


def test_an_answer_is_held_back_and_the_gradient_applied() -> None:
    one = shard(staleness=0)
    assert one.offer(0, 3, gradient(one, 1), 0) == Offered("applied", [])
    assert value(one) == -1
    assert one.waited_for
    assert one.offer(1, 4, gradient(one, 1), 0) == Offered("applied", [Answer(0, 3, 0), Answer(1, 4, 1)])
    one.offer(1, 4, gradient(one, 1), 2)
    assert one.leave(0, died=True) == [Answer(1, 4, 0)]


def test_all_of_them_is_bit_for_bit_what_it_is_without_saying_so() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(5, 3)) * [1e-3, 1.0, 1e4]
    memories = set()
    for aggregate in (None, 3):
        one = shard(replicas=3, synchronous=True, aggregate=aggregate, optimizer=Adam(0.1))
        for step in range(5):
            for replica in range(3):
                one.offer(replica, 0, gradient(one, values[step, replica]), step)
        memories.add(one.memory.tobytes())
    assert len(memories) == 1
