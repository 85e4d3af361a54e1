"""What follows from the loss of a task: a row for each case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from nbdist.run.membership import MembershipRules
from nbdist.run.options import Options
from nbdist.run.recovery.member import Member, Members, Need, State
from nbdist.run.recovery.policy import (
    JOINED_SECONDS,
    SESSION_SECONDS,
    TRAINING_SECONDS,
    WORKER_SECONDS,
    Action,
    Decision,
    Facts,
    decide,
)
from nbdist.run.recovery.replacement import Restart
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Tolerance

PS, SYNC = Options(strategy="ps"), Options(strategy="ps", synchronous=True)
BACKUP = Options(strategy="ps", synchronous=True, backups=1, max_restarts=0)
REDUCE, CELL = Options(strategy="multi_worker"), Options()
SPENT = "it is not replaced: the restart budget is spent"


def a_task(job: str, index: int, rank: int) -> TaskInfo:
    return TaskInfo(job, index, rank, "here", 100 + rank, "127.0.0.1:1", "CPU:0", 1)


def say(member: Member, **said: Any) -> None:
    member.heard({"trainings": 0, "epoch": None, **said})


def fit(member: Member, trainings: int = 1, **said: Any) -> None:
    say(member, trainings=trainings, epoch=1, **said)


def restores(member: Member) -> None:
    fit(member, tolerance=Tolerance.RESTORES)


def awaits(member: Member) -> None:
    fit(member, tolerance=Tolerance.RESTORES | Tolerance.AWAITS)


def session(member: Member, number: int = 1, needed: int = 0) -> None:
    say(member, tolerance=Tolerance.SESSION, sessions=number, needed_workers=needed)


def several(member: Member) -> None:
    session(member, number=2)


def synchronous(member: Member) -> None:
    session(member, needed=3)


def closed(member: Member) -> None:
    session(member)
    say(member)


def ended(member: Member) -> None:
    member.end({"trainings": 1})


def ending(member: Member) -> None:
    restores(member)
    member.body.has_ended = True


def lost(member: Member) -> None:
    restores(member)
    member.move(State.LOST)
    member.expect_nothing()


def replaced(member: Member) -> None:
    session(member)
    member.move(State.LOST)
    member.move(State.REPLACING)


def joining(member: Member) -> None:
    member.move(State.LOST)
    restart = Restart(member.info, "it died", 1, 0.0, new=member.info, calls=object())  # type: ignore[arg-type]
    member.renew(member.info, State.JOINING, restart)


def dead(member: Member) -> None:
    fit(member)
    member.suspect(0.0, "it died", "")


def second(member: Member) -> None:
    fit(member, trainings=2)


def silent(member: Member) -> None:
    """Nothing was heard of it."""


class Case(NamedTuple):
    options: Options
    workers: tuple[Callable[[Member], object], ...]
    lost: int
    """The number of a worker; -1 for the first parameter server."""
    decision: Action
    servers: int = 1
    after: float = 0.0
    need: Need = Need.NONE
    refusal: str | None = ""
    spent: str = ""
    said: str = ""
    interrupted: bool = False
    errors: tuple[int, ...] = ()


CONTINUE, WAIT, REPLACE, FAIL = Action.CONTINUE, Action.WAIT, Action.REPLACE, Action.FAIL
CASES = {
    # A parameter server.
    "server of a fit": Case(PS, (restores, restores), -1, REPLACE),
    "server of a fit that one has not reached": Case(PS, (restores, silent), -1, REPLACE),
    "server of a fit that does not restore": Case(PS, (fit, fit), -1, FAIL),
    "server before a training may begin": Case(PS, (silent, silent), -1, WAIT),
    "server where none begins": Case(PS, (silent, silent), -1, FAIL, after=SESSION_SECONDS),
    "server of a session": Case(CELL, (session, session), -1, REPLACE),
    "server of a session that one has closed": Case(CELL, (session, closed), -1, WAIT),
    "server without a budget": Case(PS, (restores, restores), -1, FAIL, spent=SPENT, said=SPENT),
    "server of workers that are replaced": Case(CELL, (replaced, replaced), -1, REPLACE),
    "server when all workers are lost": Case(PS, (lost, lost), -1, FAIL),
    "server while outcomes are on their way": Case(PS, (ending, ending), -1, WAIT),
    "server that has broken a body": Case(PS, (ending, ending), -1, FAIL, errors=(1,)),
    # A worker of a session.
    "worker of a session": Case(CELL, (session, session), 1, CONTINUE),
    "chief of a session": Case(CELL, (session, session), 0, REPLACE, need=Need.AT_END),
    "only worker of a session": Case(CELL, (session,), 0, REPLACE, need=Need.AT_END),
    "session that needs all": Case(CELL, (synchronous,) * 3, 2, REPLACE, need=Need.AT_END),
    "chief of a session without a budget": Case(CELL, (session, session), 0, FAIL, refusal=SPENT, said=SPENT),
    "worker of several sessions": Case(CELL, (several, several), 1, FAIL, said="several monitored sessions"),
    "worker of a session, never replaced": Case(CELL, (session, session), 1, CONTINUE, refusal=None),
    "worker after its session": Case(CELL, (session, closed), 1, FAIL),
    "worker of a session that is stopped": Case(CELL, (session, session), 1, FAIL, interrupted=True),
    # A worker of a plain cell, which may yet begin to train.
    "worker of a cell": Case(CELL, (silent, silent), 1, WAIT),
    "worker of a cell, later": Case(CELL, (silent, silent), 1, FAIL, after=TRAINING_SECONDS),
    # A worker of a fit.
    "asynchronous worker": Case(PS, (restores, restores), 1, CONTINUE),
    "asynchronous worker after its end": Case(PS, (restores, ended), 1, CONTINUE),
    "chief of servers": Case(PS, (restores, restores), 0, REPLACE, need=Need.AT_END),
    "chief of servers without a budget": Case(PS, (restores, restores), 0, FAIL, refusal=SPENT, said=SPENT),
    "chief of servers, never replaced": Case(PS, (restores, restores), 0, FAIL, refusal=None),
    "chief of servers in its second fit": Case(PS, (second, second), 0, FAIL),
    "chief of servers after its end": Case(PS, (ended, restores), 0, FAIL),
    "chief before its first message": Case(PS, (silent, silent), 0, WAIT),
    "chief before its first message, later": Case(PS, (silent, silent), 0, FAIL, after=JOINED_SECONDS),
    "chief before its first message, others train": Case(
        PS, (silent, restores), 0, REPLACE, need=Need.AT_END, after=WORKER_SECONDS
    ),
    "last worker": Case(PS, (lost, restores), 1, FAIL),
    "two workers at once": Case(PS, (restores, dead, restores), 2, CONTINUE),
    "backup worker": Case(BACKUP, (fit, fit), 1, CONTINUE),
    "more workers than backups": Case(BACKUP, (fit, dead, fit), 2, FAIL, after=WORKER_SECONDS),
    # A worker of a synchronous step that waits for the new process.
    "synchronous worker": Case(SYNC, (awaits, awaits), 1, REPLACE, need=Need.IN_STEP),
    "synchronous chief": Case(SYNC, (awaits, awaits), 0, REPLACE, need=Need.IN_STEP),
    "synchronous worker before the fit": Case(SYNC, (silent, silent), 1, WAIT),
    "synchronous worker, no fit": Case(SYNC, (fit, fit), 1, FAIL, after=WORKER_SECONDS),
    "synchronous worker without a budget": Case(SYNC, (awaits, awaits), 1, FAIL, refusal=SPENT, said=SPENT),
    "synchronous worker that is stopped": Case(SYNC, (awaits, awaits), 1, FAIL, interrupted=True),
    # Workers that keep the parameters themselves.
    "worker of an all-reduce": Case(REDUCE, (fit, fit), 1, CONTINUE, servers=0),
    "chief of an all-reduce": Case(REDUCE, (fit, fit), 0, CONTINUE, servers=0),
    "worker, others have not joined": Case(REDUCE, (joining, fit), 1, WAIT, servers=0),
    "worker, others never joined": Case(
        REDUCE, (joining, fit), 1, FAIL, servers=0, after=JOINED_SECONDS, said="worker/task:0 had not joined"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_follows_from_a_loss(case: Case) -> None:
    number = len(case.workers)
    members = Members(
        [a_task("worker", rank, rank) for rank in range(number)],
        [a_task("ps", index, number + index) for index in range(case.servers)],
    )
    for prepare, member in zip(case.workers, members.workers, strict=True):
        prepare(member)
    victim = members.workers[case.lost] if case.lost >= 0 else members.servers[0]
    victim.suspect(0.0, "it died", "")
    rules = MembershipRules.of(case.options, number, case.servers)
    facts = Facts(
        case.after, rules, case.refusal, case.spent, interrupted=case.interrupted, errors=case.errors
    )
    found = decide(victim, members, facts)
    assert (found.action, found.need) == (case.decision, case.need), found
    assert case.said in f"{found.refusal}{found.missing}"


def test_a_lost_tower_ends_the_run() -> None:
    tower = a_task("worker", 0, 0)
    members = Members([a_task("client", 0, 1)], towers=[tower])
    rules = MembershipRules.of(Options(replication="in-graph"), 1, 0)
    assert decide(members.towers[0], members, Facts(0.0, rules)) == Decision(Action.FAIL)
