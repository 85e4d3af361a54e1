"""Whose gradients make a synchronous step: the first R that come. A state machine, without arrays or clocks.

R gradients of N replicas make a step. With R < N there are N - R backups: whoever comes after the R fastest
is dropped, told so at once, and goes on with the newest parameters. With R > N a step has R tokens: a replica
whose gradient is in takes another and goes on, until they are spent. These are the rules of TensorFlow's
SyncReplicasOptimizer (Chen et al., 2016, arXiv:1604.00981); each server takes its own first R there, too.
"""

from __future__ import annotations

from nbdist.runtime.answers import APPLIED, DROPPED, KEPT, STEPPED, STOPPED, TAKEN, Answer
from nbdist.runtime.rules import Rules


class Quorum:
    """Who has given a gradient to the step that is being collected, who waits, and who has left.

    With several servers and R > N only the ``first`` deals out tokens, for two that did would keep replicas
    waiting for each other. The others keep what comes, and tell when they have R.

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
        self._gave: set[int] = set()
        self._waiting: list[Answer] = []

    @property
    def waits(self) -> bool:
        """Whether a replica waits for the step to complete."""
        return bool(self._waiting)

    def offer(self, replica: int, token: int, fresh: bool) -> list[Answer]:
        """Take note of a gradient, which is ``fresh`` unless its step is over; return who is to be told what.

        ``steps`` goes up if that was the last one of its step.
        """
        if replica not in self._left:
            self._here.add(replica)  # also one that was taken for dead
        if self.stopped or not fresh:
            return [Answer(replica, token, 0, STOPPED if self.stopped else DROPPED)]
        self.collected += 1
        self._gave.add(replica)
        mine = Answer(replica, token, 0, APPLIED)
        if self.collected == self.rules.needed:
            return self._complete(mine)
        if self.rules.several and not (self._deals and self._tokens(besides=replica) <= 0):
            return [mine._replace(what=KEPT)]
        self._waiting.append(mine)
        if self._short():
            return self._stop()
        return [mine._replace(what=TAKEN)] if self.rules.judged_apart else []

    def leave(self, replica: int) -> list[Answer]:
        """Let a replica go, with what it has given; return who is to be told what.

        Those who wait are stopped only if their step cannot complete. A token that the replica has not spent
        is another's.
        """
        self._left.add(replica)
        return self._go_on_without(replica)

    def lose(self, replica: int) -> list[Answer]:
        """Let go of a replica that has died; return who is to be told what.

        If it may have sent a gradient to one server and not to another, the steps of the two come apart.
        """
        answers = self._go_on_without(replica)
        if self.rules.several and self.rules.servers > 1 and not self.stopped:
            return answers + self._stop()
        return answers

    def _go_on_without(self, replica: int) -> list[Answer]:
        self._here.discard(replica)
        if self.stopped:
            return []
        if not self._here or self._short():
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
        """Return how many tokens of the step nobody has; all who compute have one."""
        waiting = {answer.replica for answer in self._waiting}
        return self.rules.needed - self.collected - len(self._here - waiting - {besides})

    def _short(self) -> bool:
        """Whether those who are still here and have given nothing are too few to complete the step."""
        if self.rules.several:
            return not self._here
        return self.collected + len(self._here - self._gave) < self.rules.needed

    def _complete(self, mine: Answer) -> list[Answer]:
        told = [*self._waiting, mine]
        if self.rules.several and not self._deals:
            told = [mine._replace(what=KEPT), *(Answer(who, 0, 0, STEPPED) for who in sorted(self._gave))]
        self.steps += 1
        self._begin()
        return told

    def _stop(self) -> list[Answer]:
        self.stopped = True
        told = [answer._replace(what=STOPPED) for answer in self._waiting]
        self._begin()
        return told

    def _begin(self) -> None:
        self.collected = 0
        self._waiting = []
        self._gave.clear()
