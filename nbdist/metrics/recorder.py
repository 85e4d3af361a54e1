"""The recorder in an engine: points go in from the training step, come out ten times a second."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nbdist.errors import DataLossError, InvalidArgumentError, ResourceExhaustedError
from nbdist.metrics.event_file import EventFiles
from nbdist.metrics.log import POINT, Batch, LogPart, LogWriter, Points, read_log
from nbdist.text import clip

WIDTH = 4  # series, step, value, time: one point is four neighbours in a flat list
FULL = 2_000_000 * WIDTH  # what may wait if the flushing thread is held up
LONGEST_NAME = 200  # characters
LARGEST_STEP = 2**32 - 1
now = time.perf_counter


class Recorder:
    """Takes the metric points of one replica; any thread adds, one flushes.

    `add` is an append to a list (about 0.15 microseconds, with the time); everything dearer happens
    in `flush`, which writes to the task's own log before it hands the batch on. A full disk never stops
    training: it is reported once through ``say``, is in ``troubles``, and ``lost`` counts the lost points.

    Timestamps are those of a monotonic clock, added to the time of day at the start: setting the system clock
    during a run does not distort curves. ``origin`` is the time of day less that clock, as another process of
    this host has read them; None reads them here.

    With ``events`` the points go to TensorBoard's files in that folder as well, as from `start_events` on;
    ``rejoins`` says whether an earlier process of the task may have left files there.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> recorder = Recorder(Path(folder.name, "metrics-0000.log"), replica=0)
    >>> loss = recorder.series("loss")
    >>> recorder.add(loss, 1, 0.5)
    >>> recorder.flush().names
    {0: 'loss'}
    >>> recorder.close(); folder.cleanup()
    """

    def __init__(
        self,
        path: Path,
        *,
        replica: int,
        say: Callable[[str], None] | None = None,
        events: Path | None = None,
        rejoins: bool = False,
        origin: float | None = None,
    ) -> None:
        self.replica = replica
        self.names: list[str] = []
        self.dropped = 0
        self.closed = False
        self._waiting: list[float] = []
        self._extend = self._waiting.extend
        self._ids: dict[str, int] = {}
        self._naming = threading.Lock()
        self._flushing = threading.Lock()
        self._origin = time.time() - now() if origin is None else origin
        self.troubles: list[str] = []
        """The errors of the disk so far: a line for each file."""
        self._say = say or logging.getLogger("nbdist.metrics").warning
        self._log = LogWriter(path, replica, self.say)
        self._events: EventFiles | None = None
        if events is not None:
            self.start_events(events, rejoins)

    def series(self, name: str) -> int:
        """Return the id of the series ``name``, making it if it is new.

        Raises InvalidArgumentError for an invalid name, ResourceExhaustedError above 65,535 of them.
        """
        known = self._ids.get(name)
        return self._named(name) if known is None else known

    def add(self, series_id: int, step: int, value: float) -> None:
        """Record ``value`` at ``step``; never blocks, never touches a file.

        The value is turned into a float here and now: it may be a view into a buffer that the next step
        overwrites.
        """
        if len(self._waiting) >= FULL or self.closed:
            self.dropped += 1
            return
        # One extend by a tuple cannot be cut in two by the flushing thread.
        self._extend((series_id, step, float(value), now()))

    def start_events(self, folder: Path, rejoins: bool = False) -> EventFiles:
        """Write TensorBoard's files in ``folder`` from now on, which begin with the points of the log so far.

        Returns the files; if there are some already, these.
        """
        with self._flushing:
            if self._events is None:
                self._events = EventFiles(folder, self.say, rejoins=rejoins)
                try:
                    part = read_log(self._log.path)
                except (OSError, DataLossError):  # it is not written, which `say` was called with
                    part = LogPart()
                if len(part.points):
                    self._events.append(self.names, part.points)
            return self._events

    def flush(self) -> Batch | None:
        """Write what is waiting to the log and return it as a batch; None if nothing waits."""
        with self._flushing:
            taken = self._waiting[:]  # points added from here on stay for the next flush
            del self._waiting[: len(taken)]
            if not taken:
                self._log.retry()
                if self._events is not None:
                    self._events.retry()
                return None
            points = as_points(taken, self._origin)
            self._log.append(self.names, points)
            if self._events is not None:
                self._events.append(self.names, points)
        used = np.unique(points["series"]).tolist()
        return Batch(self.replica, {series: self.names[series] for series in used}, points, self.dropped)

    def close(self) -> Batch | None:
        """Flush, bring the log to the disk and close it; returns the last batch. Later points are dropped."""
        self.closed = True
        batch = self.flush()
        self._log.close()
        if self._events is not None:
            self._events.close()
        return batch

    def all_troubles(self, ended: bool) -> list[str]:
        """Return the errors of the disk so far; with ``ended`` also how many points each file lacks."""
        if not ended or not self.troubles:
            return self.troubles
        with self._flushing:
            missing = {self._log.path: self._log.missing()}
            if self._events is not None:
                missing |= self._events.missing()
        return self.troubles + [
            f"{points:,} point{'s' * (points != 1)} of {path} could not be written: no room in time"
            for path, points in missing.items()
            if points
        ]

    def say(self, trouble: str) -> None:
        """Report a trouble, of the disk or of summaries."""
        self.troubles.append(trouble)
        self._say(trouble)

    def _named(self, name: str) -> int:
        with self._naming:
            if name not in self._ids:
                check_name(name)
                if len(self.names) == np.iinfo(np.uint16).max:
                    raise ResourceExhaustedError(
                        f"no room for series {name!r}: a replica may have 65,535 names. Log what changes "
                        "from step to step as values of one name, not under a new name each"
                    )
                self.names.append(name)  # before the id is known to anyone, so that a flush finds the name
                self._ids[name] = len(self.names) - 1
            return self._ids[name]

    @property
    def end(self) -> int:
        """How many bytes of the log have been flushed so far, those that wait for the disk among them."""
        return self._log.end

    def position(self) -> tuple[int, bytes]:
        """Return what has been flushed so far: how many bytes of the log, and those that wait for the disk.

        A reader of both, and then of each batch of `flush`, has every point once.
        """
        with self._flushing:
            return self._log.position()

    @property
    def path(self) -> Path:
        """The log's own path: the requested one, or the next free one if an earlier task left a log there."""
        return self._log.path

    @property
    def lost(self) -> int:
        """How many points did not reach the log because the disk was full for too long."""
        return self._log.lost


def check_name(name: object) -> None:
    """Raise unless ``name`` can be the name of a series."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"a series is named by text, not by {name!r}; write {str(name)!r}")
    if not name or len(name) > LONGEST_NAME:
        raise InvalidArgumentError(
            f"the name of a series has 1 to {LONGEST_NAME} characters; {clip(name, 40)!r} has {len(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"{name!r} cannot be written as UTF-8: give the series another name"
        ) from None


def as_points(flat: list[float], origin: float = 0.0) -> Points:
    """Turn the flat list of points into an array; steps outside 0..2**32-1 are held at the nearest bound.

    ``origin`` is added to the times.
    """
    table = np.array(flat, np.float64).reshape(-1, WIDTH)
    points = np.empty(len(table), POINT)
    points["series"] = table[:, 0]
    points["step"] = np.clip(table[:, 1], 0, LARGEST_STEP)
    points["value"] = table[:, 2]
    points["time"] = table[:, 3] + origin
    return points
