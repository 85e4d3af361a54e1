"""How far asynchronous replicas may get apart: stale synchronous parallel. A state machine without clocks.

A replica may be at most S steps ahead of the slowest one that still trains: the answer to a gradient is
held back until its replica may go on. With S = 0 nobody begins a step before all have done the one before.
Replicas that have left or died hold nobody back. (Ho et al., NIPS 2013: More effective distributed ML via a
stale synchronous parallel parameter server.)
"""

from __future__ import annotations

from nbdist.runtime.answers import Answer
from nbdist.runtime.rules import Rules


class Bound:
    """How many steps each replica has done, and which answers are held back.

    >>> bound = Bound(Rules(replicas=2, staleness=0))
    >>> bound.applied(Answer(0, token=0))
    []
    >>> [answer.replica for answer in bound.applied(Answer(1, token=0))]
    [0, 1]
    """

    def __init__(self, rules: Rules) -> None:
        assert rules.staleness is not None
        # Who has the answer to its n-th gradient computes with depth - 1 more of its own under way.
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
        """Take note of an applied gradient; return the answers that may go out now."""
        if answer.replica not in self._left:
            self._here.add(answer.replica)  # also one that was taken for dead
        self.steps[answer.replica] += 1
        self._held.append((self.steps[answer.replica], answer))
        return self._released()

    def leave(self, replica: int) -> list[Answer]:
        """Let a replica go; return the answers that it held back."""
        self._left.add(replica)
        return self.lose(replica)

    def lose(self, replica: int) -> list[Answer]:
        """Let go of a replica that has died, or is taken for dead until it is heard of again."""
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
