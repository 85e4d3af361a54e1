"""Benchmarks and surveys: definition, execution, and the evaluation of their figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Outcome = dict[str, Any]  # {"value": float, "check": anything that can be compared}, for some "cpu": seconds


@dataclass(frozen=True)
class Bar:
    """The bound for the ratio ours / peer, the difference ours - peer, or a single figure."""

    way: Literal[">=", "<="]
    figure: float
    of: Literal["ratio", "difference", "figure"] = "ratio"

    def met(self, figure: float) -> bool:
        return figure >= self.figure if self.way == ">=" else figure <= self.figure

    def __str__(self) -> str:
        return f"{self.way} {self.figure:g}" + {"ratio": "x", "difference": " more", "figure": ""}[self.of]


def equal(ours: Any, peer: Any) -> bool:
    return bool(ours == peer)


def close(tolerance: float) -> Callable[[Any, Any], bool]:
    """Compare dicts of numbers, each to a relative tolerance."""

    def same(ours: dict[str, float], peer: dict[str, float]) -> bool:
        return ours.keys() == peer.keys() and all(
            math.isclose(ours[name], peer[name], rel_tol=tolerance) for name in ours
        )

    return same


@dataclass(frozen=True)
class Benchmark:
    """Two callables that do the same work, nbdist's and the peer's, and the bar for their ratio."""

    key: str
    what: str
    unit: str
    peer_name: str
    ours: Callable[[], Outcome]
    peer: Callable[[], Outcome]
    bar: Bar | None  # None: measured beside others, no goal of its own
    same: Callable[[Any, Any], bool] = equal


@dataclass(frozen=True)
class Goal:
    """One figure of a survey and its bar; with None the figure is reported without a bar."""

    name: str
    unit: str
    bar: Bar | None


@dataclass(frozen=True)
class Survey:
    """A measurement without a peer; each of its figures has its own bar.

    ``measure`` returns a figure for each goal, by its name. It is slow: at most ``most`` rounds are run.
    """

    key: str
    what: str
    goals: tuple[Goal, ...]
    measure: Callable[[], dict[str, float]]
    most: int = 3


@dataclass(frozen=True)
class Found:
    """The figures of a survey in each of its rounds."""

    key: str
    goals: tuple[Goal, ...]
    rounds: list[dict[str, float]]

    def of(self, goal: Goal) -> float:
        return median(found[goal.name] for found in self.rounds)

    def met(self, goal: Goal) -> bool:
        return goal.bar is None or goal.bar.met(self.of(goal))

    @property
    def all_met(self) -> bool:
        return all(self.met(goal) for goal in self.goals)


@dataclass(frozen=True)
class Result:
    """The figures of one benchmark: a value per round and side, and whether each round's checks agreed."""

    key: str
    ours: list[float]
    peer: list[float]
    same: list[bool]
    bar: Bar | None
    checks: list[Any] = field(default_factory=list)  # [ours, peer] of the last round
    cpu: list[tuple[float, float]] = field(default_factory=list)  # (ours, peer) of each round, if measured

    @property
    def ratios(self) -> list[float]:
        """Ours / peer, for each round: both sides of a round ran in the same minute."""
        return [ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def differences(self) -> list[float]:
        """Ours - peer, for each round."""
        return [ours - peer for ours, peer in zip(self.ours, self.peer, strict=True)]

    @property
    def difference(self) -> float:
        return median(self.differences)

    @property
    def met(self) -> bool:
        if self.bar is None:
            return all(self.same)
        return all(self.same) and self.bar.met(self.ratio if self.bar.of == "ratio" else self.difference)


def run(benchmark: Benchmark, rounds: int, tell: Callable[[int, Outcome, Outcome], None]) -> Result:
    """Run both sides ``rounds`` times; the side that starts alternates."""
    done: list[tuple[Outcome, Outcome]] = []
    for number in range(rounds):
        if number % 2:
            peer = benchmark.peer()
            ours = benchmark.ours()
        else:
            ours = benchmark.ours()
            peer = benchmark.peer()
        tell(number, ours, peer)
        done.append((ours, peer))
    return Result(
        benchmark.key,
        [ours["value"] for ours, _ in done],
        [peer["value"] for _, peer in done],
        [benchmark.same(ours["check"], peer["check"]) for ours, peer in done],
        benchmark.bar,
        [done[-1][0]["check"], done[-1][1]["check"]],
        [(ours["cpu"], peer["cpu"]) for ours, peer in done if "cpu" in ours],
    )
