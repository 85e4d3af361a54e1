"""What a run knows of each task that it needs: `Member`, with one state; all of them: `Members`. Pure.

                  message         outcome
        STARTING ─────────► RUNNING ─────────► ENDED
                            │     ▲
          its process is    │     │ joined, or the new process of a server
          dead or frozen    │     │
                            ▼     └─── JOINING ◄─── ADDED ◄─── LEFT
                        SUSPECTED         ▲
                            │             │ new process, which runs the body
                    decided ▼             │
                          LOST ──────► REPLACING

    state        what may follow
    STARTING     RUNNING, ENDED, SUSPECTED, LOST, LEFT
    RUNNING      ENDED, SUSPECTED, LOST, LEFT
    JOINING      RUNNING, ENDED, SUSPECTED, LOST (its body never joined), LEFT
    ENDED        SUSPECTED, LOST, LEFT
    SUSPECTED    LOST, LEFT, ENDED (its outcome was on its way)
    LOST         REPLACING, JOINING and RUNNING (another client has replaced it), LEFT,
                 SUSPECTED (the client that decided has ended)
    REPLACING    JOINING, RUNNING, LOST (it could not be replaced)
    ADDED        JOINING, LEFT (it could not join)
    LEFT         ADDED (under its rank a worker was added to the cluster)

The rest of what is known of a member does not depend on its state: what its present process has said
(`Body`), its outcome, how it was lost (`Loss`), and whether the run can end without it (`Need`). A new
process begins with a new `Body`, so that nothing of a former one remains.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbdist.errors import FailedPreconditionError
from nbdist.run.recovery.replacement import Restart
from nbdist.run.recovery.resizing import Resize
from nbdist.run.recovery.server_recovery import Replaced
from nbdist.run.values.backfill import StreamPosition
from nbdist.runtime.task import TaskInfo
from nbdist.train.context import Tolerance


class State(enum.Enum):
    """The state of a member in its run."""

    STARTING = "starting"
    """Its process has sent no message."""
    RUNNING = "running"
    ENDED = "ended"
    """Its outcome is here."""
    SUSPECTED = "suspected"
    """Its process is dead or frozen, and the run has not decided what follows."""
    LOST = "lost"
    """The run has continued without it, or waits for its new process."""
    REPLACING = "being replaced"
    """It is lost, and a new process is being made."""
    ADDED = "being added"
    """It is new, and receives the body."""
    JOINING = "joining"
    """Its new process runs the body and has not joined the training."""
    LEFT = "left"
    """It takes part no longer."""


AWAY = frozenset({State.LOST, State.REPLACING, State.ADDED, State.LEFT})
"""States of members without which the others train."""
ABSENT = frozenset({State.ADDED, State.LEFT})
"""States of members that are no part of the run, or not yet."""

_NO_LONGER_ACTIVE = {State.ENDED, State.SUSPECTED, State.LOST, State.LEFT}
TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.STARTING: frozenset({State.RUNNING, *_NO_LONGER_ACTIVE}),
    State.RUNNING: frozenset(_NO_LONGER_ACTIVE),
    State.JOINING: frozenset({State.RUNNING, *_NO_LONGER_ACTIVE}),
    State.ENDED: frozenset({State.SUSPECTED, State.LOST, State.LEFT}),
    State.SUSPECTED: frozenset({State.ENDED, State.LOST, State.LEFT}),
    State.LOST: frozenset({State.REPLACING, State.JOINING, State.RUNNING, State.SUSPECTED, State.LEFT}),
    State.REPLACING: frozenset({State.JOINING, State.RUNNING, State.LOST}),
    State.ADDED: frozenset({State.JOINING, State.LEFT}),
    State.LEFT: frozenset({State.ADDED}),
}


class Need(enum.IntEnum):
    """Whether a run can do without a lost member."""

    NONE = 0
    AT_END = 1
    """The others continue; the run ends only with its new process."""
    IN_STEP = 2
    """The steps of the others wait for its new process, too."""


@dataclass
class Body:
    """What a member's present process has said of the body that it runs."""

    trainings: int = 0
    """Trainings begun so far, as far as known."""
    in_fit: bool = False
    """Whether it is in fit, or was at its last message."""
    tolerance: Tolerance = Tolerance.NOTHING
    session: Mapping[str, Any] | None = None
    """The last progress of a monitored session; None before it drives one."""
    has_ended: bool = False
    """Whether it has ended; its outcome is on its way."""
    is_silent: bool = False
    """Whether no more messages come."""
    is_cut: bool = False
    """Whether it is silent only because its connection was lost, and may be heard again."""
    position: StreamPosition = field(default_factory=StreamPosition)
    """How much of its stream has arrived."""


@dataclass
class Loss:
    """How a member was found lost."""

    found: float
    since: float
    """From when on the policy counts how long to wait; later than ``found`` for a new owner of the run."""
    how: str
    """As a sentence without an end."""
    remedy: str = ""


@dataclass(eq=False)
class Member:
    """A task that a run needs: a worker with its body, a parameter server, or a tower.

    ``state`` changes by `move` only.
    """

    info: TaskInfo
    state: State = State.STARTING
    body: Body = field(default_factory=Body)
    outcome: dict[str, Any] | None = None
    """What its body returned; {} if none is expected, None while it is expected."""
    loss: Loss | None = None
    """How its present process was lost."""
    frozen: str = ""
    """How it was found frozen, as the rest of a sentence about it."""
    need: Need = Need.NONE
    observed: bool = False
    """Whether another client, the owner of the run, decides what follows from its loss."""
    entry: Restart | Resize | None = None
    """How its process came into the run; None for one that the run began with."""
    unrestored: Replaced | None = None
    """The replacement of a parameter server, until a worker says that it has restored the parameters."""
    has_driven_session: bool = False
    """Whether a process of it has driven a monitored session."""

    @property
    def rank(self) -> int:
        """The rank of its task."""
        return self.info.rank

    @property
    def is_away(self) -> bool:
        """Whether the others train without it."""
        return self.state in AWAY

    @property
    def is_new(self) -> bool:
        """Whether its process runs the body, and has not joined the training of the others; in any state."""
        entry = self.entry
        return entry is not None and entry.calls is not None and entry.step is None and not entry.problem

    @property
    def is_over(self) -> bool:
        """Whether its body has ended, or is not expected to."""
        return self.outcome is not None or self.body.has_ended

    def move(self, state: State) -> None:
        """Change the state; FailedPreconditionError if no such change is in the diagram above."""
        if state is self.state:
            return
        if state not in TRANSITIONS[self.state]:
            name, now = self.info.name, self.state.value
            raise FailedPreconditionError(f"{name} is {now}, and cannot be {state.value} next")
        self.state = state

    def suspect(self, now: float, how: str, remedy: str) -> None:
        """Note that its process is dead or frozen; the clock of an earlier suspicion continues."""
        found, since = (now, now) if self.loss is None else (self.loss.found, self.loss.since)
        self.loss = Loss(found, since, how, remedy)
        self.move(State.SUSPECTED)

    def end(self, outcome: dict[str, Any]) -> None:
        """Note its outcome; a member that is away stays away."""
        self.outcome = outcome
        if not self.is_away:
            self.move(State.ENDED)

    def expect_nothing(self) -> None:
        """Expect no outcome, unless it is here, and no more messages."""
        if self.outcome is None:
            self.end({})
        self.body.is_silent = True

    def renew(self, info: TaskInfo, state: State, entry: Restart | Resize | None = None) -> None:
        """Have another process; what the former one has said is forgotten."""
        self.move(state)
        self.info, self.entry, self.body = info, entry, Body()
        self.outcome = self.loss = None
        self.frozen, self.observed = "", False

    def heard(self, progress: Mapping[str, Any]) -> None:
        """Take in a progress message of its body."""
        body = self.body
        if self.state is State.STARTING:
            self.move(State.RUNNING)
        body.trainings, body.in_fit = progress["trainings"], progress["epoch"] is not None
        body.tolerance = Tolerance(progress.get("tolerance", Tolerance.NOTHING))
        if Tolerance.SESSION in body.tolerance:
            body.session, self.has_driven_session = progress, True


class Members:
    """The members of a run, workers in the order of their replicas' numbers.

    - ``workers``: tasks that run the body; ``servers`` and ``towers``: other tasks that the run needs
    """

    def __init__(
        self, workers: Iterable[TaskInfo], servers: Iterable[TaskInfo] = (), towers: Iterable[TaskInfo] = ()
    ) -> None:
        self.workers = [Member(info) for info in workers]
        self.servers = [Member(info, State.RUNNING) for info in servers]
        self.towers = [Member(info, State.RUNNING) for info in towers]

    def __iter__(self) -> Iterator[Member]:
        return iter((*self.workers, *self.servers, *self.towers))

    def of(self, rank: int) -> Member | None:
        """Return the member of a rank, None if the run has none; the worker, if a tower has its rank too."""
        return next((one for one in self if one.rank == rank), None)

    def worker(self, rank: int) -> Member:
        """Return the worker of a rank."""
        return next(one for one in self.workers if one.rank == rank)

    def add(self, info: TaskInfo) -> Member:
        """Return the member of a worker that was added: another one, or that of its rank, which had left."""
        member = next((one for one in self.workers if one.rank == info.rank), None)
        if member is None:
            member = Member(info, State.LEFT)
            self.workers.append(member)
        member.move(State.LEFT)  # it may have been removed from the cluster before this client noticed
        member.renew(info, State.ADDED)
        member.expect_nothing()
        return member

    def number(self, member: Member) -> int:
        """Return the number of a worker's replica."""
        return next(number for number, one in enumerate(self.workers) if one is member)

    @property
    def infos(self) -> list[TaskInfo]:
        """The workers' tasks, as they are now."""
        return [one.info for one in self.workers]

    @property
    def chief(self) -> Member:
        """The first worker."""
        return self.workers[0]

    @property
    def here(self) -> list[Member]:
        """The workers that are not away."""
        return [one for one in self.workers if not one.is_away]

    @property
    def taking_part(self) -> list[Member]:
        """The workers that have not left; those that are lost are among them."""
        return [one for one in self.workers if one.state not in ABSENT]

    @property
    def away(self) -> set[int]:
        """The ranks of tasks that are lost or take no part, while the others continue."""
        return {one.rank for one in self if one.is_away}

    @property
    def outcomes(self) -> dict[int, dict[str, Any]]:
        """What bodies have returned, by rank; {} for those of which nothing is expected."""
        return {one.rank: one.outcome for one in self.workers if one.outcome is not None}

    @property
    def all_ended(self) -> bool:
        """Whether no more outcomes are expected."""
        return all(one.outcome is not None for one in self.workers)

    @property
    def ended_bodies(self) -> set[int]:
        """The ranks of workers with a body that has ended; their outcomes may be on their way."""
        return {one.rank for one in self.workers if one.body.has_ended}

    @property
    def have_trained(self) -> bool:
        """Whether a body has begun to train, as far as known."""
        return any(one.body.trainings for one in self.workers)

    @property
    def have_sessions(self) -> bool:
        """Whether a body drives a monitored session, or has driven one."""
        return any(one.has_driven_session for one in self.workers)

    @property
    def needed_by_sessions(self) -> int:
        """With how few workers sessions make steps, where workers wait for each other; else 0."""
        found = (one.body.session["needed_workers"] for one in self.workers if one.body.session)
        return max(found, default=0)


def unequal_fits(workers: Sequence[Member]) -> FailedPreconditionError | None:
    """Return an error if a replica waits in a fit() that another one's body has ended without; else None.

    Workers that are away do not count.
    """
    most = max((one.body.trainings for one in workers), default=0)
    ended = {one.rank: one.outcome.get("trainings", 0) for one in workers if one.outcome is not None}
    short = [one for one in workers if not one.is_away and ended.get(one.rank, math.inf) < most]
    if not short:
        return None
    waits = next(one.info.name for one in workers if one.body.trainings == most)
    finished = " and ".join(f"{one.info.name} finished after {ended[one.rank]}" for one in short)
    return FailedPreconditionError(
        f"{waits} is waiting in fit() call {most}, but {finished}: replicas that share parameters have to "
        "call fit() equally often. Call it on every worker, or use --strategy one_device"
    )
