"""The event log of a sweep: `EventLog` writes it, `read_events` reads it, also while it is written.

Design: a write-ahead log. The events are the only state of a sweep that survives; everything else (`Ledger`)
is computed from them. Three rules make any crash recoverable:

1. One writer. ``sweep.log.lock`` is held with flock for as long as a process drives the sweep; the kernel
   releases it when the process dies, so no stale lock can remain. Other processes send commands through the
   command file (`nbdist.trials.command_file`) and the driver writes their events.
2. Event first, then action. The driver appends an event, applies it to the ledger, and then sends the message
   that follows from it. So after any death the log knows at least as much as the engines.
3. Append only, in framed records with a checksum (`nbdist.metrics.framing`). If the disk is full, the file is
   cut back to its former length, and nothing of the record is in the log.

What a crash of the driver leaves at each point:

    before the append                    no event and no action: the next driver decides again
    within the append                    a torn record at the end: a reader ignores it, `reopen` cuts it off
    after the append, before the action  an event without its effect: engines do not run the attempt. After
                                         `Started` the next driver retries it; after `Stopped` or `Pruned` it
                                         sends the stop again, because the trial is still ``stopping``
    after the action                     the event and its effect: the next driver adopts the running attempt,
                                         and engines send reports and results again that were not written

`append` returns when the record is in the kernel's page cache: it survives the death of the process. fsync
follows within about a second, so a power failure loses at most that second. Then an attempt may run whose
start is lost; the next driver writes its `Started` again (`Scheduler.recover`). No pickle; mode 0600.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from nbdist.errors import (
    DataLossError,
    FailedPreconditionError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
)
from nbdist.metrics.framing import LogFormat
from nbdist.metrics.log import write_whole
from nbdist.sweep.events import (
    LARGEST,
    REPORT_BYTES,
    REPORTS,
    Event,
    Reported,
    decoded,
    encoded,
    encoded_reports,
)

SYNC_SECONDS = 1.0
LOCK_SECONDS = 0.1  # a writer waits so long, because `holder_of` takes the lock for a moment


class EventLog:
    """Writes a sweep's log; open it with `create` or `reopen`. Use it from one thread at a time.

    ``found`` has the events that the file held. A second writer is refused with `FailedPreconditionError`,
    also in the same process.

    >>> import tempfile
    >>> from nbdist.sweep.events import Paused
    >>> path = Path(tempfile.mkdtemp()) / "sweep.log"
    >>> with EventLog.create(path) as log:
    ...     log.append(Paused(1e9))
    >>> read_events(path).events
    [Paused(time=1000000000.0)]
    """

    def __init__(self, path: Path, descriptor: int, lock: int, found: EventLogPart) -> None:
        self.path, self.found = path, found
        self._descriptor, self._lock = descriptor, lock
        self._end = found.offset
        self._synced = time.monotonic()
        self._unsynced = False

    @classmethod
    def create(cls, path: Path) -> EventLog:
        """Make a new log; raises `FailedPreconditionError` if there is a file already."""
        try:
            return cls._locked(path, os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise FailedPreconditionError(f"{path} is there already; a sweep has a log of its own") from None

    @classmethod
    def reopen(cls, path: Path) -> EventLog:
        """Open an existing log to continue it: ``found`` has its events.

        A torn record at its end is cut off (``found.torn`` bytes). Raises `NotFoundError`,
        `DataLossError` if it is not such a log, `NotAllowedError` if other users could have written it.
        """
        if not path.exists():
            raise NotFoundError(f"no sweep log {path}")
        return cls._locked(path, 0)

    @classmethod
    def _locked(cls, path: Path, flags: int) -> EventLog:
        with ExitStack() as undo:
            lock = take_lock(path)
            undo.callback(os.close, lock)
            descriptor = _open(path, flags)
            undo.callback(os.close, descriptor)
            _check_own(descriptor, path)
            found = read_events(path)
            os.ftruncate(descriptor, found.offset)
            log = cls(path, descriptor, lock, found)
            if not found.offset:  # it is new, or its maker died before the first line was whole
                log._write(MAGIC)
                log.sync()
            undo.pop_all()
            return log

    def append(self, *events: Event) -> None:
        """Write events, reports that stand together in one record.

        Raises `ResourceExhaustedError` if the disk is full; then nothing of them is in the log.
        """
        frames = []
        index = 0
        while index < len(events):
            start = index
            while index < len(events) and isinstance(events[index], Reported):
                index += 1
            if index > start:
                reports = [event for event in events[start:index] if isinstance(event, Reported)]
                frames.append(FORMAT.frame(*encoded_reports(reports)))
            else:
                frames.append(FORMAT.frame(*encoded(events[index])))
                index += 1
        self._write(b"".join(frames))
        if time.monotonic() - self._synced >= SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Write appended records to the disk; call it about once a second when nothing is appended."""
        if self._unsynced and self._descriptor >= 0:
            os.fsync(self._descriptor)
            self._unsynced = False
        self._synced = time.monotonic()

    def close(self) -> None:
        """Write everything to the disk and release the lock."""
        if self._descriptor < 0:
            return
        try:
            self.sync()
        finally:
            # Before it is closed: its number may be another file's then.
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            os.close(self._lock)

    def _write(self, data: bytes) -> None:
        if self._descriptor < 0:
            raise FailedPreconditionError(f"{self.path} is closed; reopen it")
        try:
            write_whole(self._descriptor, data, self._end)
        except OSError as error:
            raise ResourceExhaustedError(
                f"{self.path} cannot be written: {error.strerror}; free some space, then resume the sweep"
            ) from error
        self._end += len(data)
        self._unsynced = True

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def take_lock(path: Path) -> int:
    """Return a descriptor that holds the lock of the log at ``path`` until it is closed (client).

    Raises `FailedPreconditionError` with the process that holds it.
    """
    lock = _open(path.with_name(f"{path.name}.lock"), os.O_CREAT)
    deadline = time.monotonic() + LOCK_SECONDS
    while not (taken := _takes(lock)) and time.monotonic() < deadline:
        time.sleep(0.005)
    if not taken:
        holder = os.pread(lock, 20, 0).decode(errors="replace").strip() or "?"
        os.close(lock)
        raise FailedPreconditionError(
            f"process {holder} is writing {path}: a sweep has one driver; stop that process, or read the log "
            "with read_events"
        )
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def holder_of(path: Path) -> int | None:
    """Return the process that holds the lock of the log at ``path``, 0 if it is not known; None if none does.

    Creates nothing. A writer that takes the lock at the same moment waits (`LOCK_SECONDS`).
    """
    try:
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two readers do not see each other
    except BlockingIOError:
        holder = os.pread(lock, 20, 0).strip()
        return int(holder) if holder.isdigit() else 0
    except OSError:
        return None
    finally:
        os.close(lock)
    return None


def _takes(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path, more: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | more, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise NotAllowedError(f"{path} is a link; a sweep's log is a file of its own") from None


def _check_own(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise NotAllowedError(f"{path} is not a regular file")
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise NotAllowedError(
            f"{path} belongs to user {status.st_uid} and has mode {status.st_mode & 0o777:o}: others could "
            f"have written it; run chmod 600 {path} if it is yours"
        )


# Reading. The reader ignores an incomplete record at the end, skips damage before it, and counts both.

FORMAT = LogFormat("sweep", 2, b"NBS2", LARGEST)
MAGIC = FORMAT.magic
MOST_BYTES = 2 << 30  # a longer log is not read into memory


@dataclass
class EventLogPart:
    """What `read_events` found; pass ``offset`` to the next call to continue from there.

    ``torn`` is the number of bytes at the end that make no whole record, ``damaged`` of those skipped before
    it, ``unread`` of whole records that this version cannot read.
    """

    events: list[Event] = field(default_factory=list)
    offset: int = 0
    torn: int = 0
    damaged: int = 0
    unread: int = 0

    def complaint(self) -> str:
        """Return a sentence on what was lost, or "" if nothing was."""
        parts = []
        if self.torn:
            parts.append(f"the last record was cut off ({self.torn} bytes) and is lost")
        if self.damaged:
            parts.append(f"{self.damaged} damaged bytes were stepped over")
        if self.unread:
            parts.append(f"{self.unread} records are of a kind that this nbdist does not know")
        return "; ".join(parts)


def read_events(path: Path, offset: int = 0) -> EventLogPart:
    """Return the events of a log from ``offset`` on, also while its driver is writing it.

    Raises `DataLossError` if the file is not a log of a sweep, or has another version,
    `ResourceExhaustedError` if it is larger than 2 GB.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size - offset
        if size > MOST_BYTES:
            raise ResourceExhaustedError(f"{path} has {size:,} bytes more to read; at most {MOST_BYTES:,}")
        file.seek(offset)
        data = file.read(max(size, 0))
    start = FORMAT.start(data, str(path)) if offset == 0 else 0
    if start is None:
        return EventLogPart(torn=len(data))
    part = parse(data, start)
    part.offset += offset
    return part


def parse(data: bytes, start: int = 0) -> EventLogPart:
    """Return what the records in ``data`` say from ``start`` on; never raises on damage, counts it."""
    part = EventLogPart()
    reports: list[bytes] = []  # payloads that stand together are unpacked together, which takes half the time

    def take(kind: int, payload: bytes) -> None:
        try:
            part.events += decoded(kind, payload)
        except DataLossError:
            part.unread += 1

    def take_reports() -> None:
        if reports:
            take(REPORTS, b"".join(reports))
            reports.clear()

    frames = FORMAT.frames(data, start)
    for kind, payload in frames:
        if kind == REPORTS and len(payload) % REPORT_BYTES == 0:
            reports.append(payload)
        else:
            take_reports()
            take(kind, payload)
    take_reports()
    part.offset, part.torn, part.damaged = frames.offset, frames.torn, frames.damaged
    return part
