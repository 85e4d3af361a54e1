"""Keeps the standby of a parameter shard equal to it: `Replicator`, on the shard's server.

    replicator = Replicator(server, shard, ...)
    replicator.begin()                     # fills the standby (nbdist.runtime.ps.standby)
    shard.replicate = replicator.update    # called with each update, in their order, under the shard's lock
    replicator.hold(answer)                # answers once the standby has all updates so far

Updates are sent as they are made, without waiting; the answers to the replicas wait instead, so the next
gradients travel and are computed meanwhile. While a standby is filled, updates are sent too, and it applies
them after the parts.

If the standby's process dies, or has not acknowledged anything for 20 s, all answers leave, and training
continues without a standby until its new process has been filled. The run's output says so, both times.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from nbdist.errors import NbdistError, NotFoundError, UnavailableError
from nbdist.runtime.ps.shard import Gradient, ParameterShard
from nbdist.runtime.ps.standby import (
    PART_BYTES,
    FoundStandby,
    gradient_memory,
    new_filling,
    on_own_thread,
    slots_in,
)
from nbdist.runtime.server import Server
from nbdist.runtime.tables import RowGradient
from nbdist.runtime.task import TaskInfo
from nbdist.wire.rpc.client import Peer
from nbdist.wire.shm import Segment

Array = np.ndarray[Any, Any]
WATCH_SECONDS = 0.2  # between two checks of the standby's process
RETRY_SECONDS = 1.0  # after a filling that failed
STALL_SECONDS = 20.0  # without an acknowledgement, after which the standby is filled again
HELLO_SECONDS = 3.0  # for the service of the standby's process to answer, on a busy machine too
FILL_SECONDS = 30.0  # for it to answer to a part


class HeldAnswers:
    """Answers that leave once the standby has acknowledged the updates before them.

    >>> held, sent = HeldAnswers(), []
    >>> held.hold(1, lambda: sent.append("a")); held.hold(2, lambda: sent.append("b"))
    >>> held.acknowledge(1)
    >>> sent
    ['a']
    >>> held.release(); held.hold(3, lambda: sent.append("c"))
    >>> sent
    ['a', 'b', 'c']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holding, self.acknowledged = True, -1
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self.progressed = time.monotonic()
        """When an answer left last, or the first of those that wait now began to."""

    def hold(self, number: int, answer: Callable[[], object]) -> None:
        """Give an answer when update ``number`` is acknowledged, at once if it is already."""
        with self._lock:
            if self._holding and (number > self.acknowledged or self._waiting):
                if not self._waiting:
                    self.progressed = time.monotonic()
                self._waiting.append((number, answer))
                return
        answer()

    def begin(self, number: int) -> None:
        """Hold answers from update ``number`` on."""
        with self._lock:
            self._holding, self.acknowledged = True, number - 1

    def acknowledge(self, number: int) -> None:
        """Give the answers to all updates up to ``number``."""
        with self._lock:
            self.acknowledged = max(self.acknowledged, number)
            self.progressed = time.monotonic()
            ready = []
            while self._waiting and self._waiting[0][0] <= self.acknowledged:
                ready.append(self._waiting.popleft()[1])
        for answer in ready:
            answer()

    def release(self) -> None:
        """Give all answers, and hold none from now on."""
        with self._lock:
            self._holding = False
            ready = [answer for _, answer in self._waiting]
            self._waiting.clear()
        for answer in ready:
            answer()

    def stalled(self, seconds: float) -> bool:
        """Whether answers have waited so long without one that left."""
        return bool(self._waiting) and time.monotonic() - self.progressed > seconds


class Replicator:
    """Sends each update of a shard to its standby, and holds answers back until the standby has it.

    - ``server``: the Server of this task; its thread watches over the standby
    - ``about``: the description of the shard that ps.standby.open carries
    - ``locate``: returns the standby's task as it is now
    - ``failed``: called with the error of a standby that cannot be filled for another reason than a death
    - ``note``: called with a text when the standby is lost, and when there is one again
    - ``prefix``: the beginning of the names of shared memory, if the standby may be on this host
    """

    def __init__(
        self,
        server: Server,
        shard: ParameterShard,
        about: dict[str, Any],
        *,
        locate: Callable[[], TaskInfo],
        failed: Callable[[Exception], object],
        note: Callable[[str], object],
        prefix: str | None,
    ) -> None:
        self._server, self._shard, self._about = server, shard, about
        self._locate, self._failed, self._note, self._prefix = locate, failed, note, prefix
        self._was_lost = False
        self._held = HeldAnswers()
        self._peer: Peer | None = None
        self._info = locate()
        self._filling, self._fills = 0, False
        self._sent = 0
        self._retry_at = 0.0
        self._segment: Segment | None = None
        self._slots: list[list[Array]] = []
        self._uses: deque[tuple[int, int]] = deque()
        """Slots with the update that each carries, oldest first."""
        self._free: list[int] = []
        self._closed = False
        self._stop_watching = server.every(WATCH_SECONDS, self._watch)

    def begin(self) -> None:
        """Fill the standby. Until that is done or has failed, answers are held."""
        self._start_filling()

    def adopt(self, found: FoundStandby) -> None:
        """Continue with a standby that this shard was restored from."""
        self._info, self._filling, self._sent = found.info, found.filling, found.number
        self._use_segment(found.segment)
        self._peer = Peer(found.info.address, self._server.keys, name=found.info.name)
        self._held.acknowledge(found.number)

    def hold(self, answer: Callable[[], object]) -> None:
        """Give an answer once the standby has all updates so far; from any thread."""
        self._held.hold(self._sent, answer)

    def update(self, gradient: Gradient | None) -> None:
        """Send an update, after the shard has made it; under the shard's lock. Raises nothing.

        The arrays may be written over once this returns. Without a gradient only the counts have changed.
        """
        peer = self._peer
        if peer is None:
            return
        self._sent += 1
        slot = None if gradient is None else self._slot_for(gradient)
        meta = {
            "key": self._about["key"], "filling": self._filling, "number": self._sent,
            "counts": self._shard.snapshot(), "applies": gradient is not None, "slot": slot,
        }  # fmt: skip
        arrays: list[Array] = []
        for part in gradient or () if slot is None else ():
            arrays += [part.indices, part.values] if isinstance(part, RowGradient) else [part]
        try:
            peer.send("ps.standby.update", meta, arrays)
        except NbdistError:
            self._server.post(partial(self._lose, peer, "its process has ended"))

    def _slot_for(self, gradient: Gradient) -> int | None:
        """Copy a gradient to a free slot of the shared memory; None if there is none."""
        while self._uses and self._uses[0][1] <= self._held.acknowledged:
            self._free.append(self._uses.popleft()[0])
        if not self._free:
            return None
        slot = self._free.pop()
        for flat, part in zip(self._slots[slot], gradient, strict=True):
            assert not isinstance(part, RowGradient)
            np.copyto(flat, part)
        self._uses.append((slot, self._sent))
        return slot

    def acknowledge(self, meta: dict[str, Any]) -> None:
        """Handle what the standby sends: its last update, or an error. On the Server's thread."""
        if self._peer is None or meta["filling"] != self._filling:
            return
        if "error" in meta:
            self._lose(self._peer, "it has failed")
            self._failed(UnavailableError(f"the standby of {self._about['shard']} failed: {meta['error']}"))
        else:
            self._held.acknowledge(int(meta["number"]))

    def close(self) -> None:
        """Drop the standby, and give all answers that wait. On the Server's thread."""
        self._stop_watching()
        with self._shard.lock:  # the shard may be making an update, and another thread may begin a standby
            self._closed = True
            peer, self._peer = self._peer, None
            self._close_segment()
        if peer is not None:
            with suppress(NbdistError):  # its process may have ended, and the standby with it
                peer.send("ps.standby.drop", {"key": self._about["key"], "filling": self._filling})
            peer.close(linger=0.5)
        self._held.release()

    def _watch(self) -> None:
        """Check whether the standby's process lives, and fill the standby in a new one."""
        info, peer = self._locate(), self._peer
        if peer is not None:
            try:
                peer.check()
                why = "its process has ended" if info.incarnation != self._info.incarnation else ""
                if not why and self._held.stalled(STALL_SECONDS):
                    why = f"it has acknowledged nothing for {STALL_SECONDS:g} s"
            except NbdistError:
                why = "its process has ended"
            if why:
                self._lose(peer, why)
        begins = not self._fills and time.monotonic() >= self._retry_at
        # What fills a process that has been replaced since waits for it in vain.
        if self._peer is None and (begins or info.incarnation != self._info.incarnation):
            self._start_filling()

    def _lose(self, peer: Peer | None, why: str) -> None:
        """Continue without the standby, and say so."""
        if peer is self._peer:
            self._peer = None
            self._held.release()
        if peer is not None:
            peer.close()
        if not self._was_lost:
            self._was_lost = True
            self._note(
                f"{self._info.name} keeps no replica of the parameters on {self._server.name}: {why}. "
                "Updates are lost if that server dies before there is one"
            )

    def _start_filling(self) -> None:
        self._fills, self._info = True, self._locate()
        on_own_thread("standby", partial(self._fill, self._info))

    def _fill(self, info: TaskInfo) -> None:
        """Fill the standby. On a thread of its own, as its Server may be filling one here."""
        error: Exception | None = None
        try:
            with Peer(info.address, self._server.keys, name=info.name, timeout=FILL_SECONDS) as peer:
                try:
                    peer.call("ps.hello", timeout=HELLO_SECONDS)
                except NotFoundError as not_yet:  # a new process, which has not started its service
                    raise UnavailableError(f"{info.name} does not serve parameters yet") from not_yet
                self._fill_over(peer, info)
        except Exception as problem:
            error = problem
        self._server.post(partial(self._filled, info, error))

    def _fill_over(self, peer: Peer, info: TaskInfo) -> None:
        shard, filling = self._shard, new_filling()
        about = {"key": self._about["key"], "filling": filling}
        segment = None if shard.tables.arrays else gradient_memory(self._prefix, shard.layout, info)
        try:
            name = None if segment is None else segment.name
            opened = peer.call("ps.standby.open", {**self._about, **about, "segment": name}).meta
        except BaseException:
            if segment is not None:
                segment.close()
            raise
        if segment is not None and not opened["shares"]:
            segment.close()
            segment = None
        updates = Peer(info.address, self._server.keys, name=info.name)
        try:
            updates.wait_connected()
            with shard.lock:
                if self._closed:
                    raise UnavailableError(f"{self._about['shard']} was closed while its standby was filled")
                counts, copies = shard.snapshot(), [buffer.copy() for buffer in shard.buffers()]
                number = self._sent
                self._use_segment(segment)
                self._held.begin(number)
                self._filling, self._peer = filling, updates
        except BaseException:
            updates.close()
            if segment is not None:
                segment.close()
            with suppress(NbdistError):
                peer.send("ps.standby.drop", about)
            raise
        for part, buffer in enumerate(copies):
            for first in range(0, len(buffer), PART_BYTES):
                piece = buffer[first : first + PART_BYTES]
                peer.call("ps.standby.part", {**about, "part": part, "first": first}, (piece,))
        done = peer.call("ps.standby.complete", {**about, "number": number, "counts": counts}).meta["number"]
        self._server.post(partial(self.acknowledge, {"filling": filling, "number": done}))

    def _filled(self, info: TaskInfo, error: Exception | None) -> None:
        if info.incarnation != self._info.incarnation:
            return  # another process is being filled by now
        self._fills = False
        if self._closed:
            return
        if error is None:
            if self._was_lost:
                self._was_lost = False
                self._note(
                    f"{self._info.name} keeps a replica of the parameters on {self._server.name} again"
                )
            return
        self._lose(self._peer, f"it cannot be filled: {error}")
        self._retry_at = time.monotonic() + RETRY_SECONDS
        if not isinstance(error, UnavailableError):
            self._failed(error)

    def _use_segment(self, segment: Segment | None) -> None:
        self._close_segment()
        if segment is not None:
            self._segment, self._slots = segment, slots_in(segment, self._shard.layout)
            self._free = list(range(len(self._slots)))

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
        self._segment, self._slots, self._free = None, [], []
        self._uses.clear()
