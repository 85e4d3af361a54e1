"""Whose gradients make a synchronous step. All orders of events are tried in tests/distribute."""

from __future__ import annotations

from nbdist.runtime.ps.sync import APPLIED, DROPPED, KEPT, STEPPED, STOPPED, TAKEN, Answer, Quorum, Rules


def quorum(replicas: int, needed: int | None = None, *, servers: int = 1, first: bool = True) -> Quorum:
    return Quorum(Rules(replicas, True, needed, servers=servers), first=first)


def offer(one: Quorum, replica: int, *, fresh: bool = True) -> list[tuple[int, int]]:
    """Return the answers, as (replica, what)."""
    return [(answer.replica, answer.what) for answer in one.offer(replica, 0, fresh)]


def leave(one: Quorum, replica: int) -> list[tuple[int, int]]:
    return [(answer.replica, answer.what) for answer in one.leave(replica)]


def test_all_make_a_step_and_each_gets_an_answer() -> None:
    one = quorum(3)
    assert offer(one, 2) == offer(one, 0) == []
    assert one.waits
    assert offer(one, 1) == [(2, APPLIED), (0, APPLIED), (1, APPLIED)]
    assert (one.steps, one.collected, one.waits) == (1, 0, False)


def test_the_token_of_each_comes_back() -> None:
    one = quorum(2)
    one.offer(0, 7, True)
    assert one.offer(1, 5, True) == [Answer(0, 7), Answer(1, 5)]


def test_the_late_one_is_dropped_at_once_and_may_be_among_the_next() -> None:
    one = quorum(3, 2)
    assert offer(one, 0) == []
    assert offer(one, 1) == [(0, APPLIED), (1, APPLIED)]
    assert offer(one, 2, fresh=False) == [(2, DROPPED)]
    assert offer(one, 2) == []
    assert offer(one, 0) == [(2, APPLIED), (0, APPLIED)]
    assert one.steps == 2


def test_with_one_gradient_a_step_no_replica_waits() -> None:
    one = quorum(3, 1)
    for step in range(1, 4):
        assert offer(one, 0) == [(0, APPLIED)]
        assert one.steps == step
    assert offer(one, 1, fresh=False) == [(1, DROPPED)]


def test_backups_may_leave_and_the_others_continue() -> None:
    one = quorum(3, 2)
    offer(one, 0)
    assert leave(one, 2) == []
    assert offer(one, 1) == [(0, APPLIED), (1, APPLIED)]
    offer(one, 0)
    assert leave(one, 1) == [(0, STOPPED)]
    assert one.stopped
    assert offer(one, 0) == [(0, STOPPED)]


def test_a_replica_that_leaves_after_its_gradient_still_counts_for_the_step() -> None:
    """With several servers, what one has taken counts, though another dropped it and its replica leaves."""
    one = quorum(3, 2, servers=2)
    assert offer(one, 0) == [(0, TAKEN)]
    assert leave(one, 0) == []
    assert offer(one, 1) == [(0, APPLIED), (1, APPLIED)]
    assert offer(one, 1) == [(1, TAKEN)]
    assert leave(one, 2) == [(1, STOPPED)]


def test_a_late_gradient_does_not_bring_back_a_replica_that_has_left() -> None:
    """It may arrive after its sender's farewell, on another connection; no replica can wait for more."""
    one = quorum(3, 2)
    leave(one, 0)
    assert offer(one, 0) == []
    assert offer(one, 1) == [(0, APPLIED), (1, APPLIED)]
    assert offer(one, 1) == []
    assert leave(one, 2) == [(1, STOPPED)]


def test_one_taken_for_dead_is_back_at_its_next_gradient() -> None:
    one = quorum(3, 2)
    assert one.lose(0) == []
    assert offer(one, 0) == []
    assert leave(one, 1) == []  # for 2 has given nothing yet
    assert offer(one, 2) == [(0, APPLIED), (2, APPLIED)]


def test_tokens_go_to_fast_replicas_until_they_are_spent() -> None:
    one = quorum(2, 4)
    assert offer(one, 0) == [(0, KEPT)]
    assert offer(one, 0) == [(0, KEPT)]
    assert offer(one, 0) == []  # the last token is the other's
    assert offer(one, 1) == [(0, APPLIED), (1, APPLIED)]
    assert offer(one, 1) == [(1, KEPT)]
    assert offer(one, 0) == [(0, KEPT)]
    assert offer(one, 0) == []
    assert offer(one, 1) == [(0, APPLIED), (1, APPLIED)]


def test_another_replica_gets_the_token_of_one_that_leaves() -> None:
    one = quorum(2, 3)
    assert offer(one, 0) == [(0, KEPT)]
    assert offer(one, 0) == []
    assert leave(one, 1) == [(0, KEPT)]
    assert offer(one, 0) == [(0, APPLIED)]
    for _ in range(2):
        assert offer(one, 0) == [(0, KEPT)]
    assert offer(one, 0) == [(0, APPLIED)]
    assert leave(one, 0) == []
    assert one.stopped


def test_only_the_first_server_deals_out_tokens() -> None:
    one = quorum(2, 3, servers=2, first=False)
    assert offer(one, 0) == [(0, KEPT)]
    assert offer(one, 1) == [(1, KEPT)]
    assert offer(one, 1) == [(1, KEPT), (0, STEPPED), (1, STEPPED)]
    assert one.steps == 1


def test_a_death_stops_what_two_servers_may_have_counted_apart() -> None:
    one = quorum(2, 3, servers=2)
    offer(one, 0)
    offer(one, 0)
    assert one.lose(1) == [Answer(0, 0, 0, KEPT)]
    assert one.stopped
    alone = quorum(2, 3)
    offer(alone, 0)
    offer(alone, 0)
    assert alone.lose(1) == [Answer(0, 0, 0, KEPT)]
    assert not alone.stopped
