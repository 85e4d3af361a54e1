"""What follows from the loss of a task: `decide`. Pure.

    decide(member, members, facts)  ──►  CONTINUE | WAIT | REPLACE | FAIL

The questions, in this order:

parameter server   Do all bodies survive its loss? Then it is replaced.
session            Does its body drive a monitored session? The variables are on other tasks, so the others
                   continue, and a new process joins them. If the sessions make no steps without it, or if it
                   is the chief, the run ends only with that process.
step               Do the steps of the others wait for its new process? Then it is replaced.
workers            Are enough left to train without it? The chief is needed all the same where the run ends
                   with it: its new process has the results, of the first fit only, because it takes no part
                   in an earlier one.
parameters         Is one left that has the parameters? A new process that has not joined has none.

A message that answers one of them may still arrive: the decision is then WAIT, for as long as the constants
say, counted from when the loss was found.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from nbdist.run.membership import MembershipRules
from nbdist.run.recovery.member import Member, Members, Need, State
from nbdist.train.context import Tolerance

SESSION_SECONDS = 1.0  # in which the first message of a session may follow the death of a parameter server
WORKER_SECONDS = 0.5  # likewise, of a session or a training, the death of a worker, whose error waits so long
TRAINING_SECONDS = 1.0  # likewise, of a training that the run's options do not ask for
JOINED_SECONDS = 1.0  # in which the message that a new process has joined may follow a worker's death


class Action(enum.Enum):
    """What a run does about a lost task."""

    CONTINUE = "the others continue without it, and a new process may join them"
    WAIT = "a message may still say what to do"
    REPLACE = "the run needs its new process"
    FAIL = "the run ends"


@dataclass(frozen=True)
class Decision:
    """What to do about a lost task."""

    action: Action
    refusal: str = ""
    """Why a task is not replaced that the run needs."""
    missing: str = ""
    """What is missing without the task, as a sentence without an end."""
    need: Need = Need.NONE
    by_session: bool = False
    """Whether the others continue because they drive a monitored session."""


@dataclass(frozen=True)
class Facts:
    """What a decision depends on besides the members of the run."""

    now: float
    rules: MembershipRules
    refusal: str | None = ""
    """Why no worker is replaced now, empty if one is; None if this run never replaces any."""
    spent: str = ""
    """Why no parameter server is replaced now: the restart budget is spent; empty if one is."""
    interrupted: bool = False
    errors: Collection[int] = ()
    """Ranks with errors that may be consequences of the loss."""


CONTINUE, WAIT, FAIL = Decision(Action.CONTINUE), Decision(Action.WAIT), Decision(Action.FAIL)


def decide(lost: Member, members: Members, facts: Facts) -> Decision:
    """Return what follows from the loss of a member; all members that are found dead are SUSPECTED."""
    if lost in members.servers:
        return _without_server(lost, members, facts)
    if lost not in members.workers:
        return FAIL
    by_session = _session(lost, members, facts)
    if by_session is not None and by_session.action is not Action.FAIL:
        return by_session
    others_train = _others_train(lost, members, facts)
    if others_train is None:
        return WAIT
    found = (_workers if others_train else _step)(lost, members, facts)
    return found if by_session is None or found.action is not Action.FAIL else by_session


def _is_later(lost: Member, facts: Facts, seconds: float) -> bool:
    """Return whether so many seconds have passed since the loss was found."""
    assert lost.loss is not None
    return facts.now - lost.loss.since >= seconds


def _replaced(facts: Facts, need: Need, by_session: bool = False) -> Decision:
    """Have a worker replaced that the run needs."""
    if facts.refusal:
        return Decision(Action.FAIL, refusal=facts.refusal)
    return Decision(Action.REPLACE, need=need, by_session=by_session)


def _without_server(lost: Member, members: Members, facts: Facts) -> Decision:
    replaced = Decision(Action.FAIL, refusal=facts.spent) if facts.spent else Decision(Action.REPLACE)
    bodies = [one for one in members.here if one.outcome is None and not one.is_new]
    if not bodies:
        coming = any(one.state is State.REPLACING or one.is_new for one in members.workers)
        return replaced if members.have_sessions and coming else FAIL  # their new processes will wait for it
    bodies = [one for one in bodies if not one.body.has_ended]  # the others' outcomes are on their way
    if not bodies:
        return FAIL if set(facts.errors) - members.outcomes.keys() else WAIT
    if all(_survives_server(one, members) for one in bodies):
        return replaced
    begins = not members.have_trained or any(one.body.tolerance.of_servers for one in bodies)
    return WAIT if begins and not _is_later(lost, facts, SESSION_SECONDS) else FAIL


def _survives_server(one: Member, members: Members) -> bool:
    """Return whether a body survives the loss of a parameter server.

    If one trains by a fit that does, so do others that have not reached that fit, or have returned from it:
    they use no server now.
    """
    fits = any(Tolerance.RESTORES in other.body.tolerance for other in members.workers)
    return one.body.tolerance.of_servers or (fits and not one.body.in_fit)


def _session(lost: Member, members: Members, facts: Facts) -> Decision | None:
    """Decide where bodies drive a monitored session; None where they do not."""
    if lost.outcome is not None or facts.interrupted or members.have_trained:
        return None
    sessions = [one.body.session for one in members.workers if one.body.session is not None]
    recovers = any(one.body.tolerance.of_servers for one in members.workers)
    if not recovers or (lost.body.session is not None and not lost.body.tolerance.of_servers):
        return None if sessions or _is_later(lost, facts, WORKER_SECONDS) else WAIT
    if any(one["sessions"] > 1 for one in sessions):
        several = "its body has made several monitored sessions, and a new process would begin with the first"
        return Decision(Action.FAIL, refusal=f"it is not replaced: {several} one")
    others = [one for one in members.here if one is not lost]
    if facts.refusal is None:
        return Decision(Action.CONTINUE, by_session=True) if others else None
    least = max(1, min(members.needed_by_sessions, len(members.workers)))
    if lost is members.chief or len(others) < least:
        return _replaced(facts, Need.AT_END, by_session=True)
    return Decision(Action.CONTINUE, by_session=True)


def _others_train(lost: Member, members: Members, facts: Facts) -> bool | None:
    """Return whether enough other workers are left to train; None if the run may yet begin to train."""
    rules = facts.rules
    least = rules.least(len(members.taking_part))
    left = [one for one in members.here if one.state is not State.SUSPECTED]
    if least is None or len(left) < least:
        return False
    replaces = facts.refusal is not None and rules.replaces_workers
    if lost is members.chief and rules.needs_chief and not replaces:
        return False
    if rules.trains or members.have_trained:
        return True
    return False if members.have_sessions or _is_later(lost, facts, TRAINING_SECONDS) else None


def _step(lost: Member, members: Members, facts: Facts) -> Decision:
    """Decide where too few are left: their steps may wait for the new process of the lost one."""
    over = lost.outcome is not None or facts.interrupted
    if facts.refusal is None or not facts.rules.awaits_workers or over:
        return FAIL
    if not any_awaits_in_step(members.workers):
        return FAIL if _is_later(lost, facts, WORKER_SECONDS) else WAIT
    as_chief = _chief(lost, members, facts)
    if as_chief.action in (Action.WAIT, Action.FAIL):
        return as_chief
    return _replaced(facts, Need.IN_STEP)


def any_awaits_in_step(workers: Iterable[Member]) -> bool:
    """Return whether the steps of any of these workers wait for a lost one, if its body has not ended."""
    return any(Tolerance.AWAITS in one.body.tolerance and not one.is_over for one in workers)


def _workers(lost: Member, members: Members, facts: Facts) -> Decision:
    """Decide where enough others are left to train."""
    found = _chief(lost, members, facts)
    if found.action in (Action.WAIT, Action.FAIL):
        return found
    new = _only_new_left(lost, members, facts)
    if not new:
        return found
    if not _is_later(lost, facts, JOINED_SECONDS):
        return WAIT
    names = ", ".join(one.info.name for one in new)
    missing = f"No other worker has the parameters: {names} had not joined the training yet"
    return Decision(Action.FAIL, missing=missing)


def _chief(lost: Member, members: Members, facts: Facts) -> Decision:
    """Decide about the chief of a run that ends with it; CONTINUE for any other worker."""
    if lost is not members.chief or not facts.rules.needs_chief:
        return CONTINUE
    if facts.refusal is None or lost.outcome is not None:
        return FAIL
    # It may have died, also as a new process that joins, before its first message with an epoch: the others
    # run the same body.
    known = [lost] if lost.body.in_fit else [lost, *members.here]
    if max(one.body.trainings for one in known) > 1:
        return FAIL
    if not any(one.body.in_fit for one in known):
        return FAIL if _is_later(lost, facts, JOINED_SECONDS) else WAIT
    return _replaced(facts, Need.AT_END)


def _only_new_left(lost: Member, members: Members, facts: Facts) -> list[Member]:
    """Return the other workers, if workers keep the parameters and these have none yet.

    They wait to join the training, and no worker is left that could admit them.
    """
    if members.servers or facts.refusal is None or members.ended_bodies:
        return []
    left = [one for one in members.here if one is not lost]
    return left if all(one.is_new for one in left) else []
