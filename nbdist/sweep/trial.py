"""One trial of a sweep, as its ledger knows it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from nbdist.sweep.events import EndState, Promoted
from nbdist.sweep.space import Parameters

State: TypeAlias = Literal["waiting", "running"] | EndState
STATES: tuple[State, ...] = ("waiting", "running", "complete", "pruned", "stopped", "failed")


class Span(NamedTuple):
    """One attempt at a trial, on the engines that it had; ``how`` it ended: a state, or "lost"."""

    number: int
    attempt: int
    ranks: tuple[int, ...]
    start: float
    end: float
    how: str


class Trial:
    """A trial's parameters, where it stands, and how it got there; read it, do not write it.

    ``attempt`` counts its starts, ``lost`` how many of them ended with their engine or driver, ``stopping``
    says that a running one has been told to end, as "pruned" or "stopped". Times are seconds since 1970.
    """

    __slots__ = (
        "asked_at", "attempt", "avoid", "ended_at", "error", "lost", "number", "parameters", "parent",
        "promotion", "ranks", "sampled", "seed", "started_at", "state", "step", "stopping", "value", "values",
    )  # fmt: skip

    def __init__(
        self, number: int, parameters: Parameters, seed: int, asked_at: float, parent: int | None = None
    ) -> None:
        self.number, self.parameters, self.seed, self.parent = number, parameters, seed, parent
        self.asked_at = asked_at
        self.sampled = parent is None
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.state: State = "waiting"
        self.attempt = 0
        self.lost = 0
        self.ranks: tuple[int, ...] = ()
        self.avoid: tuple[int, ...] = ()
        self.stopping: Literal["pruned", "stopped"] | None = None
        self.promotion: Promoted | None = None
        self.step: int | None = None
        self.value: float | None = None
        self.values: dict[str, float] = {}
        self.error = ""

    @property
    def over(self) -> bool:
        """Whether it is neither waiting nor running."""
        return self.state not in ("waiting", "running")

    @property
    def seconds(self) -> float | None:
        """How long its last attempt took, None while it has not ended."""
        if self.started_at is None or self.ended_at is None:
            return None
        return self.ended_at - self.started_at

    def __repr__(self) -> str:
        given = " ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"<Trial {self.number} {self.state} {given} value={self.value}>"
