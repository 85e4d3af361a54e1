"""How gradients of several replicas become updates: what a training asks of its parameter servers. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nbdist.errors import InvalidArgumentError
from nbdist.runtime.mailbox import SLOTS

MOST = 0xFFFF  # replicas and servers have numbers of two bytes on the wire


@dataclass(frozen=True)
class Rules:
    """The rules of one training, checked; raises InvalidArgumentError for what cannot be meant.

    ``synchronous`` adds the gradients of ``aggregate`` batches to one update: of all replicas unless told
    otherwise. With fewer than there are replicas, the others are backups and the fastest make the step; with
    more, replicas contribute several batches. Asynchronous replicas may be ``staleness`` steps ahead of the
    slowest, or as far as they like if it is None. ``locking`` keeps reads apart from updates. ``servers`` is
    how many parameter servers there are.

    >>> Rules(replicas=3, synchronous=True, aggregate=2).backups
    1
    """

    replicas: int
    synchronous: bool = False
    aggregate: int | None = None
    staleness: int | None = None
    locking: bool = False
    servers: int = 1

    def __post_init__(self) -> None:
        for name, number in (("replicas", self.replicas), ("servers", self.servers)):
            if not _whole(number) or not 1 <= number <= MOST:
                raise InvalidArgumentError(f"{name}={number!r}: a training has 1 to {MOST:,} {name}")
        if self.aggregate is not None:
            if not self.synchronous:
                raise InvalidArgumentError(
                    f"aggregate={self.aggregate!r} says how many gradients make a synchronous step, and "
                    "asynchronous ones are applied one by one: add synchronous=True, or drop it"
                )
            if not _whole(self.aggregate) or self.aggregate < 1:
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
            if not _whole(self.staleness) or self.staleness < 0:
                raise InvalidArgumentError(
                    f"staleness={self.staleness!r}: how many steps a replica may be ahead of the slowest is "
                    "a whole number of 0 or more; None sets no bound"
                )

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
        """What the sum of a step's gradients is multiplied with, to be that of a global batch.

        A gradient is the sum over its replica's share of a batch of B examples, divided by B, so that those
        of all N replicas add up to the mean over the batch. R of them are of B * R / N examples, and their
        sum is N/R times too small to be the mean over these. That is so with backups and with R > N alike:
        the global batch of a step is R shares. With R = N nothing is multiplied.
        """
        return self.replicas / self.needed if self.synchronous else 1.0

    @property
    def depth(self) -> int:
        """How many gradients of one replica may be under way while it computes another.

        One travels while the next is made, unless all have to be together at each step.
        """
        return 1 if self.synchronous or self.staleness == 0 else SLOTS

    def fails_without(self, dead: int) -> bool:
        """Whether so many deaths leave a synchronous training without enough replicas for a step.

        With several batches a step and several servers one is too many: only some may have its gradient.
        """
        if not self.synchronous or not dead:
            return False
        return self.servers > 1 if self.several else self.replicas - dead < self.needed

    def most_stale(self) -> int | None:
        """Return the bound that follows for the measured staleness of a gradient, in updates; None for none.

        When a replica reads for its step n, the others have had at least n - S steps applied; when its
        gradient is applied, at most n + S + 1. Its own gradients under way come on top.

        >>> Rules(replicas=3, staleness=2).most_stale(), Rules(replicas=3, staleness=0).most_stale()
        (11, 2)
        """
        if self.synchronous:
            return 0
        if self.staleness is None:
            return None
        return (self.replicas - 1) * (2 * self.staleness + 1) + self.depth - 1

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, from which ``Rules(**values)`` is the same."""
        return asdict(self)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
