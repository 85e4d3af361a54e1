"""Which calls ranks have agreed on, and which they need not ask each other about any more. Pure.

    history = History()
    if not history.expects(call):       # the same answer on every rank, as all have made the same calls
        ...compare the calls of all ranks, once all are there...
    history.note(call)

A rank that makes the call that is expected goes ahead. One that makes another asks the others first and moves
nothing; those that went ahead cannot finish without it, find it asking, and answer. So no value moves on
which not all agree, and a training step that makes the calls of the step before asks nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from nbdist.wire.collective.calls import compare
from nbdist.wire.frames import Array

REMEMBERED = 16  # calls before one, by which it is expected: more than a step has alike in a row
KNOWN = 4096
RECORD_BYTES = 512
NUMBER_BYTES = 8


class History:
    """The calls of a group so far."""

    def __init__(self) -> None:
        self._before: deque[int] = deque(maxlen=REMEMBERED)
        self._after: dict[tuple[int, ...], int] = {}

    def expects(self, digest: int) -> bool:
        """Return whether a call of this digest came last time after the same calls."""
        return self._after.get(tuple(self._before)) == digest

    def note(self, digest: int) -> None:
        """Remember that all ranks make this call."""
        if len(self._after) >= KNOWN:
            self._after.clear()
        self._after[tuple(self._before)] = digest
        self._before.append(digest)


def to_record(sequence: int, text: str) -> Array:
    """Return what a rank says of the call that it is in, as bytes of one length."""
    raw = sequence.to_bytes(NUMBER_BYTES, "little") + text.encode()
    return np.frombuffer(raw[:RECORD_BYTES].ljust(RECORD_BYTES, b"\0"), np.uint8)


def verdict(records: Array, called: Sequence[str]) -> tuple[bool, str]:
    """Return whether all ranks are in one call, and what to tell everyone if it is not the same for all.

    A rank that is not there yet has still to find that the call before is done, in which all agreed.

    >>> ask = lambda *said: verdict(np.stack([to_record(*one) for one in said]), ["a", "b"])
    >>> ask((3, "barrier()"), (3, "barrier()")), ask((3, "barrier()"), (4, "all_gather(...)"))
    ((True, ''), (False, ''))
    """
    said = [record.tobytes() for record in records]
    sequences = [int.from_bytes(raw[:NUMBER_BYTES], "little") for raw in said]
    if len(set(sequences)) > 1:
        return False, ""
    texts = {rank: raw[NUMBER_BYTES:].rstrip(b"\0").decode(errors="ignore") for rank, raw in enumerate(said)}
    return True, compare(texts, sequences[0], called)
