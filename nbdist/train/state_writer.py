"""Writes the state of a training while it trains, at an interval: `StateWriter`.

    writer = StateWriter(run_folder, parse_interval("30s"))
    writer.begin(step)
    if writer.is_due(step):                             # between two steps
        writer.write(state, config, arrays, slots)      # returns when they are copied
    writer.finish()                                     # when the training ends: waits for the disk

Training pauses for the copy only. A thread writes it: draft, fsync, rename, fsync of the folder. The newest
two states stay, so that a damaged one leaves the one before it (``TrainingStates`` then continues that):

    state-0001-000000000120.safetensors                 # training 1 of the run, after its step 120

A state that becomes due while the one before it is being written is written as soon as that is done. After an
error of the disk training continues and the older states stay.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nbdist.errors import InvalidArgumentError
from nbdist.graph.backend import Array, to_host
from nbdist.numbers import is_whole
from nbdist.train.resume import State, write_state

KEPT = 2
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
INTERVAL = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h)")
STATE_FILE = re.compile(r"state-\d{4,}-\d{12,}\.safetensors")


@dataclass(frozen=True)
class Interval:
    """How often states are written: a number of optimizer steps, or of seconds."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return str(self.steps) if self.seconds is None else f"{self.seconds:g}s"


def parse_interval(value: str | int) -> Interval:
    """Return an interval: a text such as "30s", "5m" or "1h", or a whole number of steps.

    Raises InvalidArgumentError for anything else, 0 included.

    >>> parse_interval("5m"), parse_interval("500")
    (Interval(steps=None, seconds=300.0), Interval(steps=500, seconds=None))
    """
    if is_whole(value, 1):
        return Interval(steps=value)
    text = value.strip() if isinstance(value, str) else ""
    if re.fullmatch(r"\d{1,9}", text) and int(text):
        return Interval(steps=int(text))
    if (found := INTERVAL.fullmatch(text)) and float(found[1]):
        return Interval(seconds=float(found[1]) * SECONDS[found[2]])
    raise InvalidArgumentError(
        "--checkpoint-every is a time such as 30s, 5m or 1h, or a number of steps such as 500, "
        f"got {value!r:.60}"
    )


def state_files(folder: Path) -> list[Path]:
    """Return the states of trainings in a run's folder, the newest first."""
    return sorted((one for one in folder.glob("state-*") if STATE_FILE.fullmatch(one.name)), reverse=True)


class StateWriter:
    """Writes states into ``folder`` every ``interval``, and keeps the newest two.

    All calls come from the training thread. What the disk refuses is printed there, once, and is in ``error``
    until a state is written again.
    """

    def __init__(self, folder: Path, interval: Interval, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.interval, self._clock = folder, interval, clock
        self.error: str | None = None
        """Why the newest state could not be written."""
        self._step, self._when = 0, clock()
        self._thread: threading.Thread | None = None
        self._copies: list[Array] = []
        self._reported = set[str]()

    def begin(self, step: int) -> None:
        """Count the interval from this step on."""
        self._step, self._when = step, self._clock()

    def is_due(self, step: int) -> bool:
        """Return whether to call :meth:`write` now, before the step after ``step``."""
        if self._thread is not None and not self._thread.is_alive():
            self._wait()
        if self.interval.steps is not None:
            due = step - self._step >= self.interval.steps
        else:
            due = step > self._step and self._clock() - self._when >= (self.interval.seconds or 0.0)
        if not due:
            return False
        if self._thread is not None:
            self._say(
                "postponed",
                "the state of the training takes longer to write than --checkpoint-every "
                f"{self.interval}: states are written as often as the disk permits",
            )
            return False
        return True

    def write(
        self, state: State, config: dict[str, Any], arrays: Sequence[Array], slots: Sequence[dict[str, Array]]
    ) -> None:
        """Copy a state, and write it on a thread of its own, once the one before it is written."""
        self._wait()
        self.begin(state.step)
        wanted = [*arrays, *(array for one in slots for array in one.values())]
        self._copies = [
            _copied(array, kept) for array, kept in zip(wanted, [*self._copies, *[None] * len(wanted)])
        ]
        copies = iter(self._copies)
        own = [next(copies) for _ in arrays]
        own_slots = [{name: next(copies) for name in one} for one in slots]
        path = self.folder / f"state-{state.training:04d}-{state.step:012d}.safetensors"

        def work() -> None:
            try:
                write_state(path, state, config, own, own_slots, durable=True)
                for old in state_files(self.folder)[KEPT:]:
                    old.unlink(missing_ok=True)
                self.error = None
            except Exception as error:  # a full disk, say: the older states are as good as before
                self.error = (
                    f"the state of training {state.training}, step {state.step}, could not be written to "
                    f"{self.folder}: {type(error).__name__}: {error}; training continues"
                )

        self._thread = threading.Thread(target=work, name="nbdist writes a training's state", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until the last state is written, and release the copies."""
        self._wait()
        self._copies = []

    def fail(self, reason: str) -> None:
        """Record why a state could not be written, and print it the first time."""
        self.error = reason
        self._say("error", reason)

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self.error is not None:
            self._say("error", self.error)
        else:
            self._reported.discard("error")

    def _say(self, what: str, text: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            print(text)


def _copied(array: Array, kept: Array | None) -> Array:
    """Return a copy of an array on the host, in memory of an earlier copy where that has its form."""
    host = to_host(array)
    if kept is None or kept.shape != host.shape or kept.dtype != host.dtype:
        kept = np.empty(host.shape, host.dtype)
    np.copyto(kept, host)
    return kept
