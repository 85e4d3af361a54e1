"""What a task keeps of its last run, until the body of the next begins: for a client that comes late.

The news of a run go to whoever watches; a notebook's kernel that was restarted asks for what it has missed,
and at the end for the outcome, in pages. An outcome that nobody takes home goes to the run's folder, so that
it outlives the cluster.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import NbdistError
from nbdist.home import private_folder
from nbdist.runs.outcome import Buffer, encode, page
from nbdist.runs.outcomefile import write_outcome
from nbdist.wire.rpc.frame import Frame

PAGE_BYTES = 4 << 20
TAKEN_SECONDS = 10.0  # within which a client that was there at the end has the outcome

log = logging.getLogger(__name__)


@dataclass
class _Last:
    run: str
    answer: Frame
    """To who wants to watch: the end of the run, and what it takes to know all of it."""
    watched: bool
    folder: str = ""
    outcome: dict[str, Any] | None = None
    pieces: Sequence[Buffer] = ()
    taken: bool = False
    written: bool = False
    writing: threading.Lock = field(default_factory=threading.Lock)

    def encoded(self) -> Sequence[Buffer]:
        if not self.pieces and self.outcome is not None:
            self.pieces = encode(self.outcome)
        return self.pieces


class Kept:
    """The end of the last run of task ``rank``. ``later(seconds, function)`` calls a function then."""

    def __init__(self, rank: int, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._rank, self._later = rank, later
        self._last: _Last | None = None

    def forget(self) -> None:
        """Keep nothing any more: the next run begins. What nobody has taken home is written."""
        last, self._last = self._last, None
        if last is not None and last.outcome is not None:
            if not last.taken:
                self._write(last)
            last.outcome, last.pieces = None, ()  # it may be large, and a timer may know of it still

    def end(self, run: str, answer: Frame, watched: bool) -> None:
        """Take note that a body is over, and whether anybody has heard so; its outcome is on its way."""
        self._last = _Last(run, answer, watched)

    def put(self, run: str, folder: str, outcome: dict[str, Any]) -> None:
        """Keep an outcome; writes it to the run's folder, now or in a while, if nobody takes it."""
        last = self._of(run)
        if last is None:
            return
        last.folder, last.outcome = folder, outcome
        if not last.watched:
            self._write(last)
            return

        def unless_taken() -> None:
            if not last.taken and self._last is last:
                # Not here: a large one would keep the task's Server from its other callers.
                threading.Thread(target=self._write, args=(last,), daemon=True).start()

        self._later(TAKEN_SECONDS, unless_taken)

    def drop(self, run: str) -> None:
        """Do without an outcome that could not be made."""
        if self._of(run) is not None and self._last is not None and self._last.outcome is None:
            self._last = None

    def taken(self, run: str) -> None:
        """Take note that a client has all of a run."""
        if (last := self._of(run)) is not None:
            last.taken = True

    def answer(self, run: str) -> Frame | None:
        """Return what to tell who wants to watch a run that is over; None if it is another one."""
        last = self._of(run)
        return None if last is None else last.answer

    def page(self, run: str, start: int) -> Frame | None:
        """Return a part of a run's outcome; None if that is not kept."""
        last = self._of(run)
        if last is None:
            return None
        if last.outcome is None:
            return Frame("run.outcome", {"state": "coming"})
        pieces = last.encoded()
        part = np.frombuffer(page(pieces, start, PAGE_BYTES), np.uint8)
        return Frame("run.outcome", {"state": "here", "size": sum(map(len, pieces))}, (part,))

    def _of(self, run: str) -> _Last | None:
        last = self._last
        return last if last is not None and last.run == run else None

    def _write(self, last: _Last) -> None:
        with last.writing:
            pieces = last.encoded()
            if last.written or not pieces:
                return
            try:
                write_outcome(private_folder(Path(last.folder)), self._rank, pieces)
            except (OSError, NbdistError) as error:  # while the task lives it can be asked
                log.warning("the outcome of run %s could not be written: %s", last.run, error)
            last.written = True
