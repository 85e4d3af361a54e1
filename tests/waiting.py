"""Waiting in tests: for a condition, with a limit that only a hang reaches.

    until(lambda: path.exists())
    until(lambda: run.standing().step > 3, during=run)  # polls the run; fails immediately if it ends
    assert time.monotonic() - begun < limit(2)  # a guarantee: 2 s

A guaranteed time is asserted as documented, times the measured slowdown of the machine
(``machine_speed.py``).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from machine_speed import SAMPLER

Result = TypeVar("Result")

PATIENCE = 90.0  # seconds until a condition counts as hanging
POLL_SECONDS = 0.005  # between two looks at a condition
IDLE_SHARE = 8  # a pause is so many times as long as the look before it, from POLL_SECONDS to LONGEST_PAUSE
LONGEST_PAUSE = 0.1


class Followed(Protocol):
    """A run that makes progress while it is followed."""

    @property
    def error(self) -> object:
        """The run's error, or None."""

    def poll(self) -> bool:
        """Handle what has arrived; return whether the run is over."""


def limit(seconds: float) -> float:
    """Return the seconds that this machine may need now for what a quiet one does in ``seconds``."""
    return seconds * SAMPLER.slowdown(seconds)


def until(
    condition: Callable[[], Result],
    seconds: float = PATIENCE,
    during: Followed | None = None,
    describe: Callable[[], object] = str,
) -> Result:
    """Return the first true value of a condition; fail after ``seconds``, or when ``during`` ends."""
    begun, pause = time.monotonic(), threading.Event()
    while True:
        looked = time.monotonic()
        if found := condition():
            return found
        if during is not None and during.poll():
            if found := condition():  # the run met it, and has ended since
                return found
            raise AssertionError(f"the run is over: {during.error}")
        took = time.monotonic() - begun
        assert took < seconds or took < limit(seconds), (
            f"the condition was not met within {took:.0f} s. {describe()}"
        )
        pause.wait(min(max(POLL_SECONDS, IDLE_SHARE * (time.monotonic() - looked)), LONGEST_PAUSE))


async def until_async(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Let other tasks of the event loop run until a condition is true; fail after some seconds."""
    async with asyncio.timeout(limit(seconds)):
        while not condition():
            await asyncio.sleep(0.001)
