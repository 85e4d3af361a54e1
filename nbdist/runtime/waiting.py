"""What sessions share beside variables, and ops that wait until one of the others has changed it.

shared = Shared(Tokens())
with shared.changing() as tokens:       # whoever waits looks again after that
    tokens.put([3])
waiting.until(shared, lambda tokens: tokens.take(me, now), late=lambda tokens: "why it takes so long")
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from nbdist.errors import AbortedError, DeadlineExceededError

State = TypeVar("State")
Found = TypeVar("Found")
LOOK_EVERY = 0.5  # seconds after which whoever waits looks whether that makes sense still


class Shared(Generic[State]):
    """A state that several threads use, one at a time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._bells: list[Callable[[], None]] = []

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Lend the state, inside a ``with``; then wake whoever waits."""
        with self._lock:
            yield self._state
        self.ring()

    def look(self, at: Callable[[State], Found]) -> Found:
        """Return what ``at`` finds; it changes nothing that anybody waits for."""
        with self._lock:
            return at(self._state)

    def ring(self) -> None:
        """Let whoever waits look again."""
        for ring in list(self._bells):
            ring()

    @contextmanager
    def heard(self, ring: Callable[[], None]) -> Iterator[None]:
        """Have ``ring`` called, on the thread that changes something, inside a ``with``."""
        self._bells.append(ring)
        try:
            yield
        finally:
            self._bells.remove(ring)


class Waiting:
    """How one thread waits.

    ``pause(seconds)`` ends early when ``ring()`` is called; ``check()`` raises if waiting is of no use now.
    ``patience`` is how many seconds an op may wait, None for no limit.
    """

    def __init__(
        self,
        ring: Callable[[], None],
        pause: Callable[[float], object],
        check: Callable[[], object],
        patience: float | None,
    ) -> None:
        self._ring, self._pause, self._check, self._patience = ring, pause, check, patience
        self._told: list[Callable[[BaseException], None]] = []

    def until(
        self,
        shared: Shared[State],
        attempt: Callable[[State], Found | None],
        late: Callable[[State], str],
        *,
        patient: bool = False,
    ) -> Found:
        """Return what ``attempt`` finds, once it is not None; ``patient`` ones wait for any time."""
        found = shared.look(attempt)
        if found is not None:
            return found
        begun, patience = time.monotonic(), None if patient else self._patience
        with shared.heard(self._ring):
            while True:
                self._check()
                found = shared.look(attempt)
                if found is not None:
                    return found
                left = LOOK_EVERY
                if patience is not None:
                    left = begun + patience - time.monotonic()
                    if left <= 0:
                        raise DeadlineExceededError(
                            f"nothing came within {patience:g} s (the session's operation_timeout): "
                            f"{shared.look(late)}"
                        )
                self._pause(min(left, LOOK_EVERY))

    def tell_if_cut_off(self, tell: Callable[[BaseException], None]) -> None:
        """Have ``tell`` called if the step that runs is cut off, or was the last one of its thread."""
        self._told.append(tell)

    def begin(self) -> None:
        """Begin a step: the last one was not cut off."""
        self._told.clear()

    def cut_off(self, error: BaseException) -> None:
        """Tell whoever counts on the step that runs, or on another one after the last."""
        told, self._told = self._told, []
        for tell in told:
            tell(error)


class Bell:
    """A way to wait in this process, for a session without a cluster."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._cancelled = False

    def waiting(self, patience: float | None) -> Waiting:
        """Return how the thread waits that the bell belongs to."""
        return Waiting(self._rung.set, self._pause, self._check, patience)

    def cancel(self) -> None:
        """End the waiting; from any thread."""
        self._cancelled = True
        self._rung.set()

    def _pause(self, seconds: float) -> None:
        self._rung.wait(seconds)
        self._rung.clear()

    def _check(self) -> None:
        if self._cancelled:
            raise AbortedError("the session was closed in the middle of a step")
