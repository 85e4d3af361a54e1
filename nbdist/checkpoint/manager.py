"""Writes the state of a training, and finds the one to continue from: `CheckpointManager`.

    manager = CheckpointManager(run_folder, parse_interval("30s"), read=earlier)
    found = manager.load(read_state)                    # the newest one of ``earlier`` that is whole
    manager.begin(step)
    if manager.is_due(step):                            # between two steps
        manager.save(training, step, take)              # returns when what take() returns is copied
    manager.finish()                                    # when the training ends: waits for the disk

Training pauses for the copy only. A thread writes it: draft, fsync, rename, fsync of the folder. The newest
two states stay, so that a damaged one leaves the one before it (`CheckpointManager.load` returns that then):

    state-0001-000000000120.safetensors                 # training 1 of the run, after its step 120

A state that becomes due while the one before it is being written is written as soon as that is done. After an
error of the disk training continues and the older states stay.
"""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nbdist.checkpoint.tensor_file import crc_of, write_tensors
from nbdist.draft import draft_of
from nbdist.errors import DataLossError, InvalidArgumentError, NotFoundError
from nbdist.graph.backend import Array, to_host
from nbdist.numbers import is_whole

ABANDONED_SECONDS = 60.0  # without a further byte in a draft, which another saver may be writing
KEPT = 2
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
INTERVAL = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h)")
STATE_FILE = re.compile(r"state-\d{4,}-\d{12,}\.safetensors")
CHECK = "nbdist.check"
P = TypeVar("P")
T = TypeVar("T")


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


def whole(
    paths: Iterable[P], read: Callable[[P], T], damaged: Callable[[P, Exception], object]
) -> Iterator[tuple[P, T]]:
    """Yield those states that can be read, each with its content; ``damaged`` is called with the others.

    ``read`` raises DataLossError for a damaged one, and NotFoundError for one that was deleted.
    """
    for path in paths:
        try:
            found = read(path)
        except (DataLossError, NotFoundError) as error:
            damaged(path, error)
            continue
        yield path, found


@dataclass(frozen=True)
class Snapshot:
    """A state at one moment between two steps, as a file has it: texts, and arrays by name."""

    texts: Mapping[str, str]
    tensors: Mapping[str, Any]

    def copied(self, kept: Mapping[str, Array]) -> Snapshot:
        """Return a snapshot of copies on the host, in memory of earlier copies where that has their form."""
        copies = {name: _copied(array, kept.get(name)) for name, array in self.tensors.items()}
        return Snapshot(self.texts, copies)


def abandoned(folder: Path, written: Path) -> Iterator[Path]:
    """Yield drafts of processes that were killed in a save: old ones, by a file that was ``written`` now."""
    for draft in folder.glob(".state-*.draft"):
        with suppress(FileNotFoundError):  # another saver has put it in place
            if written.stat().st_mtime - draft.stat().st_mtime > ABANDONED_SECONDS:
                yield draft


def write_snapshot(path: Path, snapshot: Snapshot, durable: bool = False) -> None:
    """Write a snapshot, with its checksum, to a file of mode 0600, by way of a draft.

    With ``durable`` it returns once the file and its name would survive a loss of power.
    """
    check = str(checksum(snapshot.texts, snapshot.tensors))
    with draft_of(path, private=True, durable=durable) as draft:
        write_tensors(draft, snapshot.tensors, {**snapshot.texts, CHECK: check})


def checksum(texts: Mapping[str, str], tensors: Mapping[str, Any]) -> int:
    """Return a number that a flipped bit changes."""
    found = 0
    for name, text in sorted(texts.items()):
        if name != CHECK:
            found = zlib.crc32(text.encode(), found)
    for _, array in sorted(tensors.items()):
        found = crc_of(array, found)
    return found


class CheckpointManager:
    """The states of one run: those that it writes, and those that it may continue from.

    - ``folder``, ``interval``: where states are written while it trains, and how often; None: they are not
    - ``write``: the file of the state at the end; None for none
    - ``read``: the file to continue from, or several, the newest first
    - ``last``: in how many seconds one more state is due, whatever the interval, before the end of the job
      that the process is in; None for none. 0 or less: after the next step
    - ``clock``: returns the seconds that intervals are measured with

    All calls come from the training thread. What the disk refuses is printed there, once, and is in ``error``
    until a state is written again.
    """

    written: Callable[[int, int], object] = staticmethod(lambda training, step: None)
    """Called with training and step of each state that is on the disk, by the thread that has written it."""
    passing: tuple[type[Exception], ...] = ()
    """Errors that say that there is no state, and not that it could not be written: `save` raises them."""

    def __init__(
        self,
        folder: Path | None = None,
        interval: Interval | None = None,
        *,
        write: Path | None = None,
        read: Path | Sequence[Path] | None = None,
        last: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.interval, self.target = folder, interval, write
        found = [] if read is None else [read] if isinstance(read, (str, Path)) else read
        self._candidates = [Path(one) for one in found]
        self.loading = threading.Lock()
        """Held by the replica that chooses the state for all: those of one process are threads."""
        self.fallbacks: list[str] = []
        """Why states were left for those before them."""
        self.error: str | None = None
        """Why the newest state could not be written."""
        self._clock, self._step, self._when = clock, 0, clock()
        self._last = None if last is None else clock() + last
        self._was_last = False
        self._thread: threading.Thread | None = None
        self._copies: Mapping[str, Array] = {}
        self._reported = set[str]()

    @property
    def read(self) -> Path | None:
        """The state to continue from, if there is one."""
        return self._candidates[0] if self._candidates else None

    @property
    def saves(self) -> bool:
        """Whether states are written while the run trains."""
        return self.interval is not None or self._last is not None or self._was_last

    @property
    def ends_with_state(self) -> bool:
        """Whether a training leaves a state at its end: not one of which nothing has been saved yet."""
        return self.interval is not None or self._was_last

    def are_asked_for(self) -> bool:
        """Return whether the run was asked to write states, or to continue one.

        It is called for a training that can do neither. A state that is only due before the end of the job is
        left out then, which is printed.
        """
        if self._last is not None:
            self._last = None
            self._say(
                "left out", "this training has no state that could be written before the hosts' job ends"
            )
        return self.interval is not None or self.read is not None

    def load(self, read: Callable[[Path], T]) -> T:
        """Return the content of the newest state that is whole; those before it in ``read`` are dropped.

        Raises the error of the last one if none is whole.
        """
        damaged: list[tuple[Path, Exception]] = []
        found = whole(self._candidates, read, lambda path, error: damaged.append((path, error)))
        for path, content in found:
            self.fallbacks += [
                f"{error}. Instead of {left.name}, training continues {path.name}" for left, error in damaged
            ]
            del self._candidates[: len(damaged)]
            return content
        raise damaged[-1][1]

    def begin(self, step: int) -> None:
        """Count the interval from this step on."""
        self._step, self._when = step, self._clock()

    def is_due(self, step: int) -> bool:
        """Return whether to call :meth:`save` now, before the step after ``step``."""
        if self._last is not None and step > self._step and self._clock() >= self._last:
            return True
        if self.interval is None:
            return False
        if self._thread is not None and not self._thread.is_alive():
            self._wait()
        if self.interval.steps is not None:
            due = step - self._step >= self.interval.steps
        else:
            due = step > self._step and self._clock() - self._when >= (self.interval.seconds or 0.0)
        if due and self._thread is not None:
            self._say(
                "postponed",
                "the state of the training takes longer to write than --checkpoint-every "
                f"{self.interval}: states are written as often as the disk permits",
            )
            return False
        return due

    def save(self, training: int, step: int, take: Callable[[], Snapshot]) -> None:
        """Copy the state that ``take`` returns, and write it on a thread of its own; a failure ends nothing.

        Waits until the one before it is written. Raises those errors of ``take`` that are ``passing``.
        """
        assert self.folder is not None
        try:
            self._save(training, step, take(), self.folder)
        except self.passing:
            raise
        except Exception as error:  # no memory for the copy, say
            self._fail(not_written(training, step, self.folder, error))

    def _save(self, training: int, step: int, snapshot: Snapshot, folder: Path) -> None:
        self._wait()
        self.begin(step)
        if self._last is not None and self._clock() >= self._last:
            self._last, self._was_last = None, True
            print(f"a state is written after step {step}: the job of the hosts ends soon")
        own = snapshot.copied(self._copies)
        self._copies = own.tensors
        path = folder / f"state-{training:04d}-{step:012d}.safetensors"

        def work() -> None:
            try:
                write_snapshot(path, own, durable=True)
                for old in [*state_files(folder)[KEPT:], *abandoned(folder, path)]:
                    old.unlink(missing_ok=True)
                self.error = None
                self.written(training, step)
            except Exception as error:  # a full disk, say: the older states are as good as before
                self.error = not_written(training, step, folder, error)

        self._thread = threading.Thread(target=work, name="nbdist writes a training's state", daemon=True)
        self._thread.start()

    def keep(self, take: Callable[[], Snapshot]) -> None:
        """Write the state that ``take`` returns at the end of a training; a failure ends nothing."""
        assert self.target is not None
        try:
            write_snapshot(self.target, take())
        except Exception as error:  # a full disk, say: what was trained is as good as before
            why = f"{type(error).__name__}: {error}"
            self._fail(f"what was trained could not be kept in {self.target}: {why}")
        else:
            self.error = None
            self._reported.discard("error")

    def finish(self) -> None:
        """Wait until the last state is written, and release the copies."""
        self._wait()
        self._copies = {}

    def _fail(self, reason: str) -> None:
        self.error = reason
        self._say("error", reason)

    def _wait(self) -> None:
        if self._thread is None:
            return
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


def not_written(training: int, step: int, path: object, error: Exception) -> str:
    """Return the text of an error of the disk."""
    return (
        f"the state of training {training}, step {step}, could not be written to {path}: "
        f"{type(error).__name__}: {error}; training continues"
    )


def _copied(array: Array, kept: Array | None) -> Array:
    """Return a copy of an array on the host, in memory of an earlier copy where that has its form."""
    host = to_host(array)
    if kept is None or kept.shape != host.shape or kept.dtype != host.dtype:
        kept = np.empty(host.shape, host.dtype)
    np.copyto(kept, host)
    return kept
