"""Reads the event log of a sweep, also while its driver writes it.

Its frames are those of `nbdist.metrics.framing`. The reader leaves out an incomplete record at the end, skips
damage before it, and counts both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from nbdist.errors import DataLossError, ResourceExhaustedError
from nbdist.metrics.framing import LogFormat
from nbdist.sweep.eventcode import LARGEST, REPORT_BYTES, REPORTS, decoded
from nbdist.sweep.events import Event

FORMAT = LogFormat("sweep", 2, b"NBS2", LARGEST)
MAGIC = FORMAT.magic
MOST_BYTES = 2 << 30  # a longer log is not read into memory


@dataclass
class LogPart:
    """What `read_events` found; pass ``offset`` to the next call to go on from there.

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
        said = []
        if self.torn:
            said.append(f"the last record was cut off ({self.torn} bytes) and is lost")
        if self.damaged:
            said.append(f"{self.damaged} damaged bytes were stepped over")
        if self.unread:
            said.append(f"{self.unread} records are of a kind that this nbdist does not know")
        return "; ".join(said)


def read_events(path: Path, offset: int = 0) -> LogPart:
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
        return LogPart(torn=len(data))
    part = parse(data, start)
    part.offset += offset
    return part


def parse(data: bytes, start: int = 0) -> LogPart:
    """Return what the records in ``data`` say from ``start`` on; never raises on damage, counts it."""
    part = LogPart()
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
