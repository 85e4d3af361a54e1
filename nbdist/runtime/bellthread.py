"""A doorbell with a thread of its own, which does what replicas ring for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from nbdist.runtime.mailbox import COUNT, RING
from nbdist.wire.shm import Doorbell


class BellThread:
    """Calls ``heed(number, replica, slot)`` for each ring, until it is closed; ``heed`` must not raise."""

    def __init__(self, prefix: str, heed: Callable[[int, int, int], None]) -> None:
        self._bell = Doorbell.create(prefix)
        self._heed = heed
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="nbdist mailbox", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """What replicas ring."""
        return self._bell.name

    def close(self) -> None:
        """End the thread, and remove the doorbell."""
        self._closing = True
        self._bell.ring_self(RING.pack(0, 0, COUNT))
        self._thread.join(5)
        self._bell.close()

    def _serve(self) -> None:
        bell, heed = self._bell, self._heed
        be_patient()
        while not self._closing:
            for number, replica, slot in RING.iter_unpack(bell.wait(60.0)):
                heed(number, replica, slot)


def be_patient() -> None:
    """Let this thread wait for a core instead of taking one from a replica in mid-step (Linux).

    A replica that is interrupted for each gradient loses its caches each time; one that blocks because two of
    its gradients are under way makes room by itself. Measured in bench/NOTES.md.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some sandboxes forbid it; it only costs time
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))
