"""Checked frames in an append-only file: the framing of metrics logs and of the event logs of sweeps.

    file    = magic, frame*
    frame   = mark 4 bytes, kind u1, length u4, CRC-32 of the payload u4, CRC-32 of these 13 bytes u4, payload

All numbers are little-endian. The header has a checksum of its own, so a reader trusts a length before it
reads the payload: a damaged payload is skipped as a whole, and no byte of a payload is hashed twice, for any
content. Both checksums start with a constant, so that zeros (as after a power cut) are not a valid frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from nbdist.errors import DataLossError

_HEADER = struct.Struct("<4sBII")
_CHECK = struct.Struct("<I")
HEAD = _HEADER.size + _CHECK.size
SEED = 0x6E626469  # "nbdi": where each checksum starts
DOUBT = 1 << 16  # bytes without a valid header at the end of a file; its writer may still complete fewer


@dataclass(frozen=True)
class LogFormat:
    """One kind of file: its first line, the mark of its frames, and the largest payload of a frame in bytes.

    >>> format = LogFormat("example", 1, b"NBX1", 1 << 20)
    >>> log = format.magic + format.frame(0, b"one") + format.frame(1, b"two")
    >>> [(kind, bytes(payload)) for kind, payload in format.frames(log, format.start(log, "it"))]
    [(0, b'one'), (1, b'two')]
    """

    name: str
    version: int
    mark: bytes
    largest: int

    @property
    def magic(self) -> bytes:
        """The first line of a file of this kind."""
        return f"nbdist {self.name} {self.version}\n".encode()

    def frame(self, kind: int, payload: bytes) -> bytes:
        """Return ``payload`` as one frame; ``kind`` is 0 to 255."""
        head = _HEADER.pack(self.mark, kind, len(payload), crc32(payload, SEED))
        return head + _CHECK.pack(crc32(head, SEED)) + payload

    def frames(self, data: bytes, start: int = 0) -> Frames:
        """Return the frames in ``data`` from ``start`` on, to be iterated over once."""
        return Frames(self, data, start)

    def start(self, data: bytes, file: str) -> int | None:
        """Return the position of the first frame in a file that begins with ``data``, None if that is short.

        If the first line is damaged, the position is 0, and the frames skip the damage before the first one.
        Raises `DataLossError`, which names the ``file``, if it is of another kind or version.
        """
        magic = self.magic
        if data.startswith(magic):
            return len(magic)
        if magic.startswith(data):  # its writer has only just made it
            return None
        if next(self.frames(data), None) is not None:
            return 0
        first = data[: len(magic)]
        kind = f"nbdist {self.name} ".encode()
        if first.startswith(kind) and first[len(kind) : -1].isdigit():
            found = int(first[len(kind) : -1])
            raise DataLossError(
                f"{file} has format {found} of nbdist's {self.name} logs, and this version of nbdist reads "
                f"format {self.version}: read it with the version that wrote it"
            )
        raise DataLossError(f"{file} is not a {self.name} log of nbdist: it starts with {first!r}")


class Frames(Iterator[tuple[int, bytes]]):
    """Yields (kind, payload) of every valid frame; skips and counts damage, and never raises.

    ``offset`` is the position of the first byte that was not decoded yet, ``damaged`` the number of bytes
    that were skipped.
    """

    def __init__(self, format: LogFormat, data: bytes, start: int) -> None:
        self.offset, self.damaged = start, 0
        self._format, self._data = format, data
        self._last = start

    def __next__(self) -> tuple[int, bytes]:
        data = self._data
        while (found := self._next_header(self.offset)) is not None:
            position, kind, length, checksum = found
            end = position + HEAD + length
            if end > len(data):  # cut off: its writer is at work, or died there
                self._skip_to(position)
                break
            payload = data[position + HEAD : end]
            if crc32(payload, SEED) != checksum:
                self._skip_to(end)
                continue
            self._skip_to(position)
            self._last, self.offset = position, end
            return kind, payload
        else:
            if len(data) - self.offset > DOUBT:  # no writer completes this
                self._skip_to(len(data) - HEAD)
        raise StopIteration

    def refuse(self) -> None:
        """Count the frame that was yielded last as damage: its content is not valid."""
        self.damaged += self.offset - self._last

    @property
    def torn(self) -> int:
        """Bytes of the incomplete frame after ``offset``, once all frames were yielded."""
        return len(self._data) - self.offset

    def _skip_to(self, position: int) -> None:
        self.damaged += position - self.offset
        self.offset = position

    def _next_header(self, position: int) -> tuple[int, int, int, int] | None:
        """Return (position, kind, length, checksum) of the next valid header; None if there is none."""
        data, mark = self._data, self._format.mark
        while 0 <= (position := data.find(mark, position)) <= len(data) - HEAD:
            _, kind, length, checksum = _HEADER.unpack_from(data, position)
            (check,) = _CHECK.unpack_from(data, position + _HEADER.size)
            head = data[position : position + _HEADER.size]
            if length <= self._format.largest and crc32(head, SEED) == check:
                return position, kind, length, checksum
            position += 1
        return None
