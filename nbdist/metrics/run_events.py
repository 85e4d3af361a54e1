"""What happened in a run, beside its curves: learning rates that changed, pauses, states, lost workers.

    log = EventLog(events_path(folder, 0))      # one writer a file: a task, or the client that drives the run
    log.add("rate", "learning rate 0.1 → 0.01, set by the user", step=120, epoch=3, rank=0)
    log.flush()                                 # ten times a second, as the metrics log
    read_events(folder)                         # of all writers, by time

A file has one event a line, in JSON, and only grows: `nbdist.run.files` copies it from other hosts as it
copies the metrics logs. Every view of a run reads these files, so that the live view, the saved output, the
run's page and ``run.events`` show the same.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nbdist.json_values import number, object_in, text, whole
from nbdist.metrics.log import Appending
from nbdist.text import clip

KINDS = ("rate", "schedule", "pause", "resume", "checkpoint", "state", "lost", "replaced", "joined", "left")
"""Kinds of events: "rate" is a user's, "schedule" that of a schedule, a callback or another training."""
OF_CLIENT = "events.log"
EVENT_LOG = re.compile(r"events(-\d{1,9})?(\.\d{1,9})?\.log")
MOST_EVENTS = 2_000  # of one writer; what comes after them is counted
LONGEST_TEXT = 500  # characters
LONGEST_LINE = 8_000  # bytes; a longer one is damage
MOST_BYTES = 4 << 20  # of one file that are read
LARGEST_STEP = 2**32 - 1


@dataclass(frozen=True)
class Event:
    """Something that happened in a run.

    - ``time``: in seconds since 1970
    - ``step``: of the curves' x axis: the steps that were made before it
    - ``kind``: one of "rate", "schedule", "pause", "resume", "checkpoint", "state", "lost", "replaced",
      "joined" and "left"
    - ``text``: what happened, in words
    - ``epoch``: the epoch of a ``fit`` in which it happened, from 1 on; None outside of one
    - ``rank``: the rank of the task that it is about; None if it is about the run
    """

    time: float
    step: int
    kind: str
    text: str
    epoch: int | None = None
    rank: int | None = None


class EventLog:
    """Writes the events of one process; any thread adds, one flushes. A full disk stops nothing.

    ``say`` is called with what the disk refuses, once.
    """

    def __init__(self, path: Path, say: Callable[[str], object] = lambda trouble: None) -> None:
        self._file = Appending(path, say, "events")
        self._waiting: list[Event] = []
        self._lock = threading.Lock()
        self._count = 0

    def add(
        self, kind: str, text: str, step: int, *, epoch: int | None = None, rank: int | None = None
    ) -> None:
        """Add an event of one of the `KINDS` that happens now; after `MOST_EVENTS` a last one says so."""
        with self._lock:
            self._count += 1
            if self._count > MOST_EVENTS:
                return
            if self._count == MOST_EVENTS:
                text = f"{clip(text, LONGEST_TEXT // 2)}; further events of this task are not recorded"
            shown = clip(text, LONGEST_TEXT)
            at = min(max(0, step), LARGEST_STEP)
            self._waiting.append(Event(time.time(), at, kind, shown, epoch, rank))

    def flush(self) -> None:
        """Append what waits to the file."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        for event in taken:
            known = {name: value for name, value in asdict(event).items() if value is not None}
            self._file.keep(f"{json.dumps(known)}\n".encode(), 1)
        if taken or self._file.waits:
            self._file.retry()

    def close(self) -> None:
        """Append what waits, bring it to the disk and close the file."""
        self.flush()
        if self._count:
            self._file.close()


class EventReader:
    """Reads the events of a run's folder; `poll` reads only what is new. The folder may have any content.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> log = EventLog(events_path(Path(folder.name), 0))
    >>> log.add("pause", "paused", step=9); log.close()
    >>> reader = EventReader(Path(folder.name))
    >>> reader.poll(), [(event.step, event.kind) for event in reader.events], reader.poll()
    (True, [(9, 'pause')], False)
    >>> folder.cleanup()
    """

    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        """All so far, by time."""
        self._folder = folder
        self._read: dict[str, int] = {}  # bytes of each file that are read

    def poll(self) -> bool:
        """Read what was written since the last call; return whether there is something new."""
        found: list[Event] = []
        for path in event_files(self._folder):
            found += self._new_in(path)
        if found:
            self.events = sorted([*self.events, *found], key=lambda event: event.time)
        return bool(found)

    def _new_in(self, path: Path) -> list[Event]:
        start = self._read.get(path.name, 0)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                file.seek(start)
                data = file.read(max(0, MOST_BYTES - start))
        except OSError:  # it was just deleted, or is no file
            return []
        whole_lines = data[: data.rfind(b"\n") + 1]  # the writer may be at the next one
        self._read[path.name] = start + len(whole_lines)
        lines = (line for line in whole_lines.splitlines() if len(line) <= LONGEST_LINE)
        return [event for line in lines if (event := parse_event(line)) is not None]


def read_events(folder: Path) -> list[Event]:
    """Return the events in a run's folder, by time; those that cannot be read are left out."""
    reader = EventReader(folder)
    reader.poll()
    return reader.events


def parse_event(line: bytes) -> Event | None:
    """Return the event of a line; None if it has none.

    >>> parse_event(b'{"time": 1.5, "step": 3, "kind": "pause", "text": "paused", "rank": 0}')
    Event(time=1.5, step=3, kind='pause', text='paused', epoch=None, rank=0)
    >>> parse_event(b'{"time": 1.5, "step": "3"}') is parse_event(b"[") is None
    True
    """
    found = object_in(line)
    at, step, kind = number(found.get("time")), whole(found.get("step"), 1 << 32), found.get("kind")
    if at is None or at < 0 or step is None or kind not in KINDS:
        return None
    said = clip(text(found.get("text")), LONGEST_TEXT)
    return Event(at, step, kind, said, whole(found.get("epoch")), whole(found.get("rank")))


def events_path(folder: Path, number: int | None = None) -> Path:
    """Return the file of the events of a task in a run's folder; of the client without a number."""
    return folder / (OF_CLIENT if number is None else f"events-{number:04d}.log")


def event_files(folder: Path) -> list[Path]:
    """Return the files of events in a run's folder, by name."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith("events")]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if EVENT_LOG.fullmatch(name)]


# What is shown of very many events.

FEW = ("schedule", "state")
"""Kinds of which the ones between are left out first: their course is a curve, or regular."""


def thinned(events: Sequence[Event], most: int) -> list[Event]:
    """Return at most ``most`` events by time, for a view: states and schedules are left out first.

    The newest ones of a kind stay, and its first one.

    >>> made = [Event(n, n, "state", "") for n in range(9)] + [Event(4.5, 4, "lost", "worker 1 was lost")]
    >>> [(event.step, event.kind) for event in thinned(made, 3)]
    [(0, 'state'), (4, 'lost'), (8, 'state')]
    """
    if len(events) <= most:
        return sorted(events, key=lambda event: event.time)
    chosen = [event for event in events if event.kind not in FEW]
    chosen = _ends(chosen, most)
    rest = _ends([event for event in events if event.kind in FEW], most - len(chosen))
    return sorted([*chosen, *rest], key=lambda event: event.time)


def _ends(events: Iterable[Event], most: int) -> list[Event]:
    """Return the first and the newest events, at most so many."""
    found = sorted(events, key=lambda event: event.time)
    if len(found) <= most:
        return found
    return [*found[:1], *found[len(found) - most + 1 :]] if most > 0 else []
