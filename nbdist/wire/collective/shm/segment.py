"""The shared memory of one rank: only that rank writes to it, all ranks of the host read it.

    own = RankSegment.create("nbdist-c1", size=4)    # before the other ranks are known
    other = RankSegment.open(name, size=4)
    own.words[SENT] += 1                             # the sequence counter that the others wait for

Layout, in bytes:

    0       words of 64 bits: SENT and the digests of two calls | REDUCED | ASLEEP | FAILED, LEFT, THREAD;
            each group is in a cache line of its own, so that a rank that spins on one reads one line
    512     the texts of two calls, for error messages
    2048    why the group failed
    4096    two eager slots; two slots of chunks, one chunk for each rank; two slots of reduced chunks

Memory ordering. A rank writes data and then the word that publishes it; another rank reads the word and then
the data. So two orders must hold: store before store on the writer (release), load before load on the reader
(acquire).

- x86: the hardware keeps both orders (TSO), and CPython does not move memory accesses across bytecodes.
  ``IN_ORDER`` is true and no fence is used.
- Elsewhere (ARM, POWER): neither order holds. ``Synchronizer.post`` calls ``fence`` between the data and the
  word, and ``Synchronizer.wait_until`` calls it between the word and the data (wire/ordering.py). A port to
  C would use a store-release and a load-acquire. The tests run on x86 only; nothing here is tested on ARM.
- Store before load (Dekker's pattern: "I sleep" against "your word is written") does not hold on x86 either.
  A rank that goes to sleep therefore fences after it has set ASLEEP and before it looks again. The writer
  does not, for that would cost a system call for each message: it can miss a sleeper, and the sleeper's poll
  has a timeout that bounds the loss (``FIRST_SLEEP`` in sync.py).

A word is aligned and 64 bits wide, so a read never sees half of a write.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from typing import Any

import numpy as np

from nbdist.errors import UnavailableError
from nbdist.wire.collective.base import GroupFailure
from nbdist.wire.ordering import fence
from nbdist.wire.rpc.frame import Array
from nbdist.wire.shm import Segment, shared_folder

ROUND_BYTES = 1 << 20  # all chunks of one round: they stay in cache, and rounds are few
SMALLEST_CHUNK = 1 << 14
EAGER_BYTES = 1 << 16  # a value of up to so many bytes is eager in a group of any size
MOST_EAGER_BYTES = 1 << 20  # all other ranks' values together: up to here larger ones are eager too
WORD = np.dtype(np.int64).itemsize
LINE = 64
# Indices of words. A call's digest is in the line of SENT, so that a waiting rank reads one line.
SENT, DIGEST, REDUCED, ASLEEP, FAILED, LEFT, THREAD = 0, 1, 8, 16, 24, 25, 26
CALL_TEXT_AT, CALL_TEXT_BYTES = 512, 512  # two texts
FAILURE_AT, FAILURE_BYTES = 2048, 2048
DATA_AT = 4096
IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686", "i386")


class RankSegment:
    """The sequence counters, texts and slots of one rank."""

    def __init__(self, shared: Segment, size: int) -> None:
        self.name = shared.name
        self.words = shared.array(np.int64, DATA_AT // WORD, 0).data
        self._shared, self._memory = shared, shared.bytes
        self._size = size
        self.chunk_bytes = chunk_bytes(size)
        self._eager_at = DATA_AT
        self._eager_room = eager_bytes(size)
        self._chunks_at = DATA_AT + 2 * self._eager_room
        self._reduced_at = self._chunks_at + 2 * size * self.chunk_bytes

    @classmethod
    def create(cls, prefix: str, size: int) -> RankSegment:
        """Make this rank's segment in a group of `size`; ResourceExhaustedError if memory is full."""
        return cls(Segment.create(prefix, segment_bytes(size)), size)

    @classmethod
    def open(cls, name: str, size: int) -> RankSegment:
        """Open another rank's segment; UnavailableError if it has another size."""
        shared = Segment.open(name)
        if len(shared.bytes) != segment_bytes(size):
            raise UnavailableError(
                f"shared memory {name!r} has {len(shared.bytes)} bytes; in a group of {size} it is "
                f"{segment_bytes(size)}"
            )
        return cls(shared, size)

    def eager(self, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return the slot of an eager value; `number` is the value of SENT before it."""
        return np.ndarray(shape, dtype, self._memory.data, self._eager_at + number % 2 * self._eager_room)

    def chunks(self, dtype: np.dtype[Any]) -> list[list[Array]]:
        """Return the chunks for each rank, by slot (SENT modulo 2)."""
        starts = range(self._chunks_at, self._reduced_at, self.chunk_bytes)
        rows = [self._row(dtype, at) for at in starts]
        return [rows[: self._size], rows[self._size :]]

    def reduced(self, dtype: np.dtype[Any]) -> list[Array]:
        """Return the reduced chunks, by slot (REDUCED modulo 2)."""
        return [self._row(dtype, self._reduced_at + slot * self.chunk_bytes) for slot in (0, 1)]

    def write_call(self, slot: int, text: str) -> None:
        """Write which call this rank makes."""
        raw = text.encode()[: CALL_TEXT_BYTES - 2]
        at = CALL_TEXT_AT + slot * CALL_TEXT_BYTES
        self._memory[at : at + 2 + len(raw)] = np.frombuffer(len(raw).to_bytes(2, "little") + raw, np.uint8)

    def read_call(self, slot: int) -> str:
        """Return which call the rank makes."""
        return self._text(CALL_TEXT_AT + slot * CALL_TEXT_BYTES, CALL_TEXT_BYTES).decode(errors="ignore")

    def write_failure(self, failure: GroupFailure, when: int) -> None:
        """Write why the group failed, once; `when` (nanoseconds) orders the failures of several ranks."""
        if not self.words[FAILED]:
            raw = failure.pack(FAILURE_BYTES - 2)
            self._memory[FAILURE_AT : FAILURE_AT + 2 + len(raw)] = np.frombuffer(
                len(raw).to_bytes(2, "little") + raw, np.uint8
            )
            if not IN_ORDER:
                fence()
            self.words[FAILED] = when

    def read_failure(self) -> GroupFailure:
        """Return the failure that the rank has written."""
        return GroupFailure.unpack(self._text(FAILURE_AT, FAILURE_BYTES))

    def remove_name(self) -> None:
        """Remove the file; mappings of it stay valid, and nothing is left when the last process has ended."""
        (shared_folder() / self.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the segment; the rank that created it removes its file."""
        self._shared.close()

    def _row(self, dtype: np.dtype[Any], at: int) -> Array:
        return np.ndarray(self.chunk_bytes // dtype.itemsize, dtype, self._memory.data, at)

    def _text(self, at: int, room: int) -> bytes:
        length = int.from_bytes(self._memory[at : at + 2].tobytes(), "little")
        return self._memory[at + 2 : at + 2 + min(length, room - 2)].tobytes()


@lru_cache
def chunk_bytes(size: int) -> int:
    """Return the size of a chunk: the part of one rank's share that one round exchanges.

    >>> chunk_bytes(2), chunk_bytes(1000)
    (524288, 16384)
    """
    return max(SMALLEST_CHUNK, ROUND_BYTES // size // LINE * LINE)


def eager_bytes(size: int) -> int:
    """Return the largest value, in bytes, that a group of `size` ranks exchanges eagerly.

    Each rank then reads the whole values of all others, but waits for them once, not twice.

    >>> eager_bytes(2), eager_bytes(4), eager_bytes(100)
    (1048576, 349504, 65536)
    """
    return max(EAGER_BYTES, MOST_EAGER_BYTES // max(1, size - 1) // LINE * LINE)


def segment_bytes(size: int) -> int:
    """Return the bytes of shared memory that one rank of a group needs.

    >>> segment_bytes(4)
    3324544
    """
    return DATA_AT + 2 * eager_bytes(size) + 2 * (size + 1) * chunk_bytes(size)
