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

Who waits for others is not left alone with one that has died: the service looks around once a second.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nbdist.errors import (
    AbortedError,
    InvalidArgumentError,
)
from nbdist.runtime.answers import COUNTED
from nbdist.runtime.applied import ServiceLogs
from nbdist.runtime.bellthread import BellThread
from nbdist.runtime.holding import Holding, push
from nbdist.runtime.layout import Layout
from nbdist.runtime.mailbox import COUNT, GLOBAL_STEP
from nbdist.runtime.rules import Rules
from nbdist.runtime.server import Server
from nbdist.runtime.shard import ParameterShard
from nbdist.wire.frames import Frame
from nbdist.wire.messages import error_frame
from nbdist.wire.peers import Sender

Array = np.ndarray[Any, Any]
OneWay = Callable[[Frame, Sender], None]
clock = time.perf_counter
LOOK_SECONDS = 1.0  # how often it is looked whether those that others wait for are alive


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
        who, rules = f"replica {meta['replica']}", Rules(**meta["rules"])
        holding = self._holdings.get(meta["shard"])
        if holding is None:
            # Never a number of before: a late ring for a shard that is gone must not reach another.
            number = next(n for n in self._free_numbers if n not in self._numbers)
            log = self.logs.of(_run_of(meta["shard"]), rules.replicas)
            holding = Holding(meta["shard"], number, rules, layout, who, log, self._server.post)
            self._look_around()
            self._holdings[holding.name] = self._numbers[number] = holding
        holding.require(layout, rules, who)
        holding.opening[int(meta["replica"])] = (sender, meta)
        if meta["chief"]:
            holding.make(meta, frame.arrays, self._prefix)
        if holding.shard is not None:
            for replica in list(holding.opening):
                holding.admit(replica, self._listen)

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
            if slot == COUNT:
                holding.shard.count()
                holding.ring(replica, COUNTED, 0)
                return
            gradient = holding.gradient(holding.mailbox, replica, slot)
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
        gradient: list[Array],
        version: int,
    ) -> None:
        """Offer a gradient to its shard, and answer all who wait for what it completed."""
        begun = clock()
        became, answers = shard.offer(replica, token, gradient, version)
        holding.log.gradient(lane, replica, begun, clock(), became)
        for answer in answers:
            holding.answer(answer)
        if replica in holding.lost:  # it was but cut off, or frozen
            holding.lost.discard(replica)

    # The same through sockets. Runs on the server's thread.

    def _pull(self, frame: Frame, sender: Sender) -> Frame:
        holding, shard = self._find(frame)
        begun = clock()
        with shard.lock:
            meta = {"version": shard.version, "global_step": int(shard.counters[GLOBAL_STEP])}
            copy = shard.memory.copy()
        holding.log.parameters("socket", int(frame.meta["replica"]), begun, clock())
        return Frame("ps.parameters", meta, (copy,))

    def _push(self, frame: Frame, sender: Sender) -> None:
        holding, shard = self._find(frame)
        replica, token = int(frame.meta["replica"]), int(frame.meta["token"])
        holding.senders[replica] = sender
        (gradient,) = frame.arrays
        if gradient.nbytes != holding.layout.size or gradient.dtype != np.uint8:
            raise InvalidArgumentError(
                f"a gradient of {gradient.nbytes} bytes for a shard of {holding.layout.size}"
            )
        flats = holding.layout.flats(np.array(gradient))  # a copy of our own: it is written over
        self._take(holding, shard, "socket", replica, token, flats, int(frame.meta["version"]))

    def _count(self, frame: Frame, sender: Sender) -> Frame:
        _, shard = self._find(frame)
        shard.count()
        return Frame("ps.counted")

    def _rate(self, frame: Frame, sender: Sender) -> Frame:
        _, shard = self._find(frame)
        shard.set_rate(float(frame.meta["learning_rate"]))
        return Frame("ps.rated")

    def _leave(self, frame: Frame, sender: Sender) -> None:
        """Let a replica go; all who leave are answered together, when the parameters are final."""
        holding, shard = self._find(frame)
        replica = int(frame.meta["replica"])
        for answer in shard.leave(replica):
            holding.answer(answer)
        holding.leaving[replica] = sender
        if holding.all_left():
            self._end(holding, shard)

    def _end(self, holding: Holding, shard: ParameterShard) -> None:
        """Tell all who have left that the parameters are final, and give them up."""
        meta = {
            "updates": shard.updates,
            "global_step": int(shard.counters[GLOBAL_STEP]),
            "dropped": sum(shard.tally.dropped),
            "tally": shard.tally.to_wire(),
        }
        for number, who in holding.leaving.items():
            arrays = () if number in holding.ringers else (shard.memory,)
            push(who, Frame("ps.left", meta, arrays))
        self._remove(holding)

    # The dead. Runs on the server's thread.

    def _look_around(self) -> None:
        """Look from now on, while there is a shard, for replicas that have died and that others wait for."""
        if self._stop_looking is None:
            self._stop_looking = self._server.every(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        if not self._holdings and self._stop_looking is not None:
            self._stop_looking()
            self._stop_looking = None
        for holding in list(self._holdings.values()):
            shard = holding.shard
            if shard is None or not (holding.leaving or shard.waited_for):
                continue
            for replica in holding.senders.keys() - holding.leaving.keys() - holding.lost:
                if holding.is_gone(replica):
                    holding.lose(replica)
            if holding.leaving and holding.all_left():
                self._end(holding, shard)

    def drop_run(self, run: str) -> int:
        """Give up all shards of a run, whoever still uses them; returns how many. On the server's thread."""
        names = [name for name in self._holdings if name.startswith(f"{run}/")]
        for name in names:
            self._remove(self._holdings[name])
        return len(names)

    def _remove(self, holding: Holding) -> None:
        self._holdings.pop(holding.name, None)
        self._numbers.pop(holding.number, None)
        ended = error_frame(AbortedError(f"the run of {holding.name} has ended"))
        for sender, _ in holding.opening.values():
            self._server.post(partial(push, sender, ended))
        holding.close()

    def _find(self, frame: Frame) -> tuple[Holding, ParameterShard]:
        holding = self._holdings.get(frame.meta["shard"])
        if holding is None or holding.shard is None:
            raise AbortedError(f"the parameters of {frame.meta['shard']!r} are not here (any more)")
        return holding, holding.shard


def _run_of(shard: str) -> str:
    """Return the run that a shard is of: its name is that and the number of the training."""
    return shard.rpartition("/")[0]
