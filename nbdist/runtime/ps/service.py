"""The parameter service of a task: keeps shards, applies gradients, answers replicas.

Replicas on the same host write gradients into shared memory and ring a doorbell; all others use the task's
authenticated socket. Both reach the same shard under one lock.

    replica                                 service
    ps.hello  ────────────────────────────► answers once the service is there
    ps.open   replica, layout, optimizer ────► makes the shard from the chief's values, then answers
    ps.pull   ────────────────────────────► parameters, version, global step
    ps.push   gradient, version, number ──► ps.applied (pushed back): its outcome, when decided
    ps.count  number ─────────────────────► global step goes up by one
    ps.reconnect ─────────────────────────► over a new connection: the gradients that arrived, and answers
    ps.state  names of slots ─────────────► parameters and the optimizer's slots between two updates
    ps.rate   learning rate ──────────────► updates are made at that rate from the next one on
    ps.note   ◄──────────────────────────── text for the run's output (pushed)
    ps.leave  ────────────────────────────► ps.left (pushed back) with the final values, once all have left

Once a second the service checks for replicas that are dead while others wait for them, and for replicas of
its host that are frozen (stopped, as by SIGSTOP, for 8 s). It continues without them and refuses their later
messages.

Where a synchronous step needs a replica that is lost, and the rules of the training await its new process,
the others wait for that (ps.awaited, pushed to them: the replicas that hold up the step), for 5 minutes at
most. One of them that was asked to stop leaves with "stops", which ends the step for all. A replica that is
alive and has closed its connection is not awaited: its body has failed.

The process that replaces a dead replica opens the shard under the same number ("rejoins"). It has the next
incarnation of that number, which every message carries: messages of an earlier incarnation are refused, and
change no count. The answer says how many gradients of this replica were applied, from where the new process
continues. Once a training has ended, such a request is answered with "ps.over".

Gradients that come through a socket are numbered from 1 for each process of a replica, and taken in that
order, each once. A replica whose connection is lost has half a second to connect again; where others
wait for it, it counts as dead then.

Tables with row lookups use the socket. The chief fills them part by part (ps.fill), ps.pull returns the rows
that it names, ps.push has gradients of rows, ps.table returns the current values of a part. After ps.left the
server keeps the final tables until each replica has read them, and final parameters until each replica that
uses a socket has them (ps.done).

When a server dies, the replicas open the shard again on its new process, each with an offer of its copy
(:mod:`nbdist.runtime.ps.restore`). The replica with the newest is asked for it (ps.restore), and opens the
shard as the chief did at first. A replica that has made all its steps says so: if all asynchronous ones have,
or those that still wait for a synchronous one, nothing is restored, and the answer is "ps.over".

A shard that continues an earlier training is opened with its number of updates; replicas are admitted when
the chief has also sent its slots (ps.fill).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import (
    AbortedError,
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    choices,
)
from nbdist.graph.ops.rows import check_rows
from nbdist.optim import from_config
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import refused
from nbdist.runtime.ps.mailbox import ANSWER, COUNT, COUNTERS, GLOBAL_STEP, RING, Mailbox
from nbdist.runtime.ps.replicator import Replicator
from nbdist.runtime.ps.restore import Offer, Restoration, newest, restoration, step_restoration
from nbdist.runtime.ps.shard import Gradient, ParameterShard
from nbdist.runtime.ps.standby import FoundStandby, StandbyService, on_own_thread, take_standby
from nbdist.runtime.ps.sync import COUNTED, REFUSED, STEPPED, STOPPED, Answer, Rules
from nbdist.runtime.ps.trace import ServiceLog, ServiceLogs
from nbdist.runtime.server import Server
from nbdist.runtime.tables import RowGradient, Table
from nbdist.runtime.task import TaskInfo
from nbdist.wire.collective.shm.sync import FROZEN_SECONDS, ProcessMonitor
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.envelope import error_frame
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Doorbell, Ringer, Segment, require_plain

Array = np.ndarray[Any, Any]
OneWay = Callable[[Frame, Caller], None]
clock = time.perf_counter
OFFER_SECONDS = 2.0  # for all living replicas to offer their copies of a shard
FIRST_OFFER_SECONDS = 30.0  # for the first of them, while the chief's new process waits
LOOK_SECONDS = 1.0  # between two checks for dead or frozen replicas
RECONNECT_SECONDS = 0.5  # for a replica to connect again after a reset
AWAIT_SECONDS = 300.0  # for the new process of a dead or frozen replica, which may load its data first
CUT_OFF_SECONDS = 40.0  # likewise, of a replica on another host: its connection is lost, and it may be alive


class ParameterService:
    """Serve parameters from a task's Server.

    ``prefix`` starts the names of its shared files. ``locate`` returns the task of a rank as it is now; only
    shards with a standby need it.
    """

    def __init__(self, server: Server, prefix: str, locate: Callable[[int], TaskInfo] | None = None) -> None:
        self._server, self._prefix, self._locate = server, prefix, locate
        self._standbys = StandbyService(server)
        self.logs = ServiceLogs()
        self._hosted: dict[str, HostedShard] = {}
        self._ended: set[str] = set()
        """Names of shards of trainings that have ended, until their run is dropped."""
        self._numbers: dict[int, HostedShard] = {}
        self._free_numbers = itertools.cycle(range(1 << 16))
        self._bell: BellThread | None = None
        self._stop_looking: Callable[[], None] | None = None
        handlers: dict[str, Callable[[Frame, Caller], Frame | None]] = {
            "ps.open": self._answered(self._open),
            "ps.pull": self._pull,
            "ps.push": self._answered(self._push),
            "ps.count": self._count,
            "ps.reconnect": self._reconnect,
            "ps.fill": self._fill,
            "ps.table": self._table,
            "ps.done": self._done,
            "ps.rate": self._rate,
            "ps.state": self._state,
            "ps.leave": self._answered(self._leave),
            "ps.acknowledge": self._acknowledge,
            "ps.hello": self._hello,  # registered last: when it answers, the others are registered
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
        for hosted in list(self._hosted.values()):
            self._remove(hosted)
        self._standbys.close()

    def _hello(self, frame: Frame, sender: Caller) -> Frame:
        """Say that the service is there, and which standbys are complete."""
        return Frame("ps.hello", {"standbys": self._standbys.complete()})

    # Opening. Runs on the server's thread, as all handlers do.

    def _answered(self, handler: OneWay) -> Callable[[Frame, Caller], None]:
        """Push what a one-way request raises back to its replica, which waits for an answer by push."""

        def answered(frame: Frame, sender: Caller) -> None:
            try:
                handler(frame, sender)
            except Exception as error:
                push(sender, error_frame(error, self._server.name))

        return answered

    def _open(self, frame: Frame, sender: Caller) -> None:
        """Answer by push, now or when the chief has opened the shard; meanwhile the replica polls its run."""
        meta = frame.meta
        layout = Layout.of(meta["layout"])
        replica, rules = meta["replica"], Rules(**meta["rules"])
        if not isinstance(replica, int) or not 0 <= replica < rules.replicas:
            raise InvalidArgumentError(f"replica {replica!r} of {rules.replicas}: they are numbered from 0")
        if meta["bell"]:
            require_plain(meta["bell"])
        rejoins = bool(meta.get("rejoins"))
        if rejoins and meta["shard"] in self._ended:
            push(sender, Frame("ps.over"))
            return
        asker = f"replica {replica}"
        tables = tables_from(meta.get("tables", ()))
        hosted = self._hosted.get(meta["shard"])
        if hosted is None:
            # Never reuse a number: a late ring for a removed shard must not reach another.
            number = next(n for n in self._free_numbers if n not in self._numbers)
            log = self.logs.of(_run_of(meta["shard"]), rules.first)
            name, post = self._server.name, self._server.post
            hosted = HostedShard(meta["shard"], number, rules, layout, asker, name, log, post, tables)
            pids = {replica: int(pid) for replica, pid in enumerate(meta.get("pids", ())) if pid}
            hosted.processes = ProcessMonitor(pids)
            hosted.standby = Standby(**meta["standby"]) if meta.get("standby") else None
            self._look_around()
            self._hosted[hosted.name] = self._numbers[number] = hosted
        hosted.require(layout, tables, rules, asker)
        if rejoins:
            hosted.rejoin(replica, int(meta["pids"][replica]))
            self._ask_standby(hosted, meta)
            if replica == 0:
                hosted.chief_waits_since = time.monotonic()
        hosted.opening[replica] = (sender, meta)
        if meta.get("offer"):
            hosted.take_spare(replica)
            hosted.offers[replica] = Offer(**meta["offer"])
            if hosted.processes is not None and replica < len(meta["pids"]):
                hosted.processes.replace(replica, int(meta["pids"][replica]))
            if not meta["chief"]:
                self._ask_standby(hosted, meta)
                self._gather(hosted)
        elif rejoins:
            self._gather(hosted)
        if meta["chief"] and hosted.shard is None:
            try:
                nbytes, what = hosted.bytes_for(meta), f"the variables of {hosted.name} and their gradients"
                self._server.sessions.store.take(("ps", hosted.number), nbytes, what)
                hosted.make(meta, frame.arrays, self._prefix)
            except Exception as error:
                self._give_up(hosted, error_frame(error, self._server.name), but=replica)
                raise
        self._admit(hosted)
        self._refuse_chief(hosted)

    def _refuse_chief(self, hosted: HostedShard) -> None:
        """End the wait of the chief's new process if no replica can give the values of the shard."""
        if hosted.lacks_values(time.monotonic()):
            text = f"the chief died before {self._server.name} had all initial values of {hosted.name}"
            push(hosted.opening.pop(0)[0], error_frame(UnavailableError(text), self._server.name))

    def _gather(self, hosted: HostedShard) -> None:
        """Have the newest copy sent, once all living replicas have offered theirs."""
        if hosted.shard is not None or hosted.asks_standby or not (hosted.offers or hosted.found):
            return
        if hosted.gathers_since is None:
            hosted.gathers_since = time.monotonic()
            self._server.after(OFFER_SECONDS, partial(self._gather, hosted))
        late = time.monotonic() - hosted.gathers_since >= OFFER_SECONDS
        hosted.drop_gone_offers()
        if hosted.name not in self._hosted or hosted.restoring:
            return
        if not hosted.opening or not (hosted.offers or hosted.found):  # those that had offered have died
            hosted.gathers_since = None
            return
        over = late and all(offer.done for offer in hosted.offers.values())  # the others may have ended
        needs_all = hosted.needs_all and not hosted.found_is_newest()
        if not (hosted.all_offered() or over or (late and not needs_all)):
            return
        if hosted.found is not None and hosted.found_is_newest():
            self._restore(hosted, hosted.found)
            return
        if hosted.is_lost:
            self._give_up(hosted, error_frame(hosted.loss(), self._server.name), but=-1)
            return
        if (over or not hosted.rules.synchronous) and all(offer.done for offer in hosted.offers.values()):
            hosted.lost |= hosted.offers.keys()  # a slower replica may still continue
            for replica in list(hosted.offers):
                del hosted.offers[replica]
                push(hosted.opening.pop(replica)[0], Frame("ps.over"))
            hosted.gathers_since = None
            return
        offers, rules = hosted.offers, hosted.rules
        found = hosted.restoration = (
            step_restoration(offers, rules.replicas, rules.backups > 0)
            if rules.synchronous
            else restoration(offers, rules.replicas, rules.spare)
        )
        push(hosted.opening[found.replica][0], Frame("ps.restore", found.to_wire()))

    def _ask_standby(self, hosted: HostedShard, meta: dict[str, Any]) -> None:
        """Request the state of a shard, whose former server died, from its standby: once."""
        standby = hosted.standby
        if standby is None or hosted.shard is not None or hosted.asked_standby or self._locate is None:
            return
        hosted.asked_standby = hosted.asks_standby = True
        keys, most, prefix = (
            self._server.keys,
            hosted.bytes_for(meta),
            self._prefix if standby.shared else None,
        )
        locate, info = self._locate, self._locate(standby.rank)

        def ask() -> None:
            found: FoundStandby | Exception | None
            try:
                found = take_standby(
                    info, keys, key=standby.key(hosted.name), layout=hosted.layout,
                    owner=self._server.address, most=most, prefix=None if hosted.tables else prefix,
                    is_replaced=lambda: locate(standby.rank).incarnation != info.incarnation,
                )  # fmt: skip
            except Exception as error:
                found = error
            self._server.post(partial(self._handle_standby, hosted, found))

        on_own_thread("standby", ask)

    def _handle_standby(self, hosted: HostedShard, found: FoundStandby | Exception | None) -> None:
        hosted.asks_standby = False
        if hosted.name not in self._hosted:  # the run has ended
            return
        if isinstance(found, Exception):
            self._give_up(hosted, error_frame(found, self._server.name), but=-1)
            return
        hosted.found = found
        self._gather(hosted)

    def _restore(self, hosted: HostedShard, found: FoundStandby) -> None:
        """Make a shard of the state that its standby had."""
        meta = next(iter(hosted.opening.values()))[1]
        try:
            nbytes, what = hosted.bytes_for(meta), f"the variables of {hosted.name} and their gradients"
            self._server.sessions.store.take(("ps", hosted.number), nbytes, what)
            hosted.make_again(meta, found, self._prefix)
        except Exception as error:
            self._give_up(hosted, error_frame(error, self._server.name), but=-1)
            return
        hosted.found = None
        self._admit(hosted)

    def _replicate(self, hosted: HostedShard, shard: ParameterShard) -> None:
        """Keep the standby of a shard equal to it from now on."""
        standby, locate = hosted.standby, self._locate
        if standby is None or hosted.replicator is not None:
            return
        if locate is None:
            raise InvalidArgumentError(f"{self._server.name} knows no other tasks, where a standby could be")
        meta = hosted.about
        optimizer, nbytes = meta["optimizer"], hosted.bytes_for({**meta, "shared": False})
        about = {
            "key": standby.key(hosted.name), "shard": hosted.name, "owner": self._server.address,
            "lineage": hosted.lineage, "layout": hosted.layout.to_wire(), "rules": hosted.rules.to_wire(),
            "tables": [[name, list(shape), dtype] for name, shape, dtype in hosted.tables],
            "optimizer": optimizer, "counts": bool(meta["counts"]), "bytes": nbytes,
        }  # fmt: skip

        def failed(error: Exception) -> None:
            for replica in list(hosted.senders):
                hosted.tell(replica, error_frame(error, self._server.name))

        def note(text: str) -> None:  # the first replica prints it
            hosted.tell(min(hosted.senders, default=0), Frame("ps.note", {"text": text}))

        hosted.replicator = Replicator(
            self._server, shard, about, locate=partial(locate, standby.rank), failed=failed, note=note,
            prefix=self._prefix if standby.shared else None,
        )  # fmt: skip
        if hosted.adopted is not None:
            hosted.replicator.adopt(hosted.adopted)
            hosted.adopted = None
        else:
            hosted.replicator.begin()
        shard.replicate = hosted.replicator.update

    def _acknowledge(self, frame: Frame, sender: Caller) -> None:
        hosted = self._hosted.get(frame.meta["shard"])
        if hosted is not None and hosted.replicator is not None:
            hosted.replicator.acknowledge(frame.meta)

    def _give_up(self, hosted: HostedShard, error: Frame, but: int) -> None:
        """Drop a shard that could not be made, and send the error to the replicas that wait for it."""
        if hosted.shard is None:
            hosted.opening.pop(but, None)
            self._remove(hosted, error)

    def _admit(self, hosted: HostedShard) -> None:
        if hosted.ready:
            assert hosted.shard is not None
            self._replicate(hosted, hosted.shard)
            for replica in list(hosted.opening):
                hosted.admit(replica, self._listen)

    def _fill(self, frame: Frame, sender: Caller) -> Frame:
        """Store a part of the chief's initial values or slots; the last part admits all replicas."""
        hosted, shard = self._find(frame)
        slot = str(frame.meta.get("slot", ""))
        with shard.lock:
            if "table" in frame.meta:
                hosted.fill(int(frame.meta["table"]), int(frame.meta["first"]), frame.arrays[0], slot)
            else:
                hosted.fill_slot(slot, frame.arrays[0])
        self._admit(hosted)
        return Frame("ps.filled")

    def _table(self, frame: Frame, sender: Caller) -> Frame:
        """Send the current values of a part of a table."""
        _, shard = self._find(frame)
        first, stop = int(frame.meta["first"]), int(frame.meta["stop"])
        number, slot = int(frame.meta["table"]), str(frame.meta.get("slot", ""))
        with shard.lock:
            array = shard.tables.slots[number][slot] if slot else shard.tables.arrays[number]
            return Frame("ps.part", {}, (array[first:stop].copy(),))

    def _state(self, frame: Frame, sender: Caller) -> Frame:
        """Send the parameters and the optimizer's slots of some names, as they are between two updates."""
        hosted, shard = self._find(frame)
        begun = clock()
        with shard.lock:
            counts = zip(shard.statistics.made, shard.statistics.dropped, strict=True)
            meta = {
                "version": shard.version,
                "global_step": int(shard.counters[GLOBAL_STEP]),
                "steps": [made + dropped for made, dropped in counts],
            }
            slots = [shard.slot(str(name)) for name in frame.meta["slots"]]
            arrays = (shard.memory.copy(), *slots)
        hosted.log.parameters("socket", int(frame.meta["replica"]), begun, clock())
        return Frame("ps.state", meta, arrays)

    def _done(self, frame: Frame, sender: Caller) -> Frame:
        """Release a replica that has the final values; it may say so twice, if its connection is reset."""
        if frame.meta["shard"] in self._hosted:
            hosted, _ = self._find(frame)
            hosted.reading.discard(int(frame.meta["replica"]))
            if not hosted.reading:
                self._remove(hosted)
        return Frame("ps.bye")

    def _listen(self) -> str:
        self._bell = self._bell or BellThread(self._prefix, self._handle_ring)
        return self._bell.name

    # Gradients through shared memory. Runs on the mailbox thread.

    def _handle_ring(self, number: int, replica: int, incarnation: int, slot: int) -> None:
        """Do what a replica rang for, unless another process has its number now."""
        hosted = self._numbers.get(number)
        if hosted is None or hosted.shard is None or hosted.mailbox is None:
            return
        if incarnation != hosted.incarnations[replica]:
            return
        try:
            if slot == COUNT and replica in hosted.shard.evicted:
                hosted.refuse(replica)
                return
            if slot == COUNT:
                hosted.shard.count(replica)
                hosted.when_replicated(partial(hosted.ring, replica, COUNTED, 0))
                return
            gradient: Gradient = [*hosted.gradient(hosted.mailbox, replica, slot)]
            version, _, serial = (int(one) for one in hosted.mailbox.headers[replica][slot][:3])
            self._take(hosted, hosted.shard, "mailbox", replica, slot, gradient, version, incarnation, serial)
        except Exception as error:  # no memory, say; this thread serves the others too
            hosted.tell(replica, error_frame(error, self._server.name))

    def _take(
        self,
        hosted: HostedShard,
        shard: ParameterShard,
        lane: str,
        replica: int,
        token: int,
        gradient: Gradient,
        version: int,
        incarnation: int,
        serial: int,
    ) -> None:
        """Offer a gradient to its shard, and answer all replicas that wait for the completed update."""
        begun = clock()
        became, answers = shard.offer(
            replica, token, gradient, version, lambda: incarnation == hosted.incarnations[replica], serial
        )
        hosted.log.gradient(lane, replica, begun, clock(), became)
        if became == "applied":
            hosted.when_replicated(partial(hosted.answer_all, answers))
        else:
            hosted.answer_all(answers)

    # The same through sockets. Runs on the server's thread.

    def _pull(self, frame: Frame, sender: Caller) -> Frame:
        hosted, shard = self._find(frame)
        begun = clock()
        with shard.lock:
            meta = {"version": shard.version, "global_step": int(shard.counters[GLOBAL_STEP])}
            copy = shard.memory.copy()
            rows = [row_of(table, ids) for table, ids in zip(shard.tables.arrays, frame.arrays)]
        hosted.log.parameters("socket", int(frame.meta["replica"]), begun, clock())
        return Frame("ps.parameters", meta, (copy, *rows))

    def _push(self, frame: Frame, sender: Caller) -> None:
        hosted, shard = self._find(frame)
        replica, token = int(frame.meta["replica"]), int(frame.meta["token"])
        if not hosted.receive(replica, token, int(frame.meta["number"])):
            return
        gradient, *parts = frame.arrays
        if gradient.nbytes != hosted.layout.size or gradient.dtype != np.uint8:
            raise InvalidArgumentError(
                f"a gradient of {gradient.nbytes} bytes for a shard of {hosted.layout.size}"
            )
        flats = hosted.layout.flats(np.array(gradient))  # a copy of our own, in aligned memory
        rows = [RowGradient(np.array(i), np.array(v)) for i, v in zip(parts[::2], parts[1::2], strict=True)]
        whole: Gradient = [*flats, *shard.tables.checked(rows)]
        version, incarnation = int(frame.meta["version"]), int(frame.meta["incarnation"])
        serial = int(frame.meta["serial"])
        self._take(hosted, shard, "socket", replica, token, whole, version, incarnation, serial)

    def _count(self, frame: Frame, sender: Caller) -> None:
        hosted, shard = self._find(frame)
        replica = int(frame.meta["replica"])
        if int(frame.meta["number"]) > shard.counted[replica]:
            shard.count(replica)
        hosted.when_replicated(lambda: sender.reply(Frame("ps.counted")))

    def _reconnect(self, frame: Frame, sender: Caller) -> Frame:
        """Continue with a replica over a new connection; say which of its gradients have arrived."""
        hosted, shard = self._find(frame)
        replica = int(frame.meta["replica"])
        if replica in shard.evicted:
            raise refused(replica, self._server.name)
        if hosted.fails:
            raise hosted.trouble()
        return Frame("ps.reconnected", hosted.reconnect(replica, sender))

    def _rate(self, frame: Frame, sender: Caller) -> None:
        hosted, shard = self._find(frame)
        shard.set_rate(checked_rate(frame.meta["learning_rate"]))
        hosted.when_replicated(lambda: sender.reply(Frame("ps.rated")))

    def _leave(self, frame: Frame, sender: Caller) -> None:
        """Release a replica; all that leave are answered together, when the parameters are final."""
        hosted, shard = self._find(frame)
        replica = int(frame.meta["replica"])
        if replica in shard.evicted:
            raise refused(replica, self._server.name)
        if hosted.reading:  # all have left: this one's connection was reset
            hosted.leaving[replica] = sender
            self._send_final(hosted, shard, replica)
            return
        hosted.leaving[replica] = sender
        answers = shard.leave(replica, stops=bool(frame.meta.get("stops")))
        hosted.when_replicated(partial(hosted.answer_all, answers))
        if hosted.all_left():
            self._end(hosted, shard)

    def _end(self, hosted: HostedShard, shard: ParameterShard) -> None:
        """Send the final parameters to all replicas that have left, and release them."""
        self._ended.add(hosted.name)
        hosted.reading = set(hosted.leaving) - hosted.ringers.keys()
        for replica in hosted.leaving:
            self._send_final(hosted, shard, replica)
        if not hosted.reading:
            self._remove(hosted)

    def _send_final(self, hosted: HostedShard, shard: ParameterShard, replica: int) -> None:
        meta = {
            "updates": shard.updates,
            "global_step": int(shard.counters[GLOBAL_STEP]),
            "dropped": sum(shard.statistics.dropped),
            "statistics": shard.statistics.to_wire(),
            "waits": replica in hosted.reading,
        }
        arrays = () if replica in hosted.ringers else (shard.memory,)
        # Posted like all messages to replicas, so that earlier ones, such as a loss, arrive first.
        self._server.post(partial(push, hosted.leaving[replica], Frame("ps.left", meta, arrays)))

    # The dead and the frozen. Runs on the server's thread.

    def _look_around(self) -> None:
        """Check for dead and frozen replicas once a second, while there is a shard."""
        if self._stop_looking is None:
            self._stop_looking = self._server.every(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if not self._hosted and self._stop_looking is not None:
            self._stop_looking()
            self._stop_looking = None
        for hosted in list(self._hosted.values()):
            if hosted.reading:
                hosted.reading -= {replica for replica in hosted.reading if hosted.stays_gone(replica)}
                if not hosted.reading:
                    self._remove(hosted)
                continue
            self._gather(hosted)
            self._refuse_chief(hosted)
            if hosted.look(FROZEN_SECONDS):
                self._server.after(RECONNECT_SECONDS, self._look)
            if hosted.shard is not None and hosted.leaving and hosted.all_left():
                self._end(hosted, hosted.shard)

    def drop_run(self, run: str) -> int:
        """Drop all shards of a run, also those in use; returns their number. On the server's thread."""
        self._ended = {name for name in self._ended if _run_of(name) != run}
        names = [name for name in self._hosted if name.startswith(f"{run}/")]
        for name in names:
            self._remove(self._hosted[name])
        self._standbys.drop_run(run)
        return len(names)

    def _remove(self, hosted: HostedShard, ended: Frame | None = None) -> None:
        self._hosted.pop(hosted.name, None)
        self._numbers.pop(hosted.number, None)
        self._server.sessions.store.give_back(("ps", hosted.number))
        ended = ended or error_frame(AbortedError(f"the run of {hosted.name} has ended"))
        for sender, _ in hosted.opening.values():
            self._server.post(partial(push, sender, ended))
        hosted.close()

    def _find(self, frame: Frame) -> tuple[HostedShard, ParameterShard]:
        hosted = self._hosted.get(frame.meta["shard"])
        if hosted is None or hosted.shard is None:
            raise AbortedError(f"the parameters of {frame.meta['shard']!r} are not here (any more)")
        replica = int(frame.meta.get("replica", 0))
        if "incarnation" in frame.meta and frame.meta["incarnation"] != hosted.incarnations[replica]:
            raise refused(replica, self._server.name)
        return hosted, hosted.shard


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


Post = Callable[[Callable[[], object]], None]


@dataclass
class SocketGradient:
    """A gradient that came through a socket, and the answers to it."""

    number: int
    answers: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Standby:
    """Where the standby of a shard is: on the task of ``rank``; the shard is on that of rank ``of``."""

    rank: int
    of: int
    shared: bool
    """Whether it may use shared memory."""

    def key(self, shard: str) -> str:
        """Return what the standby's task calls a shard: each server has one of the same name."""
        return f"{shard}/{self.of}"


@dataclass
class HostedShard:
    """A shard, its replicas, and an answer channel for each; ``post`` calls on the server's thread."""

    name: str
    number: int
    rules: Rules
    layout: Layout
    opener: str
    server: str
    log: ServiceLog
    post: Post
    tables: tuple[Table, ...] = ()
    """Tables beside the layout: the chief fills them part by part, and messages carry single rows."""
    missing: int = 0
    """Rows of the initial tables, and slots, that the chief has not sent yet."""
    reading: set[int] = field(default_factory=set)
    """Replicas that read the final tables."""
    shard: ParameterShard | None = None
    mailbox: Mailbox | None = None
    note: str = ""
    opening: dict[int, tuple[Caller, dict[str, Any]]] = field(default_factory=dict)
    senders: dict[int, Caller] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The number of each replica's last gradient that came through a socket."""
    recent: dict[int, dict[int, SocketGradient]] = field(default_factory=lambda: defaultdict(dict))
    """By replica and token: the last gradient, and the answers to it, which may be lost with a connection."""
    gone_since: dict[int, float] = field(default_factory=dict)
    """Replicas whose connection is lost, and since when."""
    ringers: dict[int, Ringer] = field(default_factory=dict)
    leaving: dict[int, Caller] = field(default_factory=dict)
    offers: dict[int, Offer] = field(default_factory=dict)
    """Copies that replicas have of a shard whose former server died."""
    gathers_since: float | None = None
    chief_waits_since: float = 0.0
    """When the chief's new process opened the shard, if it has; it has no initial values to give."""
    restoration: Restoration | None = None
    """What the shard continues with: its replica was asked for its copy, or has sent it."""
    lost: set[int] = field(default_factory=set)
    awaited: dict[int, float] = field(default_factory=dict)
    """Lost replicas that the training waits for, and until when; they are not in ``lost``."""
    abandoned: set[int] = field(default_factory=set)
    """Replicas of ``lost`` that the training has waited for in vain."""
    informed: set[int] = field(default_factory=set)
    """Replicas that were last sent a list of awaited ones (ps.awaited) that was not empty."""
    called: dict[int, str] = field(default_factory=dict)
    processes: ProcessMonitor | None = None
    frozen: dict[int, int] = field(default_factory=dict)
    """Frozen replicas, and their processes."""
    incarnations: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """How often the process of each replica was replaced; messages of earlier ones are refused."""
    standby: Standby | None = None
    replicator: Replicator | None = None
    about: dict[str, Any] = field(default_factory=dict)
    """The request that the shard was made from."""
    asked_standby: bool = False
    asks_standby: bool = False
    """Whether the standby was asked for the state, and has not answered yet."""
    found: FoundStandby | None = None
    adopted: FoundStandby | None = None
    """What the shard was restored from, until its replicator continues with it."""
    restored: dict[str, Any] | None = None
    """How the shard was restored from its standby, for the replicas."""
    _gradients: dict[tuple[int, int], list[Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Continue without the spare replicas until each is added."""
        self._spare = set(range(self.rules.first, self.rules.replicas))
        self.lost |= self._spare

    def take_spare(self, replica: int) -> None:
        """Expect gradients of an added replica that opens the shard on a new server."""
        if replica in self.lost & self._spare:
            self.lost.discard(replica)
            if self.shard is not None:
                self.shard.join(replica)

    @property
    def lineage(self) -> tuple[int, int, int]:
        """What is known of former processes: how many, the gradients that they applied, the step before."""
        done = self.restoration
        if done is None:
            return 0, 0, 0 if self.shard is None else self.shard.before
        return done.generation, done.base, done.began

    def offer_of_standby(self, found: FoundStandby) -> Offer:
        """Return what the standby has as an offer; of equally new copies it is preferred."""
        generation, base, began = found.lineage
        updates, step = int(found.counts["updates"]), int(found.counts["global_step"])
        return Offer(-1, updates, updates, step, 0, generation=generation, base=base, began=began)

    def found_is_newest(self) -> bool:
        """Whether no replica has a newer copy than the standby, which its primary may have given up."""
        if self.found is None:
            return False
        return newest([*self.offers.values(), self.offer_of_standby(self.found)]).replica < 0

    @property
    def is_lost(self) -> bool:
        """Whether no copy of a replica restores the shard: it has tables, or is of a synchronous loop.

        Replicas of a synchronous ``fit``, which await lost ones, make the step again. Before the first update
        the chief's initial values restore it in any case.
        """
        trained = any(offer.known or offer.version for offer in self.offers.values())
        return trained and (bool(self.tables) or (self.rules.synchronous and not self.rules.awaits))

    def loss(self) -> UnavailableError:
        """Return the error of a shard that is lost."""
        why = "no worker has all rows of its tables" if self.tables else "its steps were synchronous"
        return UnavailableError(
            f"the former process of {self.server} and its replica (--ps-replicas 1) died together, and {why}"
            f": the parameters of {self.name} are lost. Run the cell again; a run with --checkpoint-every "
            "can be resumed"
        )

    def make_again(self, meta: dict[str, Any], found: FoundStandby, prefix: str) -> None:
        """Make the shard of the state that its standby had."""
        offers = self.offers | {-1: self.offer_of_standby(found)}
        known = restoration(offers, self.rules.replicas, self.rules.spare)
        zeros = tuple(self.layout.views(self.layout.buffer()))
        self.make({**meta, "restored": None}, zeros, prefix)
        shard = self.shard
        assert shard is not None
        with shard.lock:
            for own, theirs in zip(shard.buffers(), found.buffers, strict=True):
                np.copyto(own, theirs)
            shard.continue_from(found.counts)
        generation, base, began = found.lineage
        self.missing, self.adopted = 0, found
        self.restoration = replace(known, generation=generation, base=base, began=began)
        self.restored = {
            "lost": known.lost, "global_step": int(shard.counters[GLOBAL_STEP]), "standby": found.info.name,
        }  # fmt: skip

    def when_replicated(self, act: Callable[[], object]) -> None:
        """Call a function once the standby has all updates so far; at once if there is none."""
        if self.replicator is None:
            act()
        else:
            self.replicator.hold(act)

    def make(self, meta: dict[str, Any], initial: tuple[Array, ...], prefix: str) -> None:
        """Make the shard as the chief requested it, in shared memory if it wants that and there is room."""
        self.about = meta
        optimizer, shapes = from_config(meta["optimizer"]), [entry.shape for entry in self.layout.entries]
        if [value.shape for value in initial] != shapes:
            raise InvalidArgumentError(
                f"initial values of shapes {[value.shape for value in initial]} for variables of {shapes}"
            )
        memory, counters = self.layout.buffer(), np.zeros(COUNTERS, np.int64)
        tables = [np.zeros(shape, dtype) for _, shape, dtype in self.tables]
        self.missing = sum(len(table) for table in tables)
        if meta["shared"] and not tables:
            try:
                size = Mailbox.size(self.layout, self.rules.first)
                self.mailbox = Mailbox(Segment.create(prefix, size), self.layout, self.rules.first)
                memory, counters = self.mailbox.parameters, self.mailbox.counters
            except ResourceExhaustedError as error:
                self.note = f"parameters travel over sockets: {error}"
        try:
            for view, value in zip(self.layout.views(memory), initial, strict=True):
                np.copyto(view, value)
            self.shard = ParameterShard(
                self.layout,
                memory,
                counters,
                optimizer,
                self.rules,
                counts=bool(meta["counts"]),
                first=bool(meta["first"]),
                tables=tables,
                before=int(meta.get("restored") or 0),
            )
            for replica in self.lost & self._spare:
                self.shard.leave(replica, died=True)
            if self.restoration is not None:
                self.shard.restore(self.restoration)
            if meta.get("restored") is not None:
                kept = optimizer.get_slot_names()
                self.missing += len(kept) * (1 + self.missing)
        except BaseException:  # for example no memory for the optimizer's slots: free all of it
            if self.mailbox is not None:
                self.mailbox.segment.close()
                self.mailbox = None
            raise

    def bytes_for(self, meta: dict[str, Any]) -> int:
        """Return the bytes that the shard takes: parameters, gradients in slots, the optimizer's slots."""
        kept = len(from_config(meta["optimizer"]).get_slot_names())
        tables = sum(prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in self.tables)
        shared = Mailbox.size(self.layout, self.rules.first) if meta["shared"] else self.layout.size
        return shared + kept * self.layout.size + (1 + kept) * tables

    def fill_slot(self, slot: str, buffer: Array) -> None:
        """Store a slot of the optimizer, in bytes laid out as the parameters are."""
        assert self.shard is not None
        if buffer.nbytes != self.layout.size or buffer.dtype != np.uint8 or not self.missing:
            raise InvalidArgumentError(
                f"a slot of {buffer.nbytes} bytes for a shard of {self.layout.size}, of which {self.missing} "
                "parts are missing"
            )
        for kept, flat in zip(self.shard.slots, self.layout.flats(np.array(buffer)), strict=True):
            if slot not in kept:
                raise InvalidArgumentError(f"no slot {slot!r}; {choices(slot, kept)}")
            np.copyto(kept[slot], flat)
        self.missing -= 1

    def fill(self, table: int, first: int, rows: Array, slot: str = "") -> None:
        """Store some of the initial rows of a table, or of a slot of it."""
        assert self.shard is not None
        array = self.shard.tables.arrays[table]
        if slot:
            slots = self.shard.tables.slots[table]
            if slot not in slots:
                raise InvalidArgumentError(f"no slot {slot!r}; {choices(slot, slots)}")
            array = slots[slot]
        inside = 0 <= first <= first + len(rows) <= len(array) and rows.shape[1:] == array.shape[1:]
        if not inside or len(rows) > self.missing:
            raise InvalidArgumentError(f"rows {rows.shape} from {first} on are not part of {array.shape}")
        array[first : first + len(rows)] = rows
        self.missing -= len(rows)

    @property
    def ready(self) -> bool:
        """Whether the initial values are complete."""
        return self.shard is not None and self.missing == 0

    def admit(self, replica: int, listen: Callable[[], str]) -> None:
        """Tell a replica how to reach the shard; ``listen`` returns the name of the server's doorbell."""
        assert self.shard is not None
        sender, meta = self.opening.pop(replica)
        reply: dict[str, Any] = {"number": self.number, "segment": None, "note": self.note}
        reply |= {"incarnation": self.incarnations[replica], "counted": self.shard.counted[replica]}
        reply["place"] = self.shard.place_of(replica)
        is_added = replica in self._spare
        reply["made"] = self.shard.statistics.made[replica] if is_added else reply["place"]
        reply["version"] = self.shard.version
        reply["generation"], reply["base"], reply["began"] = self.lineage
        reply |= {"serial": self.shard.serials[replica], "restored": self.restored}
        if self.mailbox is not None and meta["bell"]:
            try:
                self.ringers[replica] = Ringer(meta["bell"])
            except (NotFoundError, NotAllowedError):
                reply["note"] = "parameters travel over sockets: the server sees other shared memory"
            else:
                reply |= {"segment": self.mailbox.segment.name, "bell": listen()}
        self.senders[replica], self.called[replica] = sender, str(meta.get("called", ""))
        push(sender, Frame("ps.opened", reply))

    def gradient(self, mailbox: Mailbox, replica: int, slot: int) -> list[Array]:
        """Return what a replica has written to a slot of the shared memory."""
        found = self._gradients.get((replica, slot))
        if found is None:
            found = self.layout.flats(mailbox.gradients[replica][slot])
            self._gradients[replica, slot] = found
        return found

    def ring(self, replica: int, what: int, slot: int) -> None:
        """Ring for a replica of this host."""
        ringer = self.ringers.get(replica)
        if ringer is not None:
            with suppress(ConnectionError):  # it has died: the next look at all replicas finds out
                ringer.ring(ANSWER.pack(what, slot))

    def answer_all(self, answers: Sequence[Answer]) -> None:
        """Send answers to their replicas."""
        for answer in answers:
            self.answer(answer)

    def answer(self, answer: Answer) -> None:
        """Tell a replica, over the way it came, what became of its gradient."""
        replica, token, staleness, what = answer
        if what == STOPPED and self.rules.fails_without(len(self.lost)):
            self.tell(replica, error_frame(self.trouble()))
        elif replica in self.ringers and self.mailbox is not None:
            if what != STEPPED:
                self.mailbox.headers[replica][token][1] = staleness
            self.ring(replica, what, token)
        elif self.shard is not None:
            gradient = self.recent[replica].get(token)
            meta = {"what": what, "token": token, "staleness": staleness, "version": self.shard.version}
            if gradient is not None:
                meta["number"] = gradient.number
                gradient.answers.append(meta)
                self.tell(replica, Frame("ps.applied", meta))

    def receive(self, replica: int, token: int, number: int) -> bool:
        """Return whether to take a gradient that came through a socket.

        If its connection is reset, a replica may send it twice, or a later one before it.
        """
        if number != self.received[replica] + 1:
            return False
        self.received[replica] = number
        self.recent[replica][token] = SocketGradient(number)
        return True

    def reconnect(self, replica: int, sender: Caller) -> dict[str, Any]:
        """Continue with a replica over a new connection; return what it may have missed."""
        self.senders[replica] = sender  # before the answers are read: later ones are sent to it
        self.gone_since.pop(replica, None)
        answers = [meta for gradient in list(self.recent[replica].values()) for meta in gradient.answers]
        version = 0 if self.shard is None else self.shard.version
        known = {"received": self.received[replica], "answers": answers, "version": version}
        return known | {"frozen": sorted(self.frozen.items())}

    def tell(self, replica: int, frame: Frame) -> None:
        """Push a frame to a replica, if it is known here; from any thread."""
        sender = self.senders.get(replica)
        if sender is not None:
            self.post(partial(push, sender, frame))

    @property
    def restoring(self) -> bool:
        """Whether a living replica was asked for its copy."""
        return self.restoration is not None and self.restoration.replica in self.offers

    def lacks_values(self, now: float) -> bool:
        """Whether the chief's new process waits for values that no replica has.

        The server may be new as well: then the replicas that trained with the former one offer theirs. A
        replica that opens the shard for the first time has none.
        """
        chief = self.opening.get(0)
        if chief is None or not chief[1].get("rejoins"):
            return False
        if self.restoration is not None or self.offers or self.asks_standby or self.found is not None:
            return False
        if self.shard is not None:  # the former process ended while it gave them, part by part
            return True
        others = [meta for replica, (_, meta) in self.opening.items() if replica]
        began = any(not meta.get("rejoins") for meta in others)
        everyone = len(self.opening) >= self.rules.first
        return began or everyone or now - self.chief_waits_since >= FIRST_OFFER_SECONDS

    def all_offered(self) -> bool:
        """Whether no other replica that lives can offer a copy."""
        dead = set() if self.processes is None or self.needs_all else set(self.processes.dead())
        return len(self.opening.keys() | dead | self.lost) >= self.rules.replicas

    @property
    def needs_all(self) -> bool:
        """Whether each replica opens a shard whose server died before it is restored.

        Those that make each step together do: a slower one may have the newest copy, and the others cannot
        make the step of an older one without it. A dead one is awaited, and its new process opens it.
        """
        return self.rules.synchronous and not self.rules.backups

    def drop_gone_offers(self) -> None:
        """Forget the offers of replicas that have died since."""
        for replica in list(self.offers):
            try:
                self.opening[replica][0].push(Frame("ps.there"))
            except ConnectionError:
                del self.offers[replica], self.opening[replica]

    def all_left(self) -> bool:
        """Whether no further replica is expected."""
        waits = self.shard is not None and not self.shard.broken_up and not self.rules.backups
        gone = self.leaving.keys() | self.lost | (set() if waits else self.awaited.keys())
        return len(gone) >= self.rules.replicas

    def lose(self, replica: int, *, frozen: bool = False, seconds: float = AWAIT_SECONDS) -> None:
        """Continue without a replica that is dead or ``frozen``; if the others cannot, send them an error.

        If the rules await its new process, the others wait for that for some ``seconds``. The cluster reports
        deaths. Only this server detects frozen replicas, so it notifies the others.
        """
        assert self.shard is not None
        if self.rules.awaits and seconds:
            self.awaited[replica] = time.monotonic() + seconds
        else:
            self.lost.add(replica)
        self.gone_since.pop(replica, None)
        if frozen:
            assert self.processes is not None
            self.frozen[replica] = self.processes.pid_of(replica)
            for other in self.senders.keys() - self.lost - self.awaited.keys():
                self.tell(other, Frame("ps.lost", {"frozen": sorted(self.frozen.items())}))
            self.refuse(replica)  # it may wait for an answer that this completes
        answers = self.shard.leave(replica, died=True)
        if replica in self.lost and self.rules.awaits:
            answers += self.shard.abandon(replica)
        self.when_replicated(partial(self.answer_all, answers))
        self._fail_others()
        self.announce_awaited()

    def _fail_others(self) -> None:
        """Send the other replicas an error if their step cannot complete."""
        if self.fails:
            for other in self.senders.keys() - self.lost - self.leaving.keys():
                self.tell(other, error_frame(self.trouble()))

    def abandon(self, replica: int) -> None:
        """Wait no longer for the new process of a lost replica."""
        assert self.shard is not None
        del self.awaited[replica]
        self.lost.add(replica)
        self.abandoned.add(replica)
        for answer in self.shard.abandon(replica):
            self.answer(answer)
        self._fail_others()

    def announce_awaited(self) -> None:
        """Send the other replicas which lost ones their step waits for."""
        awaited = sorted(self.awaited) if self.shard is not None and self.shard.is_held_up else []
        for other in self.senders.keys() - self.lost - self.awaited.keys():
            if awaited or other in self.informed:
                self.tell(other, Frame("ps.awaited", {"replicas": awaited}))
        self.informed = set(self.senders) if awaited else set()

    def rejoin(self, replica: int, pid: int) -> None:
        """Expect the process ``pid`` in place of a replica's former one, and refuse that one's messages."""
        if self.processes is not None:
            self.processes.replace(replica, pid)
        if replica not in self.senders and replica not in self.lost and replica not in self.awaited:
            return  # the former process has not reached this shard
        self.incarnations[replica] += 1
        self.refuse(replica)
        for known in (self.senders, self.received, self.recent, self.gone_since):
            known.pop(replica, None)
        if (ringer := self.ringers.pop(replica, None)) is not None:
            ringer.close()
        self.lost.discard(replica)
        self.awaited.pop(replica, None)
        self.frozen.pop(replica, None)
        self.leaving.pop(replica, None)
        if self.shard is not None:
            self.shard.join(replica)
            self.announce_awaited()

    def refuse(self, replica: int) -> None:
        """Notify a replica, over each of its connections, that the others have continued without it."""
        self.ring(replica, REFUSED, 0)
        self.tell(replica, error_frame(refused(replica, self.server)))

    @property
    def fails(self) -> bool:
        """Whether a synchronous step cannot complete, because replicas are dead or frozen."""
        broken_up = self.shard is not None and self.shard.broken_up
        return broken_up and self.rules.fails_without(len(self.lost))

    def trouble(self) -> UnavailableError:
        """Return the error that a synchronous step cannot complete, because a replica is dead or frozen."""
        each = (f"{replica} {self.called.get(replica, '')}".strip() for replica in sorted(self.lost))
        what = "frozen" if self.lost == self.frozen.keys() else "dead"
        if self.abandoned:
            what += ", no new process has joined in its place in time"
        return UnavailableError(
            f"replica {', '.join(each)} is {what}, and a synchronous step takes "
            f"{self.rules.needed} gradients of the {self.rules.replicas} replicas; train without "
            "it, or have backups (a smaller aggregate=)"
        )

    def look(self, frozen_seconds: float) -> bool:
        """Find replicas that are frozen, or dead while others wait for them. On the server's thread.

        Return whether a connection was found lost just now: its replica may connect again.

        A frozen process is detected by its state: a process that computes, or holds the interpreter for a
        minute in native code, is not frozen. The server evicts a frozen replica even if no other replica
        waits for it, so that all servers of a training decide alike, and refuses its late gradients.
        """
        if self.shard is None:
            return False
        staying = set(range(self.rules.replicas)) - self.leaving.keys() - self.lost - self.awaited.keys()
        now = time.monotonic()
        for replica in [one for one, until in self.awaited.items() if now > until]:
            self.abandon(replica)
        if self.processes is not None:
            for replica in staying.intersection(self.processes.frozen(frozen_seconds)):
                self.lose(replica, frozen=True)
        if not (self.leaving or self.shard.waited_for):
            self.gone_since.clear()
            return False
        known = set(self.gone_since)
        ended = set() if self.processes is None else set(self.processes.dead())
        if self.processes is not None and self.senders.keys() & self.processes.seen():
            # A replica may die before the first one opens the shard: then the server has no process to
            # watch. If it sees the processes that joined (one PID namespace), an unseen replica is dead.
            ended |= set(self.processes.unseen()) - self.senders.keys()
        for replica in sorted(staying - self.lost - self.awaited.keys()):
            if replica in ended:
                self.lose(replica)
            elif replica in self.senders and self.stays_gone(replica):
                watched = self.processes is not None and replica in self.processes.seen()
                self.lose(replica, seconds=0 if watched else CUT_OFF_SECONDS)
        return bool(self.gone_since.keys() - known)

    def stays_gone(self, replica: int) -> bool:
        """Whether a replica has died, or has not connected again in time after its connection was lost."""
        if not self.is_gone(replica):
            self.gone_since.pop(replica, None)
            return False
        now = time.monotonic()
        if replica in self.ringers and not self.rules.awaits:
            return True  # else its process may end just now, which tells a death from an end of its body
        return now - self.gone_since.setdefault(replica, now) >= RECONNECT_SECONDS

    def is_gone(self, replica: int) -> bool:
        """Whether a replica that was here has died, as far as can be seen. On the server's thread."""
        ringer = self.ringers.get(replica)
        if ringer is not None:
            return not ringer.has_reader()
        try:
            self.senders[replica].push(Frame("ps.there"))
        except ConnectionError:
            return True
        return False

    def close(self) -> None:
        """Close the doorbells, the shared memory, the process descriptors, and drop the standby."""
        if self.replicator is not None:
            self.replicator.close()
        for one in (self.found, self.adopted):
            if one is not None and one.segment is not None:
                one.segment.close()
        if self.processes is not None:
            self.processes.close()
        for ringer in self.ringers.values():
            ringer.close()
        if self.mailbox is not None:
            self.mailbox.segment.close()

    def require(self, layout: Layout, tables: tuple[Table, ...], rules: Rules, asker: str) -> None:
        """Raise InvalidArgumentError, naming the difference, unless a replica opens what the others did."""
        if layout != self.layout:
            raise InvalidArgumentError(different(self.layout, self.opener, layout, asker))
        if tables != self.tables:
            ours, theirs = Layout.of(self.tables), Layout.of(tables)
            raise InvalidArgumentError(different(ours, self.opener, theirs, asker))
        if rules != self.rules:
            raise InvalidArgumentError(
                f"{asker} asks for {rules} and {self.opener} for {self.rules}; all replicas have to train "
                "alike"
            )


def push(sender: Caller, frame: Frame) -> None:
    """Push a frame to a replica that may be dead; runs on the server's thread."""
    with suppress(ConnectionError):  # it has died or been cut off; the cluster reports that to the client
        sender.push(frame)


def different(one: Layout, first: str, other: Layout, asker: str) -> str:
    """Return the error for two layouts that should be equal: the first variable in which they differ."""

    def text(entry: Any) -> str:
        return f"{entry.name} {entry.shape} {entry.dtype}" if entry else "nothing"

    ours, theirs = one.entries, other.entries
    for i in range(max(len(ours), len(theirs))):
        a = ours[i] if i < len(ours) else None
        b = theirs[i] if i < len(theirs) else None
        if a != b:
            return (
                f"the replicas built different models: variable {i} is {text(a)} on {first} "
                f"and {text(b)} on {asker}; build the same model on every worker"
            )
    return "the replicas built different models"


# A thread that waits on the doorbell and serves the replicas' pushes.


class BellThread:
    """Calls ``handle``, which must not raise, for each ring until it is closed.

    Its arguments: the shard's number, the replica, that one's incarnation, and the slot.
    """

    def __init__(self, prefix: str, handle: Callable[[int, int, int, int], None]) -> None:
        self._bell = Doorbell.create(prefix)
        self._handle = handle
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="nbdist mailbox", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The doorbell's address, which replicas ring."""
        return self._bell.name

    def close(self) -> None:
        """End the thread, and remove the doorbell."""
        self._closing = True
        self._bell.ring_self(RING.pack(0, 0, 0, COUNT))
        self._thread.join(5)
        self._bell.close()

    def _serve(self) -> None:
        bell, handle = self._bell, self._handle
        be_patient()
        while not self._closing:
            for number, replica, incarnation, slot in RING.iter_unpack(bell.wait(60.0)):
                handle(number, replica, incarnation, slot)


def be_patient() -> None:
    """Let this thread wait for a core instead of taking one from a replica in mid-step (Linux).

    A replica that is interrupted for each gradient loses its caches each time; one that blocks because two of
    its gradients are under way makes room by itself. Measured in bench/NOTES.md.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):  # some sandboxes forbid it; it only costs time
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))
