"""One rank's shared memory: it alone writes there, all ranks of the host read.

    own = Desk.create("nbdist-c1", size=4)           # before the others are known
    other = Desk.open(name, size=4)
    own.words[SENT] += 1                             # what others wait for
    own.slot(SENT, number, share)                    # where the next piece for the rank of a share is put

Words are 64-bit, each set in a cache line of its own by who waits for it. A store to a word comes after the
stores to the memory it speaks of: x86 keeps that order, elsewhere `fence` sees to it.
"""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from typing import Any

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.wire.collective.base import Trouble
from nbdist.wire.rpc.frame import Array
from nbdist.wire.shm import Segment, shared_folder

CHUNK = 1 << 20  # bytes of all pieces of one round: in cache, and large enough for few rounds
SMALLEST_PIECE = 1 << 14
EAGER = 1 << 16  # of a value; up to here every rank combines everything: one meeting instead of two
MOST_EAGER = 1 << 20  # of all other ranks' values, with which it is so however many there are
WORD = np.dtype(np.int64).itemsize
LINE = 64
# In words. A call's digest stands beside SENT, so that who waits reads one line.
SENT, DIGEST, REDUCED, ASLEEP, BROKEN, LEFT, THREAD = 0, 1, 8, 16, 24, 25, 26
TEXT_AT, TEXT_ROOM = 512, 512  # of a call, two of them
TROUBLE_AT, TROUBLE_ROOM = 2048, 2048
DATA_AT = 4096
IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686", "i386")


def fence() -> None:
    """Let no load or store move across; the kernel's scheduler begins with a full memory barrier."""
    os.sched_yield()


class Desk:
    """The words, texts and slots of one rank."""

    def __init__(self, segment: Segment, size: int) -> None:
        self.segment = segment
        self.words = segment.array(np.int64, DATA_AT // WORD, 0).data
        self._memory = segment.bytes
        self._size = size
        self.piece = piece_bytes(size)
        self._eager_at = DATA_AT
        self._eager_room = eager_bytes(size)
        self._pieces_at = DATA_AT + 2 * self._eager_room
        self._reduced_at = self._pieces_at + 2 * size * self.piece

    @classmethod
    def create(cls, prefix: str, size: int) -> Desk:
        """Make a rank's desk in a group of `size`; ResourceExhaustedError if there is no room."""
        return cls(Segment.create(prefix, desk_bytes(size)), size)

    @classmethod
    def open(cls, name: str, size: int) -> Desk:
        """Open another rank's; UnavailableError if it is not of such a group."""
        segment = Segment.open(name)
        if len(segment.bytes) != desk_bytes(size):
            raise UnavailableError(
                f"shared memory {name!r} has {len(segment.bytes)} bytes; in a group of {size} it is "
                f"{desk_bytes(size)}"
            )
        return cls(segment, size)

    def eager(self, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return where a small value stands; `number` is what SENT was before it."""
        return np.ndarray(shape, dtype, self._memory.data, self._eager_at + number % 2 * self._eager_room)

    def pieces(self, dtype: np.dtype[Any]) -> list[list[Array]]:
        """Return where pieces for each rank stand, by SENT modulo 2."""
        starts = range(self._pieces_at, self._reduced_at, self.piece)
        rows = [self._row(dtype, at) for at in starts]
        return [rows[: self._size], rows[self._size :]]

    def reduced(self, dtype: np.dtype[Any]) -> list[Array]:
        """Return where combined pieces stand, by REDUCED modulo 2."""
        return [self._row(dtype, self._reduced_at + turn * self.piece) for turn in (0, 1)]

    def write_text(self, turn: int, text: str) -> None:
        """Say what call this rank makes."""
        raw = text.encode()[: TEXT_ROOM - 2]
        at = TEXT_AT + turn * TEXT_ROOM
        self._memory[at : at + 2 + len(raw)] = np.frombuffer(len(raw).to_bytes(2, "little") + raw, np.uint8)

    def read_text(self, turn: int) -> str:
        """Return what call the rank makes."""
        return self._text(TEXT_AT + turn * TEXT_ROOM, TEXT_ROOM).decode(errors="ignore")

    def write_trouble(self, trouble: Trouble, when: int) -> None:
        """Say why the group is broken, once; `when` orders the ranks' troubles."""
        if not self.words[BROKEN]:
            raw = trouble.pack(TROUBLE_ROOM - 2)
            self._memory[TROUBLE_AT : TROUBLE_AT + 2 + len(raw)] = np.frombuffer(
                len(raw).to_bytes(2, "little") + raw, np.uint8
            )
            if not IN_ORDER:
                fence()
            self.words[BROKEN] = when

    def read_trouble(self) -> Trouble:
        """Return why the rank says that the group is broken."""
        return Trouble.unpack(self._text(TROUBLE_AT, TROUBLE_ROOM))

    def remove_name(self) -> None:
        """Take the file away; whoever has it open goes on, and nothing stays when the last has ended."""
        (shared_folder() / self.segment.name).unlink(missing_ok=True)

    def _row(self, dtype: np.dtype[Any], at: int) -> Array:
        return np.ndarray(self.piece // dtype.itemsize, dtype, self._memory.data, at)

    def _text(self, at: int, room: int) -> bytes:
        length = int.from_bytes(self._memory[at : at + 2].tobytes(), "little")
        return self._memory[at + 2 : at + 2 + min(length, room - 2)].tobytes()


@lru_cache
def piece_bytes(size: int) -> int:
    """Return how many bytes of one rank's share are exchanged at once.

    >>> piece_bytes(2), piece_bytes(1000)
    (524288, 16384)
    """
    return max(SMALLEST_PIECE, CHUNK // size // LINE * LINE)


def eager_bytes(size: int) -> int:
    """Return up to how many bytes of a value every rank of a group combines everything.

    It reads all other ranks' values then, not parts that make up one value, but meets them once only.

    >>> eager_bytes(2), eager_bytes(4), eager_bytes(100)
    (1048576, 349504, 65536)
    """
    return max(EAGER, MOST_EAGER // max(1, size - 1) // LINE * LINE)


def desk_bytes(size: int) -> int:
    """Return how much shared memory one rank of a group needs.

    >>> desk_bytes(4)
    3324544
    """
    return DATA_AT + 2 * eager_bytes(size) + 2 * (size + 1) * piece_bytes(size)
