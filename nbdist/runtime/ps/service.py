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
its host that are frozen (stopped, as by SIGSTOP, for 2 s). It continues without them and refuses their later
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

import numpy as np

from nbdist.errors import (
    AbortedError,
    InvalidArgumentError,
    UnavailableError,
)
from nbdist.graph.ops.rows import check_rows
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import refused
from nbdist.runtime.ps.hosted_replica import HostedReplica, Presence
from nbdist.runtime.ps.hosted_shard import RECONNECT_SECONDS, HostedShard, StandbyLocation, push
from nbdist.runtime.ps.mailbox import COUNT, GLOBAL_STEP, RING
from nbdist.runtime.ps.replicator import Replicator
from nbdist.runtime.ps.restore import Offer, restoration, step_restoration
from nbdist.runtime.ps.shard import Gradient, ParameterShard
from nbdist.runtime.ps.standby import FoundStandby, StandbyService, on_own_thread, take_standby
from nbdist.runtime.ps.sync import COUNTED, Rules
from nbdist.runtime.ps.trace import ServiceLogs
from nbdist.runtime.server import Server
from nbdist.runtime.tables import RowGradient, Table
from nbdist.runtime.task import TaskInfo
from nbdist.wire.collective.shm.sync import RANK_FROZEN_SECONDS, ProcessMonitor
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.envelope import error_frame
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Doorbell, require_plain

Array = np.ndarray[Any, Any]
OneWay = Callable[[Frame, Caller], None]
clock = time.perf_counter
OFFER_SECONDS = 2.0  # for all living replicas to offer their copies of a shard
LOOK_SECONDS = 1.0  # between two checks for dead or frozen replicas


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
            hosted.standby = StandbyLocation(**meta["standby"]) if meta.get("standby") else None
            if self._stop_looking is None:  # for dead and frozen replicas, while there is a shard
                self._stop_looking = self._server.every(LOOK_SECONDS, self._look)
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
            for replica in list(hosted.offers):
                hosted.replicas[replica].presence = Presence.LOST  # a slower one may still continue
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
            for one in hosted.replicas:
                hosted.tell(one.number, error_frame(error, self._server.name))

        def note(text: str) -> None:  # the first replica prints it
            here = (one.number for one in hosted.replicas if one.sender is not None)
            hosted.tell(next(here, 0), Frame("ps.note", {"text": text}))

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
                "version": shard.updates,
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
            hosted.replicas[int(frame.meta["replica"])].is_reading = False
            if not hosted.readers():
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
        if replica >= len(hosted.replicas) or incarnation != hosted.replicas[replica].incarnation:
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
        begun, one = clock(), hosted.replicas[replica]
        became, answers = shard.offer(
            replica, token, gradient, version, lambda: incarnation == one.incarnation, serial
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
            meta = {"version": shard.updates, "global_step": int(shard.counters[GLOBAL_STEP])}
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
        shard.set_rate(checked_rate(frame.meta["learning_rate"]), checked_factor(frame.meta.get("factor")))
        hosted.when_replicated(lambda: sender.reply(Frame("ps.rated")))

    def _leave(self, frame: Frame, sender: Caller) -> None:
        """Release a replica; all that leave are answered together, when the parameters are final."""
        hosted, shard = self._find(frame)
        replica = int(frame.meta["replica"])
        if replica in shard.evicted:
            raise refused(replica, self._server.name)
        one = hosted.replicas[replica]
        one.presence, one.leaver = Presence.LEFT, sender
        if hosted.readers():  # all have left: this one's connection was reset
            self._send_final(hosted, shard, one)
            return
        answers = shard.leave(replica, stops=bool(frame.meta.get("stops")))
        hosted.when_replicated(partial(hosted.answer_all, answers))
        if hosted.all_left():
            self._end(hosted, shard)

    def _end(self, hosted: HostedShard, shard: ParameterShard) -> None:
        """Send the final parameters to all replicas that have left, and release them."""
        self._ended.add(hosted.name)
        for one in hosted.those(Presence.LEFT):
            one.is_reading = one.ringer is None
            self._send_final(hosted, shard, one)
        if not hosted.readers():
            self._remove(hosted)

    def _send_final(self, hosted: HostedShard, shard: ParameterShard, one: HostedReplica) -> None:
        assert one.leaver is not None
        meta = {
            "updates": shard.updates,
            "global_step": int(shard.counters[GLOBAL_STEP]),
            "dropped": sum(shard.statistics.dropped),
            "statistics": shard.statistics.to_wire(),
            "waits": one.is_reading,
        }
        arrays = () if one.ringer is not None else (shard.memory,)
        # Posted like all messages to replicas, so that earlier ones, such as a loss, arrive first.
        self._server.post(partial(push, one.leaver, Frame("ps.left", meta, arrays)))

    # The dead and the frozen. Runs on the server's thread.

    def _look(self) -> None:
        if not self._hosted and self._stop_looking is not None:
            self._stop_looking()
            self._stop_looking = None
        for hosted in list(self._hosted.values()):
            if hosted.readers():
                for one in hosted.readers():
                    one.is_reading = not hosted.stays_gone(one)
                if not hosted.readers():
                    self._remove(hosted)
                continue
            self._gather(hosted)
            self._refuse_chief(hosted)
            if hosted.look(RANK_FROZEN_SECONDS):
                self._server.after(RECONNECT_SECONDS, self._look)
            if hosted.shard is not None and hosted.those(Presence.LEFT) and hosted.all_left():
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
        if "incarnation" in frame.meta and frame.meta["incarnation"] != hosted.replicas[replica].incarnation:
            raise refused(replica, self._server.name)
        return hosted, hosted.shard


def checked_rate(rate: object) -> float:
    """Return a learning rate that came from a replica; InvalidArgumentError unless it is finite and >= 0."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < float("inf"):
        raise InvalidArgumentError(f"a learning rate is a finite number of 0 or more, not {rate!r}")
    return float(rate)


def checked_factor(factor: object) -> float:
    """Return what multiplies the rates of a schedule, that came from a replica; infinite for none."""
    return inf if factor is None or factor == inf else checked_rate(factor)


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
