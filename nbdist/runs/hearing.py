"""What has been heard of each worker, so that a gap is noticed and filled.

A task leaves out who does not read: a notebook whose cell computes for minutes, or a connection that broke.
Who then hears nothing asks to watch again, and takes from the log what has passed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbdist.metrics.store import RunStore
from nbdist.runs.sofar import add_since
from nbdist.wire.rpc.frame import Frame

SILENT_SECONDS = 2.0  # a task that has a body says something ten times a second


@dataclass
class Hearing:
    """How much has come from one worker: bytes of its log, whose points have; characters of its output.

    >>> hearing = Hearing(last=0.0)
    >>> hearing.asks(1.0), hearing.asks(2.5), hearing.asks(3.0), hearing.asks(5.0)
    (False, True, False, True)
    """

    last: float
    """When anything came, or was asked for."""
    at: int = 0
    printed: int = 0

    def take(self, news: Frame, now: float) -> None:
        """Take note of news."""
        self.last = now
        self.at, self.printed = news.meta.get("at", self.at), news.meta.get("printed", self.printed)

    def asks(self, now: float) -> bool:
        """Return whether to ask again to watch: it has been silent for too long."""
        if now - self.last < SILENT_SECONDS:
            return False
        self.last = now
        return True

    def catch_up(self, answer: Frame, store: RunStore, folder: Path, say: Callable[[str], object]) -> None:
        """Fill the gap before what a task says when it is watched again: points, and what was printed."""
        for note in add_since(store, folder, answer, self.at):
            say(f"{note}\n")
        missing = int(answer.meta["printed"]) - self.printed
        if missing > 0:
            say(answer.arrays[0].tobytes().decode("utf-8", "replace")[-missing:])
