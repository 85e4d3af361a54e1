"""TensorBoard's event files: a task's points, as its scalars.

    run folder/tensorboard/worker-0/events.out.tfevents.<time>.<host>
    run folder/tensorboard/worker-0/validation/events.out.tfevents....      "val_loss" as "loss", as in Keras

    file   = record*, the first one an Event with "brain.Event:2"
    record = length u8, masked crc32c u4 of the length, an Event, masked crc32c u4 of the Event
    Event  = wall_time double (1), step int64 (2), summary (5) = value (1) = tag (1), simple_value float (2)

Look at it with ``tensorboard --logdir <run folder>/tensorboard``. All of it is made with a few array
operations a second: those scalars whose tags are of one length are rows of one array.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nbdist.metrics.log import Appending, Points
from nbdist.metrics.run_folder import slug

FOLDER = "tensorboard"
VALIDATION = "val_"
EVERY = 1.0  # seconds between two times of writing; TensorBoard itself looks every few seconds
STEP_BYTES = 5  # a varint of u4, written at full length, so that all events of one tag are equally long
Bytes = NDArray[np.uint8]


class EventFiles:
    """Writes one task's points for TensorBoard: training, and validation as a run of its own."""

    def __init__(
        self, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._say, self._clock = folder, say, clock
        self._files: dict[bool, EventFile] = {}
        self._waiting: list[Points] = []
        self._names: list[str] = []
        self._due = clock()

    def append(self, names: list[str], points: Points) -> None:
        """Take points; their series are indices into ``names``, which only grows."""
        self._names = names
        self._waiting.append(points.copy())
        self.retry()

    def retry(self) -> None:
        """Write what waits, if it is time."""
        if self._clock() >= self._due:
            self._due = self._clock() + EVERY
            self._write()

    def close(self) -> None:
        """Write what waits, and close."""
        self._write()
        for file in self._files.values():
            file.close()

    @property
    def lost(self) -> int:
        """How many points the disk had no room for."""
        return sum(file.lost for file in self._files.values())

    def _write(self) -> None:
        if self._waiting:
            points = np.concatenate(self._waiting)
            self._waiting.clear()
            validates = np.array([tag_of(name) != name for name in self._names])[points["series"]]
            for kind in (False, True):
                chosen = points[validates == kind]
                if len(chosen):
                    tags = [tag_of(name) for name in self._names]
                    self._file(kind).keep(events(tags, chosen), len(chosen))
        for file in self._files.values():
            file.retry()

    def _file(self, validation: bool) -> EventFile:
        if validation not in self._files:
            self._files[validation] = EventFile(
                self._folder / "validation" if validation else self._folder, self._say
            )
        return self._files[validation]


class EventFile(Appending):
    """A file of TensorBoard's events that grows; ``folder`` is made with mode 0700."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        now = time.time()
        super().__init__(folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}", say)
        self.keep(record(struct.pack("<Bd", 0x09, now) + b"\x1a\x0dbrain.Event:2"))

    def retry(self) -> None:
        """Write what is held back; the folder is made when there is something to go into it."""
        try:
            make_private(self.path.parent)
        except OSError as error:
            self._trouble(error)
            return
        super().retry()


def events_folder(run_folder: Path, task: str) -> Path:
    """Return where a task's, or a tower's, event files stand in a run folder.

    >>> events_folder(Path("run"), "/job:worker/task:1").as_posix()
    'run/tensorboard/worker-1'
    """
    parts = [part.partition(":")[2] or part for part in task.strip("/").split("/")]
    return run_folder / FOLDER / slug("-".join(parts))


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, with mode 0700."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def events(tags: list[str], points: Points) -> bytes:
    """Return the records of points, whose series are indices into ``tags``; a series stays in its order."""
    encoded = [tag.encode() for tag in tags]
    lengths = np.array([len(tag) for tag in encoded])[points["series"]]
    found = (points[lengths == length] for length in np.unique(lengths))
    return b"".join(_records([encoded[series] for series in some["series"]], some) for some in found)


def tag_of(name: str) -> str:
    """Return what a series is called in TensorBoard: validation has the name of what it validates."""
    return name.removeprefix(VALIDATION) or name


def _records(tags: list[bytes], points: Points) -> bytes:
    """Return the records of points whose tags have one length."""
    count, length = len(points), len(tags[0])
    with np.errstate(over="ignore", invalid="ignore"):  # beyond single precision is inf
        values = points["value"].astype("<f4")
    value = b"\x0a" + varint(length), np.frombuffer(b"".join(tags), np.uint8), b"\x15", values.view(np.uint8)
    inner = list(_columns(count, *value))
    size = sum(part.shape[1] for part in inner)
    summary = b"\x0a" + varint(size)
    event = np.hstack([
        *_columns(count, b"\x09", np.ascontiguousarray(points["time"], "<f8").view(np.uint8)),
        *_columns(count, b"\x10", padded_varints(points["step"])),
        *_columns(count, b"\x2a" + varint(len(summary) + size) + summary),
        *inner,
    ])  # fmt: skip
    head = np.frombuffer(struct.pack("<Q", event.shape[1]), np.uint8)
    framed = np.hstack([*_columns(count, head.tobytes(), masked(head[None])), event, masked(event)])
    return framed.tobytes()


def _columns(count: int, *parts: bytes | Bytes) -> Iterator[Bytes]:
    """Yield each part as ``count`` rows: constants, and arrays of so many rows, or of one for all."""
    for part in parts:
        array = np.frombuffer(part, np.uint8)[None] if isinstance(part, bytes) else part
        rows = array if array.ndim == 2 else array.reshape(count, -1)
        yield np.broadcast_to(rows, (count, rows.shape[1]))


def record(event: bytes) -> bytes:
    """Return one record."""
    head = struct.pack("<Q", len(event))
    crcs = [masked(np.frombuffer(part, np.uint8)[None]).tobytes() for part in (head, event)]
    return head + crcs[0] + event + crcs[1]


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it.

    >>> varint(5).hex(), varint(300).hex()
    ('05', 'ac02')
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def padded_varints(numbers: NDArray[Any]) -> Bytes:
    """Return numbers below 2**32 as rows of varints of five bytes; leading zeros are allowed there."""
    shifted = numbers.astype(np.uint64)[:, None] >> np.arange(0, 7 * STEP_BYTES, 7, dtype=np.uint64)
    rows = (shifted & np.uint64(0x7F)).astype(np.uint8)
    rows[:, :-1] |= 0x80
    return rows


def masked(rows: Bytes) -> Bytes:
    """Return the masked CRC of each row, as four bytes: what TFRecord files have."""
    crc = crc32c(rows).astype(np.uint64)
    turned = ((crc >> np.uint64(15)) | (crc << np.uint64(17))) & np.uint64(0xFFFFFFFF)
    return ((turned + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)).astype("<u4")[:, None].view(np.uint8)


def crc32c(rows: Bytes) -> NDArray[np.uint32]:
    """Return the CRC-32C (Castagnoli) of each row, all rows at once.

    >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)[None])[0])
    '0xe3069283'
    """
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return ~crc


def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table.astype(np.uint32)


_TABLE = _table()
