"""How far asynchronous replicas may get apart. All orders of events are tried in tests/distribute."""

from __future__ import annotations

from nbdist.runtime.ps.sync import Answer, Rules, StalenessBound


def applied(bound: StalenessBound, replica: int) -> list[int]:
    """Return the replicas that may continue when a replica's gradient has been applied."""
    return [answer.replica for answer in bound.applied(Answer(replica, 0))]


def test_with_a_bound_of_none_at_all_they_step_together() -> None:
    bound = StalenessBound(Rules(3, staleness=0))
    for _ in range(3):
        assert applied(bound, 1) == applied(bound, 0) == []
        assert bound.waits
        assert applied(bound, 2) == [1, 0, 2]
        assert not bound.waits


def test_a_replica_that_is_ahead_waits_for_the_slowest() -> None:
    """One of its gradients is on its way while it computes, and counts as done for the bound."""
    bound = StalenessBound(Rules(2, staleness=3))
    assert [applied(bound, 0) for _ in range(4)] == [[0], [0], [], []]
    assert applied(bound, 1) == [0, 1]
    assert applied(bound, 1) == [0, 1]
    assert applied(bound, 0) == []


def test_only_the_slowest_counts() -> None:
    bound = StalenessBound(Rules(3, staleness=1))
    assert applied(bound, 0) == applied(bound, 1) == []
    assert applied(bound, 0) == []
    assert applied(bound, 2) == [0, 1, 2]
    assert applied(bound, 2) == []


def test_a_replica_that_leaves_delays_no_other() -> None:
    bound = StalenessBound(Rules(3, staleness=0))
    applied(bound, 0)
    applied(bound, 1)
    assert [answer.replica for answer in bound.leave(2)] == [0, 1]
    assert applied(bound, 0) == []
    assert [answer.replica for answer in bound.leave(1)] == [0]
    assert applied(bound, 0) == [0]


def test_a_late_gradient_does_not_bring_back_a_replica_that_has_left() -> None:
    bound = StalenessBound(Rules(2, staleness=0))
    bound.leave(0)
    assert applied(bound, 0) == []  # held, for it is ahead of the other; its sender has left
    assert applied(bound, 1) == [0, 1]


def test_one_taken_for_dead_counts_again_at_its_next_gradient() -> None:
    bound = StalenessBound(Rules(2, staleness=0))
    applied(bound, 0)
    assert [answer.replica for answer in bound.lose(1)] == [0]
    assert applied(bound, 0) == [0]
    assert applied(bound, 1) == [1]
    assert applied(bound, 0) == []


def test_when_all_have_left_nothing_is_held() -> None:
    bound = StalenessBound(Rules(2, staleness=0))
    applied(bound, 0)
    bound.lose(1)
    assert bound.leave(0) == []
    assert not bound.waits
