"""Waiting in tests: for a condition, with a limit that only a hang reaches.

    until(lambda: path.exists())
    until(lambda: run.standing().step > 3, during=run)  # polls the run; fails immediately if it ends
    assert time.monotonic() - begun < 2 + SLACK_SECONDS  # a guarantee: 2 s

A guaranteed time is asserted as documented. A machine under other load takes longer: ``NBDIST_TEST_SLACK``
adds seconds to each such limit (0 by default; CI sets it and prints it).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")

PATIENCE = 90.0  # seconds until a condition counts as hanging
SLACK_SECONDS = float(os.environ.get("NBDIST_TEST_SLACK") or 0)
POLL_SECONDS = 0.005


class Followed(Protocol):
    """A run that makes progress while it is followed."""

    @property
    def error(self) -> object:
        """The run's error, or None."""

    def poll(self) -> bool:
        """Handle what has arrived; return whether the run is over."""


def until(
    condition: Callable[[], Result],
    seconds: float = PATIENCE,
    during: Followed | None = None,
    describe: Callable[[], object] = str,
) -> Result:
    """Return the first true value of a condition; fail after ``seconds``, or when ``during`` ends."""
    deadline, pause = time.monotonic() + seconds + SLACK_SECONDS, threading.Event()
    while not (found := condition()):
        assert during is None or not during.poll(), f"the run is over: {during and during.error}"
        assert time.monotonic() < deadline, f"the condition was not met within {seconds:g} s. {describe()}"
        pause.wait(POLL_SECONDS)
    return found


async def until_async(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Let other tasks of the event loop run until a condition is true; fail after some seconds."""
    async with asyncio.timeout(seconds + SLACK_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)
