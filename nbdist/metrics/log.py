"""The metrics log of one task: an append-only file of checked frames (see `framing`).

    kinds  = 0 header (JSON: replica), 1 name (id u2, UTF-8 text), 2 points (packed POINT records)

A reader stops at an incomplete frame (the writer is at work, or died there), and skips a damaged one.
Names are in the file before the points that use them. No pickle.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nbdist.metrics.batch import POINT, Points
from nbdist.metrics.framing import LogFormat

LARGEST = 64 << 20  # no frame is longer; a length above it is damage, not a reason to take memory
FORMAT = LogFormat("metrics", 2, b"NBM2", LARGEST)
MAGIC = FORMAT.magic
HEADER, NAME, POINTS = 0, 1, 2
_NAME = re.compile(r"metrics-\d{1,9}(\.\d{1,9})?\.log")


@dataclass
class LogPart:
    """The content that `read_log` read; pass ``offset`` to the next call to continue from there.

    ``torn`` is the number of bytes at the end that make no whole frame, ``damaged`` of those skipped before
    it.
    """

    names: dict[int, str] = field(default_factory=dict)
    points: Points = field(default_factory=lambda: np.empty(0, POINT))
    replica: int | None = None
    offset: int = 0
    torn: int = 0
    damaged: int = 0


def read_log(path: Path, offset: int = 0) -> LogPart:
    """Read a metrics log from ``offset`` on, also while its task is writing it.

    Names and replica are those of this part: a reader that continues from an offset keeps the earlier ones.
    Raises `DataLossError` if the file is not a metrics log, or has another version.
    """
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    start = FORMAT.start(data, str(path)) if offset == 0 else 0
    if start is None:
        return LogPart(torn=len(data))
    part = parse(data, start)
    part.offset += offset
    return part


def parse(data: bytes, start: int = 0) -> LogPart:
    """Return what the frames in ``data`` say from ``start`` on; never raises on damage, counts it."""
    part = LogPart()
    pieces: list[Points] = []
    frames = FORMAT.frames(data, start)
    for kind, payload in frames:
        try:
            if kind == POINTS:
                pieces.append(np.frombuffer(payload, POINT))
            elif kind == NAME:
                part.names[int.from_bytes(payload[:2], "little")] = payload[2:].decode()
            elif kind == HEADER:
                part.replica = _replica(payload)
        except (ValueError, LookupError, TypeError, RecursionError):
            frames.refuse()
    part.points = np.concatenate(pieces) if pieces else part.points
    part.offset, part.torn, part.damaged = frames.offset, frames.torn, frames.damaged
    return part


def damage(name: str, damaged: int, torn: int = 0) -> str:
    """Return a sentence on the bytes lost from the log ``name``; "" if none were.

    >>> damage("metrics-0000.log", 1117)
    'metrics-0000.log is damaged: 1,117 bytes, which are at most 50 points, were dropped'
    """
    said = []
    if damaged:
        most = damaged // POINT.itemsize
        said.append(f"{damaged:,} bytes, which are at most {most:,} points, were dropped")
    if torn:
        said.append(f"{torn:,} bytes at its end are an incomplete record")
    return f"{name} is damaged: {'; '.join(said)}" if said else ""


def frame(kind: int, payload: bytes) -> bytes:
    """Return ``payload`` as one frame of a metrics log."""
    return FORMAT.frame(kind, payload)


def name_frame(series: int, name: str) -> bytes:
    """Return the frame that says what a series id means."""
    return frame(NAME, series.to_bytes(2, "little") + name.encode())


def log_path(folder: Path, replica: int) -> Path:
    """Return where the log of ``replica`` stands in a run folder."""
    return folder / f"metrics-{replica:04d}.log"


def replica_of(path: Path) -> int:
    """Return the replica of a log by its file name, for a log with a damaged header.

    >>> replica_of(Path("metrics-0003.1.log"))
    3
    """
    return int(path.name.removeprefix("metrics-").split(".")[0])


def logs_in(folder: Path) -> list[Path]:
    """Return the logs of a run folder; a replaced task's second log follows its first."""
    logs = (path for path in folder.glob("metrics-*.log") if _NAME.fullmatch(path.name))
    return sorted(logs, key=lambda path: (path.name.split(".")[0], len(path.name), path.name))


def _replica(payload: bytes) -> int:
    replica = json.loads(payload)["replica"]
    if not isinstance(replica, int) or not 0 <= replica < 1 << 16:
        raise ValueError(replica)
    return replica
