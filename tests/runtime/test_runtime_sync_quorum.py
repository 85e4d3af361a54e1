"""Whose gradients make a synchronous step. All orders of events are tried in tests/distribute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import InvalidArgumentError
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


def test_a_step_awaits_the_new_process_of_a_lost_replica() -> None:
    one = Quorum(Rules(3, True, awaits=True))
    assert offer(one, 0) == []
    assert offer(one, 2) == []
    assert one.lose(2) == []
    assert not one.stopped
    one.join(2, withdrawn=1)
    assert not one.is_held_up  # the former process had given its gradient; the new one gives it again
    assert one.lose(1) == []
    assert one.is_held_up
    one.join(1)
    assert offer(one, 1) == []
    assert offer(one, 2) == [(0, APPLIED), (1, APPLIED), (2, APPLIED)]


def test_a_replica_that_stops_ends_a_step_that_is_held_up() -> None:
    one = Quorum(Rules(3, True, awaits=True))
    offer(one, 0)
    assert one.leave(1) == [Answer(0, 0, 0, STOPPED)]
    one = Quorum(Rules(2, True, awaits=True))
    offer(one, 0)
    one.lose(1)
    assert one.leave(0) == []  # as with several servers, of which another has stopped
    assert [answer.what for answer in one.leave(0, stops=True)] == [STOPPED]


def test_backups_are_spent_before_a_step_is_held_up() -> None:
    one = Quorum(Rules(3, True, 2, awaits=True))
    one.lose(0)
    assert not one.is_held_up
    one.lose(1)
    assert one.is_held_up
    assert offer(one, 2) == []
    one.join(1)
    assert offer(one, 1) == [(2, APPLIED), (1, APPLIED)]


@pytest.mark.parametrize("rules", [{"synchronous": False}, {"synchronous": True, "aggregate": 3}])
def test_only_steps_of_at_most_one_gradient_each_await(rules: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="awaits=True"):
        Rules(2, awaits=True, **rules)  # type: ignore[arg-type]


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(("offer", "lose", "join")), st.integers(0, 3)), max_size=80),
)
def test_steps_are_exact_in_any_order_of_gradients_losses_and_joins(
    replicas: int, events: list[tuple[str, int]]
) -> None:
    """Each replica that is here gives one gradient a step; each step has one of every replica."""
    one = Quorum(Rules(replicas, True, awaits=True))
    dead: set[int] = set()
    given_now: set[int] = set()
    for what, number in events:
        replica = number % replicas
        if what == "lose" and replica not in dead:
            dead.add(replica)
            assert one.lose(replica) == []
        elif what == "join" and replica in dead:
            dead.remove(replica)
            one.join(replica, withdrawn=int(replica in given_now))
            given_now.discard(replica)
        elif what == "offer" and replica not in dead | given_now:
            steps = one.steps
            given_now.add(replica)
            answers = one.offer(replica, 0, True)
            assert one.steps == steps + (len(given_now) == replicas)
            if one.steps > steps:
                assert sorted(answer.replica for answer in answers) == list(range(replicas))
                given_now.clear()
            else:
                assert answers == []
        assert not one.stopped
        assert one.collected == len(given_now)
        assert one.is_held_up == bool(dead - given_now)
