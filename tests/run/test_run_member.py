"""The states of a run's members: the diagram's changes, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbdist.errors import FailedPreconditionError
from nbdist.run.control import progress_message
from nbdist.run.recovery import member as module
from nbdist.run.recovery.member import (
    ABSENT,
    AWAY,
    TRANSITIONS,
    Member,
    Members,
    State,
    unequal_fits,
)
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Context, Tolerance
from nbdist.wire.rpc.frame import Frame, decode, encode


def a_task(index: int, job: str = "worker", incarnation: int = 1) -> TaskInfo:
    return TaskInfo(job, index, index, "here", 100 + index, "127.0.0.1:1", "CPU:0", incarnation)


def progress(**said: Any) -> dict[str, Any]:
    return {"trainings": 0, "epoch": None, **said}


@given(st.lists(st.sampled_from(State)))
def test_a_member_changes_as_the_diagram_says_and_stays_as_it_is_otherwise(wanted: list[State]) -> None:
    member = Member(a_task(0))
    for state in wanted:
        before = member.state
        if state is before or state in TRANSITIONS[before]:
            member.move(state)
            assert member.state is state
        else:
            with pytest.raises(
                FailedPreconditionError, match=f"is {before.value}, and cannot be {state.value}"
            ):
                member.move(state)
            assert member.state is before


def test_the_table_at_the_top_of_the_module_is_the_one_that_holds() -> None:
    table = str(module.__doc__).partition("what may follow\n")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {}
    state = ""
    for line in table.splitlines():
        name, *_ = line.split()
        if line[4] != " ":
            state, line = name, line.replace(name, "", 1)
        found.setdefault(state, set()).update(re.findall("[A-Z]{4,}", line))
    assert found == {one.name: {after.name for after in TRANSITIONS[one]} for one in State}


def test_each_state_is_reached_and_left() -> None:
    reached, found = {State.STARTING}, {State.STARTING}
    while found:
        found = {after for before in found for after in TRANSITIONS[before]} - reached
        reached |= found
    assert reached == set(State)
    assert all(TRANSITIONS[state] for state in State)
    assert ABSENT < AWAY


def test_a_worker_is_lost_and_its_new_process_begins_with_nothing() -> None:
    members = Members([a_task(0), a_task(1)])
    member = members.worker(1)
    member.heard(progress(trainings=2, epoch=1, tolerance=Tolerance.RESTORES))
    assert (member.state, member.body.tolerance) == (State.RUNNING, Tolerance.RESTORES)
    member.suspect(3.0, "it died", "start it again")
    member.suspect(4.0, "it died", "start it again")
    assert member.loss is not None
    assert member.loss.since == 3.0
    assert members.here == members.workers  # nothing is decided
    member.move(State.LOST)
    member.expect_nothing()
    assert (members.away, members.outcomes) == ({1}, {1: {}})
    member.move(State.REPLACING)
    member.renew(a_task(1, incarnation=2), State.JOINING)
    assert (members.away, members.outcomes) == (set(), {})
    assert (member.body.trainings, member.body.tolerance, member.loss) == (0, Tolerance.NOTHING, None)


def test_an_outcome_of_a_member_that_is_away_does_not_bring_it_back() -> None:
    member = Member(a_task(0))
    member.move(State.LOST)
    member.end({"step": 3})
    assert member.state is State.LOST
    member.expect_nothing()
    assert member.outcome == {"step": 3}


def test_an_added_worker_has_the_number_of_the_one_that_left_under_its_rank() -> None:
    members = Members([a_task(0), a_task(1)])
    members.worker(0).move(State.LEFT)
    again = members.add(a_task(0, incarnation=2))
    more = members.add(a_task(2))
    assert [members.number(one) for one in (again, more)] == [0, 2]
    assert [one.state for one in members.workers] == [State.ADDED, State.STARTING, State.ADDED]
    assert members.taking_part == [members.worker(1)]
    assert not members.all_ended  # of the one that takes part
    assert set(members.outcomes) == {0, 2}


def test_what_a_task_tolerates_is_one_field_of_its_message() -> None:
    context = Context()
    context.tolerances.open("training", Tolerance.RESTORES | Tolerance.AWAITS)
    member = Member(a_task(0))
    member.heard(
        decode(encode(Frame("run.progress", {"progress": progress_message(context)}))).meta["progress"]
    )
    assert member.body.tolerance == Tolerance.RESTORES | Tolerance.AWAITS
    assert member.body.tolerance.of_servers
    context.tolerances.close("training")
    member.heard(progress_message(context))
    assert not member.body.tolerance.of_servers


def test_a_replica_that_waits_in_a_fit_that_another_has_ended_without_is_an_error() -> None:
    members = Members([a_task(0), a_task(1)])
    first, second = members.workers
    first.heard(progress(trainings=2, epoch=1))
    assert unequal_fits(members.workers) is None
    second.end({"trainings": 1})
    error = unequal_fits(members.workers)
    assert error is not None
    assert "task:0 is waiting in fit() call 2, but /job:worker/task:1 finished after 1" in str(error)
    second.move(State.LOST)
    assert unequal_fits(members.workers) is None
