"""How gradients of several replicas become updates: the rules of a training on parameter servers. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from nbdist.errors import InvalidArgumentError
from nbdist.numbers import is_whole
from nbdist.runtime.ps.mailbox import SLOTS

MOST = 0xFFFF  # replicas and servers have numbers of two bytes on the wire


@dataclass(frozen=True)
class Rules:
    """The rules of one training, checked; raises InvalidArgumentError for invalid values.

    ``synchronous`` adds the gradients of ``aggregate`` batches to one update; None is one batch of each
    replica. With fewer than there are replicas, the others are backups and the fastest make the step; with
    more, replicas contribute several batches. Asynchronous replicas may be ``staleness`` steps ahead of the
    slowest, or as far as they like if it is None. ``locking`` keeps reads apart from updates. ``servers`` is
    how many parameter servers there are. With ``awaits`` a synchronous step waits for the new process of a
    lost replica that it needs. Asynchronous ``replicas`` may include ``spare`` ones, the last, for workers
    that are added later: until then they count as lost.

    >>> Rules(replicas=3, synchronous=True, aggregate=2).backups
    1
    """

    replicas: int
    synchronous: bool = False
    aggregate: int | None = None
    staleness: int | None = None
    locking: bool = False
    servers: int = 1
    awaits: bool = False
    spare: int = 0

    def __post_init__(self) -> None:
        for name, number in (("replicas", self.replicas), ("servers", self.servers)):
            if not is_whole(number, 1, MOST):
                raise InvalidArgumentError(f"{name}={number!r}: a training has 1 to {MOST:,} {name}")
        if self.spare and (self.synchronous or not is_whole(self.spare, 1, self.replicas - 1)):
            raise InvalidArgumentError(
                f"spare must be 0 to replicas - 1, and 0 for synchronous replicas, got spare={self.spare!r}, "
                f"replicas={self.replicas}, synchronous={self.synchronous}"
            )
        if self.aggregate is not None:
            if not self.synchronous:
                raise InvalidArgumentError(
                    f"aggregate={self.aggregate!r} says how many gradients make a synchronous step, and "
                    "asynchronous ones are applied one by one: add synchronous=True, or drop it"
                )
            if not is_whole(self.aggregate, 1):
                raise InvalidArgumentError(
                    f"aggregate={self.aggregate!r}: a synchronous step is made of 1 or more gradients; with "
                    f"{self.replicas} replicas, {self.replicas} is one of each, fewer make the others "
                    "backups, and more let replicas contribute several batches"
                )
        if self.staleness is not None:
            if self.synchronous:
                raise InvalidArgumentError(
                    f"staleness={self.staleness!r} bounds how far asynchronous replicas get apart, and "
                    "synchronous=True keeps them together anyway: drop one of the two"
                )
            if not is_whole(self.staleness, 0):
                raise InvalidArgumentError(
                    f"staleness={self.staleness!r}: how many steps a replica may be ahead of the slowest is "
                    "a whole number of 0 or more; None sets no bound"
                )
        if self.awaits and (not self.synchronous or self.several):
            raise InvalidArgumentError(
                "awaits=True has a synchronous step wait for the new process of a lost replica: it takes "
                f"synchronous=True and no more gradients a step than replicas, got {self}"
            )

    @property
    def first(self) -> int:
        """How many replicas the training begins with; each has a place in a server's shared memory.

        >>> Rules(replicas=66, spare=64).first
        2
        """
        return self.replicas - self.spare

    @property
    def needed(self) -> int:
        """How many gradients make a synchronous step."""
        return self.replicas if self.aggregate is None else self.aggregate

    @property
    def backups(self) -> int:
        """How many replicas' gradients a synchronous step can do without."""
        return max(0, self.replicas - self.needed)

    @property
    def several(self) -> bool:
        """Whether replicas contribute several batches to one synchronous step."""
        return self.needed > self.replicas

    @property
    def judged_apart(self) -> bool:
        """Whether one server may drop a gradient that another takes."""
        return self.synchronous and self.backups > 0 and self.servers > 1

    @property
    def scale(self) -> float:
        """The factor that makes the sum of a step's gradients that of a global batch.

        A gradient is the sum over its replica's share of a batch of B examples, divided by B, so that those
        of all N replicas add up to the mean over the batch. R of them are of B * R / N examples, and their
        sum is N/R times too small to be the mean over these, with backups (R < N) as with several batches of
        a replica (R > N): the global batch of a step is R shares.
        """
        return self.replicas / self.needed if self.synchronous else 1.0

    @property
    def depth(self) -> int:
        """How many gradients a replica may have under way while it computes: one if steps wait for all."""
        return 1 if self.synchronous or self.staleness == 0 else SLOTS

    def fails_without(self, dead: int) -> bool:
        """Whether so many deaths leave a synchronous training without enough replicas for a step.

        With several batches a step and several servers one death does: not all servers may have its gradient.
        """
        if not self.synchronous or not dead:
            return False
        return self.servers > 1 if self.several else self.replicas - dead < self.needed

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, from which ``Rules(**values)`` is the same."""
        return asdict(self)


# The quorum of a synchronous step: the first R gradients that arrive make it. A state machine, without
# arrays or clocks.
#
# R gradients of N replicas make a step. With R < N there are N - R backups: a gradient that arrives after the
# R fastest is dropped, and its replica is informed immediately and continues with the newest parameters. With
# R > N a step has R tokens: a replica takes another one after each gradient, until they are spent. These are
# the rules of TensorFlow's SyncReplicasOptimizer (Chen et al., 2016, arXiv:1604.00981); there, too, each
# server takes its own first R.
#
# A lost replica makes a step impossible if fewer than R are left. The training stops then, unless its rules
# await the replica's new process: that one gives the gradient of the former one, at the same step.


class Quorum:
    """The replicas that contributed to the step being collected, those that wait, and those that have left.

    With several servers and R > N only the ``first`` hands out tokens, because two servers that did could
    let replicas wait for each other. The others collect all gradients, and answer when they have R.

    >>> quorum = Quorum(Rules(replicas=3, synchronous=True, aggregate=2))
    >>> quorum.offer(0, token=0, fresh=True)
    []
    >>> [answer.replica for answer in quorum.offer(2, token=0, fresh=True)]
    [0, 2]
    """

    def __init__(self, rules: Rules, *, first: bool = True) -> None:
        self.rules = rules
        self.steps = 0
        """How many steps are complete."""
        self.collected = 0
        """How many gradients the next one has."""
        self.stopped = False
        """Whether no step can complete any more."""
        self._deals = rules.several and (first or rules.servers == 1)
        self._here = set(range(rules.replicas))
        self._left: set[int] = set()
        self._awaited: set[int] = set()
        self._contributed: set[int] = set()
        self._waiting: list[Answer] = []

    @property
    def waits(self) -> bool:
        """Whether a replica waits for the step to complete."""
        return bool(self._waiting)

    def present(self) -> list[int]:
        """Return the replicas that have neither left nor died."""
        return sorted(self._here)

    @property
    def is_held_up(self) -> bool:
        """Whether the step can complete only with a gradient of a lost replica's new process."""
        return not self.stopped and bool(self._awaited) and self._possible(self._here) < self.rules.needed

    def offer(self, replica: int, token: int, fresh: bool) -> list[Answer]:
        """Record a gradient, which is ``fresh`` unless its step is over; return the answers to send.

        ``steps`` goes up if that was the last one of its step.
        """
        if replica not in self._left:
            self._here.add(replica)  # also one that was taken for dead
        if self.stopped or not fresh:
            return [Answer(replica, token, 0, STOPPED if self.stopped else DROPPED)]
        self.collected += 1
        self._contributed.add(replica)
        mine = Answer(replica, token, 0, APPLIED)
        if self.collected == self.rules.needed:
            return self._complete(mine)
        if self.rules.several and not (self._deals and self._tokens(besides=replica) <= 0):
            return [mine._replace(what=KEPT)]
        self._waiting.append(mine)
        if self._short():
            return self._stop()
        return [mine._replace(what=TAKEN)] if self.rules.judged_apart else []

    def leave(self, replica: int, *, stops: bool = False) -> list[Answer]:
        """Release a replica, keeping its gradients of this step; return the answers to send.

        Waiting replicas are stopped only if their step cannot complete. Another replica gets a token that
        this one has not spent. One that ``stops`` does not wait for a lost replica any longer, and neither do
        the others.
        """
        self._left.add(replica)
        answers = self._continue_without(replica)
        return answers + self._stop() if stops and self.is_held_up else answers

    def join(self, replica: int, withdrawn: int = 0) -> None:
        """Expect gradients of a replica's new process, from the current step on.

        ``withdrawn`` gradients of its former process are not in the current step any more: the new process
        gives its own, and would take the answers to them for answers to these.

        >>> quorum = Quorum(Rules(replicas=3, synchronous=True, aggregate=2))
        >>> quorum.offer(0, token=0, fresh=True), quorum.lose(0)
        ([], [])
        >>> quorum.join(0, withdrawn=1)
        >>> quorum.offer(0, token=1, fresh=True)
        []
        >>> [(answer.replica, answer.token) for answer in quorum.offer(1, token=0, fresh=True)]
        [(0, 1), (1, 0)]
        """
        self._left.discard(replica)
        self._awaited.discard(replica)
        self._here.add(replica)
        self.collected -= withdrawn
        self._contributed.discard(replica)
        self._waiting = [answer for answer in self._waiting if answer.replica != replica]

    def lose(self, replica: int) -> list[Answer]:
        """Release a replica that has died, or await its new process; return the answers to send.

        If it may have sent a gradient to one server and not to another, the servers' steps would differ: the
        training stops.

        >>> quorum = Quorum(Rules(replicas=2, synchronous=True, awaits=True))
        >>> quorum.offer(0, token=0, fresh=True), quorum.lose(1), quorum.is_held_up
        ([], [], True)
        >>> quorum.abandon(1)
        [Answer(replica=0, token=0, staleness=0, what=3)]
        """
        if self.rules.awaits and replica not in self._left:
            self._awaited.add(replica)
        answers = self._continue_without(replica)
        if self.rules.several and self.rules.servers > 1 and not self.stopped:
            return answers + self._stop()
        return answers

    def abandon(self, replica: int) -> list[Answer]:
        """Await the new process of a lost replica no longer; return the answers to send."""
        self._awaited.discard(replica)
        return self._continue_without(replica)

    def _continue_without(self, replica: int) -> list[Answer]:
        self._here.discard(replica)
        if self.stopped:
            return []
        if not self._here | self._awaited or self._short():
            return self._stop()
        freed = []
        while self._deals and self._tokens() > 0:
            mine = next((answer for answer in self._waiting if answer.replica in self._here), None)
            if mine is None:
                break
            self._waiting.remove(mine)
            freed.append(mine._replace(what=KEPT))
        return freed

    def _tokens(self, besides: int | None = None) -> int:
        """Return how many tokens of the step are free; each replica that computes has one."""
        waiting = {answer.replica for answer in self._waiting}
        return self.rules.needed - self.collected - len(self._here - waiting - {besides})

    def _short(self) -> bool:
        """Whether the remaining replicas without a gradient are too few to complete the step."""
        if self.rules.several:
            return not self._here
        return self._possible(self._here | self._awaited) < self.rules.needed

    def _possible(self, replicas: set[int]) -> int:
        """Return how many gradients the step can have, if these replicas give theirs."""
        return self.collected + len(replicas - self._contributed)

    def _complete(self, mine: Answer) -> list[Answer]:
        answers = [*self._waiting, mine]
        if self.rules.several and not self._deals:
            stepped = [Answer(replica, 0, 0, STEPPED) for replica in sorted(self._contributed)]
            answers = [mine._replace(what=KEPT), *stepped]
        self.steps += 1
        self._begin()
        return answers

    def _stop(self) -> list[Answer]:
        self.stopped = True
        answers = [answer._replace(what=STOPPED) for answer in self._waiting]
        self._begin()
        return answers

    def _begin(self) -> None:
        self.collected = 0
        self._waiting = []
        self._contributed.clear()


# The staleness bound of asynchronous replicas (stale synchronous parallel). A state machine without clocks.
#
# A replica may be at most S steps ahead of the slowest one that still trains: the answer to a gradient is
# held back until its replica may continue. With S = 0 no replica begins a step before all have completed the
# previous one. Replicas that have left or died do not count. (Ho et al., NIPS 2013: More effective
# distributed ML via a stale synchronous parallel parameter server.)


class StalenessBound:
    """How many steps each replica has done, and which answers are held back.

    >>> bound = StalenessBound(Rules(replicas=2, staleness=0))
    >>> bound.applied(Answer(0, token=0))
    []
    >>> [answer.replica for answer in bound.applied(Answer(1, token=0))]
    [0, 1]
    """

    def __init__(self, rules: Rules) -> None:
        assert rules.staleness is not None
        # A replica that has the answer to its n-th gradient computes with depth - 1 more in flight.
        self._slack = rules.staleness - (rules.depth - 1)
        self.steps = [0] * rules.replicas
        self._here = set(range(rules.replicas))
        self._left: set[int] = set()
        self._held: list[tuple[int, Answer]] = []

    @property
    def waits(self) -> bool:
        """Whether an answer is held back."""
        return bool(self._held)

    def applied(self, answer: Answer) -> list[Answer]:
        """Record an applied gradient; return the answers that may be sent now."""
        if answer.replica not in self._left:
            self._here.add(answer.replica)  # also one that was taken for dead
        self.steps[answer.replica] += 1
        self._held.append((self.steps[answer.replica], answer))
        return self._released()

    def repeated(self, answer: Answer, behind: int) -> list[Answer]:
        """Hold the answer to a gradient that is applied, ``behind`` steps before its replica's last one."""
        self._held.append((self.steps[answer.replica] - behind, answer))
        return self._released()

    def leave(self, replica: int) -> list[Answer]:
        """Release a replica; return the answers that it held back."""
        self._left.add(replica)
        return self.lose(replica)

    def join(self, replica: int) -> None:
        """Let a replica that was lost take part again, next to the slowest of the others.

        Its own count may be far behind theirs, and they must not wait until it has caught up.
        """
        self._left.discard(replica)
        slowest = min((self.steps[other] for other in self._here - {replica}), default=0)
        self.steps[replica] = max(self.steps[replica], slowest)
        self._here.add(replica)

    def lose(self, replica: int) -> list[Answer]:
        """Release a replica that has died, or counts as dead until it sends a gradient again."""
        self._here.discard(replica)
        return self._released()

    def _released(self) -> list[Answer]:
        slowest = min((self.steps[replica] for replica in self._here), default=None)
        if slowest is None:
            free, self._held = self._held, []
        else:
            most = slowest + self._slack
            free = [entry for entry in self._held if entry[0] <= most]
            if free:
                self._held = [entry for entry in self._held if entry[0] > most]
        return [answer for _, answer in free]


# The answers of a parameter server to gradients; each is one byte on the wire.

APPLIED = 1
"""The update that the gradient is part of has been made."""


COUNTED = 2
"""A step of all servers together was counted."""


STOPPED = 3
"""Too many replicas have left for the synchronous step to complete; the gradient is dropped."""


DROPPED = 4
"""The gradient is older than the step that is being collected, and is dropped."""


KEPT = 5
"""The gradient is collected, and its replica continues: the step has room for another of its batches."""


TAKEN = 6
"""The gradient is collected; another answer follows when its step is complete."""


STEPPED = 7
"""The step is complete. Sent to the replicas whose gradients are in it."""


REFUSED = 8
"""The replica was frozen or cut off and the others have continued, so its gradients are refused."""


LEFT_OUT = 9
"""The synchronous step is complete without an update, since a gradient overflowed: see `is_left_out`."""


class Answer(NamedTuple):
    """The outcome of one gradient: its replica, and how many updates its parameters were behind."""

    replica: int
    token: int
    staleness: int = 0
    what: int = APPLIED
