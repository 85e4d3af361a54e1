"""A replica's connection to one parameter shard: `Link`, over shared memory or over a socket.

    link = open_link(peer, ShardRequest(shard="run/0", replica=0, ...), ...)
    link.pull()                        # newest parameters into link.parameters
    ... write a gradient into link.gradient(slot) ...
    link.push(slot)                    # on its way; up to SLOTS at once
    staleness = link.wait(slot)        # applied; None if it was dropped

`open_link` chooses the kind of link. Both kinds satisfy one contract (nbdist/testing/link.py)
and connect to the same shard.

A socket link numbers its gradients. If its connection is reset while the server lives, it connects again and
asks which gradients have arrived (ps.reconnect): it sends the others again, and the server takes none twice.
"""

from __future__ import annotations

import itertools
import math
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nbdist.errors import AbortedError, NotFoundError, UnavailableError
from nbdist.optim import Optimizer
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.mailbox import ANSWER, COUNT, GLOBAL_STEP, RING, SLOTS, VERSION, Mailbox
from nbdist.runtime.ps.restore import Offer
from nbdist.runtime.ps.sync import (
    APPLIED,
    COUNTED,
    DROPPED,
    LEFT_OUT,
    REFUSED,
    STEPPED,
    STOPPED,
    TAKEN,
    Rules,
)
from nbdist.runtime.tables import RowGradient, chunks, no_rows
from nbdist.wire.rpc.client import Peer
from nbdist.wire.rpc.envelope import error_from
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Doorbell, Ringer, Segment

NO_IDS = np.zeros(0, np.int64)
LARGEST_STATE = 1 << 29  # bytes of parameters and slots in one message
Array = np.ndarray[Any, Any]
LOOK_SECONDS = 0.2  # how often a waiting replica looks whether its run was aborted
REACH_SECONDS = 1.0  # for a connection to the host of a server after a reset
MAX_RECONNECTS = 8  # connections that are lost without an answer to a gradient in between


class StepStopped(Exception):
    """Raised when a synchronous step cannot complete, because too many replicas have left."""


class TrainingOver(Exception):
    """Raised when a replica's new process opens a shard of a training that has ended without it."""


class Link(ABC):
    """One replica, one shard."""

    def __init__(self, layout: Layout, check: Callable[[], None], peer: Peer, sender: dict[str, Any]) -> None:
        self.layout, self._peer = layout, peer
        self._sender = sender
        """What every message has: shard, replica and incarnation."""
        self.parameters = layout.buffer()
        """The replica's own copy of the shard, in bytes laid out as the shard is."""
        self.version = 0
        """How many updates the copy has seen."""
        self.has_copy = False
        """Whether ``parameters`` are those of the shard, as they are from the first pull on."""
        self.global_step = 0
        self.note = ""
        self.place = self.made = self.counted = 0
        """Gradients of this replica's former processes that were applied, and the updates they counted."""
        self.lost: Callable[[Mapping[int, int]], object] = lambda frozen: None
        """Called with the replicas that the server has found frozen, and their processes.

        The others continue without them. The message may be read late, when a replica has a new process.
        """
        self.awaited: list[int] = []
        """Lost replicas with new processes that the current step waits for."""
        self.tables: list[Array] = []
        """The replica's own copies of the shard's tables; ``pull`` updates the wanted rows."""
        self._wanted: dict[int, Array] = {}
        self._rows: Sequence[RowGradient] = ()
        self._check = check
        self._settled: dict[int, tuple[int, int]] = {}
        self._taken: set[int] = set()
        self._counts = 0
        self._said_farewell = self._said_stop = False
        self._pushed: dict[int, int] = {}  # the version of each slot's gradient
        self._unanswered: dict[int, int] = {}  # by slot: the serial of a gradient without a final answer
        self._serial = self._first_serial = 0
        self._known = self._acknowledged = self._counted = 0
        self.generation = self.base = self.began = 0
        """Processes of the server that died before this one, what they applied, and the step before all."""
        self.opened_at = 0
        """Updates that the shard had when this link was opened."""
        self.restored: dict[str, Any] | None = None
        """How this replica has restored the shard on a new process, if it has."""

    kind: str

    @abstractmethod
    def pull(self) -> None:
        """Read the newest parameters, their version and the global step."""

    @abstractmethod
    def gradient(self, slot: int) -> Array:
        """Return the bytes that the next gradient is to be written to."""

    @abstractmethod
    def push(self, slot: int) -> None:
        """Send the gradient in a slot, as made from the parameters last pulled."""

    @abstractmethod
    def count(self) -> None:
        """Count one update of all shards in the global step."""

    @abstractmethod
    def _receive(self) -> None:
        """Wait a moment for answers and note them."""

    @abstractmethod
    def _newest(self) -> int:
        """Return the newest version of the shard that is known here, without asking."""

    def close(self) -> None:
        """Close sockets and shared files; safe in any state."""
        self._peer.close()

    @property
    def address(self) -> str:
        """The address of the server's process."""
        return self._peer.address

    def offer(self, replica: int, done: bool, version: int | None = None) -> Offer:
        """Return what this replica knows of the shard, after its server died.

        ``version`` is that of the copy that it offers; None is that of its own copy.
        """
        version = self.version if version is None else version
        return Offer(
            replica, version, max(self._known, version), self.global_step,
            made=self.made + self._acknowledged, counted=self.counted + self._counted,
            generation=self.generation, base=self.base, began=self.began, done=done,
            acknowledged=self._known,
        )  # fmt: skip

    def salvage(self) -> None:
        """Read what the server's process left in shared memory, if that is newer than the copy here.

        Call it only when that process has ended.
        """
        return

    def remains(self) -> tuple[Array, int]:
        """Return the newest copy of the parameters that can be had here, and its version.

        That is the shared memory that the server's process has left, or else the copy here, which stays as it
        is: the current step was computed from it. Call it only when that process has ended.
        """
        return self.parameters, self.version

    def look(self) -> None:
        """Raise UnavailableError if the server's process has ended; never waits for it."""
        self._peer.check()

    @property
    def is_from_standby(self) -> bool:
        """Whether the shard continues with the state of its standby, with all that was acknowledged."""
        return self.restored is not None and bool(self.restored.get("standby"))

    def take_over(self, old: Link) -> None:
        """Continue for the link to a server's former process.

        Gradients without an answer are sent again if the shard was restored from its standby, which knows
        those that it has. Otherwise they count as dropped; not one that the replica has had the answer to, or
        has not sent yet, while it waits for another server. The parameters stay in the same memory, which the
        step's program reads.
        """
        self.parameters, self.has_copy = old.parameters, old.has_copy
        self.lost, self._wanted = old.lost, old._wanted
        if self.is_from_standby:
            for slot in range(SLOTS):
                np.copyto(self.gradient(slot), old.gradient(slot))  # one may be there that was not sent yet
            self._settled, self._known = old._settled, old._known
            self._serial = old._serial
            for slot, serial in sorted(old._unanswered.items(), key=lambda one: one[1]):
                self.version, self._rows = old._pushed[slot], old.rows_of(slot)
                self._serial = serial - 1
                self.push(slot)
            self.version, self.global_step = old.version, old.global_step
            for _ in range(old.counted + old._counted - self.counted):
                self.count()
            return
        self._settled = {**dict.fromkeys(old._unanswered, (DROPPED, 0)), **old._settled}

    def rows_of(self, slot: int) -> Sequence[RowGradient]:
        """Return the gradients of the tables' rows that were sent with a slot."""
        return ()

    def _number(self, slot: int) -> int:
        """Return the serial of the gradient in a slot, which is sent now."""
        self._serial += 1
        self._pushed[slot], self._unanswered[slot] = self.version, self._serial
        return self._serial

    def repeat_step(self, old: Link, *, exact: bool) -> set[int]:
        """Continue for the link to a server's former process, with replicas that make steps together.

        A gradient that was made from the version that the shard continues with is sent again; an older one is
        part of that, if each step is ``exact``, or counts as dropped. Return the slots that were sent again
        although the replica has had the answer.
        """
        self.parameters, self.has_copy, self.lost = old.parameters, old.has_copy, old.lost
        again: set[int] = set()
        for slot in range(SLOTS):
            np.copyto(self.gradient(slot), old.gradient(slot))  # one may be there that was not sent yet
            version = old._pushed.get(slot, -1)
            waits = slot in old._unanswered or slot in old._settled
            made = exact and not waits and version == old.version
            if version >= self.opened_at and (waits or made):
                self.version = version
                self.push(slot)
                if made:
                    again.add(slot)
            elif waits:
                self._settled[slot] = old._settled.get(slot, (APPLIED if exact else DROPPED, 0))
                self._pushed[slot] = version
        self.version, self.global_step = old.version, old.global_step
        return again

    def want(self, table: int, ids: Array) -> None:
        """Request the rows of a table that the next pull returns."""
        self._wanted[table] = np.unique(ids).astype(np.int64, copy=False)

    def take(self, rows: Sequence[RowGradient]) -> None:
        """Take the gradients of all tables, for the next push."""
        self._rows = rows

    def fetch(self) -> None:
        """Request the parameters as they are between two updates, their version, and the step.

        Tables are sent completely, part by part: some parts include updates by others during the transfer.
        """
        self._ask([])
        self.fetch_tables()

    def _ask(self, wanted: Sequence[Array]) -> None:
        """Request the parameters, and the wanted rows of the tables."""
        reply = self._call("ps.pull", {}, tuple(wanted))
        np.copyto(self.parameters, reply.arrays[0])
        self.has_copy = True
        for table, ids, rows in zip(self.tables, wanted, reply.arrays[1:]):
            table[ids] = rows
        self.version, self.global_step = reply.meta["version"], reply.meta["global_step"]

    def fetch_tables(self) -> None:
        """Pull the complete tables."""
        for number, table in enumerate(self.tables):
            self._read_table(number, table)

    def fetch_state(self, names: Sequence[str]) -> ShardState:
        """Request the parameters and the optimizer's slots of these names, and return the slots.

        Parameters and slots are those between two updates, unless they are too large for one message.
        """
        size = max(self.layout.size, 1)
        whole = (1 + len(names)) * size <= LARGEST_STATE
        slots: dict[str, Array] = {}
        for group in [list(names)] if whole else [[name] for name in names]:
            reply = self._call("ps.state", {"slots": group})
            if not slots:
                np.copyto(self.parameters, reply.arrays[0])
                self.version, self.global_step = reply.meta["version"], reply.meta["global_step"]
                steps = [int(count) for count in reply.meta["steps"]]
            slots |= {name: np.array(buffer) for name, buffer in zip(group, reply.arrays[1:], strict=True)}
        self.fetch_tables()
        tables = [
            {name: self._read_table(number, np.empty_like(table), name) for name in names}
            for number, table in enumerate(self.tables)
        ]
        return ShardState(self.global_step, slots, tuple(tables), tuple(steps))

    def _read_table(self, number: int, into: Array, slot: str = "") -> Array:
        """Return a table, or an optimizer's slot of it, which is read part by part."""
        for first, stop in chunks(into.shape, into.itemsize):
            meta = {"table": number, "first": first, "stop": stop, "slot": slot}
            into[first:stop] = self._call("ps.table", meta).arrays[0]
            self._check()
        return into

    def set_rate(self, rate: float, factor: float = math.inf) -> None:
        """Have the shard learn at another rate from its next update on; returns when it does.

        With a finite ``factor`` it follows its optimizer's schedule, if there is one, times that.
        """
        self._call("ps.rate", {"learning_rate": rate, "factor": factor})

    def wait(self, slot: int) -> int | None:
        """Wait until the gradient in a slot is applied; return its staleness in updates, None if dropped.

        Raises StepStopped when a synchronous step is broken up, AbortedError when the run is aborted.
        """
        what, staleness = self.outcome(slot)
        return None if what == DROPPED else staleness

    def count_as_applied(self, slot: int) -> None:
        """Take the gradient in a slot as applied: the step that it is for is complete in this shard."""
        self._pushed[slot] = self.version
        self._settled[slot] = APPLIED, 0

    def outcome(self, slot: int) -> tuple[int, int]:
        """Wait like :meth:`wait`; return what the shard answered, and the staleness."""
        while slot not in self._settled:
            self._receive()
        self._taken.discard(slot)
        what, staleness = self._settled.pop(slot)
        if what == STOPPED:
            raise StepStopped
        return what, staleness

    def taken(self, slot: int) -> bool:
        """Wait only until the shard has answered whether it takes a gradient or drops it.

        It does so where servers decide separately; :meth:`wait` may then be called in any case.
        """
        while slot not in self._settled and slot not in self._taken:
            self._receive()
        return slot not in self._settled or self._settled[slot][0] != DROPPED

    def reach(self, version: int) -> None:
        """Wait until the shard has had as many updates."""
        while self._newest() < version:
            self._receive()

    def wait_counted(self) -> None:
        """Wait until every ``count`` has arrived."""
        while self._counts:
            self._receive()

    def announce_done(self, *, stops: bool = False) -> None:
        """Announce that this replica is done, so that no other waits for it.

        If it ``stops``, a step that waits for the new process of a lost replica ends for all.
        """
        if not self._said_farewell or (stops and not self._said_stop):
            self._said_farewell, self._said_stop = True, stops
            self._peer.send("ps.leave", {**self._sender, "stops": stops})

    def leave(self) -> dict[str, Any]:
        """Announce that this replica is done, and wait until all are; then the parameters here are final.

        Returns the shard's counts: updates, global_step, dropped, and the statistics of all replicas.
        """
        self.announce_done()
        while True:
            frame = self._next_message()
            if frame is None or frame.kind == "ps.there":
                self._check()
            elif frame.kind == "ps.left":
                if frame.arrays:
                    np.copyto(self.parameters, frame.arrays[0])
                else:
                    self.pull()
                self.fetch_tables()
                counts = dict(frame.meta)
                if counts.pop("waits"):
                    with suppress(UnavailableError):  # the server notices that the connection is closed
                        self._peer.call("ps.done", self._sender)
                self.global_step = counts["global_step"]
                return counts
            else:
                self._handle(frame)

    def _call(self, kind: str, meta: Mapping[str, Any], arrays: Sequence[Array] = ()) -> Frame:
        """Call the server about this replica's shard; return its reply."""
        return self._peer.call(kind, {**self._sender, **meta}, arrays)

    def _next_message(self) -> Frame | None:
        """Return the server's next message; None if there is none for a moment."""
        return self._peer.receive(LOOK_SECONDS)

    def _handle(self, frame: Frame) -> None:
        """Handle the server's messages beside its answers to gradients; raise the error that it sends."""
        if frame.kind == "error":
            raise error_from(frame)
        if frame.kind == "ps.lost":
            self.lost(dict(frame.meta["frozen"]))
        elif frame.kind == "ps.note":
            print(frame.meta["text"])
        elif frame.kind == "ps.awaited":
            self.awaited = [int(replica) for replica in frame.meta["replicas"]]

    def _note(self, what: int, slot: int, staleness: int) -> None:
        if what == REFUSED:
            raise refused(self._sender["replica"], self._peer.name)
        if what == COUNTED:
            self._counts -= 1
        elif what == TAKEN:
            self._taken.add(slot)
        elif what != STEPPED:
            self._settled[slot] = what, staleness
            serial = self._unanswered.pop(slot, 0)
            if (
                what in (APPLIED, LEFT_OUT) and serial > self._first_serial
            ):  # else it is among those of the old process
                self._acknowledged += 1
                self._known = max(self._known, self._pushed.get(slot, 0) + staleness + 1)


def refused(replica: int, server: str) -> UnavailableError:
    """Return the error of a replica that is back after it was frozen or cut off."""
    return UnavailableError(
        f"replica {replica} was frozen or cut off, and the others have continued without it: {server} "
        "refuses its gradients. Its task takes part again in the next run"
    )


TRIES = 16  # to read between two updates, before the server is asked to wait with the next


class SharedLink(Link):
    """Through shared memory: a pull is one copy, a push is eight bytes through a pipe."""

    kind = "shared memory"

    def __init__(
        self,
        layout: Layout,
        check: Callable[[], None],
        *,
        peer: Peer,
        sender: dict[str, Any],
        opened: dict[str, Any],
        bell: Doorbell,
        rules: Rules,
    ) -> None:
        super().__init__(layout, check, peer, sender)
        self._mailbox = Mailbox(Segment.open(opened["segment"]), layout, rules.first)
        self._locking = rules.locking
        self._ringer, self._bell = Ringer(opened["bell"]), bell
        self._replica: int = sender["replica"]
        replica = opened["number"], self._replica, sender["incarnation"]
        self._push_rings = [RING.pack(*replica, slot) for slot in range(SLOTS)]
        self._count_ring = RING.pack(*replica, COUNT)
        self._headers = self._mailbox.headers[self._replica]
        self._looked = time.monotonic()

    def pull(self) -> None:
        """Read the newest parameters, their version and the global step; with locking, of one moment."""
        if self._locking:
            found = self._mailbox.read_whole(self.parameters, TRIES)
            if found is not None:
                self.version, self.global_step = found
                self.has_copy = True
                return
            self._check()  # a reader that comes out of step with a busy server is not left to starve
            self.fetch()
            return
        counters = self._mailbox.counters
        self.version = int(counters[VERSION])  # before the copy: what comes in between counts as missed
        self.global_step = int(counters[GLOBAL_STEP])
        np.copyto(self.parameters, self._mailbox.parameters)
        self.has_copy = True

    def salvage(self) -> None:
        """Read what the server's process left in shared memory, unless it died in the middle of an update."""
        if (found := self._mailbox.read_rest(self.parameters)) is not None:
            self.version, self.global_step = found[0], max(self.global_step, found[1])
            self.has_copy = True

    def remains(self) -> tuple[Array, int]:
        """Return what the server's process left in shared memory, unless it died during an update."""
        rest = self.layout.buffer()
        found = self._mailbox.read_rest(rest)
        return super().remains() if found is None else (rest, found[0])

    def gradient(self, slot: int) -> Array:
        """Return the slot's bytes in the shared segment."""
        return self._mailbox.gradients[self._replica][slot]

    def push(self, slot: int) -> None:
        """Ring for the slot."""
        self._headers[slot][2] = self._number(slot)
        self._headers[slot][0] = self.version
        self._ring(self._push_rings[slot])

    def count(self) -> None:
        """Count one update of all shards in the global step."""
        self._counts += 1
        self._counted += 1
        self._ring(self._count_ring)

    def _ring(self, message: bytes) -> None:
        try:
            self._ringer.ring(message)
        except UnavailableError:
            raise UnavailableError(
                f"{self._peer.name} at {self._peer.address} takes no more gradients: its process is "
                "dead or frozen"
            ) from None

    def _receive(self) -> None:
        message = self._bell.wait(LOOK_SECONDS)
        now = time.monotonic()
        if not message or now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._check()
            while (frame := self._peer.receive(0)) is not None:  # raises if the server has ended
                self._handle(frame)
        for what, slot in ANSWER.iter_unpack(message):
            self._note(what, slot, int(self._headers[slot][1]))

    def _newest(self) -> int:
        return int(self._mailbox.counters[VERSION])

    def close(self) -> None:
        """Close the shared files and the connection."""
        self._ringer.close()
        self._bell.close()
        super().close()


@dataclass(frozen=True)
class SentGradient:
    """A gradient without a final answer, which is sent again if the connection was lost with it."""

    number: int
    meta: dict[str, Any]
    arrays: tuple[Array, ...]


class SocketLink(Link):
    """Through an authenticated socket, for other hosts; ``connect`` makes its connection again."""

    kind = "socket"

    def __init__(
        self,
        layout: Layout,
        check: Callable[[], None],
        *,
        peer: Peer,
        sender: dict[str, Any],
        connect: Callable[[], Peer],
        tables: Sequence[Array] = (),
    ) -> None:
        super().__init__(layout, check, peer, sender)
        self._connect = connect
        self._numbers = itertools.count(1)
        self._sent: dict[int, SentGradient] = {}  # by slot
        self._reconnects = 0  # since the last answer to a gradient
        self._reconnecting = False
        self._slots = [layout.buffer() for _ in range(SLOTS)]
        self._seen = 0
        self.tables = list(tables)

    def pull(self) -> None:
        """Request the newest parameters and the wanted rows, their version and the global step."""
        self._ask([self._wanted.get(number, NO_IDS) for number in range(len(self.tables))])
        self._wanted.clear()  # not before: a server may die now, and its new process is asked again

    def gradient(self, slot: int) -> Array:
        """Return the slot's bytes, in this process."""
        return self._slots[slot]

    def push(self, slot: int) -> None:
        """Send the gradient, and the gradient of the tables' rows if :meth:`take` received one."""
        number = next(self._numbers)
        meta = {**self._sender, "token": slot, "version": self.version, "number": number}
        meta["serial"] = self._number(slot)
        rows, self._rows = self._rows or [no_rows(table) for table in self.tables], ()
        parts = [part for one in rows for part in (one.indices, one.values)]
        sent = self._sent[slot] = SentGradient(number, meta, (self._slots[slot], *parts))
        try:
            self._peer.send("ps.push", sent.meta, sent.arrays)
        except UnavailableError as error:
            self._reconnect(error)  # sends it again

    def rows_of(self, slot: int) -> Sequence[RowGradient]:
        """Return the gradients of the tables' rows that were sent with a slot."""
        _, *parts = self._sent[slot].arrays
        return [RowGradient(i, v) for i, v in zip(parts[::2], parts[1::2], strict=True)]

    def count(self) -> None:
        """Count one update of all shards in the global step."""
        self._counted += 1
        self._call("ps.count", {"number": self.counted + self._counted})

    def _receive(self) -> None:
        frame = self._next_message()
        if frame is None or frame.kind == "ps.there":
            self._check()
        elif frame.kind == "ps.applied":
            self._settle(frame.meta)
        else:
            self._handle(frame)

    def _settle(self, answer: Mapping[str, Any]) -> None:
        """Note an answer to a gradient, unless it was received before."""
        self._seen = max(self._seen, answer["version"])
        sent = self._sent.get(answer["token"])
        if sent is None or sent.number != answer["number"]:
            return
        if answer["what"] not in (TAKEN, STEPPED):
            del self._sent[answer["token"]]
        self._reconnects = 0
        self._note(answer["what"], answer["token"], answer["staleness"])

    def _call(self, kind: str, meta: Mapping[str, Any], arrays: Sequence[Array] = ()) -> Frame:
        """Call the server; again if the connection was reset, because no call changes anything twice."""
        while True:
            try:
                return super()._call(kind, meta, arrays)
            except UnavailableError as error:
                self._reconnect(error)

    def _next_message(self) -> Frame | None:
        try:
            return super()._next_message()
        except UnavailableError as error:
            self._reconnect(error)
            return None

    def _reconnect(self, error: UnavailableError) -> None:
        """Connect again after a reset, and send what has not arrived; raise ``error`` if it has ended.

        Raises UnavailableError if the others have continued without this replica.
        """
        begun = time.monotonic()
        while True:
            retries = self._peer.was_lost and self._reconnects < MAX_RECONNECTS
            if not retries or not is_reachable(self._peer.address):
                raise error
            self._reconnecting = True  # `check` looks at all links
            try:
                self._check()
            finally:
                self._reconnecting = False
            self._peer.close()
            self._peer, self._reconnects = self._connect(), self._reconnects + 1
            try:
                known = self._introduced_again()
                break
            except UnavailableError as another:
                error = another
            except AbortedError:  # another process of the server has the address, or the run has ended
                raise error from None
        peer = self._peer
        self._seen = max(self._seen, known["version"])
        if known["frozen"]:
            self.lost(dict(known["frozen"]))
        for answer in known["answers"]:
            self._settle(answer)
        missing = [sent for sent in self._sent.values() if sent.number > known["received"]]
        for sent in sorted(missing, key=lambda one: one.number):
            peer.send("ps.push", sent.meta, sent.arrays)
        if self._said_farewell:
            peer.send("ps.leave", {**self._sender, "stops": self._said_stop})
        print(
            f"the connection to {peer.name} was reset, and restored after {time.monotonic() - begun:.2f} s; "
            f"gradients sent again: {len(missing)}"
        )

    def _introduced_again(self) -> dict[str, Any]:
        """Ask the server over a new connection what it has received.

        Its process may have been about to end when the connection was made: that shows after a second.
        """
        until = time.monotonic() + self._peer.timeout
        while True:
            asked = time.monotonic()
            try:
                return self._peer.call("ps.reconnect", self._sender, timeout=REACH_SECONDS).meta
            except UnavailableError:
                now = time.monotonic()
                answered = now - asked < REACH_SECONDS  # it refuses this replica, or was lost
                if answered or now > until or not is_reachable(self._peer.address):
                    raise

    def look(self) -> None:
        """Raise UnavailableError if the server's process has ended; connect again after a reset."""
        if self._reconnecting:
            return
        try:
            super().look()
        except UnavailableError as error:
            self._reconnect(error)

    def _newest(self) -> int:
        return max(self._seen, self.version)


def is_reachable(address: str) -> bool:
    """Return whether a connection to an address can be made; False if its process has ended."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class ShardState:
    """What a shard has beside its parameters: it is saved, and given to a shard that continues."""

    updates: int
    """Updates so far, which some optimizers count."""
    slots: Mapping[str, Array]
    """The optimizer's slots by name, each in bytes laid out as the parameters are."""
    tables: tuple[Mapping[str, Array], ...] = ()
    """The slots of each table."""
    steps: tuple[int, ...] = ()
    """How many gradients of each replica have been applied or dropped."""


@dataclass(frozen=True)
class ShardRequest:
    """A replica's request to open a shard on a parameter server."""

    shard: str
    replica: int
    rules: Rules
    layout: Layout
    optimizer: Optimizer
    counts: bool
    """Whether each update of this shard counts in the global step."""
    initial: tuple[Array, ...] | None
    """The initial values, from the chief only."""
    first: bool = True
    """Whether this is the first of the training's shards."""
    tables: tuple[tuple[str, Array], ...] = ()
    """Tables by name; pulled rows are written into them, and the chief's values are the initial ones."""
    called: str = ""
    """Where the replica is, for the errors of others."""
    pids: tuple[int, ...] = ()
    """The process id of each replica, which the server polls; 0 for those on other hosts."""
    restored: ShardState | None = None
    """What the shard continues, from the chief only."""
    rejoins: bool = False
    """Whether this process replaces one that the replica had before."""
    offer: Offer | None = None
    """What the replica knows of the shard, where the server's former process died."""
    copy: Array | None = None
    """Its copy of the parameters then."""
    standby: dict[str, Any] | None = None
    """Where the shard has a standby: its task's rank, the shard's own, and whether they share memory."""
    saved: Callable[[], ShardState | None] = lambda: None
    """Returns what the optimizer had saved of this shard, if anything: the slots begin anew otherwise."""


def open_link(
    connect: Callable[[], Peer],
    request: ShardRequest,
    *,
    prefix: str | None,
    check: Callable[[], None],
    timeout: float = 600.0,
    lost: Callable[[Mapping[int, int]], object] = lambda frozen: None,
) -> Link:
    """Connect a replica to a shard; waits until the chief has given the initial values.

    Raises TrainingOver where a replica's new process finds that the training has ended.

    ``connect`` returns a connection to the server, which the link closes, also when this fails. A link over a
    socket calls it again if its connection is reset. ``prefix`` names shared files if both tasks are on one
    host; None selects the socket. ``check`` raises AbortedError when the run has ended. ``lost`` is called
    with all replicas that the server has found frozen, and their process ids; the others continue without
    them.
    """
    peer = connect()
    bell, note = _own_bell(None if request.tables else prefix)  # requests for rows need a socket
    try:
        link = _opened_link(peer, request, bell, check, timeout, connect)
        link.note, link.lost = link.note or note, lost
        return link
    except BaseException:
        peer.close()
        if bell is not None:
            bell.close()
        raise


def _opened_link(
    peer: Peer,
    request: ShardRequest,
    bell: Doorbell | None,
    check: Callable[[], None],
    timeout: float,
    connect: Callable[[], Peer],
) -> Link:
    meta = {
        "shard": request.shard,
        "replica": request.replica,
        "called": request.called,
        "pids": list(request.pids),
        "rejoins": request.rejoins,
        "rules": request.rules.to_wire(),
        "layout": request.layout.to_wire(),
        "tables": [[name, list(array.shape), array.dtype.str] for name, array in request.tables],
        "optimizer": request.optimizer.to_config(),
        "counts": request.counts,
        "first": request.first,
        "chief": request.initial is not None,
        "shared": bell is not None,
        "bell": bell.name if bell else None,
        "restored": None if request.restored is None else request.restored.updates,
        "offer": None if request.offer is None else request.offer.to_wire(),
        "standby": request.standby,
    }
    opened = _patiently(peer, meta, request, check, timeout)
    sender = {"shard": request.shard, "replica": request.replica, "incarnation": opened["incarnation"]}
    link: Link
    if bell is not None and opened["segment"]:
        try:
            link = SharedLink(
                request.layout, check, peer=peer, sender=sender, opened=opened, bell=bell,
                rules=request.rules,
            )  # fmt: skip
            return _introduced(link, opened, request)
        except NotFoundError:
            opened["note"] = "parameters travel over sockets: the shared memory is not visible here"
    if bell is not None:
        bell.close()
    link = SocketLink(
        request.layout, check, peer=peer, sender=sender, connect=connect,
        tables=[array for _, array in request.tables],
    )  # fmt: skip
    link.note = str(opened["note"])
    return _introduced(link, opened, request)


def _introduced(link: Link, opened: dict[str, Any], request: ShardRequest) -> Link:
    """Return a link with what the server has said of the shard."""
    link.place, link.made, link.counted = opened["place"], opened["made"], opened["counted"]
    link.generation, link.base, link.began = opened["generation"], opened["base"], opened["began"]
    link.restored, link.opened_at = opened.get("restored"), opened["version"]
    if request.initial is not None:  # this replica may restore the shard before it has pulled
        for view, value in zip(request.layout.views(link.parameters), request.initial, strict=True):
            np.copyto(view, value)
        link.has_copy = True
    link._serial = link._first_serial = opened["serial"]
    return link


def _own_bell(prefix: str | None) -> tuple[Doorbell | None, str]:
    """Return a doorbell if shared memory is wanted and there is room; else None, and a note for the user."""
    try:
        return (Doorbell.create(prefix), "") if prefix is not None else (None, "")
    except OSError as error:
        return None, f"parameters travel over sockets: no doorbell can be made in shared memory: {error}"


def _patiently(
    peer: Peer,
    meta: dict[str, Any],
    request: ShardRequest,
    check: Callable[[], None],
    timeout: float,
) -> dict[str, Any]:
    """Open a shard; the answer comes when the chief has opened it. Aborts are noticed while waiting."""
    peer.send("ps.open", meta, request.initial or ())
    if request.initial is not None:
        _fill(peer, request, check)
    deadline = time.monotonic() + timeout
    restored: dict[str, Any] | None = None
    while time.monotonic() < deadline:
        frame = peer.receive(LOOK_SECONDS)
        if frame is None or frame.kind == "ps.there":
            check()
        elif frame.kind == "ps.opened":
            return {**frame.meta, "restored": restored or frame.meta["restored"]}
        elif frame.kind == "ps.restore":
            restored = {**frame.meta, "slots": _restore(peer, meta, request, check)}
        elif frame.kind == "ps.over":
            raise TrainingOver
        elif frame.kind == "error":
            raise error_from(frame)
    raise AbortedError(
        f"no initial values for {meta['shard']!r} within {timeout:.0f} s: the chief (worker 0) has not "
        "reached the same fit(); every worker has to call fit the same number of times"
    )


def _restore(
    peer: Peer, meta: dict[str, Any], request: ShardRequest, check: Callable[[], None]
) -> str | None:
    """Send this replica's copy to a server's new process; return what became of the optimizer's slots."""
    assert request.copy is not None
    names = request.optimizer.get_slot_names()
    saved = request.saved() if names else None
    updates = None if saved is None else saved.updates
    peer.send("ps.open", {**meta, "chief": True, "restored": updates}, request.layout.views(request.copy))
    if saved is not None or request.tables:
        _fill(peer, replace(request, restored=saved), check)
    if saved is not None:
        return str(saved.updates)
    return "anew" if names else None


def _fill(peer: Peer, request: ShardRequest, check: Callable[[], None]) -> None:
    """Send the chief's initial values of the tables, part by part, and the slots that continue."""
    restored = request.restored or ShardState(0, {}, tuple({} for _ in request.tables))
    for slot, buffer in restored.slots.items():
        _send_part(peer, {"shard": request.shard, "slot": slot}, buffer, check)
    for number, ((_, table), slots) in enumerate(zip(request.tables, restored.tables, strict=True)):
        for kept, array in (("", table), *slots.items()):
            for first, stop in chunks(array.shape, array.itemsize):
                meta = {"shard": request.shard, "table": number, "first": first, "slot": kept}
                _send_part(peer, meta, array[first:stop], check)


def _send_part(peer: Peer, meta: dict[str, Any], part: Array, check: Callable[[], None]) -> None:
    check()
    try:
        peer.call("ps.fill", meta, (part,))
    except AbortedError:  # there is no shard: the error of the request is more precise
        frame = peer.receive(0)
        if frame is not None and frame.kind == "error":
            raise error_from(frame) from None
        raise
