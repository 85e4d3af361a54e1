"""One trial of a sweep, as its ledger knows it."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from nbdist.sweep.events import EndState, Promoted
from nbdist.sweep.space import Parameters

State: TypeAlias = Literal["waiting", "running"] | EndState
STATES: tuple[State, ...] = ("waiting", "running", "finished", "pruned", "stopped", "failed")


class Span(NamedTuple):
    """One attempt at a trial, on the engines that it had; ``how`` it ended: a state, or "lost"."""

    number: int
    attempt: int
    ranks: tuple[int, ...]
    start: float
    end: float
    how: str


class Result(NamedTuple):
    """The result of a finished trial."""

    value: float | None
    values: dict[str, float]
    step: int | None
    ended_at: float | None


class Trial:
    """A trial's parameters, where it stands, and how it got there; read it, do not write it.

    ``attempt`` counts its starts, ``lost`` how many of them ended with their engine or driver, ``stopping``
    is "pruned" or "stopped" if a running trial has been ordered to end as such. ``before`` is the result of a
    promoted trial before the promotion: it is restored if the promotion fails or is stopped. Times are
    seconds since 1970.
    """

    __slots__ = (
        "asked_at", "attempt", "avoid", "before", "ended_at", "error", "lost", "number", "parameters",
        "parent", "promotion", "ranks", "sampled", "seed", "started_at", "state", "step", "stopping", "value",
        "values",
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
        self.before: Result | None = None
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


def cause(error: str) -> str:
    """Return an error in one line: the last line of a traceback, the first line of other texts.

    >>> cause("Traceback (most recent call last):" + chr(10) + "  ..." + chr(10) + "ValueError: 7")
    'ValueError: 7'
    """
    lines = [line for line in error.splitlines() if line.strip()]
    if not lines:
        return ""
    last = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])
    return last if lines[0].startswith("Traceback") else lines[0]
