"""What became of the gradients of each replica: counts for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class Tally:
    """Counts by replica: gradients applied and dropped, and the sum and the most of their staleness.

    >>> tally = Tally.of(2)
    >>> tally.applied(0, staleness=3); tally.applied(1, staleness=0); tally.drop(1)
    >>> print(tally)
    2 gradients applied, staleness 1.5 on average and 3 at most; 1 dropped (replica 1: 1)
    """

    made: list[int]
    dropped: list[int]
    late: list[int]
    latest: list[int]

    @classmethod
    def of(cls, replicas: int) -> Tally:
        """Return the counts of a training that begins."""
        return cls(*([0] * replicas for _ in range(4)))

    def applied(self, replica: int, staleness: int) -> None:
        """Count a gradient that changed the parameters."""
        self.made[replica] += 1
        self.late[replica] += staleness
        if staleness > self.latest[replica]:
            self.latest[replica] = staleness

    def drop(self, replica: int) -> None:
        """Count a gradient that did not."""
        self.dropped[replica] += 1

    @property
    def staleness(self) -> tuple[float, int]:
        """The mean and the most of all applied gradients' staleness, in updates."""
        return sum(self.late) / max(1, sum(self.made)), max(self.latest, default=0)

    def to_wire(self) -> dict[str, Any]:
        """Return plain values, for :meth:`from_wire`."""
        return {"made": self.made, "dropped": self.dropped, "late": self.late, "latest": self.latest}

    @classmethod
    def from_wire(cls, values: dict[str, Sequence[int]]) -> Tally:
        """Return what ``to_wire`` described."""
        return cls(**{name: [int(count) for count in counts] for name, counts in values.items()})

    def __str__(self) -> str:
        mean, most = self.staleness
        text = f"{sum(self.made):,} gradients applied"
        if most:
            text += f", staleness {mean:.1f} on average and {most} at most"
        if any(self.dropped):
            who = ", ".join(f"replica {i}: {n:,}" for i, n in enumerate(self.dropped) if n)
            text += f"; {sum(self.dropped):,} dropped ({who})"
        return text
