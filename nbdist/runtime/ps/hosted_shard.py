"""The state of one shard on its server, and of the replicas that train it: `HostedShard`. Without handlers.

    hosted = HostedShard(name, number, rules, layout, ...)
    hosted.opening[replica] = ...            # until the chief's initial values are there
    hosted.make(meta, initial, prefix)       # or make_again, from a standby
    hosted.admit(replica, listen)            # its mailbox or socket, and an answer
    hosted.answer_all(answers)               # what the shard's rules have decided
    hosted.look(seconds); hosted.lose(replica); hosted.rejoin(replica, pid)

What it knows of each replica is a `HostedReplica` (:mod:`nbdist.runtime.ps.hosted_replica`).
:mod:`nbdist.runtime.ps.service` receives the replicas' messages, and calls it on the server's thread; for
gradients of replicas on this host, and the answers to them, on that of its `BellThread`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from nbdist.errors import (
    InvalidArgumentError,
    NotAllowedError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    choices,
)
from nbdist.optim import from_config
from nbdist.runtime.layout import Layout
from nbdist.runtime.ps.client import refused
from nbdist.runtime.ps.hosted_replica import HostedReplica, Presence, SocketGradient
from nbdist.runtime.ps.mailbox import ANSWER, COUNTERS, GLOBAL_STEP, Mailbox
from nbdist.runtime.ps.replicator import Replicator
from nbdist.runtime.ps.restore import Offer, Restoration, newest, restoration
from nbdist.runtime.ps.shard import ParameterShard
from nbdist.runtime.ps.standby import FoundStandby
from nbdist.runtime.ps.sync import REFUSED, STEPPED, STOPPED, Answer, Rules
from nbdist.runtime.ps.trace import ServiceLog
from nbdist.runtime.tables import Table
from nbdist.wire.collective.shm.sync import ProcessMonitor
from nbdist.wire.rpc.client import Caller
from nbdist.wire.rpc.envelope import error_frame
from nbdist.wire.rpc.frame import Frame
from nbdist.wire.shm import Ringer, Segment

Array = np.ndarray[Any, Any]
RECONNECT_SECONDS = 0.5  # for a replica to connect again after a reset
FIRST_OFFER_SECONDS = 30.0  # for the first of them, while the chief's new process waits
AWAIT_SECONDS = 300.0  # for the new process of a dead or frozen replica, which may load its data first
CUT_OFF_SECONDS = 40.0  # likewise, of a replica on another host: its connection is lost, and it may be alive
Post = Callable[[Callable[[], object]], None]


@dataclass(frozen=True)
class StandbyLocation:
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
    shard: ParameterShard | None = None
    mailbox: Mailbox | None = None
    note: str = ""
    opening: dict[int, tuple[Caller, dict[str, Any]]] = field(default_factory=dict)
    offers: dict[int, Offer] = field(default_factory=dict)
    """Copies that replicas have of a shard whose former server died."""
    gathers_since: float | None = None
    chief_waits_since: float = 0.0
    """When the chief's new process opened the shard, if it has; it has no initial values to give."""
    restoration: Restoration | None = None
    """What the shard continues with: its replica was asked for its copy, or has sent it."""
    processes: ProcessMonitor | None = None
    standby: StandbyLocation | None = None
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
    replicas: list[HostedReplica] = field(init=False)

    def __post_init__(self) -> None:
        """Make the replicas; those that may be added later are spare until then."""
        first, numbers = self.rules.first, range(self.rules.replicas)
        self.replicas = [HostedReplica(n, is_spare=n >= first) for n in numbers]

    def those(self, *presences: Presence) -> list[HostedReplica]:
        """Return the replicas with one of these presences."""
        return [one for one in self.replicas if one.presence in presences]

    @property
    def lost(self) -> set[int]:
        """The replicas without which the others continue; those that are awaited are not among them."""
        return {one.number for one in self.those(Presence.LOST)}

    def readers(self) -> list[HostedReplica]:
        """Return the replicas that read the final values."""
        return [one for one in self.replicas if one.is_reading]

    def take_spare(self, replica: int) -> None:
        """Expect gradients of an added replica that opens the shard on a new server."""
        one = self.replicas[replica]
        if one.is_spare and one.presence is Presence.LOST:
            one.presence = Presence.TRAINS
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
            for one in self.those(Presence.LOST):
                if one.is_spare:
                    self.shard.leave(one.number, died=True)
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
        optimizer = from_config(meta["optimizer"])
        kept = len(optimizer.get_slot_names())
        tables = sum(prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in self.tables)
        shared = Mailbox.size(self.layout, self.rules.first) if meta["shared"] else self.layout.size
        copied = 0 if optimizer.is_plain else self.layout.size
        return shared + copied + kept * self.layout.size + (1 + kept) * tables

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
        (sender, meta), one = self.opening.pop(replica), self.replicas[replica]
        reply: dict[str, Any] = {"number": self.number, "segment": None, "note": self.note}
        reply |= {"incarnation": one.incarnation, "counted": self.shard.counted[replica]}
        reply["place"] = self.shard.place_of(replica)
        reply["made"] = self.shard.statistics.made[replica] if one.is_spare else reply["place"]
        reply["version"] = self.shard.updates
        reply["generation"], reply["base"], reply["began"] = self.lineage
        reply |= {"serial": self.shard.serials[replica], "restored": self.restored}
        if self.mailbox is not None and meta["bell"]:
            try:
                one.ringer = Ringer(meta["bell"])
            except (NotFoundError, NotAllowedError):
                reply["note"] = "parameters travel over sockets: the server sees other shared memory"
            else:
                reply |= {"segment": self.mailbox.segment.name, "bell": listen()}
        one.sender, one.called = sender, str(meta.get("called", ""))
        push(sender, Frame("ps.opened", reply))

    def gradient(self, mailbox: Mailbox, replica: int, slot: int) -> list[Array]:
        """Return what a replica has written to a slot of the shared memory."""
        known = self.replicas[replica].slots
        found = known.get(slot)
        if found is None:
            found = known[slot] = self.layout.flats(mailbox.gradients[replica][slot])
        return found

    def ring(self, replica: int, what: int, slot: int) -> None:
        """Ring for a replica of this host."""
        ringer = self.replicas[replica].ringer
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
        elif self.replicas[replica].ringer is not None and self.mailbox is not None:
            if what != STEPPED:
                self.mailbox.headers[replica][token][1] = staleness
            self.ring(replica, what, token)
        elif self.shard is not None:
            gradient = self.replicas[replica].recent.get(token)
            meta = {"what": what, "token": token, "staleness": staleness, "version": self.shard.updates}
            if gradient is not None:
                meta["number"] = gradient.number
                gradient.answers.append(meta)
                self.tell(replica, Frame("ps.applied", meta))

    def receive(self, replica: int, token: int, number: int) -> bool:
        """Return whether to take a gradient that came through a socket.

        If its connection is reset, a replica may send it twice, or a later one before it.
        """
        one = self.replicas[replica]
        if number != one.received + 1:
            return False
        one.received = number
        one.recent[token] = SocketGradient(number)
        return True

    def reconnect(self, replica: int, sender: Caller) -> dict[str, Any]:
        """Continue with a replica over a new connection; return what it may have missed."""
        one = self.replicas[replica]
        one.sender, one.gone_since = sender, None  # before the answers are read: later ones are sent to it
        answers = [meta for gradient in list(one.recent.values()) for meta in gradient.answers]
        version = 0 if self.shard is None else self.shard.updates
        known = {"received": one.received, "answers": answers, "version": version}
        return known | {"frozen": self.frozen}

    @property
    def frozen(self) -> list[tuple[int, int]]:
        """The frozen replicas, and their processes."""
        return [(one.number, one.frozen_pid) for one in self.replicas if one.frozen_pid is not None]

    def tell(self, replica: int, frame: Frame) -> None:
        """Push a frame to a replica, if it is known here; from any thread."""
        sender = self.replicas[replica].sender
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
        gone = (Presence.LEFT, Presence.LOST, *(() if waits else (Presence.AWAITED,)))
        return all(one.presence in gone for one in self.replicas)

    def lose(self, replica: int, *, frozen: bool = False, seconds: float = AWAIT_SECONDS) -> None:
        """Continue without a replica that is dead or ``frozen``; if the others cannot, send them an error.

        If the rules await its new process, the others wait for that for some ``seconds``. The cluster reports
        deaths. Only this server detects frozen replicas, so it notifies the others.
        """
        assert self.shard is not None
        one = self.replicas[replica]
        if self.rules.awaits and seconds:
            one.presence, one.awaited_until = Presence.AWAITED, time.monotonic() + seconds
        else:
            one.presence = Presence.LOST
        one.gone_since = None
        if frozen:
            assert self.processes is not None
            one.frozen_pid = self.processes.pid_of(replica)
            for other in self.those(Presence.TRAINS, Presence.LEFT):
                self.tell(other.number, Frame("ps.lost", {"frozen": self.frozen}))
            self.refuse(replica)  # it may wait for an answer that this completes
        answers = self.shard.leave(replica, died=True)
        if one.presence is Presence.LOST and self.rules.awaits:
            answers += self.shard.abandon(replica)
        self.when_replicated(partial(self.answer_all, answers))
        self._fail_others()
        self.announce_awaited()

    def _fail_others(self) -> None:
        """Send the other replicas an error if their step cannot complete."""
        if self.fails:
            for other in self.those(Presence.TRAINS, Presence.AWAITED):
                self.tell(other.number, error_frame(self.trouble()))

    def abandon(self, one: HostedReplica) -> None:
        """Wait no longer for the new process of a lost replica."""
        assert self.shard is not None
        one.presence, one.is_abandoned = Presence.LOST, True
        for answer in self.shard.abandon(one.number):
            self.answer(answer)
        self._fail_others()

    def announce_awaited(self) -> None:
        """Send the other replicas which lost ones their step waits for."""
        held_up = self.shard is not None and self.shard.is_held_up
        awaited = [one.number for one in self.those(Presence.AWAITED)] if held_up else []
        for other in self.those(Presence.TRAINS, Presence.LEFT):
            if awaited or other.is_informed:
                self.tell(other.number, Frame("ps.awaited", {"replicas": awaited}))
        for one in self.replicas:
            one.is_informed = bool(awaited) and one.sender is not None

    def rejoin(self, replica: int, pid: int) -> None:
        """Expect the process ``pid`` in place of a replica's former one, and refuse that one's messages."""
        if self.processes is not None:
            self.processes.replace(replica, pid)
        one = self.replicas[replica]
        if one.sender is None and one.presence not in (Presence.LOST, Presence.AWAITED):
            return  # the former process has not reached this shard
        one.incarnation += 1
        self.refuse(replica)
        one.renew()
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
        lost = self.those(Presence.LOST)
        each = (f"{one.number} {one.called}".strip() for one in lost)
        what = "frozen" if [one.number for one in lost] == [number for number, _ in self.frozen] else "dead"
        if any(one.is_abandoned for one in lost):
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
        now = time.monotonic()
        staying = self.those(Presence.TRAINS)
        for one in self.those(Presence.AWAITED):
            if now > one.awaited_until:
                self.abandon(one)
        if self.processes is not None:
            frozen = self.processes.frozen(frozen_seconds)
            for one in staying:
                if one.number in frozen:
                    self.lose(one.number, frozen=True)
        if not (self.those(Presence.LEFT) or self.shard.waited_for):
            for one in self.replicas:
                one.gone_since = None
            return False
        known = [one for one in self.replicas if one.gone_since is not None]
        ended = set() if self.processes is None else set(self.processes.dead())
        here = {one.number for one in self.replicas if one.sender is not None}
        if self.processes is not None and not here.isdisjoint(self.processes.seen()):
            # A replica may die before the first one opens the shard: then the server has no process to
            # watch. If it sees the processes that joined (one PID namespace), an unseen replica is dead.
            ended |= set(self.processes.unseen()) - here
        for one in staying:
            if one.presence is not Presence.TRAINS:
                continue
            if one.number in ended:
                self.lose(one.number)
            elif one.sender is not None and self.stays_gone(one):
                watched = self.processes is not None and one.number in self.processes.seen()
                self.lose(one.number, seconds=0 if watched else CUT_OFF_SECONDS)
        return any(one.gone_since is not None and one not in known for one in self.replicas)

    def stays_gone(self, one: HostedReplica) -> bool:
        """Whether a replica has died, or has not connected again in time after its connection was lost."""
        if not one.is_gone():
            one.gone_since = None
            return False
        now = time.monotonic()
        if one.ringer is not None and not self.rules.awaits:
            return True  # else its process may end just now, which tells a death from an end of its body
        if one.gone_since is None:
            one.gone_since = now
        return now - one.gone_since >= RECONNECT_SECONDS

    def close(self) -> None:
        """Close the doorbells, the shared memory, the process descriptors, and drop the standby."""
        if self.replicator is not None:
            self.replicator.close()
        for standby in (self.found, self.adopted):
            if standby is not None and standby.segment is not None:
                standby.segment.close()
        if self.processes is not None:
            self.processes.close()
        for one in self.replicas:
            if one.ringer is not None:
                one.ringer.close()
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
