"""A standby has a copy of a parameter shard on another server (``--ps-replicas 1``), and the shard's server.

    primary                                       standby, on the next ps task
    ps.standby.open      key, layout ──────────►  makes an empty copy
    ps.standby.part      bytes       ──────────►  until it has all of them
    ps.standby.complete  counts      ──────────►  from now on it replaces an earlier copy
    ps.standby.update    gradient, counts ─────►  applied as the primary has applied it
                                     ◄──────────  ps.acknowledge: the last update that is applied here
    ps.standby.drop                  ──────────►  the training has ended

    the primary's new process
    ps.standby.take      ──────────────────────►  counts; from now on it takes updates of this process only
    ps.standby.read      ──────────────────────►  bytes, part by part

Primary-backup replication (Alsberg and Day, 1976): the primary applies a gradient, sends it on in its order,
and acknowledges it to its replica when the standby has it. The standby applies the same gradients with the
same optimizer, so both are equal to the bit, also the optimizer's slots. Each update carries all counts of
the shard, so what else changes (the rate, the counted steps) is an update without a gradient.

Each filling of a standby has a number drawn at random. An update of another filling changes nothing: it comes
from a process that was replaced.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nbdist.errors import (
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from nbdist.optim import from_config
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.mailbox import COUNTERS
from nbdist.runtime.ps.shard import Gradient, ParameterShard
from nbdist.runtime.ps.sync import Rules
from nbdist.runtime.server import Server
from nbdist.runtime.tables import RowGradient
from nbdist.runtime.task import TaskInfo
from nbdist.wire.hosts import host_identity
from nbdist.wire.keys import ClusterKeys
from nbdist.wire.rpc.client import Caller, Peer
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Segment

Array = np.ndarray[Any, Any]
PART_BYTES = 1 << 22
TAKE_SECONDS = 30.0  # for a standby to answer
LOOK_SECONDS = 1.0  # between two looks whether it was replaced instead
SLOTS = 8  # gradients in shared memory on their way to a standby of this host
SEND_SECONDS = 1.0  # for a connection to take an acknowledgement


class StandbyService:
    """The standbys on a task: answers the primaries of their shards. On the Server's thread."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._standbys: dict[str, StandbyShard] = {}
        self._filling: dict[str, StandbyShard] = {}
        self._owners: dict[str, Peer] = {}
        self._applied: dict[str, StandbyShard] = {}
        """Standbys with updates that are not acknowledged yet."""
        handlers: dict[str, Callable[[Frame, Caller], Frame | None]] = {
            "ps.standby.open": self._open,
            "ps.standby.part": self._part,
            "ps.standby.complete": self._complete,
            "ps.standby.update": self._update,
            "ps.standby.drop": self._drop,
            "ps.standby.take": self._take,
            "ps.standby.read": self._read,
        }
        for kind, handler in handlers.items():
            server.on(kind, handler)

    def complete(self) -> list[str]:
        """Return the keys of the standbys that have all of their shard."""
        return list(self._standbys)

    def drop_run(self, run: str) -> None:
        """Drop all standbys of a run."""
        for known in (self._standbys, self._filling):
            for key in [key for key in known if key.startswith(f"{run}/")]:
                self._close(known.pop(key))

    def close(self) -> None:
        """Drop all standbys and close the connections to their primaries."""
        for one in [*self._standbys.values(), *self._filling.values()]:
            self._close(one)
        self._standbys, self._filling = {}, {}
        for peer in self._owners.values():
            peer.close()

    def _open(self, frame: Frame, sender: Caller) -> Frame:
        meta = frame.meta
        if (old := self._filling.pop(meta["key"], None)) is not None:
            self._close(old)
        nbytes, what = int(meta["bytes"]), f"the standby of {meta['key']}"
        self._server.sessions.store.take(_memory(meta), nbytes, what)
        try:
            self._filling[meta["key"]] = StandbyShard.of(meta, nbytes)
        except BaseException:
            self._server.sessions.store.give_back(_memory(meta))
            raise
        return Frame("ps.standby.opened", {"shares": bool(self._filling[meta["key"]].slots)})

    def _part(self, frame: Frame, sender: Caller) -> Frame:
        self._find(self._filling, frame).write(
            int(frame.meta["part"]), int(frame.meta["first"]), frame.arrays[0]
        )
        return Frame("ps.standby.written")

    def _complete(self, frame: Frame, sender: Caller) -> Frame:
        standby = self._find(self._filling, frame)
        standby.complete(int(frame.meta["number"]), frame.meta["counts"])
        del self._filling[standby.key]
        if (old := self._standbys.pop(standby.key, None)) is not None:
            self._close(old)
        self._standbys[standby.key] = standby
        return Frame("ps.standby.completed", {"number": standby.number})

    def _update(self, frame: Frame, sender: Caller) -> None:
        for known in (self._standbys, self._filling):
            standby = known.get(frame.meta["key"])
            if standby is not None and standby.filling == frame.meta["filling"]:
                try:
                    standby.update(frame.meta, frame.arrays)
                except Exception as error:  # the copy is not that of the primary any more
                    del known[standby.key]
                    self._close(standby)
                    self._tell(standby, {"error": f"{type(error).__name__}: {error}"})
                    return
                if known is self._standbys:
                    if not self._applied:  # one message for all updates that have arrived by now
                        self._server.post(self._acknowledge)
                    self._applied[standby.key] = standby
                return

    def _acknowledge(self) -> None:
        applied, self._applied = self._applied, {}
        for standby in applied.values():
            self._tell(standby, {"number": standby.number})

    def _tell(self, standby: StandbyShard, meta: dict[str, Any]) -> None:
        """Send a message to the primary of a standby, which may have ended."""
        owner = standby.owner
        if owner not in self._owners:
            self._owners[owner] = Peer(owner, self._server.keys, timeout=SEND_SECONDS)
        try:
            self._owners[owner].send(
                "ps.acknowledge", {"shard": standby.name, "filling": standby.filling, **meta}
            )
        except UnavailableError:  # the next acknowledgement gets a new connection
            self._owners.pop(owner).close()

    def _drop(self, frame: Frame, sender: Caller) -> None:
        for known in (self._standbys, self._filling):
            with suppress(NotFoundError):
                standby = self._find(known, frame)
                del known[standby.key]
                self._close(standby)

    def _take(self, frame: Frame, sender: Caller) -> Frame:
        """Serve another process of the primary from now on, and send it the counts."""
        meta = frame.meta
        standby = self._standbys.get(meta["key"])
        if standby is None or standby.shard.layout.digest() != meta["layout"]:
            raise NotFoundError(f"{self._server.name} has no complete standby of {meta['key']!r}")
        standby.share(meta["segment"])
        self._server.sessions.store.give_back(("ps.standby", standby.key, standby.filling))
        standby.filling, standby.owner = int(meta["filling"]), str(meta["owner"])
        self._server.sessions.store.take(_memory(meta), standby.nbytes, f"the standby of {standby.key}")
        with standby.shard.lock:
            found = {"counts": standby.shard.snapshot(), "number": standby.number, "lineage": standby.lineage}
        sizes = [len(one) for one in standby.buffers]
        return Frame("ps.standby.taken", {**found, "sizes": sizes, "shares": bool(standby.slots)})

    def _read(self, frame: Frame, sender: Caller) -> Frame:
        standby = self._find(self._standbys, frame)
        first, stop = int(frame.meta["first"]), int(frame.meta["stop"])
        return Frame("ps.standby.bytes", {}, (standby.buffers[int(frame.meta["part"])][first:stop],))

    def _find(self, known: dict[str, StandbyShard], frame: Frame) -> StandbyShard:
        standby = known.get(frame.meta["key"])
        if standby is None or standby.filling != frame.meta["filling"]:
            raise NotFoundError(
                f"{self._server.name} has no standby of {frame.meta['key']!r} with the number "
                f"{frame.meta['filling']}: it was filled again, or the training has ended"
            )
        return standby

    def _close(self, standby: StandbyShard) -> None:
        self._server.sessions.store.give_back(("ps.standby", standby.key, standby.filling))
        standby.close()


def _memory(meta: dict[str, Any]) -> tuple[str, str, int]:
    return "ps.standby", str(meta["key"]), int(meta["filling"])


@dataclass
class StandbyShard:
    """A copy of a shard: filled part by part, then changed by the updates of its primary, in their order."""

    key: str
    name: str
    filling: int
    owner: str
    """The address of the primary's process."""
    lineage: Sequence[int]
    """What the primary knows of its former processes: generation, base, began."""
    shard: ParameterShard
    buffers: list[Array]
    missing: int
    nbytes: int
    number: int = 0
    """The last update."""
    segment: Segment | None = None
    slots: list[list[Array]] = field(default_factory=list)
    """Gradients in memory that the primary shares."""
    _queued: list[tuple[dict[str, Any], Gradient | None]] = field(default_factory=list)
    _complete: bool = False

    @classmethod
    def of(cls, meta: dict[str, Any], nbytes: int) -> StandbyShard:
        """Return an empty copy of a shard as its primary describes it, of at most so many bytes."""
        layout, rules, optimizer = (
            Layout.of(meta["layout"]),
            Rules(**meta["rules"]),
            from_config(meta["optimizer"]),
        )
        kept = len(optimizer.get_slot_names())
        tables = [(tuple(int(k) for k in shape), np.dtype(str(dtype))) for _, shape, dtype in meta["tables"]]
        whole = layout.size + sum(int(np.prod(shape, dtype=np.int64)) * d.itemsize for shape, d in tables)
        if (1 + kept) * whole > nbytes:
            raise InvalidArgumentError(
                f"the standby of {meta['key']} takes {(1 + kept) * whole:,} bytes, and its primary has "
                f"announced {nbytes:,}"
            )
        shard = ParameterShard(
            layout, layout.buffer(), np.zeros(COUNTERS, np.int64), optimizer, rules,
            counts=bool(meta["counts"]), tables=[np.zeros(*one) for one in tables],
        )  # fmt: skip
        buffers = shard.buffers()
        found = cls(
            str(meta["key"]), str(meta["shard"]), int(meta["filling"]), str(meta["owner"]),
            [int(one) for one in meta["lineage"]], shard, buffers, sum(map(len, buffers)), nbytes,
        )  # fmt: skip
        found.share(meta["segment"])
        return found

    def share(self, segment: str | None) -> None:
        """Read gradients from memory that the primary shares from now on; None: they come as messages."""
        self.close()
        if segment is not None:
            with suppress(NotFoundError):  # this process sees other shared memory
                self.segment = Segment.open(segment, writable=False)
                self.slots = slots_in(self.segment, self.shard.layout)

    def write(self, part: int, first: int, values: Array) -> None:
        """Store bytes of one array; each byte is expected once."""
        buffer = self.buffers[part]
        if values.dtype != np.uint8 or not 0 <= first <= first + len(values) <= len(buffer):
            raise InvalidArgumentError(
                f"{values.nbytes} bytes of {values.dtype} at {first} do not fit into part {part} of "
                f"{self.key}, which has {len(buffer)} bytes"
            )
        buffer[first : first + len(values)] = values
        self.missing -= len(values)

    def complete(self, number: int, counts: dict[str, Any]) -> None:
        """Begin with the update after ``number``; those that have arrived already are applied."""
        if self.missing:
            raise DataLossError(f"{self.missing:,} bytes of the standby of {self.key} are missing")
        self.shard.continue_from(counts)
        self.number, self._complete = number, True
        queued, self._queued = self._queued, []
        for meta, gradient in queued:
            self._apply(meta, gradient)

    def update(self, meta: dict[str, Any], arrays: Sequence[Array]) -> None:
        """Apply an update of the primary, or keep it until the copy is complete."""
        gradient = self._gradient(meta, arrays)
        if self._complete:
            self._apply(meta, gradient)
        else:
            self._queued.append((meta, gradient))

    def _gradient(self, meta: dict[str, Any], arrays: Sequence[Array]) -> Gradient | None:
        flats = self.shard.flats
        if not meta["applies"]:
            return None
        if meta["slot"] is not None:
            return [*self.slots[int(meta["slot"])]]
        own, parts = list(arrays[: len(flats)]), arrays[len(flats) :]
        if [(one.shape, one.dtype) for one in own] != [(flat.shape, flat.dtype) for flat in flats]:
            raise InvalidArgumentError(
                f"gradient {[(one.shape, str(one.dtype)) for one in own]} for the standby of {self.key}, "
                f"which takes {[(flat.shape, str(flat.dtype)) for flat in flats]}"
            )
        rows = [RowGradient(i, v) for i, v in zip(parts[::2], parts[1::2], strict=True)]
        return [*own, *self.shard.tables.checked(rows)]

    def _apply(self, meta: dict[str, Any], gradient: Gradient | None) -> None:
        if int(meta["number"]) != self.number + 1:
            raise DataLossError(
                f"the standby of {self.key} got update {meta['number']} and expected {self.number + 1}"
            )
        self.shard.replay(gradient, meta["counts"])
        self.number += 1

    def close(self) -> None:
        """Close the shared memory."""
        if self.segment is not None:
            self.segment.close()
            self.segment, self.slots = None, []


def gradient_memory(prefix: str | None, shard: Layout, info: TaskInfo) -> Segment | None:
    """Return shared memory for gradients to a standby on this host; None if it is not, or has no room."""
    if prefix is None or info.host != host_identity():
        return None
    try:
        return Segment.create(prefix, SLOTS * max(shard.size, 1))
    except ResourceExhaustedError:
        return None  # gradients travel through the socket, which takes longer


def slots_in(segment: Segment, layout: Layout) -> list[list[Array]]:
    """Return the gradients that a segment has room for, each as one flat array for each dtype."""
    size = max(layout.size, 1)
    count = len(segment.bytes) // size
    return [layout.flats(segment.bytes[i * size : i * size + layout.size]) for i in range(count)]


def new_filling() -> int:
    """Return a number that no other filling has."""
    return secrets.randbits(62)


@dataclass(frozen=True)
class FoundStandby:
    """The state of a shard that its standby had, when the primary's process had died."""

    info: TaskInfo
    filling: int
    number: int
    counts: dict[str, Any]
    lineage: tuple[int, int, int]
    buffers: list[Array]
    segment: Segment | None
    """Memory for gradients that both share."""


def take_standby(
    info: TaskInfo,
    keys: ClusterKeys,
    *,
    key: str,
    layout: Layout,
    owner: str,
    most: int,
    prefix: str | None,
    is_replaced: Callable[[], bool] = lambda: False,
) -> FoundStandby | None:
    """Return the state of a shard from its standby, which then takes updates of this process alone.

    None if it has none, as its process is new or dead. Runs on a thread of its own: a Server's thread waits
    for no other Server, which may wait for this one.

    - ``owner``: the address of this process
    - ``most``: how many bytes the state may have
    - ``prefix``: the beginning of the name of shared memory, if the standby may be on this host
    - ``is_replaced``: returns whether the standby's task has another process: the standby has died
    """
    if not _answers(info, keys, is_replaced):
        return None
    filling, segment = new_filling(), gradient_memory(prefix, layout, info)
    about = {"key": key, "filling": filling}
    try:
        with Peer(info.address, keys, name=info.name, timeout=TAKE_SECONDS) as peer:
            own = {"owner": owner, "layout": layout.digest(), "segment": segment and segment.name}
            taken = peer.call("ps.standby.take", {**about, **own}).meta
            sizes = [int(size) for size in taken["sizes"]]
            if min(sizes, default=0) < 0 or sum(sizes) > most:
                raise DataLossError(f"the standby of {key} has {sum(sizes):,} bytes of a shard of {most:,}")
            buffers = [np.empty(size, np.uint8) for size in sizes]
            for part, buffer in enumerate(buffers):
                for first in range(0, len(buffer), PART_BYTES):
                    stop = min(first + PART_BYTES, len(buffer))
                    piece = {"part": part, "first": first, "stop": stop}
                    buffer[first:stop] = peer.call("ps.standby.read", {**about, **piece}).arrays[0]
    except BaseException as error:
        if segment is not None:
            segment.close()
        if isinstance(error, NotFoundError | UnavailableError):
            return None
        raise
    if segment is not None and not taken["shares"]:
        segment.close()
        segment = None
    generation, base, began = (int(one) for one in taken["lineage"])
    return FoundStandby(
        info, filling, int(taken["number"]), taken["counts"], (generation, base, began), buffers, segment
    )


def _answers(info: TaskInfo, keys: ClusterKeys, is_replaced: Callable[[], bool]) -> bool:
    """Return whether a standby's process answers, before it is replaced or 30 s have passed."""
    until = time.monotonic() + TAKE_SECONDS
    while True:
        try:
            with Peer(info.address, keys, name=info.name, timeout=LOOK_SECONDS) as peer:
                peer.call("ps.hello")
            return True
        except NotFoundError:
            return False
        except UnavailableError:
            if is_replaced() or time.monotonic() > until:
                return False


def on_own_thread(name: str, work: Callable[[], object]) -> None:
    """Run what waits for another Server."""
    threading.Thread(target=work, name=f"nbdist {name}", daemon=True).start()
