"""What a scenario is, and what several share: a `Found`, a state folder, a small cluster, waiting."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.kills import left_over, resources
from bench.script import NotThere

TESTS = Path(__file__).parents[2] / "tests"
ABORT = 2.0  # seconds until an abort reaches every rank: the bound A
CUT_OFF = 10.0  # seconds until a peer that is cut off is noticed: the bound F
AWAY = 300.0  # seconds without a browser's tab
LEAST = 400  # steps of a training


@dataclass(frozen=True)
class Settings:
    """What the command line may change."""

    seed: int = 3
    away: float = AWAY
    """Seconds for which the browser's tab is closed."""


@dataclass
class Found:
    """What a fault has shown."""

    figures: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """The bounds that are not kept, in words."""

    def expect(self, kept: object, otherwise: str) -> None:
        """Note a bound that is not kept.

        >>> found = Found()
        >>> found.expect([], "no rank raised")
        >>> found.wrong
        ['no rank raised']
        """
        if not kept:
            self.wrong.append(otherwise)

    def within(self, what: str, seconds: float, bound: float) -> None:
        """Add a time to the figures, and note if it is above its bound.

        >>> found = Found()
        >>> found.within("back", 4.0, 3.0)
        >>> found.figures, found.wrong
        (['back 4.00 s'], ['back after 4.0 s'])
        """
        self.figures.append(f"{what} {seconds:.2f} s")
        self.expect(seconds <= bound, f"{what} after {seconds:.1f} s")


@dataclass(frozen=True)
class Scenario:
    """A fault, and the function that makes it."""

    row: int
    name: str
    make: Callable[[Found, Settings], None]


def measured(scenario: Scenario, settings: Settings) -> Found:
    """Make a fault; an error of the scenario itself is a bound that is not kept."""
    found = Found()
    try:
        scenario.make(found, settings)
    except NotThere:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        found.wrong.append(f"{type(error).__name__}: {lines[0][:200]}")
        found.wrong += [f"    {text}" for text in lines[-3:] if len(lines) > 1]
    return found


@contextmanager
def own_home() -> Iterator[str]:
    """Give this process, and those that it starts, a new state folder in the block."""
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, NBDIST_HOME=f"{home}/nbdist"):
        yield home


@contextmanager
def small_cluster(found: Found, workers: int = 3, ps: int = 0, **options: Any) -> Iterator[tuple[Any, str]]:
    """Start a cluster; stop it after the block, and note what it has left over."""
    from nbdist.cluster.launch import start_cluster

    with own_home() as home:
        before = resources()
        cluster = start_cluster(workers=workers, ps=ps, threads=1, report=None, **options)
        try:
            yield cluster, home
        finally:
            cluster.stop()
        found.wrong += left_over(before, home, cluster.id)


def until(
    condition: Callable[[], Any], seconds: float, what: str, pause: Callable[[float], Any] = time.sleep
) -> float:
    """Wait for a condition; return the seconds that it took. Raises TimeoutError."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise TimeoutError(f"{what} did not happen within {seconds:.0f} s")
        pause(0.01)
    return time.monotonic() - begun
