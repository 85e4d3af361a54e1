"""Reads the event log of a sweep, also while its driver writes it.

    file   = MAGIC, frame*          frames as in a metrics log (mark, kind, length, CRC-32, payload)

A record that is cut off at the end is left out; damage before it is stepped over. Both are counted.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from nbdist.errors import DataLossError, ResourceExhaustedError
from nbdist.metrics.log import frame, next_whole_frame, whole_frame
from nbdist.sweep.eventcode import LARGEST, REPORT_BYTES, REPORTS, decoded
from nbdist.sweep.events import Event

MAGIC = b"nbdist sweep 1\n"
MOST_BYTES = 2 << 30  # a longer log is not read into memory
_HEAD = len(frame(0, b""))


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

    Raises `DataLossError` if the file is no log of a sweep, `ResourceExhaustedError` if it is over 2 GB.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size - offset
        if size > MOST_BYTES:
            raise ResourceExhaustedError(f"{path} has {size:,} bytes more to read; at most {MOST_BYTES:,}")
        file.seek(offset)
        data = file.read(max(size, 0))
    start = 0
    if offset == 0:
        if not data.startswith(MAGIC):
            if MAGIC.startswith(data):
                return LogPart(torn=len(data))
            raise DataLossError(f"{path} is no log of a sweep: it starts with {data[: len(MAGIC)]!r}")
        start = len(MAGIC)
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

    position = start
    while position < len(data):
        body = whole_frame(data, position)
        if body is None or len(body[1]) > LARGEST:
            following = next_whole_frame(data, position + 1)
            if following is None:
                break
            part.damaged += following - position
            position = following
            continue
        position += _HEAD + len(body[1])
        if body[0] == REPORTS and len(body[1]) % REPORT_BYTES == 0:
            reports.append(body[1])
        else:
            take_reports()
            take(*body)
    take_reports()
    part.offset, part.torn = position, len(data) - position
    return part
