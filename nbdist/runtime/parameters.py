"""The parameter service of a task: keeps shards, applies gradients, answers replicas.

Replicas on the same host write gradients into shared memory and ring a doorbell; all others use the task's
authenticated socket. Both reach the same shard under one lock.

    replica                                 service
    ps.open   who, layout, optimizer ─────► makes the shard from the chief's values, then answers
    ps.pull   ────────────────────────────► parameters, version, global step
    ps.push   gradient, version ──────────► ps.applied (pushed back): what became of it, when that is settled
    ps.count  ────────────────────────────► global step goes up by one
    ps.rate   learning rate ──────────────► updates are made at that rate from the next one on
    ps.leave  ────────────────────────────► ps.left (pushed back) with the final values, once all have left

Once a second the service checks for replicas that are dead while others wait for them, and for replicas of
its host that are frozen (stopped, as by SIGSTOP, for 8 s). It continues without them and refuses their later
messages: a shard's name belongs to one training, and an evicted replica stays evicted.

Tables with row lookups use the socket. The chief fills them part by part (ps.fill), ps.pull returns the rows
that it names, ps.push has gradients of rows, ps.table returns the current values of a part. After ps.left the
server keeps the final tables until each replica has read them (ps.done).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from nbdist.errors import (
    AbortedError,
    InvalidArgumentError,
)
from nbdist.graph.ops.rows import check_rows
from nbdist.runtime.accumulator import Gradient, Rows
from nbdist.runtime.answers import COUNTED
from nbdist.runtime.applied import ServiceLogs
from nbdist.runtime.bellthread import BellThread
from nbdist.runtime.holding import Holding, push
from nbdist.runtime.layout import Layout
from nbdist.runtime.links import refused
from nbdist.runtime.mailbox import COUNT, GLOBAL_STEP
from nbdist.runtime.rules import Rules
from nbdist.runtime.server import Server
from nbdist.runtime.shard import ParameterShard
from nbdist.runtime.tables import Table
from nbdist.wire.collective.watch import FROZEN_SECONDS, Watch
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_frame
from nbdist.wire.peers import Sender
from nbdist.wire.shm import require_plain

Array = np.ndarray[Any, Any]
OneWay = Callable[[Frame, Sender], None]
clock = time.perf_counter
LOOK_SECONDS = 1.0  # between two checks for dead or frozen replicas


class ParameterService:
    """Serve parameters from a task's Server; ``prefix`` starts the names of its shared files."""

    def __init__(self, server: Server, prefix: str) -> None:
        self._server, self._prefix = server, prefix
        self.logs = ServiceLogs()
        self._holdings: dict[str, Holding] = {}
        self._numbers: dict[int, Holding] = {}
        self._free_numbers = itertools.cycle(range(1 << 16))
        self._bell: BellThread | None = None
        self._stop_looking: Callable[[], None] | None = None
        handlers: dict[str, Callable[[Frame, Sender], Frame | None]] = {
            "ps.open": self._answered(self._open),
            "ps.pull": self._pull,
            "ps.push": self._answered(self._push),
            "ps.count": self._count,
            "ps.fill": self._fill,
            "ps.table": self._table,
            "ps.done": self._done,
            "ps.rate": self._rate,
            "ps.leave": self._answered(self._leave),
        }
        for kind, handler in handlers.items():
            server.on(kind, handler)

    def close(self) -> None:
        """Give up all shards and end the doorbell's thread."""
        if self._stop_looking is not None:
            self._stop_looking()
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        for holding in list(self._holdings.values()):
            self._remove(holding)

    # Opening. Runs on the server's thread, as all handlers do.

    def _answered(self, handler: OneWay) -> Callable[[Frame, Sender], None]:
        """Push what a one-way request raises back to its replica, which waits for an answer by push."""

        def answered(frame: Frame, sender: Sender) -> None:
            try:
                handler(frame, sender)
            except Exception as error:
                push(sender, error_frame(error, self._server.name))

        return answered

    def _open(self, frame: Frame, sender: Sender) -> None:
        """Answer by push, now or once the chief has come: the replica looks around while it waits."""
        meta = frame.meta
        layout = Layout.of(meta["layout"])
        replica, rules = meta["replica"], Rules(**meta["rules"])
        if not isinstance(replica, int) or not 0 <= replica < rules.replicas:
            raise InvalidArgumentError(f"replica {replica!r} of {rules.replicas}: they are numbered from 0")
        if meta["bell"]:
            require_plain(meta["bell"])
        who = f"replica {replica}"
        tables = tables_from(meta.get("tables", ()))
        holding = self._holdings.get(meta["shard"])
        if holding is None:
            # Never reuse a number: a late ring for a removed shard must not reach another.
            number = next(n for n in self._free_numbers if n not in self._numbers)
            log = self.logs.of(_run_of(meta["shard"]), rules.replicas)
            name, post = self._server.name, self._server.post
            holding = Holding(meta["shard"], number, rules, layout, who, name, log, post, tables)
            pids = {replica: int(pid) for replica, pid in enumerate(meta.get("pids", ())) if pid}
            holding.processes = Watch(pids)
            self._look_around()
            self._holdings[holding.name] = self._numbers[number] = holding
        holding.require(layout, tables, rules, who)
        holding.opening[replica] = (sender, meta)
        if meta["chief"]:
            try:
                nbytes, what = holding.bytes_for(meta), f"the variables of {holding.name} and their gradients"
                self._server.sessions.store.take(("ps", holding.number), nbytes, what)
                holding.make(meta, frame.arrays, self._prefix)
            except Exception as error:
                self._give_up(holding, error_frame(error, self._server.name), but=replica)
                raise
        self._admit(holding)

    def _give_up(self, holding: Holding, error: Frame, but: int) -> None:
        """Drop a shard that could not be made, and send the error to the replicas that wait for it."""
        if holding.shard is None:
            holding.opening.pop(but, None)
            self._remove(holding, error)

    def _admit(self, holding: Holding) -> None:
        if holding.ready:
            for replica in list(holding.opening):
                holding.admit(replica, self._listen)

    def _fill(self, frame: Frame, sender: Sender) -> Frame:
        """Store a part of the chief's initial values of a table; the last part admits all replicas."""
        holding, shard = self._find(frame)
        with shard.lock:
            holding.fill(int(frame.meta["table"]), int(frame.meta["first"]), frame.arrays[0])
        self._admit(holding)
        return Frame("ps.filled")

    def _table(self, frame: Frame, sender: Sender) -> Frame:
        """Send the current values of a part of a table."""
        _, shard = self._find(frame)
        first, stop = int(frame.meta["first"]), int(frame.meta["stop"])
        with shard.lock:
            return Frame("ps.part", {}, (shard.tables.arrays[int(frame.meta["table"])][first:stop].copy(),))

    def _done(self, frame: Frame, sender: Sender) -> Frame:
        """Release a replica that has read the final tables."""
        holding, _ = self._find(frame)
        holding.reading.discard(int(frame.meta["replica"]))
        if not holding.reading:
            self._remove(holding)
        return Frame("ps.bye")

    def _listen(self) -> str:
        self._bell = self._bell or BellThread(self._prefix, self._heed)
        return self._bell.name

    # Gradients through shared memory. Runs on the mailbox thread.

    def _heed(self, number: int, replica: int, slot: int) -> None:
        """Do what a replica rang for."""
        holding = self._numbers.get(number)
        if holding is None or holding.shard is None or holding.mailbox is None:
            return
        try:
            if slot == COUNT and replica in holding.shard.evicted:
                holding.refuse(replica)
                return
            if slot == COUNT:
                holding.shard.count()
                holding.ring(replica, COUNTED, 0)
                return
            gradient: Gradient = [*holding.gradient(holding.mailbox, replica, slot)]
            version = int(holding.mailbox.headers[replica][slot][0])
            self._take(holding, holding.shard, "mailbox", replica, slot, gradient, version)
        except Exception as error:  # no memory, say; this thread serves the others too
            holding.tell(replica, error_frame(error, self._server.name))

    def _take(
        self,
        holding: Holding,
        shard: ParameterShard,
        lane: str,
        replica: int,
        token: int,
        gradient: Gradient,
        version: int,
    ) -> None:
        """Offer a gradient to its shard, and answer all replicas that wait for the completed update."""
        begun = clock()
        became, answers = shard.offer(replica, token, gradient, version)
        holding.log.gradient(lane, replica, begun, clock(), became)
        for answer in answers:
            holding.answer(answer)

    # The same through sockets. Runs on the server's thread.

    def _pull(self, frame: Frame, sender: Sender) -> Frame:
        holding, shard = self._find(frame)
        begun = clock()
        with shard.lock:
            meta = {"version": shard.version, "global_step": int(shard.counters[GLOBAL_STEP])}
            copy = shard.memory.copy()
            rows = [row_of(table, ids) for table, ids in zip(shard.tables.arrays, frame.arrays)]
        holding.log.parameters("socket", int(frame.meta["replica"]), begun, clock())
        return Frame("ps.parameters", meta, (copy, *rows))

    def _push(self, frame: Frame, sender: Sender) -> None:
        holding, shard = self._find(frame)
        replica, token = int(frame.meta["replica"]), int(frame.meta["token"])
        holding.senders[replica] = sender
        gradient, *parts = frame.arrays
        if gradient.nbytes != holding.layout.size or gradient.dtype != np.uint8:
            raise InvalidArgumentError(
                f"a gradient of {gradient.nbytes} bytes for a shard of {holding.layout.size}"
            )
        flats = holding.layout.flats(np.array(gradient))  # a copy of our own: it is written over
        rows = [Rows(np.array(i), np.array(v)) for i, v in zip(parts[::2], parts[1::2], strict=True)]
        whole: Gradient = [*flats, *shard.tables.checked(rows)]
        self._take(holding, shard, "socket", replica, token, whole, int(frame.meta["version"]))

    def _count(self, frame: Frame, sender: Sender) -> Frame:
        _, shard = self._find(frame)
        shard.count()
        return Frame("ps.counted")

    def _rate(self, frame: Frame, sender: Sender) -> Frame:
        _, shard = self._find(frame)
        shard.set_rate(checked_rate(frame.meta["learning_rate"]))
        return Frame("ps.rated")

    def _leave(self, frame: Frame, sender: Sender) -> None:
        """Release a replica; all that leave are answered together, when the parameters are final."""
        holding, shard = self._find(frame)
        replica = int(frame.meta["replica"])
        if replica in shard.evicted:
            raise refused(replica, self._server.name)
        for answer in shard.leave(replica):
            holding.answer(answer)
        holding.leaving[replica] = sender
        if holding.all_left():
            self._end(holding, shard)

    def _end(self, holding: Holding, shard: ParameterShard) -> None:
        """Send the final parameters to all replicas that have left, and release them."""
        meta = {
            "updates": shard.updates,
            "global_step": int(shard.counters[GLOBAL_STEP]),
            "dropped": sum(shard.tally.dropped),
            "tally": shard.tally.to_wire(),
        }
        for number, who in holding.leaving.items():
            arrays = () if number in holding.ringers else (shard.memory,)
            # Posted like all messages to replicas, so that earlier ones, such as a loss, arrive first.
            self._server.post(partial(push, who, Frame("ps.left", meta, arrays)))
        if holding.tables:
            holding.reading = set(holding.leaving)
        else:
            self._remove(holding)

    # The dead and the frozen. Runs on the server's thread.

    def _look_around(self) -> None:
        """Check for dead and frozen replicas once a second, while there is a shard."""
        if self._stop_looking is None:
            self._stop_looking = self._server.every(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if not self._holdings and self._stop_looking is not None:
            self._stop_looking()
            self._stop_looking = None
        for holding in list(self._holdings.values()):
            if holding.reading:
                holding.reading -= {replica for replica in holding.reading if holding.is_gone(replica)}
                if not holding.reading:
                    self._remove(holding)
                continue
            holding.look(FROZEN_SECONDS)
            if holding.shard is not None and holding.leaving and holding.all_left():
                self._end(holding, holding.shard)

    def drop_run(self, run: str) -> int:
        """Drop all shards of a run, also those in use; returns their number. On the server's thread."""
        names = [name for name in self._holdings if name.startswith(f"{run}/")]
        for name in names:
            self._remove(self._holdings[name])
        return len(names)

    def _remove(self, holding: Holding, ended: Frame | None = None) -> None:
        self._holdings.pop(holding.name, None)
        self._numbers.pop(holding.number, None)
        self._server.sessions.store.give_back(("ps", holding.number))
        ended = ended or error_frame(AbortedError(f"the run of {holding.name} has ended"))
        for sender, _ in holding.opening.values():
            self._server.post(partial(push, sender, ended))
        holding.close()

    def _find(self, frame: Frame) -> tuple[Holding, ParameterShard]:
        holding = self._holdings.get(frame.meta["shard"])
        if holding is None or holding.shard is None:
            raise AbortedError(f"the parameters of {frame.meta['shard']!r} are not here (any more)")
        return holding, holding.shard


def checked_rate(rate: object) -> float:
    """Return a learning rate that came from a replica; InvalidArgumentError unless it is finite and >= 0."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < float("inf"):
        raise InvalidArgumentError(f"a learning rate is a finite number of 0 or more, not {rate!r}")
    return float(rate)


def _run_of(shard: str) -> str:
    """Return the run that a shard is of: its name is that and the number of the training."""
    return shard.rpartition("/")[0]


def row_of(table: Array, ids: Array) -> Array:
    """Return rows of a table, or raise InvalidArgumentError for anything else."""
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise InvalidArgumentError(f"row numbers are int64, got {ids.shape} {ids.dtype}")
    check_rows(ids, len(table))
    return table[ids]


def tables_from(entries: Sequence[Any]) -> tuple[Table, ...]:
    """Return the tables that a request describes, or raise InvalidArgumentError."""
    found = tuple((str(n), tuple(int(k) for k in shape), str(dtype)) for n, shape, dtype in entries)
    for name, shape, dtype in found:
        if not shape or min(shape) < 0 or np.dtype(dtype).kind != "f":
            raise InvalidArgumentError(f"{name!r} of shape {shape} and dtype {dtype} is not a table")
    return found
