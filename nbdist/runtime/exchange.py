"""A question that a client asks several stations at once, and what comes back: answers, or an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nbdist.errors import AbortedError, DeadlineExceededError, NbdistError, UnavailableError
from nbdist.graph.backend import Array
from nbdist.runtime.station import ABORT, FAILED, Station, lost
from nbdist.runtime.waiting import LOOK_EVERY
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_from
from nbdist.wire.post import Letter, Outbox

BRIEF = 0.1  # seconds


class Exchange:
    """One question to several stations, and their answers.

    ``ways`` lead to the stations, by the number of the piece that each has. ``look`` raises UnavailableError
    if the task behind one is known to be gone, in some other way than this one.
    """

    def __init__(
        self,
        station: Station,
        plan: int,
        step: int,
        ways: dict[int, Outbox],
        look: Callable[[int], None],
        seconds: float | None,
    ) -> None:
        self._station, self._plan, self._step, self._ways = station, plan, step, ways
        self._look, self._seconds = look, seconds
        self._answers: dict[int, Letter] = {}
        self.pending: set[int] = set()
        self.gone = False
        """Whether a station cannot be reached any more."""
        self._failure: Exception | None = None

    def send(self, n: int, kind: int, arrays: Sequence[Array], meta: dict[str, Any] | None) -> None:
        """Ask one station."""
        self.pending.add(n)
        way = self._ways[n]
        try:
            way.send(kind, self._plan, self._step, n, arrays, meta)
        except UnavailableError as error:
            self.gone = True
            self.pending.discard(n)
            raise lost(way.name, error) from None
        except NbdistError:
            self.pending.discard(n)
            raise

    def collect(self) -> dict[int, Letter]:
        """Return all answers; raise the first error."""
        deadline = None if self._seconds is None else time.monotonic() + self._seconds
        while self.pending:
            if not self._file() and not self._station.pump(LOOK_EVERY):
                self.check()
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlineExceededError(f"no answer within {self._seconds} s from {self._names()}")
            if self._failure is not None:
                raise self._failure
        return self._answers

    def check(self) -> None:
        """Raise if a station that has not answered is gone."""
        for n in self.pending:
            try:
                self._ways[n].check()
                self._look(n)
            except UnavailableError as error:
                raise lost(self._ways[n].name, error) from None

    def abort(self, error: BaseException, patience: float) -> BaseException:
        """Have all others end the step as well, within ``patience`` s; return the error that came first."""
        reason = {"message": f"the step was cut off: {str(error) or type(error).__name__}"}
        deadline = time.monotonic() + patience
        for n in list(self.pending):
            with self._left_out_if_gone(n), briefly(self._ways[n]) as way:
                way.send(ABORT, self._plan, self._step, n, meta=reason)
        while self.pending and time.monotonic() < deadline:
            if not self._file() and not self._station.pump(LOOK_EVERY / 5):
                for n in list(self.pending):
                    with self._left_out_if_gone(n):
                        self._ways[n].check()
                        self._look(n)
        while self._file():
            pass
        aborted = isinstance(error, AbortedError) or error is self._failure
        return self._failure if aborted and self._failure is not None else error

    def _file(self) -> bool:
        """File the next letter that has come; False if none has."""
        if not self._station.waiting:
            return False
        letter = self._station.waiting.popleft()
        if (letter.plan, letter.step) == (self._plan, self._step) and letter.edge in self.pending:
            self.pending.discard(letter.edge)
            self._answers[letter.edge] = letter
            if letter.kind == FAILED:
                found = error_from(Frame("error", letter.meta))
                if self._failure is None or isinstance(self._failure, AbortedError):
                    self._failure = found
        return True

    @contextmanager
    def _left_out_if_gone(self, n: int) -> Iterator[None]:
        try:
            yield
        except NbdistError:
            self.gone = True
            self.pending.discard(n)

    def _names(self) -> str:
        return ", ".join(self._ways[n].name for n in sorted(self.pending))


@contextmanager
def briefly(way: Outbox) -> Iterator[Outbox]:
    """Do not wait long for one whose pipe is full: it computes, and will find out that this is over."""
    before, way.timeout = way.timeout, BRIEF
    try:
        yield way
    finally:
        way.timeout = before
